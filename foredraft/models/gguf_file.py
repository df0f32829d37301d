"""A ``.gguf`` file becomes, once, an ordinary model folder in the cache.

Weights are dequantised by the ``gguf`` library, a block of rows at a time, and written as bf16 (round to nearest, ties
to even) or f32; names, rotations and norms become those of Hugging Face.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

from foredraft.errors import OptionError, WeightsError
from foredraft.models.gguf_config import Config, Family, config_of, family_of, names_of
from foredraft.models.gguf_header import Header, TensorEntry, read_header
from foredraft.models.gguf_rope import add_rope_scaling
from foredraft.models.gguf_tokenizer import stop_ids, tokenizer_of
from foredraft.models.store import Dtype, Progress, building, require_space

Numbers = npt.NDArray[np.float32]

FORMAT: Final = 1  # of the folders written here; a change makes the old ones unused
SOURCE_FILE: Final = "foredraft.json"  # says where a folder came from
_BLOCK_VALUES: Final = 1 << 22  # dequantised at a time
_SAMPLE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Weight:
    """One weight on its way: from an entry of the file to a name and a span of the output."""

    entry: TensorEntry
    name: str
    span: tuple[int, int]
    heads: int = 0  # heads whose rows are to be put back in order; 0 for none
    offset: float = 0.0  # to be taken away


def convert_gguf(
    path: Path,
    cache: Path,
    dtype: Dtype = "bf16",
    progress: Progress | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> Path:
    """Return the folder that holds the model of ``path`` in Hugging Face's layout, made under ``cache`` if need be.

    ``source`` is recorded in the folder's foredraft.json. The key of a folder is the file's name, size, time and a
    sample of its bytes, with ``dtype`` and the format's version. Raises ModelNotFound, WeightsError, UnsupportedModel
    or TokenizerError for what the file is, StorageError for what the disk is.
    """
    _require_dtype(dtype)
    header = read_header(path)
    final = cache / f"{path.stem}-{dtype}-{_key(path, dtype)}"
    if not final.is_dir():
        with building(final) as folder:
            write_folder(header, folder, dtype, progress, source or {"kind": "gguf", "file": str(path.resolve())})
    return final


def write_folder(
    header: Header, folder: Path, dtype: Dtype, progress: Progress | None, source: Mapping[str, Any]
) -> None:
    """Write the model of a GGUF into ``folder``, which exists and is empty but for a lock.

    Raises as ``convert_gguf`` does, and lets OSError through: ``building`` knows what it means.
    """
    _require_dtype(dtype)
    config = config_of(header)
    add_rope_scaling(header, config)
    config["dtype"] = config["torch_dtype"] = "bfloat16" if dtype == "bf16" else "float32"
    weights = _plan(header, config, 2 if dtype == "bf16" else 4)
    require_space(folder, weights[-1].span[1])
    backend, tokenizer_config = tokenizer_of(header)
    backend.save(str(folder / "tokenizer.json"))
    stops = stop_ids(header)
    generation = {key: config[key] for key in ("bos_token_id", "pad_token_id") if config[key] is not None}
    if stops:
        generation["eos_token_id"] = stops
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "config.json", config)
    _write_weights(header, weights, folder / "model.safetensors", dtype, progress)
    facts = {"format": FORMAT, "dtype": dtype, "types": _census(header), "source": dict(source)}
    _write_json(folder / SOURCE_FILE, facts)


def _plan(header: Header, config: Config, width: int) -> list[_Weight]:
    family = family_of(header)
    weights: list[_Weight] = []
    end = 0
    for gguf_name, name in names_of(header, config).items():
        entry = header.tensors[gguf_name]
        begin, end = end, end + width * int(np.prod(entry.shape, dtype=np.int64))
        heads = _heads(family, gguf_name, config)
        if heads and entry.shape[0] % (2 * heads):
            raise WeightsError(f"{header.path} has {entry.shape[0]} rows in {gguf_name!r} for {heads} heads")
        offset = 1.0 if family.offset and name.endswith("norm.weight") else 0.0
        weights.append(_Weight(entry, name, (begin, end), heads, offset))
    return weights


def _heads(family: Family, name: str, config: Config) -> int:
    if not family.rotated:
        return 0
    if ".attn_q." in name:
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if ".attn_k." in name else 0


def _write_weights(header: Header, weights: list[_Weight], path: Path, dtype: Dtype, progress: Progress | None) -> None:
    listing: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for weight in weights:
        listing[weight.name] = {
            "dtype": "BF16" if dtype == "bf16" else "F32",
            "shape": list(weight.entry.shape),
            "data_offsets": list(weight.span),
        }
    text = json.dumps(listing, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    total, done = weights[-1].span[1], 0
    with path.open("wb") as out, header.path.open("rb") as file:
        out.write(struct.pack("<Q", len(text)) + text)
        for weight in weights:
            for block in _blocks(header, file, weight):
                data = to_bf16(block) if dtype == "bf16" else block
                out.write(data.tobytes())
                done += data.nbytes
                if progress is not None:
                    progress(done, total, "converting")


def _blocks(header: Header, file: IO[bytes], weight: _Weight) -> Iterator[Numbers]:
    """Yield a weight's values [rows, columns], in order, a block of rows at a time."""
    entry = weight.entry
    columns = entry.shape[-1]
    rows = int(np.prod(entry.shape[:-1], dtype=np.int64)) if len(entry.shape) > 1 else 1
    row_bytes = entry.size // rows
    if len(entry.shape) == 1 and weight.heads:  # a bias is one row of the file, but is put in order like rows
        rows, columns, row_bytes = columns, 1, entry.size // columns
    unit = rows // weight.heads if weight.heads else 1  # heads stay whole
    step = max(1, _BLOCK_VALUES // (columns * unit)) * unit
    file.seek(entry.start)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        raw = np.fromfile(file, dtype=np.uint8, count=count * row_bytes)
        if raw.size != count * row_bytes:
            raise WeightsError(f"{header.path} became shorter while it was read")
        values = _values(raw.reshape(count, row_bytes), entry)
        if weight.heads:
            values = unrotate(values, count // unit)
        if weight.offset:
            values = values - np.float32(weight.offset)
        yield values


def _values(raw: npt.NDArray[np.uint8], entry: TensorEntry) -> Numbers:
    stored = {"F32": np.float32, "F16": np.float16}.get(entry.kind.name)
    values = dequantize(raw.view(stored) if stored is not None else raw, entry.kind)
    return np.asarray(values, dtype=np.float32)


def unrotate(rows: Numbers, heads: int) -> Numbers:
    """Put the rows [heads * D, C] of q or k back in Hugging Face's order.

    llama.cpp rotates neighbours (0, 1), (2, 3), ...; Hugging Face rotates row i with row i + D / 2. The file holds
    0, D/2, 1, D/2 + 1, ... of each head.
    """
    half = rows.shape[0] // heads // 2
    return np.ascontiguousarray(rows.reshape(heads, half, 2, -1).swapaxes(1, 2)).reshape(rows.shape)


def to_bf16(values: Numbers) -> npt.NDArray[np.uint16]:
    """Return the bits of ``values`` as bf16: round to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    # adding just under half of the last kept place, or half where that place is odd, carries exactly when it should
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    narrow: npt.NDArray[np.uint16] = rounded.astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        narrow[nan] = 0x7FC0
    return narrow


def _key(path: Path, dtype: str) -> str:
    stat = path.stat()
    digest = hashlib.sha256(f"{path.name}\n{stat.st_size}\n{stat.st_mtime_ns}\n{dtype}\n{FORMAT}\n".encode())
    with path.open("rb") as file:
        digest.update(file.read(_SAMPLE))
        file.seek(max(0, stat.st_size - _SAMPLE), os.SEEK_SET)
        digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:12]


def _census(header: Header) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in header.tensors.values():
        counts[entry.kind.name] = counts.get(entry.kind.name, 0) + 1
    return counts


def _require_dtype(dtype: str) -> None:
    if dtype not in ("bf16", "f32"):
        raise OptionError(f"a GGUF file is widened to bf16 or f32, not to {dtype}")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

"""A ``.gguf`` file becomes, once, an ordinary model folder in the cache.

Its weights stay where they are, and the folder links to them; or they are dequantised by the ``gguf`` library, some
rows at a time, and written as bf16 (round to nearest, ties to even) or f32. Names, rotations and norms become those of
Hugging Face.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from foredraft.errors import ModelNotFound, OptionError, StorageError, UnsupportedModel, WeightsError
from foredraft.models.gguf.config import Config, Family, config_of, family_of, names_of
from foredraft.models.gguf.header import Header, read_header
from foredraft.models.gguf.link import Link, content_identity, discard, file_digest, make_link, whole_link, write_link
from foredraft.models.gguf.rope import add_rope_scaling
from foredraft.models.gguf.stored import Stored
from foredraft.models.gguf.tensors import PLAIN, parts
from foredraft.models.gguf.tokenizer import stop_ids, tokenizer_of
from foredraft.models.weights.floats import Bytes, to_bf16
from foredraft.system.files import Dtype, Progress, building, require_space

FORMAT: Final = 1  # of the folders written here; a change makes the old ones unused
SOURCE_FILE: Final = "foredraft.json"  # says where a folder came from
_SAMPLE: Final = 1 << 20


def convert_gguf(
    path: Path,
    cache: Path,
    dtype: Dtype = "bf16",
    progress: Progress | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> Path:
    """Return the folder that holds the model of ``path`` in Hugging Face's layout, made under ``cache`` if need be.

    With dtype "file" it holds no weights but a link to ``path``, which is set anew where the file has been moved.
    ``source`` is recorded in the folder's foredraft.json. The key of a folder is the file's name, size, time and a
    sample of its bytes, with ``dtype`` and the format's version. Raises ModelNotFound, WeightsError, UnsupportedModel
    or TokenizerError for what the file is, StorageError for what the disk is.
    """
    return converted(path, cache, dtype, progress, source=source)[0]


def converted(
    path: Path,
    cache: Path,
    dtype: Dtype = "bf16",
    progress: Progress | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> tuple[Path, Link | None]:
    """Return the folder of ``convert_gguf``, and its link where it was there and has one."""
    _require_dtype(dtype)
    try:
        final = cache / f"{path.stem}-{dtype}-{_key(path, dtype)}"
    except FileNotFoundError:
        raise ModelNotFound(f"there is no file {path}") from None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error
    if final.is_dir() and dtype != "file":
        return final, None
    if final.is_dir() and (link := _pointing(final, path)) is not None:
        return final, link
    header = read_header(path)
    with building(final) as folder:
        write_folder(header, folder, dtype, progress, source or _source(path))
    return final, None


def _source(path: Path) -> dict[str, str]:
    """Return the record of a GGUF: the file that it is, and what it was called."""
    return {"kind": "gguf", "file": str(path.resolve()), "named": str(path.absolute())}


def _pointing(final: Path, path: Path) -> Link | None:
    """Return the link of a folder where it is whole; it points to ``path`` then, unless the disk refuses another word.

    A folder whose link is damaged, or is of another file that looks alike, is removed. Raises StorageError where that
    is refused, or it points nowhere.
    """
    here = str(path.resolve())
    if (link := whole_link(final)) is None:
        return None
    if link.file != here:
        if file_digest(path) != link.digest:
            discard(final)
            return None
        moved = replace(link, file=here)
        try:
            write_link(final, moved)
        except StorageError:
            if not Path(final, link.file).is_file():
                raise
        else:
            return moved
    return link


def write_folder(
    header: Header,
    folder: Path,
    dtype: Dtype,
    progress: Progress | None,
    source: Mapping[str, Any],
    file: str | None = None,
) -> None:
    """Write the model of a GGUF into ``folder``, which exists and is empty but for a lock.

    ``file`` is what a link calls the GGUF; None is its absolute path. Raises as ``convert_gguf`` does, and lets OSError
    through: ``building`` knows what it means.
    """
    _require_dtype(dtype)
    config = config_of(header)
    add_rope_scaling(header, config)
    config["dtype"] = config["torch_dtype"] = "float32" if dtype == "f32" else "bfloat16"
    weights = _plan(header, config)
    if dtype != "file":
        require_space(folder, _wide_bytes(weights, dtype))
    backend, tokenizer_config = tokenizer_of(header)
    backend.save(str(folder / "tokenizer.json"))
    stops = stop_ids(header)
    generation = {key: config[key] for key in ("bos_token_id", "pad_token_id") if config[key] is not None}
    if stops:
        generation["eos_token_id"] = stops
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "config.json", config)
    digest = file_digest(header.path, progress)
    if dtype == "file":
        identity = content_identity(folder / "config.json", digest)
        write_link(folder, make_link(header.path, file or str(header.path.resolve()), digest, identity, weights))
    else:
        _write_weights(header, weights, folder / "model.safetensors", dtype, progress)
    facts = {"format": FORMAT, "dtype": dtype, "types": _census(header), "digest": digest, "source": dict(source)}
    _write_json(folder / SOURCE_FILE, facts)


def _plan(header: Header, config: Config) -> list[Stored]:
    family = family_of(header)
    weights: list[Stored] = []
    for gguf_name, name in names_of(header, config).items():
        entry = header.tensors[gguf_name]
        heads = _heads(family, gguf_name, config)
        if heads and entry.shape[0] % (2 * heads):
            raise WeightsError(f"{header.path} has {entry.shape[0]} rows in {gguf_name!r} for {heads} heads")
        if heads and len(entry.shape) == 1 and entry.quant_type.name not in PLAIN:
            raise UnsupportedModel(
                f"{header.path} stores the bias {gguf_name!r} as {entry.quant_type.name}, which is not read"
            )
        offset = 1.0 if family.offset and name.endswith("norm.weight") else 0.0
        weights.append(
            Stored(name, entry.quant_type.name, entry.shape, entry.start, entry.size, heads, offset, gguf_name)
        )
    return weights


def _heads(family: Family, name: str, config: Config) -> int:
    if not family.rotated:
        return 0
    if ".attn_q." in name:
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if ".attn_k." in name else 0


def _write_weights(header: Header, weights: list[Stored], path: Path, dtype: Dtype, progress: Progress | None) -> None:
    listing: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = done = 0
    for weight in weights:
        begin, total = total, total + _wide_bytes([weight], dtype)
        kind = "BF16" if dtype == "bf16" else "F32"
        listing[weight.name] = {"dtype": kind, "shape": list(weight.shape), "data_offsets": [begin, total]}
    text = json.dumps(listing, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out, header.path.open("rb") as file:
        out.write(struct.pack("<Q", len(text)) + text)
        for weight in weights:
            for part in parts(weight, _reader(header, file, weight), str(header.path)):
                data = to_bf16(part) if dtype == "bf16" else part
                out.write(data.tobytes())
                done += data.nbytes
                if progress is not None:
                    progress(done, total, "converting")


def _wide_bytes(weights: Sequence[Stored], dtype: Dtype) -> int:
    """Return what weights take when they are widened."""
    return (2 if dtype == "bf16" else 4) * sum(prod(weight.shape) for weight in weights)


def _reader(header: Header, file: IO[bytes], weight: Stored) -> Callable[[int, int], Bytes]:
    """Return what reads some rows of a weight from a first one."""

    def read(first: int, count: int) -> Bytes:
        file.seek(weight.start + first * weight.row_bytes)
        raw = np.fromfile(file, dtype=np.uint8, count=count * weight.row_bytes)
        if raw.size != count * weight.row_bytes:
            raise WeightsError(f"{header.path} became shorter while it was read")
        return raw.reshape(count, weight.row_bytes)

    return read


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
        counts[entry.quant_type.name] = counts.get(entry.quant_type.name, 0) + 1
    return counts


def _require_dtype(dtype: str) -> None:
    if dtype not in ("bf16", "f32", "file"):
        raise OptionError(f"a GGUF file runs as it is (file) or is widened to bf16 or f32, not to {dtype}")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

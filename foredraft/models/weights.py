"""A checkpoint's tensors, straight from its safetensors files: checked, mapped, never copied.

Format: https://huggingface.co/docs/safetensors (eight bytes of header length, a JSON header, then the data). Nothing
here trusts the header: offsets, shapes and types must agree with each other and with the file before a tensor is seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import ModelNotFound, WeightsError
from foredraft.models.spec import DecoderSpec

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
PICKLED: Final = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
DRAFTED: Final = "draft_vocabulary.json"  # lies in the folder of a draft model, which was trained and not fetched
LONGEST_HEADER: Final = 100_000_000  # bytes; what the safetensors library allows
# numpy has no bfloat16 and no 8-bit floats: those come as their bits
TYPES: Final[Mapping[str, str]] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "|u1", "F8_E5M2": "|u1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Tensor:
    file: int  # which of the mapped files
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file


class _Damaged(Exception):  # noqa: N818 - not one that a user meets: whoever opens the file knows the way out
    """What is wrong with a file."""


class Weights:
    """The tensors of one checkpoint, by name. Arrays are views of the files; writing to one changes no file."""

    def __init__(
        self,
        folder: Path,
        files: list[NDArray[np.uint8]],
        tensors: dict[str, _Tensor],
        metadata: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self.metadata = metadata
        self._files = files
        self._tensors = tensors

    def names(self) -> tuple[str, ...]:
        """Return every tensor's name."""
        return tuple(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape. Raises WeightsError if there is none of that name."""
        return self._find(name).shape

    def dtype(self, name: str) -> str:
        """Return a tensor's type as safetensors spells it ("BF16", "F32"). Raises WeightsError as above."""
        return self._find(name).dtype

    def raw(self, name: str) -> NDArray[Any]:
        """Return a tensor without copying it: [shape], bfloat16 as uint16. Raises WeightsError as above."""
        tensor = self._find(name)
        return np.ndarray(tensor.shape, TYPES[tensor.dtype], self._files[tensor.file].data, tensor.offset)

    def refuse_unused(self, used: Collection[str], spec: DecoderSpec, prefix: str) -> None:
        """Raise WeightsError for a tensor that a decoder would ignore: then it is not the model it claims to be.

        ``prefix`` begins the names of the decoder's own tensors; other towers of a composite model may lie beside it.
        """
        modules = mtp_prefixes(self, spec, prefix)
        for name in self.names():
            if name not in used and not ignored(name, spec, prefix, modules):
                raise WeightsError(f"{self.folder}: a {spec.family} decoder has no use for {name}")

    def _find(self, name: str) -> _Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise WeightsError(f"{self.folder} has no tensor {name}: the checkpoint is not complete") from None


def open_weights(folder: str | Path, again: str | None = None) -> Weights:
    """Open the ``model.safetensors`` of a folder, or the shards its index names.

    ``again`` is the way out where they are damaged; None is to fetch the model, or to train the draft, again.
    Raises ModelNotFound without such a folder, WeightsError for pickled, missing, truncated or lying weights.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelNotFound(f"there is no folder {folder}")
    if again is None:
        again = "train the draft again" if (folder / DRAFTED).is_file() else "fetch the model again"
    index = _read_index(folder, again) if (folder / INDEX).is_file() and not (folder / SINGLE).is_file() else None
    if index is None and not (folder / SINGLE).is_file():
        _refuse_pickled(folder)
        raise WeightsError(f"{folder} holds no weights: a {SINGLE} is needed")
    shards = [SINGLE] if index is None else sorted(set(index.values()))
    files: list[NDArray[np.uint8]] = []
    tensors: dict[str, _Tensor] = {}
    for number, shard in enumerate(shards):
        path = folder / shard
        if not path.is_file():
            raise WeightsError(f"{folder} lacks the shard {shard} that its index names: {again}")
        mapped, found = _opened(path, number, again)
        files.append(mapped)
        for name, tensor in found:
            if index is not None and index.get(name) != shard:
                raise WeightsError(f"{path} holds {name}, which the index does not place there: {again}")
            tensors[name] = tensor
    for name in index or ():
        if name not in tensors:
            raise WeightsError(f"{folder} has no tensor {name}, although its index names it: {again}")
    return Weights(folder, files, tensors)


def open_file(path: Path, again: str) -> Weights:
    """Open one safetensors file, its ``metadata`` included. Raises WeightsError as ``open_weights`` does.

    ``again`` is the way out where it is damaged; empty leaves that to the caller.
    """
    mapped, found = _opened(path, 0, again)
    return Weights(path, [mapped], dict(found), _metadata(mapped))


def held_weights(where: Path, tensors: Mapping[str, NDArray[Any]]) -> Weights:
    """Return arrays as the tensors of a checkpoint, uint16 as bfloat16; ``where`` is what faults name."""
    kinds = {np.dtype(code): kind for kind, code in TYPES.items() if not kind.startswith(("F8", "U"))}
    files, entries = [], {}
    for number, (name, array) in enumerate(tensors.items()):
        flat = np.ascontiguousarray(array)
        files.append(flat.reshape(-1).view(np.uint8))
        entries[name] = _Tensor(number, kinds[flat.dtype], array.shape, 0)
    return Weights(where, files, entries)


def ignored(name: str, spec: DecoderSpec, prefix: str, modules: tuple[str, ...]) -> bool:
    """Say whether a decoder has no need of a tensor: an old buffer, a tied head's twin, another tower's.

    Nor has it any of ``modules``, what begins the names of MTP modules (``mtp_prefixes``).
    """
    twin = spec.tied and name.endswith("lm_head.weight")
    tower = spec.composite and not name.startswith(prefix)
    return twin or tower or name.startswith(modules) or name.endswith((".rotary_emb.inv_freq", ".masked_bias"))


def mtp_prefixes(weights: Weights, spec: DecoderSpec, prefix: str) -> tuple[str, ...]:
    """Return what begins the names of each module for multi-token prediction (MTP) beside a decoder, in order.

    DeepSeek-V3's are numbered after the decoder's own layers (README_WEIGHTS of that release); of Qwen3-Next's, "mtp."
    """
    found: list[str] = []
    while f"{prefix}layers.{spec.layers + len(found)}.eh_proj.weight" in weights:
        found.append(f"{prefix}layers.{spec.layers + len(found)}.")
    return (*found, "mtp.") if "mtp.fc.weight" in weights else tuple(found)


def decoder_prefix(names: Collection[str]) -> str:
    """Return what begins the names of a decoder's own tensors. An MTP module may bring an embedding of its own."""
    tail = "embed_tokens.weight"
    found = (name.removesuffix(tail) for name in names if name.endswith(tail) and not name.startswith("mtp."))
    return min(found, key=len, default="model.")


def widened(raw: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Return what ``raw`` gave as float32, any shape; ``dtype`` is a 16, 32 or 64 bit float's name in safetensors."""
    if dtype == "BF16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.astype(np.float32)


def narrowed(raw: NDArray[Any], dtype: str, where: str) -> NDArray[np.uint16]:
    """Return what ``raw`` gave as bfloat16, rounded to the nearest and even. Raises WeightsError for no float."""
    if dtype == "BF16":
        return raw
    if dtype not in ("F16", "F32", "F64"):
        raise WeightsError(f"{where} is {dtype}, and only 16, 32 and 64 bit floats are read")
    wide = widened(raw, dtype).view(np.uint32)
    return ((wide + np.uint32(0x7FFF) + (wide >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def _refuse_pickled(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.suffix in PICKLED:
            raise WeightsError(
                f"{path} is pickled, and opening it could run any code: use a checkpoint saved as safetensors"
            )


def _read_index(folder: Path, again: str) -> dict[str, str]:
    """Return which shard holds each tensor. Raises WeightsError unless every shard is a plain name in the folder."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not a readable index: {again}") from error
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not places:
        raise WeightsError(f"{path} has no weight_map: {again}")
    for name, shard in places.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or set(shard) & set("/\\:\0"):
            raise WeightsError(f"{path} places {_short(name)} in {_short(shard)}, which is no shard of this folder")
    return places


def _opened(path: Path, file: int, again: str) -> tuple[NDArray[np.uint8], list[tuple[str, _Tensor]]]:
    """Map a file and return its tensors, checked. Raises WeightsError."""
    try:
        if path.stat().st_size < 8:
            raise _Damaged(f"{path} is truncated: it is too short for a header")
        mapped = np.memmap(path, np.uint8, mode="c")  # "c": writable views that reach no file, as torch wants them
        return mapped, list(_read_header(path, mapped, file))
    except _Damaged as fault:
        raise WeightsError(f"{fault}, {again}" if again else str(fault)) from fault
    except OSError as error:
        raise WeightsError(f"{path} cannot be opened: {error.strerror or error}") from error


def _read_header(path: Path, mapped: NDArray[np.uint8], file: int) -> Iterator[tuple[str, _Tensor]]:
    """Yield the tensors of one file, each checked. Raises WeightsError, or _Damaged."""
    length = int.from_bytes(mapped[:8].tobytes(), "little")
    if length > LONGEST_HEADER or 8 + length > mapped.size:
        raise _Damaged(f"{path} is truncated or damaged: its header claims {length} bytes")
    try:
        header = json.loads(mapped[8 : 8 + length].tobytes().decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"{path} is damaged: its header is not JSON") from error
    if not isinstance(header, dict):
        raise _Damaged(f"{path} is damaged: its header is no table")
    size = mapped.size - 8 - length
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _read_entry(path, name, entry)
        if end > size:
            raise _Damaged(f"{path} is truncated: {_short(name)} ends beyond the file")
        spans.append((begin, end, name))
        yield name, _Tensor(file, dtype, shape, 8 + length + begin)
    reached = 0
    for begin, end, name in sorted(spans):
        if begin != reached:
            wrong = "overlaps another tensor" if begin < reached else "leaves a gap before it"
            raise _Damaged(f"{path} is damaged: {_short(name)} {wrong}")
        reached = end
    if reached != size:
        raise _Damaged(f"{path} is damaged: {size - reached} bytes belong to no tensor")


def _metadata(mapped: NDArray[np.uint8]) -> Mapping[str, str]:
    """Return the texts that a file's header carries beside its tensors; it was read before, and is one."""
    length = int.from_bytes(mapped[:8].tobytes(), "little")
    found = json.loads(mapped[8 : 8 + length].tobytes().decode("utf-8")).get("__metadata__")
    return {name: value for name, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def _read_entry(path: Path, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    if isinstance(entry, dict):
        dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if isinstance(dtype, str) and dtype not in TYPES:
            raise WeightsError(f"{path} holds {_short(name)} as {_short(dtype)}, which is not read: use bf16 weights")
        sizes, ends = _naturals(shape), _naturals(span)
        if isinstance(dtype, str) and sizes is not None and ends is not None and len(ends) == 2:
            begin, end = ends
            if end - begin == math.prod(sizes) * np.dtype(TYPES[dtype]).itemsize:
                return dtype, sizes, begin, end
    raise _Damaged(f"{path} is damaged: the header contradicts itself at {_short(name)}")


def _naturals(value: object) -> tuple[int, ...] | None:
    fine = isinstance(value, list) and all(type(n) is int and 0 <= n < 2**62 for n in value)
    return tuple(value) if fine and isinstance(value, list) else None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name occurs twice")
    return table


def _short(value: object) -> str:
    return repr(value)[:80]

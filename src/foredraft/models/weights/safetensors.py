"""What a safetensors file says of itself: mapped, and checked before anybody sees a tensor.

Format: https://huggingface.co/docs/safetensors (eight bytes of header length, a JSON header, then the data). Nothing
here trusts the header: offsets, shapes and types must agree with each other and with the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import WeightsError

MAX_HEADER: Final = 100_000_000  # bytes; what the safetensors library allows
# numpy has no bfloat16 and no 8-bit floats: those come as their bits
TYPES: Final[Mapping[str, str]] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "|u1", "F8_E5M2": "|u1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one tensor lies, and as what."""

    file: int  # which of the mapped files
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file


class Damaged(Exception):  # noqa: N818 - not one that a user meets: whoever opens the file knows the way out
    """What is wrong with a file."""


def opened(path: Path, file: int, again: str) -> tuple[NDArray[np.uint8], list[tuple[str, Tensor]]]:
    """Map a file and return its tensors, checked. Raises WeightsError."""
    try:
        if not path.stat().st_size:
            raise Damaged(f"{path} is truncated: it is empty")
        if path.stat().st_size < 8:
            raise Damaged(f"{path} is truncated: it is too short for a header")
        mapped = np.memmap(path, np.uint8, mode="c")  # "c": writable views that reach no file, as torch wants them
        return mapped, list(_read_header(path, mapped, file))
    except Damaged as damage:
        raise WeightsError(f"{damage}, {again}" if again else str(damage)) from damage
    except OSError as error:
        raise WeightsError(f"{path} cannot be opened: {error.strerror or error}") from error


def _read_header(path: Path, mapped: NDArray[np.uint8], file: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of one file, each checked. Raises WeightsError, or Damaged."""
    length = int.from_bytes(mapped[:8].tobytes(), "little")
    if length > MAX_HEADER or 8 + length > mapped.size:
        raise Damaged(f"{path} is truncated or damaged: its header claims {length} bytes")
    try:
        header = json.loads(mapped[8 : 8 + length].tobytes().decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: its header is not JSON") from error
    if not isinstance(header, dict):
        raise Damaged(f"{path} is damaged: its header is no table")
    size = mapped.size - 8 - length
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _read_entry(path, name, entry)
        if end > size:
            raise Damaged(f"{path} is truncated: {short(name)} ends beyond the file")
        spans.append((begin, end, name))
        yield name, Tensor(file, dtype, shape, 8 + length + begin)
    reached = 0
    for begin, end, name in sorted(spans):
        if begin != reached:
            wrong = "overlaps another tensor" if begin < reached else "leaves a gap before it"
            raise Damaged(f"{path} is damaged: {short(name)} {wrong}")
        reached = end
    if reached != size:
        raise Damaged(f"{path} is damaged: {size - reached} bytes belong to no tensor")


def metadata_of(mapped: NDArray[np.uint8]) -> Mapping[str, str]:
    """Return the texts that a file's header carries beside its tensors; it was read before, and is one."""
    length = int.from_bytes(mapped[:8].tobytes(), "little")
    found = json.loads(mapped[8 : 8 + length].tobytes().decode("utf-8")).get("__metadata__")
    return {name: value for name, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def _read_entry(path: Path, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    if isinstance(entry, dict):
        dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if isinstance(dtype, str) and dtype not in TYPES:
            raise WeightsError(f"{path} holds {short(name)} as {short(dtype)}, which is not read: use bf16 weights")
        sizes, ends = _naturals(shape), _naturals(span)
        if isinstance(dtype, str) and sizes is not None and ends is not None and len(ends) == 2:
            begin, end = ends
            if end - begin == math.prod(sizes) * np.dtype(TYPES[dtype]).itemsize:
                return dtype, sizes, begin, end
    raise Damaged(f"{path} is damaged: the header contradicts itself at {short(name)}")


def _naturals(value: object) -> tuple[int, ...] | None:
    fine = isinstance(value, list) and all(type(n) is int and 0 <= n < 2**62 for n in value)
    return tuple(value) if fine and isinstance(value, list) else None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name occurs twice")
    return table


def short(value: object) -> str:
    """Return a value as messages quote it."""
    return repr(value)[:80]

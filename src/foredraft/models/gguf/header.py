"""Reading what a GGUF file says of itself, believing nothing that the file's own size contradicts.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, two counts, key-value pairs, a table
of tensors, and, aligned, their data. Every count and length is held against the bytes that are left before anything is
allocated or looped over.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from foredraft.errors import ModelNotFound, UnsupportedModel, WeightsError

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9
_VERSIONS: Final = (2, 3)
_MAX_ENTRIES: Final = 1 << 16  # keys, or tensors; the largest models have a few thousand
_MAX_ELEMENTS: Final = 1 << 20  # of one list; the largest vocabularies have half a million merges
_MAX_STRING: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies: ``shape`` has the fastest dimension last, ``start`` counts from the file's beginning."""

    name: str
    shape: tuple[int, ...]
    quant_type: GGMLQuantizationType
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says of itself."""

    path: Path
    metadata: Mapping[str, Any]  # numbers, booleans, strings, and lists of them
    tensors: Mapping[str, TensorEntry]

    @property
    def architecture(self) -> str:
        """The value of ``general.architecture``."""
        return str(self.metadata["general.architecture"])


def read_header(path: Path) -> Header:
    """Read the header of the GGUF file at ``path``; the tensors' data stay where they are.

    Raises ModelNotFound if there is no such file, WeightsError if it is no GGUF, is truncated or contradicts itself,
    and UnsupportedModel for a way of storing tensors that cannot be read.
    """
    try:
        if not path.stat().st_size:
            raise WeightsError(f"{path} is empty: fetch or make the file again")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).header()
    except FileNotFoundError:
        raise ModelNotFound(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error


@cache
def readable() -> tuple[str, ...]:
    """Return GGML's names of the types whose values the installed ``gguf`` library knows."""
    known = []
    for quant_type, (block, width) in GGML_QUANT_SIZES.items():
        plain = {"F32": np.float32, "F16": np.float16}.get(quant_type.name)
        try:
            dequantize(np.zeros((1, width), np.uint8) if plain is None else np.zeros((1, block), plain), quant_type)
        except NotImplementedError:  # the library names types that it cannot read
            continue
        known.append(quant_type.name)
    return tuple(known)


class _Reader:
    """A position in a file, and the reads that move it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0

    def header(self) -> Header:
        if self._data[:4] != b"GGUF":
            raise self._broken("it does not begin as a GGUF file does")
        self._at = 4
        (version,) = self._take("<I")
        if version not in _VERSIONS:
            raise self._broken(f"its version is {version}, and only little-endian files of version 2 and 3 are read")
        tensors, keys = self._take("<QQ")
        for count, what in ((tensors, "tensors"), (keys, "keys")):
            if count > _MAX_ENTRIES:
                raise self._broken(f"it claims {count} {what}")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            if key in metadata:
                raise self._broken(f"it has the key {key[:80]!r} twice")
            metadata[key] = self._value()
        self._refuse_split(metadata)
        if not isinstance(metadata.get("general.architecture"), str):
            raise self._broken("it does not name its architecture")
        return Header(self._path, metadata, self._tensors(tensors, metadata.get("general.alignment", 32)))

    def _refuse_split(self, metadata: Mapping[str, Any]) -> None:
        count, number = metadata.get("split.count", 1), metadata.get("split.no", 0)
        if type(count) is int and count > 1:
            part = f"part {number + 1} of {count}" if type(number) is int else f"one of {count} parts"
            raise UnsupportedModel(
                f"{self._path} is {part} of a split model: join them with llama-gguf-split --merge FIRST-PART OUT.gguf"
            )

    def _tensors(self, count: int, alignment: Any) -> dict[str, TensorEntry]:
        if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self._broken(f"its alignment is {alignment}, not a power of two")
        found = [self._tensor() for _ in range(count)]
        begin = -(-self._at // alignment) * alignment
        entries: dict[str, TensorEntry] = {}
        for name, shape, quant_type, offset in found:
            block, width = GGML_QUANT_SIZES[quant_type]
            if shape[-1] % block:
                raise self._broken(f"rows of {shape[-1]} values in {name!r} are no whole blocks of {quant_type.name}")
            if offset % alignment:
                raise self._broken(f"the data of {name!r} begin at {offset}, which is no multiple of {alignment}")
            size = prod(shape) // block * width
            if begin + offset + size > self._size:
                raise self._broken(f"the data of {name!r} lie beyond its end, so it is truncated or lies")
            if name in entries:
                raise self._broken(f"it has the tensor {name!r} twice")
            entries[name] = TensorEntry(name, shape, quant_type, begin + offset, size)
        if sum(e.size for e in entries.values()) > self._size:
            raise self._broken("its tensors overlap")
        return entries

    def _tensor(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        (dimensions,) = self._take("<I")
        if not 1 <= dimensions <= 4:
            raise self._broken(f"{name[:80]!r} has {dimensions} dimensions")
        shape = tuple(reversed(self._take(f"<{dimensions}Q")))
        if not 0 < prod(shape) <= 1 << 48:
            raise self._broken(f"{name[:80]!r} has the impossible shape {shape}")
        number, offset = self._take("<IQ")
        try:
            quant_type = GGMLQuantizationType(number)
        except ValueError:
            raise self._broken(f"{name[:80]!r} is of an unknown type, number {number}") from None
        if quant_type.name not in readable():
            raise UnsupportedModel(
                f"{self._path} stores {name[:80]!r} as {quant_type.name}, which cannot be read: take a file of one of "
                f"{', '.join(readable())}"
            )
        return name, shape, quant_type, offset

    def _value(self) -> Any:
        (kind,) = self._take("<I")
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self._broken(f"a value has the unknown type {kind}")
        return self._take("<" + _SCALARS[kind])[0]

    def _array(self) -> list[Any]:
        kind, count = self._take("<IQ")
        left = self._size - self._at
        if kind == _STRING:
            if count > min(left // 8, _MAX_ELEMENTS):
                raise self._broken(f"it claims a list of {count} strings")
            return [self._string() for _ in range(count)]
        if kind not in _SCALARS:
            raise self._broken(f"a list has elements of the unknown type {kind}")
        if count > min(left // struct.calcsize("<" + _SCALARS[kind]), _MAX_ELEMENTS):
            raise self._broken(f"it claims a list of {count} numbers")
        return list(self._take(f"<{count}{_SCALARS[kind]}"))

    def _string(self) -> str:
        (length,) = self._take("<Q")
        if length > min(self._size - self._at, _MAX_STRING):
            raise self._broken(f"it claims a string of {length} bytes")
        self._at += length
        try:
            return self._data[self._at - length : self._at].decode("utf-8")
        except UnicodeDecodeError:
            raise self._broken("a string is not UTF-8") from None

    def _take(self, form: str) -> tuple[Any, ...]:
        try:
            values = struct.unpack_from(form, self._data, self._at)
        except struct.error:
            raise self._broken("it ends in the middle of its header") from None
        self._at += struct.calcsize(form)
        return values

    def _broken(self, why: str) -> WeightsError:
        return WeightsError(f"{self._path} is not a usable GGUF file: {why}")

"""A checkpoint in the packed form: made once, kept as a file that later loads map into memory."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import sys
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import ModelError, StorageError
from foredraft.models.layout import TensorSlot, decoder_prefix, head_of, refuse_unused, require, tensors_of
from foredraft.models.native.blocks import Blocks
from foredraft.models.native.layout_digest import Bytes, aligned, layout, layout_of
from foredraft.models.native.spec_key import spec_key
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights
from foredraft.models.weights.floats import not_finite, widened
from foredraft.native.library import VERSION, check, library
from foredraft.native.structs import PARTS, TYPES, NativeSpec
from foredraft.system.files import Progress, building, require_space
from foredraft.system.machine import cores
from foredraft.system.sizes import apart, size_of

MAGIC: Final = b"FDPACKED"
HEADER: Final = 4096  # bytes before the weights: a page, so that these are aligned
_FACTS: Final = HEADER - 8  # bytes of it that are known before the weights; their digest follows
FILE: Final = "packed.bin"
_SHARE: Final = 0.95  # of the free memory that weights may take


def packed_weights(
    spec: DecoderSpec,
    weights: Weights,
    native: NativeSpec,
    dtype: str,
    kept: Path | None,
    identity: str,
    source: str,
    progress: Progress | None,
    blocks: Blocks | None = None,
) -> tuple[Bytes, str | None, str | None]:
    """Return a model's packed weights, what is to be said where they could not be kept, and what they newly take.

    Packs into ``kept/packed`` unless a whole file of this model, dtype and version lies there; one whose weights have
    changed since is packed anew, which is said too. ``blocks`` says what stays in a file's own blocks; what these take
    in the cache is said when it is first taken. Raises WeightsError for a tensor that is missing, unexpected or of
    the wrong shape, ModelError where memory does not suffice.
    """
    size = int(library().fd_packed_bytes(ctypes.byref(native)))
    if not size:
        check(-1)
    _require_memory(size)
    packer = Packer(spec, weights, native, progress, blocks)
    if kept is None or not identity:
        return packer.fill(aligned(size)), None, None
    folder = kept / "packed" / f"{identity}-{dtype}-{VERSION}"
    facts = _facts(spec, identity, dtype, size, blocks, source)
    found, damage = _open(folder / FILE, facts, size)
    if found is not None:
        return found, None, None
    try:
        packed = _build(packer, folder, facts, size)
        takes = f"{size_of(size)} of packed weights are kept in {folder}" if blocks is not None else None
        return packed, damage, takes
    except StorageError as error:
        return packer.fill(aligned(size)), f"weights are packed at each start: {error}", None


def _build(packer: Packer, folder: Path, facts: bytes, size: int) -> Bytes:
    shutil.rmtree(folder, ignore_errors=True)  # one that was torn or is foreign
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write under {folder.parent}: {error.strerror or error}") from error
    require_space(folder.parent, HEADER + size)
    with building(folder) as partial:
        whole = np.memmap(partial / FILE, np.uint8, "w+", shape=(HEADER + size,))
        packer.fill(whole[HEADER:])
        whole.flush()
        whole[:HEADER] = np.frombuffer(facts + digest(whole[HEADER:]), np.uint8)  # last: a file without it is torn
        whole.flush()
        del whole
    found, _ = _open(folder / FILE, facts, size)
    if found is None:
        raise StorageError(f"{folder / FILE} is not what was written to it")
    return found


def _open(path: Path, facts: bytes, size: int) -> tuple[Bytes | None, str | None]:
    """Return the weights of a file if they are these and whole; what is to be said where they have changed."""
    try:
        if path.stat().st_size != HEADER + size:
            return None, None
        whole = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError):
        return None, None
    if whole[:_FACTS].tobytes() != facts:
        return None, None
    if whole[_FACTS:HEADER].tobytes() != digest(whole[HEADER:]):
        return None, f"the packed weights in {path} were damaged and have been packed anew"
    return whole[HEADER:], None


def digest(packed: Bytes) -> bytes:
    """Return the 8 bytes that tell these packed weights from changed ones. Reads all of them, on all cores."""
    number = ctypes.c_uint64()
    check(library().fd_digest(packed.ctypes.data, packed.nbytes, cores(), ctypes.byref(number)))
    return number.value.to_bytes(8, "little")


def _facts(spec: DecoderSpec, identity: str, dtype: str, size: int, blocks: Blocks | None, source: str) -> bytes:
    facts = {
        "source": hashlib.sha256(source.encode()).hexdigest(),
        "version": VERSION,
        "layout": layout(dtype == "f32") if blocks is None else layout_of(blocks),
        "identity": identity,
        "dtype": dtype,
        "bytes": size,
        "order": sys.byteorder,
        "spec": hashlib.sha256(spec_key(spec).encode()).hexdigest(),
    }
    text = json.dumps(facts, sort_keys=True).encode()
    whole = MAGIC + len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little") + text
    return whole.ljust(_FACTS, b"\0")


def _require_memory(size: int) -> None:
    """Raise ModelError where Linux says that the weights would not fit."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration, IndexError):
        return
    if size > _SHARE * free:
        needed, there = apart(size / _SHARE, free)
        raise ModelError(
            f"the model's weights need {needed} of memory, with some to spare, and {there} are free: "
            "close something or use a smaller model"
        )


class Packer:
    """Hands a checkpoint's tensors to the library, checked against the shapes the spec implies."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: Weights,
        native: NativeSpec,
        progress: Progress | None,
        blocks: Blocks | None = None,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.native = native
        self.progress = progress
        self.blocks = blocks

    def fill(self, packed: Bytes) -> Bytes:
        """Pack every tensor into ``packed``, which is all zeros, and return it."""
        for slot, array in self._tensors():
            self._pack(packed, slot, array)
            if self.progress is not None:
                self.progress(slot.layer + 1, self.spec.layers, "packing weights")
        return packed

    def _pack(self, packed: Bytes, slot: TensorSlot, array: NDArray[Any]) -> None:
        """Raises WeightsError for blocks that the library refuses."""
        rows, cols = array.shape[0], slot.shape[1] if array.ndim == 2 else 1
        array = np.require(array, requirements=("C", "A"))
        stored = None if self.blocks is None else self.blocks.stored.get(slot.name)
        dtype = TYPES["F32"] if array.ndim == 1 else TYPES[stored or self.weights.dtype(slot.name)]
        part, place, spec = PARTS.index(slot.part), ctypes.c_void_p(packed.ctypes.data), ctypes.byref(self.native)
        try:
            check(library().fd_pack(spec, place, part, slot.layer, array.ctypes.data, dtype, rows, cols, slot.first))
        except ModelError as error:
            if self.blocks is None or stored is None:
                raise
            raise not_finite(self.blocks.path, self.weights.called(slot.name), blocks=True) from error

    def _tensors(self) -> Iterator[tuple[TensorSlot, NDArray[Any]]]:
        """Yield each slot with its rows. Refuses what is left over at the end."""
        prefix, used = decoder_prefix(self.weights.names()), set[str]()
        slots = tensors_of(self.spec, prefix, head_of(self.weights, self.spec))
        for name, group in groupby(slots, key=lambda slot: slot.name):  # what several share is read once
            mine = list(group)
            whole = self._read(mine[0])
            used.add(name)
            for slot in mine:
                yield slot, whole[slot.start : slot.stop]
        refuse_unused(self.weights, used, self.spec, prefix)

    def _read(self, slot: TensorSlot) -> NDArray[Any]:
        """Return a slot's whole tensor as it is handed to the library: matrices as they are, the rest in float32."""
        require(self.weights, slot.name, slot.shape)
        if self.blocks is not None and slot.name in self.blocks.stored:
            return self.blocks.raw(slot.name)
        raw = self.weights.raw(slot.name)
        if len(slot.shape) == 2:
            return raw
        wide = widened(raw, self.weights.dtype(slot.name))
        return wide + np.float32(self.spec.norm == "unit") if slot.norm else wide

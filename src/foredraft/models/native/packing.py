"""A checkpoint in the packed form: made once, kept as a file that later loads map into memory."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import ModelError, StorageError, WeightsError
from foredraft.models.layout import decoder_prefix, refuse_unused
from foredraft.models.native.blocks import Blocks
from foredraft.models.native.layout_digest import Bytes, aligned, layout, layout_of
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights
from foredraft.models.weights.floats import not_finite, widened
from foredraft.native.library import VERSION, check, library
from foredraft.native.structs import FLOATS, PARTS, TYPES, NativeSpec
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
    except StorageError as fault:
        return packer.fill(aligned(size)), f"weights are packed at each start: {fault}", None


def _build(packer: Packer, folder: Path, facts: bytes, size: int) -> Bytes:
    shutil.rmtree(folder, ignore_errors=True)  # one that was torn or is foreign
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise StorageError(f"cannot write under {folder.parent}: {fault.strerror or fault}") from fault
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
        "spec": hashlib.sha256(repr(spec).encode()).hexdigest(),
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
        self._used: set[str] = set()

    def fill(self, packed: Bytes) -> Bytes:
        """Pack every tensor into ``packed``, which is all zeros, and return it."""
        self._used.clear()
        for part, layer, first, name, array in self._tensors():
            self._pack(packed, PARTS.index(part), layer, first, name, array)
            if self.progress is not None:
                self.progress(layer + 1, self.spec.layers, "packing weights")
        return packed

    def _pack(self, packed: Bytes, part: int, layer: int, first: int, name: str, array: NDArray[Any]) -> None:
        """Raises WeightsError for blocks that the library refuses."""
        rows, cols = array.shape[0], self.weights.shape(name)[1] if array.ndim == 2 else 1
        array = np.require(array, requirements=("C", "A"))
        stored = None if self.blocks is None else self.blocks.stored.get(name)
        kind = TYPES["F32"] if array.ndim == 1 else TYPES[stored or self.weights.dtype(name)]
        place = ctypes.c_void_p(packed.ctypes.data)
        spec = ctypes.byref(self.native)
        try:
            check(library().fd_pack(spec, place, part, layer, array.ctypes.data, kind, rows, cols, first))
        except ModelError as fault:
            if self.blocks is None or stored is None:
                raise
            raise not_finite(self.blocks.path, self.weights.called(name), blocks=True) from fault

    def _tensors(self) -> Iterator[tuple[str, int, int, str, NDArray[Any]]]:
        """Yield each tensor with its part, layer and first output. Refuses what is left over at the end."""
        spec, names = self.spec, self.weights.names()
        prefix = decoder_prefix(names)
        embedding = f"{prefix}embed_tokens.weight"
        head = embedding if spec.tied else next((name for name in names if name.endswith("lm_head.weight")), None)
        if head is None:
            raise WeightsError(
                f"{self.weights.folder} has no lm_head.weight, and config.json does not tie it to the embedding"
            )
        if not spec.tied:
            yield "embedding", 0, 0, embedding, self._matrix(embedding, spec.vocabulary, spec.hidden)
        yield "head", 0, 0, head, self._matrix(head, spec.vocabulary, spec.hidden)
        yield "norm", 0, 0, "", self._norm(f"{prefix}norm.weight", spec.hidden)
        for layer in range(spec.layers):
            at = f"{prefix}layers.{layer}."
            for part, first, name, array in (*self._linears(at), *self._norms(at)):
                yield part, layer, first, name, array
        refuse_unused(self.weights, self._used, self.spec, prefix)

    def _linears(self, at: str) -> Iterator[tuple[str, int, str, NDArray[Any]]]:
        spec = self.spec
        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        attention, gated = f"{at}self_attn.", f"{at}mlp."
        if spec.fused:
            yield from self._linear("qkv", 0, f"{attention}qkv_proj", q + 2 * kv, spec.hidden, spec.qkv_bias)
            both = list(self._linear("gate", 0, f"{gated}gate_up_proj", 2 * spec.mlp, spec.hidden, spec.mlp_bias))
            for part, _, name, array in both:
                yield part, 0, name, array[: spec.mlp]
                yield part.replace("gate", "up"), 0, name, array[spec.mlp :]
        else:
            for first, name, rows in ((0, "q_proj", q), (q, "k_proj", kv), (q + kv, "v_proj", kv)):
                yield from self._linear("qkv", first, attention + name, rows, spec.hidden, spec.qkv_bias)
            for part in ("gate", "up"):
                yield from self._linear(part, 0, f"{gated}{part}_proj", spec.mlp, spec.hidden, spec.mlp_bias)
        yield from self._linear("o", 0, f"{attention}o_proj", spec.hidden, q, spec.o_bias)
        yield from self._linear("down", 0, f"{gated}down_proj", spec.hidden, spec.mlp, spec.mlp_bias)

    def _linear(
        self, part: str, first: int, name: str, rows: int, cols: int, bias: bool
    ) -> Iterator[tuple[str, int, str, NDArray[Any]]]:
        yield part, first, f"{name}.weight", self._matrix(f"{name}.weight", rows, cols)
        if bias:
            yield f"{part}_bias", first, "", self._vector(f"{name}.bias", rows)

    def _norms(self, at: str) -> Iterator[tuple[str, int, str, NDArray[Any]]]:
        spec = self.spec
        before, after = spec.places in ("pre", "sandwich"), spec.places in ("post", "sandwich")
        middle = "pre_feedforward_layernorm" if after else "post_attention_layernorm"
        q, k = (spec.heads, spec.kv_heads) if spec.qk_norm == "full" else (1, 1)
        for part, name, wanted, width in (
            ("before_attention", "input_layernorm", before, spec.hidden),
            ("after_attention", "post_attention_layernorm", after, spec.hidden),
            ("before_gated", middle, before, spec.hidden),
            ("after_gated", "post_feedforward_layernorm", after, spec.hidden),
            ("q_norm", "self_attn.q_norm", spec.qk_norm != "none", q * spec.head_dim),
            ("k_norm", "self_attn.k_norm", spec.qk_norm != "none", k * spec.head_dim),
        ):
            if wanted:
                yield part, 0, "", self._norm(f"{at}{name}.weight", width)

    def _matrix(self, name: str, rows: int, cols: int) -> NDArray[Any]:
        return self._read(name, (rows, cols))

    def _norm(self, name: str, width: int) -> NDArray[Any]:
        return self._vector(name, width) + np.float32(1 if self.spec.norm == "unit" else 0)

    def _vector(self, name: str, width: int) -> NDArray[Any]:
        return widened(self._read(name, (width,)), self.weights.dtype(name))

    def _read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        if self.weights.shape(name) != shape:
            raise WeightsError(
                f"{self.weights.folder}: {name} has the shape {list(self.weights.shape(name))} where "
                f"config.json implies {list(shape)}"
            )
        if (kind := self.weights.dtype(name)) not in FLOATS:
            raise WeightsError(f"{self.weights.folder}: {name} is {kind}, and only 16, 32 and 64 bit floats are read")
        self._used.add(name)
        if self.blocks is not None and name in self.blocks.stored:
            return self.blocks.raw(name)
        return self.weights.raw(name)

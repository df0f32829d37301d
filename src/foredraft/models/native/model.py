"""The native pass as a Model: rows in, logits and hidden states out, all arithmetic in the library, none in Python."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.core.draft import Scored
from foredraft.errors import ModelError, OptionError
from foredraft.models.folder import ModelFolder
from foredraft.models.model import Rows, wanted_rows
from foredraft.models.native.coding import coding_of
from foredraft.models.native.packing import packed_weights
from foredraft.models.native.spec import native_spec
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights
from foredraft.native.library import check, choose_tier, library
from foredraft.native.structs import NativeRequest
from foredraft.system.files import Progress
from foredraft.system.machine import cores

DTYPES: Final = ("bf16", "f32", "file", "rounded")
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


def why_not() -> str | None:
    """Return why there is no native pass in this install, or None."""
    try:
        library()
    except ModelError as error:
        return str(error)
    return None


class NativeModel:
    """The Model protocol over the native library, on the CPU.

    ``weights`` is an open checkpoint or its folder. Weights are packed for the model, or found packed under
    ``cache/packed`` by ``identity`` and ``source`` (``ModelFolder``; None: its folder's); without both they are packed
    into memory. ``tier`` None is the best that runs,
    ``threads`` None as many as there are cores for this process; ``share_with`` another model, both are that model's
    own, and calls on the two wait for each other. With dtype "file" the matrices of a GGUF stay in its own blocks,
    where there are kernels for them, and all else is bf16; with "rounded" all are coded in 5 bits, for drafters.

    ``notice`` is what is slower than it could be; ``install_note`` what newly packed weights take in the cache.
    Raises OptionError for a dtype, tier or number of threads that cannot be, WeightsError for weights that are not the
    spec's, ModelError where the library or memory is missing.
    """

    rewindable = True
    why_not_rewindable = ""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: Weights | ModelFolder | Path,
        dtype: str = "bf16",
        *,
        identity: str = "",
        source: str | None = None,
        cache: Path | None = None,
        tier: str | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        share_with: NativeModel | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
        self.spec = spec
        self.dtype = dtype
        self.vocabulary = spec.vocabulary
        self.context = spec.context
        self.layers = spec.layers
        self.threads: int = share_with.threads if share_with is not None else cores() if threads is None else threads
        if not 1 <= self.threads <= 1024:
            raise OptionError(f"threads must be from 1 to 1024, not {threads}")
        self.tier: str
        self.tier, refused = choose_tier(share_with.tier if share_with is not None else tier)
        weights = weights if isinstance(weights, Weights) else ModelFolder.of(weights).weights
        blocks = coding_of(spec, weights, dtype)  # not kept: it may hold a file's mapping
        self._read_bytes = None if blocks is None else blocks.read_bytes
        kinds = None if blocks is None else blocks.quant_types
        native = native_spec(spec, dtype, _embedding_scale(spec, dtype), kinds)
        if source is None:  # an identity is of a folder, whose files may have changed
            source = ModelFolder(weights.folder).source if cache and identity else ""
        made = packed_weights(spec, weights, native, dtype, cache, identity, source, progress, blocks)
        self._packed, unkept, self.install_note = made
        wide = None if blocks is None else blocks.note
        many = f"{self.threads} threads share {cores()} cores, which is slower" if self.threads > cores() else None
        self.notice = "; ".join(part for part in (refused, wide, unkept, many) if part) or None
        model, name, out = ctypes.c_void_p(), self.tier.encode(), ctypes.byref
        at, size = self._packed.ctypes.data, self._packed.nbytes
        if share_with is None:
            check(library().fd_open(out(native), at, size, name, self.threads, out(model)))
        else:
            check(library().fd_open_beside(out(native), at, size, share_with.handle, out(model)))
        self.handle: ctypes.c_void_p = model  # of the library
        weakref.finalize(self, _close, library(), model, self._packed)
        self._subsets: list[int] = []
        self._every = np.arange(2 * spec.layers, dtype=np.int32)

    def forward(self, rows: Sequence[Rows], taps: tuple[int, ...] = (), *, logits: bool = True) -> Scored:
        """Run the rows of several slots in one pass, any number of them; see Model."""
        return self.run(rows, taps, logits=logits)

    def run(
        self,
        rows: Sequence[Rows],
        taps: tuple[int, ...] = (),
        *,
        sub_layers: Sequence[int] | None = None,
        hidden: Floats | None = None,
        subset: int = 0,
        logits: bool = True,
    ) -> Scored:
        """Run rows through some of the model.

        ``sub_layers``: which to run, increasing, 2 * layer being its attention and 2 * layer + 1 its MLP; None
        runs all. ``hidden`` [rows, H] enters instead of the tokens' embeddings. ``subset`` (see ``subset``) narrows the
        logits; without ``logits`` they are [0, V]. Raises ModelError for a request that makes no sense.
        """
        for row in rows:
            if len(row.parents) != len(row.tokens):
                raise ModelError(f"a sequence has {len(row.tokens)} tokens and {len(row.parents)} parents")
        wanted, starts = wanted_rows(rows)
        arrays: dict[str, Any] = {
            "slots": _ints("slot", [row.slot for row in rows]),
            "starts": _ints("start", [row.start for row in rows]),
            "counts": _ints("count", [len(row.tokens) for row in rows]),
            "tokens": _ints("token", [token for row in rows for token in row.tokens]),
            "parents": _ints("parent", [parent for row in rows for parent in row.parents]),
            "step": self._every if sub_layers is None else _ints("sub-layer", sub_layers),
            "tap": _ints("layer to tap", taps),
            "want": _ints("wanted row", wanted),
        }
        if hidden is not None:
            arrays["hidden"] = np.ascontiguousarray(hidden, np.float32)
            if arrays["hidden"].shape != (shape := (len(arrays["tokens"]), self.spec.hidden)):
                raise ModelError(f"hidden rows must be {list(shape)}, not {list(hidden.shape)}")
        if subset and not 0 < subset <= len(self._subsets):
            raise ModelError(f"there is no subset {subset} of the vocabulary")
        width = self._subsets[subset - 1] if subset else self.vocabulary
        scores = np.empty((len(wanted) if logits else 0, width), np.float32)
        states = np.empty((len(taps), len(wanted), self.spec.hidden), np.float32)
        request = NativeRequest(
            sequences=len(rows),
            steps=len(arrays["step"]),
            taps=len(taps),
            wanted=len(wanted),
            subset=subset,
            logits=scores.ctypes.data if logits else None,
            tapped=states.ctypes.data,
            **{name: values.ctypes.data for name, values in arrays.items()},
        )
        check(library().fd_forward(self.handle, ctypes.byref(request)))
        return Scored(scores, starts, dict(zip(taps, states, strict=True)))

    def subset(self, ids: Sequence[int]) -> int:
        """Prepare a part of the vocabulary; returns the number to ask ``run`` for its logits, bit for bit the same."""
        number, tokens = ctypes.c_int32(), _ints("token", ids)
        check(library().fd_subset(self.handle, tokens.ctypes.data, len(tokens), ctypes.byref(number)))
        self._subsets.append(len(tokens))
        return number.value

    def compact(self, slot: int, start: int, rows: Sequence[int]) -> int:
        """Move the kept rows together; see Model."""
        kept, (number, after) = _ints("row to keep", rows), _ints("slot or start", (slot, start)).tolist()
        check(library().fd_compact(self.handle, number, after, kept.ctypes.data, len(kept)))
        return len(kept)

    def release(self, slot: int) -> None:
        """Free a slot's memory."""
        check(library().fd_release(self.handle, int(_ints("slot", [slot])[0])))

    def floor(self) -> float:
        """Read all packed weights once, by the same threads, and return the seconds: what no pass can beat."""
        seconds = ctypes.c_double()
        check(library().fd_floor(self.handle, ctypes.byref(seconds)))
        return seconds.value

    def weight_bytes(self) -> int:
        """Return the bytes of the packed weights, all of which ``floor`` reads."""
        return int(self._packed.nbytes)

    def read_bytes(self) -> int | None:
        """Return the bytes of weights that a pass reads, of dtype "file"; None where all are of one type."""
        return self._read_bytes

    def working_bytes(self) -> int:
        """Return the scratch memory of a pass, beyond packed weights and slots."""
        return self._memory()[0]

    def slot_bytes(self) -> int:
        """Return the memory of the slots' keys and values."""
        return self._memory()[1]

    def _memory(self) -> tuple[int, int]:
        working, slots = ctypes.c_uint64(), ctypes.c_uint64()
        check(library().fd_memory(self.handle, ctypes.byref(working), ctypes.byref(slots)))
        return working.value, slots.value


def _close(lib: Any, model: ctypes.c_void_p, packed: Any) -> None:
    """End a model's threads; ``packed`` is held until then, because the model reads it."""
    lib.fd_close(model)
    del packed


def _embedding_scale(spec: DecoderSpec, dtype: str) -> float:
    scale = np.float32(spec.embedding_scale)
    if spec.embedding_rounded and dtype != "f32":
        bits = int(scale.view(np.uint32))
        scale = np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    return float(scale)


def _ints(what: str, values: Sequence[int]) -> Ints:
    """Return values as the library reads them. Raises ModelError for one that is no whole number of 32 bits."""
    try:
        return np.array(array("i", values), np.int32)
    except (OverflowError, TypeError):
        raise ModelError(f"a {what} is not a whole number of 32 bits") from None

"""Laws, draws and log-probabilities in the native library: the fast twins of ``law_of``, ``Noise`` and ``logprobs``.

Every filter is a threshold on the logit, so a law is a row of logits with three numbers: its peak, how far below it the
last survivor lies, and the sum of the weights. Nothing else is worked out before it is asked for.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

import numpy as np

from foredraft.core.law import Array, Dense, Law, Point, Sparse
from foredraft.core.noise import _GUESS, Noise
from foredraft.core.sampling import LawOf, SamplingParams, law_of
from foredraft.errors import ModelError, NumericalError, OptionError
from foredraft.native.library import library
from foredraft.native.structs import NativeLawStruct, NativePlace

_BLOCK: Final = 128  # tokens; kBlock of native/sampling.cpp
_WORD: Final = 1 << 32
_NOTHING: Final = np.empty(0, np.int64)


class NativeLaw(Sparse):
    """The law of one row of logits, which must not change while the law is in use.

    A residual keeps the row: it is the law less another (``minus``), without some tokens (``without``). Equal to
    ``law_of(row, params)`` but for rounding, and the same bits on every x86-64 machine.
    """

    __slots__ = ("_at", "_dense", "_ids", "_keep", "_minus", "_without", "struct")
    struct: NativeLawStruct
    _at: Any  # its address, for the library
    _keep: Any  # the row and the working memory, which the library reads
    _minus: NativeLaw | None
    _without: tuple[int, ...]
    _dense: Any
    _ids: Any

    def __init__(self, struct: NativeLawStruct, keep: Any, minus: NativeLaw | None, without: tuple[int, ...]) -> None:
        put = object.__setattr__  # a law is frozen
        put(self, "struct", struct)
        put(self, "_at", ctypes.byref(struct))
        put(self, "_keep", keep)
        put(self, "_minus", minus)
        put(self, "_without", without)
        put(self, "_dense", None)
        put(self, "_ids", None)

    def __getitem__(self, token: int) -> float:
        found: float = library().fd_law_at(self.summed(), token)
        return found

    @property
    def ids(self) -> Any:
        """The tokens that are possible, ascending: [S]."""
        if self._ids is None:
            object.__setattr__(self, "_ids", np.flatnonzero(self.dense()))
        return self._ids

    @property
    def probabilities(self) -> Any:
        """The probabilities [S] of ``ids``, float64."""
        return self.dense()[self.ids]

    def dense(self) -> Any:
        """Return the probabilities of all tokens: [V], float64."""
        if self._dense is None:
            dense = np.empty(self.struct.size)
            library().fd_law_dense(self.summed(), dense.ctypes.data)
            object.__setattr__(self, "_dense", dense)
        return self._dense

    def over(self, p: Dense) -> Any:
        """Return the probabilities of the tokens that ``p`` lists."""
        return self.dense() if type(p) is Dense else self.dense()[p.ids]

    def draw(self, uniform: float) -> int:
        """Return the token at ``uniform`` of the cumulative law, by inversion."""
        token: int = library().fd_law_draw(self.summed(), uniform)
        return token

    def fits(self, vocabulary: int) -> bool:
        """Say whether the row has so many logits."""
        return bool(self.struct.size == vocabulary)

    def less(self, q: Law) -> Law | None:
        """Return ``residual(self, q)``, without working it out where ``q`` is a Point or of this kind."""
        if isinstance(q, Point):
            if not q.fits(self.struct.size):
                return self
            left = self._residual(self._minus, (*self._without, q.token))
        elif isinstance(q, NativeLaw) and q.fits(self.struct.size) and self.whole:
            left = self._residual(q, ())
        else:
            return None
        return left if left.struct.total > 0 else self

    @property
    def whole(self) -> bool:
        """Whether this is a row's own law, not a residual."""
        return self._minus is None and not self._without

    def race(self, seed: int, position: int, choice: int) -> int:
        """Return the token whose clock at a place rings first; see ``Noise.race``. The law is ``whole``."""
        token: int = library().fd_law_race(self._at, NativePlace(seed, position, choice))
        return token

    def _residual(self, minus: NativeLaw | None, without: tuple[int, ...]) -> NativeLaw:
        self.summed()
        struct = NativeLawStruct.from_buffer_copy(self.struct)
        work = type(self._keep[1]).from_buffer_copy(self._keep[1])  # the sums of blocks that lose nothing stay
        tokens = (ctypes.c_int32 * len(without))(*without)
        struct.tops = ctypes.addressof(work)
        struct.sums = struct.tops + ctypes.sizeof(work) // 2
        struct.without, struct.withouts = ctypes.addressof(tokens), len(without)
        if minus is not None and self._minus is None:
            struct.scale, struct.minus = self.struct.total, ctypes.addressof(minus.struct)
            minus.summed()
        library().fd_law_total(ctypes.byref(struct))
        return NativeLaw(struct, (self._keep, work, tokens), minus, without)

    def summed(self) -> Any:
        """Return the address of the law for the library, its total known."""
        if self.struct.total == 0:
            library().fd_law_total(self._at)
        return self._at


class NarrowLaw(Sparse):
    """A law over some tokens: the i-th of ``tokens`` [Vd], which ascend, has the chance of token i of ``law``."""

    __slots__ = ("_law", "_tokens")
    _law: NativeLaw
    _tokens: Any

    def __init__(self, law: NativeLaw, tokens: Any) -> None:
        object.__setattr__(self, "_law", law)  # a law is frozen
        object.__setattr__(self, "_tokens", tokens)

    def __getitem__(self, token: int) -> Any:
        i = int(np.searchsorted(self._tokens, token))
        return self._law[i] if i < len(self._tokens) and self._tokens[i] == token else 0.0

    @property
    def ids(self) -> Any:
        """The tokens that are possible, ascending: [S]."""
        return self._tokens[self._law.ids]

    @property
    def probabilities(self) -> Any:
        """The probabilities [S] of ``ids``, float64."""
        return self._law.probabilities

    def fits(self, vocabulary: int) -> bool:
        """Say whether every token is among so many."""
        return bool(self._tokens[-1] < vocabulary)


class LawRoom:
    """Room for ``count`` laws over ``size`` tokens that the library itself makes, from rows that it writes."""

    def __init__(self, size: int, params: SamplingParams, count: int) -> None:
        self.structs = (NativeLawStruct * count)()
        self._keep = []
        for i, row in enumerate(np.empty((count, size), np.float32)):
            self.structs[i], keep = _struct_of(row, params.temperature, params.top_k, params.top_p, params.min_p)
            self._keep.append(keep)

    def law(self, i: int) -> NativeLaw:
        """Return the i-th law, once the library has made it."""
        return NativeLaw(self.structs[i], self._keep[i], None, ())


class NativeNoise(Noise):
    """The same noise, with the races of native laws in the library. Other laws race by the rule of the base."""

    __slots__ = ()

    def uniform(self, node: int) -> float:
        """Return the number in [0, 1) that draws the draft's node ``node`` under the ratio rule; see ``guess``."""
        return self._uniform(_GUESS, node)

    def places(self, count: int) -> NativePlace | None:
        """Return the first of ``count`` places as the library takes it; None where its numbers are too large for it."""
        fits = self.position + count <= _WORD and self.choice < _WORD
        return NativePlace(self.seed, self.position, self.choice) if fits else None

    def race(self, law: Law, depth: int) -> int:
        """Draw from ``law`` the token ``depth`` places on, by that place's clocks; see ``Noise.race``."""
        position = self.position + depth
        if type(law) is NativeLaw and law.whole and position < _WORD and self.choice < _WORD:
            return law.race(self.seed, position, self.choice)
        return super().race(law, depth)


def native_law(row: Array, params: SamplingParams) -> Law:
    """Return the law of one row of logits [V], any kind of array. Raises NumericalError as ``law_of`` does."""
    if params.temperature == 0:
        return law_of(row, params)
    struct, keep = _struct_of(row, params.temperature, params.top_k, params.top_p, params.min_p)
    _check(library().fd_law_make(ctypes.byref(struct)), struct)
    return NativeLaw(struct, keep, None, ())


def native_logprobs(row: Array, token: int, top: int = 0) -> tuple[float, list[tuple[int, float]]]:
    """Return what ``engine.logprobs.logprobs`` does, from the library. Raises the same."""
    struct, (row, *held) = _struct_of(row, 1.0, top, 1.0, 0.0)
    if not (0 <= token < len(row) and top >= 0):
        raise OptionError(f"there is no token {token}, or no top {top}, among {len(row)} logits")
    at = ctypes.byref(struct)
    _check(library().fd_law_make(at), struct)
    least, struct.cut = struct.cut, -math.inf  # top-k found the last of the top
    shift = math.log(library().fd_law_total(at))
    del held  # the library has read it
    near = np.flatnonzero(row.astype(np.float64) - struct.peak >= least) if top else _NOTHING
    near = near[np.argsort(-row[near], kind="stable")[:top]]  # of two alike the lower id first
    return float(row[token]) - struct.peak - shift, [(i, float(row[i]) - struct.peak - shift) for i in near.tolist()]


def sampler() -> tuple[LawOf, type[Noise], str, str | None]:
    """Return the law, the noise, "native" or "python" for who computes them, and why it is not the library if so."""
    try:
        library()
    except ModelError as error:
        return law_of, Noise, "python", str(error)
    return native_law, NativeNoise, "native", None


def _struct_of(
    row: Array, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[NativeLawStruct, tuple[Any, Any, Any]]:
    """Return a law as the library takes it, not made yet, and what must live as long: its row and its working memory.

    It is called with cold caches, after a pass has read the weights: ctypes alone is several times quicker there than
    what numpy does to tell an address.
    """
    if type(row) is not np.ndarray or row.dtype.char not in "fd" or not row.dtype.isnative:
        row = _numpy(row)
    try:
        held = ctypes.c_char.from_buffer(row)
    except (TypeError, ValueError, BufferError):  # read-only, or with gaps
        row = np.array(row, order="C")
        held = ctypes.c_char.from_buffer(row)
    size = len(row)
    blocks = -(-size // _BLOCK)
    work = (ctypes.c_double * (2 * blocks))()
    at = ctypes.addressof(work)
    struct = NativeLawStruct(
        ctypes.addressof(held), size, row.itemsize == 8, min(top_k, size), 0,
        temperature, top_p, min_p, at, at + 8 * blocks,
    )  # fmt: skip
    return struct, (row, work, held)


def _numpy(row: Array) -> Any:
    """Return any array's row as contiguous float32 or float64 that has all its digits."""
    if not isinstance(row, np.ndarray):
        row = np.asarray(row.detach().cpu().double() if hasattr(row, "detach") else row)
    return np.ascontiguousarray(row, np.float32 if row.dtype in (np.float32, np.float16) else np.float64)


def _check(code: int, struct: NativeLawStruct) -> None:
    if code > 0:
        raise NumericalError(f"the model answered with logits whose largest is {struct.peak}")
    if code < 0:
        raise ModelError("there is not enough memory for the native pass")

"""Trained heads in the native library: catching up and a whole chain of guesses in one call."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foredraft.core.law import Array, Law
from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams
from foredraft.models.heads.file import HeadsSpec
from foredraft.models.heads.modules import RecurrentHeads
from foredraft.models.native.model import NativeModel
from foredraft.models.native.sampling import LawRoom, NarrowLaw, NativeNoise
from foredraft.models.weights.base import Weights
from foredraft.models.weights.floats import narrowed, widened
from foredraft.native.library import check, library
from foredraft.native.structs import NativePlace


class NativeHeadsSpec(ctypes.Structure):
    """``fd_heads_spec`` of native/heads.h."""

    _fields_ = (
        *(("taps", c_int32), ("feeds_normed", c_int32), ("eps", c_float)),
        *((name, c_void_p) for name in ("fuse_norms", "fuse", "embedding_norm", "hidden_norm", "enter", "vocabulary")),
    )


class NativeChain(ctypes.Structure):
    """``fd_chain`` of native/heads.h."""

    _fields_ = (
        *((name, c_int32) for name in ("slot", "start", "rows", "goes_on")),
        *(("states", c_void_p), ("tokens", c_void_p), ("length", c_int32)),
        *((name, c_void_p) for name in ("least", "laws", "uniforms")),
        *(("place", NativePlace), ("guesses", c_int32), ("broken", c_int32)),
        *((name, c_void_p) for name in ("guess", "path", "second", "beside", "state", "logits")),
    )


@dataclass(frozen=True, slots=True)
class Chain:
    """Guesses one after another. ``laws`` is None where each is the likeliest."""

    tokens: list[int]
    confidence: list[float]  # how sure each guess and all before it are: see ``sure_of``
    laws: list[Law] | None
    second: list[int]  # who was next in the place of each guess; -1 where nobody was, or guesses were drawn
    second_confidence: list[float]  # how sure each of these and all before it are
    broken: bool  # whether they end because logits were no numbers


class NativeHeads(RecurrentHeads):
    """The same over the native pass, whose threads the heads' layer shares.

    ``layer`` was opened beside ``target``. Raises ModelError where memory is missing.
    """

    def __init__(self, spec: HeadsSpec, weights: Weights, target: NativeModel, layer: NativeModel) -> None:
        super().__init__(spec, weights, target, layer)
        held: dict[str, NDArray[Any]] = {"vocabulary": self.vocabulary}
        for name in ("fuse.norms", "enter.embedding_norm", "enter.hidden_norm", "fuse.weight", "enter.weight"):
            if name in weights:
                raw = weights.raw(name)
                dtype = weights.dtype(name)
                wide = narrowed(raw, dtype, name) if name.endswith(".weight") else widened(raw, dtype)
                held[name] = np.require(wide, requirements=("C", "A"))
        order = ("fuse.norms", "fuse.weight", "enter.embedding_norm", "enter.hidden_norm", "enter.weight", "vocabulary")
        at = [held[name].ctypes.data if name in held else None for name in order]
        given = NativeHeadsSpec(len(spec.taps), spec.feeds == "normed", spec.eps, *at)
        self._heads = c_void_p()
        check(library().fd_heads_open(target.handle, layer.handle, ctypes.byref(given), ctypes.byref(self._heads)))
        weakref.finalize(self, _close, library(), self._heads, (target, layer))

    def read(self, slot: int, start: int, states: Sequence[Array], tokens: Sequence[int]) -> tuple[Array, Array]:
        """Read positions; see RecurrentHeads."""
        _, state, logits = self._call(slot, start, states, tokens)
        return state, logits

    def step(self, slot: int, start: int, state: Array, token: int) -> tuple[Array, Array]:
        """Read one position more; see RecurrentHeads."""
        _, after, logits = self._call(slot, start, [state], (token,), goes_on=True)
        return after, logits

    def chain(
        self,
        slot: int,
        start: int,
        states: Sequence[Array],
        tokens: Sequence[int],
        floors: Sequence[float],
        params: SamplingParams,
        noise: Noise,
    ) -> Chain:
        """Read positions as ``read`` does, then guess, at most once for each of ``floors``.

        A guess is made while the path so far is at least as likely as its floor: the likeliest token at temperature 0,
        else one drawn from the law of ``params`` by ``noise``, a NativeNoise whose ``places`` must fit.
        """
        room, place, uniforms = None, NativePlace(), None
        if not params.greedy:
            assert isinstance(noise, NativeNoise)
            first = noise.places(len(floors))
            assert first is not None, "these places are too far for the library"
            width = len(self.vocabulary) if noise.coupled else self.width
            room, place = LawRoom(width, params, len(floors)), first
            uniforms = None if noise.coupled else np.array([noise.uniform(node) for node in range(len(floors))])
        least, most = np.array(floors, np.float64), len(floors)
        # of the guesses, and of their runners-up
        tokens_of, confidences = np.empty((2, most), np.int32), np.empty((2, most))
        done, _, _ = self._call(
            slot, start, states, tokens,
            length=most, least=least.ctypes.data, guess=tokens_of[0].ctypes.data, path=confidences[0].ctypes.data,
            second=tokens_of[1].ctypes.data, beside=confidences[1].ctypes.data,
            laws=None if room is None else ctypes.addressof(room.structs),
            uniforms=None if uniforms is None else uniforms.ctypes.data, place=place,
        )  # fmt: skip
        count = done.guesses
        made = [] if room is None else [room.law(i) for i in range(count)]
        laws: list[Law] = [NarrowLaw(law, self.vocabulary) if noise.coupled else law for law in made]
        (guess, second), (confidence, second_confidence) = (
            tokens_of[:, :count].tolist(),
            confidences[:, :count].tolist(),
        )
        return Chain(guess, confidence, laws if laws else None, second, second_confidence, bool(done.broken))

    def _call(
        self, slot: int, start: int, states: Sequence[Array], tokens: Sequence[int], **fields: Any
    ) -> tuple[NativeChain, Array, Array]:
        """Run a chain; return it with the state [H] and the logits [Vd] after the last row that was run."""
        if not fields.get("goes_on") and "fuse.weight" not in self._weights:  # the library norms only what it joins
            states = [self._fused(states)]
        held = [np.ascontiguousarray(state, np.float32) for state in states]
        following = np.array(tokens, np.int32)
        wanted = 1 if fields.get("goes_on") else len(self.spec.taps)
        if len(held) != wanted or any(state.size != len(following) * self.spec.hidden for state in held):
            raise ValueError("each tapped layer gives a row of features for each token")
        places = (c_void_p * len(held))(*[state.ctypes.data for state in held])
        state, logits = np.empty(self.spec.hidden, np.float32), np.empty(len(self.vocabulary), np.float32)
        chain = NativeChain(
            slot=slot, start=start, rows=len(following), states=ctypes.addressof(places),
            tokens=following.ctypes.data, state=state.ctypes.data, logits=logits.ctypes.data, **fields,
        )  # fmt: skip
        check(library().fd_heads_run(self._heads, ctypes.byref(chain)))
        return chain, state, logits


def _close(lib: Any, heads: c_void_p, models: Any) -> None:
    """Free the heads; the models that they read are held until then."""
    lib.fd_heads_close(heads)
    del models

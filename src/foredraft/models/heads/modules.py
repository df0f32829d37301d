"""Heads that run: each guesses several tokens ahead from what the target's layers hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from foredraft.core.law import Array
from foredraft.models.capabilities import Layered
from foredraft.models.heads.file import LAST_NORM, HeadsSpec
from foredraft.models.model import Rows
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights
from foredraft.models.weights.floats import widened

ROW_BLOCK: Final = 512  # rows that a pass takes together when it catches up


class Heads:
    """What every kind of heads has: the features of a position, and the tokens that may be guessed.

    ``vocabulary`` are the target's tokens [Vd], increasing; ``width`` is the target's V; ``note`` is what a user may
    not expect of them.
    """

    note: str | None = None

    def __init__(self, spec: HeadsSpec, weights: Weights) -> None:
        self.spec = spec
        self.width = spec.vocabulary
        self.vocabulary: NDArray[np.int32] = np.array(weights.raw("vocabulary"))
        self._weights = weights
        self._held: dict[str, Array] = {}

    def _fused(self, states: Sequence[Array]) -> Array:
        """Return f [n, H] of the tapped layers' outputs [n, H]: normed, and joined, where the file has what does it."""
        if "fuse.norms" in self._weights:
            norms = self._tensor("fuse.norms", states[0])
            states = [self._norm(state, norms[i, :]) for i, state in enumerate(states)]
        if "fuse.weight" not in self._weights:
            return states[0]
        joined = array_namespace(states[0]).concat(list(states), axis=1)
        if "fuse.norm" in self._weights:
            joined = self._norm(joined, self._tensor("fuse.norm", joined))
        return joined @ self._tensor("fuse.weight", joined).T

    def _norm(self, x: Array, weight: Array) -> Array:
        """Root mean square norm of each row [n, H]."""
        xp = array_namespace(x)
        return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + self.spec.eps) * weight

    def _tensor(self, name: str, like: Array) -> Array:
        """Return a tensor of the file as an array of the kind, type and place of another."""
        if name not in self._held:
            wide = widened(self._weights.raw(name), self._weights.dtype(name))
            self._held[name] = array_namespace(like).asarray(wide, dtype=like.dtype, device=like.device)
        return self._held[name]


class RecurrentHeads(Heads):
    """A layer with a cache of slots, over any model whose sub-layers can be run apart.

    ``layer`` is the layer as a model of its own with Vd tokens (``layer_weights``). Norms and the two products before
    it are in the type of the states, float32 or wider.
    """

    def __init__(self, spec: HeadsSpec, weights: Weights, target: Layered, layer: Layered) -> None:
        super().__init__(spec, weights)
        self.target = target
        self.layer = layer
        self.context = layer.context
        self._taken: set[int] = set()

    def take(self) -> int:
        """Return a slot that nobody uses."""
        slot = next(slot for slot in range(len(self._taken) + 1) if slot not in self._taken)
        self._taken.add(slot)
        return slot

    def read(self, slot: int, start: int, states: Sequence[Array], tokens: Sequence[int]) -> tuple[Array, Array]:
        """Read positions that follow the slot's first ``start``; return what a step goes on from [H] and logits [Vd].

        ``states`` [n, H] are the tapped layers' outputs at these positions, ``tokens`` [n] the token after each.
        """
        for at in range(0, len(tokens), ROW_BLOCK):
            features = self._fused([state[at : at + ROW_BLOCK, :] for state in states])
            found = self._run(slot, start + at, features, tokens[at : at + ROW_BLOCK])
        return found

    def step(self, slot: int, start: int, state: Array, token: int) -> tuple[Array, Array]:
        """Read one position more, from the ``state`` [H] of the one before and the token after it; as ``read``."""
        return self._run(slot, start, state[None, :], (token,))

    def release(self, slot: int) -> None:
        """Take a slot back and free its memory."""
        self._taken.discard(slot)
        self.layer.release(slot)

    def _run(self, slot: int, start: int, features: Array, tokens: Sequence[int]) -> tuple[Array, Array]:
        chain = tuple(range(-1, len(tokens) - 1))
        entering = self._entering(self._embedded(tokens, features), features)
        scored = self.layer.run([Rows(slot, start, tuple(tokens), chain, 1)], (0,), hidden=entering)
        state = scored.hidden[0]
        if self.spec.feeds == "normed":
            state = self._norm(state, self._tensor(LAST_NORM, features))
        return state[0, :], scored.logits[0, :]

    def _embedded(self, tokens: Sequence[int], like: Array) -> Array:
        """Return the embeddings [n, H] of tokens: the heads' own, or the target's."""
        if "enter.embedding" in self._weights:
            raw = self._weights.raw("enter.embedding")[list(tokens)]
            embedding: Array = widened(raw, self._weights.dtype("enter.embedding"))
        else:  # no sub-layer runs, so nothing of the target's slot changes
            rows = Rows(0, 0, tuple(tokens), tuple(range(-1, len(tokens) - 1)), len(tokens))
            embedding = self.target.run([rows], (-1,), sub_layers=(), logits=False).hidden[-1]
        return array_namespace(like).asarray(embedding, dtype=like.dtype, device=like.device)

    def _entering(self, embedding: Array, features: Array) -> Array:
        """Return what enters the layer, of embeddings and features [n, H]."""
        normed = [
            self._norm(embedding, self._tensor("enter.embedding_norm", features)),
            self._norm(features, self._tensor("enter.hidden_norm", features)),
        ]
        return array_namespace(features).concat(normed, axis=1) @ self._tensor("enter.weight", features).T


class EagleHeads(RecurrentHeads):
    """EAGLE-3: a layer that reads embeddings and features side by side, and norms them itself."""

    def _entering(self, embedding: Array, features: Array) -> Array:
        return array_namespace(features).concat([embedding, features], axis=1)


class MedusaHeads(Heads):
    """Independent heads: each guesses one place further from the same position. Nothing is kept between calls.

    ``head`` is the output head's rows [Vd, H] of the tokens that may be guessed, in float32.
    """

    def __init__(self, spec: HeadsSpec, weights: Weights, target: DecoderSpec, head: NDArray[np.float32]) -> None:
        super().__init__(spec, weights)
        self._target = target
        self._head = head

    def rows(self, states: Sequence[Array]) -> Array:
        """Return the logits [K, Vd] of the K places after the next token, from the outputs [1, H] at one position."""
        f = self._fused(states)
        xp = array_namespace(f)
        rows = []
        for i in range(1, self.spec.steps + 1):
            z = f @ self._tensor(f"medusa.{i}.weight", f).T
            rows.append(z / (1 + xp.exp(-z)) + f)
        if "head" not in self._held:
            self._held["head"] = xp.asarray(self._head, dtype=f.dtype, device=f.device)
        normed = self._norm(xp.concat(rows, axis=0), self._tensor(LAST_NORM, f))
        logits = normed @ self._held["head"].T / self._target.logits_divisor
        cap = self._target.logits_cap
        return xp.tanh(logits / cap) * cap if cap else logits

"""A law: the probabilities of one next token, over a vocabulary of V.

``Dense`` is the general case. ``Sparse`` is its twin without the zeros, for laws that filters have thinned or that know
only some tokens; ``Point`` the twin for the one-hot law of greedy decoding and of drafters that are certain of
themselves. The same answers from fewer numbers: ``tests/core/test_law.py`` holds the three equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, to_device

Array = Any  # numpy on the CPU, torch on a GPU: anything that follows the array API standard


class Law(Protocol):
    """The probabilities of one next token."""

    def __getitem__(self, token: int) -> Any:
        """Return the probability of ``token``."""
        ...

    def over(self, p: Dense) -> Any:
        """Return the probabilities [S] of the tokens that ``p`` lists."""
        ...

    def draw(self, uniform: float) -> int:
        """Return the token at ``uniform`` in [0, 1) of the cumulative law; never one of probability zero."""
        ...

    def first(self, clocks: Callable[[Any], Any]) -> int:
        """Return the possible token whose clock rings first: least ``clocks(ids)`` [S] over its probability."""
        ...

    def fits(self, vocabulary: int) -> bool:
        """Say whether this is a law over so many tokens."""
        ...


Laws = Callable[[int], Law]  # node, or ROOT -> the law of the token after it


@dataclass(frozen=True, slots=True)
class Point:
    """The one-hot law: ``token`` for certain."""

    token: int

    def __getitem__(self, token: int) -> float:
        return 1.0 if token == self.token else 0.0

    def over(self, p: Dense) -> Any:
        """Return one at the token and zeros elsewhere, in the numbers of ``p``."""
        xp = array_namespace(p.probabilities)
        zeros = 0 * p.probabilities
        return xp.where(p.ids == self.token, zeros + 1, zeros)

    def draw(self, uniform: float) -> int:  # noqa: ARG002 - certain whatever the noise
        """Return the one token there is."""
        return self.token

    def first(self, clocks: Callable[[Any], Any]) -> int:  # noqa: ARG002 - as above
        """Return the one token there is."""
        return self.token

    def fits(self, vocabulary: int) -> bool:
        """Say whether the token is among so many."""
        return 0 <= self.token < vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A law as V numbers that are not negative and sum to one."""

    probabilities: Any  # [V]

    def __getitem__(self, token: int) -> Any:
        return self.probabilities[token]

    @property
    def ids(self) -> Any:
        """The tokens that are listed: all of them."""
        return array_namespace(self.probabilities).arange(
            self.probabilities.shape[0], device=getattr(self.probabilities, "device", None)
        )

    def over(self, p: Dense) -> Any:
        """Return the probabilities of the tokens that ``p`` lists."""
        return self.probabilities if type(p) is Dense else self.probabilities[p.ids]

    def draw(self, uniform: float) -> int:
        """Return the token at ``uniform`` of the cumulative law, by inversion."""
        xp = array_namespace(self.probabilities)
        total = xp.cumulative_sum(self.probabilities)  # [S]
        point = xp.asarray([uniform], dtype=total.dtype, device=total.device) * total[-1]
        index = min(int(xp.searchsorted(total, point, side="right")[0]), total.shape[0] - 1)
        # rounding, at the very top or in a parallel sum, may end on a token ruled out: the likeliest stands in for it
        return index if self.probabilities[index] > 0 else int(xp.argmax(self.probabilities))

    def first(self, clocks: Callable[[Any], Any]) -> int:
        """Return the possible token whose clock rings first; of two at once the lower."""
        law = _numpy(self.probabilities).astype(np.float64)
        ids = _numpy(self.ids)[law > 0]
        with np.errstate(over="ignore"):  # a clock over next to nothing may ring never
            return int(ids[np.argmin(clocks(ids) / law[law > 0])])

    def fits(self, vocabulary: int) -> bool:
        """Say whether there are so many numbers, none negative, that sum to one but for rounding."""
        xp, numbers = array_namespace(self.probabilities), self.probabilities
        if tuple(numbers.shape) != (vocabulary,):
            return False
        return bool(xp.all(numbers >= 0)) and bool(abs(xp.sum(numbers) - 1) <= 1e-3)

    def with_probabilities(self, probabilities: Any) -> Dense:
        """Return the law that gives other probabilities [S] to the same tokens."""
        return Dense(probabilities)

    def less(self, q: Law) -> Law | None:  # noqa: ARG002 - for laws that know a faster way
        """Return ``residual(self, q)`` where this kind of law has a way of its own to it, or None."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Sparse(Dense):
    """A law as the probabilities of some tokens; the others have none. ``ids`` ascend."""

    ids: Any  # [S]

    def __getitem__(self, token: int) -> Any:
        i = int(np.searchsorted(self.ids, token))
        return self.probabilities[i] if i < len(self.ids) and self.ids[i] == token else 0.0

    def over(self, p: Dense) -> Any:
        """Return the probabilities of the tokens that ``p`` lists."""
        at = np.minimum(np.searchsorted(self.ids, p.ids), len(self.ids) - 1)
        return np.where(self.ids[at] == p.ids, self.probabilities[at], 0)

    def draw(self, uniform: float) -> int:
        """Return the token at ``uniform`` of the cumulative law, by inversion."""
        return int(self.ids[Dense.draw(self, uniform)])

    def fits(self, vocabulary: int) -> bool:
        """Say whether every token is among so many, in order, and the numbers are a law."""
        among = len(self.ids) > 0 and int(self.ids[0]) >= 0 and int(self.ids[-1]) < vocabulary
        return among and bool(np.all(np.diff(self.ids) > 0)) and Dense.fits(self, len(self.ids))

    def with_probabilities(self, probabilities: Any) -> Dense:
        """Return the law that gives other probabilities [S] to the same tokens."""
        return Sparse(probabilities, self.ids)


def _numpy(x: Any) -> Any:
    return np.asarray(x if getattr(x.device, "type", "cpu") == "cpu" else to_device(x, "cpu"))

"""A law: the probabilities of one next token, over a vocabulary of V.

``Dense`` is the general case. ``Point`` is its fast twin for the one-hot law of greedy decoding and of drafters that
are certain of themselves: the same answers without V numbers (``tests/core/test_law.py`` holds them equal).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from array_api_compat import array_namespace


class Law(Protocol):
    """The probabilities of one next token."""

    def __getitem__(self, token: int) -> Any:
        """Return the probability of ``token``."""
        ...

    def draw(self, uniform: float) -> int:
        """Return the token at ``uniform`` in [0, 1) of the cumulative law; never one of probability zero."""
        ...


@dataclass(frozen=True, slots=True)
class Point:
    """The one-hot law: ``token`` for certain."""

    token: int

    def __getitem__(self, token: int) -> float:
        return 1.0 if token == self.token else 0.0

    def draw(self, uniform: float) -> int:  # noqa: ARG002 - certain whatever the noise
        """Return the one token there is."""
        return self.token


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A law as V numbers that are not negative and sum to one."""

    probabilities: Any  # [V]

    def __getitem__(self, token: int) -> Any:
        return self.probabilities[token]

    def draw(self, uniform: float) -> int:
        """Return the token at ``uniform`` of the cumulative law, by inversion."""
        xp = array_namespace(self.probabilities)
        total = xp.cumulative_sum(self.probabilities)  # [V]
        point = xp.asarray([uniform], dtype=total.dtype, device=total.device) * total[-1]
        index = min(int(xp.searchsorted(total, point, side="right")[0]), total.shape[0] - 1)
        # rounding, at the very top or in a parallel sum, may end on a token ruled out: the likeliest stands in for it
        return index if self.probabilities[index] > 0 else int(xp.argmax(self.probabilities))

"""The randomised probability-integral transform: one uniform number a token, if the text has the target's law.

Order the tokens, take ``U = F(tokens before x) + V p(x)`` with V uniform and of its own: then U is uniform whatever p
was, and independent of all U before it. The order may depend on the text before x alone. Here it is by q/p, the
likeliest guesses for their price first, because a fault of the rule favours or starves exactly those; equals follow
likeliest first. Nothing is conditioned on what was accepted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from array_api_compat import to_device
from numpy.typing import NDArray

from foredraft.core.law import Dense, Law, Point
from foredraft.core.protocols import Round
from foredraft.core.sequence import TokenSequence
from foredraft.engine.watches.places import places
from foredraft.measure.certificate import p_values as p_values

BINS: Final = 20
FEWEST: Final = 10 * BINS  # tokens: ten expected in a bin


@dataclass(frozen=True, slots=True)
class Uniformity:
    """What the numbers of a run say: the probability of each statistic by chance, over ``tokens`` numbers."""

    tokens: int
    ks_p: float
    bins_p: float
    lag_p: float


@dataclass(slots=True)
class Pit:
    """A watch that keeps U of every token it sees, a list for each sequence. ``draw`` gives V, one a token."""

    draw: np.random.Generator
    impossible: int = 0  # tokens that the target rules out
    _numbers: dict[TokenSequence, list[float]] = field(default_factory=dict)

    def see(self, done: Round) -> None:
        """Add a round's tokens."""
        for place in places(done):
            self.impossible += not place.possible
            number = transform(place.p, place.q, place.token, self.draw.random())
            self._numbers.setdefault(place.sequence, []).append(number)

    @property
    def numbers(self) -> list[list[float]]:
        """U of each token, a list a sequence."""
        return list(self._numbers.values())

    def uniformity(self) -> Uniformity:
        """Test what was seen so far: Kolmogorov-Smirnov, chi-square over equal bins, correlation of neighbours."""
        return uniformity(self.numbers)


def transform(p: Law, q: Law | None, token: int, uniform: float) -> float:
    """Return U in [0, 1) of ``token``; ``q`` is the law of the guess there, ``uniform`` the V in [0, 1)."""
    if not isinstance(p, Dense):
        return uniform
    law, ids = _numpy(p.probabilities), _numpy(p.ids)
    own = float(p[token])
    likelier = (law > own) | ((law == own) & (ids < token))
    if q is None:
        first = likelier
    elif isinstance(q, Point):
        first = (likelier | (ids == q.token)) if token != q.token else np.zeros(len(law), bool)
    else:
        mine, theirs = _numpy(q.over(p)) * own, float(q[token]) * law  # q/p against q(x)/p(x), without the division
        first = (mine > theirs) | ((mine == theirs) & likelier)
    first &= ids != token
    return min(float((law[first].sum() + uniform * own) / law.sum()), math.nextafter(1.0, 0.0))


def uniformity(sequences: list[list[float]]) -> Uniformity:
    """Test whether numbers, in the order of each sequence, are independent and uniform; 1 where there are none."""
    u = np.sort(np.concatenate([np.asarray(s, dtype=np.float64) for s in sequences])) if sequences else np.empty(0)
    n = len(u)
    if n == 0:
        return Uniformity(0, 1.0, 1.0, 1.0)
    steps = np.arange(n)
    distance = float(max(np.max((steps + 1) / n - u), np.max(u - steps / n)))
    counts = np.bincount(np.minimum((u * BINS).astype(int), BINS - 1), minlength=BINS)
    statistic = float(np.sum((counts - n / BINS) ** 2) / (n / BINS))
    products = [(a - 0.5) * (b - 0.5) for s in sequences for a, b in pairwise(s)]
    z = 12 * sum(products) / math.sqrt(len(products)) if products else 0.0  # a product has the variance 1/144
    return Uniformity(n, p_values.kolmogorov(distance, n), p_values.chi_square(statistic, BINS - 1), p_values.normal(z))


def _numpy(values: Any) -> NDArray[Any]:
    return np.asarray(to_device(values, "cpu"))

"""How often each rule accepts one guess, from the two laws alone, and a count of rounds held against it."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

CONFIDENCE = 0.95


def overlap(p: Any, q: Any) -> float:
    """Return how often ``ratio`` accepts a guess drawn from q [V]: sum_x min(p(x), q(x)), 1 - TV."""
    return float(np.minimum(p, q).sum())


def match(p: Any, q: Any) -> float:
    """Return how often one clock a token rings first under both laws [V]: sum_j 1 / sum_i max(p_i / p_j, q_i / q_j).

    ``coupled`` accepts a guess so often (Daliri, Musco, Suresh 2024, arXiv 2408.07978). p's term is the larger exactly
    for the tokens whose p / q is at least j's, so that one sort and two running sums give every inner sum.
    """
    some = (p > 0) & (q > 0)  # what either rules out never rings first under both
    with np.errstate(over="ignore"):  # a token all but ruled out; 1 / inf is what it adds
        order = np.argsort(np.divide(p, q, out=np.full(len(p), np.inf), where=q > 0))
        p, q, some = p[order], q[order], some[order]
        above = np.cumsum(p[::-1])[::-1]  # of p, the token's own included
        below = np.concatenate([[0.0], np.cumsum(q)[:-1]])  # of q, without it
        return float((1 / (above[some] / p[some] + below[some] / q[some])).sum())


def bound(overlap: float) -> float:
    """Return what ``match`` cannot be below at that overlap: (1 - TV) / (1 + TV)."""
    return overlap / (2 - overlap)


@dataclass(slots=True)
class Tally:
    """Rounds counted beside the chance of each, which may differ from round to round."""

    rounds: int = 0
    accepted: int = 0
    expected: float = 0.0
    variance: float = 0.0

    def add(self, chance: float, rounds: int, accepted: int) -> None:
        """Count independent rounds of one chance."""
        self.rounds += rounds
        self.accepted += accepted
        self.expected += rounds * chance
        self.variance += rounds * chance * (1 - chance)

    @property
    def rate(self) -> float:
        """The share of rounds accepted."""
        return self.accepted / self.rounds if self.rounds else float("nan")

    @property
    def closed(self) -> float:
        """The mean chance."""
        return self.expected / self.rounds if self.rounds else float("nan")

    @property
    def z(self) -> float:
        """The difference in standard errors; 0 where every chance was 0 or 1."""
        return (self.accepted - self.expected) / sqrt(self.variance) if self.variance > 0 else 0.0

    def half_width(self, tests: int = 1) -> float:
        """Return half the interval of the rate; with several ``tests``, that of all at once (Bonferroni)."""
        return quantile(tests) * sqrt(self.variance) / self.rounds if self.rounds else float("nan")


def quantile(tests: int) -> float:
    """Return how many standard errors the largest of several differences may be."""
    return NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / tests)

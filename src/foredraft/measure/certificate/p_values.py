"""Tail probabilities: how often chance alone would give a statistic as large as the one seen."""

from __future__ import annotations

import math


def kolmogorov(distance: float, count: int) -> float:
    """Return P(D >= distance) for the Kolmogorov-Smirnov distance of ``count`` uniforms from their law.

    Kolmogorov's series with Stephens' correction for finite counts (1970, J. Royal Stat. Soc. B 32): good to a few
    percent of the probability from a count of 10 on.
    """
    root = math.sqrt(count)
    t = (root + 0.12 + 0.11 / root) * distance
    if t < 0.2:
        return 1.0  # to sixteen digits, and the series would need many terms
    return _clipped(2 * sum((-1) ** (k - 1) * math.exp(-2 * k * k * t * t) for k in range(1, 40)))


def chi_square(statistic: float, freedom: int) -> float:
    """Return P(X >= statistic) for chi-square with ``freedom`` degrees of freedom, by its finite sum."""
    half = statistic / 2
    if half <= 0:
        return 1.0
    start = (freedom % 2) / 2  # the sum runs over k + start below freedom / 2
    total = math.erfc(math.sqrt(half)) if freedom % 2 else 0.0
    for k in range(freedom // 2):
        power = k + start
        total += math.exp(power * math.log(half) - half - math.lgamma(power + 1))
    return _clipped(total)


def normal(z: float) -> float:
    """Return P(|Z| >= |z|) for a standard normal Z."""
    return math.erfc(abs(z) / math.sqrt(2))


def bonferroni(*chances: float) -> float:
    """Return one p-value for several tests of one hypothesis, however they depend on each other."""
    return _clipped(len(chances) * min(chances))


def _clipped(chance: float) -> float:
    return min(1.0, max(0.0, chance))

"""How often a copied guess is accepted, learnt as it goes.

Each guess falls into a bucket: what kind of source it is copied from, how long the match is and how far it goes on
beyond one edit, how many candidates support it, and their share of the vote. A bucket's chance is its count of accepted
over tested guesses, beside a prior that was fitted on other texts and weighs as much as ``STRENGTH`` guesses. Guesses
behind a rejected one were not tested, and teach nothing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Final

from foredraft.retrieval.index import BUCKETS

STRENGTH: Final = 16.0
MEMORY: Final = 512  # tested guesses after which a bucket's counts are halved, so that it follows its users
BIAS: Final = 0.35
KIND: Final = (0.05, 0.58, -0.61)
LENGTH: Final = (-2.94, -0.54, -0.01, 0.07, 0.24, 0.6, 0.96, 1.74)  # 0, 1, 2, 3, 4-5, 6-8, 9-16, 17 and more tokens
BEYOND: Final = (-0.3, 0.17, 0.45)  # 0-1, 2-4, 5 and more
SUPPORTERS: Final = (-0.58, 0.12, 0.75)  # 1, 2, 3 and more
SHARE: Final = (-1.61, -0.01, 1.48)  # under a half, under one, one


def prior() -> list[float]:
    """Return the chance of acceptance of each bucket before anything was seen: [BUCKETS]."""
    return [
        1.0 / (1.0 + math.exp(-(BIAS + kind + length + beyond + supporters + share)))
        for kind in KIND
        for length in LENGTH
        for beyond in BEYOND
        for supporters in SUPPORTERS
        for share in SHARE
    ]


class Calibration:
    """The chance of acceptance of each bucket: ``table`` [BUCKETS], which searches read where it lies."""

    def __init__(self) -> None:
        self.table = array("d", prior())
        self._prior = tuple(self.table)
        self._accepted = [0.0] * BUCKETS
        self._tested = [0.0] * BUCKETS

    def learn(self, buckets: Sequence[int], accepted: Sequence[bool]) -> None:
        """Count guesses that were tested, and whether each was accepted."""
        for bucket, hit in zip(buckets, accepted, strict=True):
            if self._tested[bucket] >= MEMORY:
                self._tested[bucket] /= 2
                self._accepted[bucket] /= 2
            self._tested[bucket] += 1
            self._accepted[bucket] += hit
            counted = self._accepted[bucket] + STRENGTH * self._prior[bucket]
            self.table[bucket] = counted / (self._tested[bucket] + STRENGTH)

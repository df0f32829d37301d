"""How often guesses are accepted, learnt as it goes: by depth, by how sure the drafter was, and how the text runs now.

A guess behind a rejected one was not tested and counts nowhere. What a drafter says of its own confidence is a price
tag of its own making; what it is worth is counted here, path by path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from array_api_compat import array_namespace, to_device

from foredraft.core.law import Array, Dense, Law, Point
from foredraft.core.noise import Noise

DEPTHS: Final = 16  # guesses that are told apart; deeper ones count as the last
_WIDTH: Final = 0.5  # of a bin, in halvings of a path's confidence
_BINS: Final = 18
_STRENGTH: Final = 8.0  # tested guesses that a prior counts as, and what was seen less deep
_MEMORY: Final = 256.0  # tested guesses after which counts are halved
_FOLLOW: Final = 0.2  # step of the drift towards how the text runs now, in log-odds
_FAR: Final = 3.0  # log-odds that it may drift
_EDGES: Final = tuple(math.exp2(-_WIDTH * i) for i in range(_BINS + 1))
_MIDDLES: Final = tuple(math.exp2(-_WIDTH * (i + 0.5)) for i in range(_BINS))


class Acceptance:
    """The acceptance of one drafter. ``prior`` is the chance of a guess, given those before it, before any was seen."""

    def __init__(self, prior: float = 0.5) -> None:
        self._prior = prior
        self._hits = [0.0] * DEPTHS
        self._tests = [0.0] * DEPTHS
        self._survived = [0.0] * _BINS
        self._tried = [0.0] * _BINS
        self._drift = 0.0  # in log-odds
        self._chances: list[float] = []  # worked out when next asked for, as are the next
        self._worths: list[float] = []  # what a path survives in the middle of each bin
        self.tested = 0
        self.accepted = 0

    @property
    def chances(self) -> list[float]:
        """The chance of a guess at each depth up to ``DEPTHS``, given that those before it were accepted."""
        if not self._chances:
            chance = self._prior
            for hits, tests in zip(self._hits, self._tests, strict=True):  # what is seen before is expected next
                chance = (hits + _STRENGTH * chance) / (tests + _STRENGTH)
                self._chances.append(_moved(chance, self._drift))
        return self._chances

    def chance(self, depth: int) -> float:
        """Return the chance of the guess at ``depth``, any."""
        return self.chances[depth if depth < DEPTHS else DEPTHS - 1]

    def survival(self, confidence: float) -> float:
        """Return the chance that a path survives of which its drafter is so sure."""
        i = _bin(confidence)
        chance = (self._survived[i] + _STRENGTH * min(1.0, max(0.0, confidence))) / (self._tried[i] + _STRENGTH)
        return _moved(chance, self._drift)

    def confidence_for(self, chance: float) -> float:
        """Return how sure a drafter must be of a path for it to survive so often: 2.0 where nothing is."""
        if chance <= 0.0 or chance >= 1.0:
            return 2.0 if chance >= 1.0 else 0.0
        if not self._worths:
            counted = zip(self._survived, self._tried, _MIDDLES, strict=True)
            self._worths = [(hits + _STRENGTH * middle) / (tried + _STRENGTH) for hits, tried, middle in counted]
        chance = _moved(chance, -self._drift)
        for edge, worth in zip(_EDGES, self._worths, strict=False):  # from the surest down: the first that is too bad
            if worth < chance:
                return edge
        return _EDGES[-1]

    def learn(self, hits: Sequence[bool]) -> None:
        """Count guesses along one path in order: all that were accepted, and the first that was not."""
        if not hits:
            return
        chances, drift = self.chances, self._drift
        for depth, hit in enumerate(hits):
            place = depth if depth < DEPTHS else DEPTHS - 1
            if self._tests[place] >= _MEMORY:
                self._tests[place] /= 2
                self._hits[place] /= 2
            self._tests[place] += 1.0
            self._hits[place] += hit
            # how the text runs now: a step along the gradient of the log-likelihood
            drift += _FOLLOW * (hit - chances[place])
        self._drift = max(-_FAR, min(_FAR, drift))
        self._chances = []
        self.tested += len(hits)
        self.accepted += sum(hits)

    def learn_path(self, confidence: float, survived: bool) -> None:
        """Count what became of a path that was judged whole."""
        i = _bin(confidence)
        self._worths = []
        if self._tried[i] >= _MEMORY:
            self._tried[i] /= 2
            self._survived[i] /= 2
        self._tried[i] += 1.0
        self._survived[i] += survived


def _moved(chance: float, log_odds: float) -> float:
    """Return a chance so many log-odds up."""
    odds = math.exp(log_odds)
    return chance * odds / (1.0 + chance * (odds - 1.0))


def _bin(confidence: float) -> int:
    if confidence >= 1.0:
        return 0
    if not confidence > 2.0 ** (-_WIDTH * (_BINS - 1)):  # NaN included
        return _BINS - 1
    return int(-math.log2(confidence) / _WIDTH)


def confidence_of(law: Law, token: int, logits: Array, noise: Noise, depth: int) -> float:
    """Return how sure a drafter is of a guess from ``law``, that of ``logits`` [V], ``depth`` guesses from the text.

    Of the likeliest token its chance at temperature 1; of one that was drawn its chance; of one that won a race how far
    ahead it is.
    """
    if isinstance(law, Point):
        xp = array_namespace(logits)
        return 1.0 / float(xp.sum(xp.exp(logits - xp.max(logits))))
    return lead(law, noise, depth) if noise.coupled else float(law[token])


def lead(law: Law, noise: Noise, depth: int) -> float:
    """Return the speed of the winner of a race as a share of all racers' speeds, chance over clock.

    A target whose law is not much unlike this one has the same winner where nobody was close behind.
    """
    assert isinstance(law, Dense)
    chances, ids = _numpy(law.probabilities).astype(np.float64), _numpy(law.ids)
    able = chances > 0
    with np.errstate(over="ignore"):
        speeds = chances[able] / noise.clocks(ids[able], noise.position + depth)
        return float(speeds.max() / speeds.sum())


def _numpy(x: Array) -> Any:
    return np.asarray(x if getattr(x.device, "type", "cpu") == "cpu" else to_device(x, "cpu"))

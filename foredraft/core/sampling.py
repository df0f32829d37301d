"""From logits to the law a token is drawn from: one function for target, draft and plain decoding.

Order: temperature, top-k, top-p, min-p; each works on what the one before it left. Ties at a threshold all stay, so
the law never depends on how a sort breaks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from foredraft.core.draft import ROOT, Array, Draft
from foredraft.core.law import Dense, Law, Point
from foredraft.errors import NumericalError, OptionError

Laws = Callable[[int], Law]  # node, or ROOT -> the law of the token after it


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn. Temperature 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off.

    Raises OptionError for a value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise OptionError(f"temperature must be a number of at least 0, not {self.temperature}")
        if self.top_k < 0:
            raise OptionError(f"top_k must be at least 0 (0 is off), not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise OptionError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise OptionError(f"min_p must be between 0 and 1, not {self.min_p}")

    @property
    def greedy(self) -> bool:
        """Whether the law is one-hot."""
        return self.temperature == 0


def distribution(logits: Array, drafts: Sequence[Draft], params: Sequence[SamplingParams]) -> list[Laws]:
    """Return, for each sequence, its law after every node of its draft.

    ``logits`` is [R, V], packed as in ``Scored``. Greedy laws come from one argmax over the pass; the others are worked
    out when asked for, so that only the accepted path is paid for. Raises NumericalError, when a law is asked for, if
    its logits hold no finite maximum.
    """
    xp = array_namespace(logits)
    best: list[tuple[int, float]] = []
    if any(p.greedy for p in params):
        top = xp.argmax(logits, axis=-1)  # [R]
        values = logits[xp.arange(logits.shape[0], device=logits.device), top]
        best = list(zip(top.tolist(), values.tolist(), strict=True))
    laws: list[Laws] = []
    start = 0
    for draft, param in zip(drafts, params, strict=True):
        laws.append(_greedy(best, start) if param.greedy else _sampled(logits, start, param))
        start += len(draft) + 1
    return laws


def law_of(logits: Array, params: SamplingParams) -> Law:
    """Return the law of one row of logits [V]."""
    return distribution(logits[None, :], [Draft()], [params])[0](ROOT)


def _greedy(best: list[tuple[int, float]], start: int) -> Laws:
    def law(node: int) -> Law:
        token, value = best[start + 1 + node]
        if not math.isfinite(value):
            raise NumericalError(f"the model answered with logits whose largest is {value}")
        return Point(token)

    return law


def _sampled(logits: Array, start: int, params: SamplingParams) -> Laws:
    return lambda node: Dense(filtered(logits[start + 1 + node, :], params))


def filtered(row: Array, params: SamplingParams) -> Array:
    """Return softmax(row / temperature) [V] after top-k, top-p and min-p; in float64 where the device has it."""
    xp = array_namespace(row)
    wide = xp.float32 if getattr(row.device, "type", "") == "mps" else xp.float64
    row = xp.astype(row, wide)
    peak = float(xp.max(row))
    if not math.isfinite(peak):
        raise NumericalError(f"the model answered with logits whose largest is {peak}")
    row = (row - peak) / max(params.temperature, 1e-30)  # colder changes nothing, and would overflow
    if params.top_k:
        row = xp.where(row >= _kth_largest(xp, row, params.top_k), row, -math.inf)
    law = xp.exp(row)
    law = law / xp.sum(law)
    if params.top_p < 1:
        law = xp.where(law >= _nucleus_floor(xp, law, params.top_p), law, 0 * law)
    if params.min_p > 0:
        law = xp.where(law >= params.min_p * xp.max(law), law, 0 * law)
    return law / xp.sum(law)


def _kth_largest(xp: Any, row: Array, k: int) -> float:
    """Return the k-th largest of a row whose largest is 0, sorting only a neighbourhood of the top."""
    if k >= row.shape[0]:
        return -math.inf
    tops = (row[row >= -reach] for reach in (4.0, 8.0, 16.0, math.inf))
    near = next(top for top in tops if top.shape[0] >= k)
    return float(xp.sort(near)[near.shape[0] - k])


def _nucleus_floor(xp: Any, law: Array, top_p: float) -> float:
    """Return the probability of the last token of the smallest set that holds ``top_p`` of the law."""
    # tokens below (1 - p) / V hold less than 1 - p together, so the set closes before any of them is reached
    near = xp.sort(law[law >= (1 - top_p) / law.shape[0]], descending=True)
    inside = int(xp.sum(xp.astype(xp.cumulative_sum(near) < top_p, xp.int64)))
    return float(near[min(inside, near.shape[0] - 1)])

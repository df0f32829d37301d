"""From logits to the law a token is drawn from: one function for target, draft and plain decoding.

Order: what shapes the logits (bias, penalties, masks), then temperature, top-k, top-p, min-p; each works on what the
one before it left. Ties at a threshold all stay, so the law never depends on how a sort breaks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from array_api_compat import array_namespace

from foredraft.core.law import Array, Dense, Law, Point
from foredraft.errors import NumericalError, OptionError

if TYPE_CHECKING:
    pass

LawOf = Callable[[Array, "SamplingParams"], Law]  # shaped logits [V] -> law


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


def law_of(row: Array, params: SamplingParams) -> Law:
    """Return the law of one row of logits [V], as they are. Raises NumericalError if they hold no finite maximum."""
    if not params.greedy:
        return Dense(filtered(row, params))
    return point_at(*argmax_rows(row[None, :])[0])


def argmax_rows(logits: Array) -> list[tuple[int, float]]:
    """Return the likeliest token of each row of logits [R, V], and its logit."""
    xp = array_namespace(logits)
    top = xp.argmax(logits, axis=-1)  # [R]
    values = logits[xp.arange(logits.shape[0], device=logits.device), top]
    return list(zip(top.tolist(), values.tolist(), strict=True))


def point_at(token: int, value: float) -> Law:
    """Return the one-hot law of the likeliest token. Raises NumericalError unless its logit is finite."""
    if not math.isfinite(value):
        raise NumericalError(f"the model answered with logits whose largest is {value}")
    return Point(token)


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

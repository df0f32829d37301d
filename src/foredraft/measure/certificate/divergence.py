"""Where two texts that ought to be one part, and whether rounding can have done it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from array_api_compat import to_device
from numpy.typing import NDArray

from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.models.target import CachedTarget

TIE: Final = "tie within rounding"
FAULT: Final = "logic fault"
# logits that differ by more than this are not the same sum in another order
_ROUNDING: Final = {"bf16": 0.25, "file": 0.25, "float16": 0.03}
_ROUNDING_ELSE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token in which an answer is not the plain one. Margins are in logits, by the plain pass.

    ``top2_margin`` is how far the first token was ahead of the second; ``gap`` the least change of logits that turns
    the plain token into the other, infinite if one text merely ends sooner. When tokens were drawn, both are those of
    the race, noise included.
    """

    prompt: int  # from 0
    arm: str
    position: int  # in the answer, from 0
    top2_margin: float
    gap: float
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """Return the document's form; an infinite gap is null."""
        return {
            "prompt": self.prompt,
            "arm": self.arm,
            "position": self.position,
            "top2_margin": self.top2_margin if math.isfinite(self.top2_margin) else None,
            "gap": self.gap if math.isfinite(self.gap) else None,
            "verdict": self.verdict,
        }


def rounding(dtype: str) -> float:
    """Return the largest difference between two logits of one text that ``dtype`` explains."""
    return _ROUNDING.get(dtype, _ROUNDING_ELSE)


def divergence(
    target: CachedTarget, dtype: str, prompt: int, arm: str, plain: TokenSequence, other: TokenSequence
) -> Divergence | None:
    """Compare an answer with the plain one to the same prompt under the same options; None where they are equal."""
    want, got = plain.answer, other.answer
    if want == got and plain.finish_reason == other.finish_reason:
        return None
    shorter = min(len(want), len(got))
    position = next((i for i in range(shorter) if want[i] != got[i]), shorter)
    logits = _logits(target, plain, position)
    scores = _scores(logits, plain, position)
    second, first = np.sort(scores)[-2:]
    gap = math.inf if position == shorter else _gap(logits, plain, position, want[position], got[position])
    verdict = TIE if gap <= rounding(dtype) else FAULT
    return Divergence(prompt, arm, position, float(first - second), gap, verdict)


def _logits(target: CachedTarget, plain: TokenSequence, position: int) -> NDArray[Any]:
    """Return the plain pass's logits [V] for the token at ``position`` of the answer."""
    tokens = plain.tokens[: plain.prompt_length + position]
    probe = TokenSequence(list(tokens), limit=len(tokens) + 1)
    target.begin(probe)
    try:
        row = to_device(target.extend([(probe, tokens)])[0, :], "cpu")
        return np.array(row, dtype=np.float64)
    finally:
        target.end(probe)


def _scores(
    logits: NDArray[np.float64], plain: TokenSequence, position: int, *, filtered: bool = True
) -> NDArray[np.float64]:
    """Return what the token of the largest is drawn by [V]: logits, and in a race T times the noise added."""
    temperature = plain.params.temperature
    if not temperature:
        return logits
    ear: Any = _Ear(np.arange(len(logits)))
    plain.noise.at(plain.prompt_length + position).race(ear, 0)
    scores: NDArray[np.float64] = logits - temperature * np.log(ear.clocks)
    if filtered:
        law = plain.law(logits, plain.params)
        ruled_out = [not float(law[token]) > 0 for token in range(len(logits))]
        scores[ruled_out] = -np.inf
    return scores


def _gap(logits: NDArray[np.float64], plain: TokenSequence, position: int, want: int, got: int) -> float:
    """Return the least change of logits by which ``got`` takes the place of ``want``."""
    scores = _scores(logits, plain, position, filtered=False)
    gap = abs(float(scores[want] - scores[got]))
    if plain.params.greedy or plain.params.top_p == 1:
        return gap
    # either token may also have crossed the edge of the nucleus
    inside = [float(plain.law(logits, plain.params)[token]) > 0 for token in (want, got)]
    edges = [_edge(logits, plain.params, token) for token in (want, got)]
    beaten = 0.0 if scores[got] > scores[want] else gap
    return max(0.0 if inside[1] else edges[1], min(beaten, edges[0]))


def _edge(logits: NDArray[np.float64], params: SamplingParams, token: int) -> float:
    """Return by how much the likelier tokens' logits must change together for ``token`` to cross the nucleus's edge."""
    law = np.exp((logits - logits.max()) / params.temperature)
    law /= law.sum()
    before = float(law[law > law[token]].sum())
    if before <= 0 or before >= 1:
        return math.inf
    return params.temperature * abs(math.log(before / (1 - before)) - math.log(params.top_p / (1 - params.top_p)))


@dataclass(slots=True)
class _Ear:
    """A law that only listens: it keeps the clocks [V] of a place."""

    ids: NDArray[Any]
    clocks: NDArray[Any] = field(init=False)

    def first(self, clocks: Callable[[Any], Any]) -> int:
        """Listen."""
        self.clocks = clocks(self.ids)
        return 0

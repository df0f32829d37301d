"""Log-probabilities of committed tokens: the target's raw ones, before any option has shaped or filtered them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from array_api_compat import to_device

from foredraft.core.law import Array
from foredraft.core.protocols import Round
from foredraft.core.sequence import TokenSequence
from foredraft.errors import NumericalError, OptionError

Tops = list[tuple[int, float]]
Logprobs = Callable[[Array, int, int], tuple[float, Tops]]  # logits [V], token, top -> its own, the likeliest tokens'


class TokenLogprob(NamedTuple):
    """One committed token, with the likeliest tokens at its place, best first."""

    token: int
    logprob: float
    top_logprobs: Tops


def logprobs(row: Array, token: int, top: int = 0) -> tuple[float, Tops]:
    """Return log softmax(row) [V] at ``token``, and the ``top`` largest with their ids, the lower of two alike first.

    In float64 whatever the row is in; all of them where there are fewer than ``top``. Raises OptionError for a token
    that is not there, NumericalError for logits without a finite maximum.
    """
    values = np.asarray(to_device(row, "cpu"), dtype=np.float64)
    if not (0 <= token < len(values) and top >= 0):
        raise OptionError(f"there is no token {token}, or no top {top}, among {len(values)} logits")
    peak = float(values.max())
    if not math.isfinite(peak):
        raise NumericalError(f"the model answered with logits whose largest is {peak}")
    values = values - peak
    shift = math.log(float(np.exp(values).sum()))
    least = np.partition(values, -top)[-top] if 0 < top < len(values) else -math.inf
    near = np.flatnonzero(values >= least)
    near = near[np.argsort(-values[near], kind="stable")[:top]]
    return float(values[token]) - shift, [(i, float(values[i]) - shift) for i in near.tolist()]


class LogprobRecorder:
    """A Watch that keeps the log-probabilities of the sequences that want them, a token at a time.

    Every token's come from the row it was drawn or accepted by, so they are the same with and without drafting.
    """

    def __init__(self, of: Logprobs = logprobs) -> None:
        self._of = of
        self._kept: dict[TokenSequence, tuple[int, list[TokenLogprob]]] = {}

    def want(self, sequence: TokenSequence, top: int) -> list[TokenLogprob]:
        """Record ``sequence`` until it ends, with ``top`` tokens at each place; return the list that grows."""
        record: list[TokenLogprob] = []
        self._kept[sequence] = (top, record)
        return record

    def see(self, done: Round) -> None:
        """Record what a round committed."""
        for sequence, outcome, start in zip(done.sequences, done.outcomes, done.scored.starts, strict=True):
            if sequence not in self._kept:
                continue
            top, record = self._kept[sequence]
            for node, token in zip(outcome.nodes, outcome.tokens, strict=True):
                record.append(TokenLogprob(token, *self._of(done.scored.logits[start + 1 + node, :], token, top)))
            if outcome.finish_reason is not None:
                del self._kept[sequence]

    def end(self, sequence: TokenSequence) -> None:
        """Record nothing more of a sequence: it ended outside a round, or never began."""
        self._kept.pop(sequence, None)

"""How likely a prompt is, token by token: it is written again as an answer to its first token, every token foreseen.

Scoring is speculative decoding with a perfect prediction: the prompt is its own draft, each pass scores as many tokens
as a draft may have, and whoever records log-probabilities records these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from array_api_compat import array_namespace

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.law import Array, Law, Point
from foredraft.core.noise import Noise
from foredraft.core.protocols import Quote
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import Shaping, TokenSequence
from foredraft.engine.job import Job, Update
from foredraft.engine.watches.logprobs import LogprobRecorder, TokenLogprob
from foredraft.errors import NumericalError

ROWS: Final = 63  # guesses of a round: with the token before them, what the native pass takes at once


class PromptDrafter:
    """Drafts a prompt's own tokens."""

    name = "prompt"
    taps: tuple[int, ...] = ()

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = tuple(ids)

    def begin(self, sequence: TokenSequence) -> None:
        """Meet a sequence."""

    def propose(
        self,
        sequences: Sequence[TokenSequence],
        quotes: Sequence[Quote],
        noises: Sequence[Noise],  # noqa: ARG002
    ) -> list[Draft]:
        """Return what comes next in the prompt, as far as there is room."""
        starts = map(len, sequences)
        ends = (len(s) + quote.limit for s, quote in zip(sequences, quotes, strict=True))
        return [Draft.chain(self._ids[start:end], None, self.name) for start, end in zip(starts, ends, strict=True)]

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Learn nothing."""

    def end(self, sequence: TokenSequence) -> None:
        """Forget nothing."""


class PromptScores:
    """The log-probabilities of a prompt's tokens [tokens - 1], from the second on, with the ``top`` likeliest at each.

    ``done`` once they are there; ``error`` is why they will not be.
    """

    def __init__(self, ids: Sequence[int], top: int, owner: str, recorder: LogprobRecorder) -> None:
        self.scores: list[TokenLogprob] = []
        self.error: Exception | None = None
        self.cancelled = False
        self.done = len(ids) < 2
        self.job: Job | None = None
        self._ids = tuple(ids)
        self._top = top
        self._owner = owner
        self._recorder = recorder

    def make(self, notify: Callable[[], None]) -> Job:
        """Return what scores the prompt; ``notify`` is called when that has ended."""
        ids, first = self._ids, [self._ids[0]]
        sequence = TokenSequence(first, len(ids), shaping=_foreseen(ids), law=_certain)
        self.scores = self._recorder.want(sequence, self._top)

        def deliver(update: Update) -> None:
            if update.finish_reason is None:
                return
            self._recorder.end(sequence)
            self.error, self.cancelled = update.error, update.finish_reason == "cancelled"
            self.done = True
            notify()

        self.job = Job(sequence, deliver, PromptDrafter(ids), ROWS, self._owner)
        return self.job


def _foreseen(ids: Sequence[int]) -> Shaping:
    """Return a shaping that leaves of a row the one token that can follow; it takes the row's place."""

    def shaped(row: Array, sequence: TokenSequence, path: tuple[int, ...]) -> Array:
        peak = float(array_namespace(row).max(row))
        if not math.isfinite(peak):
            raise NumericalError(f"the model answered with logits whose largest is {peak}")
        return ids[len(sequence) + len(path)] if len(sequence) + len(path) < len(ids) else 0

    return shaped


def _certain(token: Any, params: SamplingParams) -> Law:  # noqa: ARG001 - a law of one token has nothing to sample
    return Point(token)

"""Looks on while the target writes, and keeps what its tapped layers held and its likeliest tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from foredraft.core.draft import ROOT, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter, Quote, Round
from foredraft.core.sequence import TokenSequence
from foredraft.training.data.shards import Example, Growing, narrowed

TOP: Final = 32  # likeliest tokens kept a place
_BLOCK: Final = 128  # tokens whose largest logit bounds the others


class Tapping:
    """Another drafter, whose rounds also say what ``taps`` hold."""

    def __init__(self, drafter: Drafter, taps: tuple[int, ...]) -> None:
        self.name = drafter.name
        self.taps = tuple(sorted({*taps, *drafter.taps}))
        self._drafter = drafter

    def begin(self, sequence: TokenSequence) -> None:
        """Meet a sequence."""
        self._drafter.begin(sequence)

    def propose(
        self, sequences: Sequence[TokenSequence], quotes: Sequence[Quote], noises: Sequence[Noise]
    ) -> Sequence[Any]:
        """Guess as the other does."""
        return self._drafter.propose(sequences, quotes, noises)

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Let the other see."""
        self._drafter.observe(sequences, outcomes, scored)

    def end(self, sequence: TokenSequence) -> None:
        """Forget a sequence."""
        self._drafter.end(sequence)


class Recorder:
    """A Watch that hands each text that has ended to ``keep``, with its states at ``taps``.

    Only sequences whose prompts were read while it looked on are kept, and only answers of three tokens or more: with
    fewer there is nothing to foretell.
    """

    def __init__(self, taps: tuple[int, ...], keep: Callable[[Example], None], top: int = TOP) -> None:
        self.taps = taps
        self._keep = keep
        self._top = top
        self._growing: dict[TokenSequence, Growing] = {}

    def see(self, done: Round) -> None:
        """See a round."""
        rows: list[int] = []
        counts: list[int] = []
        for outcome, start in zip(done.outcomes, done.scored.starts, strict=True):
            mine = [start if node == ROOT else start + 1 + node for node in outcome.nodes]
            rows += mine
            counts.append(len(mine))
        states = _stacked(self.taps, done.scored.hidden, rows)
        top, top_logits = likeliest(_here(done.scored.logits[rows, :]), self._top)
        at = 0
        for i, (sequence, count) in enumerate(zip(done.sequences, counts, strict=True)):
            growing = self._growing.get(sequence)
            if growing is None:
                growing = self._growing[sequence] = Growing()
                earlier = done.scored.earlier[i]
                if earlier:
                    growing.states.append(_stacked(self.taps, earlier, slice(None)))
            growing.states.append(states[at : at + count])
            growing.top.append(top[at : at + count])
            growing.top_logits.append(top_logits[at : at + count])
            at += count
            if sequence.finish_reason is not None:
                self._end(sequence, self._growing.pop(sequence))

    def _end(self, sequence: TokenSequence, growing: Growing) -> None:
        states = np.concatenate(growing.states)
        if sequence.error is None and len(states) == len(sequence) - 1 and len(sequence.answer) >= 3:
            tokens = np.array(sequence.tokens, np.int32)
            top, top_logits = np.concatenate(growing.top), np.concatenate(growing.top_logits)
            self._keep(Example(tokens, sequence.prompt_length, states, top, top_logits))


def _stacked(taps: tuple[int, ...], states: Mapping[int, Any], rows: Any) -> Any:
    """Return the bits [rows, taps, H] of some rows of each tapped layer."""
    return narrowed(np.stack([_here(states[tap][rows, :]) for tap in taps], 1))


def _here(values: Any) -> Any:
    """Return an array in this machine's own memory, where it is on a GPU."""
    return values.cpu().numpy() if hasattr(values, "cpu") else values


def likeliest(logits: Any, count: int) -> tuple[Any, Any]:
    """Return the ``count`` likeliest tokens of each row [R, V], likeliest first, and their log-probabilities, float32.

    The count-th largest of the blocks' maxima is a bound that the count-th largest logit cannot lie under, so only the
    few logits above it are sorted.
    """
    rows, width = logits.shape
    count = min(count, width)
    whole = width // _BLOCK * _BLOCK
    maxima = logits[:, :whole].reshape(rows, -1, _BLOCK).max(-1) if whole >= count * _BLOCK else None
    ids, values = np.empty((rows, count), np.int32), np.empty((rows, count), np.float32)
    for r, row in enumerate(logits):
        some = np.arange(width) if maxima is None else np.flatnonzero(row >= np.partition(maxima[r], -count)[-count])
        best = some[np.argsort(-row[some], kind="stable")[:count]]
        ids[r] = best
        peak = row[best[0]]
        values[r] = row[best] - peak - np.log(np.exp(row - peak, dtype=np.float32).sum(dtype=np.float64))
    return ids, values

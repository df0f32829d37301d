"""Prompt lookup: copy what followed the last time the text ended like this (Saxena 2023; LLMA, arXiv 2304.04487).

The longest suffix of the text that occurred before is looked for, the most recent occurrence wins, and what followed it
is the draft. A draft that reaches the end of the text goes on copying itself, so a loop is drafted as a loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Quote
from foredraft.core.sequence import TokenSequence
from foredraft.errors import OptionError


class Lookup:
    """Drafts by copying from the prompt and the answer so far.

    ``min_ngram`` and ``max_ngram`` bound the length of the match, in tokens. ``per_match`` caps a draft at so many
    guesses a matched token (the longer the match, the longer it is trusted: SuffixDecoding, arXiv 2411.04975); None
    leaves the length to the quote alone. Raises OptionError for bounds that are not ``1 <= min_ngram <= max_ngram``.
    """

    name = "lookup"
    free = True  # next to a pass
    taps: tuple[int, ...] = ()

    def __init__(self, min_ngram: int = 1, max_ngram: int = 16, per_match: int | None = None) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise OptionError(f"lookup needs 1 <= min_ngram <= max_ngram, not {min_ngram} and {max_ngram}")
        self.min_ngram = min_ngram
        self.max_ngram = max_ngram
        self.per_match = per_match
        self._texts: dict[TokenSequence, _GrowingArray] = {}

    def begin(self, sequence: TokenSequence) -> None:
        """Index the prompt."""
        self._texts[sequence] = _GrowingArray()

    def propose(
        self,
        sequences: Sequence[TokenSequence],
        quotes: Sequence[Quote],
        noises: Sequence[Noise],  # noqa: ARG002
    ) -> list[Draft]:
        """Copy while the quote says it is worth it; a copied token is certain of itself."""
        drafts = []
        for sequence, quote in zip(sequences, quotes, strict=True):
            text = self._texts[sequence].catch_up(sequence.tokens)
            start, matched = find_continuation(text, self.min_ngram, self.max_ngram)
            most = len(text) if self.per_match is None else self.per_match * matched
            guesses: list[int] = []
            while matched and len(guesses) < most and quote.worth(1.0, len(guesses)):
                guesses.append(int(text[start + len(guesses) % (len(text) - start)]))
            drafts.append(Draft.chain(guesses, source=self.name))
        return drafts

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Learn nothing: the text itself is the memory."""

    def end(self, sequence: TokenSequence) -> None:
        """Forget the sequence's text."""
        self._texts.pop(sequence, None)


def find_continuation(text: NDArray[np.int64], min_ngram: int, max_ngram: int) -> tuple[int, int]:
    """Return where the text goes on after the latest occurrence of its longest repeated suffix, and that length.

    ``text`` is [T]; the first number is an index into it, the second 0 where there is no match of ``min_ngram``. Work
    is one scan of the text and a few of ever fewer places.
    """
    ends = np.flatnonzero(text[:-1] == text[-1])  # places where the last token stood before
    matched = min(1, len(ends))
    while 0 < matched < max_ngram:
        longer = ends[ends >= matched]
        longer = longer[text[longer - matched] == text[-1 - matched]]
        if len(longer) == 0:
            break
        ends = longer
        matched += 1
    return (int(ends[-1]) + 1, matched) if matched >= min_ngram else (0, 0)


class _GrowingArray:
    """A token list mirrored as an array, so that a scan costs microseconds and an append no copy."""

    def __init__(self) -> None:
        self._buffer = np.empty(1024, dtype=np.int64)
        self._length = 0

    def catch_up(self, tokens: list[int]) -> NDArray[np.int64]:
        """Return all of ``tokens`` as an array [T], copying only what is new."""
        if len(tokens) > len(self._buffer):
            bigger = np.empty(2 * len(tokens), dtype=np.int64)
            bigger[: self._length] = self._buffer[: self._length]
            self._buffer = bigger
        self._buffer[self._length : len(tokens)] = tokens[self._length :]
        self._length = len(tokens)
        return self._buffer[: self._length]

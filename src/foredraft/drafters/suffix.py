"""Retrieval: copy how the text, a predicted answer or earlier texts went on (Saxena 2023; SuffixDecoding, 2411.04975).

Every match of the end of the text is a candidate, and they vote guess by guess. What is guessed has a calibrated chance
of acceptance; it prices the guess and is never a law: a copied token is certain of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

from foredraft.core.capabilities import prices_paths
from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Quote
from foredraft.core.sequence import TokenSequence
from foredraft.errors import OptionError
from foredraft.retrieval.backend import Retrieval, retrieval
from foredraft.retrieval.calibration import Calibration
from foredraft.retrieval.copier import Copier, Counts
from foredraft.retrieval.index import Guesses
from foredraft.retrieval.memory import Memory

FLOOR: Final = 0.1
DEPTH: Final = 64  # tokens that a match counts to


class Suffix:
    """Drafts by copying, from the text itself, from ``memory`` and from a prediction.

    ``floor`` is the least chance of acceptance that a guess and all before it may have together; 0 drafts whatever the
    quote has room for. ``branches`` is how many alternatives to its first choice each guess may have. What a sequence
    that has a scope says is remembered in that scope of the memory when it ends; without one nothing is read or kept.
    """

    name = "suffix"
    free = True  # next to a pass: whoever chooses among drafters may ask it in every round
    taps: tuple[int, ...] = ()

    def __init__(
        self, floor: float = 0.0, branches: int = 0, memory: Memory | None = None, engine: Retrieval | None = None
    ) -> None:
        self.floor = floor
        self.branches = branches
        self.memory = memory
        self.engine = engine or retrieval()
        self.calibration = Calibration()
        self._copiers: dict[TokenSequence, Copier] = {}
        self._scopes: dict[TokenSequence, str | None] = {}

    @property
    def notice(self) -> str | None:
        """That the slower, portable retrieval runs, and why; None where the native one does."""
        return self.engine.notice

    def prepare(self, sequence: TokenSequence, prediction: Sequence[int] = (), scope: str | None = None) -> None:
        """Say what is expected of a sequence, and whose memory it may read and adds to; before it begins.

        Raises OptionError for a scope where there is no memory.
        """
        if scope is not None and self.memory is None:
            raise OptionError("cache_scope cannot be used by this suffix drafter: it was made without a memory")
        self._copiers[sequence] = Copier(self.engine, self.calibration, prediction)
        self._scopes[sequence] = scope

    def begin(self, sequence: TokenSequence) -> None:
        """Index the prompt."""
        if sequence not in self._copiers:
            self.prepare(sequence)
        self._copiers[sequence].read(sequence.tokens)

    def propose(
        self,
        sequences: Sequence[TokenSequence],
        quotes: Sequence[Quote],
        noises: Sequence[Noise],  # noqa: ARG002
    ) -> list[Draft]:
        """Copy while the quote says it is worth it."""
        drafts = []
        with self.memory.lock if self.memory is not None else nullcontext():
            for sequence, quote in zip(sequences, quotes, strict=True):
                scope = self._scopes[sequence]
                recalled = self.memory.recall(scope) if self.memory is not None and scope is not None else ()
                copier = self._copiers[sequence]
                found = copier.propose(sequence.tokens, recalled, quote.limit, self.branches, self.floor)
                drafts.append(self._worth(found, quote))
        return drafts

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:  # noqa: ARG002 - hidden states say nothing here
        """Learn which guesses were accepted, and where the copied text goes on."""
        for sequence, outcome in zip(sequences, outcomes, strict=True):
            guesses = outcome.draft if outcome.draft.source == self.name else Draft()
            self._copiers[sequence].observe(guesses, outcome.tokens)

    def end(self, sequence: TokenSequence) -> None:
        """Forget the sequence, its text remembered."""
        scope = self._scopes.pop(sequence, None)
        self._copiers.pop(sequence, None)
        if scope is not None and self.memory is not None:
            # of several answers to one prompt the others need no more of it than a match can use
            start = 0 if sequence.noise.choice == 0 else max(0, sequence.prompt_length - DEPTH)
            self.memory.remember(sequence.tokens[start:], scope)

    def counts(self, sequence: TokenSequence) -> dict[str, Counts]:
        """Return what a sequence that has not ended drafted from each kind of source: text, prediction, memory."""
        return self._copiers[sequence].counts

    def _worth(self, found: Guesses, quote: Quote) -> Draft:
        """Return the guesses up to the first that does not pay. Each is asked for by what it builds on."""
        kept, pays = 0, quote.pays if prices_paths(quote) else None
        for i, row in enumerate(found.rows):
            before = found.paths[row[1]] if row[1] >= 0 else 1.0
            if not (quote.worth(before, kept) if pays is None else pays(found.paths[i], kept)):
                break
            kept += 1
        rows = found.rows[:kept]
        tokens, parents = tuple(row[0] for row in rows), tuple(row[1] for row in rows)
        return Draft(tokens, parents, None, self.name, tuple(found.paths[:kept]))

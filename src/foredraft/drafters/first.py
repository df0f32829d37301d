"""Several drafters in order: whoever is first to have something to say, says it."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter, Quote
from foredraft.core.sequence import TokenSequence


class FirstOf:
    """Asks each drafter in turn, for the sequences that have no draft yet.

    ``note`` is what there is to say of who is not among them.
    """

    def __init__(self, drafters: Sequence[Drafter], note: str | None = None) -> None:
        self.note = note
        self.drafters = tuple(drafters)
        self.name = "+".join(d.name for d in self.drafters)
        self.taps: tuple[int, ...] = tuple(sorted({tap for d in self.drafters for tap in d.taps}))

    def begin(self, sequence: TokenSequence) -> None:
        """Let every drafter meet the sequence."""
        for drafter in self.drafters:
            drafter.begin(sequence)

    def propose(
        self, sequences: Sequence[TokenSequence], quotes: Sequence[Quote], noises: Sequence[Noise]
    ) -> list[Draft]:
        """Return for each sequence the first draft that is not empty."""
        drafts = [Draft()] * len(sequences)
        open_ = list(range(len(sequences)))
        for drafter in self.drafters:
            if not open_:
                break
            answer = drafter.propose(
                [sequences[i] for i in open_], [quotes[i] for i in open_], [noises[i] for i in open_]
            )
            for i, draft in zip(open_, answer, strict=True):
                drafts[i] = draft
            open_ = [i for i in open_ if len(drafts[i]) == 0]
        return drafts

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Let every drafter see the outcome, whoever drafted."""
        for drafter in self.drafters:
            drafter.observe(sequences, outcomes, scored)

    def end(self, sequence: TokenSequence) -> None:
        """Let every drafter forget the sequence."""
        for drafter in self.drafters:
            drafter.end(sequence)

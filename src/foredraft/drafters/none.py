"""The drafter that never guesses: ordinary decoding by the same path."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Quote
from foredraft.core.sequence import TokenSequence


class NoDrafter:
    """Guesses nothing, so every pass yields exactly one token."""

    name = "none"
    taps: tuple[int, ...] = ()

    def begin(self, sequence: TokenSequence) -> None:
        """Do nothing."""

    def propose(
        self,
        sequences: Sequence[TokenSequence],
        quotes: Sequence[Quote],  # noqa: ARG002
        noises: Sequence[Noise],  # noqa: ARG002
    ) -> list[Draft]:
        """Return an empty draft for every sequence."""
        return [Draft()] * len(sequences)

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Do nothing."""

    def end(self, sequence: TokenSequence) -> None:
        """Do nothing."""

"""The quote: whether one more guess is worth its price.

``FixedPlanner`` is a planner that has been told: so many guesses, every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.core.protocols import Round
from foredraft.core.sequence import TokenSequence
from foredraft.errors import OptionError


@dataclass(frozen=True, slots=True)
class FixedQuote:
    """Room for ``limit`` guesses, each worth it."""

    limit: int

    def worth(self, path_probability: float, rows: int) -> bool:  # noqa: ARG002 - the length alone decides
        """Say yes until there are ``limit`` guesses."""
        return rows < self.limit


@dataclass(frozen=True, slots=True)
class FixedPlanner:
    """So many guesses a round, whatever they cost and however they fare.

    Raises OptionError for a negative number.
    """

    draft_tokens: int

    def __post_init__(self) -> None:
        if self.draft_tokens < 0:
            raise OptionError(f"draft_tokens must be at least 0, not {self.draft_tokens}")

    def quote(self, sequences: Sequence[TokenSequence]) -> list[FixedQuote]:
        """Give every sequence the fixed length, or what its budget leaves beside the one token a round always adds.

        A sequence without an answer yet gets none: its first pass reads the prompt.
        """
        return [
            FixedQuote(0 if len(s) == s.prompt_length else max(0, min(self.draft_tokens, s.room - 1)))
            for s in sequences
        ]

    def record(self, done: Round) -> None:
        """Learn nothing."""

"""The protocols at the seams: who drafts, who scores, who plans and who looks on; and a round as it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from foredraft.core.draft import Draft, Outcome, Scored

if TYPE_CHECKING:
    from foredraft.core.law import Laws
    from foredraft.core.noise import Noise
    from foredraft.core.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it went, the sequences grown: for whoever counts, measures or certifies, and changes nothing."""

    sequences: tuple[TokenSequence, ...]  # [B]
    outcomes: tuple[Outcome, ...]  # [B]
    scored: Scored
    laws: tuple[Laws, ...]  # [B] the target's, before any coupling; each answers for its outcome's ``nodes``
    began: float  # these three on the clock of ``time.perf_counter``
    drafted: float
    verified: float


class Quote(Protocol):
    """The price of a guess, now, for one sequence."""

    @property
    def limit(self) -> int:
        """How many guesses there is room for; more are cut off."""
        ...

    def worth(self, path_probability: float, rows: int) -> bool:
        """Say whether one more guess pays.

        ``path_probability`` is the chance that everything the guess builds on survives, ``rows`` the guesses the draft
        already has.
        """
        ...


class Planner(Protocol):
    """Plain arithmetic over measured costs and observed acceptance."""

    def quote(self, sequences: Sequence[TokenSequence]) -> Sequence[Quote]:
        """Price one more guess for each sequence; the answer may be no at once."""
        ...

    def record(self, done: Round) -> None:
        """Learn from a round."""
        ...


class Target(Protocol):
    """The model whose text is wanted."""

    @property
    def vocabulary(self) -> int:
        """V."""
        ...

    def score(self, sequences: Sequence[TokenSequence], drafts: Sequence[Draft], taps: tuple[int, ...] = ()) -> Scored:
        """Score every guess in one pass, feeding first whatever the cache lacks of each sequence."""
        ...

    def keep(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome]) -> None:
        """Forget what was rejected. Then the cache holds exactly ``len(sequence) - 1`` tokens of each going on."""
        ...


class Drafter(Protocol):
    """Whoever guesses ahead. A stranger's drafter needs nothing but these five names.

    ``taps`` names the target's layers whose hidden states ``observe`` wants to see.
    """

    name: str
    taps: tuple[int, ...]

    def begin(self, sequence: TokenSequence) -> None:
        """Meet a sequence, its prompt complete and its answer empty."""
        ...

    def propose(
        self, sequences: Sequence[TokenSequence], quotes: Sequence[Quote], noises: Sequence[Noise]
    ) -> Sequence[Draft]:
        """Guess ahead, a draft a sequence, while its quote says it is worth it. Changes no sequence."""
        ...

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """See what became of the round's drafts, after the sequences have grown."""
        ...

    def end(self, sequence: TokenSequence) -> None:
        """Forget a sequence."""
        ...


class Watch(Protocol):
    """Whoever looks on: counts, log-probabilities, certificates."""

    def see(self, done: Round) -> None:
        """See a round, last of all."""
        ...

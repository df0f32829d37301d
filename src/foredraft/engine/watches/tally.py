"""Facts about rounds: how many, how much was drafted and accepted, by whom and where, and what time it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from foredraft.core.draft import Outcome
from foredraft.core.protocols import Round
from foredraft.core.sequence import TokenSequence


@dataclass(slots=True)
class Count:
    """What one drafter did: rounds in which it guessed, guesses, and how many survived at each depth."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one round of one sequence."""
        self.rounds += 1
        self.drafted += len(outcome.draft)
        self.accepted += outcome.accepted
        missing = outcome.accepted - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * missing)
        for depth in range(outcome.accepted):
            self.accepted_per_position[depth] += 1


@dataclass(slots=True)
class Tally:
    """The facts of one generation. Times are seconds of wall clock and belong to the whole batch.

    A pass that reads a prompt yields the answer's first token and is counted apart: ``passes`` are the target's passes
    after it, so plain decoding makes exactly ``tokens - answers`` of them.
    """

    answers: int = 0
    tokens: int = 0
    passes: int = 0
    total: Count = field(default_factory=Count)
    by_drafter: dict[str, Count] = field(default_factory=dict)
    prefill_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0

    def see(self, done: Round) -> None:
        """Count one round of the batch."""
        now = perf_counter()
        answers = self.answers
        for sequence, outcome in zip(done.sequences, done.outcomes, strict=True):
            self.count(sequence, outcome)
        if self.answers - answers < len(done.outcomes):  # some of it was decoding
            self.decode_s += now - done.began
            self.draft_s += done.drafted - done.began
            self.verify_s += done.verified - done.drafted
        else:
            self.prefill_s += now - done.began

    def count(self, sequence: TokenSequence, outcome: Outcome) -> None:
        """Count one round of one sequence, without its time; one that failed counts nothing."""
        if not outcome.tokens:
            return
        self.tokens += len(outcome.tokens)
        if len(sequence) - len(outcome.tokens) == sequence.prompt_length:
            self.answers += 1
            return
        self.passes += 1
        if len(outcome.draft):
            self.total.add(outcome)
            self.by_drafter.setdefault(outcome.draft.source, Count()).add(outcome)

    @property
    def mean_tokens_per_pass(self) -> float:
        """Tokens a target pass after the first yields; 1 when there was none."""
        return (self.tokens - self.answers) / self.passes if self.passes else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Guesses accepted over guesses drafted; 0 when there was none."""
        return self.total.accepted / self.total.drafted if self.total.drafted else 0.0


def summed(tallies: Sequence[Tally]) -> Tally:
    """Return the counts of several tallies together, without times."""
    whole = Tally()
    for tally in tallies:
        whole.answers += tally.answers
        whole.tokens += tally.tokens
        whole.passes += tally.passes
        _add(whole.total, tally.total)
        for name, count in tally.by_drafter.items():
            _add(whole.by_drafter.setdefault(name, Count()), count)
    return whole


def _add(whole: Count, count: Count) -> None:
    whole.rounds += count.rounds
    whole.drafted += count.drafted
    whole.accepted += count.accepted
    depths = max(len(whole.accepted_per_position), len(count.accepted_per_position))
    at = [[*each.accepted_per_position, *[0] * depths][:depths] for each in (whole, count)]
    whole.accepted_per_position[:] = [mine + theirs for mine, theirs in zip(*at, strict=True)]

"""Rounds with made-up drafters, targets and clocks: what a planner decides, without a model and without waiting."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Round
from foredraft.core.sequence import TokenSequence
from foredraft.planning.choose import Chooser
from foredraft.planning.costs import Costs, PassTable
from foredraft.planning.planner import AutoPlanner

RIGHT, WRONG = 1, 0


class Clock:
    """A clock that only moves when told."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Guesser:
    """A drafter of a chain whose guesses are right with a chance that may change with the place in the text."""

    name: str
    chance: Callable[[int], float]
    cost: float  # seconds a guess
    clock: Clock
    seed: int = 0
    taps: tuple[int, ...] = ()
    drafted: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def begin(self, sequence: TokenSequence) -> None:
        pass

    def propose(self, sequences: Any, quotes: Any, noises: Any) -> list[Draft]:
        drafts = []
        for sequence, quote in zip(sequences, quotes, strict=True):
            tokens: list[int] = []
            chance, path = self.chance(len(sequence)), 1.0
            while len(tokens) < 15 and quote.worth(path, len(tokens)):
                tokens.append(RIGHT if self.draw.random() < chance else WRONG)
                path *= chance
            self.clock.now += self.cost * (len(tokens) + 1)
            self.drafted.append(len(tokens))
            self.at.append(len(sequence))
            drafts.append(Draft.chain(tokens, None, self.name))
        return drafts

    def observe(self, sequences: Any, outcomes: Any, scored: Any) -> None:
        pass

    def end(self, sequence: TokenSequence) -> None:
        pass


def run(
    drafters: list[Any],
    table: PassTable,
    tokens: int,
    clock: Clock,
    count: int = 1,
    noise: float = 0.0,
    seed: int = 0,
    priced: PassTable | None = None,
) -> tuple[float, AutoPlanner, Chooser]:
    """Run ``count`` texts together until the first has so many tokens; return the seconds it took, on the made clock.

    ``priced`` is the table that the planner was told, where that is another than the passes follow.
    """
    planner, chooser = AutoPlanner(Costs(priced or table), clock=clock), Chooser(drafters, clock=clock)
    draw = random.Random(seed)
    sequences = [TokenSequence([0], limit=1 << 30) for _ in range(count)]
    for sequence in sequences:
        sequence.prompt_length = 0
        chooser.begin(sequence)
    began = clock.now
    while len(sequences[0]) < tokens:
        start = clock.now
        quotes = planner.quote(sequences)
        drafts = chooser.propose(sequences, quotes, [Noise(0)] * count)
        drafts = [draft.first(quote.limit) for draft, quote in zip(drafts, quotes, strict=True)]
        drafted = clock.now
        rows = count + sum(map(len, drafts))
        clock.now += table.bare(rows) * (1.0 + noise * draw.random())
        outcomes = []
        for sequence, draft in zip(sequences, drafts, strict=True):
            kept = 0
            while kept < len(draft) and draft.tokens[kept] == RIGHT:
                kept += 1
            made = (*draft.tokens[:kept], RIGHT)
            sequence.tokens += made
            outcomes.append(Outcome(draft, made, kept, tuple(range(kept)), ("x",) * len(made), None))
        scored = Scored(None, tuple(range(count)), {})
        chooser.observe(sequences, outcomes, scored)
        planner.record(Round(tuple(sequences), tuple(outcomes), scored, (), start, drafted, clock.now))
    return clock.now - began, planner, chooser


def best_fixed(chance: float, table: PassTable, cost: float, most: int = 15) -> tuple[float, int]:
    """Return the best tokens a second of chains of one length, and that length: the article's formula."""
    rates = []
    for k in range(most + 1):
        tokens = sum(chance**i for i in range(k + 1))
        rates.append((tokens / (table.bare(k + 1) + (cost * (k + 1) if k else 0.0)), k))
    return max(rates)

"""Toy targets, drafters and planners: small enough to enumerate, strict about the protocols they stand in for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.law import Law
from foredraft.core.protocols import Round, Watch
from foredraft.core.round import run_round
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedQuote


class Table:
    """A language model: the rows [S, V] of a table, picked by a hash of *all* tokens so far."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    @classmethod
    def random(cls, seed: int, vocabulary: int, scale: float = 2.0, states: int = 101) -> Table:
        return cls(np.random.default_rng(seed).normal(0, scale, (states, vocabulary)))

    def __call__(self, tokens: Sequence[int]) -> Any:
        state = 17
        for token in tokens:
            state = (state * 31 + token + 1) % len(self.rows)
        return self.rows[state]


class ToyTarget:
    """A target over a table, with a cache it keeps as told.

    Logits come from nothing but the cache, so a wrong ``keep`` corrupts the text; and after each ``keep`` the cache
    must hold the sequence without its last token.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.vocabulary = table.rows.shape[1]
        self.passes = 0
        self._cache: dict[TokenSequence, list[int]] = {}

    def score(self, sequences: Sequence[TokenSequence], drafts: Sequence[Draft], taps: tuple[int, ...] = ()) -> Scored:
        self.passes += 1
        rows: list[Any] = []
        starts: list[int] = []
        for sequence, draft in zip(sequences, drafts, strict=True):
            cache = self._cache.setdefault(sequence, [])
            cache.extend(sequence.tokens[len(cache) :])
            starts.append(len(rows))
            paths = [list(cache)]
            for token, parent in zip(draft.tokens, draft.parents, strict=True):
                paths.append([*paths[parent + 1], token])
            rows.extend(self.table(path) for path in paths)
        return Scored(np.stack(rows), tuple(starts), {})

    def keep(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome]) -> None:
        for sequence, outcome in zip(sequences, outcomes, strict=True):
            if sequence.error is not None:  # it does not go on
                continue
            cache = self._cache[sequence]
            cache.extend(outcome.draft.tokens[node] for node in outcome.kept)
            assert cache == sequence.tokens[:-1], "the cache must hold all but the last token"


Guess = Callable[[TokenSequence, Any, Any], Draft]  # sequence, quote, noise -> draft


@dataclass
class ToyDrafter:
    """A drafter whose guesses are a function's."""

    guess: Guess
    name: str = "toy"
    taps: tuple[int, ...] = ()
    seen: list[Outcome] = field(default_factory=list)

    def begin(self, sequence: TokenSequence) -> None: ...

    def propose(self, sequences: Sequence[TokenSequence], quotes: Sequence[Any], noises: Sequence[Any]) -> list[Draft]:
        return [self.guess(s, q, n) for s, q, n in zip(sequences, quotes, noises, strict=True)]

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        self.seen.extend(outcomes)

    def end(self, sequence: TokenSequence) -> None: ...


@dataclass
class EagerPlanner:
    """Room for ``limit`` guesses in every round, the first included, whatever the budget leaves."""

    limit: int

    def quote(self, sequences: Sequence[TokenSequence]) -> list[FixedQuote]:
        return [FixedQuote(self.limit) for _ in sequences]

    def record(self, done: Round) -> None: ...


def nothing(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
    """Guess nothing."""
    return Draft()


def sampled_chain(law: Callable[[Sequence[int]], Law], length: int | None = None) -> Guess:
    """Guess a chain, each token drawn from ``law(path)``; as long as the quote allows, or ``length``."""

    def guess(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        tokens: list[int] = []
        laws: list[Law] = []
        while quote.worth(1.0, len(tokens)) if length is None else len(tokens) < length:
            q = law([*sequence.tokens, *tokens])
            token = noise.guess(q, len(tokens), len(tokens))
            tokens.append(token)
            laws.append(q)
        return Draft.chain(tokens, laws, "toy")

    return guess


Shape = tuple[Any, ...]  # a tuple of its children's shapes


def sampled_tree(law: Callable[[Sequence[int]], Any], shape: Shape, replacement: bool) -> Guess:
    """Guess a tree of ``shape``; siblings are drawn in turn from ``law(path)``, with or without replacement.

    Under the ``coupled`` rule siblings without replacement are the tokens whose clocks ring first, in that order.
    """

    def guess(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        laws: list[Law] = []

        def grow(parent: int, path: list[int], below: Shape) -> None:
            q = law(path)
            for child in below:
                if not any(q.probabilities > 0):
                    return
                node = len(tokens)
                tokens.append(noise.guess(q, node, len(path) - len(sequence.tokens)))
                parents.append(parent)
                laws.append(q)
                token = tokens[node]
                grow(node, [*path, token], child)
                if not replacement:
                    left = np.where(q.ids == token, 0 * q.probabilities, q.probabilities)
                    q = q.with_probabilities(left / left.sum() if left.sum() > 0 else left)

        grow(-1, list(sequence.tokens), shape)
        return Draft(tuple(tokens), tuple(parents), tuple(laws), "toy")

    return guess


def onehot_tree(order: Callable[[Sequence[int]], Sequence[int]], shape: Shape) -> Guess:
    """Guess a tree of ``shape`` without chance: the children of a path are the first of ``order(path)``."""

    def guess(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []

        def grow(parent: int, path: list[int], below: Shape) -> None:
            for token, child in zip(order(path), below, strict=False):
                node = len(tokens)
                tokens.append(int(token))
                parents.append(parent)
                grow(node, [*path, int(token)], child)

        grow(-1, list(sequence.tokens), shape)
        return Draft(tuple(tokens), tuple(parents), None, "toy")

    return guess


def generate(
    sequences: Sequence[TokenSequence], target: Any, drafter: Any, planner: Any, watches: Sequence[Watch] = ()
) -> list[list[Outcome]]:
    """Run rounds until every sequence has ended; return each one's outcomes."""
    history: list[list[Outcome]] = [[] for _ in sequences]
    while running := [i for i, s in enumerate(sequences) if s.finish_reason is None]:
        outcomes = run_round([sequences[i] for i in running], target, drafter, planner, watches)
        for i, outcome in zip(running, outcomes, strict=True):
            history[i].append(outcome)
    return history

"""Plain text by hand, without a line of the library; and drafters of every character beside it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from foredraft.core.draft import Draft
from foredraft.core.law import Dense
from foredraft.core.sampling import SamplingParams, law_of
from foredraft.core.sequence import TokenSequence

from .exact import filtered_by_hand, raced_by_hand
from .toys import Guess, Table, nothing, sampled_chain, sampled_tree

V = 5


def shaped(row: Any, sequence: TokenSequence, path: tuple[int, ...]) -> Any:
    """Shape logits by every token of the text and of the drafted prefix; forbid the one before."""
    text = [*sequence.tokens, *path]
    return np.array([-math.inf if x == text[-1] else w - 0.7 * text.count(x) for x, w in enumerate(row)])


def next_by_hand(table: Table, sequence: TokenSequence, tokens: Sequence[int]) -> int:
    """Return the target's own token after ``tokens``, by its own noise, without a line of the rule."""
    row = list(table(tokens))
    if sequence.shaping is not None:
        row = [x - 0.7 * tokens.count(i) for i, x in enumerate(row)]
        row[tokens[-1]] = -math.inf
    if sequence.params.greedy:
        return int(np.argmax(row))
    return raced_by_hand(
        filtered_by_hand(row, sequence.params), sequence.noise.seed, sequence.noise.choice, len(tokens)
    )


def plain(table: Table, sequence: TokenSequence, tail: Sequence[int]) -> tuple[Any, str]:
    """Return what a text must become and why it ends, without a line of the library."""
    tokens = sequence.tokens[: sequence.prompt_length]
    while True:
        tokens.append(next_by_hand(table, sequence, tokens))
        answer = tokens[sequence.prompt_length :]
        if tokens[-1] in sequence.stop_ids or (tail and answer[-len(tail) :] == list(tail)):
            return tokens, "stop"
        if len(tokens) >= sequence.limit:
            return tokens, "length"


def continuation(table: Table, sequence: TokenSequence, tokens: Sequence[int], length: int) -> list[int]:
    path = list(tokens)
    for _ in range(length):
        path.append(next_by_hand(table, sequence, path))
    return path[len(tokens) :]


def drafters(table: Table, rng: random.Random, stop: frozenset[int]) -> dict[str, Guess]:
    """Return a drafter of every character."""
    other = Table.random(rng.randrange(1000), V, scale=1.0)
    shape = ((((),), ()), ((), ()))

    def q(path: Sequence[int]) -> Dense:
        found = law_of(other(path), SamplingParams(temperature=1.7, top_k=4))
        assert isinstance(found, Dense)
        return found

    def any_tokens(count: int) -> list[int]:
        return [rng.randrange(V) for _ in range(count)]

    def garbage(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        return Draft.chain(any_tokens(rng.randint(0, quote.limit)), None, "garbage")

    def perfect(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        return Draft.chain(continuation(table, sequence, sequence.tokens, quote.limit), None, "perfect")

    def adversarial(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        """Right up to a point, then wrong, then right again after the wrong; a stop token goes into the middle."""
        tokens = continuation(table, sequence, sequence.tokens, quote.limit)
        at = rng.randrange(len(tokens))
        tokens[at] = rng.choice(sorted(stop)) if stop and rng.random() < 0.5 else (tokens[at] + 1) % V
        tokens[at + 1 :] = continuation(table, sequence, [*sequence.tokens, *tokens[: at + 1]], len(tokens) - at - 1)
        return Draft.chain(tokens, None, "adversarial")

    def overlong(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        return Draft.chain(
            [*continuation(table, sequence, sequence.tokens, quote.limit + 7), *any_tokens(3)], None, "overlong"
        )

    def tree(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        """Grown anywhere, now and then along the right path; siblings may repeat a token."""
        tokens: list[int] = []
        parents: list[int] = []
        paths = {-1: list(sequence.tokens)}
        for node in range(rng.randint(0, quote.limit + 2)):
            parent = rng.randrange(-1, node)
            token = continuation(table, sequence, paths[parent], 1)[0] if rng.random() < 0.6 else rng.randrange(V)
            paths[node] = [*paths[parent], token]
            tokens.append(token)
            parents.append(parent)
        return Draft(tuple(tokens), tuple(parents), None, "tree")

    known = {
        "nothing": nothing,
        "garbage": garbage,
        "perfect": perfect,
        "adversarial": adversarial,
        "overlong": overlong,
        "tree": tree,
        "sampled": sampled_chain(q),
        "sampled tree": sampled_tree(q, shape, replacement=False),
    }
    everyone = list(known.values())
    known["mixed"] = lambda s, quote, noise: rng.choice(everyone)(s, quote, noise)
    return known


CHARACTERS = ["nothing", "garbage", "perfect", "adversarial", "overlong", "tree", "sampled", "sampled tree", "mixed"]
KINDS_OF_PARAMS = [
    SamplingParams(),
    SamplingParams(1.0),
    SamplingParams(1.4, top_k=3),
    SamplingParams(0.8, top_p=0.9),
    SamplingParams(1.2, 4, 0.95, 0.05),
]

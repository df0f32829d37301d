"""The law of drafted text, by running real rounds once for every way the noise can fall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from foredraft.core.draft import Draft
from foredraft.core.law import Dense, Sparse
from foredraft.core.round import run_round
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence

from .exact import PROMPT, text_law
from .fork import Fork, ForkNoise, branches
from .toys import EagerPlanner, Guess, Table, ToyDrafter, ToyTarget, generate, nothing

SAMPLED = SamplingParams(temperature=1.0)
RULES = {"ratio": False, "coupled": True}


def dense(weights: Any) -> Dense:
    return Dense(weights / sum(weights))


def sparse(weights: Any) -> Sparse:
    """Return the law without its zeros."""
    ids = np.flatnonzero(weights)
    return Sparse(weights[ids] / sum(weights), ids)


KINDS: dict[str, Callable[[Any], Dense]] = {"dense": dense, "sparse": sparse}


def q_of(table: Any, kind: str = "dense") -> Callable[[Sequence[int]], Dense]:
    return lambda path: KINDS[kind](table(path))


def text_of(
    noise: Any, length: int, prompt: Sequence[int] = PROMPT, kind: str = "dense", **options: Any
) -> TokenSequence:
    """Return a sequence whose target answers with rational weights in place of logits."""
    return TokenSequence(
        list(prompt),
        limit=len(prompt) + length,
        params=SAMPLED,
        noise=noise,
        law=lambda row, params: KINDS[kind](row),
        **options,
    )


def drafted_law(
    table: Table,
    guess: Guess,
    length: int,
    limit: int,
    stop: frozenset[int] = frozenset(),
    *,
    rule: str = "ratio",
    finish: bool = True,
    kind: str = "dense",
    shaping: Any = None,
    plain: Any = None,
) -> tuple[dict[Any, Fraction], Fraction]:
    """Return the law of the text that rounds with drafts give, and the mean number accepted in the first round.

    Without ``finish`` only the first round is enumerated; the target itself, which ``plain`` is once shaped, goes on
    from there. Under ``coupled`` every single outcome of the noise must give the text that it gives without a draft.
    """
    result: Counter[tuple[int, ...]] = Counter()
    mean = Fraction(0)

    def run(fork: Fork) -> tuple[tuple[int, ...], int]:
        noise = ForkNoise(fork=fork, coupled=RULES[rule])
        drafted, undrafted = (text_of(noise, length, kind=kind, stop_ids=stop, shaping=shaping) for _ in range(2))
        target, planner, drafter = ToyTarget(table), EagerPlanner(limit), ToyDrafter(guess)
        if finish:
            first = generate([drafted], target, drafter, planner)[0][0]
        else:
            first = run_round([drafted], target, drafter, planner)[0]
        if noise.coupled:
            undrafted.limit = len(drafted)
            generate([undrafted], ToyTarget(table), ToyDrafter(nothing), planner)
            assert undrafted.tokens == drafted.tokens
        return tuple(drafted.answer), first.accepted

    for weight, (text, accepted) in branches(run):
        mean += weight * accepted
        ended = len(text) >= length or text[-1] in stop
        rest = {(): Fraction(1)} if ended else text_law(plain or table, length - len(text), stop, (*PROMPT, *text))
        for more, probability in rest.items():
            result[text + more] += weight * probability
    return {text: weight for text, weight in result.items() if weight}, mean


def certain_chain(order: Callable[[Sequence[int]], Sequence[int]], length: int) -> Guess:
    """Guess the first of ``order(path)``, again and again, as one certain of it."""

    def guess(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        tokens: list[int] = []
        for _ in range(length):
            tokens.append(order([*sequence.tokens, *tokens])[0])
        return Draft.chain(tokens, None, "certain")

    return guess

"""Sampled text has the target's law: whole sequences counted, chi-square at a level of one in a million.

The noise is the real one, under fixed seeds: what enumeration cannot see, numbers used twice for instance, shows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from foredraft.core.law import Dense
from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams, law_of
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedPlanner

from .counted import chi_square
from .exact import filtered_by_hand
from .toys import (
    EagerPlanner,
    Guess,
    Table,
    ToyDrafter,
    ToyTarget,
    generate,
    nothing,
    onehot_tree,
    sampled_chain,
    sampled_tree,
)

pytestmark = pytest.mark.slow

V, LENGTH, SAMPLES = 4, 3, 2000
FIXED = FixedPlanner(2)
PROMPT = [2, 0]
DRAFT = SamplingParams(temperature=2.5)

FILTERS = {
    "temperature": SamplingParams(temperature=0.8),
    "top-k": SamplingParams(temperature=1.5, top_k=2),
    "top-p": SamplingParams(temperature=1.3, top_p=0.75),
    "min-p": SamplingParams(temperature=1.3, min_p=0.25),
}


def text_law(table: Table, params: SamplingParams) -> dict[Any, float]:
    law: dict[Any, float] = {}
    for text in itertools.product(range(V), repeat=LENGTH):
        weight = 1.0
        for i, token in enumerate(text):
            weight *= filtered_by_hand(table([*PROMPT, *text[:i]]), params)[token]
        if weight:
            law[text] = weight
    return law


def sample(
    table: Table,
    params: SamplingParams,
    guess: Guess,
    coupled: bool = False,
    samples: int = SAMPLES,
    planner: Any = FIXED,
) -> Counter[Any]:
    """Count the answers of many seeds; drafts begin in the first round and are as long as the planner lets them."""
    counts: Counter[Any] = Counter()
    for start in range(0, samples, 100):
        noises = [Noise(seed, coupled=coupled) for seed in range(start, start + 100)]
        sequences = [
            TokenSequence(list(PROMPT), len(PROMPT) + LENGTH, params, noise, prompt_length=1) for noise in noises
        ]
        generate(sequences, ToyTarget(table), ToyDrafter(guess), planner)
        counts.update(tuple(sequence.answer[1:]) for sequence in sequences)
    return counts


def softened(table: Table) -> Callable[[Sequence[int]], Any]:
    return lambda path: law_of(table(path), DRAFT)


def faulty(law: Callable[[Sequence[int]], Dense]) -> Guess:
    """Guess as ``sampled_chain`` does, but report a law hotter than the tokens were drawn from."""
    chain = sampled_chain(law)

    def guess(sequence: TokenSequence, quote: Any, noise: Any) -> Any:
        draft = chain(sequence, quote, noise)
        hot = [Dense(q.probabilities**0.2 / (q.probabilities**0.2).sum()) for q in draft.laws or ()]  # type: ignore[attr-defined]
        return type(draft)(draft.tokens, draft.parents, tuple(hot), draft.source)

    return guess


@pytest.mark.parametrize("name", FILTERS)
def test_sampled_text_has_the_target_law(name: str) -> None:
    params = FILTERS[name]
    target, other = Table.random(1, V, scale=1.2), Table.random(2, V, scale=3.0)
    law = text_law(target, params)
    assert chi_square(sample(target, params, sampled_chain(softened(other))), law, SAMPLES) < 1
    assert chi_square(sample(target, params, faulty(softened(other))), law, SAMPLES) > 1.2  # the check has teeth


@pytest.mark.parametrize("replacement", [False, True])
def test_trees_have_the_target_law(replacement: bool) -> None:
    params = FILTERS["temperature"]
    target, other = Table.random(1, V, scale=1.2), Table.random(2, V, scale=3.0)
    law = text_law(target, params)
    shape = (((),), (), ())
    sampled = sampled_tree(softened(other), shape, replacement)
    certain = onehot_tree(lambda path: np.argsort(-other(path)).tolist(), shape)
    for guess in (sampled, certain) if replacement else (sampled,):
        assert chi_square(sample(target, params, guess, planner=EagerPlanner(4)), law, SAMPLES) < 1


@pytest.mark.parametrize("name", ["top-p"])
def test_coupled_text_has_the_target_law_and_knows_no_drafter(name: str) -> None:
    """Not even one that lies about its law, which under ``ratio`` shows."""
    params = FILTERS[name]
    target, other = Table.random(1, V, scale=1.2), Table.random(2, V, scale=3.0)
    assert chi_square(sample(target, params, nothing, coupled=True), text_law(target, params), SAMPLES) < 1
    drawn = sample(target, params, sampled_chain(softened(other)), coupled=True, samples=200)
    for guess in (nothing, faulty(softened(other)), sampled_tree(softened(other), (((),), ()), False)):
        again = sample(target, params, guess, coupled=True, samples=200, planner=EagerPlanner(3))
        assert again == drawn

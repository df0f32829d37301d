"""Greedy text is plain text, token for token, whoever drafts: float64 toys, so that bits cannot be the excuse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.core.draft import ROOT, Outcome
from foredraft.core.noise import Noise
from foredraft.core.protocols import Round
from foredraft.core.sampling import SamplingParams, law_of
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.watches.tally import Tally

from .plain import CHARACTERS, KINDS_OF_PARAMS, V, drafters, plain, shaped
from .toys import EagerPlanner, Table, ToyDrafter, ToyTarget, generate, sampled_chain


class EndsWith:
    """A stop string of tokens: true once the answer ends with ``tail``."""

    def __init__(self, tail: Sequence[int]) -> None:
        self.tail = list(tail)
        self.told: list[int] = []

    def __call__(self, token: int) -> bool:
        self.told.append(token)
        return bool(self.tail) and self.told[-len(self.tail) :] == self.tail


class Witness:
    """Sees every round last of all, the texts grown, and finds each token to be what its node's law makes of it."""

    def __init__(self) -> None:
        self.rounds = 0

    def see(self, done: Round) -> None:
        self.rounds += 1
        assert done.began <= done.drafted <= done.verified
        for sequence, outcome, p in zip(done.sequences, done.outcomes, done.laws, strict=True):
            grown = len(outcome.tokens)
            assert sequence.tokens[-grown:] == list(outcome.tokens)
            assert outcome.nodes[0] == ROOT
            assert [outcome.draft.tokens[node] for node in outcome.nodes[1:]] == list(outcome.tokens[:-1])
            for place, (node, token) in enumerate(
                zip(outcome.nodes, outcome.tokens, strict=True), len(sequence) - grown
            ):
                assert sequence.noise.at(place).race(p(node), 0) == token


def check_outcomes(sequence: TokenSequence, outcomes: Sequence[Outcome]) -> None:
    """What the outcomes say happened is what happened."""
    assert [t for o in outcomes for t in o.tokens] == sequence.answer
    assert [o.finish_reason for o in outcomes] == [None] * (len(outcomes) - 1) + [sequence.finish_reason]
    for o in outcomes:
        path = [o.draft.tokens[node] for node in o.kept]
        assert len(o.kept) == len(o.tokens) - 1
        assert path == list(o.tokens[:-1])
        assert o.accepted in (len(o.tokens) - 1, len(o.tokens))
        assert list(o.origins[: o.accepted]) == [o.draft.source] * o.accepted
        if o.accepted == len(o.tokens):  # only an end leaves the last guess without a token after it
            assert o.finish_reason is not None
            continue
        more_was_guessed = (o.kept[-1] if o.kept else -1) in o.draft.parents
        last = "plain" if not o.draft.tokens else "correction" if more_was_guessed else "bonus"
        assert list(o.origins[o.accepted :]) == [last]


CASE: dict[str, Any] = {
    "seed": st.integers(0, 10**6),
    "eager": st.booleans(),
    "shape": st.booleans(),
    "length": st.integers(1, 7),
    "prompts": st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=6), min_size=1, max_size=4),
    "budgets": st.lists(st.integers(1, 14), min_size=4, max_size=4),
    "stop": st.frozensets(st.integers(0, V - 1), max_size=2),
    "tail": st.lists(st.integers(0, V - 1), max_size=2),
}


def check_text_is_plain(
    character: str,
    table: Table,
    params: Sequence[SamplingParams],
    seed: int,
    eager: bool,
    shape: bool,
    length: int,
    prompts: list[list[int]],
    budgets: list[int],
    stop: frozenset[int],
    tail: list[int],
) -> None:
    """Every text of a batch is what it must become alone, and what the round says of it is true."""
    drafter = ToyDrafter(drafters(table, random.Random(seed), stop)[character])
    sequences = [
        TokenSequence(
            list(p), len(p) + b, each, Noise(seed << 20, i, coupled=True), shaped if shape else None,
            stop_ids=stop, ends=EndsWith(tail),
        )
        for i, (p, b, each) in enumerate(zip(prompts, budgets, params, strict=False))
    ]  # fmt: skip
    planner = EagerPlanner(length) if eager else FixedPlanner(length)
    tally, witness = Tally(), Witness()
    history = generate(sequences, ToyTarget(table), drafter, planner, [tally, witness])
    for sequence, outcomes in zip(sequences, history, strict=True):
        wanted, reason = plain(table, sequence, tail)
        assert sequence.tokens == wanted
        assert sequence.finish_reason == reason
        assert sequence.ends is not None
        assert sequence.ends.told == sequence.answer  # type: ignore[attr-defined]
        check_outcomes(sequence, outcomes)
    assert tally.tokens == sum(len(t.answer) for t in sequences)
    assert len(drafter.seen) == sum(map(len, history))
    assert witness.rounds == max(map(len, history))


@pytest.mark.parametrize("character", CHARACTERS)
@given(ties=st.booleans(), **CASE)
def test_greedy_text_is_plain_text(character: str, ties: bool, seed: int, **case: Any) -> None:
    table = Table.random(seed, V)
    if ties:
        table = Table(np.round(table.rows / 2))
    check_text_is_plain(character, table, [SamplingParams()] * 4, seed, **case)


@pytest.mark.parametrize("character", CHARACTERS)
@given(params=st.lists(st.sampled_from(KINDS_OF_PARAMS), min_size=4, max_size=4), **CASE)
def test_seeded_text_is_plain_text(character: str, params: list[SamplingParams], seed: int, **case: Any) -> None:
    """Under ``coupled`` one outcome of the noise is one text: whoever drafts, beside whom, greedy or not."""
    check_text_is_plain(character, Table.random(seed, V), params, seed, **case)


@given(
    seed=st.integers(0, 10**6),
    length=st.integers(0, 6),
    budget=st.integers(2, 20),
    params=st.sampled_from(KINDS_OF_PARAMS),
)
def test_a_perfect_draft_saves_the_passes_it_should(
    seed: int, length: int, budget: int, params: SamplingParams
) -> None:
    """And never guesses beyond the budget: the planner leaves room for the token a round always adds."""
    table = Table.random(seed, V)
    target = ToyTarget(table)
    sequence = TokenSequence([1, 2], 2 + budget, params, Noise(seed, coupled=True))
    drafter = ToyDrafter(drafters(table, random.Random(seed), frozenset())["perfect"])
    tally = Tally()
    outcomes = generate([sequence], target, drafter, FixedPlanner(length), [tally])[0]
    assert target.passes == 1 + -(-(budget - 1) // (length + 1))
    assert all(o.accepted == len(o.draft) for o in outcomes)
    assert tally.acceptance_rate == (1.0 if tally.total.drafted else 0.0)
    assert tally.mean_tokens_per_pass == (budget - 1) / (target.passes - 1)


@pytest.mark.parametrize("coupled", [False, True])
def test_a_neighbour_changes_nothing(coupled: bool) -> None:
    """Seeded sampled text depends on its own path only: alone, or beside others."""
    table = Table.random(3, V)

    def texts() -> list[TokenSequence]:
        params = SamplingParams(temperature=1.0)
        return [
            TokenSequence([i], limit=12 + i, params=params, noise=Noise(5, choice=i, coupled=coupled)) for i in range(4)
        ]

    def q(path: Sequence[int]) -> Any:
        return law_of(table(path[-1:]), SamplingParams(temperature=1.2))

    together = texts()
    generate(together, ToyTarget(table), ToyDrafter(sampled_chain(q)), FixedPlanner(3))
    for alone, beside in zip(texts(), together, strict=True):
        generate([alone], ToyTarget(table), ToyDrafter(sampled_chain(q)), FixedPlanner(3))
        assert alone.tokens == beside.tokens


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(1.0), SamplingParams(0.8, 4, 0.9, 0.05)], ids=str)
@pytest.mark.parametrize("coupled", [False, True])
def test_torch_logits_give_the_same_text(params: SamplingParams, coupled: bool) -> None:
    class TorchTarget(ToyTarget):
        def score(self, *args: Any) -> Any:
            scored = super().score(*args)
            return replace(scored, logits=torch.as_tensor(scored.logits))

    table, other = Table.random(8, V), Table.random(9, V)
    answers = []
    for target, array in ((ToyTarget(table), np.asarray), (TorchTarget(table), torch.as_tensor)):

        def q(path: Sequence[int], array: Any = array) -> Any:
            return law_of(array(other(path)), SamplingParams(temperature=1.5))

        sequences = [TokenSequence([i], 12 + i, params, Noise(1, i, coupled=coupled)) for i in range(3)]
        generate(sequences, target, ToyDrafter(sampled_chain(q)), FixedPlanner(3))
        answers.append([t.answer for t in sequences])
    assert answers[0] == answers[1]
    assert all(type(token) is int for answer in answers[1] for token in answer)

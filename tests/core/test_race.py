"""The race of clocks, with the real noise: whom it lets win, how often two laws agree, and who comes second.

Fixed seeds; a rate lies within five deviations of its closed form, a law passes chi-square at one in a million.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from foredraft.core.draft import Draft
from foredraft.core.law import Dense, Sparse
from foredraft.core.noise import Noise
from foredraft.core.round import run_round
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence

from .counted import chi_square
from .drafted import KINDS
from .exact import clock_by_hand, raced_by_hand
from .toys import EagerPlanner, Table, ToyDrafter, ToyTarget, sampled_chain, sampled_tree

pytestmark = pytest.mark.slow

N = 4000
PAIRS = {
    "near": ([0.5, 0.2, 0.2, 0.1, 0.0], [0.4, 0.3, 0.15, 0.15, 0.0]),
    "far": ([0.7, 0.1, 0.1, 0.05, 0.05], [0.05, 0.1, 0.6, 0.05, 0.2]),
    "half disjoint": ([0.5, 0.5, 0.0, 0.0, 0.0], [0.0, 0.5, 0.25, 0.25, 0.0]),
    "flat": ([0.2, 0.2, 0.2, 0.2, 0.2], [0.3, 0.1, 0.3, 0.1, 0.2]),
}


def agreement(p: Sequence[float], q: Sequence[float]) -> float:
    """Return how often both laws draw one token from the same clocks (Daliri, Musco, Suresh 2024)."""
    both = [j for j in range(len(p)) if p[j] > 0 and q[j] > 0]
    return sum(1 / sum(max(p[i] / p[j], q[i] / q[j]) for i in range(len(p))) for j in both)


def among_the_first_two(p: Sequence[float], q: Sequence[float]) -> float:
    """Return how often the target's token is one of the two whose clocks ring first under ``q``; no zeros."""
    total = 0.0
    for j in range(len(p)):
        most = [max(p[i] / p[j], q[i] / q[j]) for i in range(len(p))]
        whole = sum(most)
        total += 1 / whole
        for i in range(len(p)):
            if i != j and q[i] / q[j] > p[i] / p[j]:
                total += 1 / (whole - most[i] + p[i] / p[j]) - 1 / whole
    return total


def overlap(p: Sequence[float], q: Sequence[float]) -> float:
    return sum(map(min, p, q))


def assert_rate(hits: int, total: int, rate: float) -> None:
    assert abs(hits / total - rate) <= 5 * math.sqrt(rate * (1 - rate) / total)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("over", ["seeds", "choices", "places ahead", "positions"])
def test_the_winner_has_the_law(kind: str, over: str) -> None:
    weights = np.array([0.4, 0.0, 0.3, 0.02, 0.18, 0.1])
    law = KINDS[kind](weights)
    draw: Any = {
        "seeds": lambda i: Noise(i).race(law, 0),
        "choices": lambda i: Noise(1, i).race(law, 0),
        "places ahead": lambda i: Noise(1).race(law, i),
        "positions": lambda i: Noise(2).at(i).race(law, 0),
    }[over]
    drawn = Counter(draw(i) for i in range(N))
    assert chi_square(drawn, dict(enumerate(weights)), N) < 1
    assert chi_square(drawn, dict(enumerate([0.32, 0.0, 0.3, 0.05, 0.22, 0.11])), N) > 1.2  # the check has teeth


def test_two_places_are_independent() -> None:
    weights = [0.5, 0.3, 0.2]
    law = Dense(np.array(weights))
    drawn = Counter((Noise(i).at(4).race(law, 0), Noise(i).at(4).race(law, 1)) for i in range(N))
    assert chi_square(drawn, {(a, b): weights[a] * weights[b] for a in range(3) for b in range(3)}, N) < 1


@pytest.mark.parametrize("name", PAIRS)
def test_two_laws_agree_as_often_as_the_closed_form_says(name: str) -> None:
    p, q = PAIRS[name]
    rate = agreement(p, q)
    share = overlap(p, q)
    assert share / (2 - share) <= rate <= share  # (1 - TV) / (1 + TV) at least, the ratio rule's rate at most
    target, draft = Dense(np.array(p)), Dense(np.array(q))
    noises = [Noise(11, coupled=True).at(i) for i in range(N)]
    assert_rate(sum(z.race(target, 2) == z.guess(draft, 5, 2) for z in noises), N, rate)


@pytest.mark.parametrize("name", ["far", "flat"])
def test_the_target_is_among_the_first_two_as_often_as_the_closed_form_says(name: str) -> None:
    p, q = PAIRS[name]
    rate = among_the_first_two(p, q)
    assert rate > agreement(p, q) + 0.05
    guess = sampled_tree(lambda path: Dense(np.array(q)), ((), ()), replacement=False)
    hits = 0
    for i in range(N // 2):
        noise = Noise(12, coupled=True).at(i)
        hits += noise.race(Dense(np.array(p)), 0) in guess(TokenSequence([0], 9), None, noise).tokens
    assert_rate(hits, N // 2, rate)


def test_siblings_are_the_tokens_whose_clocks_ring_first() -> None:
    q = [0.4, 0.0, 0.3, 0.02, 0.18, 0.1]
    for shape in (((), (), ()), ((((), ()),),)):  # three at the root; two that lie two deep
        guess = sampled_tree(lambda path: Dense(np.array(q)), shape, replacement=False)
        for position in range(1, 60):
            sequence = TokenSequence([1] * position, 99, noise=Noise(13, 2, coupled=True))
            draft = guess(sequence, None, sequence.noise.at(position))
            place = position + draft.depths()[-1] - 1
            order = sorted((x for x in range(6) if q[x]), key=lambda x: clock_by_hand(13, 2, place, x) / q[x])
            last = [t for t, parent in zip(draft.tokens, draft.parents, strict=True) if parent == draft.parents[-1]]
            assert last == order[: len(last)]


def test_the_race_spelled_out_over_a_large_vocabulary() -> None:
    rng = np.random.default_rng(3)
    for position in range(30):
        ids = np.sort(rng.choice(151_936, 40, replace=False))
        weights = rng.dirichlet(np.ones(40))
        whole = np.zeros(151_936)
        whole[ids] = weights
        found = Noise(2**40 + 3, 5).at(position).race(Sparse(weights, ids), 1)
        assert found == Noise(2**40 + 3, 5).at(position).race(Dense(whole), 1)
        clocks = {int(x): clock_by_hand(2**40 + 3, 5, position + 1, int(x)) for x in ids}
        assert found == min(clocks, key=lambda x: clocks[x] / whole[x])
        assert raced_by_hand(weights, 1, 0, position) == Noise(1).at(position).race(Dense(weights), 0)


@pytest.mark.parametrize("rule", ["ratio", "coupled"])
@pytest.mark.parametrize("name", ["far", "half disjoint"])
def test_rounds_accept_as_often_as_the_rule_says(name: str, rule: str) -> None:
    """At each depth, given that the guesses before survived; and the other rule's rate is told from it."""
    p, q = PAIRS[name]
    target = ToyTarget(Table(np.log(np.maximum(np.array([p]), 1e-300))))
    drafter = ToyDrafter(sampled_chain(lambda path: Dense(np.array(q))))
    params = SamplingParams(1.0)
    sequences = [TokenSequence([0], 99, params, Noise(seed, coupled=rule == "coupled")) for seed in range(N // 2)]
    accepted = [o.accepted for o in run_round(sequences, target, drafter, EagerPlanner(2))]
    rates = {"ratio": overlap(p, q), "coupled": agreement(p, q)}
    first, second = sum(a >= 1 for a in accepted), sum(a >= 2 for a in accepted)
    assert_rate(first, len(sequences), rates[rule])
    assert_rate(second, first, rates[rule])
    with pytest.raises(AssertionError):
        assert_rate(first, len(sequences), rates["ratio" if rule == "coupled" else "coupled"])


def test_a_drafter_with_the_target_s_law_is_always_right_under_coupled() -> None:
    table = Table.random(3, 6)
    params = SamplingParams(0.9, top_p=0.95)
    law = lambda path: sequences[0].law(table(path), params)  # noqa: E731
    sequences = [TokenSequence([i], 30, params, Noise(i, 3, coupled=True)) for i in range(6)]
    outcomes = run_round(sequences, ToyTarget(table), ToyDrafter(sampled_chain(law)), EagerPlanner(5))
    assert [o.accepted for o in outcomes] == [5] * 6
    assert all(isinstance(o.draft, Draft) and o.origins[-1] == "bonus" for o in outcomes)

"""The transform by hand, its tests on numbers that are and are not uniform, and on toys with and without faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foredraft.core.draft import Draft
from foredraft.core.law import Dense, Law, Point, Sparse
from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams
from foredraft.measure.certificate import p_values as p_values
from foredraft.measure.certificate.pit import Pit, transform, uniformity
from foredraft.measure.certificate.planted_faults import FaultyDrafter, FavouringNoise
from tests.measure.toys import WHOLE, certain, drafter, lying, round_of, run_watched, sampled

pytestmark = pytest.mark.slow

TOKENS = 1200

P = np.array([0.1, 0.4, 0.0, 0.3, 0.2])
GUESSES: dict[str, Law | None] = {
    "nothing": None,
    "certain": Point(3),
    "certain of the impossible": Point(2),
    "drawn": Dense(np.array([0.1, 0.1, 0.5, 0.3, 0.0])),
    "the same": Dense(P),
}
ORDERS = {
    "nothing": (1, 3, 4, 0, 2),
    "certain": (3, 1, 4, 0, 2),
    "certain of the impossible": (2, 1, 3, 4, 0),
    "drawn": (2, 3, 0, 1, 4),  # q/p: infinite, 1, 1, 1/4, 0; of the two equals the likelier first
    "the same": (1, 3, 4, 0, 2),
}


@pytest.mark.parametrize("name", GUESSES)
def test_the_numbers_lie_in_the_order_of_the_guess(name: str) -> None:
    start = 0.0
    for token in ORDERS[name]:
        if P[token] > 0:
            for share in (0.0, 0.5):
                number = transform(Dense(P), GUESSES[name], token, share)
                assert number == pytest.approx(start + share * P[token])
        start += P[token]
    assert start == pytest.approx(1.0)


@pytest.mark.parametrize("name", GUESSES)
def test_a_law_without_its_zeros_says_the_same(name: str) -> None:
    q = GUESSES[name]
    ids = np.flatnonzero(P)
    thin = Sparse(P[ids], ids)
    for token in ids.tolist():
        assert transform(thin, q, token, 0.3) == pytest.approx(transform(Dense(P), q, token, 0.3))


def test_a_certain_law_leaves_the_uniform_as_it_is() -> None:
    assert transform(Point(3), Point(3), 3, 0.25) == 0.25


def test_uniform_numbers_pass_and_others_do_not() -> None:
    draw = np.random.default_rng(3)
    good = [draw.random(50).tolist() for _ in range(20)]
    seen = uniformity(good)
    assert seen.tokens == 1000
    assert min(seen.ks_p, seen.bins_p, seen.lag_p) > 0.01
    assert uniformity([[u**1.3 for u in s] for s in good]).ks_p < 1e-4
    assert uniformity([[u if int(40 * u) % 2 else u - 1 / 80 for u in s] for s in good]).lag_p > 0.01
    combed = uniformity([[(int(20 * u) // 2 * 2 + u) / 20 for u in s] for s in good])
    assert combed.bins_p < 1e-30
    sticky = [np.repeat(draw.random(25), 2).tolist() for _ in range(20)]
    assert uniformity(sticky).lag_p < 1e-4


def test_nothing_seen_says_nothing() -> None:
    seen = uniformity([])
    assert (seen.tokens, seen.ks_p, seen.bins_p, seen.lag_p) == (0, 1.0, 1.0, 1.0)


def sampled_pit(guesser: Any, coupled: bool, noise: type[Noise] = Noise, params: Any = WHOLE, length: int = 3) -> Pit:
    """Run toy sequences of 60 tokens and return the watch that saw them."""
    pit = Pit(np.random.default_rng(11))
    run_watched(TOKENS // 60, guesser, pit, coupled=coupled, noise=noise, params=params, length=length)
    return pit


def p_value(pit: Pit) -> float:
    seen = pit.uniformity()
    assert seen.tokens == TOKENS
    return 0.0 if pit.impossible else p_values.bonferroni(seen.ks_p, seen.bins_p, seen.lag_p)


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("guess", [certain, sampled])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_exact_text_passes(guess: Any, coupled: bool, top_p: float) -> None:
    params = SamplingParams(temperature=1.0, top_p=top_p)
    assert p_value(sampled_pit(drafter(guess, "toy"), coupled, params=params)) > 0.01


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("guess", [certain, sampled])
def test_the_planted_fault_is_found(guess: Any, coupled: bool) -> None:
    faulty = FaultyDrafter(drafter(guess, "toy"))
    assert p_value(sampled_pit(faulty, coupled, FavouringNoise, length=1)) < 1e-4


def test_a_lie_about_the_law_changes_the_text_under_ratio_alone() -> None:
    assert p_value(sampled_pit(drafter(lying, "lying"), coupled=False)) < 1e-4
    assert p_value(sampled_pit(drafter(lying, "lying"), coupled=True)) > 0.01


def test_a_token_that_the_target_rules_out_is_counted() -> None:
    pit = Pit(np.random.default_rng(0))
    for token in (0, 2, 2):
        pit.see(round_of(token, Dense(P), Draft.chain([2])))
    assert pit.impossible == 2
    assert [len(numbers) for numbers in pit.numbers] == [1, 1, 1]

"""The watch: silent over a hundred thousand exact tokens, loud soon after a fault."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

from foredraft.core.draft import Draft
from foredraft.core.law import Dense, Law, Point, Sparse
from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams
from foredraft.engine.watches.law_watch import ALPHA, STAKES, LawWatch
from foredraft.errors import OptionError
from foredraft.measure.certificate.planted_faults import FaultyDrafter, FavouringNoise
from tests.measure.toys import certain, drafter, lying, round_of, run_watched, sampled

pytestmark = pytest.mark.slow

SOON = 1000  # tokens within which every planted fault below is found


def exact_tokens(watch: LawWatch, count: int, seed: int) -> float:
    """Show the watch so many tokens of random laws and guesses, drawn exactly; return the highest evidence."""
    draw = np.random.default_rng(seed)
    p, q = draw.dirichlet(np.full(5, 0.5), (2, 64))
    laws, guesses = [Dense(row) for row in p], [Dense(row) for row in q]
    tokens = np.array([draw.choice(5, count // 64 + 1, p=row) for row in p])
    highest = 0.0
    for i in range(count):
        state = i % 64
        guess: Law = guesses[state] if i % 3 else Point(int(np.argmax(q[state])))
        draft = Draft((int(np.argmax(q[state])),), (-1,), (guess,))
        watch.see(round_of(int(tokens[state, i // 64]), laws[state], draft))
        highest = max(highest, watch.evidence)
    return highest


def test_a_hundred_thousand_exact_tokens_are_no_alarm() -> None:
    watch = LawWatch()
    assert exact_tokens(watch, 100_000, seed=1) < -math.log(ALPHA)
    assert (watch.tokens, watch.alarmed, watch.alarmed_after) == (100_000, False, None)


def test_wealth_is_a_martingale() -> None:
    """One bet: the mean of the wealth over the target's law is 1, whatever p and q are."""
    draw = np.random.default_rng(2)
    for p, q in draw.dirichlet(np.ones(4), (50, 2)):
        for guess in (Dense(q), Point(1)):
            after = []
            for token in range(4):
                watch = LawWatch()
                watch.see(round_of(token, Dense(p), Draft((1,), (-1,), (guess,))))
                after.append(math.exp(watch.evidence))
            assert float(p @ np.array(after)) == pytest.approx(1.0, abs=1e-12)


def test_false_alarms_are_rarer_than_alpha() -> None:
    alarms = 0
    for seed in range(60):
        watch = LawWatch(alpha=0.25)
        exact_tokens(watch, 300, seed)
        alarms += watch.alarmed
    assert alarms < 0.25 * 60


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("guess", [certain, sampled])
def test_rounds_of_an_exact_rule_are_no_alarm(guess: Any, coupled: bool) -> None:
    watch = LawWatch()
    run_watched(30, drafter(guess, "toy"), watch, coupled=coupled)
    assert watch.tokens == 1800
    assert not watch.alarmed


class AcceptAlways(Noise):
    """A rule that accepts every guess that the target does not rule out."""

    def test(self, node: int) -> float:
        return 0.0


@pytest.mark.parametrize("guess", [certain, sampled])
def test_accept_always_is_found(guess: Any) -> None:
    watch = LawWatch()
    run_watched(25, drafter(guess, "toy"), watch, coupled=False, noise=AcceptAlways)
    assert watch.alarmed_after is not None
    assert watch.alarmed_after <= SOON


def test_a_lying_law_is_found() -> None:
    watch = LawWatch()
    run_watched(25, drafter(lying, "lying"), watch, coupled=False)
    assert watch.alarmed_after is not None
    assert watch.alarmed_after <= SOON


@pytest.mark.parametrize("guess", [certain, sampled])
def test_resampling_from_p_is_found(guess: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.core.accept.residual", lambda p, q: p)
    watch = LawWatch()
    run_watched(25, drafter(guess, "toy"), watch, coupled=False)
    assert watch.alarmed_after is not None
    assert watch.alarmed_after <= SOON


def test_favoured_guesses_are_found_under_coupled() -> None:
    watch = LawWatch()
    run_watched(25, FaultyDrafter(drafter(certain, "toy")), watch, coupled=True, noise=FavouringNoise, length=1)
    assert watch.alarmed_after is not None
    assert watch.alarmed_after <= SOON


def test_a_starved_guess_is_found_too() -> None:
    """The bonus rule gone wrong: a guess is never taken, however likely."""
    watch = LawWatch()
    draw = np.random.default_rng(4)
    for _ in range(SOON):
        watch.see(round_of(int(draw.integers(1, 4)), Dense(np.full(4, 0.25)), Draft.chain([0])))
    assert watch.alarmed


def test_one_impossible_token_is_proof_for_ever() -> None:
    watch = LawWatch()
    laws = (Point(2), Sparse(np.array([0.5, 0.5]), np.array([1, 2])), Dense(np.array([0.0, 0.5, 0.5])))
    for law in laws:
        watch.see(round_of(2, law, Draft()))
    assert (watch.evidence, watch.alarmed) == (0.0, False)
    watch.see(round_of(0, laws[1], Draft()))
    watch.see(round_of(2, laws[2], Draft.chain([2])))
    assert (watch.evidence, watch.alarmed, watch.alarmed_after, watch.tokens) == (math.inf, True, 4, 5)


def test_an_alarm_stays_when_the_wealth_is_lost_again() -> None:
    watch = LawWatch(alpha=0.5)
    law = Dense(np.array([0.01, 0.99]))
    for _ in range(8):
        watch.see(round_of(0, law, Draft.chain([0])))
    assert watch.alarmed
    for _ in range(3000):
        watch.see(round_of(1, Dense(np.array([0.5, 0.5])), Draft.chain([0])))
        watch.see(round_of(0, Dense(np.array([0.5, 0.5])), Draft.chain([0])))
    assert watch.evidence < math.log(2)
    assert watch.alarmed


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0, math.nan])
def test_alpha_is_a_probability(alpha: float) -> None:
    with pytest.raises(OptionError, match="alpha must lie between 0 and 1"):
        LawWatch(alpha)


def test_it_grows_by_nothing() -> None:
    watch = LawWatch()
    exact_tokens(watch, 500, seed=3)
    assert len(watch._wealth) == 2 * len(STAKES)
    assert all(isinstance(value, int | float | list | None | type(watch._lock)) for value in vars(watch).values())


def test_other_threads_read_whole_figures() -> None:
    watch, seen, stop = LawWatch(), [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append((watch.evidence, watch.alarmed))

    reader = threading.Thread(target=read)
    reader.start()
    exact_tokens(watch, 2000, seed=5)
    stop.set()
    reader.join()
    assert all(isinstance(evidence, float) and not alarmed for evidence, alarmed in seen)


def test_greedy_text_costs_and_says_nothing() -> None:
    watch = LawWatch()
    run_watched(4, drafter(certain, "toy"), watch, coupled=False, params=SamplingParams())
    assert (watch.tokens, watch.evidence) == (240, 0.0)

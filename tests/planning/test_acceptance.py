"""What is learnt of how guesses fare."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from foredraft.core.draft import Draft, Outcome
from foredraft.planning.acceptance import DEPTHS, Acceptance, _moved
from foredraft.planning.source import BEHIND, Source


def told(acceptance: Acceptance, chance: float, chains: int, length: int = 4, seed: int = 0) -> Acceptance:
    """Teach an acceptance by chains of guesses that are right with a chance; what follows a wrong one is not tested."""
    draw = random.Random(seed)
    for _ in range(chains):
        hits = []
        while len(hits) < length and (not hits or hits[-1]):
            hits.append(draw.random() < chance)
        acceptance.learn(hits)
    return acceptance


@pytest.mark.parametrize("prior", [0.1, 0.5, 0.9])
def test_before_anything_was_seen_the_prior_holds(prior: float) -> None:
    acceptance = Acceptance(prior)
    assert [acceptance.chance(i) for i in (0, 3, DEPTHS, 1000)] == pytest.approx([prior] * 4)
    acceptance.learn([])
    assert acceptance.chance(0) == pytest.approx(prior)
    assert (acceptance.tested, acceptance.accepted) == (0, 0)


@pytest.mark.parametrize("chance", [0.05, 0.4, 0.8, 0.97])
def test_what_was_not_tested_does_not_count(chance: float) -> None:
    """Chains of 4: the mean share of accepted guesses is far below the chance of one, which is what is wanted."""
    acceptance = told(Acceptance(), chance, 3000)
    means = [0.0] * 3
    for seed in range(60):  # the drift follows the latest guesses: a mean over many moments
        told(acceptance, chance, 5, seed=seed + 1)
        means = [mean + acceptance.chance(i) / 60 for i, mean in enumerate(means)]
    assert means[:2] == pytest.approx([chance] * 2, abs=0.08)


def test_depths_are_told_apart_and_a_depth_never_seen_is_like_the_one_before() -> None:
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.learn([True, False])
        acceptance.learn([True, False])
    assert acceptance.chance(0) > 0.85
    assert acceptance.chance(1) < 0.25
    assert acceptance.chance(2) == pytest.approx(acceptance.chance(1), abs=0.01)
    other = Acceptance()
    for _ in range(20):
        other.learn([True])
    assert other.chance(9) == pytest.approx(other.chance(0), abs=0.2)
    assert other.chance(9) > 0.8


def test_a_text_that_changes_is_followed_within_a_few_guesses() -> None:
    acceptance = told(Acceptance(), 0.9, 400)
    before = acceptance.chance(0)
    for _ in range(8):
        acceptance.learn([False])
    assert before > 0.75
    assert acceptance.chance(0) < before - 0.2
    for _ in range(200):
        acceptance.learn([False])
    assert acceptance.chance(0) < 0.05
    for _ in range(25):
        acceptance.learn([True] * 4)
    assert acceptance.chance(0) > 0.6


def test_chances_are_chances_whatever_comes() -> None:
    acceptance, draw = Acceptance(), random.Random(5)
    for _ in range(2000):
        acceptance.learn([draw.random() < 0.99] * draw.randint(0, 2 * DEPTHS))
        assert all(0.0 < chance < 1.0 for chance in acceptance.chances)


def test_sureness_is_worth_what_became_of_paths_so_sure() -> None:
    acceptance = Acceptance()
    assert acceptance.survival(0.7) == pytest.approx(0.7)  # taken at its word until something is seen
    for i in range(400):
        acceptance.learn_path(0.7, i % 10 == 0)
        acceptance.learn_path(0.1, i % 2 == 0)
    assert acceptance.survival(0.7) == pytest.approx(0.1, abs=0.05)
    assert acceptance.survival(0.1) == pytest.approx(0.5, abs=0.05)
    assert acceptance.survival(0.7) < acceptance.survival(0.1)  # a drafter may be wrong about itself


@pytest.mark.parametrize("sureness", [math.nan, -1.0, 0.0, 1e-300, 1.0, 7.0, math.inf])
def test_sureness_of_any_kind_is_a_chance(sureness: float) -> None:
    acceptance = Acceptance()
    assert 0.0 <= acceptance.survival(sureness) <= 1.0
    acceptance.learn_path(sureness, survived=True)
    assert 0.0 < acceptance.survival(sureness) <= 1.0


@pytest.mark.parametrize("seed", range(5))
def test_the_sureness_for_a_survival_is_the_edge_where_it_is_no_longer_reached(seed: int) -> None:
    acceptance, draw = Acceptance(), random.Random(seed)
    for _ in range(1500):
        sure = draw.random() ** 2
        acceptance.learn_path(sure, draw.random() < sure ** (0.5 + seed / 2))
    bins = [2.0 ** (-0.5 * (i + 0.5)) for i in range(18)]
    for floor in (0.03, 0.1, 0.3, 0.5, 0.7, 0.9):
        edge = acceptance.confidence_for(floor)
        surer = [acceptance.survival(sure) >= floor for sure in bins if sure > edge]
        assert all(surer)
        below = next((sure for sure in bins if sure < edge), None)
        assert below is None or acceptance.survival(below) < floor
    assert acceptance.confidence_for(0.0) == acceptance.confidence_for(-1.0) == 0.0
    assert Acceptance().confidence_for(1e-4) == 2.0**-9  # all that are told apart survive so often
    assert acceptance.confidence_for(1.0) == acceptance.confidence_for(9.0) == 2.0
    edges = [acceptance.confidence_for(floor / 50) for floor in range(51)]
    assert all(a <= b for a, b in itertools.pairwise(edges))


def outcome(draft: Draft, kept: tuple[int, ...], finish: str | None = None) -> Outcome:
    tokens = (*(draft.tokens[i] for i in kept), 99)
    return Outcome(draft, tokens, len(kept), kept, ("x",) * len(tokens), finish)


TREE = Draft((1, 2, 3, 4), (-1, -1, 0, 2), None, "tree", (0.9, 0.4, 0.6, 0.5))


def test_an_outcome_teaches_what_was_tested() -> None:
    source = Source("a")
    source.learn(outcome(TREE, (0, 2)))  # the fourth guess was tested and refused
    assert (source.acceptance.tested, source.acceptance.accepted) == (3, 2)
    assert source.acceptance.survival(0.6) > 0.6 > source.acceptance.survival(0.6 / 2)
    assert source.acceptance.survival(0.4) < 0.4
    source.learn(outcome(TREE, (1,)))  # nothing follows the second guess: all that was tested was right
    assert (source.acceptance.tested, source.acceptance.accepted) == (4, 3)
    source.learn(outcome(TREE, (0,), "stop"))  # what the end of the text left open
    assert (source.acceptance.tested, source.acceptance.accepted) == (5, 4)
    source.learn(outcome(Draft(), ()))
    assert (source.acceptance.tested, source.acceptance.accepted) == (5, 4)


@pytest.mark.parametrize(
    ("tokens", "tested", "accepted"),
    [((1, 3, 4), 3, 3), ((2, 9), 1, 1), ((1, 9), 2, 1), ((9,), 1, 0), ((1, 3, 4, 5), 3, 3), ((), 0, 0)],
)
def test_a_draft_that_was_not_taken_is_held_against_the_text(
    tokens: tuple[int, ...], tested: int, accepted: int
) -> None:
    source = Source("a")
    source.watched(TREE, tokens)
    assert (source.acceptance.tested, source.acceptance.accepted) == (tested, accepted)


def test_a_draft_that_was_not_taken_teaches_what_its_sureness_is_worth() -> None:
    source, draft = Source("a"), replace(Draft.chain([1, 2, 3]), confidences=(0.9, 0.6, 0.4))
    before = [source.acceptance.survival(sure) for sure in (0.9, 0.6, 0.4)]
    for _ in range(30):
        source.watched(draft, (1, 9))  # what follows the wrong guess cannot survive either
    after = [source.acceptance.survival(sure) for sure in (0.9, 0.6, 0.4)]
    assert after[1] < before[1] / 3
    assert after[2] < before[2] / 3
    untested = Source("a")
    untested.watched(draft, (1, 2))  # the text went no further
    assert untested.acceptance.survival(0.4) == pytest.approx(_moved(before[2], untested.acceptance._drift))


def test_a_text_that_runs_badly_makes_all_less_likely() -> None:
    acceptance = Acceptance()
    for _ in range(40):
        acceptance.learn_path(0.8, True)
    calm = acceptance.survival(0.8), acceptance.confidence_for(0.5)
    for _ in range(5):
        acceptance.learn([False])
    assert acceptance.survival(0.8) < calm[0]
    assert acceptance.confidence_for(0.5) >= calm[1]
    for sure in (0.9, 0.7, 0.3):  # one is the other's inverse
        assert acceptance.survival(acceptance.confidence_for(sure)) >= sure - 0.2


def test_what_a_draft_is_worth() -> None:
    source = Source("a")
    assert source.worth(TREE) == pytest.approx(0.9 + 0.4 + 0.6 + 0.5)
    assert source.worth(Draft.chain([1, 2, 3])) == pytest.approx(0.5 + 0.25 + 0.125)
    assert source.worth(Draft((1, 2, 3), (-1, -1, 1), None, "a", (0.5,))) == pytest.approx(1.25)  # one sureness for 3
    assert source.worth(Draft.chain([1] * (DEPTHS + 4))) == pytest.approx(1 - 0.5 ** (DEPTHS + 4))
    assert source.worth(Draft()) == 0.0


def test_the_price_of_a_guess() -> None:
    source = Source("a")
    assert (source.unit, source.free(1.0)) == (None, False)
    source.paid(0.010, 4)
    assert source.unit == pytest.approx(0.002)
    source.paid(10.0, 4)  # the machine stalled
    assert source.unit is not None
    assert source.unit < 0.003
    for _ in range(30):
        source.paid(0.010, 9)
    assert source.unit == pytest.approx(0.001, rel=0.01)
    before = source.unit
    for _ in range(30):
        source.paid(1e-6, 0)  # to say nothing is cheap
    assert source.unit == before
    assert source.answers < 0.1
    source.paid(0.5, 0)  # unless it is not
    assert source.unit > before
    assert source.free(1.0)
    assert not source.free(source.unit)


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_a_clock_that_jumps_back_teaches_no_price(seconds: float) -> None:
    source = Source("a")
    source.paid(seconds, 3)
    assert source.unit is None


def test_reading_a_text_is_not_what_a_guess_costs() -> None:
    source = Source("a")
    source.paid(2.0, 4, 1, behind=1000)  # it had the prompt to read
    assert source.unit is None
    assert source.read == pytest.approx(0.002)
    source.paid(0.005, 4, 1, behind=BEHIND)
    assert source.unit == pytest.approx(0.001)
    source.paid(1.005, 4, 1, behind=1000)
    assert source.unit == pytest.approx(0.001)
    assert 0.001 < source.read < 0.002

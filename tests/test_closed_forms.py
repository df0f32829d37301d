"""The closed forms that benchmarks/rules/acceptance.py measures against: their definitions, and what the core does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rules.closed_forms import Tally, bound, match, overlap, quantile
from foredraft.core.accept import accept, coupled
from foredraft.core.draft import Draft
from foredraft.core.law import Dense
from foredraft.core.noise import Noise

PAIRS = [
    ([0.5, 0.3, 0.2, 0.0], [0.1, 0.6, 0.0, 0.3]),
    ([0.25, 0.25, 0.25, 0.25], [0.4, 0.4, 0.1, 0.1]),
    ([0.9, 0.1, 0.0, 0.0], [0.9, 0.0, 0.05, 0.05]),
]


def by_definition(p: Any, q: Any) -> float:
    p, q = p.tolist(), q.tolist()  # plain numbers: what is too large is infinite, and no more is said
    both = [j for j in range(len(p)) if p[j] > 0 and q[j] > 0]
    return sum(1 / sum(max(p[i] / p[j], q[i] / q[j]) for i in range(len(p))) for j in both)


@st.composite
def laws(draw: Any) -> tuple[Any, Any]:
    """Two laws over the same tokens, with zeros, ties and very small numbers."""
    size = draw(st.integers(1, 40))
    weights = st.sampled_from([0.0, 1e-12, 0.1, 1.0, 1.0, 2.0]) | st.floats(0, 5)
    pair = [np.array(draw(st.lists(weights, min_size=size, max_size=size))) for _ in "pq"]
    for law in pair:
        law[draw(st.integers(0, size - 1))] += 1.0
    return pair[0] / pair[0].sum(), pair[1] / pair[1].sum()


@given(laws())
def test_match_is_its_definition_between_its_bounds(pair: tuple[Any, Any]) -> None:
    p, q = pair
    found = match(p, q)
    assert math.isclose(found, by_definition(p, q), rel_tol=1e-9, abs_tol=1e-15)
    assert math.isclose(match(q, p), found, rel_tol=1e-9, abs_tol=1e-15)
    shared = overlap(p, q)
    distance = np.abs(p - q).sum() / 2
    assert math.isclose(shared, 1 - distance, abs_tol=1e-12)
    assert math.isclose(bound(shared), (1 - distance) / (1 + distance), abs_tol=1e-12)
    assert bound(shared) - 1e-12 <= found <= shared + 1e-12


def test_equal_and_disjoint_laws() -> None:
    p = np.random.default_rng(0).dirichlet(np.full(49152, 0.1))
    assert math.isclose(match(p, p), 1, rel_tol=1e-12)
    assert match(np.array([1.0, 0, 0]), np.array([0, 0.5, 0.5])) == 0


@pytest.mark.parametrize(("p", "q"), PAIRS)
@pytest.mark.parametrize("shared", [False, True], ids=["ratio", "coupled"])
def test_the_core_accepts_so_often(p: list[float], q: list[float], shared: bool) -> None:
    """Five standard errors, on fixed seeds."""
    ours, theirs = Dense(np.array(p)), Dense(np.array(q))
    chance = match(ours.probabilities, theirs.probabilities) if shared else overlap(np.array(p), np.array(q))
    tally = Tally()
    for seed in range(1500):
        noise = Noise(seed, 0, 7, shared)
        draft = Draft.chain([noise.guess(theirs, 0, 0)], [theirs])
        target = coupled(lambda _: ours, draft, noise) if shared else lambda _: ours
        tally.add(chance, 1, len(accept(draft, target, noise).path))
    assert 0 < tally.accepted < tally.rounds
    assert abs(tally.z) < 5


def test_a_tally() -> None:
    tally = Tally()
    assert math.isnan(tally.rate)
    assert tally.z == 0
    tally.add(0.5, 100, 60)
    tally.add(1.0, 100, 100)
    assert (tally.rate, tally.closed, tally.variance) == (0.8, 0.75, 25.0)
    assert tally.z == 2
    assert math.isclose(tally.half_width(), 1.959964 * 5 / 200, rel_tol=1e-6)
    assert quantile(1) < quantile(10) < 3

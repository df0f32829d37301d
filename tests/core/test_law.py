"""A law, on every kind of array; ``Point`` and ``Sparse`` answer as their ``Dense`` twins do."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.core.accept import residual
from foredraft.core.law import Dense, Point, Sparse
from foredraft.core.noise import Noise

from .drafted import dense, sparse
from .exact import law

ARRAYS: dict[str, Any] = {"numpy": np.asarray, "torch": torch.as_tensor, "strict": array_api_strict.asarray}
TOP = 1 - 2**-53  # the largest number Noise gives


@pytest.fixture(params=ARRAYS)
def array(request: pytest.FixtureRequest) -> Any:
    return lambda values, dtype=np.float64: ARRAYS[request.param](np.array(values, dtype=dtype))


@pytest.mark.parametrize(
    ("weights", "uniform", "token"),
    [
        ([0.25, 0.5, 0.25], 0.0, 0),
        ([0.25, 0.5, 0.25], 0.2499, 0),
        ([0.25, 0.5, 0.25], 0.25, 1),  # a token owns its lower edge, not its upper
        ([0.25, 0.5, 0.25], 0.75, 2),
        ([0.25, 0.5, 0.25], TOP, 2),
        ([0.0, 0.0, 1.0], 0.0, 2),  # leading zeros
        ([0.5, 0.0, 0.0, 0.5], 0.5, 3),  # zeros between
        ([0.5, 0.5, 0.0, 0.0], TOP, 1),  # trailing zeros
        ([0.0, 1.0, 0.0], 0.5, 1),
    ],
)
def test_draw(array: Any, weights: list[float], uniform: float, token: int) -> None:
    assert Dense(array(weights)).draw(uniform) == token


def test_single_precision_rounds_the_top_to_one_and_still_draws_what_there_is(array: Any) -> None:
    assert Dense(array([0.5, 0.5, 0.0], np.float32)).draw(TOP) in (0, 1)
    assert Dense(array([0.25, 0.75], np.float32)).draw(TOP) == 1


def test_a_sum_that_is_not_quite_one_is_no_matter(array: Any) -> None:
    assert Dense(array([0.1] * 10 + [0.0])).draw(TOP) == 9
    assert Dense(array([0.3, 0.3])).draw(0.5) == 1


@given(weights=st.lists(st.integers(0, 3), min_size=1, max_size=8).filter(any), uniform=st.floats(0, TOP))
def test_never_a_token_of_probability_zero(weights: list[int], uniform: float) -> None:
    for dtype in (np.float32, np.float64):
        drawn_from = Dense(np.array(weights, dtype=dtype) / sum(weights))
        assert drawn_from[drawn_from.draw(uniform)] > 0


def test_point() -> None:
    point = Point(3)
    assert [point[i] for i in range(5)] == [0, 0, 0, 1, 0]
    assert point.draw(0.0) == point.draw(TOP) == Noise(5).race(point, 0) == 3
    assert [point.fits(v) for v in (3, 4)] == [False, True]
    assert not Point(-1).fits(4)


def test_residual(array: Any) -> None:
    p, q = array([0.5, 0.25, 0.25, 0.0]), array([0.25, 0.5, 0.0, 0.25])
    left = residual(Dense(p), Dense(q))
    assert [float(left[i]) for i in range(4)] == [0.5, 0.0, 0.5, 0.0]
    left = residual(Dense(p), Point(0))
    assert [float(left[i]) for i in range(4)] == [0.0, 0.5, 0.5, 0.0]
    whole = Dense(p)
    assert residual(whole, whole) is whole
    assert residual(Point(1), Dense(q)) == Point(1)


def test_a_law_with_its_own_way_to_a_residual_takes_it() -> None:
    class Own(Dense):
        def less(self, q: Any) -> Any:
            return Point(2)

    assert residual(Own(np.array([0.5, 0.25, 0.25])), Point(0)) == Point(2)


def test_first_takes_the_least_clock_over_probability(array: Any) -> None:
    clocks = np.array([0.5, 0.1, 1.0, 0.3])
    for weights, token in (([0.25] * 4, 1), ([0.5, 0.01, 0.4, 0.09], 0), ([0.3, 0.0, 0.7, 0.0], 2), ([0, 0, 1, 0], 2)):
        assert Dense(array(weights)).first(lambda ids: clocks[ids]) == token  # type: ignore[arg-type]
    assert Dense(array([0.5, 0.0, 0.5])).first(lambda ids: np.ones(len(ids))) == 0  # of two at once the lower


def test_clocks_are_asked_of_possible_tokens_only(array: Any) -> None:
    asked: list[Any] = []

    def clocks(ids: Any) -> Any:
        asked.append(ids.tolist())
        return np.ones(len(ids))

    Dense(array([0.0, 0.5, 0.0, 0.5])).first(clocks)
    Sparse(np.array([0.5, 0.0, 0.5]), np.array([4, 6, 9])).first(clocks)
    assert asked == [[1, 3], [4, 9]]


def test_a_clock_over_next_to_nothing_may_ring_never(array: Any) -> None:
    assert Dense(array([5e-324, 1.0, 1e-310])).first(lambda ids: np.ones(len(ids))) == 1


def test_fits(array: Any) -> None:
    assert [Dense(array([0.5, 0.5])).fits(v) for v in (1, 2, 3)] == [False, True, False]
    assert not Dense(array([[0.5, 0.5]])).fits(2)
    thin = Sparse(np.array([0.5, 0.5]), np.array([0, 4]))
    assert [thin.fits(v) for v in (4, 5, 6)] == [False, True, True]
    assert not Sparse(np.array([0.5, 0.5]), np.array([-1, 2])).fits(5)
    assert not Sparse(np.array([]), np.array([], dtype=int)).fits(5)


def test_numbers_that_are_no_law(array: Any) -> None:
    """They have to sum to one, as nearly as single precision does; none may be negative, and tokens are in order."""
    for wrong in ([0.5, 0.51], [0.5, 0.49], [1.5, -0.5], [np.nan, 1.0], [np.inf, 0.0], [0.0, 0.0]):
        assert not Dense(array(wrong)).fits(2)
        assert not Sparse(np.array(wrong), np.array([0, 1])).fits(2)
    thirds = np.full(30_000, 1 / 30_000)
    assert Dense(array(thirds, np.float32)).fits(30_000)
    assert Dense(np.array([Fraction(1, 3), Fraction(2, 3)])).fits(2)
    assert not Dense(np.array([Fraction(1, 3), Fraction(1, 3)])).fits(2)
    assert not Sparse(np.array([0.5, 0.5]), np.array([1, 0])).fits(2)
    assert not Sparse(np.array([0.5, 0.5]), np.array([1, 1])).fits(2)
    assert not Sparse(np.array([0.5, 0.25, 0.25]), np.array([0, 1])).fits(2)


def test_over_what_another_law_lists() -> None:
    """Before the first of its tokens, between them, after the last; and in order."""
    q = Sparse(np.array([0.25, 0.75]), np.array([2, 4]))
    for ids, wanted in (
        ([0, 2, 3, 4, 5], [0, 0.25, 0, 0.75, 0]),
        ([2, 4], [0.25, 0.75]),
        ([5, 6], [0, 0]),
        ([0], [0]),
        ([4], [0.75]),
    ):
        p = Sparse(np.full(len(ids), 1 / len(ids)), np.array(ids))
        assert q.over(p).tolist() == wanted
        assert Dense(np.array([0, 0, 0.25, 0, 0.75, 0, 0])).over(p).tolist() == wanted
    assert q.over(Dense(np.full(6, 1 / 6))).tolist() == [0, 0, 0.25, 0, 0.75, 0]
    assert Point(4).over(Sparse(np.array([0.5, 0.5]), np.array([3, 4]))).tolist() == [0, 1]
    assert [q[x] for x in range(7)] == [0, 0, 0.25, 0, 0.75, 0, 0]


def spread(of: Any, vocabulary: int) -> list[Any]:
    return [of[x] for x in range(vocabulary)]


laws = st.lists(st.integers(0, 3), min_size=6, max_size=6).filter(any)


@given(p=laws, q=laws, uniform=st.integers(0, 2**53 - 1), seed=st.integers(0, 2**64 - 1))
def test_sparse_is_the_twin_of_dense(p: list[int], q: list[int], uniform: int, seed: int) -> None:
    """Exactly, in rational numbers: draw, race, every residual, and the part of one under the other."""
    full, thin, other, thin_other = dense(law(*p)), sparse(law(*p)), dense(law(*q)), sparse(law(*q))
    assert spread(thin, 7)[:6] == spread(full, 6)
    assert thin[6] == 0
    assert thin.draw(Fraction(uniform, 2**53)) == full.draw(Fraction(uniform, 2**53))  # type: ignore[arg-type]
    assert Noise(seed).race(thin, 3) == Noise(seed).race(full, 3)
    assert thin.fits(6) is full.fits(6) is True
    points = [Point(x) for x in range(6)]
    for guess in (other, thin_other, *points):
        wanted = spread(residual(full, guess if isinstance(guess, Point) else other), 6)
        for target in (full, thin):
            assert guess.over(target).tolist() == [guess[x] for x in target.ids.tolist()]
            assert spread(residual(target, guess), 6) == wanted
    assert residual(thin, thin) is thin
    for point in points:
        assert residual(point, thin_other) is point


def test_a_sparse_residual_stays_sparse() -> None:
    left = residual(sparse(law(1, 0, 2, 1)), sparse(law(0, 1, 1, 0)))
    assert isinstance(left, Sparse)
    assert left.ids.tolist() == [0, 2, 3]
    assert list(left.probabilities) == [Fraction(1, 2), 0, Fraction(1, 2)]


def test_every_kind_of_array_races_alike(array: Any) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(30) / 3)
    for position in range(200):
        noise = Noise(8).at(position)
        assert noise.race(Dense(array(weights)), 0) == noise.race(Dense(weights), 0)

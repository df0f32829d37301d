"""Drawing from a law, on every kind of array."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.core.accept import residual
from foredraft.core.law import Dense, Point

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
        law = Dense(np.array(weights, dtype=dtype) / sum(weights))
        assert law[law.draw(uniform)] > 0


def test_point() -> None:
    law = Point(3)
    assert [law[i] for i in range(5)] == [0, 0, 0, 1, 0]
    assert law.draw(0.0) == law.draw(TOP) == 3


def test_residual(array: Any) -> None:
    p, q = array([0.5, 0.25, 0.25, 0.0]), array([0.25, 0.5, 0.0, 0.25])
    left = residual(Dense(p), Dense(q))
    assert [float(left[i]) for i in range(4)] == [0.5, 0.0, 0.5, 0.0]
    left = residual(Dense(p), Point(0))
    assert [float(left[i]) for i in range(4)] == [0.0, 0.5, 0.5, 0.0]
    whole = Dense(p)
    assert residual(whole, whole) is whole
    assert residual(Point(1), Dense(q)) == Point(1)

"""Logits to law: against transformers' warpers, against a full sort, on every kind of array, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from foredraft.core.distribution import distribution
from foredraft.core.draft import ROOT, Draft
from foredraft.core.law import Dense, Point
from foredraft.core.sampling import SamplingParams, filtered, law_of
from foredraft.core.sequence import TokenSequence
from foredraft.errors import NumericalError, OptionError

MIXTURES = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=1.7, top_k=1),
    SamplingParams(temperature=1.0, top_k=40),
    SamplingParams(temperature=4.0, top_k=150),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=1.0, top_p=1e-9),
    SamplingParams(temperature=1.0, top_p=0.999),
    SamplingParams(temperature=1.2, min_p=0.05),
    SamplingParams(temperature=1.2, min_p=1.0),
    SamplingParams(temperature=0.9, top_k=20, top_p=0.8, min_p=0.1),
]


def logits(seed: int, scale: float = 3.0, width: int = 200) -> Any:
    return np.random.default_rng(seed).normal(0, scale, width)


def texts(*params: SamplingParams) -> list[TokenSequence]:
    return [TokenSequence([0], 9, each) for each in params]


@pytest.mark.parametrize("params", MIXTURES, ids=str)
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_as_transformers_warps(params: SamplingParams, scale: float) -> None:
    """Same order, same law, where no two logits tie."""
    row = logits(7, scale)
    warped = TemperatureLogitsWarper(params.temperature)(None, torch.as_tensor(row)[None])
    if params.top_k:
        warped = TopKLogitsWarper(params.top_k)(None, warped)
    if params.top_p < 1:
        warped = TopPLogitsWarper(params.top_p)(None, warped)
    if params.min_p > 0:
        warped = MinPLogitsWarper(params.min_p)(None, warped)
    wanted = torch.softmax(warped, -1)[0].numpy()
    found = filtered(row, params)
    assert ((found > 0) == (wanted > 0)).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def by_full_sort(row: Any, params: SamplingParams) -> Any:
    """Filter as ``filtered`` does, without its shortcuts; ties at a threshold all stay."""
    row = (row - row.max()) / params.temperature
    if params.top_k:
        row = np.where(row >= np.sort(row)[::-1][min(params.top_k, len(row)) - 1], row, -np.inf)
    law = np.exp(row) / np.exp(row).sum()
    if params.top_p < 1:
        order = np.sort(law)[::-1]
        law = np.where(law >= order[np.argmax(np.cumsum(order) >= params.top_p)], law, 0)
    if params.min_p > 0:
        law = np.where(law >= params.min_p * law.max(), law, 0)
    return law / law.sum()


values = st.one_of(st.integers(-40, 5).map(float), st.just(-math.inf), st.floats(-60, 5))


@given(
    row=arrays(np.float64, st.integers(1, 40), elements=values).filter(lambda r: math.isfinite(r.max())),
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([1e-12, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_shortcuts_equal_a_full_sort(row: Any, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """Ties and ruled-out tokens included."""
    params = SamplingParams(temperature, top_k, top_p, min_p)
    np.testing.assert_array_equal(filtered(row, params), by_full_sort(row, params))


def test_ties_at_a_threshold_all_stay() -> None:
    row = np.log(np.array([0.4, 0.2, 0.2, 0.2]))
    for params in (SamplingParams(1.0, top_k=2), SamplingParams(1.0, top_p=0.5), SamplingParams(1.0, min_p=0.5)):
        np.testing.assert_allclose(filtered(row, params), [0.4, 0.2, 0.2, 0.2])


def test_a_nucleus_closes_with_the_token_that_fills_it() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125]))
    assert (filtered(row, SamplingParams(1.0, top_p=0.5)) > 0).tolist() == [True, False, False, False]
    assert (filtered(row, SamplingParams(1.0, top_p=0.501)) > 0).tolist() == [True, True, False, False]
    assert (filtered(row, SamplingParams(1.0, top_p=1e-300)) > 0).tolist() == [True, False, False, False]
    assert (filtered(np.zeros(7), SamplingParams(1.0, top_p=1e-300)) > 0).all()


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-20, 1e308])
def test_extreme_temperatures(temperature: float) -> None:
    """From the smallest to the largest number: a law, never a warning or a NaN."""
    law = filtered(np.array([-np.inf, -3.0, 2.0, 2.5]), SamplingParams(temperature))
    wanted = [0, 1 / 3, 1 / 3, 1 / 3] if temperature > 1 else [0, 0, 0, 1]
    np.testing.assert_allclose(law, wanted, atol=1e-15)


# greedy is left out of the strict arrays: it takes its rows off the device with ``tolist``, which numpy, torch, JAX and
# CuPy all have and the standard has not
KINDS = [("torch", params) for params in (SamplingParams(), *MIXTURES)] + [("strict", params) for params in MIXTURES]


@pytest.mark.parametrize(("name", "params"), KINDS, ids=str)
def test_every_kind_of_array(name: str, params: SamplingParams) -> None:
    kind = {"torch": torch.as_tensor, "strict": array_api_strict.asarray}[name]
    table = np.stack([logits(seed) for seed in range(5)])
    drafts = [Draft.chain([1, 2]), Draft()]
    mixed = [params, SamplingParams() if name == "torch" else params]
    here, there = (distribution(x, texts(*mixed), drafts) for x in (table, kind(table)))
    for of_node, same, nodes in zip(here, there, ([ROOT, 0, 1], [ROOT]), strict=True):
        for node in nodes:
            p, twin = of_node(node), same(node)
            for uniform in (0.0, 0.3, 0.77, 1 - 2**-53):
                assert p.draw(uniform) == twin.draw(uniform)
            if isinstance(p, Dense):
                assert isinstance(twin, Dense)
                again = [float(twin[i]) for i in range(len(p.probabilities))]
                np.testing.assert_allclose(again, p.probabilities, rtol=1e-12)
            else:
                assert p == twin


def test_rows_are_packed_ragged() -> None:
    """A sequence's first row follows its committed tokens; one row a guess follows that."""
    table = np.eye(7)[[3, 1, 4, 0, 5, 2, 6]] * 9
    drafts = [Draft.chain([1]), Draft(), Draft((1, 2), (-1, -1)), Draft()]
    rows = [[3, 1], [4], [0, 5, 2], [6]]
    cold = distribution(table, texts(*[SamplingParams()] * 4), drafts)
    warm = distribution(table, texts(*[SamplingParams(1.0)] * 4), drafts)
    for of_node, soft, wanted in zip(cold, warm, rows, strict=True):
        for node, token in enumerate(wanted, start=-1):
            assert of_node(node) == Point(token)
            law = soft(node)
            assert isinstance(law, Dense)
            assert law.probabilities.argmax() == token


def test_law_of_one_row() -> None:
    assert law_of(np.array([0.0, 2.0, 1.0]), SamplingParams()) == Point(1)
    assert law_of(np.array([0.0, 2.0, 2.0]), SamplingParams()) == Point(1)  # the first of the largest


def test_single_precision_logits_become_double_laws() -> None:
    law = filtered(logits(1).astype(np.float32), SamplingParams(1.0))
    assert law.dtype == np.float64
    assert abs(law.sum() - 1) < 1e-12


def test_a_device_without_doubles_gets_singles() -> None:
    """Apple's GPUs have none; a stand-in for the row says it lies on one."""

    class Row(np.ndarray[Any, Any]):
        @property
        def device(self) -> Any:
            return torch.device("mps")

    law = filtered(logits(1).astype(np.float32).view(Row), SamplingParams(1.0, top_p=0.9))
    assert law.dtype == np.float32
    np.testing.assert_allclose(law, filtered(logits(1), SamplingParams(1.0, top_p=0.9)), rtol=1e-4)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(1.0), SamplingParams(1.0, 2, 0.5, 0.1)], ids=str)
@pytest.mark.parametrize("bad", [[0.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf], [math.nan, math.inf]])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_logits_without_a_finite_maximum(params: SamplingParams, bad: list[float], kind: Any) -> None:
    """Found out when the law is asked for, so only in the sequence that has them."""
    laws = distribution(kind(np.array([[0.0, 1.0], bad])), texts(params, params), [Draft(), Draft()])
    assert laws[0](ROOT).draw(0.99) == 1
    for _ in range(2):  # a fault is not remembered as a law
        with pytest.raises(NumericalError, match=r"largest is (nan|inf|-inf)"):
            laws[1](ROOT)


def test_a_law_is_worked_out_when_asked_for_and_then_remembered() -> None:
    """So that only the accepted path is paid for, once. The hook gets the shaped row and the sequence's own params."""
    asked: list[Any] = []

    def law(row: Any, params: SamplingParams) -> Any:
        asked.append((row.tolist(), params))
        return law_of(row, params)

    params = SamplingParams(1.0)
    sequence = TokenSequence([0], 9, params, law=law, shaping=lambda row, sequence, path: row + len(path))
    laws = distribution(np.arange(6.0).reshape(3, 2), [sequence], [Draft.chain([1, 0])])[0]
    assert asked == []
    assert laws(1) is laws(1)
    assert asked == [([6.0, 7.0], params)]
    assert isinstance(laws(ROOT), Dense)
    assert asked[1:] == [([0.0, 1.0], params)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", v) for v in (-1.0, -1e-9, math.nan, math.inf)),
        *(("top_k", v) for v in (-1, -(10**9))),
        *(("top_p", v) for v in (0.0, -0.1, 1.0001, 2.0, math.nan, math.inf)),
        *(("min_p", v) for v in (-0.1, 1.1, math.nan)),
    ],
)
def test_out_of_range(name: str, value: float) -> None:
    with pytest.raises(OptionError, match=f"{name} must be"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingParams().greedy
    assert SamplingParams(0.0, top_k=5).greedy
    assert not SamplingParams(5e-324).greedy

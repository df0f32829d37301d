"""The native laws, draws, races and log-probabilities against core's, and each instruction set against the others."""

from __future__ import annotations

import ctypes
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from foredraft.core.accept import residual
from foredraft.core.law import Dense, Law, Point, Sparse
from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams, filtered, law_of
from foredraft.core.sequence import TokenSequence
from foredraft.engine.watches.logprobs import logprobs
from foredraft.errors import ModelError, NumericalError, OptionError
from foredraft.models.native import sampling as native_sampling
from foredraft.models.native.sampling import NativeLaw, NativeNoise, native_law, native_logprobs, sampler
from foredraft.native.library import LIBRARY, library
from foredraft.native.structs import NativePlace
from tests.core.toys import EagerPlanner, Table, ToyDrafter, ToyTarget, generate, sampled_chain

if not LIBRARY.exists():
    pytest.skip("the native library is not built", allow_module_level=True)

SIZES = (1, 2, 15, 16, 17, 127, 128, 129, 1000, 49152, 151936)
MIXTURES = [
    SamplingParams(1.0),
    SamplingParams(0.8, top_p=0.95),
    SamplingParams(1.7, top_k=1),
    SamplingParams(1.0, top_k=40),
    SamplingParams(4.0, top_k=700),
    SamplingParams(1.0, top_p=1e-9),
    SamplingParams(1.0, top_p=0.999),
    SamplingParams(1.2, min_p=0.05),
    SamplingParams(1.2, min_p=1.0),
    SamplingParams(0.9, top_k=20, top_p=0.8, min_p=0.1),
    SamplingParams(1.3, top_k=5000, top_p=0.99, min_p=0.001),
]
TOP = 1 - 2**-53  # the largest number Noise gives
Array = Any


def rows_of(seed: int, size: int, dtype: Any = np.float32, scale: float = 3.0) -> Array:
    return np.random.default_rng(seed).normal(0, scale, size).astype(dtype)


def native(row: Array, params: SamplingParams) -> NativeLaw:
    law = native_law(row, params)
    assert isinstance(law, NativeLaw)
    return law


def close(row: Array, params: SamplingParams) -> bool:
    """Whether rounding may decide what a filter keeps: a cumulative sum, or a ratio, within 1e-12 of its threshold."""
    kept = np.sort(filtered(row, SamplingParams(params.temperature, params.top_k)))[::-1]
    near = np.abs(np.cumsum(kept) - params.top_p).min() if params.top_p < 1 else 1.0
    return bool(min(near, np.abs(kept / kept[0] - params.min_p).min() if params.min_p > 0 else 1.0) < 1e-12)


def assert_same(row: Array, params: SamplingParams) -> None:
    wanted, law = filtered(row, params), native(row, params)
    found = law.dense()
    if not ((found > 0) == (wanted > 0)).all():
        assert close(row, params)
        return
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-300)
    np.testing.assert_array_equal(law.ids, np.flatnonzero(wanted))
    np.testing.assert_array_equal(law.probabilities, found[law.ids])
    assert all(law[token] == found[token] for token in {0, len(row) // 2, len(row) - 1, int(law.ids[0])})


@pytest.mark.parametrize("params", MIXTURES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_laws_of_every_size(size: int, params: SamplingParams) -> None:
    for seed, (dtype, scale) in enumerate(itertools.product((np.float32, np.float64), (0.3, 3.0))):
        assert_same(rows_of(seed, size, dtype, scale), params)


values = st.one_of(st.integers(-40, 5).map(float), st.just(-math.inf), st.floats(-60, 5, width=32))


@pytest.mark.slow
@settings(max_examples=200)
@given(
    row=arrays(np.float64, st.integers(1, 300), elements=values).filter(lambda r: math.isfinite(r.max())),
    single=st.booleans(),
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    top_k=st.integers(0, 310),
    top_p=st.sampled_from([1e-12, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-6, 0.1, 1.0]),
)
def test_any_law(row: Array, single: bool, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """Ties, ruled-out tokens and every combination of filters."""
    assert_same(row.astype(np.float32) if single else row, SamplingParams(temperature, top_k, top_p, min_p))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_heavy_ties(dtype: Any) -> None:
    """Four values over many blocks: whole levels stay or go."""
    row = np.random.default_rng(3).integers(-3, 1, 5000).astype(dtype)
    for params in MIXTURES:
        assert_same(row, params)


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-20, 1e-3, 1e308])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_extreme_temperatures(temperature: float, top_p: float) -> None:
    assert_same(np.array([-np.inf, -3.0, 2.0, 2.5]), SamplingParams(temperature, top_p=top_p))


def test_what_is_small_is_kept_as_core_keeps_it() -> None:
    """Weights down to the smallest number there is, and 0 below."""
    row = -np.arange(0.0, 800.0, 0.37)
    wanted, found = filtered(row, SamplingParams(1.0)), native(row, SamplingParams(1.0)).dense()
    normal = wanted > 1e-300
    np.testing.assert_allclose(found[normal], wanted[normal], rtol=1e-12)
    np.testing.assert_allclose(found[~normal], wanted[~normal], rtol=0, atol=1e-310)
    assert (found > 0).sum() == (wanted > 0).sum()


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(1.0), SamplingParams(1.0, 2, 0.5, 0.1)], ids=str)
@pytest.mark.parametrize(
    "bad",
    [
        [0.0, math.nan],
        [math.nan, 0.0],
        [math.inf, 0.0],
        [-math.inf, -math.inf],
        [math.nan, math.inf],
        [*[0.0] * 300, math.nan, *[1.0] * 300],
        [math.nan, *[1.0] * 600],
    ],
    ids=str,
)
def test_without_a_finite_maximum(params: SamplingParams, bad: list[float]) -> None:
    for row in (np.array(bad), np.array(bad, np.float32), torch.tensor(bad)):
        with pytest.raises(NumericalError) as wanted:
            law_of(row, params)
        with pytest.raises(NumericalError) as found:
            native_law(row, params)
        assert str(found.value) == str(wanted.value)


def test_any_array() -> None:
    """Steps, other types and torch come out as the row they hold."""
    row, params = rows_of(1, 300), SamplingParams(0.8, top_p=0.95)
    wanted = native(row, params).dense()
    table = np.stack([row, row]).T
    for same in (table[:, 1], torch.as_tensor(row), torch.as_tensor(row.astype(np.float64)), row[::-1][::-1]):
        np.testing.assert_array_equal(native(same, params).dense(), wanted)
    fixed = row.copy()
    fixed.flags.writeable = False
    for same in (fixed, row.astype(">f4"), row.astype(">f8")):
        np.testing.assert_array_equal(native(same, params).dense(), wanted)
    half = torch.as_tensor(row).to(torch.bfloat16)
    np.testing.assert_array_equal(native(half, params).dense(), native(half.float().numpy(), params).dense())
    assert native_law(row, SamplingParams()) == Point(int(row.argmax()))
    assert native(row, params).fits(300)
    assert not native(row, params).fits(301)


@pytest.mark.parametrize("params", MIXTURES, ids=str)
def test_draws_are_cores(params: SamplingParams) -> None:
    uniforms = [0.0, TOP, *np.random.default_rng(5).random(200).tolist()]
    for size in (1, 2, 17, 128, 3000):
        row = rows_of(size, size)
        wanted, law = law_of(row, params), native(row, params)
        assert [law.draw(u) for u in uniforms] == [wanted.draw(u) for u in uniforms]


@pytest.mark.parametrize(("choice", "position"), [(0, 0), (3, 12345), (2**32 - 1, 2**32 - 1)])
@pytest.mark.parametrize("seed", [0, 2**64 - 1, 0x299F31D0A4093822])
def test_the_clocks_are_cores_to_the_bit(seed: int, choice: int, position: int) -> None:
    gaps = np.empty(128)
    for block in (0, 1, 1186):
        library().fd_gaps(NativePlace(seed, position, choice), block, gaps.ctypes.data)
        ids = np.arange(block * 128, (block + 1) * 128)
        np.testing.assert_array_equal(-np.log(1 - gaps), Noise(seed, choice).clocks(ids, position))
        assert (np.diff(np.sort(gaps)) > 0).all()


@pytest.mark.parametrize("params", MIXTURES, ids=str)
def test_races_have_cores_winners(params: SamplingParams) -> None:
    for seed in range(300):
        row = rows_of(seed, (1, 2, 17, 128, 129, 700)[seed % 6], (np.float32, np.float64)[seed % 2], 1 + seed % 4)
        row[1:][:: 1 + seed % 5] = -np.inf if seed % 3 else 1.0
        noise, twin = Noise(seed << 40, seed % 2, seed, True), NativeNoise(seed << 40, seed % 2, seed, True)
        wanted, law = law_of(row, params), native(row, params)
        assert [twin.race(law, depth) for depth in range(3)] == [noise.race(wanted, depth) for depth in range(3)]


@pytest.mark.parametrize("size", [49152, 151936])
def test_long_races(size: int) -> None:
    for seed, params in enumerate((SamplingParams(1.0), SamplingParams(0.8, top_p=0.95), SamplingParams(1.0, 50))):
        row = rows_of(seed, size)
        noise, twin, law = Noise(seed, coupled=True), NativeNoise(seed, coupled=True), native(row, params)
        for place in range(5):
            assert twin.at(place).guess(law, 0, 2) == noise.at(place).guess(law_of(row, params), 0, 2)


def test_races_draw_the_law() -> None:
    """Chi-square at 1e-6, on a law with a head, a tail and ties, over places and over seeds."""
    row = np.array([3.0, 2, 2, 1, 0.5, 0, 0, -1, -1.5, -2, -0.3, 1.2, 0.1, -np.inf, 0.7, 1.9])
    n, threshold = 40000, 57.5  # chi-square with 14 degrees of freedom, isf(1e-6) = 56.5
    for params in (SamplingParams(1.0), SamplingParams(1.5, top_p=0.9)):
        law, wanted = native(row, params), filtered(row, params)
        for places in (range(n), [0]):
            seeds = range(n) if len(places) == 1 else [11]
            won = [NativeNoise(seed, 0, place).race(law, 0) for place in places for seed in seeds]
            counts = np.bincount(won, minlength=len(row))
            possible = wanted > 0
            assert counts[~possible].sum() == 0
            expected = n * wanted[possible]
            assert ((counts[possible] - expected) ** 2 / expected).sum() < threshold


def test_noise_is_cores_elsewhere() -> None:
    """Laws of other kinds race by the base's rule, and what a race does not touch is the same."""
    noise, twin = Noise(7, 1, 5, True), NativeNoise(7, 1, 5, True)
    dense = law_of(rows_of(2, 50), SamplingParams(1.0))
    for law in (dense, Sparse(np.array([0.5, 0.5]), np.array([3, 9])), Point(4)):
        assert twin.race(law, 1) == noise.race(law, 1)
    assert type(twin.at(9)) is NativeNoise
    assert (twin.test(3), twin.last()) == (noise.test(3), noise.last())
    beyond = NativeNoise(7, 2**32, 0, True)
    assert beyond.race(native(rows_of(2, 50), SamplingParams(1.0)), 0) == Noise(7, 2**32, 0, True).race(dense, 0)


@pytest.mark.parametrize("p_params", MIXTURES[:4] + MIXTURES[-2:], ids=str)
@pytest.mark.parametrize("q_params", [SamplingParams(1.0), SamplingParams(0.7, top_k=12)], ids=str)
def test_residuals(p_params: SamplingParams, q_params: SamplingParams) -> None:
    """Against a law of each kind, one after another as siblings leave them, and what is drawn from it."""
    for size in (2, 40, 300, 1500):
        p_row, q_row = rows_of(size, size), rows_of(size, size) + rows_of(9, size, scale=0.5)
        q = law_of(q_row, q_params)
        assert isinstance(q, Dense)
        some = np.sort(np.random.default_rng(1).choice(size, size // 2, replace=False))
        sparse = Sparse(q.probabilities[some] / q.probabilities[some].sum(), some)
        likely, other = Point(int(p_row.argmax())), Point(size - 1)
        chains: list[list[tuple[Law, Law]]] = [
            [(q, native(q_row, q_params))],
            [(likely, likely)],
            [(likely, likely), (other, other)],
            [(q, native(q_row, q_params)), (likely, likely)],
            [(likely, likely), (q, native(q_row, q_params))],
            [(q, native(q_row, q_params)), (q, native(q_row, q_params))],
            [(q, q), (likely, likely)],
            [(sparse, sparse)],
        ]
        for chain in chains:
            wanted: Law = law_of(p_row, p_params)
            found: Law = native(p_row, p_params)
            for theirs, ours in chain:
                wanted, found = residual(wanted, theirs), residual(found, ours)
            dense = [float(wanted[token]) for token in range(size)]
            np.testing.assert_allclose([float(found[token]) for token in range(size)], dense, rtol=1e-9, atol=1e-13)
            for uniform in (0.0, 0.123, 0.5, 0.9):
                assert found.draw(uniform) == wanted.draw(uniform)


def test_a_native_law_as_the_drafts() -> None:
    """It stands in for core's on either side of a residual."""
    p_row, q_row, params = rows_of(1, 200), rows_of(2, 200), SamplingParams(0.9, top_k=50)
    p, q = law_of(p_row, params), native(q_row, params)
    assert isinstance(p, Dense)
    wanted = residual(p, law_of(q_row, params))
    found = residual(p, q)
    np.testing.assert_allclose([found[i] for i in range(200)], [wanted[i] for i in range(200)], rtol=1e-12)
    np.testing.assert_array_equal(q.over(Sparse(np.array([0.5, 0.5]), np.array([3, 9]))), q.dense()[[3, 9]])


def test_nothing_left_is_the_law_itself() -> None:
    law = native(np.array([1.0, 2.0, 0.0]), SamplingParams(1.0, top_k=1))
    assert residual(law, Point(1)) is law
    whole = native(rows_of(1, 300), SamplingParams(1.0))
    assert residual(whole, native(rows_of(1, 300), SamplingParams(1.0))) is whole


@pytest.mark.parametrize("params", MIXTURES, ids=str)
def test_every_instruction_set_gives_the_same_bits(params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seen = native_sampling._struct_of, []
    for narrow in range(3):

        def narrowed(*arguments: Any, narrow: int = narrow) -> Any:
            struct, keep = plain(*arguments)
            struct.narrow = narrow
            return struct, keep

        monkeypatch.setattr(native_sampling, "_struct_of", narrowed)
        found: list[Any] = []
        for size, dtype in itertools.product((5, 1000, 20000), (np.float32, np.float64)):
            law = native(rows_of(size, size, dtype), params)
            left = residual(law, native(rows_of(1, size, dtype), params))
            found += [law.dense().tobytes(), law.draw(0.3), law.race(size, 3, 0), left.draw(0.6), left[2]]
        seen.append(found)
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("size", [1, 2, 20, 129, 49152])
@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_log_probabilities(size: int, top: int) -> None:
    """With ties, against their twin and torch."""
    row = rows_of(size, size).round(1)
    row[size // 3 :: 7] = -np.inf if size > 1 else 0.0
    for array in (row, row.astype(np.float64), torch.as_tensor(row)):
        for token in (0, size // 3, size - 1):
            (value, tops), (wanted, others) = native_logprobs(array, token, top), logprobs(array, token, top)
            np.testing.assert_allclose(value, wanted, rtol=1e-12, atol=1e-12)
            assert [i for i, _ in tops] == [i for i, _ in others]
            np.testing.assert_allclose([x for _, x in tops], [x for _, x in others], rtol=1e-12, atol=1e-12)
            exact = torch.log_softmax(torch.as_tensor(row).double(), -1).numpy()
            np.testing.assert_allclose(value, exact[token], rtol=1e-12, atol=1e-12)
            order = sorted(range(size), key=lambda i: (-row[i], i))[:top]
            assert [i for i, _ in tops] == order


@pytest.mark.parametrize("of", [logprobs, native_logprobs])
def test_log_probabilities_that_cannot_be(of: Any) -> None:
    for token, top in ((-1, 0), (3, 0), (0, -1)):
        with pytest.raises(OptionError, match="among 3 logits"):
            of(np.zeros(3), token, top)
    with pytest.raises(NumericalError, match="largest is nan"):
        of(np.array([0.0, math.nan]), 0, 1)


def test_who_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampler() == (native_law, NativeNoise, "native", None)

    def missing() -> Any:
        raise ModelError("it was not built")

    monkeypatch.setattr(native_sampling, "library", missing)
    assert sampler() == (law_of, Noise, "python", "it was not built")


def test_what_is_not_there_is_no_crash() -> None:
    struct, keep = native_sampling._struct_of(rows_of(1, 5), 1.0, 0, 1.0, 0.0)
    struct.size = 0
    assert library().fd_law_make(ctypes.byref(struct)) == 1
    del keep
    law = native(rows_of(1, 5), SamplingParams(1.0))
    assert law[5] == law[-1] == 0
    assert residual(law, Point(-3)) is residual(law, Point(5)) is law


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("params", [*MIXTURES[:2], MIXTURES[9]], ids=str)
def test_whole_texts_are_cores(params: SamplingParams, coupled: bool) -> None:
    """Through the rounds themselves: drawn drafts, refusals, residuals and bonuses, in either rule."""
    table = Table.random(3, 300)
    other = Table(table.rows + np.random.default_rng(4).normal(0, 0.5, table.rows.shape))
    texts = {}
    for name, law, noise in (("core", law_of, Noise), ("native", native_law, NativeNoise)):
        answers = [TokenSequence([i], 40, params, noise(i, coupled=coupled), law=law) for i in range(6)]
        drafter = ToyDrafter(sampled_chain(lambda path, law=law: law(other(path), params), 4))  # type: ignore[misc]
        generate(answers, ToyTarget(table), drafter, EagerPlanner(4))
        assert 0 < sum(outcome.accepted for outcome in drafter.seen) < sum(len(o.draft) for o in drafter.seen)
        texts[name] = [answer.tokens for answer in answers]
    assert texts["native"] == texts["core"]

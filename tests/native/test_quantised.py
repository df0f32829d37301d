"""Integer products of every tier: against the exact sums, and bit for bit in the order of floats that they promise."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from .library import LIBRARY, SOURCES, aligned, at, probed
from .quantised_blocks import (
    CELL,
    KINDS,
    LANES,
    Array,
    Kind,
    Weights,
    pack,
    padded,
    product,
    quantised,
    random_blocks,
    row_bytes,
    take_apart,
    values_of,
)

FUSED = ("amx", "avx512-vnni", "avx-vnni", "avx2")
TIERS = (*FUSED, "portable")
EMULATED = ("amx emulated", "amx emulated, portable")
BLOCKS = 3

_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_matmul = ctypes.CFUNCTYPE(None, _int, _pointer, _size, _size, _pointer, _size, _int, _pointer, _size, ctypes.c_ssize_t)


class BlockKernels(ctypes.Structure):
    """The struct of quantised.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("matmul", _matmul),
        ("quantise", ctypes.CFUNCTYPE(None, _pointer, _size, _size, _size, _size, _pointer)),
    )


@dataclass(frozen=True, slots=True)
class Tier:
    name: str
    kernels: BlockKernels
    fused: bool  # whether a product and a sum are rounded once


def kernels_of(library: Path, tier: str) -> BlockKernels | None:
    find = ctypes.CDLL(str(library)).fd_block_kernels
    find.restype, find.argtypes = _pointer, [ctypes.c_char_p]
    found = find(tier.encode())
    return BlockKernels.from_address(found) if found else None


@cache
def found_in(tier: str) -> BlockKernels | None:
    """A tier of the library, if this machine has it."""
    if not LIBRARY.exists() or (tier == "amx" and probed("amx") != 1):
        return None
    return kernels_of(LIBRARY, tier)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Path]:
    """The amx tier over tiles in plain C++, with the vector steps of AVX512, where there are any, and portable ones."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if not compiler or sys.platform == "win32":
        pytest.skip("no C++ compiler")
    here = Path(__file__).parent
    # no -O2: 64 tiles for every kind are a lot to optimise, and bits do not depend on it
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-w", f"-I{here}"]
    vnni = ["-mavx2", "-mfma", "-mf16c", *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni"))]
    built = {}
    for name, base, more in ((EMULATED[0], "avx512", vnni), (EMULATED[1], "portable", [])):
        if base == "avx512" and found_in("avx512-vnni") is None:
            continue
        target = tmp_path_factory.mktemp("amx") / f"{base}.so"
        sources = [str(here / "amx_quantised_emulated.cpp"), str(SOURCES / f"quantised_{base}.cpp")]
        subprocess.run([*compiler.split(), *flags, *more, *sources, "-o", str(target)], check=True)
        built[name] = target
    return built


@pytest.fixture(
    scope="module", params=[*TIERS, *(pytest.param(name, marks=pytest.mark.slow, id=name) for name in EMULATED)]
)
def tier(request: pytest.FixtureRequest) -> Tier:
    name = request.param
    if name in EMULATED:
        library = request.getfixturevalue("emulated").get(name)
        found = kernels_of(library, "amx") if library else None
    else:
        found = found_in(name)
    if found is None:
        pytest.skip(f"this machine has no {name}")
    return Tier(name, found, name in FUSED or name == EMULATED[0])


class Product:
    """Packed weights, coded inputs, and what a tier makes of them."""

    def __init__(self, weights: Weights, codes: Array, scales: Array) -> None:
        self.kind, whole = weights.kind, padded(weights)
        more = whole.codes.shape[1] - codes.shape[1]
        self.weights = whole
        self.codes = np.pad(codes, [(0, 0), (0, more), (0, 0)])
        self.scales = np.pad(scales, [(0, 0), (0, more)])
        self.cells = whole.codes.shape[1]
        packed = pack(weights)
        self.w = aligned(packed.shape, np.uint8)
        self.w[:] = packed
        length = (self.cells * (CELL + 20) + 63) // 64 * 64
        self.x = aligned((len(codes), length + 64), np.uint8)  # a stride wider than the inputs
        self.x[:] = row_bytes(self.codes, self.scales, length + 64)

    def __call__(self, tier: Tier, rows: slice = slice(None), blocks: slice = slice(None), far: int = 0) -> Array:
        w, x = self.w[blocks], self.x[rows]
        y = aligned((len(x) + 1, len(w) * LANES + 16), np.float32)
        y[:] = 7.0
        tier.kernels.matmul(
            self.kind.number, at(w), len(w), self.cells, at(x), x.strides[0], len(x), at(y), y.shape[1], far
        )
        assert (y[-1] == 7.0).all(), "a row that is not there was written"
        assert (y[:, -16:] == 7.0).all(), "a block that is not there was written"
        return y[:-1, :-16]

    def expected(self, fused: bool) -> Array:
        return product(self.weights, self.codes, self.scales, fused)


def same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())


@cache
def random_product(kind: Kind, many: int, rows: int = 64) -> tuple[Product, Array, Array]:
    """A product of `many` blocks of the file, its weights as the reference reader has them, and its inputs."""
    inputs = many * CELL * kind.cells
    raw = random_blocks(kind, BLOCKS * LANES, inputs, seed=many)
    x = (np.random.default_rng(many).standard_normal((rows, inputs)) * 3).astype(np.float32)
    return Product(take_apart(kind, raw), *quantised(x)), values_of(kind, raw), x


SHAPES = [(kind, many) for kind in KINDS for many in ((1, 3) if kind.wide else (1, 2, 5, 18))]
shapes = pytest.mark.parametrize(("kind", "many"), SHAPES, ids=[f"{kind}-{many}" for kind, many in SHAPES])
kinds = pytest.mark.parametrize("kind", KINDS, ids=str)


@shapes
def test_weights_are_taken_apart_as_the_reference_reader_does(kind: Kind, many: int) -> None:
    made, values, _ = random_product(kind, many)
    mine = made.weights.values()[:, : values.shape[1]]
    assert np.abs(mine - values).max() <= 2e-7 * np.abs(values).max()


@shapes
def test_products(tier: Tier, kind: Kind, many: int) -> None:
    made, values, x = random_product(kind, many)
    y = made(tier)
    assert same(y, made.expected(tier.fused))
    # and as anybody would do it: the dequantised weights by the dequantised inputs, but for what floats lose on the way
    codes, scales = made.codes[:, : x.shape[1] // CELL], made.scales[:, : x.shape[1] // CELL]
    inputs = (codes * scales.astype(np.float64)[..., None]).reshape(x.shape)
    assert (np.abs(inputs - x) <= 0.51 * np.repeat(scales, CELL, 1)).all()
    want, size = inputs @ values.astype(np.float64).T, np.abs(inputs) @ np.abs(values.astype(np.float64)).T
    assert (np.abs(y - want) <= 1e-6 * size + 1e-30).all()


@shapes
def test_a_row_alone_is_the_row_among_others(tier: Tier, kind: Kind, many: int) -> None:
    made, _, _ = random_product(kind, many)
    alone = np.concatenate([made(tier, slice(r, r + 1)) for r in range(64)])
    for rows in range(1, 65):
        assert same(made(tier, slice(64 - rows, 64)), alone[64 - rows :]), rows


@kinds
def test_blocks_together_are_the_blocks_apart(tier: Tier, kind: Kind) -> None:
    made, _, _ = random_product(kind, 1 if kind.wide else 5)
    for rows in (1, 4, 21, 64):
        whole = made(tier, slice(0, rows))
        for first in range(BLOCKS):
            for end in range(first + 1, BLOCKS + 1):
                part = made(tier, slice(0, rows), slice(first, end), far=first * 4096)
                assert same(part, whole[:, first * LANES : end * LANES])


@kinds
def test_tiers_that_fuse_have_the_same_bits(kind: Kind) -> None:
    made, _, _ = random_product(kind, 3)
    found = {name: made(Tier(name, kernels, True)) for name in FUSED if (kernels := found_in(name))}
    if len(found) < 2:
        pytest.skip("this machine has fewer than two of them")
    first, *others = found.values()
    assert all(same(first, other) for other in others)


def extreme(kind: Kind, many: int, low: bool, ones: Array) -> Weights:
    """Every code the lowest there is, or the highest where `ones` says; every scale 1."""
    shape = (LANES, many * kind.cells)
    edges = (-128, 127) if kind.bits == 8 else (0, 2**kind.bits - 1)
    codes = np.broadcast_to(np.where(ones & (not low), edges[1], edges[0]), (*shape, CELL))
    signs = np.ones((*shape, kind.parts), np.int64)
    one = np.ones(shape, np.float16)
    return Weights(kind, one, one if kind.minimum else 0 * one, codes, signs, np.ones(shape, np.int64))


@kinds
@pytest.mark.parametrize("pattern", ["all", "even", "pairs", "fours"])
def test_the_largest_codes_do_not_saturate(tier: Tier, kind: Kind, pattern: str) -> None:
    i = np.arange(CELL)
    chosen = {"all": i >= 0, "even": i % 2 == 0, "pairs": i % 4 < 2, "fours": i % 8 < 4}[pattern]
    many = 1 if kind.wide else 4
    half = i < 16
    inputs, pairs = (i >= 0, i < 0, chosen, ~chosen, half, ~half), ((127, -127), (127, 0), (0, -127))
    rows = np.array([np.where(these, high, low) for these in inputs for high, low in pairs])
    codes = np.repeat(rows[:, None], many * kind.cells, 1)
    scales = np.ones(codes.shape[:2], np.float32)
    for low in (True, False):
        weights = extreme(kind, many, low, chosen)
        made = Product(weights, codes, scales)
        want = codes.reshape(len(codes), -1).astype(np.float64) @ weights.values().T  # below 2^24: exact in f32
        for some in (slice(0, 1), slice(2, 6), slice(None)):
            assert (made(tier, some) == want[some]).all()


@kinds
def test_a_row_that_is_no_number_spoils_no_other(tier: Tier, kind: Kind) -> None:
    made, _, x = random_product(kind, 2)
    x = x[:40].copy()
    clean = made(tier, slice(0, 40))
    x[7, 3], x[21, CELL] = np.nan, -np.inf
    weights = take_apart(kind, random_blocks(kind, BLOCKS * LANES, x.shape[1], seed=2))
    y = Product(weights, *quantised(x))(tier)
    assert np.isnan(y[[7, 21]]).all()
    others = np.setdiff1d(np.arange(40), [7, 21])
    assert same(y[others], clean[others])


def coded(tier: Tier, values: Array, cells: int) -> Array:
    """One row as the tier codes it, bytes."""
    row, held = aligned(((cells * (CELL + 20) + 63) // 64 * 64,), np.uint8), values.astype(np.float32)
    tier.kernels.quantise(at(held), len(held), 0, cells, cells, at(row))
    return row[: cells * (CELL + 20)]


def same_row(row: Array, want: Array, cells: int) -> bool:
    """Whether all bytes agree, where a NaN is as good as another."""
    split = cells * CELL
    floats = slice(split, split + 8 * cells)
    a, b = row[floats].view(np.float32), want[floats].view(np.float32)
    bits = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
    apart = np.delete(row, np.r_[floats]) == np.delete(want, np.r_[floats])
    return bool(bits.all() and apart.all())


def edges() -> dict[str, Array]:
    rng = np.random.default_rng(3)
    halves = np.arange(-16, 16) + 0.5
    halves[0] = 127.0
    special = rng.standard_normal((6, CELL)).astype(np.float32)
    special[0, 5], special[1, 31], special[2, 0], special[3, :2] = np.nan, np.inf, -np.inf, (np.nan, np.inf)
    return {
        "normal": rng.standard_normal(64 * CELL),
        "outliers": rng.standard_normal(8 * CELL) * np.where(rng.random(8 * CELL) < 0.02, 1000, 1),
        "sizes": rng.standard_normal(64 * CELL) * np.repeat(10.0 ** np.linspace(-37, 37, 64), CELL),
        "halves": np.concatenate([halves, -halves, halves * 2.0**-20, halves * 2.0**90]),
        "signs": np.concatenate([np.full(CELL, 127.0), np.full(CELL, -127.0), np.full(CELL, -3e38)]),
        "zeros": np.concatenate([np.zeros(CELL), np.full(CELL, -0.0)]),
        "subnormal": np.concatenate([np.full(CELL, 1e-40), np.full(CELL, -1e-45), np.full(CELL, 1e-30)]),
        "special": special.reshape(-1),
        **{f"{n} values": rng.standard_normal(n) for n in (1, 15, 16, 17, 31, 33, 100)},
    }


@pytest.mark.parametrize("name", list(edges()))
def test_inputs_are_coded(tier: Tier, name: str) -> None:
    values = edges()[name].astype(np.float32)
    cells = -(-len(values) // CELL) + 1  # one more than there are values for
    whole = np.zeros(cells * CELL, np.float32)
    whole[: len(values)] = values
    codes, scales = quantised(whole[None])
    assert np.abs(codes).max() <= 127
    want = row_bytes(codes, scales, cells * (CELL + 20))[0]
    assert same_row(coded(tier, values, cells), want, cells)


def test_cells_are_coded_apart_as_together(tier: Tier) -> None:
    values = np.random.default_rng(4).standard_normal(11 * CELL - 5).astype(np.float32)
    whole = coded(tier, values, 12)
    row = aligned((len(whole) // 64 * 64 + 64,), np.uint8)
    row[:] = 0x55
    for first, end in ((3, 4), (0, 3), (9, 12), (4, 9)):
        here = values[first * CELL : end * CELL].copy()
        before = row.copy()
        tier.kernels.quantise(at(here), len(here), first, end, 12, at(row))
        touched = np.flatnonzero(row != before)
        places = np.r_[
            first * CELL : end * CELL,
            *(slice(12 * CELL + 48 * i + 4 * first, 12 * CELL + 48 * i + 4 * end) for i in range(3)),
            12 * (CELL + 12) + 8 * first : 12 * (CELL + 12) + 8 * end,
        ]
        assert np.isin(touched, places).all()
    assert (row[: len(whole)] == whole).all()
    assert (row[len(whole) :] == 0x55).all()


def test_a_subnormal_scale_counts(tier: Tier) -> None:
    kind = KINDS[1]  # Q4_0
    plain = extreme(kind, 2, low=True, ones=np.ones(CELL, bool))
    for half in (np.array(1, np.uint16).view(np.float16), np.array(0x83FF, np.uint16).view(np.float16)):
        weights = replace(plain, d=np.full_like(plain.d, half))
        codes, scales = np.full((1, 2, CELL), 3), np.full((1, 2), np.float32(2.0**20))
        want = weights.values().sum(1) * 3 * 2.0**20
        assert (Product(weights, codes, scales)(tier) == want).all()
        assert want[0] != 0

"""Every tier's arithmetic against float64, and its bits against its own, a row or a block at a time."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.native.library import LIBRARY, SOURCES, Array, aligned, at, probed

TIERS = ("amx", "avx512", "avx512-vnni", "avx-vnni", "avx2", "portable")
OWN = ("amx", "avx512", "avx2", "portable")  # the others differ by their products with coded weights alone
WORDS = 16  # columns of a block

_pointer, _size, _float, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float, ctypes.c_int
_offset = ctypes.c_ssize_t
_matmul = ctypes.CFUNCTYPE(None, _pointer, _size, _size, _pointer, _size, _int, _pointer, _size, _offset)


class Kernels(ctypes.Structure):
    """The struct of kernels.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("matmul_bf16", _matmul),
        ("matmul_f32", _matmul),
        ("narrow", ctypes.CFUNCTYPE(None, _pointer, _size, _pointer)),
        ("rms_norm", ctypes.CFUNCTYPE(None, _pointer, _pointer, _size, _float, _pointer)),
        ("gate", ctypes.CFUNCTYPE(None, _pointer, _pointer, _size, _int, _pointer)),
        ("softmax_exp", ctypes.CFUNCTYPE(_float, _pointer, _size, _float)),
        ("maximum", ctypes.CFUNCTYPE(_float, _pointer, _size)),
        ("add", ctypes.CFUNCTYPE(None, _pointer, _pointer, _size)),
        ("soft_cap", ctypes.CFUNCTYPE(None, _pointer, _size, _float)),
    )


def to_bf16(values: Array) -> Array:
    """Round to nearest even, in another way than the kernels."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    low, high = bits & 0xFFFF, bits >> 16
    high += (low > 0x8000) | ((low == 0x8000) & (high % 2 == 1))
    return np.where(np.isnan(values), (bits >> 16) | 0x40, high).astype(np.uint16)


def from_bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def kernels_of(library: Path, tier: str) -> Kernels | None:
    find = ctypes.CDLL(str(library)).fd_kernels
    find.restype, find.argtypes = _pointer, [ctypes.c_char_p]
    found = find(tier.encode())
    return Kernels.from_address(found) if found else None


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The amx tier over tiles in plain C++: built here, for few machines have the real ones."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if not compiler or sys.platform == "win32":
        pytest.skip("no C++ compiler")
    here, target = Path(__file__).parent, tmp_path_factory.mktemp("amx") / "emulated.so"
    sources = [str(here / "amx_emulated.cpp"), str(SOURCES / "tier_portable.cpp")]
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", f"-I{here}"]
    subprocess.run([*compiler.split(), *flags, *sources, "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="module", params=[*OWN, "amx emulated"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "amx emulated":
        found = kernels_of(request.getfixturevalue("emulated"), "amx")
    else:
        if not LIBRARY.exists():
            pytest.skip("the native library is not built")
        found = kernels_of(LIBRARY, request.param) if request.param != "amx" or probed("amx") == 1 else None
    if found is None:
        pytest.skip(f"this machine has no {request.param}")
    return found


class Product:
    """Packed weights and inputs of one shape, and what a tier makes of them."""

    def __init__(self, kernels: Kernels, dtype: str, blocks: int, k: int, rows: int = 64, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        w, x = rng.standard_normal((blocks * WORDS, k)), rng.standard_normal((rows, k))
        self.bf16, self.call = dtype == "bf16", getattr(kernels, f"matmul_{dtype}")
        held, group = (to_bf16, 2) if self.bf16 else (np.float32, 1)
        packed = held(w).reshape(blocks, WORDS, k // group, group).transpose(0, 2, 1, 3)
        self.w = aligned(packed.shape, packed.dtype)
        self.w[:] = packed
        self.x = aligned((rows, k + 32), packed.dtype)  # a stride wider than the inputs
        self.x[:, :k] = held(x)
        self.blocks, self.k = blocks, k

    def __call__(self, rows: slice, blocks: slice | None = None, far: int = 0) -> Array:  # [rows, 16 * blocks]
        w, x = self.w[blocks or slice(None)], self.x[rows]
        y = aligned((len(x) + 1, len(w) * WORDS + 16), np.float32)
        y[:] = 7.0
        self.call(at(w), len(w), self.k, at(x), self.x.shape[1], len(x), at(y), y.shape[1], far)
        assert (y[-1] == 7.0).all(), "a row that is not there was written"
        assert (y[:, -16:] == 7.0).all(), "a block that is not there was written"
        return y[:-1, :-16]

    def reference(self) -> tuple[Array, Array]:
        """The products in float64, and the sums of their sizes."""
        w, x = self.w.transpose(0, 2, 1, 3).reshape(self.blocks * WORDS, self.k), self.x[:, : self.k]
        w64, x64 = ((from_bf16(v) if self.bf16 else v).astype(np.float64) for v in (w, x))
        return x64 @ w64.T, np.abs(x64) @ np.abs(w64).T


SHAPES = [
    (1, 32),
    (2, 64),
    (3, 576),
    (4, 96),
    (5, 1536),
    (8, 384),
    (9, 416),
    (17, 192),
    (40, 224),
    (7, 2048),
    (3, 4096),
]


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(("blocks", "k"), SHAPES)
def test_products_are_right(kernels: Kernels, dtype: str, blocks: int, k: int) -> None:
    product = Product(kernels, dtype, blocks, k, seed=blocks * k)
    want, size = product.reference()
    for rows in (1, 2, 3, 5, 8, 13, 16, 17, 29, 32, 33, 47, 64):
        got = product(slice(64 - rows, 64))
        assert (np.abs(got - want[64 - rows :]) <= 4 * 2.0**-24 * np.sqrt(k) * size[64 - rows :]).all()


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(("blocks", "k"), [(5, 96), (9, 480)])
def test_a_rows_bits_are_its_own(kernels: Kernels, dtype: str, blocks: int, k: int) -> None:
    product = Product(kernels, dtype, blocks, k)
    alone = np.concatenate([product(slice(r, r + 1)) for r in range(64)]).view(np.uint32)
    for rows in range(2, 65):
        for first in {0, 64 - rows, (64 - rows) // 2}:
            some = slice(first, first + rows)
            assert (product(some).view(np.uint32) == alone[some]).all(), (first, rows)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_blocks_bits_are_its_own(kernels: Kernels, dtype: str) -> None:
    product = Product(kernels, dtype, 19, 448)
    for rows in (1, 4, 7, 16, 20, 40, 64):
        some = slice(0, rows)
        each = [product(some, slice(b, b + 1)).view(np.uint32) for b in range(19)]
        for start, count in ((0, 19), (1, 2), (2, 3), (3, 9), (4, 15)):
            together = product(some, slice(start, start + count)).view(np.uint32)
            assert (together == np.concatenate(each[start : start + count], axis=1)).all()
        for far in (-1 << 20, 1 << 12):  # what is fetched on the way
            assert (product(some, far=far).view(np.uint32) == np.concatenate(each, axis=1)).all()


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_bad_row_spoils_no_other(kernels: Kernels, dtype: str) -> None:
    product = Product(kernels, dtype, 3, 256)
    clean = product(slice(0, 64)).view(np.uint32)
    for value in (np.nan, np.inf):
        product.x[21, 5] = to_bf16(np.array([value]))[0] if product.bf16 else value
        spoilt = product(slice(0, 64)).view(np.uint32)
        kept = np.arange(64) != 21
        assert (spoilt[kept] == clean[kept]).all()
        assert not np.isfinite(spoilt[21].view(np.float32)).any()


def test_narrow_rounds_to_even_and_keeps_what_is_not_a_number(kernels: Kernels) -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint32)
    ties = (rng.integers(0, 2**16, 2_000, dtype=np.uint32) << 16) | 0x8000
    special = [0, 2**31, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 1, 0x007FFFFF, 0x8000]
    values = np.concatenate([bits, ties, np.array(special, np.uint32)]).view(np.float32)
    for n in (0, 1, 7, 16, 33, len(values)):
        some = values[len(values) - n :].copy()
        out = np.full(n + 1, 0xABCD, np.uint16)
        kernels.narrow(at(some), n, at(out))
        assert (out[:n] == to_bf16(some)).all()
        assert out[n] == 0xABCD


def off_by(got: Array, want: Array) -> float:
    """The largest error in units of the last place, of a subnormal's where the value is one."""
    with np.errstate(over="ignore"):
        unit = np.maximum(np.spacing(np.abs(want).astype(np.float32)).astype(np.float64), 2.0**-149)
    return float(np.max(np.abs(got.astype(np.float64) - want) / unit, initial=0.0))


@pytest.mark.parametrize("n", [1, 5, 16, 31, 33, 576, 3001])
def test_exponentials_and_their_sum(kernels: Kernels, n: int) -> None:
    rng = np.random.default_rng(n)
    scores = (rng.standard_normal(n) * 2).astype(np.float32)
    scores[rng.random(n) < 0.2] = -np.inf  # masked
    scores[rng.integers(n)] = 3.25
    top = kernels.maximum(at(scores), n)
    assert top == scores.max()
    out = scores.copy()
    total = kernels.softmax_exp(at(out), n, top)
    want = np.exp((scores - top).astype(np.float32).astype(np.float64))
    assert off_by(out, want) <= 2
    assert (out[np.isneginf(scores)].view(np.uint32) == 0).all()
    assert abs(total - out.astype(np.float64).sum()) <= 1e-6 * total
    # lane i % 16 first, then halves: the order that kernels.h promises
    lanes = np.zeros(16, np.float32)
    for i, value in enumerate(out):
        lanes[i % 16] += value
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    assert np.float32(total) == lanes[0]


def test_exp_over_its_whole_range(kernels: Kernels) -> None:
    x = np.linspace(-110, 89.5, 400_001).astype(np.float32)
    out = x.copy()
    kernels.softmax_exp(at(out), len(x), 0.0)
    with np.errstate(over="ignore"):
        want = np.exp(x.astype(np.float64))
    finite = want < 3.4028235e38
    assert off_by(out[finite], want[finite]) <= 2
    assert np.isposinf(out[~finite]).all()
    edge = np.array([0.0, -0.0, -np.inf, np.inf, np.nan, -1e30, 1e30, 1e-40], np.float32)
    kernels.softmax_exp(at(edge), len(edge), 0.0)
    assert np.array_equal(edge, np.array([1, 1, 0, np.inf, np.nan, 0, np.inf, 1], np.float32), equal_nan=True)


def test_exp_of_a_value_is_the_same_wherever_it_stands(kernels: Kernels) -> None:
    x = (np.random.default_rng(2).standard_normal(100) * 30).astype(np.float32)
    whole = x.copy()
    kernels.softmax_exp(at(whole), 100, 0.0)
    for start, end in ((0, 1), (1, 18), (3, 100), (90, 99)):
        part = x[start:end].copy()
        kernels.softmax_exp(at(part), end - start, 0.0)
        assert (part.view(np.uint32) == whole[start:end].view(np.uint32)).all()


@pytest.mark.parametrize("n", [1, 15, 16, 17, 576, 1000])
def test_maximum(kernels: Kernels, n: int) -> None:
    for place in {0, n // 2, n - 1}:
        values = -np.abs(np.random.default_rng(n).standard_normal(n)).astype(np.float32) - 1
        values[place] = -0.5
        assert kernels.maximum(at(values), n) == -0.5
    nothing = np.full(n, -np.inf, np.float32)
    assert kernels.maximum(at(nothing), n) == -np.inf


ACTIVATIONS: list[tuple[int, Callable[[Array], Array]]] = [
    (0, lambda x: x / (1 + np.exp(-x))),
    (1, lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
]


@pytest.mark.parametrize(("act", "function"), ACTIVATIONS, ids=["silu", "gelu"])
def test_gates(kernels: Kernels, act: int, function: Callable[[Array], Array]) -> None:
    rng = np.random.default_rng(3)
    g = np.concatenate([rng.standard_normal(3001) * 4, [0.0, -0.0, 30, -30, 80, -80, 200, -200, 3e4]]).astype(
        np.float32
    )
    up = rng.standard_normal(len(g)).astype(np.float32)
    out = np.zeros_like(g)
    kernels.gate(at(g), at(up), len(g), act, at(out))
    with np.errstate(over="ignore"):
        want = function(g.astype(np.float64)) * up
    assert np.isfinite(out).all()
    assert (np.abs(out - want) <= 1e-6 * np.abs(want) + 1e-7 * np.abs(up)).all()
    same = g.copy()
    kernels.gate(at(same), at(up), len(g), act, at(same))  # in place
    assert (same.view(np.uint32) == out.view(np.uint32)).all()


@pytest.mark.parametrize("n", [1, 17, 64, 576, 1003])
def test_rms_norm(kernels: Kernels, n: int) -> None:
    rng = np.random.default_rng(n)
    for scale in (1.0, 1e-6, 1e6, 0.0):
        x, weight = (rng.standard_normal(n) * scale).astype(np.float32), rng.standard_normal(n).astype(np.float32)
        out = np.zeros_like(x)
        kernels.rms_norm(at(x), at(weight), n, 1e-5, at(out))
        wide = x.astype(np.float64)
        want = wide / np.sqrt((wide**2).mean() + np.float32(1e-5)) * weight
        assert (np.abs(out - want) <= 1e-6 * np.abs(want)).all()
        same = x.copy()
        kernels.rms_norm(at(same), at(weight), n, 1e-5, at(same))
        assert (same.view(np.uint32) == out.view(np.uint32)).all()


def test_add_and_soft_cap(kernels: Kernels) -> None:
    rng = np.random.default_rng(4)
    y, x = rng.standard_normal((2, 1003)).astype(np.float32)
    want = y + x
    kernels.add(at(y), at(x), 1003)
    assert (y == want).all()
    for cap in (0.5, 30.0, 50.0):
        s = np.concatenate([rng.standard_normal(5000) * cap, [0, 1e-20, -1e-3, 1e4, -1e30, np.inf, -np.inf]])
        out = s.astype(np.float32)
        right = cap * np.tanh(out.astype(np.float64) / cap)
        kernels.soft_cap(at(out), len(out), cap)
        assert (np.abs(out - right) <= 5e-7 * np.abs(right)).all()


def test_tiers_are_named_best_first_and_pass_their_probe() -> None:
    if not LIBRARY.exists():
        pytest.skip("the native library is not built")
    tiers = ctypes.CDLL(str(LIBRARY)).fd_tiers
    tiers.restype = ctypes.c_char_p
    named = tiers().decode().split(",")
    assert named[-1] == "portable"
    assert named == [tier for tier in TIERS if tier in named]
    for tier in TIERS:
        if tier != "amx":  # announced and yet refused on some machines
            assert probed(tier) == (1 if tier in named else -1)
    assert probed("another") == -1

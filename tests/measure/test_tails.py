"""Tails against the tables that every textbook prints."""

from __future__ import annotations

import math

import pytest

from foredraft.measure.certificate.p_values import bonferroni, chi_square, kolmogorov, normal


@pytest.mark.parametrize(
    ("statistic", "freedom", "chance"),
    [
        (3.841459, 1, 0.05),
        (5.991465, 2, 0.05),
        (9.487729, 4, 0.05),
        (30.143527, 19, 0.05),
        (36.190869, 19, 0.01),
        (43.820196, 19, 0.001),
        (31.410433, 20, 0.05),
        (18.337653, 19, 0.5),
    ],
)
def test_chi_square(statistic: float, freedom: int, chance: float) -> None:
    assert chi_square(statistic, freedom) == pytest.approx(chance, rel=1e-6)


def test_chi_square_far_out() -> None:
    assert chi_square(0.0, 19) == 1.0
    assert chi_square(200.0, 2) == pytest.approx(math.exp(-100), rel=1e-12)
    assert 0 < chi_square(400.0, 19) < 1e-70


@pytest.mark.parametrize(
    ("distance", "count", "chance", "within"),
    [
        (1.3581, 10**10, 0.05, 1e-3),  # Smirnov's limits: distance times the root of the count
        (1.6276, 10**10, 0.01, 1e-3),
        (1.9495, 10**10, 0.001, 1e-3),
        (0.40925, 10, 0.05, 0.02),  # Massey's exact table, 1951
        (0.48893, 10, 0.01, 0.05),
        (0.29408, 20, 0.05, 0.02),
    ],
)
def test_kolmogorov(distance: float, count: int, chance: float, within: float) -> None:
    if count > 1000:
        distance /= math.sqrt(count)
    assert kolmogorov(distance, count) == pytest.approx(chance, rel=within)


def test_kolmogorov_at_its_ends() -> None:
    assert kolmogorov(0.0, 100) == 1.0
    assert kolmogorov(0.02, 100) == pytest.approx(1.0, abs=1e-9)
    assert kolmogorov(1.0, 1000) < 1e-300


@pytest.mark.parametrize(("z", "chance"), [(0.0, 1.0), (1.959964, 0.05), (-2.575829, 0.01), (3.890592, 1e-4)])
def test_normal(z: float, chance: float) -> None:
    assert normal(z) == pytest.approx(chance, rel=1e-5)


def test_bonferroni() -> None:
    assert bonferroni(0.5, 0.01, 0.9, 1.0) == pytest.approx(0.04)
    assert bonferroni(0.5, 0.6) == 1.0

"""Numbers of bytes in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.system.sizes import apart, size_of


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (48_000, "48 kB"), (3_600_000, "3.6 MB"), (97_000_000, "97.0 MB"), (2e13, "20.0 TB")],
)
def test_sizes(count: float, words: str) -> None:
    assert size_of(count) == words


def test_what_is_missing_is_seen() -> None:
    assert apart(200_000_001, 200_000_000) == ("201 MB", "200 MB")
    assert apart(9_999_000_000, 9_998_000_000) == ("9999 MB", "9998 MB")
    assert apart(10_010_000_000, 9_990_000_000) == ("10.1 GB", "9.9 GB")


@given(st.integers(1, 10**13), st.integers(1, 10**9))
def test_the_two_never_read_alike(needed: int, short: int) -> None:
    assert len(set(apart(needed, max(0, needed - short)))) == 2

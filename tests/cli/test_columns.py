"""Columns of a terminal: what wide characters and marks take, and what is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.cli.terminal.text_width import columns, cut, fit, wrapped


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("", 0),
        ("plain", 5),
        ("漢字", 4),
        ("ｆｕｌｌ", 8),
        ("e\u0301te\u0301", 3),
        ("\u1112\u1161\u11ab", 2),  # a Hangul syllable in its letters
        ("😀", 2),
        ("👍🏽", 2),  # a tone of skin
        ("❤", 1),
        ("❤\ufe0f", 2),  # the same as a picture
        ("👩\u200d🚀", 2),  # two signs joined to one
        ("👩\u200d❤\ufe0f\u200d👩", 2),
        ("\u200dx", 1),
        ("🇫🇷", 2),
        ("a\u200bb", 2),
        ("→ ▁ ✗", 5),
    ],
)
def test_what_a_text_takes(text: str, width: int) -> None:
    assert columns(text) == width


@pytest.mark.parametrize(
    ("text", "width", "head", "tail"),
    [
        ("abcdef", 6, "abcdef", "abcdef"),
        ("abcdef", 4, "abc…", "…def"),
        ("漢字漢字", 5, "漢字…", "…漢字"),
        ("漢字漢字", 4, "漢…", "…字"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301…", "…e\u0301"),
        ("👩\u200d🚀x", 2, "…", "…x"),
    ],
)
def test_what_is_cut(text: str, width: int, head: str, tail: str) -> None:
    assert (cut(text, width), cut(text, width, tail=True)) == (head, tail)


WORDS = st.text(st.sampled_from("ab漢😀e\u0301\u200d\ufe0f❤🏽→\u1161"), max_size=12)


@given(WORDS, st.integers(1, 12), st.booleans())
def test_what_is_fitted_fits(text: str, width: int, tail: bool) -> None:
    fitted = fit(text, width, tail=tail)
    assert columns(fitted) <= width
    assert columns(fitted) == width or "…" in fitted
    if columns(text) <= width:
        assert fitted.startswith(text)


@given(st.lists(WORDS, max_size=8), st.integers(1, 30))
def test_wrapping_keeps_every_part(parts: list[str], width: int) -> None:
    lines = wrapped(parts, " · ", width)
    assert " · ".join(lines) == " · ".join(parts)
    assert all(columns(line) <= width or " · " not in line for line in lines)

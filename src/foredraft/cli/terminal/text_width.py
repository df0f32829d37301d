"""How many columns of a terminal a text takes: characters of East Asia and pictures take two, marks none."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

_JOINER: Final = "\u200d"
_AS_PICTURE: Final = "\ufe0f"
_TONES: Final = frozenset(map(chr, range(0x1F3FB, 0x1F400)))
_MARKS: Final = ("Mn", "Me", "Cf")
_INNER_JAMO: Final = (0x1160, 0x11FF)  # vowels and ends of Hangul syllables, drawn into the letter before them


def columns(text: str) -> int:
    """Return the columns that a text without line breaks and control characters takes."""
    return sum(_widths(text))


def cut(text: str, width: int, *, tail: bool = False) -> str:
    """Return as much of a text as ``width`` columns hold, with … where something is left out: its end, or its start."""
    if columns(text) <= width:
        return text
    widths = _widths(text)
    if tail:
        start, used = len(text), 0
        while start and used + widths[start - 1] < width:
            start -= 1
            used += widths[start]
        while start < len(text) and not widths[start]:  # a mark whose letter is gone
            start += 1
        return f"…{text[start:]}"
    end, used = 0, 0
    while used + widths[end] < width:
        used += widths[end]
        end += 1
    return f"{text[:end]}…"


def fit(text: str, width: int, *, tail: bool = False) -> str:
    """Return a text that takes exactly ``width`` columns: cut as ``cut`` does, or with blanks behind it."""
    text = cut(text, width, tail=tail)
    return text + " " * (width - columns(text))


def wrapped(parts: Iterable[str], separator: str, width: int) -> list[str]:
    """Return parts joined to as few lines of at most ``width`` columns as their order allows; none is broken."""
    lines: list[str] = []
    for part in parts:
        if lines and columns(lines[-1]) + columns(separator) + columns(part) <= width:
            lines[-1] += separator + part
        else:
            lines.append(part)
    return lines


def _widths(text: str) -> list[int]:
    """Return the columns of each character; what joins the one before it takes none."""
    widths: list[int] = []
    for i, sign in enumerate(text):
        width = _alone(sign)
        joined = i and text[i - 1] == _JOINER and unicodedata.category(sign) == "So"
        if joined or (i and sign in _TONES and widths[-1] == 2):
            width = 0
        if sign == _AS_PICTURE and i and widths[-1] == 1:
            width = 1  # the sign before it, narrow by itself, is drawn as a picture
        widths.append(width)
    return widths


def _alone(sign: str) -> int:
    if unicodedata.category(sign) in _MARKS or _INNER_JAMO[0] <= ord(sign) <= _INNER_JAMO[1]:
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1

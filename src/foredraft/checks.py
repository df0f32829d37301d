"""Checks of single values, each with one sentence where it fails."""

from __future__ import annotations

import math
from numbers import Real
from operator import index
from typing import Any, SupportsIndex

from foredraft.errors import OptionError


def whole(name: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Return ``value`` if it is a whole number in range. Raises OptionError."""
    given = index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else None
    if given is None or given < minimum or (maximum is not None and given > maximum):
        span = f"of at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        raise OptionError(f"{name} must be a whole number {span}, not {value!r:.60}")
    return given


def number(name: str, value: object, *, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """Return ``value`` as a float if it is a finite number in range. Raises OptionError."""
    span = "" if (minimum, maximum) == (-math.inf, math.inf) else f" between {minimum:g} and {maximum:g}"
    wrong = OptionError(f"{name} must be a number{span}, not {value!r:.60}")
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong
    try:
        given = float(value)
    except OverflowError as error:
        raise wrong from error
    if not math.isfinite(given) or not minimum <= given <= maximum:
        raise wrong
    return given


def text(name: str, value: object) -> str:
    """Return ``value`` if it is text that can be written as UTF-8. Raises OptionError."""
    if not isinstance(value, str):
        raise OptionError(f"{name} must be text, not {value!r:.60}")
    if not is_text(value):
        raise OptionError(f"{name} is not UTF-8 text")
    return value


def switch(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False. Raises OptionError."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, not {value!r:.60}")
    return value


def is_text(text: str) -> bool:
    """Say whether this can be written as UTF-8; bytes that were none come in disguise, as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's pairs as a dict. Raises ValueError for a key that is there twice, which JSON lets pass."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r:.60} is there twice")
    return found

"""Numbers of bytes in words."""

from __future__ import annotations

import math
from typing import Final

_MEGA: Final = 1e6
_GIGA: Final = 1e9
_FINE: Final = 10 * _GIGA  # below it, tenths of a gigabyte hide what is missing


def size_of(count: float) -> str:
    """Return a number of bytes in words: three digits or so."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "kB") or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def apart(needed: float, free: float) -> tuple[str, str]:
    """Return what is needed and what is there, in words that differ: rounded up, and down. Bytes, ``free`` the less."""
    if needed < _FINE:
        return f"{math.ceil(needed / _MEGA)} MB", f"{math.floor(free / _MEGA)} MB"
    return f"{math.ceil(needed / _GIGA * 10) / 10:.1f} GB", f"{math.floor(free / _GIGA * 10) / 10:.1f} GB"

"""JSON that somebody else wrote: whatever is wrong with it is a ValueError, too deep a nesting included."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

DEEPEST: Final = 200  # levels: all that walks a document by recursion has room for them


def parse_json(
    text: str | bytes,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
    constant: Callable[[str], Any] | None = None,
) -> Any:
    """Return what a JSON text holds; ``pairs`` makes its objects, ``constant`` its NaN and infinities.

    Raises ValueError, also for a text that is nested too deeply.
    """
    try:
        found = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _is_deeper(found, DEEPEST):
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    return found


def read_regular(path: Path, most: int | None = None) -> str:
    """Return the UTF-8 text of a regular file of ``most`` bytes at most, a byte order mark left out.

    A pipe or a device, which may never end, is not opened. Raises OSError, and ValueError with what is wrong in words.
    """
    require_regular(path)
    with path.open("rb") as file:
        data = file.read(-1 if most is None else most + 1)
    if most is not None and len(data) > most:
        raise ValueError(f"it has more than {most} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


def require_regular(path: Path) -> None:
    """Raise ValueError, in words, for a pipe or a device: to open it may wait for ever, to read it may never end.

    A folder passes, for opening it says what is wrong. Raises OSError where there is nothing.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError("it is not a regular file")


def _is_deeper(found: Any, levels: int) -> bool:
    level = [found]
    for _ in range(levels + 1):
        level = [inner for each in level if isinstance(each, dict | list | tuple) for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(each: dict[str, Any] | list[Any] | tuple[Any, ...]) -> Iterable[Any]:
    return each.values() if isinstance(each, dict) else each

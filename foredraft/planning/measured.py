"""The table of what passes cost, measured in a second or two and kept beside the model, for this machine only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from foredraft.errors import StorageError
from foredraft.models.model import Model, Rows
from foredraft.models.store import write_whole
from foredraft.planning.costs import PassTable, fitted

FORMAT: Final = 1
ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
DEEP: Final = 1024  # tokens of context at which it is seen what context costs
_START: Final = 32
_SLOT: Final = 1 << 15  # far above those that a target numbers from 0
_SECONDS: Final = 1.5  # that the timing of passes may take, about
_TURNS: Final = (3, 12)  # of each pass, at least and at most

Tell = Callable[[int, int, str], None]


def pass_table(model: Model, context: int, kept: Path | None, facts: Mapping[str, Any], tell: Tell | None) -> PassTable:
    """Return the table of a model on this machine: read from ``kept``, or measured and kept there.

    ``facts`` say what it depends on: a file that names others is measured anew, as is one that cannot be read.
    """
    key = {"format": FORMAT, **facts}
    if kept is not None and (found := _read(kept, key)) is not None:
        return found
    table = measure(model, context, tell)
    if kept is not None:
        try:
            write_whole(kept, json.dumps({**key, "table": asdict(table)}, indent=1) + "\n")
        except StorageError:  # a cache that cannot be written costs a second at each start, nothing else
            return table
    return table


def measure(model: Model, context: int, tell: Tell | None = None) -> PassTable:
    """Time passes of 1 to 64 rows, ways taking turns, the least of several. The model's slots are as before."""
    sizes = [rows for rows in ROWS if _START + rows <= context]
    deep = min(DEEP, context - 8)
    ways: list[tuple[int, int, int]] = [(_SLOT, _START, rows) for rows in sizes]
    if deep >= 4 * _START:
        ways += [(_SLOT + 1, deep, 1), (_SLOT + 1, deep, 8)]
    try:
        _fill(model, _SLOT, _START)
        if deep >= 4 * _START:
            _fill(model, _SLOT + 1, deep)
        least = _least(model, ways, tell)
    finally:
        for slot in (_SLOT, _SLOT + 1):
            model.release(slot)
    shallow = least[: len(sizes)]
    if deep < 4 * _START:
        return PassTable(tuple(sizes), tuple(min(shallow[i:]) for i in range(len(shallow))), 0.0, 0.0)
    return fitted(sizes, shallow, (deep - _START, least[-2], least[-1]))


def _least(model: Model, ways: Sequence[tuple[int, int, int]], tell: Tell | None) -> list[float]:
    for way in ways:
        _time(model, *way)  # pages and scratch memory
    least = [float("inf")] * len(ways)
    began, turn = perf_counter(), 0
    while turn < _TURNS[0] or (turn < _TURNS[1] and perf_counter() - began < _SECONDS):
        for i, way in enumerate(ways):
            least[i] = min(least[i], _time(model, *way))
            if tell is not None:
                tell(min(turn * len(ways) + i, _TURNS[1] * len(ways) - 1), _TURNS[1] * len(ways), "timing passes")
        turn += 1
    if tell is not None:
        tell(1, 1, "timing passes")
    return least


def _fill(model: Model, slot: int, length: int) -> None:
    for at in range(0, length, 512):
        count = min(512, length - at)
        model.forward([Rows(slot, at, (1,) * count, tuple(range(-1, count - 1)), 0)])


def _time(model: Model, slot: int, start: int, rows: int) -> float:
    row = Rows(slot, start, (1,) * rows, tuple(range(-1, rows - 1)), rows)
    began = perf_counter()
    model.forward([row])
    return perf_counter() - began


def _read(path: Path, key: Mapping[str, Any]) -> PassTable | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if {name: found.get(name) for name in key} != dict(key):
            return None
        given = found["table"]
        table = PassTable(
            tuple(int(n) for n in given["rows"]), tuple(float(s) for s in given["seconds"]),
            float(given["per_token"]), float(given["per_row"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    rising = all(a < b for a, b in zip(table.rows, table.rows[1:], strict=False))
    sane = (
        all(0.0 < s < 1e6 for s in table.seconds)
        and table.rows[:1] == (1,)
        and min(table.per_token, table.per_row) >= 0
    )
    return table if rising and sane and len(table.rows) == len(table.seconds) else None

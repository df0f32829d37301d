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
from foredraft.planning.costs import PassTable, fitted
from foredraft.system.files import write_whole
from foredraft.system.json_text import parse_json, read_regular

FORMAT: Final = 1
ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
NEEDED: Final = 16  # rows that are timed however long it takes
DEEP: Final = 1024  # tokens of context at which it is seen what context costs
SECONDS: Final = 1.5  # that timing passes may take, about
_START: Final = 32
_LARGEST: Final = 1 << 20  # bytes of a file that is read
_SLOT: Final = 1 << 15  # far above those that a target numbers from 0
_TURNS: Final = (3, 12)  # of each pass, at least and at most

Clock = Callable[[], float]


def pass_table(
    model: Model, context: int, kept: Path | None, facts: Mapping[str, Any], clock: Clock = perf_counter
) -> PassTable:
    """Return the table of a model on this machine: read from ``kept``, or measured and kept there.

    ``facts`` say what it depends on: a file that names others is measured anew, as is one that cannot be read.
    """
    key = {"format": FORMAT, **facts}
    if kept is not None and (found := _read(kept, key)) is not None:
        return found
    table = measure(model, context, clock)
    if kept is not None:
        try:
            write_whole(kept, json.dumps({**key, "table": asdict(table)}, indent=1) + "\n")
        except StorageError:  # a cache that cannot be written costs a second at each start, nothing else
            return table
    return table


def measure(model: Model, context: int, clock: Clock = perf_counter) -> PassTable:
    """Time passes of 1 to 64 rows, ways taking turns, the least of several. The model's slots are as before.

    A model so slow that this would take long is timed up to ``NEEDED`` rows, and at less context. ``context`` is in
    tokens.
    """
    start = min(_START, max(0, context - 8))
    try:
        _fill(model, _SLOT, start)
        sizes: list[int] = []
        began = clock()
        for rows in ROWS:
            if start + rows > context or (rows > NEEDED and clock() - began > SECONDS / _TURNS[0]):
                break
            last = _time(model, clock, _SLOT, start, rows)  # pages and scratch memory as well
            sizes.append(rows)
        ways = [(_SLOT, start, rows) for rows in sizes]
        deep = min(DEEP, context - 8, int(sizes[-1] * SECONDS / max(last, 1e-9)))  # as much as is read in that time
        if deep >= 4 * _START and 8 in sizes:
            _fill(model, _SLOT + 1, deep)
            ways += [(_SLOT + 1, deep, 1), (_SLOT + 1, deep, 8)]
        least = _least(model, clock, ways)
    finally:
        for slot in (_SLOT, _SLOT + 1):
            model.release(slot)
    if len(ways) == len(sizes):
        return fitted(sizes, least, None)
    return fitted(sizes, least[:-2], (deep - start, least[-2], least[-1]))


def _least(model: Model, clock: Clock, ways: Sequence[tuple[int, int, int]]) -> list[float]:
    least = [float("inf")] * len(ways)
    began, turn = clock(), 0
    while turn < _TURNS[0] or (turn < _TURNS[1] and clock() - began < SECONDS):
        for i, way in enumerate(ways):
            least[i] = min(least[i], _time(model, clock, *way))
        turn += 1
    return least


def _fill(model: Model, slot: int, length: int) -> None:
    for at in range(0, length, 512):
        count = min(512, length - at)
        model.forward([Rows(slot, at, (1,) * count, tuple(range(-1, count - 1)), 0)])


def _time(model: Model, clock: Clock, slot: int, start: int, rows: int) -> float:
    row = Rows(slot, start, (1,) * rows, tuple(range(-1, rows - 1)), rows)
    began = clock()
    model.forward([row])
    return clock() - began


def _read(path: Path, key: Mapping[str, Any]) -> PassTable | None:
    try:
        found = parse_json(read_regular(path, _LARGEST))
        given = found.pop("table")
        if found != key:
            return None
        table = PassTable(
            tuple(int(n) for n in given["rows"]), tuple(float(s) for s in given["seconds"]),
            float(given["per_token"]), float(given["per_row"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    return table if table.sane() else None

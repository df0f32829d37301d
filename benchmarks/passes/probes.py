"""Passes to be timed in turns or compared bit for bit, and the table of their times: what forward.py is made of."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foredraft.models.model import Rows

TREE = (-1, 0, 0, 2, 1, -1, 5, 3)
Ways = dict[str, Callable[[], float]]
Times = dict[str, list[float]]


def text(count: int) -> tuple[int, ...]:
    return tuple(7 + (31 * i) % 1999 for i in range(count))


def chain(slot: int, start: int, tokens: Sequence[int], wanted: int) -> Rows:
    return Rows(slot, start, tuple(tokens), tuple(range(-1, len(tokens) - 1)), wanted)


def feed(model: Any, slot: int, length: int, block: int = 512) -> None:
    """Let a slot hold a text of that length."""
    tokens = text(length)
    for at in range(0, length, block):
        model.forward([chain(slot, at, tokens[at : at + block], 0)])


def forward(model: Any, rows: int, start: int, slot: int = 0) -> float:
    """Return the seconds of one pass over so many rows, all logits wanted."""
    row = chain(slot, start, [11 + i for i in range(rows)], rows)
    began = time.perf_counter()
    model.forward([row])
    return time.perf_counter() - began


def read(model: Any, slot: int, length: int) -> float:
    """Return the seconds it takes to read a text into an empty slot, up to the logits after it."""
    row = chain(slot, 0, text(length), 1)
    began = time.perf_counter()
    model.forward([row])
    return time.perf_counter() - began


def passes(model: Any, counts: Sequence[int], start: int, slot: int = 0) -> Ways:
    def way(rows: int) -> Callable[[], float]:
        return lambda: forward(model, rows, start, slot)

    return {str(rows): way(rows) for rows in counts}


def take_turns(ways: Ways, rounds: int, warm: int = 3) -> Times:
    """Return the seconds of each way, taking turns, after some turns that do not count."""
    times: Times = {name: [] for name in ways}
    for turn in range(-warm, rounds):
        for name, way in ways.items():
            seconds = way()
            if turn >= 0:
                times[name].append(seconds)
    return times


def least(times: Times, name: object) -> float:
    return min(times[str(name)])


def table(times: Times) -> None:
    """Print each way's least and median time, and both against the first way's."""
    first = next(iter(times))
    print(f"{'rows':>14}{'least ms':>11}{'median':>10}{'ratio':>9}{'of medians':>12}")
    for name, taken in times.items():
        middle = statistics.median(taken)
        ratio, of_medians = min(taken) / min(times[first]), middle / statistics.median(times[first])
        print(f"{name:>14}{1e3 * min(taken):>11.2f}{1e3 * middle:>10.2f}{ratio:>9.3f}{of_medians:>12.3f}", flush=True)


def bits_hold(model: Any, alone: Any) -> bool:
    """Say whether logits have the same bits however their rows are grouped."""
    tokens = text(96)
    want = np.concatenate([alone.forward([chain(0, i, [token], 1)]).logits for i, token in enumerate(tokens)])
    fine = True
    for slot, block in enumerate((7, 64, 96), 1):
        for at in range(0, len(tokens), block):
            got = model.forward([chain(slot, at, tokens[at : at + block], len(tokens[at : at + block]))]).logits
            fine = fine and np.array_equal(got, want[at : at + block])
    start, guesses = 60, tuple(500 + i for i in range(len(TREE)))
    both = [Rows(1, start, guesses, TREE, len(TREE)), chain(2, 90, tokens[90:], 6)]
    got = model.forward(both).logits
    fine = fine and np.array_equal(got[len(TREE) :], want[90:])
    for node in range(len(TREE)):
        path, at = [], node
        while at >= 0:
            path, at = [guesses[at], *path], TREE[at]
        fine = fine and np.array_equal(alone.forward([chain(0, start, path, 1)]).logits[0], got[node])
    for slot in range(4):
        model.release(slot)
    return fine


def anonymous() -> int | None:
    """Return the bytes of this process that no file backs; None where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), None)


def resident() -> int | None:
    """Return the bytes of memory that this process keeps in use, mapped files among them; None as above."""
    rollup = Path("/proc/self/smaps_rollup")
    lines = rollup.read_text().splitlines() if rollup.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Rss:")), None)

"""What a pass costs: a table measured on this machine, kept true by the rounds that really run.

Times of a shared machine are noisy to one side only: others make a pass slower, nobody makes it faster. What decides is
how costs compare, so the table holds shapes, measured once with the least of several, and ``pace`` follows the clock.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

_GAIN: Final = 0.05  # of a round on the pace, and as far as its rows are what it costs on the bend
_DOUBT: Final = 0.1  # the square of the share of its rows in a pass below which it says little of them
_BENT: Final = 16.0
_JUMP: Final = 1000.0  # times what was expected: no pass takes that long
_STEP: Final = 0.25  # a round that took longer than so much over is counted as if it had taken that
_SHORTEST: Final = 1e-9  # a clock that stood still
TABLED: Final = 256  # rows looked up at once


@dataclass(frozen=True, slots=True)
class PassTable:
    """Seconds of a pass by its rows, without context, and what context adds. ``rows`` begins with 1 and increases."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]  # never falling
    per_token: float  # seconds that a token of context costs a sequence
    per_row: float  # and each of its rows

    def of(self, rows: int, context: int, seen: int) -> float:
        """Return the seconds of a pass of so many rows over ``context`` tokens in all.

        ``seen`` is the sum over rows of the tokens that each looks back on.
        """
        return self.bare(rows) + self.per_token * context + self.per_row * seen

    def sane(self) -> bool:
        """Say whether the numbers can be times: for a table that was read from a file."""
        rising = all(a < b for a, b in pairwise(self.rows)) and all(a <= b for a, b in pairwise(self.seconds))
        times = all(0.0 < s < 1e6 for s in self.seconds) and 0.0 <= self.per_token < 1e6 and 0.0 <= self.per_row < 1e6
        return rising and times and self.rows[:1] == (1,) and len(self.rows) == len(self.seconds)

    def bare(self, rows: int) -> float:
        """Return the seconds of a pass of so many rows over no context."""
        if rows <= 1:
            return self.seconds[0]
        if len(self.rows) == 1:
            return self.seconds[0] * rows
        i = min(bisect_right(self.rows, rows), len(self.rows) - 1)  # beyond the table its last slope goes on
        low, high = self.rows[i - 1], self.rows[i]
        return self.seconds[i - 1] + (self.seconds[i] - self.seconds[i - 1]) * (rows - low) / (high - low)


def fitted(rows: Sequence[int], seconds: Sequence[float], deep: tuple[int, float, float] | None) -> PassTable:
    """Return the table of measured times. ``deep`` is (context, seconds of one row there, seconds of eight rows there).

    More rows cannot cost less: what says so is noise, and the lesser of two times is the truer.
    """
    steady = [max(_SHORTEST, min(seconds[i:])) for i in range(len(seconds))]
    table = PassTable(tuple(rows), tuple(steady), 0.0, 0.0)
    if deep is None:
        return table
    context, one, eight = deep
    more_one, more_eight = max(0.0, one - table.bare(1)), max(0.0, eight - table.bare(8))
    per_row = min(max(0.0, more_eight - more_one) / 7, more_one) / context
    return replace(table, per_token=more_one / context - per_row, per_row=per_row)


class Costs:
    """A table at work. ``pace`` is how much longer a pass takes now than in the table, ``bend`` how much dearer than
    that each further row is: a machine whose arithmetic others use bends, one whose memory they use is only slow.
    """

    def __init__(self, table: PassTable) -> None:
        self.table = table
        self.pace = 1.0
        self.bend = 1.0
        plain = table.bare(1)
        self._extra = [table.bare(rows) - plain for rows in range(TABLED + 1)]  # what rows add to a plain pass

    def extra(self, rows: int) -> float:
        """Return what a pass of so many rows costs beyond a plain one, without context, in the table's time."""
        beyond = self._extra[rows] if rows <= TABLED else self.table.bare(rows) - self.table.seconds[0]
        return beyond * self.bend

    def seconds(self, rows: int, context: int, seen: int) -> float:
        """Return what a pass takes, in the table's time: see ``PassTable.of``."""
        table = self.table
        return table.seconds[0] + self.extra(rows) + table.per_token * context + table.per_row * seen

    def steps(self, rows: int, count: int, length: int) -> list[float]:
        """Return what each of ``count`` rows costs that come to ``rows`` others and look back on ``length`` tokens."""
        look, bend = self.table.per_row * length, self.bend
        if rows + count > TABLED:
            return [self.extra(i + 1) - self.extra(i) + look for i in range(rows, rows + count)]
        part = self._extra[rows : rows + count + 1]
        return [(after - before) * bend + look for before, after in pairwise(part)]

    def learn(self, rows: int, context: int, seen: int, seconds: float) -> None:
        """Learn from a pass that really ran. A clock that jumped teaches nothing."""
        expected = self.seconds(rows, context, seen)
        if not 0.0 < seconds < _JUMP * expected * self.pace:
            return
        off = math.log(seconds / (expected * self.pace))
        off = max(-_STEP, min(_STEP, off))
        self.pace *= math.exp(_GAIN * off)
        if rows > 1:  # plain passes are the measure; the others bend against them, as far as their rows are the cost
            share = self.extra(rows) / expected
            follow = math.exp(_GAIN * off * share / (share * share + _DOUBT))
            self.bend = max(1.0 / _BENT, min(_BENT, self.bend * follow))

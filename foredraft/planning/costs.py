"""What a pass costs: a table measured on this machine, kept true by the rounds that really run.

Times of a shared machine are noisy to one side only: others make a pass slower, nobody makes it faster. What decides is
how costs compare, so the table holds shapes, measured once with the least of several, and ``pace`` follows the clock.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_GAIN: Final = 0.05  # of a round on the pace, and on its own number of rows
_STEP: Final = 0.25  # a round that took longer than so much over is counted as if it had taken that
MOST_ROWS: Final = 64  # measured; beyond, the last slope goes on


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

    def bare(self, rows: int) -> float:
        """Return the seconds of a pass of so many rows over no context."""
        if rows <= 1:
            return self.seconds[0]
        i = min(bisect_right(self.rows, rows), len(self.rows) - 1)
        low, high = self.rows[i - 1], self.rows[i]
        return self.seconds[i - 1] + (self.seconds[i] - self.seconds[i - 1]) * (rows - low) / (high - low)


def fitted(rows: Sequence[int], seconds: Sequence[float], deep: tuple[int, float, float]) -> PassTable:
    """Return the table of measured times. ``deep`` is (context, seconds of one row there, seconds of eight rows there).

    More rows cannot cost less: what says so is noise, and the lesser of two times is the truer.
    """
    steady = [min(seconds[i:]) for i in range(len(seconds))]
    context, one, eight = deep
    table = PassTable(tuple(rows), tuple(steady), 0.0, 0.0)
    more_one, more_eight = max(0.0, one - table.bare(1)), max(0.0, eight - table.bare(8))
    per_row = max(0.0, more_eight - more_one) / (7 * context)
    return PassTable(tuple(rows), tuple(steady), max(0.0, more_one / context - per_row), per_row)


class Costs:
    """A table at work: ``pace`` is how much longer passes take now than in the table, ``bent`` the same by rows."""

    def __init__(self, table: PassTable) -> None:
        self.table = table
        self.pace = 1.0
        self._bent = [1.0] * (MOST_ROWS + 1)
        self._plain = 0

    def seconds(self, rows: int, context: int, seen: int) -> float:
        """Return what a pass takes, in the table's time: see ``PassTable.of``."""
        return self.table.of(rows, context, seen) * self._bent[min(rows, MOST_ROWS)]

    def learn(self, rows: int, context: int, seen: int, seconds: float) -> None:
        """Learn from a pass that really ran. A clock that jumped teaches nothing."""
        expected = self.table.of(rows, context, seen)
        if not 0.0 < seconds < 1000.0 * expected:
            return
        number = min(rows, MOST_ROWS)
        off = math.log(seconds / (expected * self._bent[number] * self.pace))
        off = max(-_STEP, min(_STEP, off))
        self.pace *= math.exp(_GAIN * off)
        if rows > 1:  # plain passes are the measure; the others bend against them
            self._bent[number] *= math.exp(_GAIN * off / 2)

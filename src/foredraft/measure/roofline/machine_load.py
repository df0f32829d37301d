"""Whether a machine does nothing else: the same passes timed again and again, and how far their times lie apart.

Others make a pass slower and nobody makes it faster, so the least is the machine's own time, and a median far above it
says that others were there. Blocks of passes are spread over a measurement, for others come and go.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from foredraft.models.model import Model, Rows

BUSY: Final = 1.15  # median over least from which on others were at work; alone a machine stays within a few percent
ROWS: Final = (1, 8)
_SLOT: Final = (1 << 15) + 2  # above those that a target or a table of costs takes
_START: Final = 32  # tokens before the rows
_TURNS: Final = (2, 8)  # of a block, at least and at most
_SECONDS: Final = 0.5  # that a block may take, about


@dataclass(slots=True)
class Repeats:
    """Seconds of passes of ``ROWS`` rows, timed block by block. ``context`` is in tokens; ``clock`` tells seconds."""

    model: Model
    context: int
    clock: Callable[[], float] = perf_counter
    seconds: dict[int, list[float]] = field(default_factory=dict)

    def again(self) -> None:
        """Time another block; the model's slots are as before."""
        start = min(_START, max(0, self.context - max(ROWS)))
        sizes = [rows for rows in ROWS if start + rows <= self.context]
        try:
            if start:
                self._pass(0, start, 0)
            for rows in sizes:
                self._pass(start, rows, rows)  # pages and scratch memory as well
            began = self.clock()
            for turn in range(_TURNS[1]):
                if turn >= _TURNS[0] and self.clock() - began > _SECONDS:
                    break
                for rows in sizes:
                    before = self.clock()
                    self._pass(start, rows, rows)
                    self.seconds.setdefault(rows, []).append(self.clock() - before)
        finally:
            self.model.release(_SLOT)

    @property
    def spread(self) -> float:
        """Median over least of the row count that suffered most; 1 where nothing was timed."""
        ratios = [statistics.median(each) / min(each) for each in self.seconds.values() if min(each) > 0]
        return max(ratios, default=1.0)

    @property
    def busy(self) -> bool:
        """Whether others were at work meanwhile, so that no time can be relied on."""
        return self.spread >= BUSY

    def document(self) -> dict[str, Any]:
        """Return all of it under names, times in milliseconds."""
        return {
            "passes": [
                {
                    "rows": rows,
                    "times": len(each),
                    "least_ms": 1e3 * min(each),
                    "median_ms": 1e3 * statistics.median(each),
                    "most_ms": 1e3 * max(each),
                }
                for rows, each in self.seconds.items()
            ],
            "spread": self.spread,
            "busy": self.busy,
        }

    def _pass(self, start: int, rows: int, wanted: int) -> None:
        self.model.forward([Rows(_SLOT, start, (1,) * rows, tuple(range(-1, rows - 1)), wanted)])

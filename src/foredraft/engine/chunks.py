"""How much of a prompt is read between two rounds, by what reading takes here."""

from __future__ import annotations

from typing import Final

MIN_ROWS: Final = 16  # rows: fewer take hardly less time
MAX_ROWS: Final = 512  # rows that are read at once where nobody waits for a round
_GAIN: Final = 0.5
_SLOWER: Final = 4.0  # times what was known that one chunk can teach: a machine stalls now and then


class Chunks:
    """How many rows take ``seconds``, as measured: ``rows`` is a multiple of ``MIN_ROWS``, and at least that."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._row: float | None = None  # seconds that a row takes

    @property
    def rows(self) -> int:
        """How many rows to read before the next round of those that are running."""
        if self._row is None:
            return 2 * MIN_ROWS
        return max(MIN_ROWS, min(MAX_ROWS, int(self.seconds / self._row) // MIN_ROWS * MIN_ROWS))

    def learn(self, rows: int, seconds: float) -> None:
        """Learn what a chunk took. A short one says little of a row, a clock that jumped back nothing."""
        if rows < MIN_ROWS or not seconds > 0.0:
            return
        each = seconds / rows
        known = each if self._row is None else min(each, _SLOWER * self._row)
        self._row = known if self._row is None else self._row + _GAIN * (known - self._row)

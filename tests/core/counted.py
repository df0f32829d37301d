"""Counts of texts against their law."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any


def chi_square(counts: Counter[Any], law: dict[Any, float], total: int) -> float:
    """Return the statistic as a share of what it exceeds once in a million times; infinite for an impossible text."""
    if any(law.get(text, 0.0) == 0.0 for text in counts):
        return math.inf
    cells: list[tuple[float, float]] = []
    seen = expected = 0.0
    for text in sorted(law, key=lambda t: (law[t], t)):  # the rarest are pooled until five are expected
        seen, expected = seen + counts[text], expected + total * law[text]
        if expected >= 5:
            cells.append((seen, expected))
            seen = expected = 0.0
    if expected:
        last_seen, last_expected = cells.pop()
        cells.append((last_seen + seen, last_expected + expected))
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    freedom = len(cells) - 1
    spread = 2 / (9 * freedom)
    return float(statistic / (freedom * (1 - spread + 4.753424 * math.sqrt(spread)) ** 3))  # Wilson and Hilferty 1931

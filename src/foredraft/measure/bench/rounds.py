"""What rounds took and yielded, one by one, and what one may be expected to take by the rows of its pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from foredraft.core.protocols import Round


@dataclass(frozen=True, slots=True)
class Spent:
    """One decoding round of one answer: guesses, how many survived, tokens committed, and seconds of wall clock.

    ``rest_s`` is everything but the drafting: the pass over ``rows``, the rule, and what the drafter learnt.
    """

    drafted: int
    accepted: int
    tokens: int
    draft_s: float
    rest_s: float

    @property
    def rows(self) -> int:
        """Rows of the target's pass: the guesses and the token before them."""
        return self.drafted + 1

    @property
    def seconds(self) -> float:
        """The whole round."""
        return self.draft_s + self.rest_s


@dataclass(slots=True)
class Stopwatch:
    """A watch that notes the rounds of one answer that runs alone; the pass that reads the prompt is left out.

    ``clock`` is that of the rounds.
    """

    clock: Callable[[], float] = perf_counter
    rounds: list[Spent] = field(default_factory=list)

    def see(self, done: Round) -> None:
        """Note a round."""
        now = self.clock()
        (sequence,), (outcome,) = done.sequences, done.outcomes
        if not outcome.tokens or len(sequence) - len(outcome.tokens) == sequence.prompt_length:
            return
        draft_s = done.drafted - done.began
        self.rounds.append(
            Spent(len(outcome.draft), outcome.accepted, len(outcome.tokens), draft_s, now - done.began - draft_s)
        )


class RowCosts:
    """Seconds that a round takes beside its drafting, by the rows of its pass: the mean of those that were measured.

    More rows never cost less: means that say so are pooled with their neighbours (isotonic regression, each row count
    weighted by its rounds). Between measured row counts it is linear, beyond them constant.
    Raises ValueError where no round was measured.
    """

    def __init__(self, rounds: Iterable[Spent]) -> None:
        times: dict[int, list[float]] = {}
        for each in rounds:
            times.setdefault(each.rows, []).append(each.rest_s)
        if not times:
            raise ValueError("no round was measured")
        self.counts: Mapping[int, int] = {rows: len(times[rows]) for rows in sorted(times)}
        self._rows = tuple(self.counts)
        self._seconds = _rising([(sum(times[rows]) / len(times[rows]), len(times[rows])) for rows in self._rows])

    def __call__(self, rows: int) -> float:
        """Return the seconds of a pass over so many rows, and what is done about it."""
        return float(np.interp(rows, self._rows, self._seconds))


def _rising(means: list[tuple[float, int]]) -> list[float]:
    """Return the numbers nearest to the means, by weight, that never fall (pool adjacent violators)."""
    pools: list[tuple[float, int, int]] = []  # mean, weight, how many it stands for
    for mean, weight in means:
        pools.append((mean, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, wa, na), (b, wb, nb) = pools[-2:]
            pools[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return [mean for mean, _, many in pools for _ in range(many)]

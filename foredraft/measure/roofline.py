"""What this machine allows: seconds of a pass by its rows, and what follows for draft lengths and batches.

One reading of the weights serves every row of a pass, until arithmetic is what takes the time. Guesses use what is idle
between the two. Speed-up of k guesses, each right with chance a, against plain decoding of the same batch b:

    (1 + a + ... + a^k) * t(b) / (t(b * (k + 1)) + b * (k + 1) * c)

with t the seconds of a pass and c those of drafting a guess (Leviathan et al. 2022, arXiv 2211.17192, theorem 3.8, with
a measured t in place of a constant one).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from foredraft.compose import Host
from foredraft.core.draft import Drafter
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import Sequence as Text
from foredraft.engine.loop import run
from foredraft.engine.planner import FixedPlanner
from foredraft.planning.choose import Chooser
from foredraft.planning.costs import PassTable
from foredraft.planning.measured import measure

LENGTHS: Final = 15  # guesses at most
CHANCES: Final = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PAYS: Final = 1.02  # less is within the noise
_DRAFTED: Final = 4  # guesses a round with which acceptance is observed


@dataclass(frozen=True, slots=True)
class Guesser:
    """One drafter on the prompts: the chance of its first guess, seconds a guess, how often it has one to make."""

    name: str
    tested: int
    chance: float
    seconds: float
    answers: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """What was measured. ``floor`` is the seconds of one reading of the weights; None where that cannot be measured."""

    table: PassTable
    floor: float | None
    guessers: tuple[Guesser, ...]

    def speedup(self, chance: float, length: int, seconds: float = 0.0, batch: int = 1) -> float:
        """Return what a draft length is expected to give against plain decoding, which is 1."""
        tokens = sum(chance**i for i in range(length + 1))
        drafting = batch * seconds * (length + 1) if length else 0.0
        return tokens * self.table.bare(batch) / (self.table.bare(batch * (length + 1)) + drafting)

    def best(self, chance: float, seconds: float = 0.0, batch: int = 1) -> tuple[float, int]:
        """Return the greatest speed-up over draft lengths, none among them, and its length."""
        return max((self.speedup(chance, k, seconds, batch), -k) for k in range(LENGTHS + 1))

    def ends(self, chance: float, seconds: float = 0.0) -> int | None:
        """Return the smallest batch from which on no draft length pays; None where even the largest one gains."""
        gains = [self.best(chance, seconds, batch)[0] >= PAYS for batch in BATCHES]
        last = max((i for i, pays in enumerate(gains) if pays), default=-1)
        return BATCHES[last + 1] if last + 1 < len(BATCHES) else None

    def document(self) -> dict[str, Any]:
        """Return all of it under names, times in milliseconds."""
        table, plain = self.table, self.table.bare(1)
        curves = [self._curve(f"{chance:.1f}", chance, 0.0) for chance in CHANCES]
        return {
            "rows": list(table.rows),
            "pass_ms": [1e3 * s for s in table.seconds],
            "relative": [s / plain for s in table.seconds],
            "context_us_per_1000_tokens": [1e9 * table.per_token, 1e9 * table.per_row],
            "weights_once_ms": None if self.floor is None else 1e3 * self.floor,
            "rows_for_one_pass": max(m for m in table.rows if table.bare(m) < 2 * plain),
            "marginal_row_ms": 1e3 * (table.bare(64) - table.bare(32)) / 32,
            "curves": curves,
            "drafters": [
                {
                    "tested": g.tested,
                    "guess_ms": 1e3 * g.seconds,
                    "has_a_guess": g.answers,
                    **self._curve(g.name, g.chance, g.seconds),
                }
                for g in self.guessers
            ],
        }

    def _curve(self, name: str, chance: float, seconds: float) -> dict[str, Any]:
        speedup, length = self.best(chance, seconds)
        return {
            "name": name,
            "acceptance": chance,
            "speedup": [self.speedup(chance, k, seconds) for k in range(LENGTHS + 1)],
            "best_length": -length,
            "best_speedup": speedup,
            "batches": list(BATCHES),
            "best_by_batch": [self.best(chance, seconds, batch)[0] for batch in BATCHES],
            "stops_at_batch": self.ends(chance, seconds),
        }


def measured(host: Host, drafters: Sequence[Drafter], prompts: Sequence[Sequence[int]], tokens: int) -> Roofline:
    """Time passes, and let each drafter guess in greedy answers of so many ``tokens`` to some prompts of token ids."""
    model = host.target.model
    table = measure(model, host.context)
    read = getattr(model, "floor", None)
    floor = None if read is None else min(float(read()) for _ in range(5))
    return Roofline(table, floor, tuple(_observed(host, drafter, prompts, tokens) for drafter in drafters))


def _observed(host: Host, drafter: Drafter, prompts: Sequence[Sequence[int]], tokens: int) -> Guesser:
    chooser = Chooser([drafter])
    ends = frozenset(() if host.tokenizer is None else host.tokenizer.stop_ids)
    for prompt in prompts:
        limit = min(len(prompt) + tokens, host.context)
        text = Text(list(prompt), limit, SamplingParams(), stop_ids=ends)
        with closing(run([text], host.target, chooser, FixedPlanner(_DRAFTED))) as rounds:
            for _ in rounds:
                pass
    (source,) = chooser.sources
    acceptance = source.acceptance
    chance = acceptance.accepted / acceptance.tested if acceptance.tested else 0.0
    return Guesser(source.name, acceptance.tested, chance, source.unit or 0.0, source.answers)

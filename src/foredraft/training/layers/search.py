"""The search for the sub-layers that draft best: by predicted tokens a second, never by agreement alone.

Early exits first, all in one pass; then every sub-layer left out by itself, which ranks them by the agreement they cost
for the time they save; then the first few of that ranking together, for every few; then greedily, from half of the best
few on; then local search from the best of all: one sub-layer in or out, or one swapped for another. The order is the
same each time, so a search that is resumed runs through what it knows at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from foredraft.training.layers.costs import Costs
from foredraft.training.layers.state import State
from foredraft.training.layers.windows import Runs, Windows

BEAM: Final = 6  # sub-layers that are tried for the next place of the greedy phase
HOPELESS: Final = 0.25  # agreement below which the greedy phase ends
PHASES: Final = ("early exits", "one left out", "the first few", "greedily", "local search")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set of sub-layers, and what the costs make of it."""

    sub_layers: tuple[int, ...]
    runs: Runs
    speedup: float
    length: int

    @property
    def worth(self) -> tuple[float, int]:
        """What candidates are compared by: the speed-up, and of equals the fewer sub-layers."""
        return self.speedup, -len(self.sub_layers)


class LayerSearch:
    """Looks for the best set among ``2 * layers`` sub-layers.

    ``over`` is asked before each set is tried; ``tell`` hears of each phase and the best so far.
    """

    def __init__(
        self,
        windows: Windows,
        costs: Costs,
        state: State,
        over: Callable[[], bool],
        tell: Callable[[str, Candidate | None], None],
    ) -> None:
        self.windows = windows
        self.costs = costs
        self.state = state
        self.candidates: dict[tuple[int, ...], Candidate] = {}
        self.complete = False
        self._all = tuple(range(2 * windows.model.layers))
        self._over = over
        self._tell = tell
        self._phase = PHASES[0]
        self._order: Sequence[int] = self._all
        self._half = 0

    def run(self) -> None:
        """Search until nothing better is near, or ``over`` says so. Ctrl-C ends it too, and keeps what was found."""
        try:
            steps = (self._exits, self._singles, self._ranked, self._greedily, self._around)
            for phase, step in zip(PHASES, steps, strict=True):
                self._phase = phase
                self._tell(phase, self.best)
                step()
            self.complete = True
        except (_Over, KeyboardInterrupt):
            pass
        finally:
            self.state.write()

    @property
    def best(self) -> Candidate | None:
        """The best so far."""
        return max(self.candidates.values(), key=lambda c: c.worth, default=None)

    def leaders(self, count: int) -> list[Candidate]:
        """Return the best few."""
        return sorted(self.candidates.values(), key=lambda c: c.worth, reverse=True)[:count]

    def _look(self, sub_layers: Sequence[int]) -> Candidate:
        """Judge a set, from memory if it is known."""
        chosen = tuple(sorted(sub_layers))
        if (known := self.candidates.get(chosen)) is not None:
            return known
        if (runs := self.state.tried.get(chosen)) is None:
            if self._over():
                raise _Over
            runs = self.windows.runs(chosen)
            self.state.note(chosen, runs)
        return self._weigh(chosen, runs)

    def _weigh(self, chosen: tuple[int, ...], runs: Runs) -> Candidate:
        candidate = Candidate(chosen, runs, *self.costs.best(runs, chosen))
        self.candidates[chosen] = candidate
        self._tell(self._phase, self.best)
        return candidate

    def _exits(self) -> None:
        depths = range(1, self.windows.model.layers)
        known = [self.state.tried.get(self._all[: 2 * depth]) for depth in depths]
        found = known if None not in known else self.windows.exits()
        for depth, runs in zip(depths, found, strict=True):
            if runs is not None:
                self.state.tried[self._all[: 2 * depth]] = runs
                self._weigh(self._all[: 2 * depth], runs)

    def _singles(self) -> None:
        for part in self._all:
            self._look(self._without((part,)))
        full = self.costs.step(self._all)

        def price(part: int) -> float:
            alone = self._look(self._without((part,)))
            return (1.0 - alone.runs.agreement) / max(1e-12, full - self.costs.step(alone.sub_layers))

        self._order = sorted(self._all, key=price)

    def _ranked(self) -> None:
        """Leave out the first few of the ranking, one more each time, until little agrees."""
        ranked = []
        for count in range(1, len(self._all)):
            ranked.append(self._look(self._without(self._order[:count])))
            if ranked[-1].runs.agreement < HOPELESS:
                break
        best = max(ranked, key=lambda c: c.worth)
        self._half = (len(self._all) - len(best.sub_layers)) // 2

    def _greedily(self) -> None:
        """Leave out one more each time, whichever of the next few in the ranking does best."""
        order = list(self._order[self._half :])
        chosen = self._without(self._order[: self._half])
        while len(chosen) > 1:
            near = (tuple(part for part in chosen if part != out) for out in order[:BEAM])
            best = max((self._look(each) for each in near), key=lambda c: c.worth)
            if best.runs.agreement < HOPELESS:
                return
            order = [part for part in order if part in best.sub_layers]
            chosen = best.sub_layers

    def _around(self) -> None:
        """Change the best set a little, as long as that makes it better."""
        chance = random.Random(0)
        here = self.best
        while here is not None and (better := self._better_than(here, chance)) is not None:
            here = better

    def _better_than(self, here: Candidate, chance: random.Random) -> Candidate | None:
        inside, outside = set(here.sub_layers), set(self._all) - set(here.sub_layers)
        flips: list[set[int]] = [inside ^ {part} for part in self._all]
        swaps: list[set[int]] = [inside - {a} | {b} for a in inside for b in outside]
        chance.shuffle(flips)
        chance.shuffle(swaps)
        for near in [*flips, *swaps[: len(flips)]]:
            if near and len(near) < len(self._all) and (found := self._look(tuple(near))).worth > here.worth:
                return found
        return None

    def _without(self, left_out: Sequence[int]) -> tuple[int, ...]:
        return tuple(part for part in self._all if part not in left_out)


class _Over(Exception):  # noqa: N818 - not an error: the time is up
    """The time is up."""

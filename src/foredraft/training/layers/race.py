"""One answer generated plainly and drafting, side by side, and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from foredraft.core.protocols import Drafter
from foredraft.core.round import run_round
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.none import NoDrafter
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.training.layers.answers import Answer, greedy_text
from foredraft.training.layers.costs import round_way, step_way

EVERY: Final = 4  # plain rounds of a race for each time that the parts are timed


@dataclass(slots=True)
class Race:
    """One answer generated twice, a round of whichever lags behind: whatever else the machine does slows both down.

    Seconds: of each plain and each drafting round; of rounds that check that many guesses, and of draft steps, taken in
    the middle of the answer every few tokens.
    """

    plain: list[float]
    drafted: list[float]
    checks: list[float]
    steps: list[float]
    same: bool = False

    @classmethod
    def run(
        cls,
        loaded: LoadedModel,
        answer: Answer,
        drafter: ModelDrafter,
        length: int,
        over: Callable[[], bool] = lambda: False,
    ) -> Race:
        """Run it, until ``over`` says so where both are as long. The rounds that read the prompt do not count."""
        race = cls([], [], [], [])
        sequences = [greedy_text(loaded, answer.tokens[: answer.prompt], answer.length) for _ in range(2)]
        lanes: list[tuple[TokenSequence, Drafter, int, list[float]]] = [
            (sequences[0], NoDrafter(), 0, race.plain),
            (sequences[1], drafter, length, race.drafted),
        ]
        check = round_way(loaded, answer, length)
        step = step_way(loaded, answer, drafter, length)
        try:
            for sequence in sequences:
                loaded.target.begin(sequence)
                run_round([sequence], loaded.target, NoDrafter(), FixedPlanner(0))
            while going := [lane for lane in lanes if lane[0].finish_reason is None]:
                sequence, guesser, guesses, times = min(going, key=lambda lane: len(lane[0]))
                began = perf_counter()
                run_round([sequence], loaded.target, guesser, FixedPlanner(guesses))
                times.append(perf_counter() - began)
                if times is race.plain and (len(times) % EVERY == 0 or not race.checks):
                    race.checks.append(check())
                    race.steps.append(step())
                if race.drafted and len(sequences[0]) == len(sequences[1]) and over():
                    break
        finally:
            for sequence in sequences:
                loaded.target.end(sequence)
        race.same = sequences[0].tokens == sequences[1].tokens
        return race

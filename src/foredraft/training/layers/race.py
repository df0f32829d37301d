"""One answer generated plainly and drafting, side by side, and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from foredraft.core.protocols import Drafter
from foredraft.core.round import run_round
from foredraft.core.sequence import Sequence as Text
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.none import NoDrafter
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.runtime.host import Host
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
        cls, host: Host, answer: Answer, drafter: ModelDrafter, length: int, over: Callable[[], bool] = lambda: False
    ) -> Race:
        """Run it, until ``over`` says so where both are as long. The rounds that read the prompt do not count."""
        race = cls([], [], [], [])
        texts = [greedy_text(host, answer.tokens[: answer.prompt], answer.length) for _ in range(2)]
        lanes: list[tuple[Text, Drafter, int, list[float]]] = [
            (texts[0], NoDrafter(), 0, race.plain),
            (texts[1], drafter, length, race.drafted),
        ]
        check = round_way(host, answer, length)
        step = step_way(host, answer, drafter, length)
        try:
            for text in texts:
                host.target.begin(text)
                run_round([text], host.target, NoDrafter(), FixedPlanner(0))
            while going := [lane for lane in lanes if lane[0].finish_reason is None]:
                text, guesser, guesses, times = min(going, key=lambda lane: len(lane[0]))
                began = perf_counter()
                run_round([text], host.target, guesser, FixedPlanner(guesses))
                times.append(perf_counter() - began)
                if times is race.plain and (len(times) % EVERY == 0 or not race.checks):
                    race.checks.append(check())
                    race.steps.append(step())
                if race.drafted and len(texts[0]) == len(texts[1]) and over():
                    break
        finally:
            for text in texts:
                host.target.end(text)
        race.same = texts[0].tokens == texts[1].tokens
        return race

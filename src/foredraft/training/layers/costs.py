"""What a round costs on this machine: measured through the code that runs it, ways taking turns, the least of several.

With ``r(k)`` the seconds of a round that checks k guesses and ``s`` those of a draft step, k guesses that yield N
tokens a round speed decoding up by ``N r(0) / (r(k) + k s)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Quote
from foredraft.core.round import run_round
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.none import NoDrafter
from foredraft.engine.fixed_planner import FixedPlanner, FixedQuote
from foredraft.models.views.sub_layers import LayersView
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.training.layers.answers import Answer, greedy_text
from foredraft.training.layers.windows import WIDTH, Runs

TURNS: Final = 15
STEPS: Final = 2  # draft steps that are timed together


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: of a round by its guesses; of a draft step without layers, and what each sub-layer adds to it."""

    rounds: tuple[float, ...]  # [WIDTH + 1]
    base: float
    attention: float
    mlp: float

    def step(self, sub_layers: Sequence[int]) -> float:
        """Return the seconds of a draft step."""
        mlp = sum(part % 2 for part in sub_layers)
        return self.base + mlp * self.mlp + (len(sub_layers) - mlp) * self.attention

    def speedup(self, tokens: float, length: int, step: float) -> float:
        """Return the speed-up of rounds that yield so many tokens from so many guesses."""
        return tokens * self.rounds[0] / (self.rounds[length] + length * step)

    def best(self, runs: Runs, sub_layers: Sequence[int]) -> tuple[float, int]:
        """Return the best speed-up for a set, and the draft length that gives it."""
        step = self.step(sub_layers)
        return max((self.speedup(runs.expected(k), k, step), k) for k in range(1, WIDTH + 1))


def measure_costs(loaded: LoadedModel, answers: Sequence[Answer], layers: int, turns: int = TURNS) -> Costs:
    """Measure in the middle of an answer of middling length."""
    answer = sorted(answers, key=lambda a: len(a.tokens))[len(answers) // 2]
    sets = {
        "first": (0,),
        "attentions": range(0, 2 * layers, 2),
        "gates": range(1, 2 * layers, 2),
        "all": range(2 * layers),
    }
    ways = {str(k): round_way(loaded, answer, k) for k in range(WIDTH + 1)}
    for name, sub_layers in sets.items():
        drafter = ModelDrafter(LayersView(loaded.target, sub_layers), loaded.target.vocabulary)
        ways[name] = step_way(loaded, answer, drafter)
    least = {name: min(times) for name, times in take_turns(ways, turns).items()}
    # more guesses cannot cost less, and whatever else the machine does only adds
    rounds = tuple(min(least[str(more)] for more in range(k, WIDTH + 1)) for k in range(WIDTH + 1))
    attention = max(0.0, least["all"] - least["gates"]) / layers
    mlp = max(0.0, least["all"] - least["attentions"]) / layers
    return Costs(rounds, max(0.0, least["first"] - attention), attention, mlp)


def take_turns(ways: dict[str, Callable[[], float]], turns: int, warm: int = 1) -> dict[str, list[float]]:
    """Return the seconds of each way, all taking turns, after ``warm`` turns that do not count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-warm, turns):
        for name, way in ways.items():
            seconds = way()
            if turn >= 0:
                times[name].append(seconds)
    return times


def round_way(loaded: LoadedModel, answer: Answer, guesses: int) -> Callable[[], float]:
    """Return a way to time one round that checks so many guesses, most of them wrong."""
    drafter = _Repeat() if guesses else NoDrafter()
    planner = FixedPlanner(guesses)

    def way() -> float:
        sequence = _middle(loaded, answer)
        began = perf_counter()
        run_round([sequence], loaded.target, drafter, planner)
        seconds = perf_counter() - began
        loaded.target.end(sequence)
        return seconds

    return way


def step_way(loaded: LoadedModel, answer: Answer, drafter: ModelDrafter, steps: int = STEPS) -> Callable[[], float]:
    """Return a way to time one draft step, the mean of a draft of ``steps``."""

    def way() -> float:
        sequence = _middle(loaded, answer)
        began = perf_counter()
        drafts = drafter.propose([sequence], [FixedQuote(steps)], [sequence.noise.at(len(sequence))])
        seconds = perf_counter() - began
        loaded.target.end(sequence)
        return seconds / max(1, len(drafts[0]))

    return way


def _middle(loaded: LoadedModel, answer: Answer) -> TokenSequence:
    """Return a sequence half-way through an answer, its slot holding all but its last token."""
    sequence = greedy_text(loaded, answer.tokens[: answer.prompt + max(1, answer.length // 2)], WIDTH + 1)
    sequence.prompt_length = answer.prompt
    loaded.target.begin(sequence)
    if loaded.target.reused(sequence) < len(sequence) - 1:  # the first time, and after another text had the slot
        loaded.target.score([sequence], [Draft()])
        loaded.target.rewind(sequence, len(sequence) - 1)
    return sequence


class _Repeat:
    """Guesses the last token again and again: a draft that costs nothing."""

    name = "repeat"
    taps: tuple[int, ...] = ()

    def begin(self, sequence: TokenSequence) -> None:
        """Do nothing."""

    def propose(
        self,
        sequences: Sequence[TokenSequence],
        quotes: Sequence[Quote],
        noises: Sequence[Noise],  # noqa: ARG002 - nothing is drawn
    ) -> list[Draft]:
        """Fill each quote."""
        return [Draft.chain(s.tokens[-1:] * q.limit) for s, q in zip(sequences, quotes, strict=True)]

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Do nothing."""

    def end(self, sequence: TokenSequence) -> None:
        """Do nothing."""

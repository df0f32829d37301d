"""A set of sub-layers at work: what its rounds really yield, and what generation then really takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from time import perf_counter
from typing import Final

from foredraft.compose import Host
from foredraft.core.draft import Drafter
from foredraft.core.round import run_round
from foredraft.core.sequence import Sequence as Text
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.none import NoDrafter
from foredraft.engine.planner import FixedPlanner
from foredraft.engine.tally import Tally
from foredraft.models.layers_view import LayersView
from foredraft.training.answers import Answer, greedy_text, run_all
from foredraft.training.costs import round_way, step_way
from foredraft.training.layer_search import Candidate
from foredraft.training.windows import WIDTH

EVERY: Final = 4  # plain rounds of a race for each time that the parts are timed


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a set: predicted from its rounds and the costs of their parts, and measured whole."""

    candidate: Candidate
    length: int
    tokens_a_round: float
    cost: float  # of a draft step, in plain rounds
    predicted: float  # speed-up
    measured: float
    plain_tokens_per_s: float
    identical: int  # answers with and without drafting that are the same, token for token
    answers: int


def drafter_of(host: Host, sub_layers: Sequence[int]) -> ModelDrafter:
    """Return the drafter that runs these sub-layers."""
    return ModelDrafter(LayersView(host.target, sub_layers), host.target.vocabulary, name="layers")


def walk(host: Host, answers: Sequence[Answer], sub_layers: Sequence[int], length: int) -> list[float]:
    """Generate the answers again, drafting so many tokens a round; return the tokens a round yields at 1 to ``length``.

    Unlike windows, rounds begin where the last one ended. What shorter drafts would have yielded is read off the rounds
    of the longest.
    """
    tally = Tally()
    texts = [greedy_text(host, answer.tokens[: answer.prompt], answer.length) for answer in answers]
    run_all(host, texts, drafter_of(host, sub_layers), length, [tally])
    reached = [*tally.total.accepted_per_position, *[0] * length][:length]
    rounds = max(1, tally.passes)
    return [1.0 + sum(reached[:k]) / rounds for k in range(1, length + 1)]


def measure(
    host: Host,
    answers: Sequence[Answer],
    candidate: Candidate,
    length: int,
    repeats: int,
    tell: Callable[[int, int], bool],
) -> Trial:
    """Generate each answer plainly and drafting, side by side, ``repeats`` times, timing the parts in between.

    ``tell`` hears (done, of) and may end it by saying no, once there is an answer.
    """
    drafter = drafter_of(host, candidate.sub_layers)
    done: list[Answer] = []
    races: list[_Race] = []
    for answer in answers:
        if not tell(len(done), len(answers)) and done:
            break
        races += [_Race.run(host, answer, drafter, length) for _ in range(repeats)]
        done.append(answer)
    plain = fmean(chain.from_iterable(race.plain for race in races))
    drafted = sum(sum(race.drafted) for race in races)
    check = fmean(chain.from_iterable(race.checks for race in races))
    step = fmean(chain.from_iterable(race.steps for race in races))
    yields = walk(host, done, candidate.sub_layers, length)[-1]
    return Trial(
        candidate=candidate,
        length=length,
        tokens_a_round=yields,
        cost=step / plain,
        predicted=yields * plain / (check + length * step),
        measured=sum(sum(race.plain) for race in races) / drafted,
        plain_tokens_per_s=1.0 / plain,
        identical=sum(all(race.same for race in races[i : i + repeats]) for i in range(0, len(races), repeats)),
        answers=len(done),
    )


@dataclass(slots=True)
class _Race:
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
    def run(cls, host: Host, answer: Answer, drafter: ModelDrafter, length: int) -> _Race:
        """Run it. The rounds that read the prompt do not count."""
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
                if times is race.plain and len(times) % EVERY == 0:
                    race.checks.append(check())
                    race.steps.append(step())
        finally:
            for text in texts:
                host.target.end(text)
        race.same = texts[0].tokens == texts[1].tokens
        return race


def best_trial(
    host: Host,
    answers: Sequence[Answer],
    costs_of: Callable[[float, int, Candidate], float],
    leaders: Sequence[Candidate],
) -> tuple[Candidate, int]:
    """Return which of a search's leaders does best in real rounds, and at which draft length."""
    found = []
    for place, leader in enumerate(leaders):
        longest = min(WIDTH, leader.length + 2)
        for k, tokens in enumerate(walk(host, answers, leader.sub_layers, longest), 1):
            found.append((costs_of(tokens, k, leader), -place, k))
    _, place, length = max(found)
    return leaders[-place], length

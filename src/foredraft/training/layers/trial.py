"""A set of sub-layers at work: what its rounds really yield, and what generation then really takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Final

from foredraft.drafters.model import ModelDrafter
from foredraft.engine.watches.tally import Tally
from foredraft.models.views.sub_layers import LayersView
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.training.layers.answers import Answer, greedy_text, run_all
from foredraft.training.layers.race import Race
from foredraft.training.layers.search import Candidate
from foredraft.training.layers.windows import WIDTH

STUDENT: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20)  # at 95 %, 1 degree of freedom on


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a set: predicted from its rounds and the costs of their parts, and measured whole."""

    candidate: Candidate
    length: int
    tokens_a_round: float
    cost: float  # of a draft step, in plain rounds
    predicted: float  # speed-up
    measured: float
    repeats: tuple[float, ...]  # the speed-up that each repeat measured
    interval: tuple[float, float]  # where it lies for other answers and other moments, at 95 %
    tokens: int  # measured each way
    plain_tokens_per_s: float
    identical: int  # answers with and without drafting that are the same, token for token
    answers: int


def drafter_of(loaded: LoadedModel, sub_layers: Sequence[int]) -> ModelDrafter:
    """Return the drafter that runs these sub-layers."""
    return ModelDrafter(LayersView(loaded.target, sub_layers), loaded.target.vocabulary, name="layers")


def walk(
    loaded: LoadedModel,
    answers: Sequence[Answer],
    sub_layers: Sequence[int],
    length: int,
    over: Callable[[], bool] = lambda: False,
) -> list[float]:
    """Generate the answers again, drafting so many tokens a round; return the tokens a round yields at 1 to ``length``.

    Unlike windows, rounds begin where the last one ended. What shorter drafts would have yielded is read off the rounds
    of the longest. ``over`` may end it after any round.
    """
    tally = Tally()
    sequences = [greedy_text(loaded, answer.tokens[: answer.prompt], answer.length) for answer in answers]
    run_all(loaded, sequences, drafter_of(loaded, sub_layers), length, [tally], over)
    reached = [*tally.total.accepted_per_position, *[0] * length][:length]
    rounds = max(1, tally.passes)
    return [1.0 + sum(reached[:k]) / rounds for k in range(1, length + 1)]


def measure(
    loaded: LoadedModel,
    answers: Sequence[Answer],
    candidate: Candidate,
    length: int,
    repeats: int,
    tell: Callable[[int, int], bool],
) -> Trial:
    """Generate each answer plainly and drafting, side by side, ``repeats`` times, timing the parts in between.

    ``tell`` hears (done, of) and may end it by saying no: before an answer, once there is one, and in the midst of it.
    """
    drafter = drafter_of(loaded, candidate.sub_layers)
    done: list[Answer] = []
    races: list[Race] = []

    def late() -> bool:
        return not tell(len(done), len(answers))

    for answer in answers:
        if late() and done:
            break
        races += [Race.run(loaded, answer, drafter, length, late) for _ in range(repeats)]
        done.append(answer)
    plain = fmean(chain.from_iterable(race.plain for race in races))
    drafted = sum(sum(race.drafted) for race in races)
    check = fmean(chain.from_iterable(race.checks for race in races))
    step = fmean(chain.from_iterable(race.steps for race in races))
    yields = walk(loaded, done, candidate.sub_layers, length)[-1]
    return Trial(
        candidate=candidate,
        length=length,
        tokens_a_round=yields,
        cost=step / plain,
        predicted=yields * plain / (check + length * step),
        measured=sum(sum(race.plain) for race in races) / drafted,
        repeats=tuple(_ratio(races[i::repeats]) for i in range(repeats)),
        interval=_interval(races, repeats),
        tokens=sum(len(race.plain) for race in races),
        plain_tokens_per_s=1.0 / plain,
        identical=sum(all(race.same for race in races[i : i + repeats]) for i in range(0, len(races), repeats)),
        answers=len(done),
    )


def _ratio(races: Sequence[Race]) -> float:
    return sum(sum(race.plain) for race in races) / sum(sum(race.drafted) for race in races)


def _interval(races: Sequence[Race], repeats: int) -> tuple[float, float]:
    """Return where the speed-up lies at 95 %: a ratio of sums over answers (Student), and no narrower than its repeats.

    One answer says nothing of others: from 0 to twice what was measured.
    """
    groups = [races[i : i + repeats] for i in range(0, len(races), repeats)]
    ratio, n = _ratio(races), len(groups)
    if n == 1:
        return 0.0, 2.0 * ratio
    plain = [sum(sum(race.plain) for race in group) for group in groups]
    drafted = [sum(sum(race.drafted) for race in group) for group in groups]
    rest = sum((p - ratio * d) ** 2 for p, d in zip(plain, drafted, strict=True))
    reach = STUDENT[min(n, len(STUDENT) + 1) - 2] * math.sqrt(rest * n / (n - 1)) / sum(drafted)
    each = [_ratio(races[i::repeats]) for i in range(repeats)]
    return max(0.0, min(ratio - reach, *each)), max(ratio + reach, *each)


def best_trial(
    loaded: LoadedModel,
    answers: Sequence[Answer],
    costs_of: Callable[[float, int, Candidate], float],
    leaders: Sequence[Candidate],
    over: Callable[[], bool] = lambda: False,
) -> tuple[Candidate, int]:
    """Return which of a search's leaders does best in real rounds, and at which draft length.

    Once ``over`` says so, the leaders that are left are not tried.
    """
    found = []
    for place, leader in enumerate(leaders):
        longest = min(WIDTH, leader.length + 2)
        for k, tokens in enumerate(walk(loaded, answers, leader.sub_layers, longest, over), 1):
            found.append((costs_of(tokens, k, leader), -place, k))
        if over():
            break
    _, place, length = max(found)
    return leaders[-place], length

"""What rounds brought in the last seconds, over all answers: for whoever watches a server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Final

from foredraft.core.protocols import Round
from foredraft.runtime.planner import Planning
from foredraft.serving.scoring import PromptDrafter

WINDOW_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    seconds: float
    answers: int
    context: int
    tokens: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Guesses a sequence and round, their acceptance, tokens a sequence and pass, tokens a second; None without rounds.

    ``plain_tokens_per_s`` is what one text gives without guesses, ``speedup`` tokens a second over what plain rounds of
    as many answers would have given; both by the planner's costs, None where passes were never timed. ``decisions``
    counts rounds of one sequence with and without guesses since the start.
    """

    draft_length: float | None
    acceptance: float | None
    tokens_per_pass: float | None
    tokens_per_s: float | None
    plain_tokens_per_s: float | None
    speedup: float | None
    decisions: dict[str, int]


class RecentRounds:
    """A Watch that remembers the rounds of the last ``window`` seconds. Rounds that read prompts are not counted."""

    def __init__(self, planning: Planning, window: float = WINDOW_S, clock: Callable[[], float] = perf_counter) -> None:
        self._planning = planning
        self._window = window
        self._clock = clock
        self._lock = Lock()
        self._seen: deque[_Seen] = deque()
        self._decisions = {"draft": 0, "plain": 0}

    def see(self, done: Round) -> None:
        """Remember a round."""
        now = self._clock()
        both = [
            (s, o)
            for s, o in zip(done.sequences, done.outcomes, strict=True)
            if len(s) - len(o.tokens) > s.prompt_length and o.draft.source != PromptDrafter.name
        ]
        with self._lock:
            self._prune(now)
            if not both:
                return
            guessed = sum(len(o.draft) > 0 for _, o in both)
            self._decisions["draft"] += guessed
            self._decisions["plain"] += len(both) - guessed
            if len(both) == len(done.sequences):
                self._seen.append(
                    _Seen(
                        at=now,
                        seconds=now - done.began,
                        answers=len(both),
                        context=sum(len(s) for s, _ in both),
                        tokens=sum(len(o.tokens) for _, o in both),
                        drafted=sum(len(o.draft) for _, o in both),
                        accepted=sum(o.accepted for _, o in both),
                    )
                )

    def figures(self) -> Figures:
        """Return what the last seconds brought."""
        with self._lock:
            self._prune(self._clock())
            seen, decisions = list(self._seen), dict(self._decisions)
        plain = self._planning.plain_seconds(1, seen[-1].context // seen[-1].answers if seen else 0)
        alone = None if plain is None else 1 / plain
        if not seen:
            return Figures(None, None, None, None, alone, None, decisions)
        passes, tokens = sum(each.answers for each in seen), sum(each.tokens for each in seen)
        drafted, seconds = sum(each.drafted for each in seen), sum(each.seconds for each in seen)
        answers, context = round(passes / len(seen)), sum(each.context for each in seen) // len(seen)
        as_many = self._planning.plain_seconds(max(1, answers), context)
        speed = tokens / seconds if seconds > 0 else None
        return Figures(
            draft_length=drafted / passes,
            acceptance=sum(each.accepted for each in seen) / drafted if drafted else None,
            tokens_per_pass=tokens / passes,
            tokens_per_s=speed,
            plain_tokens_per_s=alone,
            speedup=None if speed is None or as_many is None else speed * as_many / max(1, answers),
            decisions=decisions,
        )

    def _prune(self, now: float) -> None:
        while self._seen and self._seen[0].at < now - self._window:
            self._seen.popleft()

"""What a benchmark's runs say: speed-ups by task and their spread, beside the oracle and the best fixed length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from foredraft.measure.bench.bench import PLAIN, Answered, Bench, PeerRuns, Runs
from foredraft.measure.bench.rounds import RowCosts

RESAMPLES: Final = 2000
_FIGURES: Final = (
    "plain_tokens_per_s", "tokens_per_s", "speedup", "mean_tokens_per_pass", "acceptance_rate", "oracle_speedup",
    "percent_of_oracle", "best_fixed", "percent_of_best_fixed", "interval", "spread", "worst_task",
)  # fmt: skip
_QUANTILES: Final = {"least": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "most": 1.0}


@dataclass(frozen=True, slots=True)
class Speed:
    """Decoded tokens, those of the pass that reads the prompt left out, and the seconds they took."""

    tokens: int
    seconds: float

    @classmethod
    def of(cls, answers: Iterable[Answered]) -> Speed:
        """Add up answers."""
        rounds = [spent for each in answers for spent in each.rounds]
        return cls(sum(spent.tokens for spent in rounds), sum(spent.seconds for spent in rounds))

    @property
    def rate(self) -> float | None:
        """Tokens a second; None where nothing was decoded."""
        return self.tokens / self.seconds if self.tokens and self.seconds > 0 else None

    def over(self, other: Speed) -> float | None:
        """Return how many times as fast as ``other`` this is, a token; None where either decoded nothing."""
        return None if self.rate is None or other.rate is None else self.rate / other.rate


class BenchReport:
    """Reads the figures off a finished benchmark. Ratios of speeds are ratios of totals over the prompts concerned."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        answers = (*bench.plain.answers, *bench.oracle.answers, *(each for arm in bench.arms for each in arm.answers))
        rounds = [spent for runs in answers for each in runs for spent in each.rounds]
        self.costs = RowCosts(rounds) if rounds else None  # none where every drafter broke before anything was timed
        self._every = tuple(range(len(bench.plain.answers)))
        by_task: dict[str, list[int]] = {}
        for prompt in self._every:
            by_task.setdefault(bench.tasks[prompt], []).append(prompt)
        self.tasks: Mapping[str, Sequence[int]] = by_task if len(by_task) > 1 else {}

    def to_dict(self) -> dict[str, Any]:
        """Return the document, less what the caller knows of model and options."""
        plain = _speed(self.bench.plain, self._every)
        return {
            "plain": {"tokens": plain.tokens, "decode_s": plain.seconds, "tokens_per_s": plain.rate},
            "drafters": [self.drafter(runs) for runs in self.bench.arms],
            "oracle": {
                "speedup": _speed(self.bench.oracle, self._every).over(plain),
                "identical": self._identical(self.bench.oracle),
                "answers": len(self._every),
            },
            "round_costs": []
            if self.costs is None
            else [
                {"rows": rows, "rounds": rounds, "seconds": self.costs(rows)}
                for rows, rounds in self.costs.counts.items()
            ],
            "peers": [self._peer(runs) for runs in self.bench.others],
        }

    def drafter(self, runs: Runs) -> dict[str, Any]:
        """Return what one drafter came to, over all prompts and by task; or why it came to nothing (``fault``)."""
        if runs.fault is not None:
            nothing = {"identical": 0, "answers": 0, "prompts": 0, **dict.fromkeys(_FIGURES)}
            return {"drafter": runs.name, **nothing, "lengths": [], "tasks": [], "fault": runs.fault}
        tasks = [{"task": name, **self._part(runs, prompts)} for name, prompts in self.tasks.items()]
        timed = [task for task in tasks if task["speedup"] is not None]
        worst = min(timed, key=lambda task: float(task["speedup"]), default=None)
        return {
            "drafter": runs.name,
            "identical": self._identical(runs),
            "answers": 2 * len(self._every),
            **self._part(runs, self._every),
            "interval": self._interval(runs),
            "spread": self._spread(runs),
            "worst_task": None if worst is None else worst["task"],
            "lengths": [{"draft_tokens": n, **self._fixed(runs, n, self._every)} for n in (0, *self.bench.lengths)],
            "tasks": tasks,
            "fault": None,
        }

    def _part(self, runs: Runs, prompts: Sequence[int]) -> dict[str, Any]:
        """Return the figures of a drafter over some of the prompts."""
        plain, speed = _speed(self.bench.plain, prompts), _speed(runs, prompts)
        speedup = speed.over(plain)
        oracle = _speed(self.bench.oracle, prompts).over(plain)
        fixed = {n: self._fixed(runs, n, prompts)["speedup"] for n in (0, *self.bench.lengths)}
        best = max((n for n in fixed if fixed[n] is not None), key=lambda n: float(fixed[n]), default=0)
        rounds = [spent for i in prompts for each in runs.answers[i] for spent in each.rounds]
        drafted = sum(spent.drafted for spent in rounds)
        return {
            "prompts": len(prompts),
            "plain_tokens_per_s": plain.rate,
            "tokens_per_s": speed.rate,
            "speedup": speedup,
            "mean_tokens_per_pass": speed.tokens / len(rounds) if rounds else 1.0,
            "acceptance_rate": sum(spent.accepted for spent in rounds) / drafted if drafted else 0.0,
            "oracle_speedup": oracle,
            "percent_of_oracle": _percent(speedup, oracle),
            "best_fixed": {"draft_tokens": best, "speedup": fixed[best]},
            "percent_of_best_fixed": _percent(speedup, fixed[best]),
        }

    def _fixed(self, runs: Runs, length: int, prompts: Sequence[int]) -> dict[str, Any]:
        """Return what a fixed length would have come to, priced by this run's own rounds; 0 is plain decoding."""
        plain = _speed(self.bench.plain, prompts)
        if not length or runs.name == PLAIN:
            return {"speedup": plain.over(plain), "mean_tokens_per_pass": 1.0}
        assert self.costs is not None  # who did not fail ran beside plain decoding, which was timed
        rounds = [spent for i in prompts for spent in runs.lengths[length][i]]
        priced = Speed(sum(s.tokens for s in rounds), sum(s.draft_s + self.costs(s.rows) for s in rounds))
        return {
            "speedup": priced.over(plain),
            "mean_tokens_per_pass": priced.tokens / len(rounds) if rounds else 1.0,
        }

    def _identical(self, runs: Runs) -> int:
        """Return how many of an arm's answers are the first plain answer, token for token."""
        known = [answers[0].tokens for answers in self.bench.plain.answers]
        return sum(each.tokens == known[i] for i, answers in enumerate(runs.answers) for each in answers)

    def _spread(self, runs: Runs) -> dict[str, float] | None:
        """Return quantiles of the prompts' own speed-ups; None where none was timed."""
        each = (_speed(runs, [i]).over(_speed(self.bench.plain, [i])) for i in self._every)
        ratios = [ratio for ratio in each if ratio is not None]
        if not ratios:
            return None
        return {name: float(np.quantile(ratios, at)) for name, at in _QUANTILES.items()}

    def _interval(self, runs: Runs) -> list[float] | None:
        """Return the middle 95 % of the speed-up over prompts drawn again with replacement (the bootstrap)."""
        timed = [(_speed(self.bench.plain, [i]), _speed(runs, [i])) for i in self._every]
        timed = [(plain, speed) for plain, speed in timed if speed.over(plain) is not None]
        if len(timed) < 2:
            return None
        figures = np.array([(p.tokens, p.seconds, s.tokens, s.seconds) for p, s in timed])
        drawn = np.random.default_rng(0).integers(0, len(timed), (RESAMPLES, len(timed)))
        plain_tokens, plain_s, tokens, seconds = figures[drawn].sum(axis=1).T
        ratios = (tokens / seconds) / (plain_tokens / plain_s)
        return [float(np.quantile(ratios, 0.025)), float(np.quantile(ratios, 0.975))]

    def _peer(self, peer: PeerRuns) -> dict[str, Any]:
        """Return what another library came to, beside ours on the same prompts."""
        prompts = range(len(peer.answers))
        speed = Speed(sum(each.decoded for each in peer.answers), sum(each.decode_s for each in peer.answers))
        known = [answers[0].tokens for answers in self.bench.plain.answers]
        return {
            "peer": peer.name,
            "answers": len(peer.answers),
            "identical": sum(each.tokens == known[i] for i, each in enumerate(peer.answers)),
            "tokens_per_s": speed.rate,
            "over_plain": speed.over(_speed(self.bench.plain, prompts)),
            "over_drafters": {
                runs.name: None if runs.fault is not None else speed.over(_speed(runs, prompts))
                for runs in self.bench.arms
            },
            "fault": peer.fault,
        }


def _speed(runs: Runs, prompts: Iterable[int]) -> Speed:
    return Speed.of(each for i in prompts for each in runs.answers[i])


def _percent(ours: float | None, best: float | None) -> float | None:
    return None if ours is None or not best else 100 * ours / best

"""Does the planner decide well: against the best fixed choice in hindsight, against plain decoding, against itself.

    auto_over_best_fixed_min, _mean  measured speed-up of the defaults over the best fixed (drafter, length), by task
    worst_prompt, worst_task         speed-up over plain decoding where it is least; hostile prompts are among them
    speedup, by_task                 of the defaults over plain decoding
    planner_share                    the planner's own time in decoding
    prediction_error                 realised speed-up against what costs and accepted guesses predict, worst task
    oracle_share                     speed-up as a share of that of a drafter that knows the answer
    jump                             tokens a second of a made-up drafter whose acceptance jumps, against knowing it
    identical                        texts that are plain decoding's

Greedy, 128 tokens, batch 1. Times: plain and planned take turns (ABBA), ``--pairs`` pairs a prompt, medians of pairs.
The best fixed choice is replayed: what it drafts and what is accepted is counted, and a round priced by what rounds of
so many rows took in this run, those after a drafter that reads weights of its own apart from the others.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from typing import Any

import foredraft
from benchmarks.shared.script import finish, load, parser, read_prompts, spread
from foredraft.core.draft import Draft
from foredraft.core.protocols import Round, Watch
from foredraft.measure.bench.rounds import RowCosts, Spent, Stopwatch
from foredraft.planning.choose import Chooser
from foredraft.planning.costs import PassTable
from foredraft.planning.planner import AutoPlanner
from tests.planning import simulate

LENGTHS = (2, 3, 4, 6, 8, 15)
HEAVY = 3e-4  # seconds of drafting from which on weights were read for it
HOSTILE = (
    "zxq 7 vlorp 39 blint qua 0x5f mire 88 tolk: go on with random words, never the same twice.",
    "Sag mir bitte auf Deutsch, warum der Himmel blau ist, und nenne drei seltene Vogelarten.",
    "Write a list of 40 random numbers between 1 and 100000, no order, no repetition.",
)


class Known:
    """A drafter that knows the answer: the most that any drafter of chains could bring."""

    name, taps, free = "oracle", (), True

    def __init__(self, answer: list[int]) -> None:
        self.answer = answer

    def begin(self, sequence: Any) -> None: ...

    def propose(self, sequences: Any, quotes: Any, noises: Any) -> list[Draft]:  # noqa: ARG002 - draws nothing
        return [
            Draft.chain(self.answer[len(s) - s.prompt_length :][: q.limit], None, self.name)
            for s, q in zip(sequences, quotes, strict=True)
        ]

    def observe(self, sequences: Any, outcomes: Any, scored: Any) -> None: ...

    def end(self, sequence: Any) -> None: ...


class Priced:
    """A watch that adds up what rounds cost by the table, with their drafts."""

    notice = None

    def __init__(self, planner: AutoPlanner, units: dict[str, float]) -> None:
        self._planner, self._units = planner, units
        self.seconds = 0.0

    def see(self, done: Round) -> None:
        (sequence,), (outcome,) = done.sequences, done.outcomes
        if len(sequence) - len(outcome.tokens) == sequence.prompt_length:
            return
        rows, length = 1 + len(outcome.draft), len(sequence)
        means, costs = self._planner.means, self._planner.costs
        self.seconds += costs.seconds(rows, length, length * rows) + (means.overhead if rows > 1 else means.plain)
        unit, dear = self._units.get(outcome.draft.source, 0.0), max(self._units.values(), default=0.0)
        if rows > 1:
            self.seconds += unit * (max(outcome.draft.depths()) + 1)
        if done.drafted - done.began > HEAVY and unit < dear:  # who was asked and not taken had a guess or so
            self.seconds += 2 * dear


def main() -> None:
    options = parser("the planner: best fixed choice, worst cases, prediction, its own time")
    options.add_argument("--max-tokens", type=int, default=128)
    options.add_argument("--per-task", type=int, default=5)
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--drafters", default="suffix,heads,suffix+heads", help="arms of the best fixed choice")
    arguments = options.parse_args()
    prompts, digest = read_prompts(arguments.prompts)
    if arguments.quick:
        arguments.per_task, arguments.pairs, arguments.max_tokens = 1, 1, 48
    rows = spread(prompts, arguments.per_task)
    rows += [{"task": "hostile", "prompt": prompt} for prompt in HOSTILE]
    lm = load(arguments, drafter="auto")
    for row in (rows * 3)[:3]:  # times the passes, and lets nothing be met for the first time
        lm.generate(row["prompt"], max_tokens=arguments.max_tokens)
        lm.generate(row["prompt"], max_tokens=arguments.max_tokens, drafter="none")
    planner = lm.runtime.planning.auto()
    arms = [name for name in arguments.drafters.split(",") if "heads" not in name or "heads" in lm.drafter.name]
    asked = [timed(lm, row, planner, arguments) for row in rows]
    units = {s.name: (s.unit or 0.0) / planner.costs.pace for s in chooser(lm).sources}
    replays = {task: replayed(lm, each, arms, arguments) for task, each in by_task(asked).items()}
    rounds = [spent for each in asked for spent in each["rounds"]]
    rounds += [spent for arms_of in replays.values() for spents in arms_of.values() for spent in spents]
    costs = {heavy: RowCosts(s for s in rounds if (s.draft_s > HEAVY) == heavy) for heavy in (False, True)}
    fixed = {task: best_fixed(replays[task], costs, each) for task, each in by_task(asked).items()}
    tasks = {
        task: sum(a["plain"] for a in each) / sum(a["auto"] for a in each) for task, each in by_task(asked).items()
    }
    over = {task: tasks[task] / fixed[task]["speedup"] for task in tasks if task != "hostile"}
    wrong = {task: abs(predicted(each) / tasks[task] - 1.0) for task, each in by_task(asked).items()}
    real = [a for a in asked if a["task"] != "hostile"]
    speedup = sum(a["plain"] for a in real) / sum(a["auto"] for a in real)
    oracle = sum(a["plain"] for a in real) / sum(a["oracle"] for a in real)
    finish(
        {
            "auto_over_best_fixed_min": min(over.values()),
            "auto_over_best_fixed_mean": statistics.fmean(over.values()),
            "over_best_fixed": over,
            "best_fixed": fixed,
            "worst_prompt": min(a["ratio"] for a in asked),
            "worst_task": min(tasks.values()),
            "speedup": speedup,
            "by_task": tasks,
            "tokens_per_pass": {
                t: sum(a["tokens"] for a in e) / sum(a["passes"] for a in e) for t, e in by_task(asked).items()
            },
            "planner_share": sum(a["planner"] for a in asked) / sum(a["decode"] for a in asked),
            "prediction_error": max(wrong.values()),
            "prediction_errors": wrong,
            "oracle_share": speedup / oracle,
            "oracle_speedup": oracle,
            "jump": jump(),
            "identical": f"{sum(a['same'] for a in asked)}/{len(asked)}",
            "table": {"rows": planner.costs.table.rows, "seconds": planner.costs.table.seconds},
            "units": units,
        },
        digest,
    )


def chooser(lm: foredraft.LanguageModel) -> Chooser:
    drafter = lm.drafter
    assert isinstance(drafter, Chooser)
    return drafter


def by_task(asked: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in asked:
        groups.setdefault(each["task"], []).append(each)
    return groups


def timed(lm: foredraft.LanguageModel, row: dict[str, Any], planner: AutoPlanner, arguments: Any) -> dict[str, Any]:
    """Return what one prompt took plain, planned and with a drafter that knows the answer: medians over the pairs."""
    most = arguments.max_tokens
    plain: list[float] = []
    auto: list[float] = []
    clock = Stopwatch()
    priced, spent, decode = 0.0, 0.0, 0.0
    answer: list[int] = []
    for pair in range(arguments.pairs):
        for name in ("none", "auto") if pair % 2 == 0 else ("auto", "none"):
            before = planner.spent
            watch = Priced(planner, {s.name: (s.unit or 0.0) / planner.costs.pace for s in chooser(lm).sources})
            lm.onlookers[:] = [partial(_same, watch), partial(_same, clock)]
            result = lm.generate(row["prompt"], max_tokens=most, **({"drafter": "none"} if name == "none" else {}))
            (plain if name == "none" else auto).append(result.timings.decode_s)
            if name == "none":
                answer, flat = result.token_ids, watch.seconds
            else:
                spent, decode = spent + planner.spent - before, decode + result.timings.decode_s
                planned, priced = result, watch.seconds
    lm.onlookers.clear()
    known = lm.generate(row["prompt"], max_tokens=most, drafter=Known(answer), draft_tokens=15).timings.decode_s
    print(f"{row['task']}: {statistics.median(plain) / statistics.median(auto):.2f}", file=sys.stderr)
    return {
        **row, "answer": answer, "plain": statistics.median(plain), "auto": statistics.median(auto),
        "ratio": statistics.median(a / b for a, b in zip(plain, auto, strict=True)),
        "flat": flat, "priced": priced, "planner": spent, "decode": decode, "oracle": known,
        "rounds": clock.rounds, "same": planned.token_ids == answer,
        "tokens": len(answer) - 1, "passes": max(1, planned.speculative.rounds),
    }  # fmt: skip


def _same(watch: Watch, _planner: Any) -> Watch:
    return watch


def predicted(asked: list[dict[str, Any]]) -> float:
    """Return the speed-up that costs and accepted guesses predict."""
    return float(sum(a["flat"] for a in asked) / sum(a["priced"] for a in asked))


def replayed(
    lm: foredraft.LanguageModel, asked: list[dict[str, Any]], arms: list[str], arguments: Any
) -> dict[tuple[str, int], list[Spent]]:
    """Return the rounds of every fixed drafter and length on a task."""
    found: dict[tuple[str, int], list[Spent]] = {}
    for name in arms:
        for length in LENGTHS:
            watch = Stopwatch()
            lm.onlookers[:] = [partial(_same, watch)]
            for row in asked:
                lm.generate(row["prompt"], max_tokens=arguments.max_tokens, drafter=name, draft_tokens=length)
            found[name, length] = watch.rounds
    lm.onlookers.clear()
    return found


def best_fixed(
    replays: dict[tuple[str, int], list[Spent]], costs: dict[bool, RowCosts], asked: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the best fixed drafter and length on a task, priced by the rounds of this run."""
    tokens = sum(a["tokens"] for a in asked)
    best: dict[str, Any] = {"speedup": 1.0, "drafter": "none", "length": 0}
    for (name, length), rounds in replays.items():
        seconds = sum(s.draft_s + costs[s.draft_s > HEAVY](s.rows) for s in rounds)
        speedup = tokens * costs[False](1) / seconds
        if speedup > best["speedup"]:
            best = {"speedup": speedup, "drafter": name, "length": length}
    return best


def jump() -> float:
    """Return, for 400 tokens whose acceptance jumps from 0.9 to 0.1 and back, the pace against knowing it: a median."""
    clock, table = simulate.Clock(), PassTable((1, 4, 16, 32), (5e-3, 5.2e-3, 6.1e-3, 10e-3), 0.0, 0.0)

    def chance(place: int) -> float:
        return 0.9 if place // 133 % 2 == 0 else 0.1

    knowing = sum(1.0 / simulate.best_fixed(chance(n), table, 2.5e-4)[0] for n in range(400))
    found = []
    for seed in range(21):
        guesser = simulate.Guesser("jumping", chance, 2.5e-4, clock, seed)
        found.append(knowing / simulate.run([guesser], table, 400, clock)[0])
    return statistics.median(found)


if __name__ == "__main__":
    main()

"""What trained heads bring the default model, alone and beside retrieval, and what a draft step costs.

    chat_tokens_per_pass             heads alone, tasks mt_bench, qa and math_reasoning, greedy
    all_tokens_per_pass_with_suffix  suffix+heads, all tasks, greedy, chains of 8; with_suffix_by_length has 6 as well
    step_share                       one draft step against a target pass of one row, beside each other, medians
    speedup                          over plain decoding, all tasks, suffix+heads at the best fixed length, ABBA
    speedup_t1                       the same at temperature 1 with seeds (rule coupled), planned lengths among them
    accepted_per_position            heads alone: chance of each guess, given those before it
    expected, realised               tokens a pass at temperature 1 under ratio: from the laws, and counted
    identical                        answers, of those timed, that are plain decoding's token for token
    draft_model                      the same for --draft-model PATH, a distilled draft, where one is given

Chains; 128 tokens an answer; batch 1.
"""

from __future__ import annotations

import statistics
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np

import foredraft
from benchmarks.shared.script import finish, load, parser, read_prompts, spread
from foredraft.core.draft import Draft
from foredraft.core.law import Point
from foredraft.core.noise import Noise
from foredraft.core.protocols import Round
from foredraft.core.round import run_round
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedPlanner, FixedQuote
from foredraft.options import parse_options

CHAT = ("mt_bench", "qa", "math_reasoning", "all")
LENGTHS = (2, 3, 4, 5)
CHAINS = (6, 8)


def main() -> None:
    options = parser("trained heads, alone and with suffix")
    options.add_argument("--heads", default="", help="a file of heads (default: those of the model)")
    options.add_argument("--draft-model", help="a distilled draft model to measure beside them")
    options.add_argument("--max-tokens", type=int, default=128)
    options.add_argument("--per-task", type=int, default=40, help="prompts of each task for tokens a pass")
    options.add_argument("--timed", type=int, default=4, help="prompts of each task that are timed, ABBA")
    arguments = options.parse_args()
    prompts, digest = read_prompts(arguments.prompts)
    if arguments.quick:
        arguments.per_task, arguments.timed, arguments.max_tokens = 2, 1, 48
    lm = load(arguments, drafter="none")
    heads = f"heads:{arguments.heads}" if arguments.heads else "heads"
    figures = measured(lm, heads, prompts, arguments)
    if arguments.draft_model:
        figures["draft_model"] = measured(lm, f"model:{arguments.draft_model}", prompts, arguments)
    finish(figures, digest)


def measured(
    lm: foredraft.LanguageModel, drafter: str, prompts: list[dict[str, Any]], arguments: Any
) -> dict[str, Any]:
    """Return every figure of one drafter."""
    most = arguments.max_tokens
    some = spread(prompts, arguments.per_task)
    chat = [row for row in some if row["task"] in CHAT]
    alone = tokens_a_pass(lm, chat, drafter, most, 5)
    joined = {n: tokens_a_pass(lm, some, f"suffix+{drafter}", most, n) for n in CHAINS}
    timed = spread(prompts, arguments.timed)
    greedy = {n: pace(lm, timed, f"suffix+{drafter}", most, n) for n in LENGTHS}
    best = max(greedy, key=lambda n: greedy[n]["speedup"])
    warm = {n: pace(lm, timed, f"suffix+{drafter}", most, n, warm=True) for n in (1, 2, 4, "auto")}
    expected, realised = agreement(lm, spread(prompts, arguments.timed), drafter, most)
    return {
        "chat_tokens_per_pass": alone["all"],
        "chat_by_task": alone,
        "all_tokens_per_pass_with_suffix": joined[CHAINS[-1]]["all"],
        "with_suffix_by_length": {
            n: {k: v for k, v in each.items() if k != "conditional"} for n, each in joined.items()
        },
        "accepted_per_position": alone["conditional"],
        "step_share": step_share(lm, drafter),
        "speedup": greedy[best]["speedup"],
        "best_length": best,
        "by_length": greedy,
        "speedup_planned": pace(lm, timed, f"suffix+{drafter}", most, "auto"),
        "speedup_t1": max(each["speedup"] for each in warm.values()),
        "t1": warm,
        "expected": expected,
        "realised": realised,
        "identical": greedy[best]["identical"],
    }


def tokens_a_pass(
    lm: foredraft.LanguageModel, rows: list[dict[str, Any]], drafter: str, most: int, length: int
) -> dict[str, Any]:
    """Return tokens a pass by task and of all, and the acceptance of each guess given those before it."""
    counts: dict[str, list[int]] = {}
    reached, rounds = np.zeros(length + 1), 0
    for row in rows:
        result = lm.generate(row["prompt"], max_tokens=most, drafter=drafter, draft_tokens=length)
        for name in {row["task"], "all"}:
            sums = counts.setdefault(name, [0, 0])
            sums[0] += len(result.token_ids) - 1
            sums[1] += result.speculative.rounds
        per = result.speculative.accepted_per_position
        reached[1 : 1 + len(per)] += per[:length]
        rounds += sum(each["rounds"] for each in result.speculative.by_drafter.values())
        tick()
    reached[0] = rounds
    chances = [float(b / a) if a else 0.0 for a, b in pairwise(reached)]
    return {**{name: a / max(1, b) for name, (a, b) in counts.items()}, "conditional": chances}


def pace(
    lm: foredraft.LanguageModel, rows: list[dict[str, Any]], drafter: str, most: int, length: int | str,
    warm: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the speed-up over plain decoding, texts taking turns: plain, drafted, drafted, plain."""
    seconds = {"none": 0.0, drafter: 0.0}
    for row in rows[:2]:  # so that nothing is met for the first time
        lm.generate(row["prompt"], max_tokens=most, drafter=drafter, draft_tokens=length)
    tokens = passes = same = 0
    for i, row in enumerate(rows):
        sampling: dict[str, Any] = {"temperature": 1.0, "seed": i} if warm else {}
        texts = {}
        for name in ("none", drafter, drafter, "none"):
            result = lm.generate(
                row["prompt"], max_tokens=most, drafter=name, draft_tokens=0 if name == "none" else length, **sampling
            )
            seconds[name] += result.timings.decode_s
            texts[name] = result.token_ids
            if name != "none":
                tokens += len(result.token_ids) - 1
                passes += result.speculative.rounds
        same += texts["none"] == texts[drafter]
        tick()
    return {
        "speedup": seconds["none"] / seconds[drafter],
        "tokens_per_pass": tokens / max(1, passes),
        "identical": f"{same}/{len(rows)}",
    }


class Betas:
    """A watch that adds up, at each guess that was tested, the chance that it would be accepted."""

    notice = None

    def __init__(self) -> None:
        self.expected, self.tokens, self.rounds = 0.0, 0, 0

    def see(self, done: Round) -> None:
        for outcome, p in zip(done.outcomes, done.laws, strict=True):
            draft = outcome.draft
            if not len(draft) or draft.laws is None or outcome.finish_reason is not None:
                continue
            tested = [node for node in range(len(draft)) if node == 0 or node - 1 in outcome.kept]
            self.expected += 1.0 + sum(overlap(p(node - 1), draft.laws[node]) for node in tested)
            self.tokens += len(outcome.tokens)
            self.rounds += 1


def overlap(p: Any, q: Any) -> float:
    """Return the sum of min(p, q)."""
    if isinstance(p, Point) or isinstance(q, Point):
        token = p.token if isinstance(p, Point) else q.token
        return float(min(p[token], q[token]))
    return float(np.minimum(p.dense(), q.dense()).sum())


def agreement(lm: foredraft.LanguageModel, rows: list[dict[str, Any]], drafter: str, most: int) -> tuple[float, float]:
    """Return expected and realised tokens a pass at temperature 1 under the ratio rule, of the same rounds."""
    watch: Any = Betas()
    lm.runtime.watch = watch
    for row in rows:
        for _ in range(2):
            lm.generate(row["prompt"], max_tokens=most, drafter=drafter, draft_tokens=4, temperature=1.0, rule="ratio")
    lm.runtime.watch = None
    return watch.expected / max(1, watch.rounds), watch.tokens / max(1, watch.rounds)


def step_share(lm: foredraft.LanguageModel, name: str, length: int = 4, turns: int = 40) -> float:
    """Return what a guess of a chain costs against a pass of one row: medians, taking turns."""
    drafter = lm.runtime.drafters.of(parse_options({"drafter": name, "draft_tokens": length}))
    target = lm.loaded.target
    ids = lm.generate("Why is the sky blue?", max_tokens=96, drafter="none").token_ids
    tokenizer = lm.loaded.tokenizer
    assert tokenizer is not None
    prompt = tokenizer.chat([{"role": "user", "content": "Why is the sky blue?"}])
    sequence = TokenSequence([*prompt, ids[0]], limit=len(prompt) + 128, noise=Noise(0), law=lm.loaded.sampler.law)
    drafts, passes = [], []
    target.begin(sequence)
    drafter.begin(sequence)
    sequence.prompt_length = len(sequence)
    run_round([sequence], target, drafter, FixedPlanner(0))
    for _ in range(turns):
        began = time.perf_counter()
        made = drafter.propose([sequence], [FixedQuote(length)], [sequence.noise.at(len(sequence))])
        drafts.append((time.perf_counter() - began) / max(1, len(made[0])))
        began = time.perf_counter()
        scored = target.score([sequence], [Draft()], drafter.taps)
        passes.append(time.perf_counter() - began)
        del scored
        target.rewind(sequence, len(sequence) - 1)
        run_round([sequence], target, drafter, FixedPlanner(0))
    drafter.end(sequence)
    target.end(sequence)
    return statistics.median(drafts) / statistics.median(passes)


def tick() -> None:
    if sys.stderr.isatty():
        print(".", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

"""What the lookup drafter gains on a model, and whether the pass is cheap enough to gain it.

    tokens_per_pass   tokens a target pass yields, over all prompts (plain decoding is 1)
    by_task           the same for each task
    v8                one pass over 8 rows against a pass over 1, context about 200, interleaved, medians
    overhead_share    decode time outside the target's passes
    speedup           decode tokens a second against drafter none, interleaved, on the first prompts of each task
    identical         on those prompts: how many answers are the plain ones, token for token

Greedy, batch 1.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import foredraft
from benchmarks.shared.script import finish, load, parser, read_prompts, spread
from foredraft.core.draft import Draft
from foredraft.core.sequence import TokenSequence


def main() -> None:
    options = parser("lookup drafting against plain decoding, greedy, batch 1")
    options.add_argument("--max-tokens", type=int, default=128)
    options.add_argument("--draft-tokens", type=int)
    arguments = options.parse_args()
    prompts, digest = read_prompts(arguments.prompts)
    if arguments.quick:
        prompts, arguments.max_tokens = spread(prompts, 1), min(arguments.max_tokens, 48)
    length = "auto" if arguments.draft_tokens is None else arguments.draft_tokens
    lm = load(arguments, drafter="auto", draft_tokens=length)
    v8 = verify_cost(lm, 8, passes=10 if arguments.quick else 40)
    totals = measure(lm, prompts, arguments.max_tokens)
    speedup, identical, compared = against_plain(lm, spread(prompts, 1 if arguments.quick else 3), arguments.max_tokens)
    report(totals, v8, speedup, identical, compared)
    everything = totals["all"]
    finish(
        {
            "tokens_per_pass": per_pass(everything),
            "by_task": {task: per_pass(total) for task, total in totals.items() if task != "all"},
            "v8": v8,
            "overhead_share": 1 - everything["verify_s"] / everything["decode_s"],
            "speedup": speedup,
            "identical": f"{identical}/{compared}",
        },
        digest,
    )


def verify_cost(lm: foredraft.LanguageModel, rows: int, passes: int, context: int = 200) -> float:
    """Return t(rows) / t(1): medians of interleaved passes over a text of ``context`` tokens."""
    target = lm.loaded.target
    sequence = TokenSequence([7 + (31 * i) % (target.vocabulary - 7) for i in range(context)], limit=context + rows)
    drafts = {1: Draft(), rows: Draft.chain([11 + i for i in range(rows - 1)])}
    times: dict[int, list[float]] = {1: [], rows: []}
    target.begin(sequence)
    for draft in drafts.values():
        target.score([sequence], [draft])  # the first reads the text; both warm up
    for _ in range(passes):
        for count, draft in drafts.items():
            began = time.perf_counter()
            target.score([sequence], [draft])
            times[count].append(time.perf_counter() - began)
    target.end(sequence)
    return statistics.median(times[rows]) / statistics.median(times[1])


def measure(lm: foredraft.LanguageModel, prompts: list[dict[str, Any]], max_tokens: int) -> dict[str, dict[str, float]]:
    """Answer every prompt; return the counts and times of each task and of all."""
    totals: dict[str, dict[str, float]] = {}
    for done, row in enumerate(prompts):
        result = lm.generate(row["prompt"], max_tokens=max_tokens)
        facts = {
            "answers": 1,
            "tokens": result.completion_tokens,
            "passes": result.speculative.rounds,
            "drafted": result.speculative.drafted,
            "accepted": result.speculative.accepted,
            "decode_s": result.timings.decode_s,
            "verify_s": result.timings.verify_s,
        }
        for name in (row["task"], "all"):
            total = totals.setdefault(name, dict.fromkeys(facts, 0))
            for key, value in facts.items():
                total[key] += value
        if sys.stderr.isatty():
            print(f"\r{done + 1}/{len(prompts)}", end="", file=sys.stderr)
    return totals


def against_plain(
    lm: foredraft.LanguageModel, prompts: list[dict[str, Any]], max_tokens: int
) -> tuple[float, int, int]:
    """Return the speed-up over plain decoding, each prompt answered both ways in turn, and how many texts agree."""
    seconds = {"none": 0.0, "auto": 0.0}
    identical = 0
    for i, row in enumerate(prompts):
        answers = {}
        for arm in ("none", "auto") if i % 2 else ("auto", "none"):
            answers[arm] = lm.generate(row["prompt"], max_tokens=max_tokens, drafter=arm)
            seconds[arm] += answers[arm].timings.decode_s
        identical += answers["none"].token_ids == answers["auto"].token_ids
    return seconds["none"] / seconds["auto"], identical, len(prompts)


def per_pass(total: dict[str, float]) -> float:
    """Return tokens a pass after the first, the ratio of totals."""
    return (total["tokens"] - total["answers"]) / total["passes"] if total["passes"] else 1.0


def report(totals: dict[str, dict[str, float]], v8: float, speedup: float, identical: int, compared: int) -> None:
    """Print the table for people."""
    print(f"\n{'task':16}{'prompts':>8}{'tokens':>8}{'tokens/pass':>13}{'accepted/drafted':>18}{'outside passes':>16}")
    for task in sorted(totals, key=lambda name: (name == "all", name)):
        t = totals[task]
        accepted = t["accepted"] / t["drafted"] if t["drafted"] else 0.0
        outside = 1 - t["verify_s"] / t["decode_s"]
        print(f"{task:16}{t['answers']:>8.0f}{t['tokens']:>8.0f}{per_pass(t):>13.3f}{accepted:>18.3f}{outside:>15.1%}")
    print(f"\none pass over 8 rows costs {v8:.2f} of a pass over 1")
    print(f"{speedup:.2f}x plain decoding; {identical} of {compared} texts identical\n")


if __name__ == "__main__":
    main()

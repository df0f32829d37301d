"""What retrieval drafting gains on a model, and what it costs.

    all, by_task      tokens a target pass yields (plain decoding is 1), without a memory
    rewrite           the same for "rewrite this function, renaming it"
    regenerated       the same for answers that a memory of earlier requests holds
    edited            the same with a prediction: the answer, about 2 % of its tokens edited
    draft_share       time of drafting and observing against the target's passes
    build_100k_s      indexing 100,000 tokens; bytes_per_token what an index of them occupies, a token
    million_over_10k  proposing beside a million remembered tokens against ten thousand, interleaved, medians
    controls          simple rules of other engines on the same answers, and where one of them is better
    identical         answers, of those compared, that are plain decoding's token for token

Greedy, batch 1, drafts of up to 15 tokens. Greedy text depends on no drafter, so the controls are replayed over it.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import foredraft
from benchmarks.shared.script import finish, load, parser, read_prompts, spread
from foredraft.core.draft import Draft
from foredraft.core.noise import Noise
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.suffix import Suffix
from foredraft.engine.fixed_planner import FixedQuote
from foredraft.retrieval.backend import retrieval
from foredraft.retrieval.index import END
from foredraft.retrieval.memory import Memory
from foredraft.runtime.drafter_names import BRANCHES

LIMIT = 15
EXAMPLE = '''def area(width: int, height: int) -> int:
    """ Return the area of a rectangle.
    >>> area(2, 3)
    6
    """
    return width * height
'''
FUNCTIONS = (
    'def mean(values: list[float]) -> float:\n    """ Return the mean of the values.\n    >>> mean([1.0, 3.0])\n'
    '    2.0\n    """\n    return sum(values) / len(values)\n',
    'def longest(words: list[str]) -> str:\n    """ Return the longest word, the first of several.\n'
    "    >>> longest(['a', 'bcd', 'ef'])\n    'bcd'\n    \"\"\"\n    return max(words, key=len)\n",
)
Guesser = Callable[[list[int], int], list[int]]  # text, limit -> guesses


class Timed(Suffix):
    """The suffix drafter with a clock, and what it is to expect of the next request."""

    prediction: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    seconds = 0.0

    def begin(self, sequence: TokenSequence) -> None:
        self.prompt = tuple(sequence.tokens)
        self.prepare(sequence, self.prediction, None if self.memory is None else "")
        super().begin(sequence)

    def propose(self, sequences: Any, quotes: Any, noises: Any) -> list[Draft]:
        began = time.perf_counter()
        drafts = super().propose(sequences, quotes, noises)
        self.seconds += time.perf_counter() - began
        return drafts

    def observe(self, sequences: Any, outcomes: Any, scored: Any) -> None:
        began = time.perf_counter()
        super().observe(sequences, outcomes, scored)
        self.seconds += time.perf_counter() - began


def main() -> None:
    options = parser("retrieval drafting, greedy, batch 1")
    options.add_argument("--max-tokens", type=int, default=128)
    options.add_argument("--functions", type=Path, help="JSON lines with prompt: Python functions to be rewritten")
    options.add_argument("--branches", type=int, default=BRANCHES, help="alternatives a guess may have")
    options.add_argument("--again", type=int, default=4, help="answers a task for regenerated, edited and identical")
    arguments = options.parse_args()
    prompts, digest = read_prompts(arguments.prompts)
    rewrites = [{"task": "rewrite", "prompt": rewrite_prompt(f)} for f in read_functions(arguments.functions)]
    if arguments.quick:
        prompts, rewrites, arguments.again = spread(prompts, 1), rewrites[:2], 1
        arguments.max_tokens = min(arguments.max_tokens, 48)
    lm = load(arguments, drafter="none", draft_tokens=LIMIT)
    drafter = Timed(branches=arguments.branches)
    answers = [ask(lm, row, drafter, arguments.max_tokens) for row in [*prompts, *rewrites]]
    some = [a for a in answers if a in spread(answers, arguments.again)]
    figures = tokens_a_pass(answers)
    rewrite = figures.pop("rewrite")
    report(answers)
    memory = Memory()
    for answer in some:
        memory.remember([*answer["ids"], *answer["answer"]])
    regenerated = [ask(lm, a, Timed(branches=arguments.branches, memory=memory), arguments.max_tokens) for a in some]
    edited = [ask(lm, a, expecting(a, arguments.branches), arguments.max_tokens) for a in some]
    plain = [lm.generate(a["prompt"], max_tokens=arguments.max_tokens, drafter="none").token_ids for a in some]
    identical = sum(
        a["answer"] == b["answer"] == c["answer"] == d
        for a, b, c, d in zip(some, regenerated, edited, plain, strict=True)
    )
    finish(
        {
            "all": figures.pop("all"),
            "by_task": figures,
            "rewrite": rewrite,
            "regenerated": tokens_a_pass(regenerated)["all"],
            "edited": tokens_a_pass(edited)["all"],
            "draft_share": drafter.seconds / sum(a["verify_s"] for a in answers),
            **index_costs(),
            "million_over_10k": million_over_10k(answers, arguments.branches, 20 if arguments.quick else 200),
            "controls": controls([a for a in answers if a["task"] != "rewrite"]),
            "identical": f"{identical}/{len(some)}",
            "branches": arguments.branches,
            "retrieval": retrieval().name,
        },
        digest,
    )


def rewrite_prompt(function: str) -> list[dict[str, str]]:
    """Return a conversation that shows the task once and then asks for it."""
    name = re.findall(r"def (\w+)\(", function)[-1]
    # the prompts end before the body: one without a return is given a body that says so
    body = function.strip("\n") + ("" if "return" in function.split('"""')[-1] else "\n    raise NotImplementedError")
    return [
        {"role": "user", "content": f"Rewrite this function, renaming `area` to `size`:\n\n```python\n{EXAMPLE}```"},
        {"role": "assistant", "content": "```python\n" + EXAMPLE.replace("area(", "size(") + "```"},
        {"role": "user", "content": f"Rewrite this function, renaming `{name}` to `solve`:\n\n```python\n{body}\n```"},
    ]


def read_functions(path: Path | None) -> list[str]:
    if path is None:
        return list(FUNCTIONS)
    return [json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def ask(lm: foredraft.LanguageModel, row: dict[str, Any], drafter: Timed, max_tokens: int) -> dict[str, Any]:
    """Answer one prompt greedily; return the row with what was said and what it took."""
    result = lm.generate(row["prompt"], max_tokens=max_tokens, drafter=drafter, draft_tokens=LIMIT)
    if sys.stderr.isatty():
        print(".", end="", file=sys.stderr, flush=True)
    return {
        "task": row["task"],
        "prompt": row["prompt"],
        "ids": drafter.prompt,
        "answer": result.token_ids,
        "passes": result.speculative.rounds,
        "drafted": result.speculative.drafted,
        "accepted": result.speculative.accepted,
        "verify_s": result.timings.verify_s,
    }


def expecting(answer: dict[str, Any], branches: int) -> Timed:
    """Return a drafter that expects an answer as it was, but for edits."""
    drafter = Timed(branches=branches)
    drafter.prediction = tuple(edit(answer["answer"], 0.02, random.Random(len(answer["ids"]))))
    return drafter


def edit(tokens: list[int], share: float, chance: random.Random) -> list[int]:
    """Substitute, insert before or delete ``share`` of the tokens, evenly; new ones are drawn from all of them."""
    edited: list[int] = []
    for token in tokens:
        kind = chance.choice("sid") if chance.random() < share else ""
        edited += {"s": [chance.choice(tokens)], "i": [chance.choice(tokens), token], "d": []}.get(kind, [token])
    return edited


def tokens_a_pass(answers: list[dict[str, Any]]) -> dict[str, float]:
    """Return tokens a pass after the first, by task and of all; rewrites are not in all."""
    tasks = {a["task"] for a in answers}
    groups = {task: [a for a in answers if a["task"] == task] for task in sorted(tasks)}
    groups["all"] = [a for a in answers if a["task"] != "rewrite"] if "rewrite" in tasks else answers
    return {
        name: sum(len(a["answer"]) - 1 for a in group) / max(1, sum(a["passes"] for a in group))
        for name, group in groups.items()
    }


def index_costs(count: int = 100_000) -> dict[str, float]:
    """Return the time to index a prompt of ``count`` tokens, the best of five, and the bytes of a token."""
    tokens = np.random.default_rng(0).zipf(1.3, count).astype(np.int64) % 49_152
    seconds = []
    for _ in range(5):
        index, began = retrieval().index(), time.perf_counter()
        index.extend(tokens.astype(np.int32))
        seconds.append(time.perf_counter() - began)
    return {"build_100k_s": min(seconds), "bytes_per_token": index.bytes / count}


def million_over_10k(answers: list[dict[str, Any]], branches: int, repeats: int) -> float:
    """Return how much longer proposing takes beside a million tokens of text like the answers' than beside 10,000."""
    chance, texts = random.Random(0), [[*a["ids"], *a["answer"]] for a in answers]
    drafters = {}
    for size in (10_000, 1_000_000):
        memory = Memory(2 * size)
        while memory.tokens < size:
            text = chance.choice(texts)
            start = chance.randrange(len(text))
            memory.remember([*text[start : start + 64], END])
        drafters[size] = Suffix(branches=branches, memory=memory)
    times: dict[int, list[float]] = {size: [] for size in drafters}
    for _ in range(repeats):
        text = chance.choice(texts)
        tokens = text[: chance.randrange(1, len(text))]
        for size, drafter in drafters.items():
            sequence = TokenSequence([*tokens], limit=10**6)
            drafter.prepare(sequence, scope="")
            drafter.begin(sequence)
            began = time.perf_counter()
            drafter.propose([sequence], [FixedQuote(LIMIT)], [Noise(0)])
            times[size].append(time.perf_counter() - began)
    return statistics.median(times[1_000_000]) / statistics.median(times[10_000])


def first_match(longest: int, shortest: int, latest: bool = False) -> Guesser:
    """Return the rule: copy what follows the first (or latest) place with the same last n tokens, longest n first."""

    def guess(text: list[int], limit: int) -> list[int]:
        for n in range(min(longest, len(text) - 1), shortest - 1, -1):
            places = range(len(text) - n)
            for at in reversed(places) if latest else places:
                if text[at : at + n] == text[-n:]:
                    return text[at + n : at + n + limit]
        return []

    return guess


def replay(answer: dict[str, Any], guess: Guesser) -> int:
    """Return the passes in which a rule would have drafted the answer."""
    text, said, passes = [*answer["ids"], *answer["answer"][:1]], 1, 0
    while said < len(answer["answer"]):
        rest = answer["answer"][said:]
        guesses = guess(text, min(LIMIT, len(rest) - 1))
        hits = next((i for i, (a, b) in enumerate(zip(guesses, rest, strict=False)) if a != b), len(guesses))
        text += rest[: hits + 1]
        said += hits + 1
        passes += 1
    return passes


def controls(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each control's tokens a pass, all and by task, and the tasks in which it is better than we are."""
    ours = tokens_a_pass(answers)
    found: dict[str, Any] = {}
    for name, rule in (
        ("first match, n 3 to 1", first_match(3, 1)),
        ("first match, n 5 to 2", first_match(5, 2)),
        ("latest match, n 2", first_match(2, 2, latest=True)),
        ("latest match, n 12", first_match(12, 12, latest=True)),
    ):
        theirs = tokens_a_pass([{**a, "passes": replay(a, rule)} for a in answers])
        better = [task for task in theirs if theirs[task] > ours[task]]
        found[name] = {"all": theirs.pop("all"), "by_task": theirs, "better_on": better}
    return found


def report(answers: list[dict[str, Any]]) -> None:
    """Print the table for people."""
    print(f"\n{'task':16}{'answers':>8}{'tokens/pass':>13}{'accepted/drafted':>18}")
    for task, figure in tokens_a_pass(answers).items():
        group = [a for a in answers if a["task"] == task or (task == "all" and a["task"] != "rewrite")]
        share = sum(a["accepted"] for a in group) / max(1, sum(a["drafted"] for a in group))
        print(f"{task:16}{len(group):>8}{figure:>13.3f}{share:>18.3f}")
    print()


if __name__ == "__main__":
    main()

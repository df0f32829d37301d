"""Is text with speculation the plain text, token for token? Every drafter, several lengths, alone and in a batch.

Greedy, or with ``--temperature`` sampled under the ``coupled`` rule, whose seed fixes the text.

    identical      whether every answer was the plain one
    compared       answers compared with the plain one
    divergences    where not: the prompt, the arm, the position, and the plain logits' margin between its first two
                   tokens there; a large one is a fault in the logic, not in the arithmetic

``model`` is the draft model of ``--draft``, or one made of the target's first layers: that guesses badly, in ways that
chains and corrections meet.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import foredraft
from benchmarks.shared.made_models import first_layers
from benchmarks.shared.script import finish, load, parser, read_prompts, spread
from foredraft.core.sequence import TokenSequence
from foredraft.options import parse_options
from foredraft.prompts import prompt_ids


@dataclass(frozen=True)
class Arm:
    """A way to answer that must not change the text."""

    name: str
    drafter: str
    length: int
    batch: int = 1


def main() -> None:
    options = parser("text with every drafter against plain decoding, token for token")
    options.add_argument("--count", type=int, default=100, help="prompts, spread over the tasks")
    options.add_argument("--max-tokens", type=int, default=128)
    options.add_argument("--draft-layers", type=int, default=4, help="layers of the draft model")
    options.add_argument("--draft", type=Path, help="another draft model")
    options.add_argument("--lengths", default="4,10", help="draft lengths; the first is the batch's too")
    options.add_argument("--drafters", default="lookup,model,lookup+model,batch", help="batch: lookup+model in batches")
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--top-p", type=float, default=1.0)
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    prompts, digest = read_prompts(arguments.prompts)
    if arguments.quick:
        prompts, arguments.max_tokens = spread(prompts, 1), min(arguments.max_tokens, 32)
    prompts = _chosen(prompts, arguments.count)
    lm = load(arguments, drafter="none")
    tokenizer, target = lm.loaded.tokenizer, lm.loaded.target
    texts = [
        prompt_ids(row["prompt"], tokenizer, parse_options({}), target.vocabulary, lm.loaded.context) for row in prompts
    ]
    with tempfile.TemporaryDirectory() as folder:
        assert lm.loaded.folder is not None
        draft = arguments.draft or first_layers(lm.loaded.folder.path, Path(folder) / "draft", arguments.draft_layers)
        sampling = {"max_tokens": arguments.max_tokens}
        if arguments.temperature:
            sampling |= {"temperature": arguments.temperature, "top_p": arguments.top_p, "seed": arguments.seed}
        lengths = [int(length) for length in arguments.lengths.split(",")]
        compared, divergences = compare(lm, texts, arms(draft, lengths, arguments.drafters.split(",")), sampling)
    finish(
        {
            "identical": not divergences,
            "compared": compared,
            "divergences": divergences,
            "tier": lm.loaded.tier,
            "dtype": lm.loaded.dtype,
            "sampling": sampling,
        },
        digest,
    )


def arms(draft: Path, lengths: list[int], wanted: list[str]) -> list[Arm]:
    """Return the drafters wanted at every length, and two of them together in a batch of six."""
    drafters = {"lookup": "lookup", "suffix": "suffix", "model": f"model:{draft}"}
    drafters["lookup+model"] = f"lookup+{drafters['model']}"
    alone = [
        Arm(f"{name} {length}", drafters[name], length) for name in wanted if name != "batch" for length in lengths
    ]
    batch = Arm(f"lookup+model {lengths[0]}, batch of 6", drafters["lookup+model"], lengths[0], 6)
    return [*alone, batch] if "batch" in wanted else alone


def compare(
    lm: foredraft.LanguageModel, texts: list[list[int]], ways: list[Arm], sampling: dict[str, Any]
) -> tuple[int, list[dict[str, Any]]]:
    """Answer every prompt plainly and in every other way; return how many were compared, and where they differ."""
    plain = [lm.generate(text, **sampling).token_ids for text in texts]
    print(f"\n{lm.loaded.tier} {lm.loaded.dtype}: {sum(map(len, plain))} tokens of {len(texts)} plain answers\n")
    print(f"{'arm':28}{'answers':>9}{'identical':>11}{'tokens/pass':>13}")
    divergences: list[dict[str, Any]] = []
    for way in ways:
        answers: list[Any] = []
        for at in range(0, len(texts), way.batch):
            group = texts[at : at + way.batch]
            made = lm.generate(
                group if way.batch > 1 else group[0],
                **sampling,
                drafter=way.drafter,
                draft_tokens=way.length,
            )
            answers += made if way.batch > 1 else [made]
        wrong = [
            _divergence(lm, way, number, text, want, answer.token_ids)
            for number, (text, want, answer) in enumerate(zip(texts, plain, answers, strict=True))
            if want != answer.token_ids
        ]
        divergences += wrong
        tokens = sum(answer.completion_tokens - 1 for answer in answers)
        passes = sum(answer.speculative.rounds for answer in answers)
        print(f"{way.name:28}{len(texts):>9}{len(texts) - len(wrong):>11}{tokens / max(passes, 1):>13.2f}", flush=True)
    for wrong_one in divergences:
        print("  {arm}: prompt {prompt} differs at token {position}, margin {margin:.4g}".format(**wrong_one))
    print()
    return len(texts) * len(ways), divergences


def _divergence(
    lm: foredraft.LanguageModel, way: Arm, number: int, text: list[int], want: list[int], got: list[int]
) -> dict[str, Any]:
    """Return where two answers part, and how sure the plain pass was there."""
    shorter = min(len(want), len(got))
    position = next((i for i in range(shorter) if want[i] != got[i]), shorter)
    so_far = [*text, *want[:position]]
    sequence = TokenSequence(so_far, limit=len(so_far) + 1)
    lm.loaded.target.begin(sequence)
    logits = np.asarray(lm.loaded.target.extend([(sequence, so_far)]))[0]
    lm.loaded.target.end(sequence)
    second, first = np.sort(logits)[-2:]
    return {"arm": way.name, "prompt": number, "position": position, "margin": float(first - second)}


def _chosen(prompts: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return ``count`` prompts, as evenly over the tasks as they allow."""
    per_task = next((n for n in range(1, len(prompts) + 1) if len(spread(prompts, n)) >= count), len(prompts))
    return spread(prompts, per_task)[:count]


if __name__ == "__main__":
    main()

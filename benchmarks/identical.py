"""Whether greedy text with every drafter is the plain text, token for token, on a real model.

    identical     answers that equal the plain one
    compared      answers in all: prompts x drafters x lengths
    divergences   for each other one: where it parts, and how far the two best logits lie apart there

A divergence at a margin of about nothing is rounding (a pass over several rows summed otherwise than a pass over one);
a large margin would be a fault of logic. The draft model is made of the target's own first layers, so that it agrees
sometimes and errs often.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from common import finish, load, parser, read_prompts, spread
from safetensors import safe_open
from safetensors.torch import save_file

import foredraft
from foredraft.core.draft import Draft
from foredraft.core.sequence import Sequence


def main() -> None:
    options = parser("greedy text with every drafter against plain text")
    options.add_argument("--count", type=int, default=20, help="how many prompts, spread over the tasks")
    options.add_argument("--max-tokens", type=int, default=96)
    options.add_argument("--lengths", default="auto,1,4,10", help="draft lengths, joined by commas")
    options.add_argument("--draft-layers", type=int, default=8)
    arguments = options.parse_args()
    prompts, digest = read_prompts(arguments.prompts)
    prompts = spread(prompts, -(-arguments.count // 6))[: 3 if arguments.quick else arguments.count]
    lengths: list[int | str] = [x if x == "auto" else int(x) for x in arguments.lengths.split(",")]
    if arguments.quick:
        lengths, arguments.max_tokens = lengths[:2], min(arguments.max_tokens, 48)
    lm = load(arguments, drafter="none")
    with tempfile.TemporaryDirectory() as folder:
        draft = first_layers(lm.host.folder, Path(folder), arguments.draft_layers)
        drafters = ["lookup", f"model:{draft}", f"lookup+model:{draft}"]
        compared, divergences, rates = compare(lm, prompts, drafters, lengths, arguments.max_tokens)
    identical = compared - len(divergences)
    for name, (tokens, passes) in rates.items():
        print(f"{name:14}{tokens / passes:6.2f} tokens a pass")
    for d in divergences:
        print(f"{d['drafter']}, length {d['length']}: parts at token {d['position']}, top-2 margin {d['margin']:.4f}")
    print(f"\n{identical} of {compared} texts identical, {len(prompts)} prompts of {arguments.max_tokens} tokens\n")
    finish({"identical": identical, "compared": compared, "divergences": divergences}, digest)


def compare(
    lm: foredraft.LanguageModel,
    prompts: list[dict[str, Any]],
    drafters: list[str],
    lengths: list[int | str],
    max_tokens: int,
) -> tuple[int, list[dict[str, Any]], dict[str, tuple[int, int]]]:
    """Answer every prompt in every way; return the number of comparisons, the divergences and tokens and passes."""
    compared = 0
    divergences: list[dict[str, Any]] = []
    rates: dict[str, tuple[int, int]] = {}
    for row in prompts:
        plain = lm.generate(row["prompt"], max_tokens=max_tokens)
        for drafter in drafters:
            for length in lengths:
                other = lm.generate(row["prompt"], max_tokens=max_tokens, drafter=drafter, draft_tokens=length)
                compared += 1
                name = drafter.split(":")[0]
                tokens, passes = rates.get(name, (0, 0))
                rates[name] = (tokens + other.completion_tokens - 1, passes + other.speculative.rounds)
                if other.token_ids != plain.token_ids:
                    pairs = zip(plain.token_ids, other.token_ids, strict=False)
                    position = next(i for i, (a, b) in enumerate(pairs) if a != b)
                    margin = top_margin(lm, row["prompt"], plain.token_ids[:position])
                    divergences.append({"drafter": name, "length": length, "position": position, "margin": margin})
    return compared, divergences, rates


def top_margin(lm: foredraft.LanguageModel, prompt: str, answer: list[int]) -> float:
    """Return how far the two best logits of plain decoding lie apart after ``answer``."""
    assert lm.host.tokenizer is not None
    tokens = lm.host.tokenizer.chat([{"role": "user", "content": prompt}]) + answer
    text = Sequence(tokens, limit=len(tokens) + 1)
    lm.host.target.begin(text)
    logits = np.sort(np.asarray(lm.host.target.score([text], [Draft()]).logits[0]))
    lm.host.target.end(text)
    return float(logits[-1] - logits[-2])


def first_layers(source: Path | None, folder: Path, layers: int) -> Path:
    """Write a draft model into ``folder``: the first layers of ``source`` under its own output head."""
    assert source is not None
    config = json.loads((source / "config.json").read_text())
    kept = {}
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                number = name.split(".layers.")[1].split(".")[0] if ".layers." in name else "0"
                if int(number) < layers:
                    kept[name] = file.get_tensor(name)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config["num_hidden_layers"] = layers
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][:layers]
    (folder / "config.json").write_text(json.dumps(config))
    for path in source.glob("*token*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


if __name__ == "__main__":
    main()

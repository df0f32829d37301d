"""What drafting with a model's own layers gains: where redundancy was planted, and on a real model.

planted_speedup        measured speed-up over plain decoding on a made model, most of whose sub-layers add next to
                       nothing; the search is not told which
planted_found          share of those sub-layers that the search left out
planted_left_out       sub-layers left out that were not planted
default_model_speedup  the best measured on --model, whatever it is
held_out_speedup       the same choice on prompts that the search did not see
spread                 where the two lie at 95 %, with held_out_spread
prediction_error       how far predicted and measured tokens a second lie apart on --model;
                       planted_prediction_error on the made one
curves                 agreement by depth of an early exit, and by sub-layers left out: for layers_plot.py
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared.made_models import random_llama
from benchmarks.shared.script import finish, load, parser, read_prompts
from foredraft.measure.bench.questions import QUESTIONS
from foredraft.models.folder import ModelFolder
from foredraft.models.native.model import NativeModel
from foredraft.models.spec import read_spec
from foredraft.models.target import CachedTarget
from foredraft.models.views.layer_choice import choice_file
from foredraft.options import parse_options
from foredraft.prompts import prompt_ids
from foredraft.runtime.loaded_model import LoadedModel, find_sampler
from foredraft.training.layers.answers import greedy_answers
from foredraft.training.layers.finding import Found, LayerPlan, LayerTrainer, save
from foredraft.training.layers.trial import measure

# about a billion parameters, 34.6 M of them in each layer's gated half; and a small one for --quick
WIDE = {"hidden": 2048, "layers": 24, "mlp": 5632, "heads": 16, "kv_heads": 4, "vocabulary": 8192}
NARROW = {"hidden": 1024, "layers": 8, "mlp": 2816, "heads": 8, "kv_heads": 2, "vocabulary": 2048}
PLANTED = 0.65  # share of the sub-layers that add next to nothing


def main() -> None:
    options = parser("self-speculation: drafting with some of the model's own layers, greedy, batch 1")
    options.add_argument("--minutes", type=float, default=10.0, help="of each of the two searches")
    options.add_argument("--only", choices=("planted", "model"), help="one of the two")
    options.add_argument("--place", type=Path, help="folder for the made model, 4.5 GB (default: a temporary one)")
    arguments = options.parse_args()
    figures: dict[str, Any] = {}
    if arguments.only != "model":
        figures |= planted(arguments)
    if arguments.only != "planted":
        figures |= real(arguments)
    finish(figures, read_prompts(arguments.prompts)[1])


def planted(arguments: Any) -> dict[str, Any]:
    """Make a model with planted redundancy and let the search find it."""
    sizes = NARROW if arguments.quick else WIDE
    parts = 2 * sizes["layers"]
    # the first and the last layers stay, or the text hangs on little else than the last token
    faint = sorted(random.Random(0).sample(range(2, parts - 2), round(PLANTED * parts)))
    with tempfile.TemporaryDirectory(dir=arguments.place) as place:
        folder = random_llama(Path(place) / "model", **sizes, faint=faint)
        spec = read_spec(json.loads((folder / "config.json").read_text()))
        tier = None if arguments.native_tier in (None, "auto") else arguments.native_tier
        identity = ModelFolder(folder).identity
        model = NativeModel(spec, folder, identity=identity, cache=Path(place), tier=tier, threads=arguments.threads)
        shutil.rmtree(folder)
        loaded = LoadedModel(
            name="planted", target=CachedTarget(model), tokenizer=None, tier=f"native-{model.tier}", device="cpu",
            dtype="bf16", fingerprint="", context=model.context, no_speculation_reason=None, notice=None, folder=None,
            sampler=find_sampler(), identity=identity, cache=Path(place),
        )  # fmt: skip
        draw = random.Random(1)
        prompts = [[draw.randrange(3, spec.vocabulary) for _ in range(24)] for _ in range(3 if arguments.quick else 4)]
        plan = LayerPlan(0.5, 16, 8, 1, 1) if arguments.quick else LayerPlan(arguments.minutes, 40, 8, 1, 1)
        found = search(loaded, prompts, Path(place) / "planted.search.json", plan)[0]
    out = set(range(parts)) - set(found.choice.sub_layers)
    print(f"planted {faint}, left out {sorted(out)}")
    return {
        "planted_speedup": found.choice.measured_speedup,
        "planted_found": len(out & set(faint)) / len(faint),
        "planted_left_out": len(out - set(faint)),
        "planted_prediction_error": found.choice.prediction_error,
        "planted_tokens_a_round": found.trial.tokens_a_round,
        "planted_cost": found.choice.cost,
        "planted_complete": found.complete,
        "planted_tried": found.tried,
        "planted_seconds": found.seconds,
        "planted_identical": f"{found.trial.identical}/{found.trial.answers}",
    }


def real(arguments: Any) -> dict[str, Any]:
    """Search the model that the options name, write its choice beside it, and try that on other prompts."""
    loaded = load(arguments, drafter="none").loaded
    ids = tokens_of(loaded, QUESTIONS[:4] if arguments.quick else QUESTIONS)
    plan = LayerPlan(0.4, 24, 16, 1, 1) if arguments.quick else LayerPlan(arguments.minutes)
    path = choice_file(loaded.cache, loaded.identity)
    with tempfile.TemporaryDirectory() as place:
        found, curves = search(loaded, ids, Path(place) / "search.json", plan)
    if not arguments.quick:
        save(found, path)
    others = [prompt["prompt"] for prompt in read_prompts(arguments.prompts)[0]]
    others = others[: 2 if arguments.quick else 12]
    answers = greedy_answers(loaded, tokens_of(loaded, others), plan.tokens, Line())
    trial = measure(loaded, answers, found.trial.candidate, found.trial.length, plan.repeats, Line())
    return {
        "default_model_speedup": found.choice.measured_speedup,
        "prediction_error": found.choice.prediction_error,
        "held_out_speedup": trial.measured,
        "spread": found.trial.interval,
        "held_out_spread": trial.interval,
        "agreement": found.choice.agreement,
        "cost": found.choice.cost,
        "draft_tokens": found.choice.draft_tokens,
        "left_out": sorted(set(range(2 * found.choice.layers)) - set(found.choice.sub_layers)),
        "tried": found.tried,
        "complete": found.complete,
        "seconds": found.seconds,
        "identical": f"{found.trial.identical + trial.identical}/{found.trial.answers + trial.answers}",
        "curves": curves,
    }


def search(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], state: Path, plan: LayerPlan
) -> tuple[Found, dict[str, Any]]:
    """Search; return what was found and the curves of agreement."""
    trainer = LayerTrainer(loaded, prompts, state, plan, Line())
    found = trainer.train("this machine")
    choice = found.choice
    print(f"\n{loaded.name}: {choice.measured_speedup:.3f} measured, {choice.predicted_speedup:.3f} predicted")
    parts = 2 * found.choice.layers
    exits, left_out = [], dict.fromkeys(range(1, parts), 0.0)
    for sub_layers, runs in trainer.state.tried.items():
        if sub_layers == tuple(range(len(sub_layers))) and len(sub_layers) % 2 == 0:
            exits.append([len(sub_layers) // 2, runs.agreement])
        else:
            out = parts - len(sub_layers)
            left_out[out] = max(left_out[out], runs.agreement)
    return found, {
        "layers": found.choice.layers,
        "exits": sorted(exits),
        "left_out": [[count, share] for count, share in left_out.items() if share],
    }


def tokens_of(loaded: LoadedModel, prompts: Sequence[str]) -> list[list[int]]:
    return [
        prompt_ids(prompt, loaded.tokenizer, parse_options({}), loaded.target.vocabulary, loaded.context)
        for prompt in prompts
    ]


class Line:
    """Says on stderr what goes on, twice a second at most."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, done: int, total: int, label: str = "measuring", note: str = "") -> bool:
        if sys.stderr.isatty() and time.monotonic() - self._last > 0.5:
            self._last = time.monotonic()
            print(f"\r\x1b[K{label} {done}/{total} {note}", end="", file=sys.stderr, flush=True)
        return True


if __name__ == "__main__":
    main()

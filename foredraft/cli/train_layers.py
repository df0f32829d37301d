"""``foredraft train layers``: which of a model's own sub-layers draft best for it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foredraft.cli.console import Console, harmless
from foredraft.cli.loading import cache_folder, load_bare, token_ids
from foredraft.cli.prompts import read_lines

if TYPE_CHECKING:
    from foredraft.training.layers import Found, LayerPlan


def run(args: argparse.Namespace, console: Console) -> int:
    """Search, measure, write; every option and prompt is read before a model is loaded."""
    from foredraft.measure.questions import QUESTIONS

    plan = _plan(args)
    prompts: Sequence[str] = QUESTIONS
    if args.prompts is not None:
        prompts = [turn for line in read_lines(args.prompts, console.stdin) for turn in line.turns]
    found, path = _train(args, plan, prompts, console)
    console.progress.close()
    if args.json:
        console.print(json.dumps(_document(found, path)))
    else:
        for line in _lines(found, path):
            console.print(harmless(line))
    return 0


def _plan(args: argparse.Namespace) -> LayerPlan:
    from foredraft.training.layers import LayerPlan

    named = {name: value for name in ("tokens", "minutes") if (value := getattr(args, name)) is not None}
    return LayerPlan(**named)


def _train(args: argparse.Namespace, plan: LayerPlan, prompts: Sequence[str], console: Console) -> tuple[Found, Path]:
    from foredraft.cli.machine import processor
    from foredraft.models.layer_choice import choice_file
    from foredraft.training.layers import LayerTrainer, save

    host = load_bare(args, console)
    path = choice_file(cache_folder(console.environment), host.identity) if args.out is None else Path(args.out)
    ids = token_ids(prompts, host, console)
    trainer = LayerTrainer(host, ids, path.with_suffix(".search.json"), plan, console.progress.count)
    if trainer.state.tried:
        console.say(f"note: going on with a search that has tried {len(trainer.state.tried)} sets")
    here = processor()
    found = trainer.train(f"{here.name}, {here.usable} cores")
    save(found, path)
    return found, path


def _document(found: Found, path: Path) -> dict[str, Any]:
    choice, trial = found.choice, found.trial
    return {
        **asdict(choice),
        "pays": choice.pays,
        "prediction_error": choice.prediction_error,
        "tokens_a_round": trial.tokens_a_round,
        "identical": trial.identical,
        "answers": trial.answers,
        "tried": found.tried,
        "complete": found.complete,
        "seconds": found.seconds,
        "file": str(path),
    }


def _lines(found: Found, path: Path) -> list[str]:
    choice, trial = found.choice, found.trial
    ended = "nothing better is near" if found.complete else "stopped before its end"
    verdict = "worth it here" if choice.pays else "NOT worth it here, so nothing uses it unless it is asked for"
    return [
        f"{choice.model} · {choice.tier} {choice.dtype} · {trial.answers} answers",
        f"tried       {found.tried} sets in {found.seconds:.0f} s; {ended}",
        f"left out    {_left_out(choice.layers, choice.sub_layers)}",
        f"agreement   {choice.agreement:.2f}; a draft step costs {choice.cost:.2f} of a plain pass",
        f"guesses     {choice.draft_tokens} a round, which yields {trial.tokens_a_round:.2f} tokens",
        f"predicted   {choice.predicted_speedup:.3f} times plain, {choice.predicted_tokens_per_s:.1f} tokens/s",
        f"measured    {choice.measured_speedup:.3f} times plain, {choice.measured_tokens_per_s:.1f} tokens/s; "
        f"{trial.identical} of {trial.answers} texts identical",
        f"{verdict}: {path}",
    ]


def _left_out(layers: int, sub_layers: Sequence[int]) -> str:
    """Return which sub-layers are left out, in words."""
    kept = set(sub_layers)
    depth = len(kept) // 2
    if depth < layers and kept == set(range(2 * depth)):
        return f"all after layer {depth} of {layers}: an early exit"
    parts = []
    for kind, name in enumerate(("attention", "gated layer")):
        out = [layer for layer in range(layers) if 2 * layer + kind not in kept]
        if out:
            parts.append(f"{name} of {', '.join(map(str, out))}")
    return "; ".join(parts)

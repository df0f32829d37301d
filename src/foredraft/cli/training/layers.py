"""``foredraft train layers``: which of a model's own sub-layers draft best for it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foredraft.cli.arguments.loading import cache_folder, load_bare, token_ids
from foredraft.cli.arguments.prompts import read_lines
from foredraft.cli.terminal.console import Console, harmless
from foredraft.cli.terminal.statistics import many
from foredraft.errors import OptionError

if TYPE_CHECKING:
    from foredraft.models.views.layer_choice import LayerChoice
    from foredraft.training.layers.finding import Found, LayerPlan

_SEARCH: Final = ".search.json"  # beside what is found: what a search that was stopped knows


def run(args: argparse.Namespace, console: Console) -> int:
    """Search, measure, write; every option and prompt is read before a model is loaded."""
    from foredraft.measure.bench.questions import QUESTIONS

    plan = _plan(args)
    prompts: Sequence[str] = QUESTIONS
    if args.prompts is not None:
        prompts = [turn for line in read_lines(args.prompts, console.stdin) for turn in line.turns]
    place = _place(args)
    found, path = _train(args, plan, prompts, place, console)
    console.progress.close()
    if args.json:
        console.print(json.dumps(_document(found, path)))
    else:
        for line in _lines(found, path):
            console.print(harmless(line))
    return 0


def _plan(args: argparse.Namespace) -> LayerPlan:
    from foredraft.training.layers.finding import LayerPlan

    named = {name: value for name in ("tokens", "minutes") if (value := getattr(args, name)) is not None}
    return LayerPlan(**named)


def _place(args: argparse.Namespace) -> Path | None:
    """Return the file that the options name, refused now and not after a search where it cannot be written."""
    from foredraft.system.files import require_place

    if args.out is None:
        return None
    if not args.out or args.out.endswith("/"):
        raise OptionError(f"--out must name a file, not {args.out!r}")
    place = Path(args.out)
    require_place(place)  # first: "." has no suffix to change
    require_place(place.with_suffix(_SEARCH))
    return place


def _train(
    args: argparse.Namespace, plan: LayerPlan, prompts: Sequence[str], place: Path | None, console: Console
) -> tuple[Found, Path]:
    from foredraft.models.views.layer_choice import choice_file
    from foredraft.system.files import require_place
    from foredraft.system.machine import processor
    from foredraft.training.layers.finding import LayerTrainer, save

    cache = cache_folder(console.environment)
    if place is None:
        require_place(choice_file(cache, "any"))
    loaded = load_bare(args, console)
    path = place or choice_file(cache, loaded.identity)
    for file in (path, path.with_suffix(_SEARCH)):
        require_place(file)
    ids = token_ids(prompts, loaded, console)
    trainer = LayerTrainer(loaded, ids, path.with_suffix(_SEARCH), plan, console.progress.count)
    if trainer.state.tried:
        console.say(f"note: going on with a search that has tried {many(len(trainer.state.tried), 'set')}")
    here = processor()
    try:
        found = trainer.train(f"{here.name}, {here.usable} cores")
    except KeyboardInterrupt:
        console.say(f"stopped: {trainer.kept}")
        raise
    save(found, path)
    return found, path


def _document(found: Found, path: Path) -> dict[str, Any]:
    choice, trial = found.choice, found.trial
    return {
        **asdict(choice),
        "pays": choice.pays,
        "told": choice.conclusive,
        "prediction_error": choice.prediction_error,
        "tokens_a_round": trial.tokens_a_round,
        "repeats": trial.repeats,
        "identical": trial.identical,
        "answers": trial.answers,
        "answered": found.answered,
        "cut": found.cut,
        "prompts": found.prompts,
        "tried": found.tried,
        "complete": found.complete,
        "seconds": found.seconds,
        "file": str(path),
    }


def _lines(found: Found, path: Path) -> list[str]:
    choice, trial = found.choice, found.trial
    ended = "nothing better is near" if found.complete else "stopped before its end"
    return [
        f"{choice.model} · {choice.tier} {choice.dtype} · {_answers(found)}",
        f"tried       {many(found.tried, 'set')} in {found.seconds:.0f} s; {ended}",
        f"left out    {_left_out(choice.layers, choice.sub_layers)}",
        f"agreement   {choice.agreement:.2f}; a draft step costs {choice.cost:.2f} of a plain pass",
        f"guesses     {choice.draft_tokens} a round, which yields {trial.tokens_a_round:.2f} tokens",
        f"predicted   {choice.predicted_speedup:.3f} times plain, {choice.predicted_tokens_per_s:.1f} tokens/s; "
        f"{choice.prediction_error:.1%} off what was measured",
        f"measured    {choice.measured_speedup:.3f} times plain, {choice.measured_tokens_per_s:.1f} tokens/s; "
        f"{trial.identical} of {many(trial.answers, 'text')} identical",
        f"spread      {choice.measured_from:.3f} to {choice.measured_to:.3f} at 95 %; "
        f"{', '.join(f'{each:.3f}' for each in trial.repeats)} by repeat, {choice.measured_tokens} tokens each way",
        f"{_verdict(choice)}: {path}",
    ]


def _answers(found: Found) -> str:
    measured = f"{found.trial.answers} of {many(found.answered, 'answer')} measured"
    rest = found.prompts - found.answered
    left = f"; {many(rest, 'prompt')} left unanswered, for time or number" if rest else ""
    return measured + left + (f"; {many(found.cut, 'answer')} cut short, for time" if found.cut else "")


def _verdict(choice: LayerChoice) -> str:
    from foredraft.models.views.layer_choice import ENOUGH, PAYS

    if choice.pays:
        return "worth it here"
    if choice.conclusive:
        return "NOT worth it here, so nothing uses it unless it is asked for"
    why = f"under {ENOUGH} tokens measured" if choice.measured_tokens < ENOUGH else f"{PAYS} lies within the spread"
    return f"too little to tell whether it is worth it ({why}), more prompts and --minutes tell more"


def _left_out(layers: int, sub_layers: Sequence[int]) -> str:
    """Return which sub-layers are left out, in words."""
    kept = set(sub_layers)
    depth = len(kept) // 2
    if depth < layers and kept == set(range(2 * depth)):
        return f"all after layer {depth} of {layers}: an early exit"
    parts = []
    for kind, name in enumerate(("attention", "MLP")):
        out = [layer for layer in range(layers) if 2 * layer + kind not in kept]
        if out:
            parts.append(f"{name} of {', '.join(map(str, out))}")
    return "; ".join(parts)

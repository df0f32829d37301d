"""``foredraft train heads`` and ``train draft``: from a model to what was trained on its own answers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foredraft.cli.arguments.loading import load_bare
from foredraft.cli.arguments.prompts import Line, read_lines
from foredraft.cli.terminal.console import Console, harmless
from foredraft.errors import OptionError, PromptError, PromptTooLong
from foredraft.system.sizes import size_of

if TYPE_CHECKING:
    from foredraft.runtime.loaded_model import LoadedModel
    from foredraft.training.heads.draft import DraftMaker
    from foredraft.training.heads.making import HeadsMaker
    from foredraft.training.heads.work import Made

_PLAN = ("tokens", "epochs", "vocabulary", "gigabytes", "longest", "kind", "layers")


def run(args: argparse.Namespace, console: Console) -> int:
    """Collect, train, write; every option and prompt is read before a model is loaded."""
    from foredraft.models.runner import INSTALL, torch_installed
    from foredraft.training.data.plans import DraftPlan, HeadsPlan

    if not torch_installed():
        raise OptionError(f"train {args.action} needs torch: {INSTALL}")
    named = {name: value for name in _PLAN if (value := getattr(args, name)) is not None}
    (HeadsPlan if args.action == "heads" else DraftPlan)(**named)
    lines = [] if args.prompts is None else read_lines(args.prompts, console.stdin)
    if args.dtype == "auto":  # what a module learns from are the weights, not what a file's blocks round
        args.dtype = "bf16"
    loaded = load_bare(args, console)
    prompts = _ids(lines, loaded, console)
    made, digest = _make(args, named, loaded, prompts, console)
    console.progress.close()
    if args.json:
        console.print(json.dumps(_document(made, digest)))
    else:
        for line in _words(made, args, loaded.name):
            console.print(harmless(line))
    return 0


def _make(
    args: argparse.Namespace,
    named: dict[str, Any],
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    console: Console,
) -> tuple[Made, str]:
    from foredraft.models.heads.file import heads_file
    from foredraft.models.torch_decoder.runtime import set_threads
    from foredraft.system.machine import cores
    from foredraft.training.heads.draft import DraftMaker
    from foredraft.training.heads.making import HeadsMaker
    from foredraft.training.heads.target import target_of

    set_threads(args.threads or cores())
    digest = target_of(loaded)[2]
    kept = heads_file(loaded.cache, digest)
    folder = kept.with_suffix("") if args.out is None else Path(args.out)
    if args.out is not None and not args.out.strip():
        raise OptionError(f"--out must name a folder, not {args.out!r}")
    which = HeadsMaker if args.action == "heads" else DraftMaker
    maker: HeadsMaker | DraftMaker = which(loaded, folder, named, console.progress.count)
    _check_resume(maker, args, console)
    states = maker.work.shards.folder
    if taken := maker.work.taken:
        console.say(f"note: the {taken} tokens of answers under {states} are taken as they are; --tokens asks for more")
    else:
        console.say(f"note: states take up to {size_of(maker.work.bound(prompts))} under {states}")
    try:
        if isinstance(maker, HeadsMaker):
            return maker.make(prompts, _argv(args), kept if args.out is None else None), digest
        return maker.make(prompts, _argv(args)), digest
    except KeyboardInterrupt:
        console.say("note: stopped; the same command with --resume goes on after the last answers on disk")
        raise


def _check_resume(maker: HeadsMaker | DraftMaker, args: argparse.Namespace, console: Console) -> None:
    """Raise OptionError for a training that was begun, unless it is meant to go on."""
    if maker.begun and not args.resume:
        raise OptionError(f"{maker.folder} holds a training that was begun: go on with --resume, or name another --out")
    if args.resume and not maker.begun:
        console.say(f"note: nothing was begun under {maker.folder}, so it begins now")


def _ids(lines: Sequence[Line], loaded: LoadedModel, console: Console) -> list[list[int]]:
    """Return the prompts' tokens; those too long for the context are left out, and it is said."""
    from foredraft.options import parse_options
    from foredraft.prompts import prompt_ids

    raw = loaded.tokenizer is not None and not loaded.tokenizer.has_chat_template
    if raw and lines:
        console.say("note: this model has no chat template, so it continues the prompts as they are")
    settings = parse_options({"raw": True} if raw else {})
    ids: list[list[int]] = []
    long: list[int] = []
    for line in lines:
        for turn in line.turns:
            try:
                ids.append(prompt_ids(turn, loaded.tokenizer, settings, loaded.target.vocabulary, loaded.context))
            except PromptTooLong:
                long.append(line.number)
            except PromptError as error:
                raise PromptError(f"line {line.number}: {error}") from error
    if long and not ids:
        every = "the only prompt is" if len(long) == 1 else f"all {len(long)} prompts are"
        raise PromptError(f"{every} longer than the context of {loaded.context} tokens")
    if long:
        some = "1 prompt is" if len(long) == 1 else f"{len(long)} prompts are"
        console.say(
            f"note: {some} longer than the context of {loaded.context} tokens and left out, first line {long[0]}"
        )
    return ids


def _argv(args: argparse.Namespace) -> list[str]:
    """Return the command as it is kept with what it made."""
    words = ["foredraft", "train", args.action]
    for name in ("model", "prompts", "out", *_PLAN):
        value = getattr(args, name)
        words += [] if value is None else [f"--{name}", str(value)]
    return [*words, "--resume"] if args.resume else words


def _document(made: Made, digest: str) -> dict[str, Any]:
    judgement = made.judgement
    return {
        "file": str(made.path),
        "digest": digest,
        "tokens": made.tokens,
        "tokens_a_pass": judgement.greedy.tokens_a_pass,
        "tokens_a_pass_drawn": judgement.drawn,
        "conditional": list(judgement.greedy.conditional),
        "acceptance": list(judgement.acceptance),
        "agreement": list(judgement.agreement),
        "collected_s": made.collected_s,
        "trained_s": made.trained_s,
        "complete": made.complete,
    }


def _words(made: Made, args: argparse.Namespace, name: str) -> list[str]:
    judgement = made.judgement
    chances = " ".join(f"{chance:.2f}" for chance in judgement.greedy.conditional)
    ended = "" if made.complete else "; stopped before its end: --resume goes on"
    return [
        f"{name} · {made.tokens} tokens of answers · collected in {made.collected_s:.0f} s",
        f"trained     in {made.trained_s:.0f} s{ended}",
        f"held out    {judgement.greedy.tokens_a_pass:.2f} tokens a pass greedily, {judgement.drawn:.2f} drawn at 1",
        f"accepted    {chances}, guess by guess",
        f"use it      foredraft generate ... --model {args.model} --drafter {_drafter(made, args)}",
        f"{made.path}",
    ]


def _drafter(made: Made, args: argparse.Namespace) -> str:
    if args.action == "draft":
        return f"model:{made.path}"
    return "heads" if made.complete and args.out is None else f"heads:{made.path}"

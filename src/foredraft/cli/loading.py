"""A model as the options describe it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from foredraft.cli.arguments.speculative_config import read as read_speculative_config
from foredraft.cli.terminal.console import Console
from foredraft.errors import ModelError, OptionError, PromptError, StorageError
from foredraft.system.json_text import parse_json, read_regular

if TYPE_CHECKING:
    from foredraft.api import LanguageModel
    from foredraft.core.protocols import Drafter
    from foredraft.options import Options
    from foredraft.runtime.host import Host, Machine

_CLASS: Final = re.compile(r"(?:^|\+)\s*[A-Za-z_][\w.]*:[A-Za-z_]\w*\s*(?:$|\+)")


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return where models are kept: $FOREDRAFT_CACHE, else foredraft under $XDG_CACHE_HOME or ~/.cache."""
    if named := environment.get("FOREDRAFT_CACHE"):
        return Path(named).expanduser()
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "foredraft"


def load_model(args: argparse.Namespace, console: Console) -> LanguageModel:
    """Load the model that the options name, and say on stderr if a slower path is taken."""
    from foredraft.api import load

    drafter, draft_tokens = _drafting(args)
    console.progress.status(f"loading {args.model} …")
    model = load(
        args.model,
        drafter=drafter,
        draft_tokens="auto" if draft_tokens is None else draft_tokens,
        draft_temperature=args.draft_temperature,
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        context=args.context,
        offline=args.offline,
        cache=cache_folder(console.environment),
        native_tier=args.native_tier,
        share_cache=args.cache_share,
        progress=console.progress,
    )
    console.progress.close()
    for said in [*model.slower_paths, *([] if model.host.news is None else [model.host.news])]:
        console.say(f"note: {said}")
    return model


def machine_of(args: argparse.Namespace, console: Console) -> Machine:
    """Return where the options say that a model runs."""
    from foredraft.runtime.host import Machine

    return Machine(
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        context=args.context,
        offline=args.offline,
        cache=cache_folder(console.environment),
        native_tier=args.native_tier,
    )


def load_bare(args: argparse.Namespace, console: Console) -> Host:
    """Load the model that the options name, without a drafter; say on stderr if a slower path is taken."""
    from foredraft.runtime.host import load_host

    console.progress.status(f"loading {args.model} …")
    host = load_host(args.model, machine_of(args, console), progress=console.progress)
    for said in (host.notice, host.news):
        if said is not None:
            console.say(f"note: {said}")
    return host


def token_ids(prompts: Sequence[str], host: Host, console: Console) -> list[list[int]]:
    """Return the prompts' tokens, through the chat template where the model has one."""
    from foredraft.options import settle
    from foredraft.prompts import prompt_ids

    raw = host.tokenizer is not None and not host.tokenizer.has_chat_template
    if raw:
        console.say("note: this model has no chat template, so it continues the prompts as they are")
    settings = settle({"raw": True} if raw else {})
    ids = []
    for i, prompt in enumerate(prompts, start=1):
        try:
            ids.append(prompt_ids(prompt, host.tokenizer, settings, host.target.vocabulary, host.context))
        except PromptError as fault:
            raise PromptError(f"prompt {i}: {fault}") from fault
    return ids


def _drafting(args: argparse.Namespace) -> tuple[str | Drafter, int | str | None]:
    if args.speculative_config is not None:
        drafter, length = read_speculative_config(args.speculative_config, args.drafter, args.draft_tokens)
        return drafter, args.draft_tokens if length is None else length
    if args.drafter is not None:
        find_own_classes(args.drafter)
    return "auto" if args.drafter is None else args.drafter, args.draft_tokens


def find_own_classes(drafter: str) -> None:
    """Let a user's own drafter be imported from where he stands; last, so that it replaces nothing installed."""
    here = str(Path.cwd())
    if _CLASS.search(drafter) and here not in sys.path:
        sys.path.append(here)


def with_generation_config(
    args: argparse.Namespace, options: Options, model: LanguageModel, console: Console
) -> Options:
    """Return the options with the checkpoint's own sampling where they say nothing, if that was asked for."""
    if not args.generation_config:
        return options
    from foredraft.options import settle

    named = {} if model.host.folder is None else sampling_of(model.host.folder.path)
    values = {name: value for name, value in named.items() if name not in options}
    if not values:
        console.say("note: the checkpoint's generation_config names no sampling that the options leave open")
    try:
        settle(cast("Options", values))
    except OptionError as fault:
        raise OptionError(
            f"the checkpoint's generation_config cannot be honoured ({fault}): name that option"
        ) from fault
    return cast("Options", {**options, **values})


def sampling_of(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint's ``generation_config.json`` says of sampling, by our names; empty without one.

    Raises ModelError if it is not an object, StorageError if it cannot be read.
    """
    path = folder / "generation_config.json"
    if not path.exists():
        return {}
    try:
        config = parse_json(read_regular(path))
    except OSError as fault:
        raise StorageError(f"{path} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise ModelError(f"{path} is not JSON: {fault}") from fault
    if not isinstance(config, dict):
        raise ModelError(f"{path} does not hold an object")
    if config.get("do_sample") is False:
        return {"temperature": 0.0}
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    values = {name: config[name] for name in names if config.get(name) is not None}
    if config.get("do_sample") and "temperature" not in values:
        values["temperature"] = 1.0
    return values

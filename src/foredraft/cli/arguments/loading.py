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
    from foredraft.runtime.loaded_model import LoadedModel, Machine

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
    for note in [*model.slower_paths, *([] if model.loaded.install_note is None else [model.loaded.install_note])]:
        console.say(f"note: {note}")
    return model


def machine_of(args: argparse.Namespace, console: Console) -> Machine:
    """Return where the options say that a model runs."""
    from foredraft.runtime.loaded_model import Machine

    return Machine(
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        context=args.context,
        offline=args.offline,
        cache=cache_folder(console.environment),
        native_tier=args.native_tier,
    )


def load_bare(args: argparse.Namespace, console: Console) -> LoadedModel:
    """Load the model that the options name, without a drafter; say on stderr if a slower path is taken."""
    from foredraft.runtime.loaded_model import open_model

    console.progress.status(f"loading {args.model} …")
    loaded = open_model(args.model, machine_of(args, console), progress=console.progress)
    for note in (loaded.notice, loaded.install_note):
        if note is not None:
            console.say(f"note: {note}")
    return loaded


def token_ids(prompts: Sequence[str], loaded: LoadedModel, console: Console) -> list[list[int]]:
    """Return the prompts' tokens, through the chat template where the model has one."""
    from foredraft.options import parse_options
    from foredraft.prompts import prompt_ids

    raw = loaded.tokenizer is not None and not loaded.tokenizer.has_chat_template
    if raw:
        console.say("note: this model has no chat template, so it continues the prompts as they are")
    settings = parse_options({"raw": True} if raw else {})
    ids = []
    for i, prompt in enumerate(prompts, start=1):
        try:
            ids.append(prompt_ids(prompt, loaded.tokenizer, settings, loaded.target.vocabulary, loaded.context))
        except PromptError as error:
            raise PromptError(f"prompt {i}: {error}") from error
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
    from foredraft.options import parse_options

    named = {} if model.loaded.folder is None else sampling_of(model.loaded.folder.path)
    values = {name: value for name, value in named.items() if name not in options}
    if not values:
        console.say("note: the checkpoint's generation_config names no sampling that the options leave open")
    try:
        parse_options(cast("Options", values))
    except OptionError as error:
        raise OptionError(
            f"the checkpoint's generation_config cannot be honoured ({error}): name that option"
        ) from error
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
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} does not hold an object")
    if config.get("do_sample") is False:
        return {"temperature": 0.0}
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    values = {name: config[name] for name in names if config.get(name) is not None}
    if config.get("do_sample") and "temperature" not in values:
        values["temperature"] = 1.0
    return values

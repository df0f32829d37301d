"""``foredraft models``: what is here, what is known, what goes together; fetch and remove."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from foredraft.cli.arguments import arguments
from foredraft.cli.arguments.loading import cache_folder
from foredraft.cli.arguments.parser import Parser, one_of
from foredraft.cli.stored.installed import choose, kept, kept_models, remove, size_on_disk
from foredraft.cli.terminal.console import Console, harmless
from foredraft.cli.terminal.text_width import columns, fit
from foredraft.errors import OptionError
from foredraft.models.hub.registry import DEFAULT_MODEL
from foredraft.system.sizes import size_of

_ACTIONS = ("list", "fetch", "remove")
_EPILOG = """\
examples:
  foredraft models
  foredraft models fetch qwen3-0.6b
  foredraft models remove smollm2-135m
"""


def add_arguments(parser: Parser) -> None:
    """Add the verb's options."""
    parser.epilog = _EPILOG
    parser.usage = "foredraft models [list | fetch NAME | remove NAME] [options]"
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", type=one_of(*_ACTIONS), help="list (default), fetch, remove"
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="alias, hub id or .gguf file")
    parser.add_argument(
        "--dtype",
        metavar="T",
        default="auto",
        type=_dtype,
        help="for fetch, of a GGUF: file (as it is), bf16 or f32 (widened); auto is what generate takes",
    )
    parser.add_argument("--offline", action="store_true", help="never use the network")
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """List, fetch or remove."""
    action = args.action or "list"
    if action == "list":
        if args.name is not None:
            raise OptionError(f"unexpected word {args.name!r}: list takes no name")
        return _list(args, console)
    if args.name is None:
        raise OptionError(f"{action} which model? Give its name, as in foredraft models {action} {DEFAULT_MODEL}")
    return (_fetch if action == "fetch" else _remove)(args, console)


def _list(args: argparse.Namespace, console: Console) -> int:
    from foredraft.models.hub.registry import ALIASES, PAIRS

    cache = cache_folder(console.environment)
    here = entries(cache)
    if args.json:
        known = [{"name": n, "hub": a.hub, "wheel": a.wheel and a.wheel.requirement} for n, a in ALIASES.items()]
        pairs = [{"target": p.target, "draft": p.draft, "why": p.why} for p in PAIRS]
        console.print(json.dumps({"cache": str(cache), "here": here, "known": known, "pairs": pairs}))
        return 0
    heading = "\x1b[1m{}\x1b[0m" if console.coloured(console.stdout) else "{}"
    console.print(heading.format("Here"))
    for entry in here:
        name = harmless(entry["name"])
        console.print(
            f"  {fit(name, max(24, columns(name)))}{size_of(entry['bytes']):>8}  {_short(Path(entry['folder']))}"
        )
    if not here:
        console.print(f"  nothing yet; {DEFAULT_MODEL} is fetched when it is first asked for")
    names = {entry["name"] for entry in here}
    console.print("\n" + heading.format("Known names (a folder, hub id or .gguf file does as well)"))
    for name, alias in ALIASES.items():
        notes = ["default"] * (name == DEFAULT_MODEL) + ["here"] * (name in names or alias.hub in names)
        console.print(f"  {name:<16}{alias.hub}" + (f"  ({', '.join(notes)})" if notes else ""))
    console.print("\n" + heading.format("Pairs: foredraft generate --model TARGET --drafter model:DRAFT"))
    for pair in PAIRS:
        console.print(f"  {pair.target:<16}{pair.draft:<16}{pair.why}")
    return 0


def entries(cache: Path) -> list[dict[str, Any]]:
    """Return name, size, folder and source of each model that needs no network."""
    return [model.facts(cache) for model in kept_models(cache)]


def _dtype(text: str) -> str:
    if text == "f64":
        raise argparse.ArgumentTypeError("must be auto, bf16, f32 or file: f64 runs from what f32 fetches")
    return one_of("auto", "bf16", "f32", "file")(text)


def _fetch(args: argparse.Namespace, console: Console) -> int:
    from foredraft.models.hub.fetch import resolve
    from foredraft.models.runner import why_not_blocks

    cache = cache_folder(console.environment)
    console.progress.status(f"fetching {args.name} …")
    dtype = "bf16" if args.dtype == "auto" and why_not_blocks(None, None) else args.dtype
    folder = resolve(args.name, cache, offline=args.offline, dtype=dtype, progress=console.progress)
    facts = kept(folder, args.name, size_on_disk(folder)).facts(cache)
    if args.json:
        console.print(json.dumps(facts))
        return 0
    packed = f", and {size_of(facts['packed'])} of packed weights" if facts["packed"] else ""
    console.print(f"{args.name} is here: {size_of(facts['bytes'] - facts['packed'])} in {_short(folder)}{packed}")
    return 0


def _remove(args: argparse.Namespace, console: Console) -> int:
    cache = cache_folder(console.environment)
    here = kept_models(cache)
    chosen = choose(args.name, here)
    for model in chosen:
        if not model.folder.is_relative_to(cache):
            raise OptionError(f"{model.name} lies in the hub's own cache, which others use too: use `hf cache rm`")
    freed = remove(chosen, here, cache)
    if args.json:
        console.print(json.dumps({"removed": [str(model.folder) for model in chosen], "bytes": freed}))
    else:
        console.print(f"{args.name} is removed: {size_of(freed)} freed")
    return 0


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)

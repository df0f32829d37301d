"""``foredraft models``: what is here, what is known, what goes together; fetch and remove."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from foredraft.cli import arguments
from foredraft.cli.columns import columns, fit
from foredraft.cli.console import Console, harmless
from foredraft.cli.loading import cache_folder
from foredraft.cli.parser import Parser, nearest, one_of
from foredraft.cli.progress import size_of
from foredraft.errors import ModelNotFound, OptionError, StorageError, WeightsError
from foredraft.models.identity import known_identity
from foredraft.models.json_text import parse_json, read_regular
from foredraft.models.registry import DEFAULT_MODEL

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
        type=one_of("auto", "bf16", "f32", "file"),
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
    from foredraft.models.registry import ALIASES, PAIRS

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
    from foredraft.models.fetch import cached

    return [
        {"name": name, "bytes": size, "folder": str(folder), "source": _source(folder)}
        for name, folder, size in cached(cache)
    ]


def _fetch(args: argparse.Namespace, console: Console) -> int:
    from foredraft.models.fetch import resolve
    from foredraft.models.runner import why_not_blocks

    cache = cache_folder(console.environment)
    console.progress.status(f"fetching {args.name} …")
    dtype = "bf16" if args.dtype == "auto" and why_not_blocks(None, None) else args.dtype
    folder = resolve(args.name, cache, offline=args.offline, dtype=dtype, progress=console.progress)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if args.json:
        console.print(json.dumps({"name": args.name, "bytes": size, "folder": str(folder), "source": _source(folder)}))
    else:
        console.print(f"{args.name} is here: {size_of(size)} in {_short(folder)}")
    return 0


def _remove(args: argparse.Namespace, console: Console) -> int:
    cache = cache_folder(console.environment)
    here = entries(cache)
    chosen = [entry for entry in here if args.name in (entry["name"], entry["folder"], Path(entry["folder"]).name)]
    if not chosen:
        raise ModelNotFound(f"no model called {args.name!r} is here{nearest(args.name, [e['name'] for e in here])}")
    for entry in chosen:
        folder = Path(entry["folder"])
        if not folder.is_relative_to(cache):
            raise OptionError(f"{entry['name']} lies in the hub's own cache, which others use too: use `hf cache rm`")
        weights = (folder / "config.json").is_file()  # a GGUF that is kept as it came has no packed form
        identity = _identity(folder) if weights else None
        packed = list((cache / "packed").glob(f"{identity}-*")) if identity else []
        found = list((cache / "layers").glob(f"{identity}.*")) if identity else []
        try:
            for part in (folder, *packed):
                shutil.rmtree(part)
            for file in found:
                file.unlink()
        except OSError as fault:
            raise StorageError(f"{folder} cannot be removed: {fault.strerror}") from fault
    freed = sum(entry["bytes"] for entry in chosen)
    if args.json:
        console.print(json.dumps({"removed": [entry["folder"] for entry in chosen], "bytes": freed}))
    else:
        console.print(f"{args.name} is removed: {size_of(freed)} freed")
    return 0


def _identity(folder: Path) -> str | None:
    """Return what the packed form of a model is called by; None where nobody can tell any more."""
    try:
        return known_identity(folder)
    except WeightsError:
        return None


def _source(folder: Path) -> Any:
    """Return the record of where a model came from: ours has one, the hub's cache says it by its name."""
    try:
        return parse_json(read_regular(folder / "foredraft.json"))["source"]
    except (OSError, ValueError, KeyError, TypeError):
        return {"kind": "hub"}


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)

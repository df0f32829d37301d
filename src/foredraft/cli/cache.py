"""``foredraft cache``: what is remembered, scope by scope; clear it, and fill it from files."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foredraft.cli.arguments import arguments
from foredraft.cli.arguments.loading import cache_folder
from foredraft.cli.arguments.parser import Once, Parser, nearest, one_of
from foredraft.cli.terminal.console import Console
from foredraft.cli.terminal.text_width import columns, fit
from foredraft.errors import OptionError, StorageError
from foredraft.models.hub.registry import DEFAULT_MODEL
from foredraft.system.sizes import size_of

if TYPE_CHECKING:
    from foredraft.retrieval.folder import Entry

_ACTIONS: Final = ("show", "clear", "import")
_EPILOG: Final = """\
examples:
  foredraft cache
  foredraft cache import src/ notes.md --scope my-project
  foredraft generate @question.txt --cache-scope my-project
  foredraft cache clear --scope my-project

Of a folder, hidden and vendored folders, binary files and files over 4 MiB are left out, and named.
"""


def add_arguments(parser: Parser) -> None:
    """Add the verb's options."""
    parser.epilog = _EPILOG
    parser.usage = "foredraft cache [show | clear | import PATH...] [options]"
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", type=one_of(*_ACTIONS), help="show (default), clear, import"
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", help="for import: text files, or folders of them")
    parser.add_argument(
        "--scope", action=Once, metavar="NAME", help="for import and clear: as for --cache-scope of generate"
    )
    parser.add_argument("--all", action="store_true", help="for clear: every scope, and what was set aside")
    parser.add_argument("--model", action=Once, metavar="M", help=f"for import: whose tokens (default {DEFAULT_MODEL})")
    parser.add_argument("--offline", action="store_true", help="never use the network")
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Show, clear or import."""
    from foredraft.retrieval.folder import FOLDER, check_scope

    action = args.action or "show"
    if action != "import" and args.paths:
        raise OptionError(f"unexpected word {args.paths[0]!r}: {action} takes no paths")
    if args.scope is not None:
        if action == "show":
            raise OptionError("--scope is for import and clear: show lists every scope")
        try:
            check_scope(args.scope)
        except OptionError as error:
            raise OptionError(str(error).replace("cache_scope", "--scope", 1)) from error
    for name, given in (("--model", args.model is not None), ("--offline", args.offline)):
        if given and action != "import":
            raise OptionError(f"{name} is for import: leave it out")
    if args.all and action != "clear":
        raise OptionError("--all is for clear: leave it out")
    folder = cache_folder(console.environment) / FOLDER
    if action == "import":
        from foredraft.cli.stored import cache_import

        return cache_import.run(args, folder, console)
    return (_show if action == "show" else _clear)(args, folder, console)


def _show(args: argparse.Namespace, folder: Path, console: Console) -> int:
    from foredraft.retrieval.folder import entries, unfinished

    found, halves, now = entries(folder), unfinished(folder), time.time()
    size = sum(half.bytes for half in halves)
    if args.json:
        files = [_facts(entry, now) for entry in found]
        half = {"files": len(halves), "bytes": size}
        console.print(json.dumps({"folder": str(folder), "files": files, "unfinished": half}))
        return 0
    good = [(entry, entry.header) for entry in found if entry.header is not None]
    if not found:
        console.print("nothing is remembered: give --cache-scope to generate or chat, or import files")
    if good:
        bold = "\x1b[1m{}\x1b[0m" if console.coloured(console.stdout) else "{}"
        width = max(5, *(columns(header.scope) for _, header in good))
        names = f"{'Scope':<{width}}  {'tokens':>9}  {'texts':>6}  {'size':>7}  {'saved':<15}  tokenizer"
        console.print(bold.format(names))
        for entry, header in good:
            name = fit(header.scope, width)
            counts = f"{header.tokens:>9}  {header.documents:>6}  {size_of(entry.bytes):>7}"
            console.print(f"{name}  {counts}  {_ago(now - entry.saved):<15}  {header.tokenizer[:8]}")
    for entry in found:
        if entry.header is None:
            console.print(f"{entry.path.name} ({size_of(entry.bytes)}) cannot be used: it {entry.fault}")
    if halves:
        many = "1 file was" if len(halves) == 1 else f"{len(halves)} files were"
        console.print(f"{many} left half written ({size_of(size)}): the next save or clear deletes what is left")
    return 0


def _facts(entry: Entry, now: float) -> dict[str, Any]:
    header = entry.header
    return {
        "scope": None if header is None else header.scope,
        "tokens": None if header is None else header.tokens,
        "documents": None if header is None else header.documents,
        "tokenizer": None if header is None else header.tokenizer,
        "bytes": entry.bytes,
        "age_s": max(0.0, now - entry.saved),
        "path": str(entry.path),
        "fault": entry.fault,
    }


def _clear(args: argparse.Namespace, folder: Path, console: Console) -> int:
    from foredraft.retrieval.folder import clear, entries

    if args.all == (args.scope is not None):
        raise OptionError("clear needs either --scope NAME or --all")
    gone, left = clear(folder, None if args.all else args.scope)
    if not gone and not left and not args.all:
        names = [entry.header.scope for entry in entries(folder) if entry.header is not None]
        raise OptionError(f"no scope called {args.scope!r} is here{nearest(args.scope, names)}")
    freed, aside = sum(entry.bytes for entry in gone), sum(entry.aside for entry in gone)
    if args.json:
        kept = [{"path": str(entry.path), "reason": entry.fault} for entry in left]
        removed = [str(entry.path) for entry in gone]
        console.print(json.dumps({"removed": removed, "set_aside": aside, "left": kept, "bytes": freed}))
    else:
        note = f" ({aside} of them had been set aside)" if aside else ""
        console.print(f"{len(gone)} file{'' if len(gone) == 1 else 's'} removed{note}: {size_of(freed)} freed")
    if left:
        raise StorageError("; ".join(f"{entry.path} {entry.fault}" for entry in left))
    return 0


def _ago(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'' if count == 1 else 's'} ago"
    return "just now"

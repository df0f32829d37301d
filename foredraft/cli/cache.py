"""``foredraft cache``: what is remembered, scope by scope; clear it, and fill it from files."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foredraft.cli import arguments
from foredraft.cli.console import Console
from foredraft.cli.loading import cache_folder
from foredraft.cli.parser import Parser, nearest, one_of
from foredraft.cli.progress import size_of
from foredraft.errors import OptionError, TokenizerError
from foredraft.models.registry import DEFAULT_MODEL

if TYPE_CHECKING:
    from foredraft.models.tokenizer import Tokenizer
    from foredraft.retrieval.cache_file import Document
    from foredraft.retrieval.store import Entry

_ACTIONS: Final = ("show", "clear", "import")
_EPILOG: Final = """\
examples:
  foredraft cache
  foredraft cache import src/ notes.md --scope my-project
  foredraft generate @question.txt --cache-scope my-project
  foredraft cache clear --scope my-project

Of a folder, hidden and vendored folders, binary files and files over 4 MiB are left out, and named.
"""
_SHOWN: Final = 10  # files that were left out


def add_arguments(parser: Parser) -> None:
    """Add the verb's options."""
    parser.epilog = _EPILOG
    parser.usage = "foredraft cache [show | clear | import PATH...] [options]"
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", type=one_of(*_ACTIONS), help="show (default), clear, import"
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", help="for import: text files, or folders of them")
    parser.add_argument("--scope", metavar="NAME", help="for import and clear: as for --cache-scope of generate")
    parser.add_argument("--all", action="store_true", help="for clear: every scope, and what was set aside")
    parser.add_argument(
        "--model", metavar="M", default=DEFAULT_MODEL, help=f"for import: whose tokens (default {DEFAULT_MODEL})"
    )
    parser.add_argument("--offline", action="store_true", help="never use the network")
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Show, clear or import."""
    from foredraft.retrieval.store import FOLDER, check_scope

    action = args.action or "show"
    if action != "import" and args.paths:
        raise OptionError(f"unexpected word {args.paths[0]!r}: {action} takes no paths")
    if args.scope is not None:
        if action == "show":
            raise OptionError("--scope is for import and clear: show lists every scope")
        check_scope(args.scope)
    if args.all and action != "clear":
        raise OptionError("--all is for clear: leave it out")
    folder = cache_folder(console.environment) / FOLDER
    return {"show": _show, "clear": _clear, "import": _import}[action](args, folder, console)


def _show(args: argparse.Namespace, folder: Path, console: Console) -> int:
    from foredraft.retrieval.store import entries

    found, now = entries(folder), time.time()
    if args.json:
        console.print(json.dumps({"folder": str(folder), "files": [_facts(entry, now) for entry in found]}))
        return 0
    good = [(entry, entry.header) for entry in found if entry.header is not None]
    if not found:
        console.print("nothing is remembered: give --cache-scope to generate or chat, or import files")
    if good:
        bold = "\x1b[1m{}\x1b[0m" if console.coloured(console.stdout) else "{}"
        width = max(5, *(len(header.scope) for _, header in good))
        names = f"{'Scope':<{width}}  {'tokens':>9}  {'texts':>6}  {'size':>7}  {'saved':<15}  tokenizer"
        console.print(bold.format(names))
        for entry, header in good:
            counts = f"{header.tokens:>9}  {header.documents:>6}  {size_of(entry.bytes):>7}"
            ago = _ago(now - entry.saved)
            console.print(f"{header.scope:<{width}}  {counts}  {ago:<15}  {header.tokenizer[:8]}")
    for entry in found:
        if entry.header is None:
            console.print(f"{entry.path.name} ({size_of(entry.bytes)}) cannot be used: it {entry.fault}")
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
    from foredraft.retrieval.store import clear, entries

    if args.all == (args.scope is not None):
        raise OptionError("clear needs either --scope NAME or --all")
    gone = clear(folder, None if args.all else args.scope)
    if not gone and not args.all:
        names = [entry.header.scope for entry in entries(folder) if entry.header is not None]
        raise OptionError(f"no scope called {args.scope!r} is here{nearest(args.scope, names)}")
    freed = sum(entry.bytes for entry in gone)
    if args.json:
        console.print(json.dumps({"removed": [str(entry.path) for entry in gone], "bytes": freed}))
    else:
        console.print(f"{len(gone)} file{'' if len(gone) == 1 else 's'} removed: {size_of(freed)} freed")
    return 0


def _import(args: argparse.Namespace, folder: Path, console: Console) -> int:
    from foredraft.cli import imports
    from foredraft.retrieval.memory import LIMIT
    from foredraft.retrieval.store import Store

    if args.scope is None:
        raise OptionError("import needs --scope NAME: nothing is remembered without one")
    if not args.paths:
        raise OptionError("import needs files or folders, as in foredraft cache import src/ --scope my-project")
    found = imports.find(args.paths)
    words = _tokenizer(args, console)
    documents = _read(found, words, console)
    if args.json is False:
        _name(found.skipped, console)
    if not documents:
        raise OptionError("there is nothing to import: no file that was found is text of at most 4 MiB")
    store = Store(folder, words.fingerprint(), words.vocabulary)
    dropped = store.save(args.scope, documents, LIMIT)
    tokens = sum(map(len, documents))
    if args.json:
        skipped = [{"path": str(path), "reason": why} for path, why in found.skipped]
        facts = {"scope": args.scope, "documents": len(documents), "tokens": tokens, "dropped": dropped}
        console.print(json.dumps({**facts, "skipped": skipped, "path": str(store.path(args.scope))}))
        return 0
    many = "" if len(documents) == 1 else "s"
    console.print(f"{len(documents)} file{many} imported into {args.scope}: {tokens} tokens")
    if dropped:
        console.say(f"note: a scope holds {LIMIT} tokens, so the {dropped} oldest are gone")
    return 0


def _read(found: Any, words: Tokenizer, console: Console) -> list[Document]:
    """Return the tokens of each file that is text; the others join those that were left out."""
    import numpy as np

    from foredraft.cli import imports

    documents, done, total = [], 0, sum(size for _, size in found.files)
    for path, size in found.files:
        try:
            ids = words.encode(imports.read(path), special=False)
            if ids:
                documents.append(np.array(ids, dtype=np.int32))
        except (OptionError, TokenizerError) as fault:
            found.skipped.append((path, str(fault)))
        done += size
        console.progress(done, total, "importing")
    console.progress.close()
    return documents


def _tokenizer(args: argparse.Namespace, console: Console) -> Tokenizer:
    """Return the model's tokenizer. Of a folder no more is read; a model that is not here yet is fetched."""
    from foredraft.models.fetch import resolve
    from foredraft.models.tokenizer import Tokenizer

    folder = Path(args.model).expanduser()
    if not (folder / "tokenizer.json").is_file():
        cache = cache_folder(console.environment)
        folder = resolve(args.model, cache, offline=args.offline, progress=console.progress)
    return Tokenizer.from_folder(folder)


def _name(skipped: Sequence[tuple[Path, str]], console: Console) -> None:
    for path, why in skipped[:_SHOWN]:
        console.say(f"left out: {path}: {why}")
    if len(skipped) > _SHOWN:
        console.say(f"left out: {len(skipped) - _SHOWN} more (--json names them)")


def _ago(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'' if count == 1 else 's'} ago"
    return "just now"

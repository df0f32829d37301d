"""``foredraft cache import``: files of text become what a scope remembers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foredraft.cli.arguments.loading import cache_folder
from foredraft.cli.arguments.text_cache import full
from foredraft.cli.stored.import_files import Found, find, read
from foredraft.cli.terminal.console import Console
from foredraft.cli.terminal.statistics import many
from foredraft.errors import OptionError, TokenizerError
from foredraft.models.hub.registry import DEFAULT_MODEL

if TYPE_CHECKING:
    from foredraft.retrieval.cache_file import Document
    from foredraft.tokenizer.tokenizer import Tokenizer

_SHOWN: Final = 10  # files that were left out
_FEW: Final = 3  # files for which there was no room, and reasons


@dataclass(slots=True)
class _Taken:
    """Documents within a bound, the files that were cut with what is kept of them, and those without room."""

    documents: list[Document] = field(default_factory=list)
    cut: list[tuple[Path, int, int]] = field(default_factory=list)
    outside: list[Path] = field(default_factory=list)


def run(args: argparse.Namespace, folder: Path, console: Console) -> int:
    """Import the files that were named, in order, as far as there is room."""
    from foredraft.retrieval.memory import LIMIT
    from foredraft.retrieval.store import Store

    if args.scope is None:
        raise OptionError("import needs --scope NAME: nothing is remembered without one")
    if not args.paths:
        raise OptionError("import needs files or folders, as in foredraft cache import src/ --scope my-project")
    found = find(args.paths)
    tokenizer = _tokenizer(args, console)
    store = Store(folder, tokenizer.fingerprint(), tokenizer.vocabulary)
    bound = store.bound(args.scope, LIMIT)
    taken = _take(found, tokenizer, bound, console)
    if not args.json:
        _name(found.skipped, console)
    saved = store.save(args.scope, taken.documents, LIMIT)
    facts: dict[str, Any] = {
        "scope": args.scope,
        "documents": len(taken.documents),
        "tokens": sum(map(len, taken.documents)),
        "held": None if saved is None else {"documents": saved.documents, "tokens": saved.tokens},
        "dropped": 0 if saved is None else saved.dropped,
        "cut": [{"path": str(path), "tokens": whole, "kept": kept} for path, whole, kept in taken.cut],
        "skipped": [{"path": str(path), "reason": why} for path, why in found.skipped]
        + [{"path": str(path), "reason": f"no room: a scope holds {bound} tokens"} for path in taken.outside],
        "path": str(store.path(args.scope)),
    }
    if saved is not None and saved.fault is not None:
        facts["fault"] = saved.fault
        console.say(f"note: {saved.fault}; the new text was saved")
    if args.json:
        console.print(json.dumps(facts))
    if saved is None:
        raise OptionError(f"there is nothing to import: {_reasons(found.skipped)}")
    if not args.json:
        _tell(facts, taken, bound, console)
    return 0


def _tell(facts: dict[str, Any], taken: _Taken, bound: int, console: Console) -> None:
    """Say what came of it, in words."""
    scope, held = facts["scope"], facts["held"]
    console.print(
        f"{many(facts['documents'], 'file')} imported into {scope}: {many(facts['tokens'], 'token')};"
        f" it holds {many(held['documents'], 'text')} of {many(held['tokens'], 'token')}"
    )
    for path, whole, kept in taken.cut[:_SHOWN]:
        console.say(f"note: {path} has {whole} tokens: it was cut to its last {kept} tokens")
    if len(taken.cut) > _SHOWN:
        console.say(f"note: {len(taken.cut) - _SHOWN} more were cut (--json names them)")
    if outside := taken.outside:
        names = ", ".join(map(str, outside[:_FEW])) + (", ..." if len(outside) > _FEW else "")
        verb = "was" if len(outside) == 1 else "were"
        console.say(f"note: a scope holds {bound} tokens: {many(len(outside), 'file')} {verb} left out: {names}")
    if facts["dropped"]:
        console.say(f"note: {full(scope, facts['dropped'])}")


def _take(found: Found, tokenizer: Tokenizer, bound: int, console: Console) -> _Taken:
    """Return the tokens of each file that is text, until there is no room; the others join those left out."""
    import numpy as np

    from foredraft.retrieval.memory import GENERATIONS

    taken, seen = _Taken(), set[bytes]()
    room, done, total = bound, 0, sum(size for _, size in found.files)
    for path, size in found.files:
        if taken.outside:  # what follows a gap would look as if all before it were there
            taken.outside.append(path)
            continue
        try:
            ids = tokenizer.encode(read(path), special=False)
        except (OptionError, TokenizerError) as error:
            found.skipped.append((path, str(error)))
            continue
        finally:
            done += size
            console.progress(done, total, "importing")
        document = np.array(ids[-(bound // GENERATIONS) :], dtype=np.int32)
        needed = 0 if document.tobytes() in seen else len(document) + bool(taken.documents)
        if not ids:
            found.skipped.append((path, "no tokens"))
        elif needed > room:
            taken.outside.append(path)
        else:
            if len(document) < len(ids):
                taken.cut.append((path, len(ids), len(document)))
            seen.add(document.tobytes())
            taken.documents.append(document)
            room -= needed
    console.progress.close()
    return taken


def _tokenizer(args: argparse.Namespace, console: Console) -> Tokenizer:
    """Return the model's tokenizer. Of a folder no more is read; a model that is not here yet is fetched."""
    from foredraft.models.hub.fetch import resolve
    from foredraft.tokenizer.tokenizer import Tokenizer

    name = args.model or DEFAULT_MODEL
    folder = Path(name).expanduser()
    if not (folder / "tokenizer.json").is_file():
        cache = cache_folder(console.environment)
        folder = resolve(name, cache, offline=args.offline, dtype="auto", progress=console.progress)
    return Tokenizer.from_folder(folder)


def _name(skipped: Sequence[tuple[Path, str]], console: Console) -> None:
    for path, why in skipped[:_SHOWN]:
        console.say(f"left out: {path}: {why}")
    if len(skipped) > _SHOWN:
        console.say(f"left out: {len(skipped) - _SHOWN} more (--json names them)")


def _reasons(skipped: Sequence[tuple[Path, str]]) -> str:
    """Return why nothing is left, in a few words."""
    if not skipped:
        return "no file was found"
    counts: dict[str, int] = {}
    for _, why in skipped:
        counts[why] = counts.get(why, 0) + 1
    named = [f"{why} ({count})" if count > 1 else why for why, count in counts.items()]
    more = f" and {len(named) - _FEW} reasons more" if len(named) > _FEW else ""
    return (
        f"{skipped[0][0] if len(skipped) == 1 else 'all that was found'} was left out: {', '.join(named[:_FEW])}{more}"
    )

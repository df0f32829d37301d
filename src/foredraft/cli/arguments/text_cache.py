"""The cache of recent text around a run: loaded before it, saved after it, whatever happens between."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from foredraft.cli.terminal.console import Console
from foredraft.errors import StorageError

if TYPE_CHECKING:
    from foredraft.api import LanguageModel


@contextmanager
def recent_text(model: LanguageModel, args: argparse.Namespace, console: Console) -> Iterator[None]:
    """Hold the recent text of the scope that was named, if one was. What the disk refuses is told and ends nothing."""
    scope = args.cache_scope
    if scope is None:
        yield
        return
    try:
        model.load_cache(scope)
    except StorageError as error:
        console.say(f"note: the cache of recent text was not loaded: {error}")
    try:
        yield
    finally:
        try:
            dropped = model.save_cache(scope)
        except StorageError as error:
            console.say(f"note: the cache of recent text: {error}")
        else:
            if dropped:
                console.say(f"note: {full(scope, dropped)}")


def full(scope: str, dropped: int) -> str:
    """Return the sentence that says what a full scope has lost."""
    return f"the scope {scope} is full: its {dropped} oldest token{' is' if dropped == 1 else 's are'} gone"

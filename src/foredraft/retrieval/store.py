"""Recent text on disk: a file a scope and tokenizer, whole or not there, that processes add to and none takes from.

Saving reads the file again under a lock and writes what it holds and what is new; then two processes that save one
scope lose nothing. A file that cannot be used is set aside, not deleted.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from foredraft.errors import OptionError, StorageError
from foredraft.retrieval.cache_file import Document, Header, Unusable, read, read_header, write
from foredraft.retrieval.documents import bounded, distinct, size
from foredraft.retrieval.folder import (
    BAD,
    PARTIAL,
    SUFFIX,
    check_scope,
    entries,
    file_name,
    locked,
    look,
    set_aside_of,
    unfinished,
)
from foredraft.system.files import sync
from foredraft.system.json_text import require_regular

_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Saved:
    """What saving came to: tokens that had to go, and what the file holds now.

    ``fault`` says why the file that was there could not be used; it was set aside.
    """

    dropped: int
    documents: int
    tokens: int
    epoch: str
    fault: str | None = None


class Store:
    """The files of one tokenizer in one folder. ``vocabulary`` bounds the tokens that a file may hold."""

    def __init__(self, folder: Path, tokenizer: str, vocabulary: int) -> None:
        self.folder = folder
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    def path(self, scope: str) -> Path:
        """Return where a scope is kept; names that differ lie apart also where case does not count."""
        return self.folder / f"{self._tokenizer}-{file_name(check_scope(scope))}{SUFFIX}"

    def scopes(self) -> list[str]:
        """Return the scopes that have a file of this tokenizer, those whose file names another scope left out."""
        found = ((entry.path, entry.header) for entry in entries(self.folder))
        good = [(path, header) for path, header in found if header is not None]
        return [header.scope for path, header in good if _is_scope(header.scope) and path == self.path(header.scope)]

    def bound(self, scope: str, limit: int) -> int:
        """Return how many tokens a scope's file may hold for one who holds ``limit``: no less than it might before."""
        header, _ = look(self.path(scope))
        return limit if header is None else max(limit, header.limit)

    def load(self, scope: str) -> tuple[list[Document], str | None]:
        """Return a scope's documents, the oldest first, and the file's epoch; none and None where there is no file.

        Raises StorageError for a file that cannot be read or used; the latter is set aside.
        """
        path = self.path(scope)
        try:
            found = self._read(path, scope)
            return found[0], None if found[1] is None else found[1].epoch
        except Unusable as unusable:
            bad = unusable
        try:
            with locked(self.folder):
                try:
                    documents, header = self._read(path, scope)  # another process may have replaced it
                    return documents, None if header is None else header.epoch
                except Unusable as unusable:
                    note = _set_aside(path, unusable)
        except StorageError as error:
            raise StorageError(f"{path} {bad}, and cannot be set aside: {error}") from error
        raise StorageError(note)

    def save(
        self,
        scope: str,
        documents: Sequence[Document],
        limit: int,
        known: Sequence[Document] = (),
        epoch: str | None = None,
    ) -> Saved | None:
        """Add documents to a scope's file; return what it holds now, or None where there is nothing to add.

        The file holds at most ``limit`` tokens, or as many as the largest limit it was saved with; a document is cut to
        its last quarter of that. ``known`` is what is held of the file of an ``epoch``; it is written beside the
        documents only where that file turns out to be unusable. Raises StorageError when the disk refuses.
        """
        path, fault = self.path(scope), None
        if not documents:
            return None
        with locked(self.folder):
            try:
                before, header = self._read(path, scope)
            except Unusable as unusable:
                bad, _ = look(path)
                before = list(known) if bad is None or bad.epoch == epoch else []
                header, fault = None, _set_aside(path, unusable)
            bound = limit if header is None else max(limit, header.limit)
            kept, dropped = bounded(distinct([*before, *documents]), bound)
            now = secrets.token_hex(8) if header is None else header.epoch
            _replace(path, write(scope, self._tokenizer, kept, bound, now))
        return Saved(dropped, len(kept), size(kept), now, fault)

    def remove(self, scope: str) -> None:
        """Delete a scope's file, those that were set aside, and what was left half written. Raises StorageError."""
        path = self.path(scope)
        if path.exists() or path.is_symlink() or set_aside_of(path) or unfinished(self.folder):
            with locked(self.folder):
                for each in (path, *set_aside_of(path)):
                    each.unlink(missing_ok=True)
                _sweep(self.folder)

    def _read(self, path: Path, scope: str) -> tuple[list[Document], Header | None]:
        try:
            require_regular(path)
            data = path.read_bytes()
        except FileNotFoundError:
            return [], None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise StorageError(f"{path} cannot be read: {error}") from error
        return read(data, scope, self._tokenizer, self._vocabulary), read_header(data)


def _is_scope(name: str) -> bool:
    try:
        return bool(check_scope(name))
    except OptionError:
        return False


def _set_aside(path: Path, error: Unusable) -> str:
    """Give a file that cannot be used another name, and return the sentence that says so."""
    aside = next(p for i in range(1, sys.maxsize) if not (p := path.with_suffix(BAD + str(i) * (i > 1))).exists())
    path.rename(aside)
    return f"{path} {error}: it is set aside as {aside.name}"


def _replace(path: Path, data: bytes) -> None:
    _sweep(path.parent)
    partial = path.parent / f"{PARTIAL}{secrets.token_hex(8)}"
    try:
        with open(os.open(partial, _NEW, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Delete what was left half written: whoever holds the lock is the only one to write."""
    for dead in unfinished(folder):
        dead.path.unlink(missing_ok=True)

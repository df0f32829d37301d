"""Recent text on disk: a file a scope and tokenizer, whole or not there, that processes add to and none takes from.

Saving reads the file again under a lock and writes what it holds and what is new; then two processes that save one
scope lose nothing. A file that cannot be used is set aside, not deleted.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from foredraft.errors import OptionError, StorageError
from foredraft.models.grammar_source import is_text
from foredraft.models.store import refused, sync
from foredraft.retrieval.cache_file import Document, Header, Unusable, read, read_header, write

FOLDER: Final = "recent"
LONGEST: Final = 64  # bytes of a scope's name, each at most three letters of a file's
_SUFFIX: Final = ".recent"
_BAD: Final = ".bad"
_PARTIAL: Final = ".partial-"
_LOCK: Final = ".lock"
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_BEGINNING: Final = 1 << 17  # bytes that hold any header
_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)


def check_scope(name: object) -> str:
    """Return the name of a scope. Raises OptionError for one that cannot be a file's or that nobody could type."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"cache_scope must be text that is not empty, not {name!r:.80}")
    if not is_text(name):
        raise OptionError("cache_scope is not UTF-8 text")
    if any(sign in name for sign in "/\\"):
        raise OptionError(f"cache_scope {name!r:.80} has a path separator: a scope is a name, not a path")
    if name.startswith("."):
        raise OptionError(f"cache_scope {name!r:.80} begins with a dot: give it another name")
    if not name.isprintable() or name != name.strip():
        raise OptionError(f"cache_scope {name!r:.80} has signs that cannot be seen: give it another name")
    if len(name.encode(errors="surrogatepass")) > LONGEST:
        raise OptionError(f"cache_scope {name!r:.80} is longer than {LONGEST} bytes: give it a shorter name")
    return name


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of recent text. ``header`` is None where ``fault`` says why; ``saved`` is in seconds since 1970."""

    path: Path
    bytes: int
    saved: float
    header: Header | None
    fault: str | None


class Store:
    """The files of one tokenizer in one folder. ``vocabulary`` bounds the tokens that a file may hold."""

    def __init__(self, folder: Path, tokenizer: str, vocabulary: int) -> None:
        self.folder = folder
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    def path(self, scope: str) -> Path:
        """Return where a scope is kept; names that differ lie apart also where case does not count."""
        name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in check_scope(scope).encode())
        return self.folder / f"{self._tokenizer}-{name}{_SUFFIX}"

    def scopes(self) -> list[str]:
        """Return the scopes that have a file of this tokenizer."""
        headers = (entry.header for entry in entries(self.folder))
        return [header.scope for header in headers if header is not None and header.tokenizer == self._tokenizer]

    def load(self, scope: str) -> list[Document]:
        """Return a scope's documents, the oldest first; none where there is no file.

        Raises StorageError for a file that cannot be read or used; the latter is set aside.
        """
        path = self.path(scope)
        try:
            return self._read(path, scope)
        except Unusable as fault:
            bad = fault
        try:
            with _locked(self.folder):
                try:
                    return self._read(path, scope)  # another process may have replaced it
                except Unusable as fault:
                    said = _set_aside(path, fault)
        except StorageError as error:
            raise StorageError(f"{path} {bad}, and cannot be set aside: {error}") from error
        raise StorageError(said)

    def save(self, scope: str, documents: Sequence[Document], limit: int) -> int:
        """Add documents to a scope's file; return how many tokens of the oldest had to go.

        The file holds at most ``limit`` tokens, or as many as it held before where that is more. Raises StorageError
        when the disk refuses, and after saving where the file that was there could not be used and was set aside.
        """
        path, fault = self.path(scope), None
        if not documents:
            return 0
        with _locked(self.folder):
            try:
                before = self._read(path, scope)
            except Unusable as unusable:
                before, fault = [], _set_aside(path, unusable)
            bound = max(limit, _size(before))
            kept, dropped = _bounded(distinct([*before, *documents]), bound)
            _replace(path, write(scope, self._tokenizer, kept))
        if fault is not None:
            raise StorageError(f"{fault}; what this process knows was saved")
        return dropped

    def remove(self, scope: str) -> None:
        """Delete a scope's file, if there is one. Raises StorageError."""
        if self.path(scope).exists():
            with _locked(self.folder):
                self.path(scope).unlink(missing_ok=True)

    def _read(self, path: Path, scope: str) -> list[Document]:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as fault:
            raise StorageError(f"{path} cannot be read: {fault.strerror}") from fault
        return read(data, scope, self._tokenizer, self._vocabulary)


def entries(folder: Path) -> list[Entry]:
    """Return the files of recent text in a folder, those set aside among them. Raises StorageError."""
    found = []
    try:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name.startswith(".") or not (path.suffix == _SUFFIX or _BAD in path.suffix):
                continue
            about = path.stat()
            header, fault = _look(path) if path.suffix == _SUFFIX else (None, "was set aside")
            found.append(Entry(path, about.st_size, about.st_mtime, header, fault))
    except OSError as error:
        raise StorageError(f"{folder} cannot be read: {error.strerror}") from error
    return found


def clear(folder: Path, scope: str | None) -> list[Entry]:
    """Delete a scope's files, whatever the tokenizer, or (None) all there are; return what is gone.

    Raises StorageError.
    """
    if not folder.is_dir():
        return []
    with _locked(folder):
        gone = [e for e in entries(folder) if scope is None or (e.header is not None and e.header.scope == scope)]
        for entry in gone:
            entry.path.unlink(missing_ok=True)
    return gone


def distinct(documents: Sequence[Document]) -> list[Document]:
    """Return the documents without those that are the beginning, the end or the whole of another, in their order."""
    held: dict[bytes, Document] = {}
    for document in documents:
        held.setdefault(document.tobytes(), document)
    for step in (1, -1):
        # sorted, what begins another stands right before one that it begins
        order = sorted((document[::step].astype(">i4").tobytes(), key) for key, document in held.items())
        for (text, key), (longer, _) in pairwise(order):
            if longer.startswith(text):
                del held[key]
    return list(held.values())


def _size(documents: Sequence[Document]) -> int:
    return sum(map(len, documents)) + max(0, len(documents) - 1)


def _bounded(documents: list[Document], bound: int) -> tuple[list[Document], int]:
    """Return the latest documents that fit, and how many tokens do not. Of one that fits alone by no means, its end."""
    kept: list[Document] = []
    room = bound
    for document in reversed(documents):
        if kept and len(document) + 1 > room:
            break
        kept.append(document[-room:])
        room -= len(kept[-1]) + 1
    kept.reverse()
    return kept, sum(map(len, documents)) - sum(map(len, kept))


def _look(path: Path) -> tuple[Header | None, str | None]:
    try:
        with path.open("rb") as file:
            return read_header(file.read(_BEGINNING)), None
    except Unusable as fault:
        return None, str(fault)


def _set_aside(path: Path, fault: Unusable) -> str:
    """Give a file that cannot be used another name, and return the sentence that says so."""
    aside = next(p for i in range(1, sys.maxsize) if not (p := path.with_suffix(_BAD + str(i) * (i > 1))).exists())
    path.rename(aside)
    return f"{path} {fault}: it is set aside as {aside.name}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. An OSError in the block is taken to be the disk's. Raises StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # it is what a user said
        with (folder / _LOCK).open("a+b") as file:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise refused(folder, error) from error


def _replace(path: Path, data: bytes) -> None:
    for dead in path.parent.glob(f"{_PARTIAL}*"):  # whoever holds the lock is the only one to write
        dead.unlink(missing_ok=True)
    partial = path.parent / f"{_PARTIAL}{secrets.token_hex(8)}"
    try:
        with open(os.open(partial, _NEW, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)

"""The folder of recent text: whose file is whose, what lies there, and the lock of whoever changes it."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from foredraft.checks import is_text
from foredraft.errors import OptionError, StorageError
from foredraft.retrieval.cache_file import Header, Unusable, read_header
from foredraft.system.files import refused
from foredraft.system.json_text import require_regular

FOLDER: Final = "recent"
MAX_SCOPE_BYTES: Final = 64  # bytes of a scope's name, each at most three letters of a file's
SUFFIX: Final = ".recent"
BAD: Final = ".bad"
PARTIAL: Final = ".partial-"
_ASIDE: Final = re.compile(r"\.bad[0-9]*")
_LOCK: Final = ".lock"
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_BEGINNING: Final = 1 << 17  # bytes that hold any header


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
    if len(name.encode(errors="surrogatepass")) > MAX_SCOPE_BYTES:
        raise OptionError(f"cache_scope {name!r:.80} is longer than {MAX_SCOPE_BYTES} bytes: give it a shorter name")
    return name


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of recent text. ``header`` is None where ``unusable`` says why; ``saved`` is in seconds since 1970."""

    path: Path
    bytes: int
    saved: float
    header: Header | None
    fault: str | None

    @property
    def aside(self) -> bool:
        """Whether it was set aside."""
        return _ASIDE.fullmatch(self.path.suffix) is not None

    def of(self, scope: str) -> bool:
        """Say whether it is a scope's: by what it says of itself, or by its name."""
        return (self.header is not None and self.header.scope == scope) or _scope_of(self.path) == file_name(scope)


def entries(folder: Path) -> list[Entry]:
    """Return the files of recent text in a folder, those set aside and those that cannot be read among them.

    Raises StorageError where the folder is none or cannot be listed.
    """
    try:
        paths = sorted(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise StorageError(f"{folder} cannot be read: {(error.strerror or str(error)).lower()}") from error
    return [
        _entry(path)
        for path in paths
        if not path.name.startswith(".") and (path.suffix == SUFFIX or _ASIDE.fullmatch(path.suffix))
    ]


def unfinished(folder: Path) -> list[Entry]:
    """Return what processes that were killed left half written: the next save deletes it."""
    try:
        return [_entry(path) for path in sorted(folder.glob(f"{PARTIAL}*"))]
    except OSError as error:
        raise StorageError(f"{folder} cannot be read: {(error.strerror or str(error)).lower()}") from error


def clear(folder: Path, scope: str | None) -> tuple[list[Entry], list[Entry]]:
    """Delete a scope's files, whatever the tokenizer, those set aside too, or (None) all that there are.

    What was left half written goes along, for it may be the scope's. Returns what is gone, and what could not be
    deleted with the reason. Raises StorageError.
    """
    gone: list[Entry] = []
    left: list[Entry] = []
    if not folder.exists():
        return gone, left
    with locked(folder):
        wanted = [entry for entry in entries(folder) if scope is None or entry.of(scope)]
        if wanted or scope is None:
            wanted += unfinished(folder)
        for entry in wanted:
            try:
                entry.path.unlink(missing_ok=True)
                gone.append(entry)
            except OSError as error:
                left.append(replace(entry, fault=f"cannot be deleted: {(error.strerror or str(error)).lower()}"))
    return gone, left


def file_name(scope: str) -> str:
    """Return a scope as part of a file's name; names that differ stay apart also where case does not count."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in scope.encode(errors="surrogatepass"))


def _scope_of(path: Path) -> str:
    return path.stem.partition("-")[2]


def set_aside_of(path: Path) -> list[Path]:
    """Return what was set aside of a scope's file."""
    return [p for p in path.parent.glob(f"{glob.escape(path.stem)}{BAD}*") if _ASIDE.fullmatch(p.suffix)]


def _entry(path: Path) -> Entry:
    try:
        about = path.stat()
    except OSError as error:  # a link that leads nowhere is there, too
        return Entry(path, 0, 0.0, None, f"cannot be read: {error.strerror}")
    if not path.is_file():
        return Entry(path, 0, about.st_mtime, None, "is no regular file")
    header, fault = look(path) if path.suffix == SUFFIX else (None, "was set aside")
    return Entry(path, about.st_size, about.st_mtime, header, fault)


def look(path: Path) -> tuple[Header | None, str | None]:
    """Return a file's header, or what ends the sentence "it ..."."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            return read_header(file.read(_BEGINNING)), None
    except Unusable as unusable:
        return None, str(unusable)
    except ValueError:
        return None, "is no regular file"
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. An OSError in the block is taken to be the disk's. Raises StorageError."""
    try:
        if folder.exists() and not folder.is_dir():
            raise StorageError(f"{folder} is no folder: move it away, or choose another cache folder")
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

"""The cache folder: every entry is a whole folder or is not there."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Literal, Protocol, TypeAlias

from foredraft.errors import StorageError
from foredraft.system.sizes import apart

try:
    import fcntl
except ImportError:  # not on Windows: there, only age tells a dead builder from a live one
    fcntl = None  # type: ignore[assignment]

CACHE: Final = "cache folder"
Dtype: TypeAlias = Literal["bf16", "f32", "file"]  # what the weights of a GGUF are widened to; "file": they are not

_PARTIAL: Final = ".partial-"
_LOCK: Final = ".lock"
_STALE_S: Final = 24 * 3600
_MARGIN: Final = 64 << 20


class Progress(Protocol):
    """Told how far a long job is: bytes done, bytes in all, and what the job is, in a word or two."""

    def __call__(self, done: int, total: int, label: str) -> None:
        """Draw it, or do nothing."""
        ...


def refused(folder: Path, error: OSError, kind: str = CACHE) -> StorageError:
    """Return what a failed write under ``folder`` means, in one sentence; ``kind`` is what else can be chosen."""
    why = (error.strerror or str(error)).lower()
    advice = "free some space or choose" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose"
    return StorageError(f"cannot write under {folder}: {why}; {advice} another {kind}")


def require_space(folder: Path, needed: int, kind: str = CACHE) -> None:
    """Raise StorageError unless the disk of ``folder`` (which exists) has ``needed`` bytes and a margin free.

    ``kind`` is as in ``refused``.
    """
    free = shutil.disk_usage(folder).free
    if free < needed + _MARGIN:
        wanted, there = apart(needed + _MARGIN, free)
        place = folder.parent if folder.name.startswith(_PARTIAL) else folder
        raise StorageError(
            f"this needs {wanted} under {place}, {_MARGIN / 1e6:.0f} MB of which stay free, and {there} are free; "
            f"free some space or choose another {kind}"
        )


@contextmanager
def scratch(cache: Path, kind: str = CACHE) -> Iterator[Path]:
    """Give an empty folder in ``cache`` that is gone when the block ends, however it ends.

    ``kind`` is as in ``refused``. Raises StorageError when the disk refuses; an OSError raised inside the block is
    taken to be the disk's.
    """
    partial = cache / f"{_PARTIAL}{secrets.token_hex(8)}"
    lock: IO[str] | None = None
    try:
        cache.mkdir(parents=True, exist_ok=True)
        sweep(cache)
        partial.mkdir()
        lock = _hold(partial / _LOCK)
        yield partial
    except OSError as error:
        raise refused(cache, error, kind) from error
    finally:
        if lock is not None:
            lock.close()
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def building(final: Path, kind: str = CACHE) -> Iterator[Path]:
    """Give an empty folder beside ``final`` that becomes ``final``, whole, when the block ends without an error.

    The files are flushed to the disk before the rename. If another process was faster, its folder stays and ours goes.
    On any error, Ctrl-C included, nothing is left. Raises StorageError as ``scratch`` does.
    """
    with scratch(final.parent, kind) as partial:
        yield partial
        (partial / _LOCK).unlink()
        _flush(partial)
        _settle(partial, final)


def write_whole(path: Path, text: str) -> None:
    """Write a text file, whole or not at all; what was there before is replaced. Raises StorageError."""
    partial = path.with_name(f"{_PARTIAL}{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(text, encoding="utf-8")
            sync(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def require_place(path: Path) -> None:
    """Raise StorageError unless a file can be written at ``path``, so that nothing is made that has nowhere to go."""
    try:
        if path.exists() and not path.is_file():
            what = "it is a folder" if path.is_dir() else "it is not a regular file"
            raise StorageError(f"cannot write {path}: {what}")
        there = next(folder for folder in path.absolute().parents if folder.exists())
    except (OSError, ValueError) as error:  # a name that no file can have, a folder that may not be read
        raise StorageError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    if not there.is_dir():
        raise StorageError(f"cannot write {path}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write {path}: {there} may not be written to")


def sweep(cache: Path) -> None:
    """Remove what builders that died left in ``cache``; those of living processes stay."""
    for partial in cache.glob(f"{_PARTIAL}*"):
        if _dead(partial):
            shutil.rmtree(partial, ignore_errors=True)


def _hold(path: Path) -> IO[str]:
    lock = path.open("w")
    if fcntl is not None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a file system without locks: age has to do
            lock.write("unlocked")
            lock.flush()
    return lock


def _dead(partial: Path) -> bool:
    try:
        old = time.time() - partial.stat().st_mtime > _STALE_S
        path = partial / _LOCK
        if fcntl is None or not path.exists() or path.stat().st_size:
            return old
        with path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True  # whoever held the lock is gone
    except OSError:
        return False


def _flush(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        sync(path)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    if path.is_dir() and os.name == "nt":
        return  # folders cannot be opened there
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _settle(partial: Path, final: Path) -> None:
    try:
        partial.rename(final)
    except OSError:
        if not final.is_dir():
            raise
    sync(final.parent)

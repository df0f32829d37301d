"""One training at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foredraft.errors import StorageError
from foredraft.system.files import refused

try:
    import fcntl
except ImportError:  # not on Windows, where nothing guards the folder
    fcntl = None  # type: ignore[assignment]


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if need be. Raises StorageError where another process holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "training.lock").open("w")
    except OSError as error:
        raise refused(folder, error, "folder") from error
    with lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StorageError(f"another training is going on in {folder}: name another folder") from error
        yield

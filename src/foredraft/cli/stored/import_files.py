"""Which files of a folder are text that is worth remembering, and what they say."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from foredraft.errors import OptionError

LARGEST: Final = 4 << 20  # bytes of a file
VENDORED: Final = frozenset(
    {
        "node_modules", "bower_components", "vendor", "third_party", "3rdparty", "site-packages", "venv", "env",
        "__pycache__", "CVS",
    }
)  # fmt: skip
_HEAD: Final = 8192


@dataclass(slots=True)
class Found:
    """Files to read with their sizes in bytes, and what was passed over with the reason."""

    files: list[tuple[Path, int]] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def find(paths: Sequence[str]) -> Found:
    """Return the files under some paths, in order. Raises OptionError for a path that is not there or not readable."""
    found, folders = Found(), [_is_folder(path) for path in paths]
    for path, folder in zip(map(Path, paths), folders, strict=True):
        for each in _walk(path, found) if folder else (path,):
            _consider(each, found)
    seen: dict[Path, tuple[Path, int]] = {}
    for each, size in found.files:
        seen.setdefault(each.resolve(), (each, size))
    found.files = list(seen.values())
    return found


def read(path: Path) -> str:
    """Return a file's text. Raises OptionError with the reason where it is none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OptionError(f"cannot be read: {error.strerror}") from error
    if b"\0" in data[:_HEAD]:
        raise OptionError("binary")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OptionError("not UTF-8 text") from None
    if not text.strip():
        raise OptionError("empty")
    return text


def _is_folder(name: str) -> bool:
    try:
        if not name:
            raise FileNotFoundError  # Path would take it for this folder
        return stat.S_ISDIR(os.stat(name).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise OptionError(f"there is no file or folder {name!r:.100}") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise OptionError(f"{name!r:.100} cannot be read: {why}") from error


def _walk(folder: Path, found: Found) -> Iterator[Path]:
    """Yield a folder's files. Links are not followed: they lead elsewhere, or round in circles."""

    def refuse(error: OSError) -> None:
        found.skipped.append((Path(error.filename), f"cannot be read: {error.strerror}"))

    for here, folders, files in os.walk(folder, onerror=refuse):
        kept = []
        for name in sorted(folders):
            path = Path(here) / name
            why = "hidden" if name.startswith(".") else "vendored" if name in VENDORED else ""
            why = why or ("a link" if path.is_symlink() else "")
            if why:
                found.skipped.append((path, why))
            else:
                kept.append(name)
        folders[:] = kept
        for name in sorted(files):
            path = Path(here) / name
            if name.startswith(".") or path.is_symlink():
                found.skipped.append((path, "hidden" if name.startswith(".") else "a link"))
            else:
                yield path


def _consider(path: Path, found: Found) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        found.skipped.append((path, f"cannot be read: {error.strerror}"))
        return
    if not path.is_file():
        found.skipped.append((path, "no regular file"))
    elif size > LARGEST:
        found.skipped.append((path, f"larger than {LARGEST >> 20} MiB"))
    else:
        found.files.append((path, size))

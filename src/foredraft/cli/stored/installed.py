"""What is kept of models: whose it is, what it takes, and what goes when one is removed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foredraft.cli.arguments.parser import nearest
from foredraft.errors import ModelNotFound, OptionError, StorageError, WeightsError
from foredraft.models.gguf.link import LINK
from foredraft.system.json_text import parse_json, read_regular

_HUB: Final = {"kind": "hub"}


@dataclass(frozen=True, slots=True)
class Kept:
    """A model that is here: its folder, what it is called, the bytes of the folder, and where it came from.

    ``file`` is the user's own GGUF that it was made of, ``identity`` what all that is kept for it is called by: None
    where there is none, or nobody can tell any more. One that is ``linked`` to a GGUF runs from that file's blocks.
    """

    name: str
    folder: Path
    bytes: int
    source: Any
    file: Path | None
    identity: str | None
    linked: bool

    def cache_files(self, cache: Path) -> list[Path]:
        """Return what else in ``cache`` belongs to it: packed weights, and what was found out about its layers."""
        if self.identity is None:
            return []
        packed = sorted((cache / "packed").glob(f"{self.identity}-*"))
        mine = [path for path in packed if path.name.startswith(f"{self.identity}-file-") == self.linked]
        return [*mine, *sorted((cache / "layers").glob(f"{self.identity}.*"))]

    def facts(self, cache: Path) -> dict[str, Any]:
        """Return it as documents show it; ``bytes`` are all that belong to it, of which ``packed`` lie beside it."""
        packed = sum(size_on_disk(path) for path in self.cache_files(cache))
        facts = {"name": self.name, "bytes": self.bytes + packed, "packed": packed}
        return {**facts, "folder": str(self.folder), "source": self.source}

    def answers(self, name: str) -> bool:
        """Say whether it is called ``name``: by its own, its file's or its folder's."""
        names = (self.name, str(self.folder), self.folder.name, None if self.file is None else self.file.name)
        return name in names


def kept_models(cache: Path) -> list[Kept]:
    """Return each model that needs no network."""
    from foredraft.models.hub.fetch import cached

    return [kept(folder, name, size) for name, folder, size in cached(cache)]


def kept(folder: Path, name: str, size: int) -> Kept:
    """Return what is known of a model's folder, which is called ``name`` and takes ``size`` bytes."""
    try:
        source = parse_json(read_regular(folder / "foredraft.json"))["source"]
    except (OSError, ValueError, KeyError, TypeError):
        source = _HUB  # of ours each has a record
    return Kept(name, folder, size, source, _file(folder, source), _identity(folder), (folder / LINK).exists())


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def choose(name: str, here: Sequence[Kept]) -> list[Kept]:
    """Return the models that ``name`` means: those made of that very file, or the one that is called so.

    Raises ModelNotFound for none, OptionError where a name fits the models of several files.
    """
    path = Path(name).expanduser().resolve()
    if chosen := [entry for entry in here if path in (entry.file, entry.folder.resolve())]:
        return chosen
    chosen = [entry for entry in here if entry.answers(name)]
    if not chosen:
        raise ModelNotFound(f"no model called {name!r} is here{nearest(name, [entry.name for entry in here])}")
    files = sorted({str(entry.file or entry.name) for entry in chosen})
    if len(files) > 1:
        raise OptionError(f"{name!r} fits the models of {', '.join(files)}: give the path of one")
    return chosen


def remove(chosen: Sequence[Kept], here: Sequence[Kept], cache: Path) -> int:
    """Remove models and what belongs to none of the others that are ``here``; return the bytes that were freed.

    Raises StorageError.
    """
    shared = {path for entry in here if entry not in chosen for path in entry.cache_files(cache)}
    freed = 0
    for entry in chosen:
        parts = [path for path in (entry.folder, *entry.cache_files(cache)) if path not in shared]
        try:
            for part in parts:
                size = size_on_disk(part)
                gone: Callable[[Path], Any] = Path.unlink if part.is_file() else shutil.rmtree
                gone(part)
                freed += size
        except OSError as error:
            raise StorageError(f"{entry.folder} cannot be removed: {error.strerror}") from error
    return freed


def _file(folder: Path, source: Any) -> Path | None:
    """Return the user's GGUF that a folder links to or was converted from."""
    if not isinstance(source, dict) or source.get("kind") != "gguf":
        return None
    from foredraft.models.folder import ModelFolder  # numpy, which --help does without

    try:
        link = ModelFolder(folder).link
    except WeightsError:
        link = None
    named = source.get("file") if link is None else link.file
    return Path(named).resolve() if isinstance(named, str) else None


def _identity(folder: Path) -> str | None:
    """Return what the packed form of a model is called by; a GGUF that is kept as it came has none."""
    from foredraft.models.folder import ModelFolder  # as above

    try:
        return ModelFolder(folder).known_identity if (folder / "config.json").is_file() else None
    except (WeightsError, OSError):
        return None

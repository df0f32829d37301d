"""From a model's name and where it will run to its folder, and the type that it is computed in.

A GGUF file runs from its own blocks where the native pass does; elsewhere its weights are widened first.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.errors import StorageError
from foredraft.models.folder import ModelFolder
from foredraft.models.hub.fetch import find_model
from foredraft.models.runner import why_not_blocks
from foredraft.system.files import Progress


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """A model's name, the options that say how it is to run (see ``load``), and where models are kept."""

    name: str
    dtype: str
    device: str | None
    tier: str | None
    cache: Path
    offline: bool = False
    progress: Progress | None = None

    def resolved(self, dtype: str, name: str | None = None) -> ModelFolder:
        """Return the folder of the model, or of another ``name``; see ``find_model``."""
        return find_model(name or self.name, self.cache, offline=self.offline, dtype=dtype, progress=self.progress)


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model's folder, the type it is computed in, and what a user should know of that."""

    folder: ModelFolder
    dtype: str  # bf16, f32, f64 or file
    notice: str | None = None


def find_folder(query: ModelQuery) -> ResolvedModel:
    """Return the folder of a model, fetched and converted where need be.

    Raises OptionError for a device that is not there, ModelError, FetchError or StorageError.
    """
    asked = query.dtype
    wide = "f32" if asked in ("f32", "f64") else "bf16"
    free = asked in ("auto", "file")
    why = why_not_blocks(query.device, query.tier) if free else None
    folder, note = _resolved(query, asked if free and not why else wide)
    if folder.link is not None and free and not why:
        if (why := folder.why_not_in_table) is None:
            return ResolvedModel(folder, "file", note)
        folder, note = query.resolved(wide), None
    if folder.gguf is not None:  # its own name was given
        folder = query.resolved(wide, str(folder.gguf))
    if asked == "file" and why and folder.from_gguf:
        size = f"{folder.weight_bytes / 1e6:.0f} MB"
        note = f"the file's blocks cannot be run as they are, because {why}; its weights are widened to bf16, {size}"
    return ResolvedModel(folder, {"auto": "bf16", "file": _file_dtype(folder.config)}.get(asked, asked), note)


def _resolved(query: ModelQuery, dtype: str) -> tuple[ModelFolder, str | None]:
    """Return a model's folder and, where it had to be a temporary one, why. Raises as ``resolve`` does.

    A folder that links to a GGUF is small: where the cache cannot be written to, one is kept as long as the process.
    """
    try:
        return query.resolved(dtype), None
    except StorageError as error:
        path = Path(query.name).expanduser()
        if dtype not in ("auto", "file") or not path.is_file():
            raise
        from foredraft.models.gguf.convert import convert_gguf  # slow to import, and seldom needed

        try:
            folder = Path(tempfile.mkdtemp(prefix="foredraft-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            made = ModelFolder(convert_gguf(path, folder, "file"))
            return made, f"what the file says of itself is read at each start: {error}"
        except (OSError, StorageError):  # nor can the system's own folder for such things
            raise error from None


def _file_dtype(config: dict[str, Any]) -> str:
    kind = config.get("dtype") or config.get("torch_dtype")
    return "bf16" if kind == "bfloat16" else "f32"  # f16 fits into f32 whole, not into bf16

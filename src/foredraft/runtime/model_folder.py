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

from foredraft.errors import ModelError, StorageError, UnsupportedModel
from foredraft.models.gguf.link import linked_file, read_link, weight_bytes
from foredraft.models.hub.fetch import resolve
from foredraft.models.runner import why_not_blocks
from foredraft.models.spec import read_spec
from foredraft.system.files import Progress
from foredraft.system.json_text import parse_json, read_regular


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model's name, the options that say how it is to run (see ``load``), and where models are kept."""

    name: str
    dtype: str
    device: str | None
    tier: str | None
    cache: Path
    offline: bool = False
    progress: Progress | None = None

    def resolved(self, dtype: str, name: str | None = None) -> Path:
        """Return the folder of the model, or of another ``name``; see ``resolve``."""
        return resolve(name or self.name, self.cache, offline=self.offline, dtype=dtype, progress=self.progress)


@dataclass(frozen=True, slots=True)
class Found:
    """A model's folder, its config.json, the type it is computed in, and what a user should know of that."""

    folder: Path
    config: dict[str, Any]
    dtype: str  # bf16, f32, f64 or file
    notice: str | None = None


def find_folder(wanted: Wanted) -> Found:
    """Return the folder of a model, fetched and converted where need be.

    Raises OptionError for a device that is not there, ModelError, FetchError or StorageError.
    """
    asked = wanted.dtype
    wide = "f32" if asked in ("f32", "f64") else "bf16"
    free = asked in ("auto", "file")
    why = why_not_blocks(wanted.device, wanted.tier) if free else None
    folder, said = _resolved(wanted, asked if free and not why else wide)
    link, config = read_link(folder), _read_config(folder)
    if link is not None and free and not why:
        if (why := not_in_table(config)) is None:
            return Found(folder, config, "file", said)
        folder = wanted.resolved(wide)
        link, said = read_link(folder), None
    if link is not None:  # its own name was given
        folder = wanted.resolved(wide, str(linked_file(folder, link)))
    config = _read_config(folder)
    if asked == "file" and why and _from_gguf(folder):
        size = f"{weight_bytes(folder) / 1e6:.0f} MB"
        said = f"the file's blocks cannot be run as they are, because {why}; its weights are widened to bf16, {size}"
    return Found(folder, config, {"auto": "bf16", "file": _file_dtype(config)}.get(asked, asked), said)


def _resolved(wanted: Wanted, dtype: str) -> tuple[Path, str | None]:
    """Return a model's folder and, where it had to be a temporary one, why. Raises as ``resolve`` does.

    A folder that links to a GGUF is small: where the cache cannot be written to, one is kept as long as the process.
    """
    try:
        return wanted.resolved(dtype), None
    except StorageError as fault:
        path = Path(wanted.name).expanduser()
        if dtype not in ("auto", "file") or not path.is_file():
            raise
        from foredraft.models.gguf.convert import convert_gguf  # slow to import, and seldom needed

        try:
            folder = Path(tempfile.mkdtemp(prefix="foredraft-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            return convert_gguf(path, folder, "file"), f"what the file says of itself is read at each start: {fault}"
        except (OSError, StorageError):  # nor can the system's own folder for such things
            raise fault from None


def not_in_table(config: dict[str, Any]) -> str | None:
    """Say why a model is none of the decoder table's, where it is not: transformers reads widened weights alone."""
    try:
        read_spec(config)
    except UnsupportedModel as fault:
        return str(fault) if fault.elsewhere else None
    return None


def _from_gguf(folder: Path) -> bool:
    try:
        return parse_json(read_regular(folder / "foredraft.json"))["source"]["kind"] in ("gguf", "wheel")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {fault}") from fault
    if not isinstance(config, dict):
        raise ModelError(f"{folder / 'config.json'} does not hold an object")
    return config


def _file_dtype(config: dict[str, Any]) -> str:
    kind = config.get("dtype") or config.get("torch_dtype")
    return "bf16" if kind == "bfloat16" else "f32"  # f16 fits into f32 whole, not into bf16

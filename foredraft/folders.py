"""From a model's name and where it will run to its folder, and the type that it is computed in.

A GGUF file runs from its own blocks where the native pass does; elsewhere its weights are widened first.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foredraft.errors import ModelError, StorageError, UnsupportedModel
from foredraft.models.fetch import resolve
from foredraft.models.gguf_link import linked_file, read_link, weight_bytes
from foredraft.models.json_text import parse_json, read_regular
from foredraft.models.runner import why_not_blocks
from foredraft.models.spec import read_spec

if TYPE_CHECKING:
    from foredraft.compose import Machine
    from foredraft.models.store import Progress


@dataclass(frozen=True, slots=True)
class Found:
    """A model's folder, its config.json, the type it is computed in, and what a user should know of that."""

    folder: Path
    config: dict[str, Any]
    dtype: str  # bf16, f32, f64 or file
    notice: str | None = None


def find_folder(name: str, machine: Machine, progress: Progress | None) -> Found:
    """Return the folder of the model called ``name``, fetched and converted where need be.

    Raises OptionError for a device that is not there, ModelError, FetchError or StorageError.
    """
    wide = "f32" if machine.dtype in ("f32", "f64") else "bf16"
    wanted = wide if machine.dtype in ("bf16", "f32", "f64") else machine.dtype
    why = why_not_blocks(machine.device, machine.native_tier) if wanted in ("auto", "file") else None
    folder, said = _resolve(name, machine, wide if why else wanted, progress)
    config = _read_config(folder)
    linked = read_link(folder) is not None
    if linked and wanted in ("auto", "file") and not why:
        if (why := _not_in_table(config)) is None:
            return Found(folder, config, "file", said)
        folder, said = _resolve(name, machine, wide, progress)
        linked = read_link(folder) is not None
    if linked:  # a folder that was named itself
        folder = _widened(folder, machine, wide, progress)
    config = _read_config(folder)
    dtype = {"auto": "bf16", "file": _file_dtype(config)}.get(machine.dtype, machine.dtype)
    if machine.dtype == "file" and why and _from_gguf(folder):
        size = f"{weight_bytes(folder) / 1e6:.0f} MB"
        said = f"the file's blocks cannot be run as they are, because {why}; its weights are widened to bf16, {size}"
    return Found(folder, config, dtype, said)


def _resolve(name: str, machine: Machine, dtype: str, progress: Progress | None) -> tuple[Path, str | None]:
    """Return a model's folder and, where it is a temporary one, what is to be said of that."""
    cache = machine.cache_folder
    try:
        return resolve(name, cache, offline=machine.offline, dtype=dtype, progress=progress), None
    except StorageError as fault:
        path = Path(name).expanduser()
        if dtype not in ("auto", "file") or not path.is_file():
            raise
        from foredraft.models.gguf_file import convert_gguf

        try:
            folder = Path(tempfile.mkdtemp(prefix="foredraft-"))
        except OSError:
            raise fault from None
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return convert_gguf(path, folder, "file"), f"what the file says of itself is read at each start: {fault}"


def _widened(folder: Path, machine: Machine, dtype: str, progress: Progress | None) -> Path:
    """Return the folder of widened weights of the GGUF that a folder links to."""
    link = read_link(folder)
    if link is None:
        return folder
    path = str(linked_file(folder, link))
    return resolve(path, machine.cache_folder, offline=machine.offline, dtype=dtype, progress=progress)


def _not_in_table(config: dict[str, Any]) -> str | None:
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

"""All that going on with a training takes, as one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foredraft.errors import StorageError
from foredraft.system.files import refused, sync
from foredraft.training.heads.module import Guesser

State = Mapping[int, Mapping[str, Any]]  # of an optimiser, parameter by parameter


def write_state(
    path: Path, module: Guesser, state: Sequence[State], ids: NDArray[np.int32], progress: Mapping[str, Any]
) -> None:
    """Write a module, its optimisers' state, the draft vocabulary and the progress. Raises StorageError."""
    tensors = {f"module.{name}": p.detach() for name, p in module.named_parameters()}
    tensors["vocabulary"] = torch.from_numpy(ids)
    for i, held in enumerate(state):
        for j, values in held.items():
            tensors |= {f"optimiser.{i}.{j}.{key}": torch.as_tensor(value) for key, value in values.items()}
    partial = path.with_suffix(".partial")
    try:
        save_file(tensors, partial, {"progress": json.dumps(progress)})
        sync(partial)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise refused(path.parent, error, "folder") from error
        raise StorageError(f"cannot write {path}: {error}") from error


def read_state(
    path: Path, module: Guesser, ids: NDArray[np.int32], optimisers: int
) -> tuple[list[dict[int, dict[str, Tensor]]], dict[str, Any]]:
    """Put a module back as it was; return its optimisers' state and the progress.

    Raises StorageError for a file that is damaged, or of a training of other shapes or another vocabulary.
    """
    tensors, facts = _read(path)
    mine = dict(module.named_parameters())
    same = all(f"module.{n}" in tensors and tensors[f"module.{n}"].shape == p.shape for n, p in mine.items())
    known = tensors.get("vocabulary")
    if not same or (known is not None and not np.array_equal(known.numpy(), ids)):
        raise StorageError(f"{path} is the state of another training: name another folder")
    with torch.no_grad():
        for name, p in mine.items():
            p.copy_(tensors[f"module.{name}"])
    state: list[dict[int, dict[str, Tensor]]] = [{} for _ in range(optimisers)]
    try:
        for name, value in tensors.items():
            if name.startswith("optimiser."):
                _, i, j, key = name.split(".", 3)
                state[int(i)].setdefault(int(j), {})[key] = value
    except (ValueError, IndexError) as error:
        raise StorageError(f"{path} is not the state of a training: {error}; delete it to begin anew") from error
    return state, facts


def begun_vocabulary(path: Path) -> NDArray[np.int32] | None:
    """Return the draft vocabulary [Vd] of a training that was begun, or None. Raises StorageError."""
    if not path.is_file():
        return None
    found = _read(path)[0].get("vocabulary")
    return None if found is None else found.numpy().astype(np.int32)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            progress = json.loads(file.metadata()["progress"])
            return {name: file.get_tensor(name) for name in file.keys()}, progress  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path} cannot be read: {error}; delete it to begin anew") from error

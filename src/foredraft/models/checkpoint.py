"""A folder's weights, opened: one safetensors file, shards, or the GGUF that it links to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import ModelNotFound, WeightsError
from foredraft.models.gguf.link import read_link
from foredraft.models.weights.base import Weights
from foredraft.models.weights.safetensors import Tensor, metadata_of, opened, short

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
PICKLED: Final = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
DRAFTED: Final = "draft_vocabulary.json"  # lies in the folder of a draft model, which was trained and not fetched


def open_weights(folder: str | Path, again: str | None = None) -> Weights:
    """Open the ``model.safetensors`` of a folder, or the shards its index names, or the GGUF that it links to.

    ``again`` is the way out where they are damaged; None is to fetch the model, or to train the draft, again.
    Raises ModelNotFound without such a folder, WeightsError for pickled, missing, truncated or lying weights.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelNotFound(f"there is no folder {folder}")
    if (link := read_link(folder)) is not None:
        from foredraft.models.gguf.weights import open_gguf  # which is one of these itself

        return open_gguf(folder, link)
    if again is None:
        again = "train the draft again" if (folder / DRAFTED).is_file() else "fetch the model again"
    index = _read_index(folder, again) if (folder / INDEX).is_file() and not (folder / SINGLE).is_file() else None
    if index is None and not (folder / SINGLE).is_file():
        _refuse_pickled(folder)
        raise WeightsError(f"{folder} holds no weights: a {SINGLE} is needed")
    shards = [SINGLE] if index is None else sorted(set(index.values()))
    files: list[NDArray[np.uint8]] = []
    tensors: dict[str, Tensor] = {}
    for number, shard in enumerate(shards):
        path = folder / shard
        if not path.is_file():
            raise WeightsError(f"{folder} lacks the shard {shard} that its index names: {again}")
        mapped, found = opened(path, number, again)
        files.append(mapped)
        for name, tensor in found:
            if index is not None and index.get(name) != shard:
                raise WeightsError(f"{path} holds {name}, which the index does not place there: {again}")
            tensors[name] = tensor
    for name in index or ():
        if name not in tensors:
            raise WeightsError(f"{folder} has no tensor {name}, although its index names it: {again}")
    return Weights(folder, files, tensors)


def open_file(path: Path, again: str) -> Weights:
    """Open one safetensors file, its ``metadata`` included. Raises WeightsError as ``open_weights`` does.

    ``again`` is the way out where it is damaged; empty leaves that to the caller.
    """
    mapped, found = opened(path, 0, again)
    return Weights(path, [mapped], dict(found), metadata_of(mapped))


def _refuse_pickled(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.suffix in PICKLED:
            raise WeightsError(
                f"{path} is pickled, and opening it could run any code: use a checkpoint saved as safetensors"
            )


def _read_index(folder: Path, again: str) -> dict[str, str]:
    """Return which shard holds each tensor. Raises WeightsError unless every shard is a plain name in the folder."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not a readable index: {again}") from error
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not places:
        raise WeightsError(f"{path} has no weight_map: {again}")
    for name, shard in places.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or set(shard) & set("/\\:\0"):
            raise WeightsError(f"{path} places {short(name)} in {short(shard)}, which is no shard of this folder")
    return places

"""A GGUF file as a checkpoint: mapped, its matrices dequantised to bfloat16 when they are asked for, or raw blocks."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import WeightsError
from foredraft.models.gguf.link import LINK, Link, linked_file, read_link
from foredraft.models.gguf.stored import Stored
from foredraft.models.gguf.tensors import parts, values_of
from foredraft.models.weights.base import Weights
from foredraft.models.weights.floats import Bytes, Numbers, to_bf16
from foredraft.models.weights.safetensors import Tensor


class GgufWeights(Weights):
    """The tensors of one GGUF, under Hugging Face's names. Matrices look like bfloat16, vectors like float32.

    ``path`` is the file. Arrays are new ones, but for ``blocks``, which may be a view of the file.
    """

    def __init__(self, folder: Path, path: Path, mapped: Bytes, stored: dict[str, Stored]) -> None:
        looks = {s.name: Tensor(0, "BF16" if s.matrix else "F32", s.shape, s.start) for s in stored.values()}
        super().__init__(folder, [mapped], looks)
        self.path = path
        self._stored = stored

    def raw(self, name: str) -> NDArray[Any]:
        """Return a tensor [shape]: a matrix dequantised and rounded to bfloat16 as uint16, a vector as float32.

        Raises WeightsError if there is none of that name, or its blocks hold what is no number.
        """
        tensor, stored = self._find(name), self._stored[name]
        rows = self._rows(stored)
        whole = np.empty((stored.rows, stored.columns), np.uint16 if stored.matrix else np.float32)
        at = 0
        for part in parts(stored, lambda first, count: rows[first : first + count], str(self.path)):
            whole[at : at + len(part)] = self._cast(part, stored)
            at += len(part)
        return whole.reshape(tensor.shape)

    def sample(self, name: str, most: int) -> NDArray[Any]:
        """Return up to ``most`` values a fixed step apart; see Weights. Only their blocks are dequantised."""
        self._find(name)
        stored = self._stored[name]
        if not stored.matrix:
            return super().sample(name, most)
        count = prod(stored.shape)
        places = np.arange(0, count, max(1, -(-count // most)))
        rows, columns = np.divmod(places, stored.columns)
        order = stored.order()
        block, width = block_of(stored.quant_type)
        first = (rows if order is None else order[rows]) * stored.row_bytes + columns // block * width
        data = self._rows(stored).reshape(-1)
        values = values_of(data[first[:, None] + np.arange(width)], stored, str(self.path))
        return self._cast(values[np.arange(len(places)), columns % block], stored)

    def rows(self, name: str, ids: NDArray[Any]) -> NDArray[Any]:
        """Return some rows [ids, columns] of a matrix; see Weights. No other is dequantised."""
        self._find(name)
        stored = self._stored[name]
        order = stored.order()
        places = np.asarray(ids, np.int64)
        raw = self._rows(stored)[places if order is None else order[places]]
        return self._cast(values_of(raw, stored, str(self.path)), stored)

    def quant_type(self, name: str) -> str:
        """Return GGML's name of the type in which the file stores a tensor ("Q4_K"). Raises WeightsError as ``raw``."""
        self._find(name)
        return self._stored[name].quant_type

    def called(self, name: str) -> str:
        """Return the file's own name of a tensor. Raises WeightsError as ``raw``."""
        self._find(name)
        return self._stored[name].called or name

    def stored_bytes(self, name: str) -> int:
        """Return what a tensor takes in the file. Raises WeightsError as ``raw``."""
        self._find(name)
        return self._stored[name].size

    def blocks(self, name: str) -> Bytes:
        """Return a matrix as the file stores it [rows, bytes of a row], its rows in Hugging Face's order."""
        self._find(name)
        stored = self._stored[name]
        rows, order = self._rows(stored), stored.order()
        return rows if order is None else rows[order]

    def _rows(self, stored: Stored) -> Bytes:
        """Return the bytes of a tensor [rows, bytes of a row], as the file has them."""
        return self._files[0][stored.start : stored.start + stored.size].reshape(stored.rows, stored.row_bytes)

    def _cast(self, values: Numbers, stored: Stored) -> NDArray[Any]:
        return to_bf16(values) if stored.matrix else values


def open_gguf(folder: Path, link: Link | None = None, path: Path | None = None) -> GgufWeights:
    """Open the GGUF that a folder links to. Raises WeightsError for one that is gone, shortened or another.

    ``path`` is where it lies, from whoever has just had ``linked_file`` look.
    """
    link = link or read_link(folder)
    if link is None:
        raise WeightsError(f"{folder} links to no GGUF file")
    path = path or linked_file(folder, link)
    try:
        mapped = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} cannot be opened: {error}") from error
    stored = {}
    try:
        for fields in link.tensors:
            tensor = Stored.from_fields(fields)
            _require_whole(tensor, len(mapped))
            stored[tensor.name] = tensor
    except (TypeError, KeyError, ValueError, ZeroDivisionError) as error:
        raise WeightsError(f"{folder / LINK} is damaged: name {path} itself, or fetch the model again") from error
    return GgufWeights(folder, path, mapped, stored)


def _require_whole(stored: Stored, size: int) -> None:
    """Raise ValueError for a tensor that its own shape or the file's size contradicts."""
    block, width = block_of(stored.quant_type)
    numbers = (stored.start, stored.size, stored.heads, *stored.shape)
    if not all(type(n) is int and n >= 0 for n in numbers) or not stored.shape or not prod(stored.shape) > 0:
        raise ValueError(stored.name)
    if stored.size != prod(stored.shape) // block * width or stored.shape[-1] % block:
        raise ValueError(stored.name)
    if stored.start + stored.size > size or (stored.heads and stored.rows % (2 * stored.heads)):
        raise ValueError(stored.name)


def block_of(quant_type: str) -> tuple[int, int]:
    """Return the values and the bytes of a type's block. Raises KeyError for a type that does not exist."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    return GGML_QUANT_SIZES[GGMLQuantizationType[quant_type]]

"""A checkpoint's tensors, straight from its safetensors files: checked, mapped, never copied.

Format: https://huggingface.co/docs/safetensors (eight bytes of header length, a JSON header, then the data). Nothing
here trusts the header: offsets, shapes and types must agree with each other and with the file before a tensor is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import WeightsError
from foredraft.models.weights.floats import FLOATS, not_finite, widened
from foredraft.models.weights.safetensors import TYPES, Tensor


class Weights:
    """The tensors of one checkpoint, by name. Arrays are views of the files; writing to one changes no file."""

    def __init__(
        self,
        folder: Path,
        files: list[NDArray[np.uint8]],
        tensors: dict[str, Tensor],
        metadata: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self.metadata = metadata
        self._files = files
        self._tensors = tensors

    def names(self) -> tuple[str, ...]:
        """Return every tensor's name."""
        return tuple(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape. Raises WeightsError if there is none of that name."""
        return self._find(name).shape

    def dtype(self, name: str) -> str:
        """Return a tensor's type as safetensors spells it ("BF16", "F32"). Raises WeightsError as above."""
        return self._find(name).dtype

    def called(self, name: str) -> str:
        """Return what its file calls a tensor. Raises WeightsError as above."""
        self._find(name)
        return name

    def raw(self, name: str) -> NDArray[Any]:
        """Return a tensor without copying it: [shape], bfloat16 as uint16.

        Raises WeightsError as above, and for a vector of floats that holds what is no number: one spoils every answer.
        """
        tensor = self._find(name)
        file = self._files[tensor.file]
        values: NDArray[Any] = np.ndarray(tensor.shape, TYPES[tensor.dtype], file.data, tensor.offset)
        if len(tensor.shape) == 1 and tensor.dtype in FLOATS:
            with np.errstate(all="ignore"):
                if not np.isfinite(widened(values, tensor.dtype) if tensor.dtype == "BF16" else values).all():
                    raise not_finite(getattr(file, "filename", None) or self.folder, name)
        return values

    def sample(self, name: str, most: int) -> NDArray[Any]:
        """Return up to ``most`` values [n] of a tensor, a fixed step apart, as ``raw`` gives them."""
        values = self.raw(name).reshape(-1)
        return values[:: max(1, -(-len(values) // most))]

    def rows(self, name: str, ids: NDArray[Any]) -> NDArray[Any]:
        """Return some rows [ids, columns] of a matrix, as ``raw`` gives them."""
        found: NDArray[Any] = self.raw(name)[ids]
        return found

    def _find(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise WeightsError(f"{self.folder} has no tensor {name}: the checkpoint is not complete") from None


def held_weights(where: Path, tensors: Mapping[str, NDArray[Any]]) -> Weights:
    """Return arrays as the tensors of a checkpoint, uint16 as bfloat16; ``where`` is what faults name."""
    kinds = {np.dtype(code): kind for kind, code in TYPES.items() if not kind.startswith(("F8", "U"))}
    files, entries = [], {}
    for number, (name, array) in enumerate(tensors.items()):
        flat = np.ascontiguousarray(array)
        files.append(flat.reshape(-1).view(np.uint8))
        entries[name] = Tensor(number, kinds[flat.dtype], array.shape, 0)
    return Weights(where, files, entries)

"""One weight of a GGUF file: where it lies, and in which order its rows are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)
_RENAMED: Final = MappingProxyType({"kind": "quant_type"})  # names of the link's format -> ours


@dataclass(frozen=True, slots=True)
class Stored:
    """One weight: its name and shape in Hugging Face's layout, and how and where the file stores it.

    ``quant_type`` is GGML's name of the type; ``start`` and ``size`` are bytes of the file; ``heads`` are those whose
    rows llama.cpp's converter put in another order (0: none), ``offset`` what it added to every value; ``called`` is
    the file's own name for it, which messages give.
    """

    name: str
    quant_type: str
    shape: tuple[int, ...]
    start: int
    size: int
    heads: int = 0
    offset: float = 0.0
    called: str = ""

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Stored:
        """Return a weight as a link holds it. Raises TypeError or KeyError for fields that are not a weight's."""
        known = {_RENAMED.get(name, name): value for name, value in fields.items()}
        return cls(**{**known, "shape": tuple(known["shape"])})

    def to_fields(self) -> dict[str, Any]:
        """Return what a link holds of a weight, by the names of the file's format."""
        formerly = {name: was for was, name in _RENAMED.items()}
        return {formerly.get(name, name): value for name, value in asdict(self).items()}

    @property
    def matrix(self) -> bool:
        """Whether it is a matrix, and no vector."""
        return len(self.shape) > 1

    @property
    def rows(self) -> int:
        """Rows of the file; those of a vector are its values where they have an order, else there is one."""
        if self.matrix:
            return prod(self.shape[:-1])
        return self.shape[0] if self.heads else 1

    @property
    def columns(self) -> int:
        """Values of a row."""
        return prod(self.shape) // self.rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.size // self.rows

    def order(self) -> NDArray[np.int64] | None:
        """Return for each row [rows] of Hugging Face's order its place in the file; None where they are the same."""
        return unrotate(np.arange(self.rows)[:, None], self.heads)[:, 0] if self.heads else None


def unrotate(rows: NDArray[T], heads: int) -> NDArray[T]:
    """Put the rows [heads * D, C] of q or k back in Hugging Face's order.

    llama.cpp rotates neighbours (0, 1), (2, 3), ...; Hugging Face rotates row i with row i + D / 2. The file holds
    0, D/2, 1, D/2 + 1, ... of each head.
    """
    half = rows.shape[0] // heads // 2
    return np.ascontiguousarray(rows.reshape(heads, half, 2, -1).swapaxes(1, 2)).reshape(rows.shape)

"""The tensors of a GGUF file: their values, under the names and in the order that Hugging Face has them.

Values are dequantised by the ``gguf`` library, which is imported when a value is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from foredraft.models.weights.base import not_finite

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.float32]
T = TypeVar("T", bound=np.generic)

_PART_VALUES: Final = 1 << 22  # dequantised at a time
PLAIN: Final = ("F32", "F16", "BF16")  # types of single values


@dataclass(frozen=True, slots=True)
class Stored:
    """One weight: its name and shape in Hugging Face's layout, and how and where the file stores it.

    ``kind`` is GGML's name of the type; ``start`` and ``size`` are bytes of the file; ``heads`` are those whose rows
    llama.cpp's converter put in another order (0: none), ``offset`` what it added to every value; ``called`` is the
    file's own name for it, which messages give.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    start: int
    size: int
    heads: int = 0
    offset: float = 0.0
    called: str = ""

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


def parts(stored: Stored, read: Callable[[int, int], Bytes], where: str) -> Iterator[Numbers]:
    """Yield a weight's values [rows, columns] in order, some rows with whole heads at a time.

    ``read`` gives the bytes [count, row_bytes] of ``count`` rows of the file from a first one; ``where`` is the file's
    name. Raises WeightsError as ``values_of`` does.
    """
    unit = stored.rows // stored.heads if stored.heads else 1  # heads stay whole
    step = max(1, _PART_VALUES // (stored.columns * unit)) * unit
    for first in range(0, stored.rows, step):
        count = min(step, stored.rows - first)
        values = values_of(read(first, count), stored, where)
        yield unrotate(values, count // unit) if stored.heads else values


def values_of(raw: Bytes, stored: Stored, where: str) -> Numbers:
    """Return the values [..., n] of bytes [..., b], whole blocks of a weight, less what was added to them.

    Raises WeightsError as ``not_finite`` for a block whose scale is no finite number, and a value of a vector.
    """
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    stored_as = {"F32": np.float32, "F16": np.float16}.get(stored.kind)
    with np.errstate(all="ignore"):
        found = dequantize(raw if stored_as is None else raw.view(stored_as), GGMLQuantizationType[stored.kind])
    values: Numbers = np.asarray(found, dtype=np.float32)
    if (stored.kind not in PLAIN or not stored.matrix) and not np.isfinite(values).all():
        raise not_finite(where, stored.called or stored.name, blocks=stored.kind not in PLAIN)
    return values - np.float32(stored.offset) if stored.offset else values


def to_bf16(values: Numbers) -> NDArray[np.uint16]:
    """Return the bits of ``values`` as bf16: round to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    # adding just under half of the last kept place, or half where that place is odd, carries exactly when it should
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    narrow: NDArray[np.uint16] = rounded.astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        narrow[nan] = 0x7FC0
    return narrow

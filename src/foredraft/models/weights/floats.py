"""Floats of 16, 32 and 64 bits: widened, rounded to bfloat16, and found not to be numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import WeightsError

FLOATS: Final = ("BF16", "F16", "F32", "F64")

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.float32]


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


def widened(raw: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Return what ``raw`` gave as float32, any shape; ``dtype`` is a 16, 32 or 64 bit float's name in safetensors."""
    if dtype == "BF16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.astype(np.float32)


def narrowed(raw: NDArray[Any], dtype: str, where: str) -> NDArray[np.uint16]:
    """Return what ``raw`` gave as bfloat16, rounded to the nearest and even. Raises WeightsError for no float."""
    if dtype == "BF16":
        return raw
    if dtype not in ("F16", "F32", "F64"):
        raise WeightsError(f"{where} is {dtype}, and only 16, 32 and 64 bit floats are read")
    wide = widened(raw, dtype).view(np.uint32)
    return ((wide + np.uint32(0x7FFF) + (wide >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def not_finite(where: str | Path, name: str, *, blocks: bool = False) -> WeightsError:
    """Return what is to be said of a tensor ``name`` of the file ``where`` that holds what is no number."""
    what = "has a block whose scale is not finite" if blocks else "holds NaN or infinite numbers"
    return WeightsError(f"{where}: {name} {what}, so the file is damaged: fetch or make it again")

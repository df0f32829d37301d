"""The tensors of a GGUF file: their values, under the names and in the order that Hugging Face has them.

Values are dequantised by the ``gguf`` library, which is imported when a value is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from foredraft.models.gguf.stored import Stored, unrotate
from foredraft.models.weights.floats import Bytes, Numbers, not_finite

_PART_VALUES: Final = 1 << 22  # dequantised at a time
PLAIN: Final = ("F32", "F16", "BF16")  # types of single values


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

    stored_as = {"F32": np.float32, "F16": np.float16}.get(stored.quant_type)
    with np.errstate(all="ignore"):
        found = dequantize(raw if stored_as is None else raw.view(stored_as), GGMLQuantizationType[stored.quant_type])
    values: Numbers = np.asarray(found, dtype=np.float32)
    if (stored.quant_type not in PLAIN or not stored.matrix) and not np.isfinite(values).all():
        raise not_finite(where, stored.called or stored.name, blocks=stored.quant_type not in PLAIN)
    return values - np.float32(stored.offset) if stored.offset else values

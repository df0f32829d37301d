"""A drafter's own weights in blocks of 5 bits, coded when it is loaded: a guess may be rounded, for it is checked.

Beside a target that runs a file's blocks, weights of 16 bits would make a draft step three times as dear as it need be.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from foredraft.models.native.blocks import Blocks, matrices_of
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights
from foredraft.models.weights.floats import Bytes, widened

KIND: Final = "Q5_1"
_BLOCK: Final = 32


def rounded(spec: DecoderSpec, weights: Weights) -> Blocks:
    """Return how a decoder's matrices are run when rounded; those whose rows are no whole blocks stay as they are.

    Raises WeightsError where there is no output head.
    """
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quantize  # slow to import, and seldom needed

    order = matrices_of(spec, weights)
    stored = {name: KIND for name in order if weights.shape(name)[1] % _BLOCK == 0}

    def raw(name: str) -> Bytes:
        return np.ascontiguousarray(
            quantize(widened(weights.raw(name), weights.dtype(name)), GGMLQuantizationType[KIND])
        )

    kinds = tuple(stored.get(name, "BF16") for name in order)
    return Blocks(weights.folder, kinds, stored, raw, 0, None)

"""A drafter's own weights in blocks of 8 bits, coded when it is loaded: a guess may be rounded, for it is checked.

Beside a target that runs a file's blocks, weights of 16 bits would make a draft step twice as dear as it need be.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from foredraft.models.gguf_tensors import Bytes
from foredraft.models.native_blocks import Blocks, matrices_of
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights import Weights, widened

KIND: Final = "Q8_0"
_BLOCK: Final = 32


def eight_bits(spec: DecoderSpec, weights: Weights) -> Blocks:
    """Return how a decoder's matrices are run in 8 bits; those whose rows are no whole blocks stay as they are."""
    order = matrices_of(spec, weights)
    stored = {name: KIND for name in order if weights.shape(name)[1] % _BLOCK == 0}

    def raw(name: str) -> Bytes:
        return coded(widened(weights.raw(name), weights.dtype(name)))

    kinds = tuple(stored.get(name, "BF16") for name in order)
    return Blocks(weights.folder, kinds, stored, raw, 0, None)


def coded(values: NDArray[np.float32]) -> Bytes:
    """Return a matrix [rows, columns], columns a multiple of 32, as blocks of Q8_0: [rows, bytes of a row].

    A block is a scale d in half precision and 32 signed codes, each round(value / d), d being the largest size / 127.
    """
    block = values.reshape(-1, _BLOCK)
    scale = (np.abs(block).max(axis=1, keepdims=True) / np.float32(127)).astype(np.float16)
    wide = scale.astype(np.float32)
    by = np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)
    out = np.empty((len(block), 2 + _BLOCK), np.uint8)
    out[:, :2] = scale.view(np.uint8)
    out[:, 2:] = np.clip(np.rint(block * by), -127, 127).astype(np.int8).view(np.uint8)
    return out.reshape(len(values), -1)

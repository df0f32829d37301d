"""How the library packs weights, as a digest: a build that packs otherwise finds no file of another's."""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import ModelError
from foredraft.models.gguf.weights import block_of
from foredraft.models.native.blocks import Blocks
from foredraft.models.native.spec import native_spec
from foredraft.models.spec import read_spec
from foredraft.native.library import check, library
from foredraft.native.structs import PARTS, TYPES

Bytes = NDArray[np.uint8]


def aligned(size: int) -> Bytes:
    """Return zeroed bytes that begin on a cache line. Raises ModelError where memory does not suffice."""
    try:
        whole = np.zeros(size + 64, np.uint8)
    except MemoryError:
        raise ModelError(f"the model's weights take {size / 1e9:.1f} GB of memory, which the system refuses") from None
    return whole[-whole.ctypes.data % 64 :][:size]


@cache
def layout(f32: bool) -> str:
    """Return a digest of how the library packs a small made-up model.

    A build that packs otherwise finds no file of another's, whether or not anybody thought of the version.
    """
    width, inner, outer = 48, 80, 40  # none of them whole blocks
    config = {"model_type": "llama", "vocab_size": outer, "hidden_size": width, "intermediate_size": inner}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True}
    config |= {"max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    native = native_spec(read_spec(config), "f32" if f32 else "bf16", 1.0)
    packed = aligned(int(library().fd_packed_bytes(ctypes.byref(native))))
    shapes = {"head": (outer, width), "norm": (width, 1), "qkv": (5 * 16, width), "o": (width, width)}
    shapes |= {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
    for number, (part, (rows, cols)) in enumerate(shapes.items(), 1):
        source = np.arange(rows * cols, dtype=np.float32) + number
        place = ctypes.c_void_p(packed.ctypes.data)
        index, kind = PARTS.index(part), TYPES["F32"]
        check(library().fd_pack(ctypes.byref(native), place, index, 0, source.ctypes.data, kind, rows, cols, 0))
    return hashlib.sha256(packed.tobytes()).hexdigest()[:16]


def layout_of(blocks: Blocks) -> str:
    """Return a digest of how the library packs blocks of the types in use; see ``layout``."""
    digest = hashlib.sha256(",".join(blocks.quant_types).encode())
    for quant_type in sorted(set(blocks.quant_types)):
        digest.update(_packed(quant_type).tobytes())
    return digest.hexdigest()[:16]


def _packed(quant_type: str) -> Bytes:
    """Return a made-up matrix of a type, packed."""
    width, rows = 256, 40
    config = {"model_type": "llama", "vocab_size": rows, "hidden_size": width, "intermediate_size": width}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True}
    config |= {"max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    native = native_spec(read_spec(config), "file", 1.0, (quant_type,) * 9)
    packed = aligned(int(library().fd_packed_bytes(ctypes.byref(native))))
    block, size = block_of(quant_type)
    # no byte is above 112, so that no half float among them is infinite
    source = (np.arange(rows * width // block * size, dtype=np.uint32) * 37 % 113).astype(np.uint8)
    place, part = ctypes.c_void_p(packed.ctypes.data), PARTS.index("head")
    check(
        library().fd_pack(ctypes.byref(native), place, part, 0, source.ctypes.data, TYPES[quant_type], rows, width, 0)
    )
    return packed

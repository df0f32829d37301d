"""The structures of the native library's C interface (``api.h``), through ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int32, c_uint32, c_uint64, c_void_p
from typing import Final

FLOATS: Final = ("BF16", "F16", "F32", "F64")
BLOCKS: Final = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")  # run as a file stores them
TYPES: Final = {name: number for number, name in enumerate((*FLOATS, *BLOCKS))}  # fd_type of native/api.h
PARTS: Final = (
    "embedding", "head", "norm", "qkv", "o", "gate", "up", "down", "qkv_bias", "o_bias", "gate_bias", "up_bias",
    "down_bias", "before_attention", "after_attention", "before_mlp", "after_mlp", "q_norm", "k_norm",
)  # fmt: skip


class NativeSpec(ctypes.Structure):
    """``fd_spec`` of native/api.h."""

    _fields_ = (
        *((name, c_int32) for name in ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_dim", "mlp")),
        *((name, c_int32) for name in ("context", "norm_before", "norm_after", "qk_norm")),
        *((name, c_int32) for name in ("qkv_bias", "o_bias", "mlp_bias", "activation", "tied", "f32", "ropes")),
        *((name, c_float) for name in ("eps", "attention_scale", "attention_cap", "logits_cap")),
        *((name, c_float) for name in ("embedding_scale", "residual_scale", "logits_divisor")),
        *((name, POINTER(c_int32)) for name in ("windows", "rope_of", "rope_dims")),
        *((name, POINTER(c_float)) for name in ("rope_scales", "rope_turns")),
        ("kinds", POINTER(c_int32)),
    )


class NativeRequest(ctypes.Structure):
    """``fd_request`` of native/api.h."""

    _fields_ = (
        ("sequences", c_int32),
        *((name, c_void_p) for name in ("slots", "starts", "counts", "tokens", "parents", "hidden")),
        *(("steps", c_int32), ("step", c_void_p), ("taps", c_int32), ("tap", c_void_p)),
        *(("wanted", c_int32), ("want", c_void_p), ("subset", c_int32), ("logits", c_void_p), ("tapped", c_void_p)),
    )


class NativeLawStruct(ctypes.Structure):
    """``fd_law`` of native/api.h."""

    _fields_ = (
        ("row", c_void_p),
        *((name, c_int32) for name in ("size", "wide", "top_k", "narrow")),
        *((name, c_double) for name in ("temperature", "top_p", "min_p")),
        *((name, c_void_p) for name in ("tops", "sums")),
        *((name, c_double) for name in ("peak", "cut", "total", "scale")),
        *(("minus", c_void_p), ("without", c_void_p), ("withouts", c_int32)),
    )


class NativePlace(ctypes.Structure):
    """``fd_place`` of native/api.h."""

    _fields_ = (("seed", c_uint64), ("position", c_uint32), ("choice", c_uint32))

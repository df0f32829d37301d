"""The native library through ctypes: its structures, its errors, the tiers this machine can run, its cores."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_int32
from typing import Any

from foredraft.models.rope import inverse_frequencies
from foredraft.models.spec import DecoderSpec
from foredraft.native.structs import TYPES, NativeSpec


def native_spec(
    spec: DecoderSpec, dtype: str, embedding_scale: float, quant_types: Sequence[str] | None = None
) -> NativeSpec:
    """Return a spec as the library reads it; the arrays live as long as it does.

    ``quant_types`` [2 + 7 * layers] are the types (of TYPES) of embedding, head, and each layer's q, k, v, o, gate, up
    and down; None: all are of the dtype.
    """
    ropes = tuple(dict.fromkeys(rope for rope in spec.ropes if rope is not None))
    inv_freq = [float(turn) for rope in ropes for turn in inverse_frequencies(rope)]
    plain = ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_dim", "mlp", "context", "qkv_bias", "o_bias",
             "mlp_bias", "tied", "eps", "attention_scale", "attention_cap", "logits_cap", "residual_scale",
             "logits_divisor")  # fmt: skip
    made = NativeSpec(
        **{name: getattr(spec, name) for name in plain},
        norm_before=spec.norm_position in ("pre", "sandwich"),
        norm_after=spec.norm_position in ("post", "sandwich"),
        qk_norm=("none", "head", "full").index(spec.qk_norm),
        activation=("silu", "gelu_tanh").index(spec.activation),
        f32=dtype == "f32",
        ropes=len(ropes),
        embedding_scale=embedding_scale,
    )
    made.windows = _array(c_int32, spec.windows)
    made.rope_of = _array(c_int32, [-1 if rope is None else ropes.index(rope) for rope in spec.ropes])
    made.rope_dims = _array(c_int32, [rope.dim for rope in ropes])
    made.rope_scales = _array(c_float, [rope.attention_factor for rope in ropes])
    made.rope_turns = _array(c_float, inv_freq)
    if quant_types is not None:
        made.kinds = _array(c_int32, [TYPES[kind] for kind in quant_types])
    return made


def _array(kind: Any, values: Sequence[float]) -> Any:
    return (kind * len(values))(*values)

"""The decoder table: one entry a dense family, saying how its checkpoints differ from Llama's.

``defaults`` are what a family's checkpoints may leave out of ``config.json``; where a field names a key of it, the
checkpoint decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

Config = Mapping[str, object]


def _defaults(**given: object) -> Config:
    common = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
    return MappingProxyType({**common, **given})


@dataclass(frozen=True, slots=True)
class Family:
    """How a family differs from Llama; the meaning of each value stands in DecoderSpec."""

    defaults: Config = field(default_factory=_defaults)
    norm: str = "rms"
    norm_position: str = "pre"
    qk_norm: str = "none"
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    fused: bool = False
    theta: float = 10_000.0
    local_theta: float | None = None  # of the layers with a window, where they have their own
    no_rope: bool = False  # whether some layers know no positions
    layer_types: bool = False  # whether the checkpoint may say which layers have a window
    kinds: Callable[[Config, int], Sequence[str]] | None = None  # and which have one where it does not
    window_switch: str | None = None  # the key that turns windows on
    attention_scale: str = "head_dim"
    attention_cap: bool = False
    logits_cap: bool = False
    embedding_rounded: bool = False


def _all(_: Config, layers: int) -> Sequence[str]:
    return ["sliding_attention"] * layers


def _every(key: str, default: int) -> Callable[[Config, int], Sequence[str]]:
    """Full attention in every n-th layer, a window in the others."""

    def kinds(config: Config, layers: int) -> Sequence[str]:
        given = config.get(key)
        every = given if isinstance(given, int) and given > 0 else default
        return ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]

    return kinds


def _from_layer(config: Config, layers: int) -> Sequence[str]:
    given = config.get("max_window_layers")
    first = given if isinstance(given, int) else 28
    return ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]


GEMMA: Final = {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "query_pre_attn_scalar": 256}

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "llama": Family(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias"),
        "mistral": Family(defaults=_defaults(sliding_window=4096), kinds=_all),
        "qwen2": Family(qkv_bias=True, layer_types=True, kinds=_from_layer, window_switch="use_sliding_window"),
        "qwen3": Family(
            defaults=_defaults(head_dim=128),
            qk_norm="head",
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            layer_types=True,
            kinds=_from_layer,
            window_switch="use_sliding_window",
        ),
        "gemma2": Family(
            defaults=_defaults(
                **GEMMA, head_dim=256, sliding_window=4096, attn_logit_softcapping=50.0, final_logit_softcapping=30.0
            ),
            norm="unit",
            norm_position="sandwich",
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            layer_types=True,
            kinds=_every("sliding_window_pattern", 2),
            attention_scale="query_pre_attn_scalar",
            attention_cap=True,
            logits_cap=True,
            embedding_rounded=True,
        ),
        "gemma3_text": Family(
            defaults=_defaults(
                **GEMMA,
                head_dim=256,
                sliding_window=4096,
                vocab_size=262_208,
                num_attention_heads=8,
                num_key_value_heads=4,
                max_position_embeddings=131_072,
            ),
            norm="unit",
            norm_position="sandwich",
            qk_norm="head",
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            theta=1_000_000.0,
            local_theta=10_000.0,
            layer_types=True,
            kinds=_every("sliding_window_pattern", 6),
            attention_scale="query_pre_attn_scalar",
            logits_cap=True,
            embedding_rounded=True,
        ),
        "phi3": Family(defaults=_defaults(rms_norm_eps=1e-5), fused=True, kinds=_all),
        "olmo2": Family(
            defaults=_defaults(rms_norm_eps=1e-5),
            norm="wide",
            norm_position="post",
            qk_norm="full",
            qkv_bias="attention_bias",
            o_bias="attention_bias",
        ),
        "granite": Family(
            defaults=_defaults(attention_multiplier=1.0),
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            mlp_bias="mlp_bias",
            attention_scale="attention_multiplier",
        ),
        "smollm3": Family(
            defaults=_defaults(tie_word_embeddings=True, no_rope_layer_interval=4, num_key_value_heads=4),
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            mlp_bias="mlp_bias",
            theta=2_000_000.0,
            no_rope=True,
            layer_types=True,
            window_switch="use_sliding_window",
        ),
    }
)

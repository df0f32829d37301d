"""A dense decoder as a table: everything a forward pass must know beside the weights.

``read_spec`` turns a checkpoint's ``config.json`` into a ``DecoderSpec`` by way of the family's entry in
``families.py``; a new dense family is one entry there and no code here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foredraft.errors import UnsupportedModel
from foredraft.models.families import FAMILIES, Family
from foredraft.models.rope import Rope, read_rope

Config = Mapping[str, object]
FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """What a dense decoder is made of. Lengths are in tokens or features; a cap of 0 and a window of 0 mean none."""

    family: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int  # width of the MLP
    context: int
    eps: float
    norm: str  # "rms"; "wide": the weight multiplies in float32; "unit": wide, by 1 + weight
    norm_position: str  # norms "pre", "post" or on both sides ("sandwich") of attention and of the MLP
    qk_norm: str  # "none", over each "head", or over the "full" width
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    fused: bool  # whether the file holds q, k, v and gate, up as one tensor each
    ropes: tuple[Rope | None, ...]  # [layers] None: the layer knows no positions
    windows: tuple[int, ...]  # [layers] how many tokens back a row sees, itself included
    attention_scale: float
    attention_cap: float
    logits_cap: float
    activation: str  # "silu" or "gelu_tanh"
    embedding_scale: float
    embedding_rounded: bool  # whether that scale is rounded to the weights' type first (Gemma)
    residual_scale: float
    logits_divisor: float
    tied: bool
    composite: bool  # the file also holds towers for other kinds of input
    eos: tuple[int, ...]


def read_spec(config: Config) -> DecoderSpec:
    """Return the spec of a checkpoint from its ``config.json``, as transformers 4 or 5 wrote it.

    Raises UnsupportedModel: with ``elsewhere`` where only the table lacks the model; without where it is refused
    (remote code, quantised weights, numbers that make no sense).
    """
    refuse(config)
    name = str(config.get("model_type"))
    text = config.get("text_config")
    composite = name == "gemma3" and isinstance(text, Mapping)
    if composite:
        assert isinstance(text, Mapping)
        config = {"eos_token_id": config.get("eos_token_id"), **text}
        refuse(config)
        name = "gemma3_text"
    family = FAMILIES.get(name)
    if family is None:
        raise UnsupportedModel(f"model type {name!r} has no entry in the decoder table", elsewhere=True)
    return _build(name, family, {**family.defaults, **config}, composite)


def refuse(config: Config) -> None:
    """Raise UnsupportedModel for what is refused whoever would run it: remote code and foreign quantisation."""
    if config.get("auto_map"):
        raise UnsupportedModel(
            "the checkpoint asks to run code of its own (auto_map), which is never done: use one without it"
        )
    quantised = config.get("quantization_config") or config.get("compression_config")
    if quantised:
        method = quantised.get("quant_method", "an unnamed method") if isinstance(quantised, Mapping) else quantised
        raise UnsupportedModel(
            f"checkpoints quantised with {method} are not read: use the original bf16 weights or a GGUF file"
        )


def _build(name: str, family: Family, config: Config, composite: bool) -> DecoderSpec:
    hidden, heads, layers = (_whole(config, key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    kv_heads = _whole(config, "num_key_value_heads", heads)
    head_dim = _whole(config, "head_dim", hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise UnsupportedModel(f"config.json: {heads} heads of {head_dim} cannot share {kv_heads} key-value heads")
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModel("config.json: a model that sees both ways cannot generate text token by token")
    kinds = _kinds(config, family, layers)
    return DecoderSpec(
        family=name,
        vocabulary=_whole(config, "vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=_whole(config, "intermediate_size"),
        context=_whole(config, "max_position_embeddings"),
        eps=_number(config, "rms_norm_eps"),
        norm=family.norm,
        norm_position=family.norm_position,
        qk_norm=family.qk_norm,
        qkv_bias=_flag(config, family.qkv_bias),
        o_bias=_flag(config, family.o_bias),
        mlp_bias=_flag(config, family.mlp_bias),
        fused=family.fused,
        ropes=_ropes(config, family, kinds, head_dim),
        windows=_windows(config, family, kinds),
        attention_scale=_attention_scale(config, family, head_dim),
        attention_cap=_number(config, "attn_logit_softcapping", 0.0) if family.attention_cap else 0.0,
        logits_cap=_number(config, "final_logit_softcapping", 0.0) if family.logits_cap else 0.0,
        activation=_activation(config),
        embedding_scale=math.sqrt(hidden) if family.embedding_rounded else _multiplier(config, "embedding_multiplier"),
        embedding_rounded=family.embedding_rounded,
        residual_scale=_multiplier(config, "residual_multiplier"),
        logits_divisor=_multiplier(config, "logits_scaling"),
        tied=bool(config["tie_word_embeddings"]),
        composite=composite,
        eos=_eos(config),
    )


def _whole(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise UnsupportedModel(f"config.json: {key} is {value!r} where a positive whole number is needed")
    return value


def _number(config: Config, key: str, default: float | None = None) -> float:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise UnsupportedModel(f"config.json: {key} is {value!r} where a positive number is needed")
    return float(value)


def _multiplier(config: Config, key: str) -> float:
    return _number(config, key, 1.0) if config.get("model_type") == "granite" else 1.0


def _flag(config: Config, rule: bool | str) -> bool:
    return bool(config.get(rule)) if isinstance(rule, str) else rule


def _kinds(config: Config, family: Family, layers: int) -> tuple[str, ...]:
    """Return each layer's kind of attention, as the checkpoint or its family's pattern says."""
    given = config.get("layer_types")
    if given is None or not family.layer_types:
        return tuple(family.kinds(config, layers)) if family.kinds is not None else (FULL,) * layers
    if not isinstance(given, Sequence) or len(given) != layers:
        raise UnsupportedModel(f"config.json: layer_types does not name the kind of each of {layers} layers")
    for kind in given:
        if kind not in (FULL, SLIDING):
            raise UnsupportedModel(f"attention of kind {kind!r} has no entry in the decoder table", elsewhere=True)
    return tuple(given)


def _windows(config: Config, family: Family, kinds: Sequence[str]) -> tuple[int, ...]:
    switched_off = family.window_switch is not None and not config.get(family.window_switch)
    if SLIDING not in kinds or switched_off or config.get("sliding_window") is None:
        return (0,) * len(kinds)
    window = _whole(config, "sliding_window")
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def _ropes(config: Config, family: Family, kinds: Sequence[str], head_dim: int) -> tuple[Rope | None, ...]:
    """Return each layer's rope: ``rope_parameters`` (flat or by kind of layer), else the older keys."""
    by_kind = {kind: read_rope(_rope_parameters(config, family, kind), config, head_dim) for kind in set(kinds)}
    given = config.get("no_rope_layers") if family.no_rope else None
    if family.no_rope and given is None:
        every = _whole(config, "no_rope_layer_interval")
        given = [(i + 1) % every for i in range(len(kinds))]
    if given is None:
        return tuple(by_kind[kind] for kind in kinds)
    if not isinstance(given, Sequence) or len(given) < len(kinds):
        raise UnsupportedModel("config.json: no_rope_layers does not speak of each layer")
    return tuple(by_kind[kind] if given[i] else None for i, kind in enumerate(kinds))


def _rope_parameters(config: Config, family: Family, kind: str) -> Config:
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise UnsupportedModel(f"config.json: the rope is described by {given!r} where a table is needed")
    nested = {key: value for key, value in given.items() if key in (FULL, SLIDING)}
    local = family.local_theta is not None and kind == SLIDING
    if nested:
        given = nested.get(kind) or {}
    elif local:
        given = {}  # only the layers that see everything are stretched
    theta = config.get("rope_local_base_freq", family.local_theta) if local else config.get("rope_theta", family.theta)
    return {"rope_theta": theta, "partial_rotary_factor": config.get("partial_rotary_factor"), **given}


def _attention_scale(config: Config, family: Family, head_dim: int) -> float:
    if family.attention_scale == "query_pre_attn_scalar":
        return 1 / math.sqrt(_number(config, "query_pre_attn_scalar"))
    if family.attention_scale == "attention_multiplier":
        return _number(config, "attention_multiplier")
    return 1 / math.sqrt(head_dim)


def _activation(config: Config) -> str:
    name = config.get("hidden_activation") or config.get("hidden_act")
    known = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
    if name not in known:
        raise UnsupportedModel(f"activation {name!r} has no entry in the decoder table", elsewhere=True)
    return known[str(name)]


def _eos(config: Config) -> tuple[int, ...]:
    given = config.get("eos_token_id")
    ids = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(i for i in ids if isinstance(i, int) and i >= 0)

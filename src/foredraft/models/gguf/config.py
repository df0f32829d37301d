"""From a GGUF header to a config and names as Hugging Face writes them.

One table entry an architecture. What a GGUF does not store, and llama.cpp knows by heart, is marked where it is filled
in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from foredraft.errors import UnsupportedModel, WeightsError
from foredraft.models import layout
from foredraft.models.gguf.header import Header
from foredraft.models.spec import read_spec

Config = dict[str, Any]

_ATTENTION: Final = {
    "attn_q": layout.QUERY,
    "attn_k": layout.KEY,
    "attn_v": layout.VALUE,
    "attn_output": layout.OUTPUT,
}
_MLP: Final = {"ffn_gate": layout.GATE, "ffn_up": layout.UP, "ffn_down": layout.DOWN}
_NORMS: Final = {"attn_norm": layout.INPUT_NORM, "ffn_norm": layout.POST_ATTENTION_NORM}
_QK_NORMS: Final = {"attn_q_norm": layout.QUERY_NORM, "attn_k_norm": layout.KEY_NORM}
_AFTER: Final = {"post_attention_norm": layout.POST_ATTENTION_NORM, "post_ffw_norm": layout.POST_FEEDFORWARD_NORM}
_SANDWICH: Final = {"attn_norm": layout.INPUT_NORM, "ffn_norm": layout.PRE_FEEDFORWARD_NORM, **_AFTER}

_TOP: Final = {
    "token_embd": f"{layout.PREFIX}{layout.EMBEDDING}",
    "output_norm": f"{layout.PREFIX}{layout.LAST_NORM}",
    "output": layout.HEAD,
}
# folded into the config, or recomputed from it
_NOT_WEIGHTS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True, slots=True)
class Family:
    """How one GGUF architecture is written in Hugging Face's terms.

    ``leaves`` names the parts of a layer; ``rotated`` says that the rows of q and k were reordered for llama.cpp's
    interleaved rotation; ``offset`` that norms carry the 1 which the model adds itself; ``qkv_bias`` that q, k and v
    have biases by nature.
    """

    model_type: str
    class_name: str
    leaves: Mapping[str, str]
    rotated: bool = False
    offset: bool = False
    qkv_bias: bool = False


_PLAIN: Final = {**_ATTENTION, **_MLP, **_NORMS}
FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("llama", "LlamaForCausalLM", _PLAIN, rotated=True),
    "granite": Family("granite", "GraniteForCausalLM", _PLAIN, rotated=True),
    "smollm3": Family("smollm3", "SmolLM3ForCausalLM", _PLAIN, rotated=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _PLAIN, qkv_bias=True),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", {**_PLAIN, **_QK_NORMS}),
    "gemma2": Family("gemma2", "Gemma2ForCausalLM", {**_ATTENTION, **_MLP, **_SANDWICH}, offset=True),
    "gemma3": Family("gemma3_text", "Gemma3ForCausalLM", {**_ATTENTION, **_MLP, **_SANDWICH, **_QK_NORMS}, offset=True),
    "olmo2": Family("olmo2", "Olmo2ForCausalLM", {**_ATTENTION, **_MLP, **_AFTER, **_QK_NORMS}),
    "phi3": Family(
        "phi3",
        "Phi3ForCausalLM",
        {
            "attn_qkv": layout.FUSED_QKV,
            "attn_output": layout.OUTPUT,
            "ffn_up": layout.FUSED_GATE_UP,
            "ffn_down": layout.DOWN,
            **_NORMS,
        },
    ),
}


def family_of(header: Header) -> Family:
    """Return the table's entry for a file, or raise UnsupportedModel naming its architecture."""
    family = FAMILIES.get(header.architecture)
    if family is None:
        raise UnsupportedModel(
            f"{header.path} holds a model of the architecture {header.architecture[:80]!r}, which is not among "
            f"{', '.join(sorted(FAMILIES))}"
        )
    if header.metadata.get(f"{header.architecture}.expert_count"):
        raise UnsupportedModel(f"{header.path} holds a mixture of experts, and only dense models can be read from GGUF")
    return family


class Keys:
    """The metadata of one file, read by kind: a value of another kind is the file's fault."""

    def __init__(self, header: Header) -> None:
        self._header = header

    def whole(self, key: str, default: int | None = None) -> int:
        """Return the positive integer under ``ARCHITECTURE.key``; a list that repeats one counts as that one."""
        value = self._header.metadata.get(f"{self._header.architecture}.{key}", default)
        if isinstance(value, list) and value and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, list):
            raise UnsupportedModel(f"{self._header.path} varies {key} from layer to layer, which cannot be run")
        if type(value) is not int or not 0 < value < 1 << 31:
            raise self._bad(key, value)
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Return the finite number under ``ARCHITECTURE.key``, rid of what single precision added to it."""
        value = self._header.metadata.get(f"{self._header.architecture}.{key}", default)
        if type(value) not in (int, float) or not abs(value) < 1e30:
            raise self._bad(key, value)
        return float(f"{value:.7g}")

    def has(self, key: str) -> bool:
        """Say whether ``ARCHITECTURE.key`` is there."""
        return f"{self._header.architecture}.{key}" in self._header.metadata

    def flags(self, key: str, count: int) -> list[bool] | None:
        """Return the ``count`` booleans under ``ARCHITECTURE.key``, if they are there."""
        value = self._header.metadata.get(f"{self._header.architecture}.{key}")
        if not isinstance(value, list):
            return None
        if len(value) != count:
            raise self._bad(key, value)
        return [bool(v) for v in value]

    def text(self, key: str) -> str | None:
        """Return the string under ``ARCHITECTURE.key``, if there is one."""
        value = self._header.metadata.get(f"{self._header.architecture}.{key}")
        return value if isinstance(value, str) else None

    def token(self, key: str) -> int | None:
        """Return the token id under ``tokenizer.ggml.key``, if there is one."""
        value = self._header.metadata.get(f"tokenizer.ggml.{key}")
        return value if type(value) is int and 0 <= value < 1 << 31 else None

    def _bad(self, key: str, value: Any) -> WeightsError:
        return WeightsError(f"{self._header.path} gives {value!r} for {self._header.architecture}.{key}")


def config_of(header: Header) -> Config:
    """Return the config.json of the model in a file, all but its rope scaling.

    Raises UnsupportedModel or WeightsError.
    """
    family, keys = family_of(header), Keys(header)
    embedding = header.tensors.get("token_embd.weight")
    hidden, heads = keys.whole("embedding_length"), keys.whole("attention.head_count")
    if embedding is None or len(embedding.shape) != 2 or embedding.shape[1] != hidden:
        raise WeightsError(f"{header.path} has no embedding of width {hidden}")
    head_dim = keys.whole("attention.key_length", max(1, hidden // heads))
    config: Config = {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_hidden_layers": keys.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": keys.whole("context_length"),
        "rope_theta": keys.real("rope.freq_base", 10000.0),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": keys.token("bos_token_id"),
        "eos_token_id": keys.token("eos_token_id"),
        "pad_token_id": keys.token("padding_token_id"),
    }
    _specialise(header, keys, config)
    return config


def _specialise(header: Header, keys: Keys, config: Config) -> None:
    layers = config["num_hidden_layers"]
    if layers > 1 << 12:
        raise WeightsError(f"{header.path} claims {layers} layers")
    rotated = keys.whole("rope.dimension_count", config["head_dim"])
    if rotated != config["head_dim"] and header.architecture != "phi3":
        raise UnsupportedModel(
            f"{header.path} rotates {rotated} of {config['head_dim']} dimensions of a head, which no "
            f"{header.architecture} does"
        )
    match header.architecture:
        case "qwen2" | "qwen3":
            config["use_sliding_window"] = False  # llama.cpp has no windows for them either
        case "gemma2":
            _gemma(keys, config, large=46, full_every=2)
            config["attn_logit_softcapping"] = keys.real("attn_logit_softcapping", 50.0)
            config["final_logit_softcapping"] = keys.real("final_logit_softcapping", 30.0)
        case "gemma3":
            _gemma(keys, config, large=62, full_every=6)
            config["rope_theta"] = keys.real("rope.freq_base", 1e6)
            config["rope_local_base_freq"] = keys.real("rope.freq_base_swa", 10000.0)
            if keys.has("final_logit_softcapping"):
                config["final_logit_softcapping"] = keys.real("final_logit_softcapping")
        case "phi3":
            config["partial_rotary_factor"] = rotated / config["head_dim"]
            if keys.has("attention.sliding_window"):
                config["sliding_window"] = keys.whole("attention.sliding_window")
        case "granite":
            config["attention_multiplier"] = keys.real("attention.scale", config["head_dim"] ** -0.5)
            config["embedding_multiplier"] = keys.real("embedding_scale", 1.0)
            config["residual_multiplier"] = keys.real("residual_scale", 1.0)
            config["logits_scaling"] = keys.real("logit_scale", 1.0)
        case "smollm3":  # the file does not say where the rotation is left out; every fourth layer, as in llama.cpp
            config["no_rope_layers"] = [int((i + 1) % 4 != 0) for i in range(layers)]
            config["no_rope_layer_interval"] = 4
        case "olmo2" if keys.has("attention.sliding_window"):
            raise UnsupportedModel(f"{header.path} holds an OLMo 3, whose windows cannot be read from GGUF")


def _gemma(keys: Keys, config: Config, large: int, full_every: int) -> None:
    # the file stores neither the query's scale nor, as a rule, which layers see a window: both as in llama.cpp
    width, layers = config["hidden_size"] // config["num_attention_heads"], config["num_hidden_layers"]
    config["query_pre_attn_scalar"] = width if layers == large else config["head_dim"]
    config["sliding_window"] = keys.whole("attention.sliding_window", 4096 if full_every == 2 else 1024)
    windows = keys.flags("attention.sliding_window_pattern", layers)
    if windows is None:
        windows = [(i + 1) % full_every != 0 for i in range(layers)]
    config["layer_types"] = ["sliding_attention" if w else "full_attention" for w in windows]
    del config["hidden_act"]
    config["hidden_activation"] = "gelu_pytorch_tanh"


def names_of(header: Header, config: Config) -> dict[str, str]:
    """Return the Hugging Face name of every weight in the file, by its GGUF name.

    Raises UnsupportedModel for a weight with no place in the family, WeightsError for a missing one.
    """
    family = family_of(header)
    names: dict[str, str] = {}
    for name in header.tensors:
        if name in _NOT_WEIGHTS or name.endswith(".attn_rot_embd"):
            continue
        stem, _, suffix = name.rpartition(".")
        top = _TOP.get(stem)
        block, _, leaf = stem.removeprefix("blk.").partition(".")
        inner = family.leaves.get(leaf)
        if suffix not in ("weight", "bias") or (top is None and (inner is None or not block.isdecimal())):
            raise UnsupportedModel(f"{header.path} has the tensor {name[:80]!r}, which no {header.architecture} has")
        names[name] = f"{top}.{suffix}" if top else f"{layout.PREFIX}layers.{block}.{inner}.{suffix}"
    wanted = ["token_embd.weight", "output_norm.weight"]
    for layer in range(config["num_hidden_layers"]):
        wanted += [f"blk.{layer}.{leaf}.weight" for leaf in family.leaves]
        if family.qkv_bias or config["attention_bias"]:
            wanted += [f"blk.{layer}.{leaf}.bias" for leaf in ("attn_q", "attn_k", "attn_v")]
    for name in wanted:
        if name not in names:
            raise WeightsError(f"{header.path} lacks the tensor {name!r}")
    shapes = _shapes(config)
    for gguf_name, name in names.items():
        found = header.tensors[gguf_name].shape
        if found != (implied := shapes.get(name, found)):
            raise WeightsError(
                f"{header.path}: {gguf_name} has the shape {list(found)} where the file's metadata imply "
                f"{list(implied)}: fetch or make the file again"
            )
    if not (family.qkv_bias or config["attention_bias"]) and "blk.0.attn_q.bias" in names:
        raise UnsupportedModel(f"{header.path} has biases on q, k and v and none on the output, which no llama has")
    return names


def _shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's tensors, by name, biases that it may lack among them."""
    # how it rotates changes no shape, and some rotations run through transformers alone
    spec = read_spec({key: value for key, value in config.items() if "rope" not in key and "rotary" not in key})
    spec = replace(spec, qkv_bias=True, o_bias=True, mlp_bias=True)
    return {slot.name: slot.shape for slot in layout.tensors_of(spec, layout.PREFIX)}

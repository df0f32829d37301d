"""The tensors of a decoder, as one table: what each is called in a checkpoint, its shape, and where it belongs.

Whoever reads, checks or writes a decoder's weights asks here, and only here are the names spelled. A layer's tensors
are a function of the spec and the layer's number, so that layers may differ from one another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from foredraft.errors import WeightsError
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights
from foredraft.models.weights.floats import FLOATS

# modules, each with a ".weight", and some with a ".bias": outside the layers, then a layer's
EMBEDDING: Final = "embed_tokens"
HEAD: Final = "lm_head"
LAST_NORM: Final = "norm"
QUERY: Final = "self_attn.q_proj"
KEY: Final = "self_attn.k_proj"
VALUE: Final = "self_attn.v_proj"
FUSED_QKV: Final = "self_attn.qkv_proj"
OUTPUT: Final = "self_attn.o_proj"
QUERY_NORM: Final = "self_attn.q_norm"
KEY_NORM: Final = "self_attn.k_norm"
GATE: Final = "mlp.gate_proj"
UP: Final = "mlp.up_proj"
FUSED_GATE_UP: Final = "mlp.gate_up_proj"
DOWN: Final = "mlp.down_proj"
INPUT_NORM: Final = "input_layernorm"
POST_ATTENTION_NORM: Final = "post_attention_layernorm"  # before the MLP, where no norm follows attention
PRE_FEEDFORWARD_NORM: Final = "pre_feedforward_layernorm"
POST_FEEDFORWARD_NORM: Final = "post_feedforward_layernorm"
FEATURES_NORM: Final = "hidden_norm"  # EAGLE-3's
PREFIX: Final = "model."  # what begins the names where a checkpoint holds a decoder alone
_MATRICES: Final = ("qkv", "o", "gate", "up", "down")  # parts of a layer, as the library's ``kinds`` are ordered

_Rows = tuple[tuple[str, int, int], ...]  # parts, the first row of each that is meant, and how many


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Where a tensor of a checkpoint, or some of its rows, belongs in a decoder.

    ``part`` is one of ``native.structs.PARTS`` (EAGLE-3's layer also has a "features_norm"), ``layer`` 0 outside the
    layers. ``name`` is the tensor's in the checkpoint, ``shape`` what the file must give it: [outputs, inputs] of a
    matrix, [outputs] of a bias, [features] of a norm. ``rows`` of it from ``start`` on, all but where a file fuses
    several, become the part's rows from ``first`` on. ``norm`` says that it is what a norm multiplies by, to which
    norms of the "unit" kind add 1.
    """

    part: str
    layer: int
    first: int
    name: str
    shape: tuple[int, ...]
    start: int
    rows: int
    norm: bool = False

    @property
    def stop(self) -> int:
        """The row of the file's tensor after the last that belongs here."""
        return self.start + self.rows


def tensors_of(spec: DecoderSpec, prefix: str, head: str = f"{HEAD}.weight") -> Iterator[TensorSlot]:
    """Yield every slot of a decoder, in the order in which weights are packed; slots of one tensor follow each other.

    ``prefix`` begins the names of its own tensors (``decoder_prefix``), ``head`` is the name of its output head
    (``head_of``); a tied one is the embedding, whatever is given.
    """
    yield from outer_tensors(spec, prefix, head)
    for layer in range(spec.layers):
        yield from layer_tensors(spec, layer, prefix)


def outer_tensors(spec: DecoderSpec, prefix: str, head: str = f"{HEAD}.weight") -> Iterator[TensorSlot]:
    """Yield the slots outside the layers: embedding [V, H] where it is not the head too, head [V, H], last norm [H]."""
    embedding, shape = f"{prefix}{EMBEDDING}.weight", (spec.vocabulary, spec.hidden)
    if not spec.tied:
        yield TensorSlot("embedding", 0, 0, embedding, shape, 0, spec.vocabulary)
    yield TensorSlot("head", 0, 0, embedding if spec.tied else head, shape, 0, spec.vocabulary)
    yield _norm("norm", 0, f"{prefix}{LAST_NORM}", spec.hidden)


def layer_prefix(prefix: str, layer: int) -> str:
    """Return what begins the names of one layer's tensors."""
    return f"{prefix}layers.{layer}."


def layer_tensors(spec: DecoderSpec, layer: int, prefix: str, inputs: int = 0) -> Iterator[TensorSlot]:
    """Yield the slots of one layer: its matrices, each with its bias where there are biases, then its norms.

    ``inputs`` is how many features its attention reads; 0: as many as the decoder has.
    """
    at = layer_prefix(prefix, layer)
    q, kv, mlp = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.mlp
    attention: _Rows = (("qkv", 0, q), ("qkv", q, kv), ("qkv", q + kv, kv))
    gated: _Rows = (("gate", 0, mlp), ("up", 0, mlp))
    for modules, parts, width, bias in (
        ((FUSED_QKV,) if spec.fused else (QUERY, KEY, VALUE), attention, inputs or spec.hidden, spec.qkv_bias),
        ((FUSED_GATE_UP,) if spec.fused else (GATE, UP), gated, spec.hidden, spec.mlp_bias),
        ((OUTPUT,), (("o", 0, spec.hidden),), q, spec.o_bias),
        ((DOWN,), (("down", 0, spec.hidden),), mlp, spec.mlp_bias),
    ):
        each = len(parts) // len(modules)  # parts that one module holds: one, or all where the file fuses them
        for number, module in enumerate(modules):
            yield from _linear(layer, f"{at}{module}", parts[number * each : (number + 1) * each], width, bias)
    yield from _norms(spec, layer, at)


def eagle_tensors(spec: DecoderSpec, layer: int, prefix: str) -> Iterator[TensorSlot]:
    """Yield the slots of EAGLE-3's layer, whose attention reads embedding and features side by side, 2H wide."""
    yield from layer_tensors(spec, layer, prefix, 2 * spec.hidden)
    yield _norm("features_norm", layer, f"{layer_prefix(prefix, layer)}{FEATURES_NORM}", spec.hidden)


def _linear(layer: int, module: str, parts: _Rows, width: int, bias: bool) -> Iterator[TensorSlot]:
    """Yield the slots of one module's weight, and of its bias; its ``parts`` lie below each other."""
    outputs = sum(rows for _, _, rows in parts)
    for suffix, of, shape in (("weight", "", (outputs, width)), ("bias", "_bias", (outputs,)))[: 1 + bias]:
        start = 0
        for part, first, rows in parts:
            yield TensorSlot(f"{part}{of}", layer, first, f"{module}.{suffix}", shape, start, rows)
            start += rows


def _norms(spec: DecoderSpec, layer: int, at: str) -> Iterator[TensorSlot]:
    before, after = spec.norm_position in ("pre", "sandwich"), spec.norm_position in ("post", "sandwich")
    q, k = (spec.heads, spec.kv_heads) if spec.qk_norm == "full" else (1, 1)
    for part, module, wanted, width in (
        ("before_attention", INPUT_NORM, before, spec.hidden),
        ("after_attention", POST_ATTENTION_NORM, after, spec.hidden),
        ("before_mlp", PRE_FEEDFORWARD_NORM if after else POST_ATTENTION_NORM, before, spec.hidden),
        ("after_mlp", POST_FEEDFORWARD_NORM, after, spec.hidden),
        ("q_norm", QUERY_NORM, spec.qk_norm != "none", q * spec.head_dim),
        ("k_norm", KEY_NORM, spec.qk_norm != "none", k * spec.head_dim),
    ):
        if wanted:
            yield _norm(part, layer, f"{at}{module}", width)


def _norm(part: str, layer: int, module: str, width: int) -> TensorSlot:
    return TensorSlot(part, layer, 0, f"{module}.weight", (width,), 0, width, norm=True)


def by_part(slots: Iterable[TensorSlot]) -> dict[str, list[TensorSlot]]:
    """Return slots of one layer, or outside the layers, by their part, each part's from its first row to its last."""
    parts: dict[str, list[TensorSlot]] = {}
    for slot in slots:
        parts.setdefault(slot.part, []).append(slot)
    return parts


def matrices(slots: Iterable[TensorSlot]) -> list[TensorSlot]:
    """Return those of a layer's slots that the library's ``kinds`` speak of: q, k, v, o, gate, up, down."""
    parts = by_part(slots)
    return [slot for part in _MATRICES for slot in parts.get(part, ())]


def require(weights: Weights, name: str, shape: tuple[int, ...]) -> None:
    """Raise WeightsError for a tensor that is missing, of another shape than ``shape``, or no float."""
    if (found := weights.shape(name)) != shape:
        raise WeightsError(
            f"{weights.folder}: {name} has the shape {list(found)} where config.json implies {list(shape)}"
        )
    if (kind := weights.dtype(name)) not in FLOATS:
        raise WeightsError(f"{weights.folder}: {name} is {kind}, and only 16, 32 and 64 bit floats are read")


def output_head(weights: Weights, spec: DecoderSpec) -> str:
    """Return the name of a decoder's output head [V, H]; no tensor has it where there is no head."""
    tail = f"{EMBEDDING if spec.tied else HEAD}.weight"
    own = f"{decoder_prefix(weights.names())}{tail}"
    return own if own in weights else next((name for name in weights.names() if name.endswith(tail)), own)


def head_of(weights: Weights, spec: DecoderSpec) -> str:
    """Return the name of a decoder's output head [V, H]. Raises WeightsError where there is neither head nor tie."""
    name = output_head(weights, spec)
    if not spec.tied and name not in weights:
        raise WeightsError(f"{weights.folder} has no {HEAD}.weight, and config.json does not tie it to the embedding")
    return name


def decoder_prefix(names: Collection[str]) -> str:
    """Return what begins the names of a decoder's own tensors. An MTP module may bring an embedding of its own."""
    tail = f"{EMBEDDING}.weight"
    found = (name.removesuffix(tail) for name in names if name.endswith(tail) and not name.startswith("mtp."))
    return min(found, key=len, default=PREFIX)


def mtp_prefixes(weights: Weights, spec: DecoderSpec, prefix: str) -> tuple[str, ...]:
    """Return what begins the names of each module for multi-token prediction (MTP) beside a decoder, in order.

    DeepSeek-V3's are numbered after the decoder's own layers (README_WEIGHTS of that release); of Qwen3-Next's, "mtp."
    """
    found: list[str] = []
    while f"{(module := layer_prefix(prefix, spec.layers + len(found)))}eh_proj.weight" in weights:
        found.append(module)
    return (*found, "mtp.") if "mtp.fc.weight" in weights else tuple(found)


def ignored(name: str, spec: DecoderSpec, prefix: str, modules: tuple[str, ...]) -> bool:
    """Say whether a decoder has no need of a tensor: an old buffer, a tied head's twin, another tower's.

    Nor has it any of ``modules``, what begins the names of MTP modules (``mtp_prefixes``).
    """
    twin = spec.tied and name.endswith(f"{HEAD}.weight")
    tower = spec.composite and not name.startswith(prefix)
    return twin or tower or name.startswith(modules) or name.endswith((".rotary_emb.inv_freq", ".masked_bias"))


def needed(weights: Weights, spec: DecoderSpec, prefix: str) -> list[str]:
    """Return the names of the tensors that a decoder may not ignore, in the checkpoint's order.

    ``prefix`` begins the names of the decoder's own tensors; other towers of a composite model may lie beside it.
    """
    modules = mtp_prefixes(weights, spec, prefix)
    return [name for name in weights.names() if not ignored(name, spec, prefix, modules)]


def refuse_unused(weights: Weights, used: Collection[str], spec: DecoderSpec, prefix: str) -> None:
    """Raise WeightsError for a tensor that a decoder would ignore: then it is not the model it claims to be."""
    for name in needed(weights, spec, prefix):
        if name not in used:
            raise WeightsError(f"{weights.folder}: a {spec.family} decoder has no use for {name}")

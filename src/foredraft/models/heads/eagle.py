"""EAGLE-3 checkpoints (arXiv 2503.01840): heads over a target that others trained, read from their safetensors.

``f = W [h_a; h_b; h_c]`` of three tapped layers, normed each or together where the config says so (EAGLE-3.1). Of
position t the layer's attention reads ``[n_e(E(x_{t+1})); n_h(f_t)]``, 2H wide, and its residual is f (or n_h(f)); the
rest is a plain layer. A last norm and a head over the draft's own vocabulary give the logits, and what is before that
norm (after it where ``norm_output``) stands for f in the next step. ``d2t[i]`` is how far token i's id in the target is
from i. The norm makes the embedding's scale immaterial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import DrafterError, UnsupportedModel, VocabularyMismatch, WeightsError
from foredraft.models import layout
from foredraft.models.checkpoint import open_weights
from foredraft.models.heads.file import EMBEDDING, HEAD, LAST_NORM, HeadsSpec
from foredraft.models.heads.mtp import LAYER, ForeignHeads, take, take_norm
from foredraft.models.layout import PREFIX, layer_prefix, output_head
from foredraft.models.spec import DecoderSpec, read_spec, refuse
from foredraft.models.weights.base import Weights, held_weights

IDS: Final = "eagle_aux_hidden_state_layer_ids"
_EMBEDDING: Final = f"{layout.EMBEDDING}.weight"
_NORM: Final = f"{layout.LAST_NORM}.weight"


def is_eagle(config: Mapping[str, Any]) -> bool:
    """Say whether a ``config.json`` describes heads of the EAGLE family, of whatever generation."""
    return any("eagle" in kind.lower() for kind in _kinds(config))


def read_eagle3(
    folder: Path, config: Mapping[str, Any], target: DecoderSpec, theirs: Weights, name: str, digest: str
) -> ForeignHeads:
    """Return the heads of an EAGLE-3 folder for the target ``name``, whose weights are ``theirs``.

    Raises DrafterError for another generation, or heads that do not fit the target; VocabularyMismatch for another
    vocabulary; WeightsError for pickled weights, and for a tensor that is missing, unexpected or makes no sense.
    """
    spec, options = _described(folder, config)
    weights = open_weights(folder, "fetch the heads again")
    plain = layer_prefix("", 0)
    names = {own.removeprefix(PREFIX).replace(plain, "midlayer.", 1): own for own in weights.names()}
    wide = options.get("target_hidden_size") or spec.hidden
    if wide != target.hidden:
        raise DrafterError(f"{folder} reads {wide!s:.20} features of each layer, and {name} has {target.hidden}")
    if spec.vocabulary != target.vocabulary:
        raise VocabularyMismatch(
            f"{folder} was trained for a target with {spec.vocabulary} tokens, and {name} has {target.vocabulary}"
        )
    taps = _taps(folder, config, target)
    reader = _Parts(weights, names)
    held = _fusing(reader, options, len(taps), wide, spec.hidden)
    held[LAST_NORM] = take_norm(weights, reader.name(_NORM), spec.hidden)
    held["vocabulary"] = ids = _vocabulary(reader, options, spec.vocabulary)
    if _EMBEDDING in names or wide != spec.hidden:
        held["enter.embedding"] = take(weights, reader.name(_EMBEDDING), spec.vocabulary, spec.hidden)
    if HEAD not in names and options.get("draft_vocab_size") is None and wide == spec.hidden:
        head = theirs.raw(output_head(theirs, target))
    else:
        head = take(weights, reader.name(HEAD), len(ids), spec.hidden)
    tensors = {EMBEDDING: head, LAST_NORM: weights.raw(reader.name(_NORM))}
    for own in names:
        if own.startswith("midlayer."):
            tensors[LAYER + own.removeprefix("midlayer.")] = weights.raw(reader.name(own))
    if strangers := sorted(set(names) - reader.used):
        raise WeightsError(f"{folder}: EAGLE-3 heads as its config.json has them have no use for {strangers[0]:.80}")
    heads = HeadsSpec(
        kind="recurrent", taps=taps, hidden=spec.hidden, eps=spec.eps, steps=1, target=name, digest=digest,
        vocabulary=target.vocabulary, feeds="normed" if options.get("norm_output") else "residual",
        provenance={"checkpoint": str(folder)},
    )  # fmt: skip
    # the target bounds the text; a rope goes on beyond what a draft's config says it was trained for
    layer_spec = replace(spec, vocabulary=len(ids), tied=True, context=target.context)
    layer = next((own for own in weights.names() if "midlayer." in own), plain).partition("midlayer.")
    return ForeignHeads(
        heads, held_weights(folder, held), layer_spec, held_weights(folder, tensors), "".join(layer[:2]), wide=True,
        normed_residual=bool(options.get("norm_before_residual")),
    )  # fmt: skip


class _Parts:
    """Names of a checkpoint's tensors by the plain ones, "midlayer." for its layer; notes which were used."""

    def __init__(self, weights: Weights, names: Mapping[str, str]) -> None:
        self.weights = weights
        self.used: set[str] = set()
        self._names = names

    def name(self, plain: str) -> str:
        self.used.add(plain)
        return self._names.get(plain, plain)

    def __contains__(self, plain: str) -> bool:
        return plain in self._names


def _kinds(config: Mapping[str, Any]) -> list[str]:
    given = config.get("architectures")
    kinds = [*given] if isinstance(given, list) else []
    return [str(kind) for kind in (*kinds, config.get("speculators_model_type") or "")]


def _described(folder: Path, config: Mapping[str, Any]) -> tuple[DecoderSpec, dict[str, Any]]:
    """Return the layer's spec (its V is the target's) and the options of the heads, wherever they are written."""
    kinds = _kinds(config)
    if not any("eagle3" in kind.lower() for kind in kinds):
        raise DrafterError(f"{folder} holds heads of the kind {kinds[0]:.60}, and of EAGLE only EAGLE-3 is read")
    layer, nested = config.get("transformer_layer_config"), config.get("eagle_config")
    inner = layer if isinstance(layer, Mapping) else config
    if inner.get("num_hidden_layers") != 1:
        raise DrafterError(
            f"{folder} has {inner.get('num_hidden_layers')!s:.20} layers, and EAGLE-3 heads of one are read"
        )
    try:
        refuse({"quantization_config": config.get("quantization_config")})
        spec = read_spec({**inner, "tie_word_embeddings": False})
    except UnsupportedModel as error:
        raise DrafterError(f"{folder} cannot draft, because {error}") from error
    if spec.norm_position != "pre" or spec.fused:
        raise DrafterError(f"{folder} cannot draft, because its layer is of the family {spec.family}")
    return spec, {**(nested if isinstance(nested, Mapping) else {}), **config}


def _taps(folder: Path, config: Mapping[str, Any], target: DecoderSpec) -> tuple[int, ...]:
    """Return the layers whose outputs are read; -1 is the embedding.

    The authors' code and vLLM count by a layer's input, by default (2, L/2, L - 3), and so does what speculators write
    at the top of a config; ``eagle_config``, as SpecForge and SGLang have it, counts by a layer's output.
    """
    nested = config.get("eagle_config")
    outputs = nested.get(IDS) if isinstance(nested, Mapping) else None
    given = outputs or config.get(IDS) or [2, target.layers // 2, target.layers - 3]
    if not isinstance(given, list) or not all(type(tap) is int for tap in given):
        raise DrafterError(f"{folder}: {IDS} is {given!s:.60} where a list of layers is needed")
    taps = tuple(tap - (not outputs) for tap in given)
    if any(a >= b for a, b in pairwise(taps)) or not -1 <= taps[0] <= taps[-1] < target.layers:
        raise DrafterError(f"{folder} reads the outputs of layers {list(taps)}, and its target has {target.layers}")
    return taps


def _fusing(reader: _Parts, options: Mapping[str, Any], taps: int, wide: int, hidden: int) -> dict[str, NDArray[Any]]:
    """Return what joins the tapped layers' outputs, by our names."""
    weights = reader.weights
    held: dict[str, NDArray[Any]] = {"fuse.weight": take(weights, reader.name("fc.weight"), hidden, taps * wide)}
    if options.get("fc_norm"):
        each = [take_norm(weights, reader.name(f"fc_norm.{i}.weight"), wide) for i in range(taps)]
        held["fuse.norms"] = np.stack(each)
    if options.get("norm_before_fc"):
        held["fuse.norm"] = take_norm(weights, reader.name("input_norm.weight"), taps * wide)
    return held


def _vocabulary(reader: _Parts, options: Mapping[str, Any], vocabulary: int) -> NDArray[np.int32]:
    """Return the target's ids [Vd] of the draft's tokens. Raises WeightsError for a map that makes no sense."""
    weights, count = reader.weights, options.get("draft_vocab_size") or vocabulary
    if "d2t" not in reader and count == vocabulary:
        return np.arange(vocabulary, dtype=np.int32)
    name = reader.name("d2t")
    if weights.shape(name) != (count,) or weights.dtype(name) not in ("I32", "I64"):
        raise WeightsError(f"{weights.folder}: d2t is not a list of {count!s:.20} whole numbers")
    ids = weights.raw(name).astype(np.int64) + np.arange(count)
    if ids[0] < 0 or ids[-1] >= vocabulary or bool(np.any(np.diff(ids) <= 0)):
        raise WeightsError(f"{weights.folder}: d2t does not lead to increasing tokens below {vocabulary}")
    if "t2d" in reader:
        back = reader.name("t2d")
        fine = weights.shape(back) == (vocabulary,) and weights.dtype(back) in ("BOOL", "U8")
        if not fine or not np.array_equal(np.flatnonzero(weights.raw(back)), ids):
            raise WeightsError(f"{weights.folder}: t2d does not name the tokens that d2t leads to")
    return ids.astype(np.int32)

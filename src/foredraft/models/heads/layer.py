"""The one layer of heads as a decoder of its own, whose head has the rows of the heads' vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from foredraft.models.heads.file import EMBEDDING, HEAD, HeadsSpec
from foredraft.models.layout import PREFIX, output_head
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights, held_weights


def head_rows(weights: Weights, target: Weights, spec: DecoderSpec) -> tuple[NDArray[Any], str]:
    """Return the output head's rows [Vd, H] of the heads' vocabulary, and their type: their own, or the target's."""
    if HEAD in weights:
        return weights.raw(HEAD), weights.dtype(HEAD)
    name = output_head(target, spec)
    return target.rows(name, weights.raw("vocabulary")), target.dtype(name)


def block_spec(spec: HeadsSpec, target: DecoderSpec, tokens: int) -> DecoderSpec:
    """Return the block as a decoder of one layer with so many tokens, whose logits are scaled as the target's are."""
    return replace(
        spec.block(tokens), context=target.context, logits_cap=target.logits_cap, logits_divisor=target.logits_divisor
    )


def block_weights(weights: Weights, head: NDArray[Any]) -> Weights:
    """Return the tensors of ``layer_spec``. Its embedding is never read, so the head's rows stand for both."""
    tensors = {name: weights.raw(name) for name in weights.names() if name.startswith(PREFIX)}
    return held_weights(weights.folder, {EMBEDDING: head, **tensors})

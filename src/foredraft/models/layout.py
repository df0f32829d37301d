"""The tensors of a decoder."""

from __future__ import annotations

from collections.abc import Collection

from foredraft.errors import WeightsError
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights


def ignored(name: str, spec: DecoderSpec, prefix: str, modules: tuple[str, ...]) -> bool:
    """Say whether a decoder has no need of a tensor: an old buffer, a tied head's twin, another tower's.

    Nor has it any of ``modules``, what begins the names of MTP modules (``mtp_prefixes``).
    """
    twin = spec.tied and name.endswith("lm_head.weight")
    tower = spec.composite and not name.startswith(prefix)
    return twin or tower or name.startswith(modules) or name.endswith((".rotary_emb.inv_freq", ".masked_bias"))


def mtp_prefixes(weights: Weights, spec: DecoderSpec, prefix: str) -> tuple[str, ...]:
    """Return what begins the names of each module for multi-token prediction (MTP) beside a decoder, in order.

    DeepSeek-V3's are numbered after the decoder's own layers (README_WEIGHTS of that release); of Qwen3-Next's, "mtp."
    """
    found: list[str] = []
    while f"{prefix}layers.{spec.layers + len(found)}.eh_proj.weight" in weights:
        found.append(f"{prefix}layers.{spec.layers + len(found)}.")
    return (*found, "mtp.") if "mtp.fc.weight" in weights else tuple(found)


def decoder_prefix(names: Collection[str]) -> str:
    """Return what begins the names of a decoder's own tensors. An MTP module may bring an embedding of its own."""
    tail = "embed_tokens.weight"
    found = (name.removesuffix(tail) for name in names if name.endswith(tail) and not name.startswith("mtp."))
    return min(found, key=len, default="model.")


def output_head(weights: Weights, spec: DecoderSpec) -> str:
    """Return the name of a decoder's output head [V, H]; no tensor has it where there is no head."""
    tail = "embed_tokens.weight" if spec.tied else "lm_head.weight"
    own = f"{decoder_prefix(weights.names())}{tail}"
    return own if own in weights else next((name for name in weights.names() if name.endswith(tail)), own)


def refuse_unused(weights: Weights, used: Collection[str], spec: DecoderSpec, prefix: str) -> None:
    """Raise WeightsError for a tensor that a decoder would ignore: then it is not the model it claims to be.

    ``prefix`` begins the names of the decoder's own tensors; other towers of a composite model may lie beside it.
    """
    modules = mtp_prefixes(weights, spec, prefix)
    for name in weights.names():
        if name not in used and not ignored(name, spec, prefix, modules):
            raise WeightsError(f"{weights.folder}: a {spec.family} decoder has no use for {name}")

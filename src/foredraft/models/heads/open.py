"""Trained heads over a target: a block of one layer that goes on from what the target's own layers put out.

``H`` are the target's features, ``Vd`` the tokens that heads may guess, ``f`` the features of a position: the outputs
of the tapped layers, each normed, joined by one matrix; or the output of the only one. Position t of the block reads f
of position t and the token after it, and its logits are of the token after that; so a chain goes on with its own output
in the place of f (EAGLE-3, arXiv 2503.01840; the order of the halves is DeepSeek-V3's, arXiv 2412.19437). Medusa heads
(arXiv 2401.10774) are a residual layer each, and read f alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from foredraft.errors import DrafterError, NoHeads, WeightsError
from foredraft.models.capabilities import Layered, WithSpec
from foredraft.models.folder import ModelFolder
from foredraft.models.heads.eagle import is_eagle, read_eagle3
from foredraft.models.heads.file import HeadsSpec, check_target, find_heads, heads_file, packaged_heads, read_heads
from foredraft.models.heads.modules import EagleHeads, MedusaHeads, RecurrentHeads
from foredraft.models.heads.mtp import (
    CONFIG,
    LAYER,
    Found,
    damaged,
    foreign_module,
    read_config,
    read_mtp,
    read_mtp_folder,
)
from foredraft.models.identity import weights_digest
from foredraft.models.layout import output_head
from foredraft.models.model import Model
from foredraft.models.rope import Rope
from foredraft.models.runner import INSTALL, torch_installed
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights, held_weights
from foredraft.models.weights.floats import widened


def open_heads(
    which: str, model: Model, folder: ModelFolder | Path | None, cache: Path, name: str
) -> RecurrentHeads | MedusaHeads:
    """Return the heads for the target ``name``, loaded from ``folder``.

    ``which`` is a file of heads, a folder that holds one, an EAGLE-3 folder, or a copy of the target whose checkpoint
    holds an MTP module. Empty, it is what was trained here or came with Foredraft, else the target's own MTP module.
    Raises DrafterError where there are none, or they are another target's; WeightsError for a file that is damaged, and
    DamagedHeads where that is what was trained here, and what comes next would serve.
    """
    if folder is None or not isinstance(model, Layered) or not isinstance(model, WithSpec):
        why = None if folder is None else foreign_module(ModelFolder.of(folder))
        raise NoHeads(why or "drafter heads is not available for a model that runs through transformers' own module")
    own = model.spec
    theirs = ModelFolder.of(folder).weights
    digest = weights_digest(theirs, own)
    if which and (Path(which) / CONFIG).is_file():
        config = read_config(Path(which))
        if is_eagle(config):
            return _opened(read_eagle3(Path(which), config, own, theirs, name, digest), model)
        return _opened(read_mtp_folder(Path(which), config, own, name, digest), model)
    kept = heads_file(cache, digest)
    if not (which or kept.is_file() or packaged_heads(digest)) and (module := read_mtp(theirs, own, name, digest)):
        return _opened(module, model)
    path = find_heads(which, cache, digest, name)
    try:
        spec, weights = read_heads(path)
        check_target(path, spec, name, digest, own.vocabulary, own.hidden, own.layers)
    except (DrafterError, WeightsError) as fault:
        if which or path != kept:
            raise
        raise damaged(str(fault), theirs, own, digest) from fault
    head, dtype = head_rows(weights, theirs, own)
    if not spec.recurrent:
        return MedusaHeads(spec, weights, own, widened(head, dtype))
    return _opened(Found(spec, weights, block_spec(spec, own, len(head)), block_weights(weights, head), LAYER), model)


def _opened(found: Found, model: Model) -> RecurrentHeads:
    """Return heads that run beside a model. Raises WeightsError for a layer whose tensors are not its family's."""
    try:
        heads = _run_by(found, cast("Any", model))
    except WeightsError as fault:  # it was told our names of the layer's tensors
        raise WeightsError(str(fault).replace(LAYER, found.layer)) from fault
    heads.said = "; ".join(said for said in (found.said, heads.said) if said) or None
    return heads


def _run_by(found: Found, model: Any) -> RecurrentHeads:
    from foredraft.models.native.model import NativeModel

    spec, weights, block, tensors = found.spec, found.weights, found.block, found.tensors
    native = isinstance(model, NativeModel)
    if native and not found.wide:
        beside = NativeModel(block, tensors, "rounded" if model.dtype == "file" else model.dtype, beside=model)
        if "enter.embedding" in weights:  # the library's chain reads the target's
            return RecurrentHeads(spec, weights, model, beside)
        from foredraft.models.heads.native import NativeHeads

        return NativeHeads(spec, weights, model, beside)
    if native and not torch_installed():
        raise DrafterError(f"EAGLE-3 heads run in torch alone, which is not here: {INSTALL}")
    from foredraft.models.torch_decoder.decoder import DTYPES, TorchDecoder

    device = "cpu" if native else str(model.device)
    kind = _beside(model) if native else next(kind for kind, dtype in DTYPES.items() if dtype is model.dtype)
    if not found.wide:
        return RecurrentHeads(spec, weights, model, TorchDecoder(block, tensors, device, kind))
    from foredraft.models.torch_decoder.eagle import EagleDecoder

    eagle = EagleHeads(spec, weights, model, EagleDecoder(block, tensors, device, kind, found.normed_residual))
    if native:
        from foredraft.models.torch_decoder import runtime as torch_runtime

        torch_runtime.set_threads(model.threads)
        eagle.said = "EAGLE-3 heads run in torch, which is slower than the native pass beside them"
    return eagle


def _beside(model: Any) -> str:
    """Return the type of a block beside a native model: bf16 where the model runs the blocks of a file."""
    return "bf16" if model.dtype == "file" else str(model.dtype)


def head_rows(weights: Weights, target: Weights, spec: DecoderSpec) -> tuple[NDArray[Any], str]:
    """Return the output head's rows [Vd, H] of the heads' vocabulary, and their type: their own, or the target's."""
    if "lm_head.weight" in weights:
        return weights.raw("lm_head.weight"), weights.dtype("lm_head.weight")
    name = output_head(target, spec)
    return target.rows(name, weights.raw("vocabulary")), target.dtype(name)


def block_spec(spec: HeadsSpec, target: DecoderSpec, tokens: int) -> DecoderSpec:
    """Return the block as a decoder of one layer with so many tokens, whose logits are scaled as the target's are."""
    return DecoderSpec(
        family="llama", vocabulary=tokens, hidden=spec.hidden, layers=1, heads=spec.heads, kv_heads=spec.kv_heads,
        head_dim=spec.head_dim, mlp=spec.mlp, context=target.context, eps=spec.eps, norm="rms", places="pre",
        qk_norm="none", qkv_bias=False, o_bias=False, mlp_bias=False, fused=False,
        ropes=(Rope(spec.head_dim, spec.rope_theta),), windows=(0,), attention_scale=spec.head_dim**-0.5,
        attention_cap=0.0, logits_cap=target.logits_cap, activation=spec.activation, embedding_scale=1.0,
        embedding_rounded=False, residual_scale=1.0, logits_divisor=target.logits_divisor, tied=True, composite=False,
        eos=(),
    )  # fmt: skip


def block_weights(weights: Weights, head: NDArray[Any]) -> Weights:
    """Return the tensors of ``block_spec``. Its embedding is never read, so the head's rows stand for both."""
    tensors = {name: weights.raw(name) for name in weights.names() if name.startswith("model.")}
    return held_weights(weights.folder, {"model.embed_tokens.weight": head, **tensors})

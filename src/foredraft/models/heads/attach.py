"""Heads run beside a target: in the library, or in torch."""

from __future__ import annotations

from typing import Any, cast

from foredraft.errors import DrafterError, WeightsError
from foredraft.models.heads.modules import EagleHeads, RecurrentHeads
from foredraft.models.heads.mtp import LAYER, ForeignHeads
from foredraft.models.model import Model
from foredraft.models.runner import INSTALL, torch_installed


def attach(found: ForeignHeads, model: Model) -> RecurrentHeads:
    """Return heads that run beside a model. Raises WeightsError for a layer whose tensors are not its family's."""
    try:
        heads = _run_by(found, cast("Any", model))
    except WeightsError as error:  # it was told our names of the layer's tensors
        raise WeightsError(str(error).replace(LAYER, found.layer_prefix)) from error
    heads.note = "; ".join(said for said in (found.note, heads.note) if said) or None
    return heads


def _run_by(found: ForeignHeads, model: Any) -> RecurrentHeads:
    from foredraft.models.native.model import NativeModel

    spec, weights, block, tensors = found.spec, found.weights, found.layer_spec, found.tensors
    native = isinstance(model, NativeModel)
    if native and not found.wide:
        beside = NativeModel(block, tensors, "rounded" if model.dtype == "file" else model.dtype, share_with=model)
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
        eagle.note = "EAGLE-3 heads run in torch, which is slower than the native pass beside them"
    return eagle


def _beside(model: Any) -> str:
    """Return the type of a block beside a native model: bf16 where the model runs the blocks of a file."""
    return "bf16" if model.dtype == "file" else str(model.dtype)

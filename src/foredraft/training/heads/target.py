"""The target of a training: its tensors in torch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.errors import DrafterError
from foredraft.models.capabilities import WithSpec
from foredraft.models.identity import weights_digest
from foredraft.models.layout import EMBEDDING, LAST_NORM, decoder_prefix, output_head
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.training.heads.loss import Ends


def target_of(loaded: LoadedModel) -> tuple[DecoderSpec, Weights, str]:
    """Return a target's spec, weights and digest. Raises DrafterError where it has none of its own."""
    spec = loaded.target.model.spec if isinstance(loaded.target.model, WithSpec) else None
    if loaded.folder is None or spec is None:
        raise DrafterError(f"{loaded.name} runs through transformers' own module, for which nothing can be trained")
    weights = loaded.folder.weights
    return spec, weights, weights_digest(weights, spec)


def default_taps(layers: int) -> tuple[int, ...]:
    """Return a low, a middle and the last layer of so many."""
    return tuple(sorted({max(0, layers // 3 - 1), max(0, 2 * layers // 3 - 1), layers - 1}))


class TargetTensors:
    """A target's spec, weights and digest, and the layers that trainings tap.

    Raises DrafterError for a model whose weights are not to be had from a folder.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.spec, self.weights, self.digest = target_of(loaded)
        self.prefix = decoder_prefix(self.weights.names())
        self.taps = default_taps(self.spec.layers)

    def ends(self, ids: NDArray[np.int32]) -> Ends:
        """Return the target's embedding and its head's rows of ``ids``."""
        embedding = self.tensor(f"{self.prefix}{EMBEDDING}.weight").bfloat16()
        head = (
            self.tensor(output_head(self.weights, self.spec))[torch.from_numpy(ids.astype(np.int64))]
            .bfloat16()
            .contiguous()
        )
        spec = self.spec
        return Ends(embedding, head, spec.embedding_scale, spec.logits_divisor, spec.logits_cap)

    def last_norm(self) -> Tensor:
        """Return the weights [H] of the target's last norm."""
        return self.tensor(f"{self.prefix}{LAST_NORM}.weight").float() + (self.spec.norm == "unit")

    def tensor(self, name: str) -> Tensor:
        """Return a tensor of the target, in its own type."""
        raw = np.array(self.weights.raw(name))
        if self.weights.dtype(name) == "BF16":
            return torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(raw)

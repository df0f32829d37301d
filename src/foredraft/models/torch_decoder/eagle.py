"""The layer of EAGLE-3 heads in torch: attention that reads embedding and features side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.models.layout import by_part, eagle_tensors
from foredraft.models.spec import DecoderSpec
from foredraft.models.torch_decoder.attention import Seat
from foredraft.models.torch_decoder.decoder import TorchDecoder
from foredraft.models.torch_decoder.layers import Layer, Reader
from foredraft.models.weights.base import Weights


class EagleLayer(Layer):
    """A layer whose rows enter as [R, 2H], the token's embedding and then the features, and leave as [R, H]."""

    def __init__(self, reader: Reader, number: int, prefix: str, normed_residual: bool) -> None:
        slots = list(eagle_tensors(reader.spec, number, prefix))
        super().__init__(reader, number, slots)
        self.features_norm = reader.norm(by_part(slots)["features_norm"])
        self.normed_residual = normed_residual

    def attend(self, x: Tensor, turn: tuple[Tensor, Tensor] | None, seats: Sequence[Seat]) -> Tensor:
        """Run the attention: [R, 2H] -> [R, H]; see Layer."""
        embedding, features = x[:, : self.spec.hidden], x[:, self.spec.hidden :]
        normed = self.features_norm(features)
        embedding = embedding if self.before_attention is None else self.before_attention(embedding)
        h = self.o(self._attention(self.qkv(torch.cat((embedding, normed), -1)), turn, seats))
        return self._add(normed if self.normed_residual else features, h, self.after_attention)


class EagleDecoder(TorchDecoder):
    """Such a layer as a model of its own, whose ``hidden`` rows are [rows, 2H]; raises as TorchDecoder does."""

    def __init__(self, spec: DecoderSpec, weights: Weights, device: str, dtype: str, normed_residual: bool) -> None:
        self._normed_residual = normed_residual
        super().__init__(spec, weights, device, dtype)

    def _layer(self, reader: Reader, number: int, prefix: str) -> Layer:
        return EagleLayer(reader, number, prefix, self._normed_residual)

"""One layer of a dense decoder in torch: its weights, fused as they are read, and its arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from foredraft.models.layout import TensorSlot, by_part, refuse_unused, require
from foredraft.models.spec import DecoderSpec
from foredraft.models.torch_decoder.attention import Seat, attend
from foredraft.models.weights.base import Weights


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight [out, in] and, where there is one, its bias [out]."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """[R, in] -> [R, out]."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square norm over the last axis (Zhang and Sennrich 2019, arXiv 1910.07467).

    ``wide``: the weight multiplies in float32, before rounding to the model's type, as the family was trained.
    """

    weight: Tensor
    eps: float
    wide: bool

    def __call__(self, x: Tensor) -> Tensor:
        """[..., n] -> [..., n], each row by itself."""
        shape = self.weight.shape[-1:]
        if self.wide:
            return (F.rms_norm(x.to(self.weight.dtype), shape, None, self.eps) * self.weight).to(x.dtype)
        if self.weight.ndim == 1:
            return F.rms_norm(x, shape, self.weight, self.eps)
        return F.rms_norm(x, shape, None, self.eps) * self.weight


class Reader:
    """Hands out a checkpoint's tensors, checked against the shapes the spec implies, and notes which were used."""

    def __init__(self, weights: Weights, spec: DecoderSpec, device: torch.device, dtype: torch.dtype) -> None:
        self.weights = weights
        self.spec = spec
        self.device = device
        self.dtype = dtype
        self._used: set[str] = set()

    def rows(self, slots: Sequence[TensorSlot], dtype: torch.dtype | None = None) -> Tensor:
        """Return what belongs to slots of one width, one below the other: [sum of rows, *tail].

        Raises WeightsError naming a tensor that is missing, of another shape or no float.
        """
        counts = [slot.rows for slot in slots]
        whole = torch.empty((sum(counts), *slots[0].shape[1:]), dtype=dtype or self.dtype, device=self.device)
        places = zip(torch.split(whole, counts), slots, strict=True)
        for name, group in groupby(places, key=lambda place: place[1].name):  # what several share is read once
            self._fill(list(group))
            self._used.add(name)
        return whole

    def linear(self, parts: Mapping[str, Sequence[TensorSlot]], *names: str) -> Linear:
        """Return the weights and biases of parts of a layer, fused."""
        weight = self.rows([slot for name in names for slot in parts[name]])
        biases = [slot for name in names for slot in parts.get(f"{name}_bias", ())]
        return Linear(weight, self.rows(biases) if biases else None)

    def norm(self, slots: Sequence[TensorSlot]) -> Norm:
        """Return the norm of a part."""
        return self._norm(self.rows(slots, self._norm_type()))

    def norm_heads(self, query: Sequence[TensorSlot], key: Sequence[TensorSlot]) -> Norm:
        """Return one norm for all heads of q and then k, over each head: weights [heads + kv_heads, head_dim]."""
        pair = self.rows([*query, *key], self._norm_type()).view(2, 1, -1)
        return self._norm(torch.cat([pair[0].expand(self.spec.heads, -1), pair[1].expand(self.spec.kv_heads, -1)]))

    def refuse_unused(self, prefix: str) -> None:
        """Refuse tensors that nobody asked for; see ``layout.refuse_unused``."""
        refuse_unused(self.weights, self._used, self.spec, prefix)

    def _norm(self, weight: Tensor) -> Norm:
        if self.spec.norm == "unit":
            weight = weight + 1
        return Norm(weight, self.spec.eps, self.spec.norm != "rms" and weight.dtype != self.dtype)

    def _norm_type(self) -> torch.dtype:
        wide = self.spec.norm != "rms" and self.dtype is torch.bfloat16
        return torch.float32 if wide else self.dtype

    def _fill(self, places: Sequence[tuple[Tensor, TensorSlot]]) -> None:
        """Copy what belongs to slots of one tensor into their places."""
        view = self._view(places[0][1])
        for place, slot in places:
            place.copy_(view[slot.start : slot.stop])

    def _view(self, slot: TensorSlot) -> Tensor:
        """Return the whole tensor that a slot is of."""
        require(self.weights, slot.name, slot.shape)
        raw = self.weights.raw(slot.name)
        if self.weights.dtype(slot.name) == "BF16":
            return torch.from_numpy(raw.view("<i2")).view(torch.bfloat16)
        return torch.from_numpy(raw)


class Layer:
    """One decoder layer: attention over a slot cache, then the MLP, each with its norms and residual.

    ``slots`` are its tensors: see ``layout.layer_tensors``.
    """

    def __init__(self, reader: Reader, number: int, slots: Iterable[TensorSlot]) -> None:
        spec, parts = reader.spec, by_part(slots)
        self.spec = spec
        self.number = number
        self.qkv = reader.linear(parts, "qkv")
        self.o = reader.linear(parts, "o")
        self.gate_up = reader.linear(parts, "gate", "up")
        self.down = reader.linear(parts, "down")

        def norm(part: str) -> Norm | None:
            return reader.norm(parts[part]) if part in parts else None

        self.before_attention = norm("before_attention")
        self.after_attention = norm("after_attention")
        self.before_mlp = norm("before_mlp")
        self.after_mlp = norm("after_mlp")
        by_head, full = spec.qk_norm == "head", spec.qk_norm == "full"
        self.head_norm = reader.norm_heads(parts["q_norm"], parts["k_norm"]) if by_head else None
        self.full_norms = (reader.norm(parts["q_norm"]), reader.norm(parts["k_norm"])) if full else None

    def attend(self, x: Tensor, turn: tuple[Tensor, Tensor] | None, seats: Sequence[Seat]) -> Tensor:
        """Run the attention: [R, H] -> [R, H]. ``turn`` are the cosines and sines [R, 1, dim] of each row's position.

        Effects: writes the rows' keys and values into their seats.
        """
        h = x if self.before_attention is None else self.before_attention(x)
        h = self.o(self._attention(self.qkv(h), turn, seats))
        return self._add(x, h, self.after_attention)

    def mlp(self, x: Tensor) -> Tensor:
        """Run the MLP: [R, H] -> [R, H]."""
        h = x if self.before_mlp is None else self.before_mlp(x)
        gate, up = self.gate_up(h).chunk(2, -1)
        gate = F.silu(gate) if self.spec.activation == "silu" else F.gelu(gate, approximate="tanh")
        return self._add(x, self.down(gate.mul_(up)), self.after_mlp)

    def _add(self, x: Tensor, h: Tensor, norm: Norm | None) -> Tensor:
        h = h if norm is None else norm(h)
        return x + h if self.spec.residual_scale == 1.0 else x + h * self.spec.residual_scale

    def _attention(self, qkv: Tensor, turn: tuple[Tensor, Tensor] | None, seats: Sequence[Seat]) -> Tensor:
        spec = self.spec
        if self.full_norms is not None:
            q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
            qkv[:, :q] = self.full_norms[0](qkv[:, :q])
            qkv[:, q : q + kv] = self.full_norms[1](qkv[:, q : q + kv])
        heads = qkv.view(qkv.shape[0], spec.heads + 2 * spec.kv_heads, spec.head_dim)
        turned = heads[:, : spec.heads + spec.kv_heads]
        if self.head_norm is not None:
            turned.copy_(self.head_norm(turned))
        if turn is not None:
            _rotate(turned, *turn)
        if len(seats) == 1:
            return attend(spec, seats[0], self.number, heads)
        return torch.cat([attend(spec, seat, self.number, heads[seat.first : seat.stop]) for seat in seats])


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn the first features of each head [R, heads, head_dim] in place; the first half's sines come negated."""
    x = x[..., : cos.shape[-1]]
    swapped = torch.roll(x, cos.shape[-1] // 2, -1)
    x.mul_(cos).addcmul_(swapped, sin)

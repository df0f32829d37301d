"""One layer of a dense decoder in torch: its weights, fused as they are read, and its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from foredraft.errors import WeightsError
from foredraft.models.layout import refuse_unused
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

    def fused(self, names: Sequence[str], rows: Sequence[int], *tail: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return tensors of shape [rows[i], *tail] one below the other: [sum of rows, *tail].

        Raises WeightsError naming a tensor that is missing, of another shape or no float.
        """
        whole = torch.empty((sum(rows), *tail), dtype=dtype or self.dtype, device=self.device)
        for part, name, n in zip(torch.split(whole, list(rows)), names, rows, strict=True):
            if self.weights.shape(name) != (n, *tail):
                raise WeightsError(
                    f"{self.weights.folder}: {name} has the shape {list(self.weights.shape(name))} where "
                    f"config.json implies {[n, *tail]}"
                )
            part.copy_(self._view(name))
            self._used.add(name)
        return whole

    def linear(self, names: Sequence[str], rows: Sequence[int], width: int, bias: bool) -> Linear:
        """Return fused weights and biases of the modules ``names``."""
        weight = self.fused([f"{name}.weight" for name in names], rows, width)
        return Linear(weight, self.fused([f"{name}.bias" for name in names], rows) if bias else None)

    def norm(self, name: str, width: int) -> Norm:
        """Return a norm over ``width`` features."""
        return self._norm(self.fused([name], [width], dtype=self._norm_type()))

    def norm_heads(self, query: str, key: str) -> Norm:
        """Return one norm for all heads of q and then k, over each head: weights [heads + kv_heads, head_dim]."""
        spec = self.spec
        pair = self.fused([query, key], [spec.head_dim] * 2, dtype=self._norm_type()).view(2, 1, spec.head_dim)
        return self._norm(torch.cat([pair[0].expand(spec.heads, -1), pair[1].expand(spec.kv_heads, -1)]))

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

    def _view(self, name: str) -> Tensor:
        raw = self.weights.raw(name)
        kind = self.weights.dtype(name)
        if kind == "BF16":
            return torch.from_numpy(raw.view("<i2")).view(torch.bfloat16)
        if kind not in ("F16", "F32", "F64"):
            raise WeightsError(f"{self.weights.folder}: {name} is {kind}, and only 16, 32 and 64 bit floats are read")
        return torch.from_numpy(raw)


class Layer:
    """One decoder layer: attention over a slot cache, then the gated layer, each with its norms and residual.

    ``width`` is how many features its attention reads; 0: as many as there are.
    """

    def __init__(self, reader: Reader, number: int, prefix: str, width: int = 0) -> None:
        spec = reader.spec
        at = f"{prefix}layers.{number}."
        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        self.spec = spec
        self.number = number
        attention, gated = f"{at}self_attn.", f"{at}mlp."
        qkv, gate_up = ["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]
        rows, wide = [q, kv, kv], [spec.mlp, spec.mlp]
        if spec.fused:
            qkv, gate_up, rows, wide = ["qkv_proj"], ["gate_up_proj"], [sum(rows)], [sum(wide)]
        self.qkv = reader.linear([attention + name for name in qkv], rows, width or spec.hidden, spec.qkv_bias)
        self.o = reader.linear([f"{attention}o_proj"], [spec.hidden], q, spec.o_bias)
        self.gate_up = reader.linear([gated + name for name in gate_up], wide, spec.hidden, spec.mlp_bias)
        self.down = reader.linear([f"{gated}down_proj"], [spec.hidden], spec.mlp, spec.mlp_bias)
        before = spec.places in ("pre", "sandwich")
        after = spec.places in ("post", "sandwich")
        middle = "pre_feedforward_layernorm" if after else "post_attention_layernorm"

        def norm(name: str, wanted: bool) -> Norm | None:
            return reader.norm(f"{at}{name}.weight", spec.hidden) if wanted else None

        self.before_attention = norm("input_layernorm", before)
        self.after_attention = norm("post_attention_layernorm", after)
        self.before_gated = norm(middle, before)
        self.after_gated = norm("post_feedforward_layernorm", after)
        q_norm, k_norm = f"{attention}q_norm.weight", f"{attention}k_norm.weight"
        self.head_norm = reader.norm_heads(q_norm, k_norm) if spec.qk_norm == "head" else None
        full = spec.qk_norm == "full"
        self.full_norms = (reader.norm(q_norm, q), reader.norm(k_norm, kv)) if full else None

    def attend(self, x: Tensor, turn: tuple[Tensor, Tensor] | None, seats: Sequence[Seat]) -> Tensor:
        """Run the attention: [R, H] -> [R, H]. ``turn`` are the cosines and sines [R, 1, dim] of each row's position.

        Effects: writes the rows' keys and values into their seats.
        """
        h = x if self.before_attention is None else self.before_attention(x)
        h = self.o(self._attention(self.qkv(h), turn, seats))
        return self._add(x, h, self.after_attention)

    def gate(self, x: Tensor) -> Tensor:
        """Run the gated layer: [R, H] -> [R, H]."""
        h = x if self.before_gated is None else self.before_gated(x)
        h = self.gate_up(h)
        gate, up = h[:, : self.spec.mlp], h[:, self.spec.mlp :]
        gate = F.silu(gate) if self.spec.activation == "silu" else F.gelu(gate, approximate="tanh")
        return self._add(x, self.down(gate.mul_(up)), self.after_gated)

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

"""The heads as a torch module, for training: the same numbers as the runtime's, over whole texts and with gradients.

One recurrent module in the manner of EAGLE-3 (arXiv 2503.01840) and DeepSeek-V3's multi-token prediction (arXiv
2412.19437, equations 21 to 23), unrolled over its own states while it is trained ("training-time test"). Shapes:

    B   texts in a batch
    L   rows of a text: row t holds the target's states at token t and the token t + 1, and foretells token t + 2
    H   width of the target's states
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foredraft.models import layout
from foredraft.models.rope import Rope, tables


@dataclass(frozen=True, slots=True)
class HeadsShape:
    """The sizes of a module, and how its heads turn with the position."""

    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    taps: int
    eps: float
    rope: Rope


class Guesser(Protocol):
    """What is trained: a module whose states the target's own head reads.

    ``reads`` says whether it reads the target's states, ``steps`` how many steps it can take (None: any). One that
    takes a single step foretells from tokens alone, so a draft of any length is that step at one row after another.
    """

    reads: bool
    steps: int | None
    norm: Norm  # the last, before the head

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield what is trained."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield it with its names."""
        ...

    def unrolled(self, states: Tensor, embeddings: Tensor, steps: int) -> list[Tensor]:
        """Return what the head reads [B, L, H] at each of the first ``steps`` steps.

        ``states`` are [B, L, taps, H], ``embeddings`` [B, L + 1, H] those of each row's own token and of the one after
        the last row. Row t of a step foretells token t + 2; of step j the first j rows are void.
        """
        ...


class Norm(nn.Module):
    """RMSNorm, in float32 whatever comes in."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` [..., width] with a mean square of 1, times the weight."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


Biases = tuple[bool, bool, bool]  # of queries, keys and values; of what attention puts out; of the MLP


class Block(nn.Module):
    """A decoder block: attention over the rows before, then an MLP, each with a norm before it."""

    def __init__(self, shape: HeadsShape, biases: Biases = (False, False, False)) -> None:
        super().__init__()
        self.shape = shape
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        of_qkv, of_o, of_gated = biases
        self.before_attention = Norm(shape.hidden, shape.eps)
        self.before_gated = Norm(shape.hidden, shape.eps)
        self.qkv = nn.Linear(shape.hidden, q + 2 * kv, bias=of_qkv)
        self.o = nn.Linear(q, shape.hidden, bias=of_o)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.mlp, bias=of_gated)
        self.down = nn.Linear(shape.mlp, shape.hidden, bias=of_gated)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, heads, L, D], keys and values [B, kv_heads, L, D], turned to their positions."""
        s = self.shape
        made = self.qkv(self.before_attention(x).to(torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype))
        made = made.unflatten(-1, (s.heads + 2 * s.kv_heads, s.head_dim)).transpose(1, 2)  # [B, heads, L, D]
        q, k, v = made.split([s.heads, s.kv_heads, s.kv_heads], 1)
        return _turned(q, cos, sin), _turned(k, cos, sin), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the residual [B, L, H] after both halves; ``attended`` is [B, heads, L, D]."""
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.before_gated(x)).chunk(2, -1)
        return cast("Tensor", x + self.down(F.silu(gate) * up))

    def named(self, before: str) -> dict[str, Tensor]:
        """Return its weights by the names that Llama's layers have, ``before`` in front of each: views of its own."""
        q, kv = self.shape.heads * self.shape.head_dim, self.shape.kv_heads * self.shape.head_dim
        sizes = {
            (layout.QUERY, layout.KEY, layout.VALUE): (self.qkv, [q, kv, kv]),
            (layout.OUTPUT,): (self.o, [self.shape.hidden]),
            (layout.GATE, layout.UP): (self.gate_up, [self.shape.mlp] * 2),
            (layout.DOWN,): (self.down, [self.shape.hidden]),
        }
        made = {
            f"{before}{layout.INPUT_NORM}.weight": cast("Tensor", self.before_attention.weight),
            f"{before}{layout.POST_ATTENTION_NORM}.weight": cast("Tensor", self.before_gated.weight),
        }
        for names, (linear, rows) in sizes.items():
            for kind, whole in linear.named_parameters():
                parts = torch.split(whole, rows)
                made |= {f"{before}{name}.{kind}": part for name, part in zip(names, parts, strict=True)}
        return made


class RecurrentHeads(nn.Module):
    """The recurrent module: fused states and a token in, a state out from which the target's head reads a law."""

    reads = True
    steps: int | None = None

    def __init__(self, shape: HeadsShape) -> None:
        super().__init__()
        self.shape = shape
        h = shape.hidden
        self.fuse_norms = nn.ModuleList(Norm(h, shape.eps) for _ in range(shape.taps))
        self.fuse = nn.Linear(shape.taps * h, h, bias=False)
        self.embedding_norm = Norm(h, shape.eps)
        self.hidden_norm = Norm(h, shape.eps)
        self.enter = nn.Linear(2 * h, h, bias=False)
        self.block = Block(shape)
        self.norm = Norm(h, shape.eps)

    def fused(self, states: Tensor) -> Tensor:
        """Return f [B, L, H] of the tapped states [B, L, taps, H]."""
        parts = [norm(states[:, :, i]) for i, norm in enumerate(self.fuse_norms)]
        return cast("Tensor", self.fuse(torch.cat(parts, -1)))

    def unrolled(self, states: Tensor, embeddings: Tensor, steps: int) -> list[Tensor]:
        """Return the states s of each of ``steps`` steps; see ``Guesser``.

        At step j a row takes the state that step j - 1 put out one row earlier, and sees what a draft of that length
        would see: the true rows up to where it began, then its own.
        """
        length = states.shape[1]
        cos, sin = turns(length, self.shape.rope)
        told = self.embedding_norm(embeddings[:, 1:])
        state = self.fused(states)
        first: tuple[Tensor, Tensor] | None = None
        own: list[tuple[Tensor, Tensor]] = []
        out = []
        for step in range(steps):
            if step:
                state = F.pad(state[:, :-1], (0, 0, 1, 0))
            x = self.enter(torch.cat([told.to(state.dtype), self.hidden_norm(state).to(state.dtype)], -1))
            q, k, v = self.block.project(x, cos, sin)
            if first is None:
                first = k, v
            else:
                own.append((k, v))
            r = self.block.finish(x, attend(q, first, own))
            state = self.norm(r)
            out.append(state)
        return out


class MedusaHeads(nn.Module):
    """Independent heads (Medusa, arXiv 2401.10774): the i-th foretells i + 1 tokens on, from the same fused state."""

    reads = True

    def __init__(self, shape: HeadsShape, count: int) -> None:
        super().__init__()
        self.steps: int | None = count
        self.shape = shape
        self.fuse_norms = nn.ModuleList(Norm(shape.hidden, shape.eps) for _ in range(shape.taps))
        self.fuse = nn.Linear(shape.taps * shape.hidden, shape.hidden, bias=False)
        self.heads = nn.ModuleList(nn.Linear(shape.hidden, shape.hidden, bias=False) for _ in range(count))
        self.norm = Norm(shape.hidden, shape.eps)

    def unrolled(self, states: Tensor, embeddings: Tensor, steps: int) -> list[Tensor]:  # noqa: ARG002 - reads no token
        """Return the states of the first ``steps`` heads, each laid at the row whose token it foretells."""
        parts = [norm(states[:, :, i]) for i, norm in enumerate(self.fuse_norms)]
        fused = self.fuse(torch.cat(parts, -1))
        out = []
        for step, head in enumerate(list(self.heads)[:steps]):
            state: Tensor = self.norm(F.silu(head(fused)) + fused)
            out.append(F.pad(state[:, : state.shape[1] - step], (0, 0, step, 0)))
        return out


def attend(q: Tensor, first: tuple[Tensor, Tensor], own: Sequence[tuple[Tensor, Tensor]] = ()) -> Tensor:
    """Return what queries [B, heads, L, D] see after so many own rows as ``own`` has: [B, heads, L, D]."""
    group = q.shape[1] // first[0].shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in first)
    if not own:
        return F.scaled_dot_product_attention(q, keys, values, is_causal=True)
    length, steps = q.shape[2], len(own)
    scores = q @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1])  # [B, heads, L, L]
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).tril(-steps).logical_not()
    scores = scores.masked_fill(hidden, -math.inf)
    beside, theirs = [], []
    for i, (k, v) in enumerate(own, 1):  # step i's row for the place steps - i before
        back = steps - i
        k, v = (F.pad(x, (0, 0, back, 0))[:, :, : x.shape[2]].repeat_interleave(group, 1) for x in (k, v))
        beside.append((q * k).sum(-1, keepdim=True) / math.sqrt(q.shape[-1]))
        theirs.append(v)
    weights = torch.cat([scores.float(), torch.cat(beside, -1).float()], -1).softmax(-1).to(q.dtype)
    attended = weights[..., :length] @ values
    for i, v in enumerate(theirs):
        attended = attended + weights[..., length + i : length + i + 1] * v
    return attended


def turns(length: int, rope: Rope) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [L, D] of so many positions; see ``models.rope.tables``."""
    cos, sin = (torch.from_numpy(table) for table in tables(rope, 0, length))
    return cos, sin


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return (x * cos + torch.cat([x[..., half:], x[..., :half]], -1) * sin).to(x.dtype)

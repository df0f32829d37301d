"""Attention of one sequence's rows over its slot, in torch, so that a row's bits do not hang on its company.

Matrix products round differently for different numbers of rows. So on the CPU few rows are computed in tiles of always
``TILE`` (the last one filled up), over keys in blocks of always ``KEYS``, and each sequence by itself: a row of a chain
then comes out the same to the bit alone, beside others, or in a batch. Many rows (a prompt) are one plain product.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from foredraft.models.model import Rows
from foredraft.models.spec import DecoderSpec

TILE: Final = 4  # measured: two cost a third more for one row, eight cost two thirds more over a long context
KEYS: Final = 64
FEW: Final = 32  # rows that are still computed in tiles
NEVER: Final = -1e30  # finite, so that a block of keys that a row sees nothing of stays free of NaN


@dataclass(slots=True)
class Seat:
    """Where one sequence's rows of a pass sit: rows ``first`` up to ``stop`` of it, and their views of the slot."""

    first: int
    stop: int
    tiles: int  # of TILE rows; 0: one plain product
    writes: tuple[Tensor, ...]  # [layers] of [2, kv_heads, n, head_dim]
    keys: tuple[Tensor, ...]  # [layers] of [kv_heads, L, head_dim], L rounded up to KEYS
    values: tuple[Tensor, ...]
    bias: dict[int, Tensor] = field(default_factory=dict)  # by window: what is added to the scores of unseen keys


def seat(spec: DecoderSpec, rows: Rows, first: int, slot: Tensor, positions: NDArray[np.int64]) -> Seat:
    """Prepare a pass of ``rows`` over ``slot`` [layers, 2, kv_heads, capacity, head_dim], which has the room."""
    n = len(rows.tokens)
    length = -(-(rows.start + n) // KEYS) * KEYS
    tiles = -(-n // TILE) if slot.device.type == "cpu" and n <= FEW and not spec.attention_cap else 0
    keys, values = slot[:, :, :, :length].unbind(1)
    writes = slot[:, :, :, rows.start : rows.start + n].unbind(0)
    here = Seat(first, first + n, tiles, writes, keys.unbind(0), values.unbind(0))
    seen = _seen(rows, length)
    for window in set(spec.windows):
        allowed = seen & _near(rows, positions, length, window) if window else seen
        here.bias[window] = _as_bias(allowed, spec, tiles, slot)
    return here


def _seen(rows: Rows, length: int) -> NDArray[np.bool_]:
    """Which keys each row sees: those before the pass, its ancestors, itself: [n, length]."""
    n = len(rows.tokens)
    seen = np.zeros((n, length), np.bool_)
    seen[:, : rows.start] = True
    among = seen[:, rows.start : rows.start + n]
    if rows.parents == tuple(range(-1, n - 1)):
        among[:] = np.tri(n, dtype=np.bool_)
        return seen
    for row, parent in enumerate(rows.parents):
        if parent >= 0:
            among[row] = among[parent]
        among[row, row] = True
    return seen


def _near(rows: Rows, positions: NDArray[np.int64], length: int, window: int) -> NDArray[np.bool_]:
    """Which keys lie within each row's window: [n, length]."""
    at = np.arange(length)
    at[rows.start : rows.start + len(positions)] = positions
    return positions[:, None] - at[None, :] < window


def _as_bias(allowed: NDArray[np.bool_], spec: DecoderSpec, tiles: int, like: Tensor) -> Tensor:
    n, length = allowed.shape
    rows = tiles * TILE or n
    bias = np.zeros((rows, length), np.float32)
    bias[:n][~allowed] = NEVER
    made = torch.from_numpy(bias).to(like.device, like.dtype)
    if not tiles:
        return made  # [n, L]
    group = spec.heads // spec.kv_heads
    return made.view(tiles, 1, 1, TILE, length).expand(-1, -1, group, -1, -1).reshape(tiles, 1, group * TILE, length)


def attend(spec: DecoderSpec, here: Seat, layer: int, heads: Tensor) -> Tensor:
    """Write a sequence's keys and values, and return what its rows gather: [n, heads * head_dim].

    ``heads`` [>= n, heads + 2 kv_heads, head_dim] holds q, k and v of its rows, turned, from the first on.
    """
    n = here.stop - here.first
    group = spec.heads // spec.kv_heads
    kv = heads[:n, spec.heads :].view(n, 2, spec.kv_heads, spec.head_dim)
    here.writes[layer].copy_(kv.permute(1, 2, 0, 3))
    q = heads[:n, : spec.heads]
    keys, values, bias = here.keys[layer], here.values[layer], here.bias[spec.windows[layer]]
    if here.tiles:
        return _tiled(spec, q, keys, values, bias)
    q = q.view(n, spec.kv_heads, group, spec.head_dim).permute(1, 2, 0, 3)  # [kv, group, n, D]
    keys, values = keys[:, None].expand(-1, group, -1, -1), values[:, None].expand(-1, group, -1, -1)
    if spec.attention_cap:
        gathered = _capped(spec, q, keys, values, bias)
    else:
        gathered = F.scaled_dot_product_attention(q, keys, values, bias, scale=spec.attention_scale)
    return gathered.permute(2, 0, 1, 3).reshape(n, spec.heads * spec.head_dim)


def _tiled(spec: DecoderSpec, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attend in tiles: the heads that share a key and the TILE rows of a tile are the rows of one product."""
    n, tiles = q.shape[0], bias.shape[0]
    group = spec.heads // spec.kv_heads
    if n < tiles * TILE:
        q = F.pad(q, (0, 0, 0, 0, 0, tiles * TILE - n))
    q = q.view(tiles, TILE, spec.kv_heads, group, spec.head_dim).permute(0, 2, 3, 1, 4)
    q = q.reshape(tiles, spec.kv_heads, group * TILE, spec.head_dim)
    keys, values = keys[None].expand(tiles, -1, -1, -1), values[None].expand(tiles, -1, -1, -1)
    gathered = F.scaled_dot_product_attention(q, keys, values, bias, scale=spec.attention_scale)
    gathered = gathered.view(tiles, spec.kv_heads, group, TILE, spec.head_dim).permute(0, 3, 1, 2, 4)
    return gathered.reshape(tiles * TILE, spec.heads * spec.head_dim)[:n]


def _capped(spec: DecoderSpec, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attention whose scores are squeezed into ±cap by a tanh, as the fused product cannot (Gemma 2)."""
    scores = torch.matmul(q, keys.transpose(-1, -2)).mul_(spec.attention_scale / spec.attention_cap)
    scores = scores.tanh_().mul_(spec.attention_cap).add_(bias)
    wide = torch.float32 if scores.dtype is torch.bfloat16 else scores.dtype
    return torch.matmul(torch.softmax(scores, -1, dtype=wide).to(q.dtype), values)

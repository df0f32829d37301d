"""A dense decoder in torch, driven by its spec: the forward pass of every family in the table."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from foredraft.core.draft import Scored
from foredraft.core.law import Array
from foredraft.errors import ModelError, OptionError
from foredraft.models.layout import by_part, decoder_prefix, head_of, layer_tensors, outer_tensors, output_head
from foredraft.models.model import Rows, wanted_rows
from foredraft.models.rope import Rope, tables
from foredraft.models.spec import DecoderSpec
from foredraft.models.torch_decoder.attention import KEYS, Seat, seat
from foredraft.models.torch_decoder.layers import Layer, Linear, Reader
from foredraft.models.weights.base import Weights

DTYPES: Final = {"bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
FIRST_ROOM: Final = 4 * KEYS  # tokens a fresh slot has room for; it doubles when full


class TorchDecoder:
    """The Model protocol over torch: many sequences of ragged lengths, trees of rows, on the CPU or a GPU.

    Loads the weights at once, tensor by tensor: the peak is the model and one tensor. Raises WeightsError naming a
    tensor that is missing, unexpected or of the wrong shape, OptionError for a dtype other than bf16, f32 and f64.
    """

    rewindable = True
    why_not_rewindable = ""

    def __init__(self, spec: DecoderSpec, weights: Weights, device: str = "cpu", dtype: str = "bf16") -> None:
        if dtype not in DTYPES:
            raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
        self.spec = spec
        self.device = torch.device(device)
        self.dtype = DTYPES[dtype]
        self.vocabulary = spec.vocabulary
        self.context = spec.context
        self.layers = spec.layers
        # one row takes another path through torch's bfloat16 product, with other roundings; two rows cost no more
        self._in_pairs = self.device.type == "cpu" and self.dtype is torch.bfloat16
        self._subsets: list[Linear] = []  # the head's rows of some tokens
        self._slots: dict[int, Tensor] = {}  # slot -> [layers, 2, kv_heads, room, head_dim]
        self._turns: dict[Rope, tuple[Tensor, Tensor]] = {}  # rope -> cosines and sines [room, 1, dim]
        with torch.inference_mode():
            self._load(Reader(weights, spec, self.device, self.dtype))

    def _load(self, reader: Reader) -> None:
        spec, weights = self.spec, reader.weights
        prefix = decoder_prefix(weights.names())
        outer = by_part(outer_tensors(spec, prefix, output_head(weights, spec)))
        self._embedding = reader.rows(outer["head" if spec.tied else "embedding"])
        self._layers = [self._layer(reader, number, prefix) for number in range(spec.layers)]
        self._norm = reader.norm(outer["norm"])
        head_of(weights, spec)
        self._head = Linear(self._embedding if spec.tied else reader.rows(outer["head"]))
        reader.refuse_unused(prefix)
        scale = torch.tensor(spec.embedding_scale, dtype=torch.float32)
        self._embedding_scale = float(scale.to(self.dtype)) if spec.embedding_rounded else spec.embedding_scale

    def _layer(self, reader: Reader, number: int, prefix: str) -> Layer:
        return Layer(reader, number, layer_tensors(reader.spec, number, prefix))

    def forward(self, rows: Sequence[Rows], taps: tuple[int, ...] = (), *, logits: bool = True) -> Scored:
        """Run the rows of several slots in one pass; see Model."""
        return self.run(rows, taps, logits=logits)

    @torch.inference_mode()
    def run(
        self,
        rows: Sequence[Rows],
        taps: tuple[int, ...] = (),
        *,
        sub_layers: Sequence[int] | None = None,
        hidden: Array | None = None,
        subset: int = 0,
        logits: bool = True,
    ) -> Scored:
        """Run rows through some of the model; see Layered. ``hidden`` lies where the model does.

        ``subset`` (see ``subset``) narrows the logits.
        """
        head = self._subsets[subset - 1] if subset else self._head
        parts = _parts(sub_layers, self.layers)
        seats, positions = self._seats(rows)
        tokens = [token for row in rows for token in row.tokens]
        count = len(tokens)
        if count == 1 and self._in_pairs:
            tokens, positions = tokens * 2, positions * 2
        wanted, starts = wanted_rows(rows)
        place = torch.tensor(positions, device=self.device)
        turns = {rope: (cos[place], sin[place]) for rope, (cos, sin) in self._turns_up_to(max(positions) + 1).items()}
        x = self._enter(tokens, hidden)
        pick = None if len(wanted) == count else torch.tensor(wanted, dtype=torch.int64, device=self.device)
        tapped = {}
        for number, layer in enumerate((None, *self._layers), -1):
            if layer is not None:
                rope = self.spec.ropes[number]
                if 2 * number in parts:
                    x = layer.attend(x, None if rope is None else turns[rope], seats)
                if 2 * number + 1 in parts:
                    x = layer.mlp(x)
            if number in taps:
                tapped[number] = self._give(x[:count] if pick is None else x[pick])
        chosen = x if pick is None else x[pick]
        scores = self._logits(chosen, head)[: len(wanted)] if logits else x.new_empty((0, head.weight.shape[0]))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return Scored(self._give(scores), starts, tapped)

    def _enter(self, tokens: Sequence[int], hidden: Array | None) -> Tensor:
        """Return what enters the first layer: the tokens' embeddings, or the hidden rows that were handed in."""
        if hidden is not None:
            x = torch.as_tensor(hidden).to(self.device, self.dtype)
            return x.expand(len(tokens), -1) if x.shape[0] == 1 else x
        x = F.embedding(torch.tensor(tokens, device=self.device), self._embedding)
        return x if self._embedding_scale == 1.0 else x * self._embedding_scale

    def compact(self, slot: int, start: int, rows: Sequence[int]) -> int:
        """Move the kept rows together; see Model. Rows that already follow each other stay where they are."""
        kept = list(rows)
        if kept != list(range(len(kept))):
            with torch.inference_mode():
                cache = self._slots[slot]
                moved = cache[:, :, :, [start + row for row in kept]]
                cache[:, :, :, start : start + len(kept)] = moved
        return len(kept)

    def release(self, slot: int) -> None:
        """Free a slot's memory."""
        self._slots.pop(slot, None)

    def _seats(self, rows: Sequence[Rows]) -> tuple[list[Seat], list[int]]:
        """Return where each sequence's rows sit, and every row's position."""
        seats: list[Seat] = []
        everywhere: list[int] = []
        for row in rows:
            positions = _positions(row)
            slot = self._room(row.slot, row.start + len(row.tokens))
            seats.append(seat(self.spec, row, len(everywhere), slot, positions))
            everywhere.extend(positions.tolist())
        return seats, everywhere

    def _room(self, number: int, length: int) -> Tensor:
        """Return a slot with room for ``length`` tokens; what it held stays."""
        old = self._slots.get(number)
        room = FIRST_ROOM if old is None else old.shape[3]
        if old is not None and length <= room:
            return old
        while room < length:
            room *= 2
        spec = self.spec
        # zeros: what was never written is hidden by the mask, but a NaN would show through
        new = torch.zeros((spec.layers, 2, spec.kv_heads, room, spec.head_dim), dtype=self.dtype, device=self.device)
        if old is not None:
            new[:, :, :, : old.shape[3]] = old
        self._slots[number] = new
        return new

    def _turns_up_to(self, length: int) -> dict[Rope, tuple[Tensor, Tensor]]:
        have = next((cos.shape[0] for cos, _ in self._turns.values()), 0)
        if have < length:
            room = max(2 * have, 4 * FIRST_ROOM, length)
            for rope in {rope for rope in self.spec.ropes if rope is not None}:
                cos, sin = (torch.from_numpy(t).to(self.device, self.dtype)[:, None] for t in tables(rope, 0, room))
                self._turns[rope] = (cos, sin)
        return self._turns

    def subset(self, ids: Sequence[int]) -> int:
        """Prepare a part of the vocabulary; returns the number to ask ``run`` for its logits."""
        with torch.inference_mode():
            self._subsets.append(Linear(self._head.weight[torch.tensor(ids, device=self.device)]))
        return len(self._subsets)

    def _logits(self, x: Tensor, head: Linear) -> Tensor:
        if x.shape[0] == 1 and self._in_pairs:
            x = x.expand(2, -1)
        logits = head(self._norm(x)) if x.shape[0] else x.new_empty((0, head.weight.shape[0]))
        if self.spec.logits_divisor != 1.0:
            logits = logits / self.spec.logits_divisor
        if self.spec.logits_cap:
            logits = torch.tanh(logits / self.spec.logits_cap) * self.spec.logits_cap
        return logits

    def _give(self, x: Tensor) -> Array:
        """Return a result at float32 or wider: numpy on the CPU, torch on a GPU."""
        x = x.float() if x.dtype is torch.bfloat16 else x
        return x.numpy() if self.device.type == "cpu" else x


def _parts(sub_layers: Sequence[int] | None, layers: int) -> Container[int]:
    """Return the sub-layers to run. Raises ModelError for one that is not there or out of order."""
    if sub_layers is None:
        return range(2 * layers)
    if any(not 0 <= part < 2 * layers for part in sub_layers):
        raise ModelError("there is no such sub-layer to run")
    if any(a >= b for a, b in pairwise(sub_layers)):
        raise ModelError("sub-layers must be increasing")
    return frozenset(sub_layers)


def _positions(rows: Rows) -> NDArray[np.int64]:
    """Return each row's position: ``start`` plus the number of its ancestors."""
    n = len(rows.tokens)
    if rows.parents == tuple(range(-1, n - 1)):
        return np.arange(rows.start, rows.start + n)
    depths: list[int] = []
    for parent in rows.parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return rows.start + np.array(depths, np.int64)

"""Which matrices of a GGUF the native pass runs in the file's own blocks, and which it keeps in bfloat16, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from foredraft.errors import WeightsError
from foredraft.models.gguf.weights import GgufWeights
from foredraft.models.layout import (
    TensorSlot,
    by_part,
    decoder_prefix,
    layer_tensors,
    matrices,
    outer_tensors,
    output_head,
)
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights
from foredraft.models.weights.floats import Bytes
from foredraft.native.structs import BLOCKS

PANEL: Final = 16  # outputs of a panel, which the packed form holds together, all of one type
ROUNDED: Final = ("F16", "F32")  # what bf16 holds in part
_WIDE: Final = "BF16"


@dataclass(frozen=True, slots=True)
class Blocks:
    """What is run how: ``quant_types`` as ``native_spec`` takes them; by name the type of each matrix kept in blocks.

    ``path`` is the file, ``raw`` gives a matrix's blocks [rows, bytes of a row], ``read_bytes`` are those of all that a
    pass reads whole. ``note`` is what is widened and what that takes, and what is rounded; None where nothing is.
    """

    path: Path
    quant_types: tuple[str, ...]
    stored: Mapping[str, str]
    raw: Callable[[str], Bytes]
    read_bytes: int
    note: str | None


def blocks_of(spec: DecoderSpec, weights: GgufWeights) -> Blocks:
    """Return how the matrices of a decoder are run. Raises WeightsError for one that is missing."""
    order = matrices_of(spec, weights)
    parted: set[str] = set()
    prefix = decoder_prefix(weights.names())
    for layer in range(spec.layers):
        mine = by_part(layer_tensors(spec, layer, prefix))["qkv"]
        if _parted(weights, mine):
            parted.update(slot.name for slot in mine)
    chosen = {name: _WIDE if name in parted else _choice(weights.quant_type(name)) for name in order}
    stored = {name: quant_type for name, quant_type in chosen.items() if quant_type in BLOCKS}
    whole = set(order[1:])  # a pass reads rows of the embedding
    read = sum(_bytes(weights, name, chosen[name]) for name in whole)
    note = _note(weights, chosen, parted)
    return Blocks(weights.path, tuple(chosen[name] for name in order), stored, weights.blocks, read, note)


def matrices_of(spec: DecoderSpec, weights: Weights) -> list[str]:
    """Return the names of a decoder's matrices in the order of the library's ``quant_types``.

    Raises WeightsError where there is no output head.
    """
    prefix, head = decoder_prefix(weights.names()), output_head(weights, spec)
    if not spec.tied and head not in weights:
        raise WeightsError(f"{weights.folder} has no output head, and its config does not tie it to the embedding")
    outer = {slot.part: slot.name for slot in outer_tensors(spec, prefix, head)}
    layers = (matrices(layer_tensors(spec, layer, prefix)) for layer in range(spec.layers))
    return [outer.get("embedding", outer["head"]), outer["head"], *(slot.name for layer in layers for slot in layer)]


def _choice(quant_type: str) -> str:
    return quant_type if quant_type in BLOCKS else _WIDE


def _parted(weights: GgufWeights, mine: Sequence[TensorSlot]) -> bool:
    """Say whether q, k and v, which the packed form holds as one matrix, would share panels of different types."""
    quant_types = {_choice(weights.quant_type(slot.name)) for slot in mine}
    return len(quant_types) > 1 and any(slot.rows % PANEL for slot in mine)


def _bytes(weights: GgufWeights, name: str, quant_type: str) -> int:
    return weights.stored_bytes(name) if quant_type in BLOCKS else 2 * prod(weights.shape(name))


def _note(weights: GgufWeights, chosen: Mapping[str, str], parted: set[str]) -> str | None:
    """Return which matrices take more memory than in the file, and which wider floats are rounded to bf16."""
    grown = [
        n
        for n, quant_type in chosen.items()
        if quant_type == _WIDE and weights.stored_bytes(n) < _bytes(weights, n, quant_type)
    ]
    plain = [n for n, quant_type in chosen.items() if quant_type == _WIDE and weights.quant_type(n) in ROUNDED]
    notes = [_rounded(weights, plain, len(chosen))] if plain else []
    if not grown:
        return notes[0] if notes else None
    types = ", ".join(sorted({weights.quant_type(name) for name in grown}))
    wide = sum(_bytes(weights, name, _WIDE) for name in grown)
    small = sum(weights.stored_bytes(name) for name in grown)
    verb = "is" if len(grown) == 1 else "are"
    split = ": q, k and v differ, and are not multiples of 16 wide" if parted.intersection(grown) else ""
    widened = (
        f"{len(grown)} of {len(chosen)} matrices ({types}{split}) {verb} widened to bf16: "
        f"{_size(wide)} instead of {_size(small)}"
    )
    return "; ".join([widened, *notes])


def _rounded(weights: GgufWeights, names: Sequence[str], count: int) -> str:
    """Return what bf16 costs matrices that were stored as wider floats."""
    types = ", ".join(sorted({weights.quant_type(name) for name in names}))
    verb = "is" if len(names) == 1 else "are"
    return f"{len(names)} of {count} matrices ({types}) {verb} rounded to bf16: --dtype f32 keeps them whole"


def _size(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count >= 10_000_000 else f"{count / 1e6:.2f} MB"

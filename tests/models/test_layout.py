"""The table of a decoder's tensors against checkpoints as transformers saves them, and who goes by it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foredraft.errors import WeightsError
from foredraft.models import layout
from foredraft.models.checkpoint import open_weights
from foredraft.models.layout import TensorSlot, by_part, layer_tensors, matrices, outer_tensors, tensors_of
from foredraft.models.model import Rows
from foredraft.models.native.blocks import matrices_of
from foredraft.models.native.model import NativeModel
from foredraft.models.native.packing import Packer
from foredraft.models.native.spec import native_spec
from foredraft.models.spec import DecoderSpec, read_spec
from foredraft.models.torch_decoder import decoder as torch_decoder
from foredraft.models.torch_decoder.decoder import TorchDecoder
from foredraft.models.weights.base import Weights, held_weights
from foredraft.native.structs import PARTS
from tests.models.checkpoints import FAMILIES, make_checkpoint

SOURCE = Path(layout.__file__).parents[1]
ALL = (*FAMILIES, "gemma3")


def opened(family: str, folder: Path, **more: Any) -> tuple[DecoderSpec, Weights]:
    made = make_checkpoint(family, folder / family, **more)
    return read_spec(json.loads((made / "config.json").read_text())), open_weights(made)


def slots_of(spec: DecoderSpec, weights: Weights) -> list[TensorSlot]:
    return list(tensors_of(spec, layout.decoder_prefix(weights.names()), layout.head_of(weights, spec)))


def outputs(spec: DecoderSpec) -> dict[str, int]:
    """Return how many rows each part has, spelled here once more."""
    q, kv, h = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.hidden
    full = spec.qk_norm == "full"
    rows = {"qkv": q + 2 * kv, "o": h, "gate": spec.mlp, "up": spec.mlp, "down": h}
    rows |= {f"{part}_bias": count for part, count in rows.items()}
    rows |= {f"{side}_{half}": h for side in ("before", "after") for half in ("attention", "mlp")}
    rows |= {"embedding": spec.vocabulary, "head": spec.vocabulary, "norm": h}
    return rows | {"q_norm": q if full else spec.head_dim, "k_norm": kv if full else spec.head_dim}


@pytest.mark.parametrize("family", ALL)
def test_a_checkpoint_holds_the_tensors_of_the_table_and_no_other(family: str, tmp_path: Path) -> None:
    spec, weights = opened(family, tmp_path)
    slots = slots_of(spec, weights)
    prefix = layout.decoder_prefix(weights.names())
    assert {slot.name for slot in slots} == set(layout.needed(weights, spec, prefix))
    assert {slot.name: slot.shape for slot in slots} == {slot.name: weights.shape(slot.name) for slot in slots}
    layout.refuse_unused(weights, {slot.name for slot in slots}, spec, prefix)
    for name in {slot.name for slot in slots}:
        with pytest.raises(WeightsError, match=f"has no use for {re.escape(name)}"):
            layout.refuse_unused(weights, {slot.name for slot in slots} - {name}, spec, prefix)


@pytest.mark.parametrize("biases", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("family", ALL)
def test_each_part_is_tiled_and_each_tensor_used_whole(family: str, biases: bool, tmp_path: Path) -> None:
    spec, weights = opened(family, tmp_path)
    if biases:  # also of families that have none: the fused one's biases are halves of one too
        spec = replace(spec, qkv_bias=True, o_bias=True, mlp_bias=True)
    slots = slots_of(spec, weights)
    parts, tensors = defaultdict(list), defaultdict(list)
    for slot in slots:
        parts[slot.layer, slot.part].append(slot)
        tensors[slot.name].append(slot)
        assert 0 <= slot.start < slot.stop <= slot.shape[0]
        assert len(slot.shape) == (2 if slot.part in {"embedding", "head", *("qkv", "o", "gate", "up", "down")} else 1)
        assert slot.norm == ("norm" in slot.part or slot.part.startswith(("before", "after")))
    wanted = outputs(spec)
    for (_, part), mine in parts.items():
        assert [slot.first for slot in mine] == [sum(slot.rows for slot in mine[:at]) for at in range(len(mine))]
        assert sum(slot.rows for slot in mine) == wanted[part]
    for mine in tensors.values():
        assert [slot.start for slot in mine] == [0, *(slot.stop for slot in mine[:-1])]
        assert mine[-1].stop == mine[0].shape[0]
        assert {slot.shape for slot in mine} == {mine[0].shape}
    names = [name for name, _ in groupby(slots, key=lambda slot: slot.name)]
    assert len(names) == len(set(names))  # slots of one tensor follow each other, which is read once
    assert {part for _, part in parts} <= set(PARTS)
    assert biases <= any(part.endswith("_bias") for _, part in parts)


def test_the_order_is_the_packed_one(tmp_path: Path) -> None:
    spec, weights = opened("llama", tmp_path)
    matrix = [("qkv", 0), ("qkv", 32), ("qkv", 48), ("gate", 0), ("up", 0), ("o", 0), ("down", 0)]
    linear = [(f"{part}{of}", first) for part, first in matrix for of in ("", "_bias")]
    layer = [*linear, ("before_attention", 0), ("before_mlp", 0)]
    outer = [("embedding", 0), ("head", 0), ("norm", 0)]
    slots = slots_of(spec, weights)
    assert [(slot.part, slot.first) for slot in slots] == outer + layer * spec.layers
    assert [slot.layer for slot in slots] == [0] * 3 + [at for at in range(spec.layers) for _ in layer]
    fused, held = opened("phi3", tmp_path)
    mine = slots_of(fused, held)[3:10]
    assert [(slot.part, slot.start) for slot in mine] == [
        ("qkv", 0), ("qkv", 32), ("qkv", 48), ("gate", 0), ("up", 48), ("o", 0), ("down", 0)
    ]  # fmt: skip
    assert [slot.shape for slot in mine] == [(64, 32)] * 3 + [(96, 32)] * 2 + [(32, 32), (32, 48)]


@pytest.mark.parametrize("family", ALL)
def test_the_library_is_told_of_seven_matrices_a_layer(family: str, tmp_path: Path) -> None:
    spec, weights = opened(family, tmp_path)
    names = matrices_of(spec, weights)
    assert len(names) == 2 + 7 * spec.layers
    for layer in range(spec.layers):
        mine = matrices(slot for slot in slots_of(spec, weights)[3 - spec.tied :] if slot.layer == layer)
        assert [slot.part for slot in mine] == ["qkv", "qkv", "qkv", "o", "gate", "up", "down"]
        assert [slot.name for slot in mine] == names[2 + 7 * layer :][:7]
    assert (names[0] == names[1]) == spec.tied


def test_eagles_attention_reads_two_widths_and_norms_the_second(tmp_path: Path) -> None:
    spec, _ = opened("llama", tmp_path)
    plain, eagle = (list(of(spec, 1, "model.")) for of in (layer_tensors, layout.eagle_tensors))
    differ = [(a.name, a.shape, b.shape) for a, b in zip(plain, eagle, strict=False) if a != b]
    assert [(name.rpartition(".")[0][-6:], a[1], b[1]) for name, a, b in differ] == [
        (f"{of}_proj", 32, 64) for of in "qkv"
    ]
    assert (eagle[-1].part, eagle[-1].name, eagle[-1].shape) == (
        "features_norm", "model.layers.1.hidden_norm.weight", (32,)
    )  # fmt: skip
    assert len(eagle) == len(plain) + 1


def test_the_head_is_the_embedding_another_tensor_or_lacking(tmp_path: Path) -> None:
    spec, weights = opened("llama", tmp_path)
    assert layout.head_of(weights, spec) == "lm_head.weight"
    assert layout.head_of(weights, replace(spec, tied=True)) == "model.embed_tokens.weight"
    assert [slot.part for slot in outer_tensors(replace(spec, tied=True), "model.")] == ["head", "norm"]
    headless = held_weights(tmp_path, {"model.embed_tokens.weight": np.ones((2, 2), np.float32)})
    with pytest.raises(WeightsError) as caught:
        layout.head_of(headless, spec)
    assert str(caught.value) == f"{tmp_path} has no lm_head.weight, and config.json does not tie it to the embedding"


# layers that differ


def uneven(spec: DecoderSpec, layer: int, prefix: str, inputs: int = 0) -> Iterator[TensorSlot]:
    """The table of a decoder whose second layer has an MLP of twice the width."""
    return layer_tensors(replace(spec, mlp=spec.mlp * 2) if layer == 1 else spec, layer, prefix, inputs)


def widened(spec: DecoderSpec, weights: Weights) -> Weights:
    """Return a checkpoint whose second layer says the same with an MLP of twice the width: zeros beside it."""
    made = {}
    for name in weights.names():
        values = np.array(weights.raw(name))
        if name.startswith("model.layers.1.mlp.") and name != "model.layers.1.mlp.down_proj.bias":
            axis = 1 if name.endswith("down_proj.weight") else 0
            values = np.concatenate([values, np.zeros_like(values)], axis)
        made[name] = values
    return held_weights(weights.folder, made)


def test_torch_takes_each_layer_as_the_table_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, weights = opened("llama", tmp_path)
    rows = [Rows(0, 0, (3, 1, 4, 1, 5), (-1, 0, 1, 2, 3), 5)]
    expected = TorchDecoder(spec, weights, dtype="f64").forward(rows).logits
    wide = widened(spec, weights)
    with pytest.raises(WeightsError, match=re.escape("layers.1.mlp.gate_proj.weight has the shape [96, 32]")):
        TorchDecoder(spec, wide, dtype="f64")
    monkeypatch.setattr(torch_decoder, "layer_tensors", uneven)
    np.testing.assert_allclose(TorchDecoder(spec, wide, dtype="f64").forward(rows).logits, expected, atol=1e-12)
    with pytest.raises(WeightsError, match=re.escape("layers.1.mlp.gate_proj.weight has the shape [48, 32]")):
        TorchDecoder(spec, weights, dtype="f64")


def test_the_packer_hands_over_each_layer_as_the_table_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, weights = opened("llama", tmp_path)
    monkeypatch.setattr(layout, "layer_tensors", uneven)
    packer = Packer(spec, widened(spec, weights), native_spec(spec, "f32", 1.0), None)
    handed = []
    monkeypatch.setattr(packer, "_pack", lambda _, slot, array: handed.append((slot, array.shape)))
    packer.fill(np.zeros(0, np.uint8))
    assert [slot for slot, _ in handed] == slots_of(spec, weights)
    mine = {slot.part: shape for slot, shape in handed if slot.layer == 1}
    assert (mine["gate"], mine["up"], mine["down"], mine["up_bias"]) == ((96, 32), (96, 32), (32, 96), (96,))


def test_a_tensor_that_several_parts_share_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, weights = opened("phi3", tmp_path)
    read = []
    raw = Weights.raw
    monkeypatch.setattr(Weights, "raw", lambda self, name: read.append(name) or raw(self, name))
    for run in (NativeModel, TorchDecoder):
        read.clear()
        run(spec, weights, dtype="f32")
        assert len(read) == len(set(read)) == len(weights.names())


# who spells names


def test_the_names_of_a_decoders_tensors_are_spelled_in_one_module() -> None:
    spelled = re.compile(r"self_attn|[a-z]_layernorm|\b(q|k|v|qkv|o|gate|up|gate_up|down)_proj\b|embed_tokens|lm_head")
    found = [path for path in SOURCE.rglob("*.py") if spelled.search(path.read_text("utf-8"))]
    assert found == [Path(layout.__file__)]


def test_parts_in_order_of_their_rows(tmp_path: Path) -> None:
    spec, _ = opened("qwen2", tmp_path)
    for layer in range(spec.layers):
        parts = by_part(layer_tensors(spec, layer, "model."))
        assert [slot.first for slot in parts["qkv_bias"]] == [0, 32, 48]
        assert [slot.name.split(".")[2] for slots in parts.values() for slot in slots] == [str(layer)] * 12

"""Which matrices of a GGUF run in its own blocks, what is said of the others, and that the pass computes with them."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from foredraft.errors import OptionError, StorageError, WeightsError
from foredraft.models.checkpoint import open_weights
from foredraft.models.folder import ModelFolder
from foredraft.models.gguf.convert import convert_gguf
from foredraft.models.gguf.weights import GgufWeights
from foredraft.models.model import Rows
from foredraft.models.native import packing as packing
from foredraft.models.native.blocks import Blocks, blocks_of
from foredraft.models.native.layout_digest import layout_of
from foredraft.models.native.model import NativeModel
from foredraft.models.native.packing import FILE
from foredraft.models.spec import read_spec
from foredraft.models.torch_decoder.decoder import TorchDecoder
from foredraft.native.library import tiers
from foredraft.native.structs import BLOCKS
from foredraft.system.sizes import size_of
from tests.models.decoders import chain
from tests.models.gguf_files import checkpoint, model_file
from tests.models.quantised_files import quantised, quantised_file

TEXT = tuple(int(t) for t in np.random.default_rng(5).integers(0, 100, 40))
MIXED: Mapping[str, Kind] = dict(
    zip(
        ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "token_embd"),
        (Kind[name] for name in BLOCKS),
        strict=True,
    )
)


def opened(path: Path, cache: Path) -> tuple[Any, GgufWeights]:
    folder = convert_gguf(path, cache, "file")
    weights = open_weights(folder)
    assert isinstance(weights, GgufWeights)
    return read_spec(json.loads((folder / "config.json").read_text())), weights


def chosen(path: Path, cache: Path) -> Blocks:
    return blocks_of(*opened(path, cache))


def test_each_matrix_runs_in_the_type_it_is_stored_in(tmp_path: Path) -> None:
    tied = chosen(quantised_file(tmp_path / "a.gguf", kinds=MIXED), tmp_path)
    layer = BLOCKS[:7]
    assert tied.quant_types == ("Q6_K", "Q6_K", *layer, *layer)
    assert tied.note is None
    assert tied.stored["model.layers.1.mlp.down_proj.weight"] == "Q5_K"
    weights = opened(tmp_path / "a.gguf", tmp_path)[1]
    assert tied.read_bytes == sum(weights.stored_bytes(name) for name in tied.stored)
    kinds = {"token_embd": Kind.Q4_0, "output": Kind.Q8_0, "blk.1.attn_v.weight": Kind.Q5_0}
    untied = chosen(quantised_file(tmp_path / "b.gguf", Kind.Q4_1, kinds, tied=False), tmp_path)
    assert untied.quant_types == ("Q4_0", "Q8_0", *("Q4_1",) * 9, "Q5_0", *("Q4_1",) * 4)
    whole = sum(opened(tmp_path / "b.gguf", tmp_path)[1].stored_bytes(name) for name in untied.stored)
    assert untied.read_bytes == whole - 100 * 256 // 32 * 18  # of the embedding a pass reads a row


def test_fused_matrices_are_of_one_type(tmp_path: Path) -> None:
    original = checkpoint("phi3", tmp_path / "hf", intermediate_size=64, num_hidden_layers=1)
    blocks = chosen(model_file(original, tmp_path / "a.gguf", "phi3", Kind.Q8_0), tmp_path)
    assert blocks.quant_types == ("Q8_0",) * 9
    assert "model.layers.0.mlp.gate_up_proj.weight" in blocks.stored


def test_what_has_no_kernels_is_widened_and_said(tmp_path: Path) -> None:
    kinds = {"ffn_down": Kind.IQ4_NL, "attn_output": Kind.Q3_K, "ffn_up": Kind.BF16, "ffn_gate": Kind.F16}
    blocks = chosen(quantised_file(tmp_path / "a.gguf", Kind.Q4_0, kinds), tmp_path)
    assert blocks.quant_types == ("Q4_0",) * 2 + ("Q4_0", "Q4_0", "Q4_0", "BF16", "BF16", "BF16", "BF16") * 2
    stored = 2 * (256 * 512 * 18 // 32 + 256 * 110)  # rows of 256 values are a block of Q3_K
    wide = 2 * 2 * (256 * 512 + 256 * 256)
    assert blocks.note == (
        f"4 of 15 matrices (IQ4_NL, Q3_K) are widened to bf16: {wide / 1e6:.2f} MB instead of {stored / 1e6:.2f} MB; "
        "2 of 15 matrices (F16) are rounded to bf16: --dtype f32 keeps them whole"
    )
    one = chosen(quantised_file(tmp_path / "b.gguf", Kind.Q4_0, {"blk.1.attn_q.weight": Kind.Q2_K}), tmp_path)
    assert one.note is not None
    assert one.note.startswith("1 of 15 matrices (Q2_K) is widened")


def test_wider_floats_are_rounded_and_said_and_bf16_is_as_it_was(tmp_path: Path) -> None:
    blocks = chosen(quantised_file(tmp_path / "a.gguf", Kind.F16, {"ffn_up": Kind.F32, "attn_k": Kind.BF16}), tmp_path)
    assert (set(blocks.quant_types), dict(blocks.stored)) == ({"BF16"}, {})
    assert blocks.note == "13 of 15 matrices (F16, F32) are rounded to bf16: --dtype f32 keeps them whole"
    one = chosen(quantised_file(tmp_path / "b.gguf", Kind.BF16, {"blk.1.attn_q.weight": Kind.F32}), tmp_path)
    assert one.note == "1 of 15 matrices (F32) is rounded to bf16: --dtype f32 keeps them whole"
    assert chosen(quantised_file(tmp_path / "c.gguf", Kind.BF16), tmp_path).note is None


def test_q_k_and_v_that_differ_and_would_share_a_tile_are_widened_and_said(tmp_path: Path) -> None:
    odd: Mapping[str, Any] = {"heads": 4, "kv_heads": 1, "head_dim": 8, "layers": 1}
    kinds = {"attn_v": Kind.Q8_0, "attn_output": Kind.Q5_1}
    blocks = chosen(quantised_file(tmp_path / "a.gguf", Kind.Q4_0, kinds, **odd), tmp_path)
    assert blocks.quant_types == ("Q4_0", "Q4_0", "BF16", "BF16", "BF16", "Q5_1", "Q4_0", "Q4_0", "Q4_0")
    assert blocks.note is not None
    assert blocks.note.startswith(
        "3 of 8 matrices (Q4_0, Q8_0: q, k and v differ, and are not multiples of 16 wide) are widened to bf16: "
    )
    same = chosen(quantised_file(tmp_path / "b.gguf", Kind.Q4_0, {"attn_output": Kind.Q5_1}, **odd), tmp_path)
    assert same.quant_types[2:5] == ("Q4_0",) * 3
    assert same.note is None


def test_the_layout_tells_types_apart(tmp_path: Path) -> None:
    blocks = [chosen(quantised_file(tmp_path / f"{name}.gguf", Kind[name]), tmp_path) for name in ("Q4_0", "Q4_1")]
    assert len({layout_of(each) for each in blocks}) == 2
    assert layout_of(blocks[0]) == layout_of(chosen(tmp_path / "Q4_0.gguf", tmp_path))


# the pass


def apart(ours: Any, theirs: Any) -> float:
    """Return how far two sets of logits are apart, as a share of how far they vary."""
    theirs = np.asarray(theirs)
    return float(np.abs(ours - theirs).mean() / theirs.std())


@pytest.mark.parametrize("name", [*BLOCKS, "mixed", "widened", "odd"])
def test_the_pass_computes_with_the_blocks(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    if name == "mixed":
        quantised_file(path, kinds=MIXED, tied=False)
    elif name == "widened":
        quantised_file(path, Kind.Q4_K, {"attn_v": Kind.IQ4_NL, "ffn_down": Kind.Q6_K, "token_embd": Kind.F16})
    elif name == "odd":
        quantised_file(path, Kind.Q4_0, {"attn_v": Kind.Q8_0}, heads=4, kv_heads=1, head_dim=8)
    else:
        quantised_file(path, Kind[name])
    spec, weights = opened(path, tmp_path)
    rows: list[Rows] = [chain(TEXT, 0, len(TEXT), len(TEXT))]
    theirs = TorchDecoder(spec, open_weights(convert_gguf(path, tmp_path, "f32")), dtype="f32").forward(rows).logits
    for tier in tiers():
        if tier == "amx":
            continue  # is announced where it may not be had; its kernels have tests of their own
        model = NativeModel(spec, weights, "file", tier=tier, threads=1)
        assert apart(model.forward(rows).logits, theirs) < 0.1
    widened = NativeModel(spec, weights, "bf16", threads=1)  # the same weights as a checkpoint
    folder = convert_gguf(path, tmp_path, "bf16")
    same = NativeModel(spec, open_weights(folder), "bf16", threads=1)
    assert apart(widened.forward(rows).logits, same.forward(rows).logits) < 0.01  # but for the norms, which are wider
    assert model.read_bytes() == blocks_of(spec, weights).read_bytes
    assert widened.read_bytes() is None


def test_a_checkpoint_has_no_blocks_to_run(tmp_path: Path) -> None:
    folder = convert_gguf(quantised_file(tmp_path / "a.gguf"), tmp_path)
    spec = read_spec(json.loads((folder / "config.json").read_text()))
    with pytest.raises(OptionError, match=r"dtype file runs the blocks of a GGUF file, and .* holds none"):
        NativeModel(spec, folder, "file")


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1", "Q6_K"])
def test_a_scale_that_is_no_number_is_named_when_it_is_packed(name: str, tmp_path: Path) -> None:
    kind = Kind[name]
    raw = quantised(kind, 256, 256).copy()
    raw[17, {"Q6_K": 208}.get(name, 0) + 1] = 0x7E
    path = quantised_file(tmp_path / "a.gguf", kind, replaced={"blk.1.attn_q.weight": (raw, kind)})
    spec, weights = opened(path, tmp_path)
    with pytest.raises(WeightsError) as caught:
        NativeModel(spec, weights, "file", cache=tmp_path, identity="x")
    words = str(caught.value)
    assert words == (
        f"{path}: blk.1.attn_q.weight has a block whose scale is not finite, so the file is damaged: "
        "fetch or make it again"
    )
    assert not list((tmp_path / "packed").glob("*"))


def test_what_is_kept_is_said_once_and_the_file_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = quantised_file(tmp_path / "a.gguf", kinds=MIXED)
    spec, weights = opened(path, tmp_path)
    kept: dict[str, Any] = {"cache": tmp_path, "identity": ModelFolder(weights.folder).identity, "threads": 1}
    first = NativeModel(spec, weights, "file", **kept)
    folder = tmp_path / "packed" / f"{kept['identity']}-file-{packing.VERSION}"
    size = (folder / FILE).stat().st_size
    assert (first.notice, first.install_note) == (
        None,
        f"{size_of(first.weight_bytes())} of packed weights are kept in {folder}",
    )
    assert first.weight_bytes() < size
    asked: list[str] = []
    monkeypatch.setattr(weights, "raw", asked.append)
    monkeypatch.setattr(weights, "blocks", asked.append)
    second = NativeModel(spec, weights, "file", **kept)
    assert (second.notice, second.install_note, asked) == (None, None, [])
    monkeypatch.undo()
    gone = weakref.ref(weights)
    del weights
    assert gone() is None  # nor does a model hold the file's mapping, whose pages would count as its memory
    rows = [chain(TEXT, 0, 20, 20)]
    np.testing.assert_array_equal(second.forward(rows).logits, first.forward(rows).logits)


def test_a_short_disk_packs_into_memory_each_time_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, weights = opened(quantised_file(tmp_path / "a.gguf"), tmp_path)

    def refuse(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(packing, "require_space", refuse)
    for _ in range(2):
        model = NativeModel(spec, weights, "file", cache=tmp_path, identity="x", threads=1)
        assert model.notice == "weights are packed at each start: the disk is full"

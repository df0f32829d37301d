"""Drafters' weights in 5 bits."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from foredraft.models.model import Rows
from foredraft.models.native.model import NativeModel
from foredraft.models.native.rounded import KIND, rounded
from foredraft.models.spec import read_spec
from foredraft.models.weights.base import held_weights

CONFIG = {
    "model_type": "llama", "vocab_size": 50, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}  # fmt: skip


def _tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64)}
    shapes |= {"self_attn.o_proj": (64, 64), "mlp.gate_proj": (80, 64), "mlp.up_proj": (80, 64)}
    shapes |= {"mlp.down_proj": (64, 80)}  # rows of 80 are no whole blocks
    made = {
        f"model.layers.0.{name}.weight": rng.standard_normal(s).astype(np.float32) / 8 for name, s in shapes.items()
    }
    for norm in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        made[f"model.{norm}.weight"] = np.ones(64, np.float32)
    return made | {"model.embed_tokens.weight": rng.standard_normal((50, 64)).astype(np.float32)}


def test_rows_that_are_no_whole_blocks_stay_wide() -> None:
    blocks = rounded(read_spec(CONFIG), held_weights(Path("made"), _tensors()))
    assert blocks.quant_types == ("Q5_1",) * 8 + ("BF16",)
    assert "model.layers.0.mlp.down_proj.weight" not in blocks.stored


def test_a_rounded_model_says_what_its_rounded_weights_say() -> None:
    spec, tensors = read_spec(CONFIG), _tensors()
    kind = gguf.GGMLQuantizationType[KIND]
    known = {
        name: gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind) if value.shape[1:] == (64,) else value
        for name, value in tensors.items()
    }
    rows = [Rows(0, 0, (3, 1, 4, 1, 5), (-1, 0, 1, 2, 3), 5)]
    logits = {}
    for kind, weights in (("rounded", tensors), ("f32", known), ("bf16", tensors)):
        model = NativeModel(spec, held_weights(Path("made"), weights), kind)
        logits[kind] = np.asarray(model.forward(rows).logits)
    error = np.abs(logits["rounded"] - logits["f32"]).max()
    assert 0 < error < 0.05 * np.abs(logits["f32"]).max()
    assert not np.array_equal(logits["rounded"], logits["bf16"])


def test_rounded_weights_take_about_a_third_of_the_memory() -> None:
    size = {
        kind: NativeModel(read_spec(CONFIG), held_weights(Path("made"), _tensors()), kind).weight_bytes()
        for kind in ("rounded", "bf16")
    }
    assert 0.37 * size["bf16"] < size["rounded"] < 0.6 * size["bf16"]  # one of the matrices stays as it is

"""Reading config.json: both spellings of transformers, and what is refused and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig

from foredraft.errors import UnsupportedModel
from foredraft.models.families import FAMILIES
from foredraft.models.rope import inverse_frequencies, tables
from foredraft.models.spec import read_spec
from tests.models.checkpoints import COMMON

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_act": "silu", **COMMON}


def test_old_and_new_spelling_of_the_rope_are_one() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = {**LLAMA, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **scaling}}
    new = {**LLAMA, "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **scaling}}
    assert read_spec(old) == read_spec(new)
    older = {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}
    rope = read_spec(older).ropes[0]
    assert rope is not None
    assert (rope.kind, rope.factor, rope.theta) == ("linear", 2.0, 10000.0)


def test_gemma_3_as_the_hub_has_it() -> None:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 7,
        "sliding_window": 5,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }
    spec = read_spec({"model_type": "gemma3", "text_config": text, "eos_token_id": [1, 106]})
    assert spec.windows == (5, 5, 5, 5, 5, 0, 5)
    assert [(r.theta, r.kind) for r in spec.ropes if r] == [
        (1e6, "linear") if i == 5 else (1e4, "default") for i in range(7)
    ]
    assert (spec.vocabulary, spec.heads, spec.kv_heads, spec.head_dim) == (262208, 8, 4, 256)
    assert (spec.eos, spec.tied, spec.composite, spec.norm) == ((1, 106), True, True, "unit")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_config_leaves_out_is_what_transformers_takes(family: str) -> None:
    """Every default that matters, compared with the config class itself, unset as a sparse config.json leaves it."""
    sparse = {key: value for key, value in COMMON.items() if key != "num_key_value_heads"}
    theirs = AutoConfig.for_model(family, **sparse, num_key_value_heads=2)
    written = json.loads(theirs.to_json_string(use_diff=False))
    assert read_spec({**sparse, "model_type": family, "num_key_value_heads": 2}) == read_spec(written)


def test_layers_without_positions() -> None:
    spec = read_spec({**LLAMA, "model_type": "smollm3", "num_hidden_layers": 5})
    assert [rope is None for rope in spec.ropes] == [False, False, False, True, False]


def test_windows_are_off_until_switched_on() -> None:
    config = {**LLAMA, "model_type": "qwen2", "sliding_window": 5, "max_window_layers": 1}
    assert read_spec(config).windows == (0, 0, 0)
    assert read_spec({**config, "use_sliding_window": True}).windows == (0, 5, 5)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mamba"},
        {"model_type": "qwen2", "layer_types": ["full_attention", "linear_attention", "full_attention"]},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [1.0], "short_factor": [1.0]}},
        {"model_type": "phi3", "rope_scaling": {"type": "yarn", "factor": 2.0}},
        {"hidden_act": "relu"},
    ],
)
def test_what_only_the_table_lacks_may_run_elsewhere(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        read_spec({**LLAMA, **change})
    assert caught.value.elsewhere


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}, "auto_map"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8.*bf16 weights or a GGUF"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"model_type": "unheard_of", "quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"compression_config": {"format": "dense"}}, "quantised"),
        ({"hidden_size": -4}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"vocab_size": None}, "vocab_size"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rope_scaling": "linear"}, "linear"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "layer_types"),
        (
            {"model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": True},
            "both",
        ),
    ],
)
def test_refused_outright(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModel, match=says) as caught:
        read_spec({**LLAMA, **change})
    assert not caught.value.elsewhere


def test_remote_code_inside_a_composite_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "modeling_evil.py").write_text(f"open({str(canary)!r}, 'w')")
    text = {**LLAMA, "model_type": "gemma3_text", "auto_map": {"AutoModel": f"{tmp_path}/modeling_evil.py--Evil"}}
    with pytest.raises(UnsupportedModel, match="auto_map"):
        read_spec({"model_type": "gemma3", "text_config": text})
    assert not canary.exists()


def test_tables_turn_by_the_frequencies() -> None:
    rope = read_spec({**LLAMA, "rope_scaling": {"type": "yarn", "factor": 4.0}}).ropes[0]
    assert rope is not None
    cos, sin = tables(rope, 3, 5)
    half = rope.dim // 2
    np.testing.assert_allclose(cos[1, :half], rope.attention_factor * np.cos(4 * inverse_frequencies(rope)), rtol=1e-6)
    np.testing.assert_array_equal(sin[:, :half], -sin[:, half:])

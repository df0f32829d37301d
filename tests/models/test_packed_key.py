"""The text that packed weights are kept by, as it was when the first of them were written: a change packs all anew."""

from __future__ import annotations

from typing import Any, Final

import pytest

from foredraft.models.native.spec_key import spec_key
from foredraft.models.spec import read_spec

BASE: Final[dict[str, Any]] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}

KEYS: Final[list[tuple[dict[str, Any], str]]] = [
    (
        {"model_type": "llama"},
        "DecoderSpec(family='llama', vocabulary=97, hidden=32, layers=3, heads=4, kv_heads=2, head_dim=8, mlp=48, "
        "context=64, eps=1e-06, norm='rms', places='pre', qk_norm='none', qkv_bias=False, o_bias=False, "
        "mlp_bias=False, fused=False, ropes=(Rope(dim=8, theta=10000.0, kind='default', factor=1.0, original=0, "
        "low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=10000.0, kind='default', "
        "factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=10000.0, "
        "kind='default', factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0)), windows=(0, "
        "0, 0), attention_scale=0.35355339059327373, attention_cap=0.0, logits_cap=0.0, activation='silu', "
        "embedding_scale=1.0, embedding_rounded=False, residual_scale=1.0, logits_divisor=1.0, tied=True, "
        "composite=False, eos=(2,))",
    ),
    (
        {
            "model_type": "llama",
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        "DecoderSpec(family='llama', vocabulary=97, hidden=32, layers=3, heads=4, kv_heads=2, head_dim=8, mlp=48, "
        "context=64, eps=1e-06, norm='rms', places='pre', qk_norm='none', qkv_bias=False, o_bias=False, "
        "mlp_bias=False, fused=False, ropes=(Rope(dim=8, theta=500000.0, kind='llama3', factor=8.0, original=64, "
        "low=1.0, high=4.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=500000.0, kind='llama3', "
        "factor=8.0, original=64, low=1.0, high=4.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=500000.0, "
        "kind='llama3', factor=8.0, original=64, low=1.0, high=4.0, truncate=True, attention_factor=1.0)), windows=(0, "
        "0, 0), attention_scale=0.35355339059327373, attention_cap=0.0, logits_cap=0.0, activation='silu', "
        "embedding_scale=1.0, embedding_rounded=False, residual_scale=1.0, logits_divisor=1.0, tied=True, "
        "composite=False, eos=(2,))",
    ),
    (
        {"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": False, "eos_token_id": [2, 5]},
        "DecoderSpec(family='llama', vocabulary=97, hidden=32, layers=1, heads=4, kv_heads=2, head_dim=8, mlp=48, "
        "context=64, eps=1e-06, norm='rms', places='pre', qk_norm='none', qkv_bias=False, o_bias=False, "
        "mlp_bias=False, fused=False, ropes=(Rope(dim=8, theta=10000.0, kind='default', factor=1.0, original=0, "
        "low=1.0, high=1.0, truncate=True, attention_factor=1.0),), windows=(0,), attention_scale=0.35355339059327373, "
        "attention_cap=0.0, logits_cap=0.0, activation='silu', embedding_scale=1.0, embedding_rounded=False, "
        "residual_scale=1.0, logits_divisor=1.0, tied=False, composite=False, eos=(2, 5))",
    ),
    (
        {"model_type": "qwen2", "sliding_window": 5, "max_window_layers": 1, "use_sliding_window": True},
        "DecoderSpec(family='qwen2', vocabulary=97, hidden=32, layers=3, heads=4, kv_heads=2, head_dim=8, mlp=48, "
        "context=64, eps=1e-06, norm='rms', places='pre', qk_norm='none', qkv_bias=True, o_bias=False, mlp_bias=False, "
        "fused=False, ropes=(Rope(dim=8, theta=10000.0, kind='default', factor=1.0, original=0, low=1.0, high=1.0, "
        "truncate=True, attention_factor=1.0), Rope(dim=8, theta=10000.0, kind='default', factor=1.0, original=0, "
        "low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=10000.0, kind='default', "
        "factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0)), windows=(0, 5, 5), "
        "attention_scale=0.35355339059327373, attention_cap=0.0, logits_cap=0.0, activation='silu', "
        "embedding_scale=1.0, embedding_rounded=False, residual_scale=1.0, logits_divisor=1.0, tied=True, "
        "composite=False, eos=(2,))",
    ),
    (
        {
            "model_type": "qwen3",
            "head_dim": 16,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        },
        "DecoderSpec(family='qwen3', vocabulary=97, hidden=32, layers=3, heads=4, kv_heads=2, head_dim=16, mlp=48, "
        "context=64, eps=1e-06, norm='rms', places='pre', qk_norm='head', qkv_bias=False, o_bias=False, "
        "mlp_bias=False, fused=False, ropes=(Rope(dim=16, theta=10000.0, kind='yarn', factor=4.0, original=32, "
        "low=1.0, high=32.0, truncate=True, attention_factor=1.138629436111989), Rope(dim=16, theta=10000.0, "
        "kind='yarn', factor=4.0, original=32, low=1.0, high=32.0, truncate=True, attention_factor=1.138629436111989), "
        "Rope(dim=16, theta=10000.0, kind='yarn', factor=4.0, original=32, low=1.0, high=32.0, truncate=True, "
        "attention_factor=1.138629436111989)), windows=(0, 0, 0), attention_scale=0.25, attention_cap=0.0, "
        "logits_cap=0.0, activation='silu', embedding_scale=1.0, embedding_rounded=False, residual_scale=1.0, "
        "logits_divisor=1.0, tied=True, composite=False, eos=(2,))",
    ),
    (
        {"model_type": "gemma2", "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"},
        "DecoderSpec(family='gemma2', vocabulary=97, hidden=32, layers=3, heads=4, kv_heads=2, head_dim=16, mlp=48, "
        "context=64, eps=1e-06, norm='unit', places='sandwich', qk_norm='none', qkv_bias=False, o_bias=False, "
        "mlp_bias=False, fused=False, ropes=(Rope(dim=16, theta=10000.0, kind='default', factor=1.0, original=0, "
        "low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=16, theta=10000.0, kind='default', "
        "factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=16, theta=10000.0, "
        "kind='default', factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0)), "
        "windows=(4096, 0, 4096), attention_scale=0.0625, attention_cap=50.0, logits_cap=30.0, activation='gelu_tanh', "
        "embedding_scale=5.656854249492381, embedding_rounded=True, residual_scale=1.0, logits_divisor=1.0, tied=True, "
        "composite=False, eos=(2,))",
    ),
    (
        {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 5, "hidden_activation": "gelu_pytorch_tanh"},
        "DecoderSpec(family='gemma3_text', vocabulary=97, hidden=32, layers=3, heads=4, kv_heads=2, head_dim=16, "
        "mlp=48, context=64, eps=1e-06, norm='unit', places='sandwich', qk_norm='head', qkv_bias=False, o_bias=False, "
        "mlp_bias=False, fused=False, ropes=(Rope(dim=16, theta=10000.0, kind='default', factor=1.0, original=0, "
        "low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=16, theta=10000.0, kind='default', "
        "factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=16, theta=10000.0, "
        "kind='default', factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0)), windows=(5, "
        "5, 5), attention_scale=0.0625, attention_cap=0.0, logits_cap=0.0, activation='gelu_tanh', "
        "embedding_scale=5.656854249492381, embedding_rounded=True, residual_scale=1.0, logits_divisor=1.0, tied=True, "
        "composite=False, eos=(2,))",
    ),
    (
        {"model_type": "olmo2"},
        "DecoderSpec(family='olmo2', vocabulary=97, hidden=32, layers=3, heads=4, kv_heads=2, head_dim=8, mlp=48, "
        "context=64, eps=1e-06, norm='wide', places='post', qk_norm='full', qkv_bias=False, o_bias=False, "
        "mlp_bias=False, fused=False, ropes=(Rope(dim=8, theta=10000.0, kind='default', factor=1.0, original=0, "
        "low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=10000.0, kind='default', "
        "factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=10000.0, "
        "kind='default', factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0)), windows=(0, "
        "0, 0), attention_scale=0.35355339059327373, attention_cap=0.0, logits_cap=0.0, activation='silu', "
        "embedding_scale=1.0, embedding_rounded=False, residual_scale=1.0, logits_divisor=1.0, tied=True, "
        "composite=False, eos=(2,))",
    ),
    (
        {"model_type": "phi3"},
        "DecoderSpec(family='phi3', vocabulary=97, hidden=32, layers=3, heads=4, kv_heads=2, head_dim=8, mlp=48, "
        "context=64, eps=1e-06, norm='rms', places='pre', qk_norm='none', qkv_bias=False, o_bias=False, "
        "mlp_bias=False, fused=True, ropes=(Rope(dim=8, theta=10000.0, kind='default', factor=1.0, original=0, "
        "low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=10000.0, kind='default', "
        "factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=10000.0, "
        "kind='default', factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0)), windows=(0, "
        "0, 0), attention_scale=0.35355339059327373, attention_cap=0.0, logits_cap=0.0, activation='silu', "
        "embedding_scale=1.0, embedding_rounded=False, residual_scale=1.0, logits_divisor=1.0, tied=True, "
        "composite=False, eos=(2,))",
    ),
    (
        {
            "model_type": "granite",
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "attention_multiplier": 0.015625,
        },
        "DecoderSpec(family='granite', vocabulary=97, hidden=32, layers=3, heads=4, kv_heads=2, head_dim=8, mlp=48, "
        "context=64, eps=1e-06, norm='rms', places='pre', qk_norm='none', qkv_bias=False, o_bias=False, "
        "mlp_bias=False, fused=False, ropes=(Rope(dim=8, theta=10000.0, kind='default', factor=1.0, original=0, "
        "low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=10000.0, kind='default', "
        "factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=10000.0, "
        "kind='default', factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0)), windows=(0, "
        "0, 0), attention_scale=0.015625, attention_cap=0.0, logits_cap=0.0, activation='silu', embedding_scale=12.0, "
        "embedding_rounded=False, residual_scale=0.22, logits_divisor=8.0, tied=True, composite=False, eos=(2,))",
    ),
    (
        {"model_type": "smollm3", "num_hidden_layers": 4},
        "DecoderSpec(family='smollm3', vocabulary=97, hidden=32, layers=4, heads=4, kv_heads=2, head_dim=8, mlp=48, "
        "context=64, eps=1e-06, norm='rms', places='pre', qk_norm='none', qkv_bias=False, o_bias=False, "
        "mlp_bias=False, fused=False, ropes=(Rope(dim=8, theta=2000000.0, kind='default', factor=1.0, original=0, "
        "low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=2000000.0, kind='default', "
        "factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0), Rope(dim=8, theta=2000000.0, "
        "kind='default', factor=1.0, original=0, low=1.0, high=1.0, truncate=True, attention_factor=1.0), None), "
        "windows=(0, 0, 0, 0), attention_scale=0.35355339059327373, attention_cap=0.0, logits_cap=0.0, "
        "activation='silu', embedding_scale=1.0, embedding_rounded=False, residual_scale=1.0, logits_divisor=1.0, "
        "tied=True, composite=False, eos=(2,))",
    ),
]


@pytest.mark.parametrize(("config", "text"), KEYS)
def test_the_key_of_a_spec_stays_what_it_was(config: dict[str, Any], text: str) -> None:
    assert spec_key(read_spec({**BASE, "hidden_act": "silu", **config})) == text

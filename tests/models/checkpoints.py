"""Tiny random checkpoints of every family in the decoder table, as transformers saves them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3ForConditionalGeneration, PreTrainedModel

COMMON = MappingProxyType(
    {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
)
GEMMA = MappingProxyType({"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 24})
FAMILIES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {"attention_bias": True, "mlp_bias": True},
        "mistral": {"head_dim": 16, "sliding_window": 9},
        "qwen2": {"tie_word_embeddings": True},
        "qwen3": {"head_dim": 16},
        "gemma2": {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
        "gemma3_text": {**GEMMA, "num_hidden_layers": 4, "sliding_window_pattern": 3},
        "phi3": {"partial_rotary_factor": 0.5},
        "olmo2": {},
        "granite": {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
        "smollm3": {"no_rope_layers": [1, 0, 1]},
    }
)


def make_checkpoint(family: str, folder: Path, **overrides: Any) -> Path:
    """Save a random model of ``family`` (a key of FAMILIES, or "gemma3" with its vision tower) and return its folder.

    ``overrides`` go to the config. Every parameter is random, norms and biases too; float32; the same each time.
    """
    torch.manual_seed(0)
    model = _composite(overrides) if family == "gemma3" else _text(family, overrides)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.15)
    model.save_pretrained(folder)
    return folder


def _text(family: str, overrides: Mapping[str, Any]) -> PreTrainedModel:
    config = AutoConfig.for_model(family, **{**COMMON, **FAMILIES[family], **overrides})
    return AutoModelForCausalLM.from_config(config)


def _composite(overrides: Mapping[str, Any]) -> PreTrainedModel:
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    text = {**COMMON, **FAMILIES["gemma3_text"], **overrides}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=4)
    return Gemma3ForConditionalGeneration(config)

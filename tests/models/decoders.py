"""Decoders of every family: what is made, opened, asked and broken."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file

from foredraft.models.checkpoint import SINGLE, open_weights
from foredraft.models.model import Rows
from foredraft.models.spec import read_spec
from foredraft.models.torch_decoder.decoder import TorchDecoder
from tests.models.checkpoints import FAMILIES

LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 64}
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "gemma3": ("gemma3", {}),
    "llama3 rope": ("llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32}}),
    "linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}}),
    "yarn rope": ("qwen3", {"rope_parameters": YARN}),
    "yarn told its attention": ("llama", {"rope_parameters": {**YARN, "attention_factor": 1.5, "truncate": False}}),
    "window of qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "biases": ("granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "one key-value head": ("llama", {"num_key_value_heads": 1}),
    "gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
}
TEXT = tuple(int(token) for token in np.random.default_rng(7).integers(3, 97, 48))
#   prefix ── 0 ── 1 ── 4
#          │     └ 2 ── 5
#          └ 3
TREE = (-1, 0, 0, -1, 1, 2)


def open_decoder(folder: Path, **options: Any) -> TorchDecoder:
    return TorchDecoder(read_spec(json.loads((folder / "config.json").read_text())), open_weights(folder), **options)


def chain(tokens: Sequence[int], start: int, stop: int, wanted: int | None = None, slot: int = 0) -> Rows:
    n = stop - start
    return Rows(slot, start, tuple(tokens[start:stop]), tuple(range(-1, n - 1)), n if wanted is None else wanted)


def broken(folder: Path, change: Any) -> Path:
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE)
    return folder

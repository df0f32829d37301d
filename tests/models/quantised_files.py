"""Tiny llama GGUF files whose tensors are quantised as a test wants them, without a checkpoint behind them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from tests.models.gguf_files import close, letters

BLOCKS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")  # those that run in their own blocks
# where the fp16 scales of a block lie, and how many times the first the second is so that values average zero
_SCALES = MappingProxyType(
    {
        "Q8_0": {0: 1.0}, "Q4_0": {0: 1.0}, "Q4_1": {0: 1.0, 2: -7.5}, "Q5_0": {0: 1.0}, "Q5_1": {0: 1.0, 2: -15.5},
        "Q2_K": {80: 1.0, 82: 1.5}, "Q3_K": {108: 1.0}, "Q4_K": {0: 1.0, 2: 7.5}, "Q5_K": {0: 1.0, 2: 15.5},
        "Q6_K": {208: 1.0}, "IQ4_NL": {0: 1.0}, "IQ4_XS": {0: 1.0}, "IQ3_S": {0: 1.0}, "IQ3_XXS": {0: 1.0},
        "IQ2_XXS": {0: 1.0}, "IQ2_XS": {0: 1.0}, "IQ2_S": {0: 1.0}, "IQ1_S": {0: 1.0}, "TQ1_0": {52: 1.0},
        "TQ2_0": {64: 1.0},
    }
)  # fmt: skip


def random_blocks(kind: Kind, rows: int, cols: int, seed: int = 0, spread: float = 0.06) -> NDArray[np.uint8]:
    """Return random blocks [rows, bytes of a row] whose values average zero and deviate by about ``spread``."""
    rng = np.random.default_rng(seed)
    block, width = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows * cols // block, width), dtype=np.uint8)
    _scale(raw, kind, np.float32(1) / 64)
    sample = gguf.quants.dequantize(raw[: max(1, 4096 // block)], kind)
    _scale(raw, kind, spread / 64 / float(sample.std()) * rng.uniform(0.5, 1.5, len(raw)))
    return raw.reshape(rows, -1)


def _scale(raw: NDArray[np.uint8], kind: Kind, scales: Any) -> None:
    for place, factor in _SCALES[kind.name].items():
        values = np.broadcast_to(np.asarray(scales * factor, np.float16), len(raw))
        raw[:, place : place + 2] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, 2)


def quantised(kind: Kind, rows: int, cols: int, seed: int = 0, spread: float = 0.06) -> NDArray[Any]:
    """Return a matrix [rows, cols] as a file stores it: quantised by the library where it can, else random blocks."""
    if kind.name in _SCALES and kind.name not in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0"):
        return random_blocks(kind, rows, cols, seed, spread)
    values = np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32) * np.float32(spread)
    return np.asarray(gguf.quants.quantize(values, kind))


def quantised_file(
    path: Path,
    kind: Kind = Kind.Q4_0,
    kinds: Mapping[str, Kind] = MappingProxyType({}),
    *,
    hidden: int = 256,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    mlp: int = 512,
    vocabulary: int = 100,
    tied: bool = True,
    replaced: Mapping[str, tuple[NDArray[Any], Kind]] = MappingProxyType({}),
    keys: Mapping[str, int] = MappingProxyType({}),
) -> Path:
    """Write a llama whose matrices are of type ``kind``, or of that which ``kinds`` names, and return its path.

    Keys of ``kinds`` are GGUF's names, whole ("blk.1.attn_v.weight", "token_embd.weight", "output.weight") or without
    their layer ("attn_q", "ffn_down"); the whole name goes first. Norms are F32, near one. ``vocabulary`` is at most
    260 for a real tokenizer, which decodes bytes. ``replaced`` gives tensors as they are stored, by whole name; ``keys``
    more 32 bit metadata. The same arguments write the same bytes.
    """
    width = head_dim or hidden // heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(mlp)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width)
    writer.add_vocab_size(vocabulary)
    writer.add_key_length(width)
    writer.add_value_length(width)
    for key, value in keys.items():
        writer.add_uint32(key, value)
    letters(vocabulary).add_to(writer)
    q, kv = heads * width, kv_heads * width
    matrices = {"token_embd.weight": (vocabulary, hidden)}
    vectors = {"output_norm.weight": hidden}
    if not tied:
        matrices["output.weight"] = (vocabulary, hidden)
    for layer in range(layers):
        at = f"blk.{layer}."
        shapes = {"attn_q": (q, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden), "attn_output": (hidden, q)}
        shapes |= {"ffn_gate": (mlp, hidden), "ffn_up": (mlp, hidden), "ffn_down": (hidden, mlp)}
        matrices |= {f"{at}{leaf}.weight": shape for leaf, shape in shapes.items()}
        vectors |= {f"{at}attn_norm.weight": hidden, f"{at}ffn_norm.weight": hidden}
    for number, (name, (rows, cols)) in enumerate(matrices.items()):
        leaf = name.removesuffix(".weight").rpartition(".")[2]
        mine = kinds.get(name, kinds.get(leaf, kind))
        data, mine = replaced.get(name) or (quantised(mine, rows, cols, number), mine)
        writer.add_tensor(name, data, raw_dtype=mine)
    for number, (name, size) in enumerate(vectors.items()):
        values = 1 + 0.1 * np.random.default_rng(1000 + number).standard_normal(size)
        data, mine = replaced.get(name) or (values.astype(np.float32), Kind.F32)
        writer.add_tensor(name, data, raw_dtype=mine)
    return close(writer, path)

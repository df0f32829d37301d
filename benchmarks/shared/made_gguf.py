"""Random Llamas in GGUF files, quantised as asked: for measuring what no file at hand has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from tokenizers import pre_tokenizers

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ALL: Final = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
POOL: Final = 1 << 20  # values that rows are cut from, of each type and width
Kinds = Callable[[str, int], str]


def plain(kind: str, other: str = "Q6_K") -> Kinds:
    """Return the types of a file of one type, whose embedding is of another, as llama.cpp's quantiser makes them."""
    return lambda name, _: other if name == "token_embd" else kind


def medium(name: str, layer: int) -> str:
    """Return the types of a Q4_K_M file: Q6_K for the embedding, and for v and down in half of the layers."""
    return "Q6_K" if name == "token_embd" or (name in ("attn_v", "ffn_down") and layer % 2) else "Q4_K"


def mixed(name: str, layer: int) -> str:
    """Return types such that eight matrices in a row, q, k and v of one layer among them, have eight different ones."""
    order = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    return ALL[(order.index(name) + layer) % len(ALL)] if name in order else "Q6_K"


def random_gguf(
    into: Path, kinds: Kinds, *, hidden: int, layers: int, mlp: int, heads: int, kv_heads: int, vocabulary: int
) -> Path:
    """Write a random Llama whose embedding is its head, scaled so that its activations stay near 1.

    ``kinds`` gives the type of a matrix by its name and its layer (-1: none). The tokenizer knows bytes, and the rest
    of the vocabulary has names that no text produces.
    """
    dim = hidden // heads
    writer = gguf.GGUFWriter(into, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(mlp)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(dim)
    _add_tokenizer(writer, vocabulary)
    shapes = {
        "attn_q": (hidden, hidden), "attn_k": (kv_heads * dim, hidden), "attn_v": (kv_heads * dim, hidden),
        "attn_output": (hidden, hidden), "ffn_gate": (mlp, hidden), "ffn_up": (mlp, hidden), "ffn_down": (hidden, mlp),
    }  # fmt: skip
    matrices = {"token_embd.weight": (kinds("token_embd", -1), (vocabulary, hidden))}
    norms = ["output_norm.weight"]
    for layer in range(layers):
        matrices |= {f"blk.{layer}.{name}.weight": (kinds(name, layer), shape) for name, shape in shapes.items()}
        norms += [f"blk.{layer}.{name}.weight" for name in ("attn_norm", "ffn_norm")]
    for name, (kind, (rows, width)) in matrices.items():
        number = GGMLQuantizationType[kind]
        size = row_bytes(kind, width)
        writer.add_tensor_info(name, (rows, size), np.dtype(np.uint8), rows * size, number)
    for name in norms:
        writer.add_tensor_info(name, (hidden,), np.dtype(np.float32), 4 * hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    pools = Pools()
    for kind, (rows, width) in matrices.values():
        writer.write_tensor_data(pools.rows(kind, rows, width))
    for _ in norms:
        writer.write_tensor_data(np.ones(hidden, np.float32))
    writer.close()
    return into


def row_bytes(kind: str, width: int) -> int:
    """Return the bytes of a row of ``width`` values."""
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return int(width // values * size)


class Pools:
    """Blocks of N(0, 1/width), drawn once: a row begins at a fresh place, as drawing a billion would take minutes."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)
        self._pools: dict[tuple[str, int], Any] = {}

    def rows(self, kind: str, rows: int, width: int) -> Any:
        """Return random rows, uint8 [rows, bytes]."""
        if (kind, width) not in self._pools:
            self._pools[kind, width] = self._blocks(kind, width**-0.5)
        pool = self._pools[kind, width]
        size = row_bytes(kind, width)
        out = np.empty((rows, size), np.uint8)
        starts = self._draw.integers(0, pool.size // pool.shape[1] - size // pool.shape[1], rows) * pool.shape[1]
        flat = pool.reshape(-1)
        for row, start in zip(out, starts.tolist(), strict=True):
            row[:] = flat[start : start + size]
        return out

    def _blocks(self, kind: str, scale: float) -> Any:
        values, _ = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        count = POOL // values
        if values == 32:
            normal = self._draw.standard_normal((count, values), dtype=np.float32) * np.float32(scale)
            return gguf.quantize(normal, GGMLQuantizationType[kind])
        return np.concatenate(list(self._parts(kind, scale, count)), axis=1)

    def _parts(self, kind: str, scale: float, count: int) -> Iterator[Any]:
        """Yield the parts of blocks of 256, which the library reads but does not write: scales and uniform codes."""
        bits = self._draw.integers
        codes = {"Q4_K": 16, "Q5_K": 32, "Q6_K": 64}[kind]
        spread = codes / 12**0.5  # standard deviation of a uniform code
        if kind == "Q6_K":  # low 4 bits, high 2 bits, 16 scales, their scale
            yield bits(0, 256, (count, 192), np.uint8)
            scales = bits(64, 128, (count, 16), np.int8) * self._draw.choice(np.array([-1, 1], np.int8), (count, 16))
            yield scales.astype(np.int8).view(np.uint8)
            yield self._halves(scale / (96 * spread), count)
            return
        ones = self._halves(scale / (48 * spread), count)
        yield ones
        # the least value is that many steps below 0, so that codes lie on both sides of it
        yield (ones.view(np.float16) * np.float16((codes - 1) / 2)).view(np.uint8)
        yield _six_bits(bits(32, 64, (count, 8), np.uint8), bits(44, 52, (count, 8), np.uint8))
        yield bits(0, 256, (count, 160 if kind == "Q5_K" else 128), np.uint8)

    def _halves(self, scale: float, count: int) -> Any:
        drawn = scale * self._draw.uniform(0.8, 1.2, (count, 1))
        return drawn.astype(np.float16).view(np.uint8)


def _six_bits(scales: Any, least: Any) -> Any:
    """Return 8 scales and 8 least values of 6 bits each [count, 8] as 12 bytes [count, 12]: 4 of 6 bits and 2 more."""
    first, second = scales[:, :4], scales[:, 4:]
    low, high = least[:, :4], least[:, 4:]
    ends = (first | (second >> 4) << 6, low | (high >> 4) << 6, (second & 15) | (high & 15) << 4)
    return np.concatenate(ends, axis=1).astype(np.uint8)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "AB"]
    tokens += [f"<{number}>" for number in range(len(tokens), vocabulary)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens[:vocabulary])
    writer.add_token_types([3] * len(SPECIAL) + [1] * (vocabulary - len(SPECIAL)))
    writer.add_token_merges(["A B"])
    writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)

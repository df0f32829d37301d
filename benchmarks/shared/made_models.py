"""Models made for a measurement: the first layers of another one, and a random one of any size."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from foredraft.models.checkpoint import open_weights
from foredraft.models.weights.safetensors import TYPES

PER_LAYER = ("layer_types", "no_rope_layers")
LEFT_OUT = ("model.safetensors.index.json", "foredraft.json")


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written; ``data`` is called when its turn comes, so that only one is in memory at a time."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], Any]


def first_layers(folder: Path, into: Path, layers: int) -> Path:
    """Write the model of a folder's first layers, with its embedding, last norm and head: a draft nobody trained."""
    return some_layers(folder, into, range(layers))


def some_layers(folder: Path, into: Path, layers: Sequence[int]) -> Path:
    """Write the model of some of a folder's layers, in the order given, with its embedding, last norm and head."""
    into.mkdir(parents=True)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = len(layers)
    for key in PER_LAYER:
        if isinstance(config.get(key), list):
            config[key] = [config[key][layer] for layer in layers]
    for path in folder.iterdir():
        if path.is_file() and path.suffix in (".json", ".model", ".jinja", ".txt") and path.name not in LEFT_OUT:
            shutil.copy(path, into)
    (into / "config.json").write_text(json.dumps(config))
    weights = open_weights(folder)

    def named(name: str) -> list[tuple[str, str]]:
        before, found, rest = name.partition("layers.")
        number, _, part = rest.partition(".")
        if not found:
            return [(name, name)]
        return [(f"{before}layers.{place}.{part}", name) for place, layer in enumerate(layers) if int(number) == layer]

    def data(name: str) -> Callable[[], Any]:
        return lambda: weights.raw(name)

    pairs = [pair for name in weights.names() for pair in named(name)]
    write(into, [Tensor(new, weights.dtype(old), weights.shape(old), data(old)) for new, old in pairs])
    return into


def random_llama(
    into: Path,
    *,
    hidden: int,
    layers: int,
    mlp: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    faint: Collection[int] = (),
) -> Path:
    """Write a random Llama in bf16, scaled so that its activations stay near 1. It has no tokenizer.

    The sub-layers in ``faint`` (2 * layer: attention, 2 * layer + 1: gated layer) add next to nothing to what enters.
    """
    into.mkdir(parents=True)
    dim = hidden // heads
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
        "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": mlp, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": dim, "vocab_size": vocabulary, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (into / "config.json").write_text(json.dumps(config))
    draw = np.random.default_rng(0)
    # rows are read from fresh places of one pool: drawing a billion normals would take minutes
    normal = draw.standard_normal(1 << 22, dtype=np.float32)
    pools = {width: _bf16(normal * np.float32(width**-0.5)) for width in (hidden, mlp)}

    def weight(rows: int, width: int) -> Any:
        out = np.empty((rows, width), np.uint16)
        pool = pools[width]
        for row, start in zip(out, draw.integers(0, pool.size - width, rows), strict=True):
            row[:] = pool[start : start + width]
        return out

    def linear(name: str, rows: int, width: int, quiet: bool = False) -> Tensor:
        def data() -> Any:
            return _halved(weight(rows, width), 14) if quiet else weight(rows, width)

        return Tensor(f"model.{name}.weight", "BF16", (rows, width), data)

    def norm(name: str) -> Tensor:
        return Tensor(f"model.{name}.weight", "BF16", (hidden,), lambda: _bf16(np.ones(hidden, np.float32)))

    tensors = [linear("embed_tokens", vocabulary, hidden), norm("norm")]
    for number in range(layers):
        at = f"layers.{number}."
        tensors += [norm(f"{at}input_layernorm"), norm(f"{at}post_attention_layernorm")]
        tensors += [
            linear(f"{at}self_attn.q_proj", hidden, hidden),
            linear(f"{at}self_attn.o_proj", hidden, hidden, 2 * number in faint),
        ]
        tensors += [linear(f"{at}self_attn.{part}_proj", kv_heads * dim, hidden) for part in "kv"]
        tensors += [linear(f"{at}mlp.{part}_proj", mlp, hidden) for part in ("gate", "up")]
        tensors.append(linear(f"{at}mlp.down_proj", hidden, mlp, 2 * number + 1 in faint))
    write(into, tensors)
    return into


def write(folder: Path, tensors: Iterable[Tensor]) -> None:
    """Write a safetensors file, a tensor at a time."""
    tensors = list(tensors)
    header: dict[str, Any] = {}
    end = 0
    for tensor in tensors:
        size = prod(tensor.shape) * np.dtype(TYPES[tensor.dtype]).itemsize
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors:
            np.ascontiguousarray(tensor.data()).tofile(file)


def _halved(bits: Any, times: int) -> Any:
    """Halve numbers in bf16 so many times: exact down to the smallest, which become 0."""
    small = (bits >> 7 & 0xFF) <= times
    return np.where(small, 0, bits - np.uint16(times << 7)).astype(np.uint16)


def _bf16(x: Any) -> Any:
    return (x.view(np.uint32) >> 16).astype(np.uint16)

"""Random heads in the layouts in which others publish them: MTP modules inside a checkpoint, EAGLE-3 folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

Tensors = dict[str, Any]
NUMBERED = ("enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head", "embed_tokens")
NAMED = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm", "shared_head.head", "embed_tokens")


def cut(values: Any) -> Any:
    """Return numbers in float32 that bfloat16 can hold."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def random(rng: Any, shape: tuple[int, ...], centre: float = 1.0) -> Any:
    """Return a random norm or matrix, by its shape."""
    if len(shape) == 1:
        return cut(centre + 0.2 * rng.normal(size=shape))
    return cut(rng.normal(size=shape) / np.sqrt(shape[1]))


def read(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """Return a checkpoint's config and tensors."""
    return json.loads((folder / "config.json").read_text()), dict(load_file(folder / "model.safetensors"))


def write(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    """Write a checkpoint; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def add_mtp(
    folder: Path,
    change: Callable[[Tensors], None] | None = None,
    *,
    layout: str = "numbered",
    modules: int = 1,
    head: bool = False,
    embedding: bool = False,
    seed: int = 0,
) -> Path:
    """Put MTP modules into a checkpoint, whose tensors ``change`` may alter; return the folder.

    Their layers are like the last one. ``layout`` is "numbered" (DeepSeek-V3, GLM-4.5) or "named" (Qwen3-Next).
    """
    config, tensors = read(folder)
    rng = np.random.default_rng(seed)
    text = config.get("text_config", config)
    count, wide, words = text["num_hidden_layers"], text["hidden_size"], text["vocab_size"]
    prefix = next(n for n in tensors if n.endswith("embed_tokens.weight")).removesuffix("embed_tokens.weight")
    centre = 0.0 if "gemma" in config["model_type"] else 1.0
    last = f"{prefix}layers.{count - 1}."
    layer = {name.removeprefix(last): tensors[name].shape for name in tensors if name.startswith(last)}
    for number in range(modules):
        numbered = layout == "numbered"
        module = f"{prefix}layers.{count + number}." if numbered else "mtp."
        block = module if numbered else f"mtp.layers.{number}."
        shapes = dict(zip(NUMBERED if numbered else NAMED, [(wide,)] * 2 + [(wide, 2 * wide), (wide,)], strict=False))
        shapes |= {"shared_head.head": (words, wide)} if head else {}
        shapes |= {"embed_tokens": (words, wide)} if embedding else {}
        for name, shape in shapes.items():
            tensors[f"{module}{name}.weight"] = random(rng, shape, centre)
        for name, shape in layer.items():
            tensors[block + name] = random(rng, shape, 0.0 if name.endswith("bias") else centre)
    config["num_nextn_predict_layers"] = modules
    if change is not None:
        change(tensors)
    return write(folder, config, tensors)


def make_eagle3(
    folder: Path,
    target: Path,
    change: Callable[[dict[str, Any], Tensors], None] | None = None,
    *,
    taps: int = 3,
    draft: int | None = 40,
    speculators: bool = False,
    embedding: bool = False,
    head: bool = True,
    prefix: str = "midlayer.",
    **given: Any,
) -> Path:
    """Write random EAGLE-3 heads for the model of a folder, whose config and tensors ``change`` may alter."""
    theirs, _ = read(target)
    rng = np.random.default_rng(1)
    inner = {
        "model_type": "llama", "hidden_size": theirs["hidden_size"], "intermediate_size": 40, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "rope_theta": 10000.0, "max_position_embeddings": 64, "vocab_size": theirs["vocab_size"],
        "tie_word_embeddings": False,
    }  # fmt: skip
    outer = {k: v for k, v in given.items() if k not in ("model_type", "hidden_size", "attention_bias")}
    inner |= {k: v for k, v in given.items() if k not in outer}
    wide, words = inner["hidden_size"], inner["vocab_size"]
    count = words if draft is None else draft
    size, read_wide = inner["head_dim"], taps * theirs["hidden_size"]
    q, kv, mlp = 4 * size, 2 * size, 40
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (wide, read_wide), "norm.weight": (wide,),
        f"{prefix}hidden_norm.weight": (wide,), f"{prefix}input_layernorm.weight": (wide,),
        f"{prefix}post_attention_layernorm.weight": (wide,),
        f"{prefix}self_attn.q_proj.weight": (q, 2 * wide), f"{prefix}self_attn.k_proj.weight": (kv, 2 * wide),
        f"{prefix}self_attn.v_proj.weight": (kv, 2 * wide), f"{prefix}self_attn.o_proj.weight": (wide, q),
        f"{prefix}mlp.gate_proj.weight": (mlp, wide), f"{prefix}mlp.up_proj.weight": (mlp, wide),
        f"{prefix}mlp.down_proj.weight": (wide, mlp),
    }  # fmt: skip
    shapes |= {"lm_head.weight": (count, wide)} if head else {}
    shapes |= {"embed_tokens.weight": (words, wide)} if embedding else {}
    flags = {**outer, **outer.get("eagle_config", {})}
    if flags.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (theirs["hidden_size"],) for i in range(taps)}
    shapes |= {"input_norm.weight": (read_wide,)} if flags.get("norm_before_fc") else {}
    if inner["model_type"] == "qwen3":
        shapes |= {f"{prefix}self_attn.{part}_norm.weight": (size,) for part in "qk"}
    tensors = {name: random(rng, shape) for name, shape in shapes.items()}
    if inner.get("attention_bias"):
        for part, rows in (("q", q), ("k", kv), ("v", kv), ("o", wide)):
            tensors[f"{prefix}self_attn.{part}_proj.bias"] = random(rng, (rows,), 0.0)
    if draft is not None:
        ids = np.sort(rng.permutation(words)[:draft])
        tensors |= {"d2t": ids - np.arange(draft), "t2d": np.isin(np.arange(words), ids)}
    config = {**outer, **({} if draft is None else {"draft_vocab_size": draft})}
    if speculators:
        config |= {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}
        config |= {"transformer_layer_config": inner, "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"}}
    else:
        config |= {"architectures": ["LlamaForCausalLMEagle3"], **inner}
    if change is not None:
        change(config, tensors)
    return write(folder, config, tensors)

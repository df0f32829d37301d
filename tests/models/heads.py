"""Random heads for any checkpoint, as a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from foredraft.models.checkpoint import open_weights
from foredraft.models.heads.file import HeadsSpec, write_heads
from foredraft.models.identity import weights_digest
from foredraft.models.spec import read_spec

Tensors = dict[str, Any]


def bf16(values: Any) -> Any:
    """Return numbers as the bits of bfloat16, which they are cut to."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def spec_of_heads(folder: Path, **given: Any) -> HeadsSpec:
    """Return the description of heads for the model of a folder; ``given`` are fields that differ."""
    target = read_spec(json.loads((folder / "config.json").read_text()))
    fields: dict[str, Any] = {
        "kind": "recurrent", "taps": (0, target.layers - 1), "hidden": target.hidden, "eps": 1e-5, "steps": 3,
        "target": "tiny", "digest": weights_digest(open_weights(folder), target), "vocabulary": target.vocabulary,
    }  # fmt: skip
    if given.get("kind") != "medusa":
        fields |= {"mlp": 40, "heads": 4, "kv_heads": 2, "head_dim": 8, "rope_theta": 10000.0}
    return HeadsSpec(**{**fields, **given})


def random_heads(spec: HeadsSpec, vocabulary: Any, *, fused: bool = True, head: bool = False, seed: int = 0) -> Tensors:
    """Return random tensors for a description, as they are written."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, shape in spec.shapes(len(vocabulary), fused, head).items():
        if name == "vocabulary":
            tensors[name] = np.array(vocabulary, np.int32)
        elif len(shape) == 1 or name == "fuse.norms":
            tensors[name] = bf16(1 + 0.2 * rng.normal(size=shape))
        else:
            tensors[name] = bf16(rng.normal(size=shape) / np.sqrt(shape[1]))
    return tensors


def make_heads(
    folder: Path,
    path: Path,
    change: Callable[[Tensors], None] | None = None,
    *,
    tokens: Any = None,
    fused: bool = True,
    head: bool = False,
    **given: Any,
) -> Path:
    """Write random heads for the model of a folder, whose tensors ``change`` may alter; return the path."""
    spec = spec_of_heads(folder, **given)
    ids = range(0, spec.vocabulary, 2) if tokens is None else tokens
    tensors = random_heads(spec, ids, fused=fused, head=head)
    if change is not None:
        change(tensors)
    write_heads(path, spec, tensors)
    return path

"""Made-up answers that are easy to learn, and tiny targets that give real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from foredraft.models.rope import Rope
from foredraft.runtime.loaded_model import LoadedModel, Machine, open_model
from foredraft.training.data.shards import Example, narrowed
from foredraft.training.heads.loss import Ends
from foredraft.training.heads.module import HeadsShape

V, H, TAPS, K = 40, 32, 2, 6
FEW = 24 * 32 * (260 + 3 * (2 * 8 * 6 + 3 * 48)) // 128 + 1  # as ``collect.QUICK``: 24 prompts a batch of tiny models


def host_of(folder: Path, cache: Path, **options: Any) -> LoadedModel:
    return open_model(str(folder), Machine(**{"dtype": "f32", "threads": 1, "cache": cache, **options}))


def shape_of(taps: int = TAPS, theta: float = 100.0) -> HeadsShape:
    return HeadsShape(H, 48, 4, 2, 8, taps, 1e-5, Rope(8, theta))


def ends_of(seed: int = 0, **given: Any) -> Ends:
    draw = torch.Generator().manual_seed(seed)
    embedding = torch.randn((V, H), generator=draw).bfloat16()
    return Ends(embedding, torch.randn((V, H), generator=draw).bfloat16(), **given)


def example(seed: int, length: int = 24, prompt: int = 6, sure: float = 0.9, drawn: bool = False) -> Example:
    """A text whose every token follows from the one before, and states that tell of it."""
    rng = np.random.default_rng(seed)
    tokens = [int(rng.integers(V))]
    while len(tokens) < length:
        follower = (tokens[-1] * 7 + 3) % V
        tokens.append(follower if not drawn or rng.random() < sure else int(rng.integers(V)))
    told = np.random.default_rng(1).normal(size=(V, TAPS, H)).astype(np.float32)
    top, p = np.empty((length - prompt, K), np.int32), np.empty((length - prompt, K))
    for row, before in enumerate(tokens[prompt - 1 : -1]):
        first = (before * 7 + 3) % V
        top[row] = [first, *[(first + i) % V for i in range(1, K)]]
        p[row] = [sure, *[(1 - sure) / V] * (K - 1)]
    states = narrowed(told[tokens[:-1]])
    return Example(np.array(tokens, np.int32), prompt, states, top, np.log(p).astype(np.float32))


def texts_of(count: int = 24) -> tuple[list[Example], list[Example]]:
    """Texts to train on and others, greedy and drawn, to judge by."""
    return [example(i, 16 + i % 9) for i in range(count)], [example(100 + i, drawn=i % 2 == 1) for i in range(4)]

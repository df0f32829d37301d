"""From texts on disk to what a step of training takes: held-out texts, the draft vocabulary, batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.training.shards import Example

_HELD_OUT = 0.02  # share of the texts that are never trained on
_BUCKETS = 512  # texts sorted by length among themselves, so that a batch is not padded much


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of one step: B of them, padded to L rows; N of these rows foretell a token of an answer."""

    states: Tensor  # [B, L, taps, H] bfloat16
    tokens: Tensor  # [B, L] the token after each row's
    rows: Tensor  # [N] of B * L
    ids: Tensor  # [N, K] the target's likeliest tokens, as rows of the draft vocabulary
    p: Tensor  # [N, K] their probabilities; 0 for one that is not in it


def held_out(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Return texts to train on and texts to judge by; which is which depends on a text's place alone."""
    every = round(1 / _HELD_OUT)
    judged = [e for i, e in enumerate(examples) if i % every == every // 2]
    return [e for i, e in enumerate(examples) if i % every != every // 2], judged


def draft_vocabulary(examples: Sequence[Example], vocabulary: int, size: int) -> NDArray[np.int32]:
    """Return the ``size`` tokens that answers hold most often (FR-Spec, arXiv 2502.14856), increasing: [Vd].

    Tokens that never came up fill the rest, lowest first.
    """
    counts = np.zeros(vocabulary, np.int64)
    for example in examples:
        counts += np.bincount(example.tokens[example.prompt :], minlength=vocabulary)
    return np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int32)


def ranks(ids: NDArray[np.int32], vocabulary: int) -> Tensor:
    """Return each token's row in the draft vocabulary, -1 for one that has none: [V]."""
    found = torch.full((vocabulary,), -1, dtype=torch.int64)
    found[torch.from_numpy(ids.astype(np.int64))] = torch.arange(len(ids))
    return found


def batch_of(examples: Sequence[Example], rank: Tensor) -> Batch:
    """Lay texts side by side."""
    length, taps, hidden = max(len(e.states) for e in examples), *examples[0].states.shape[1:]
    states = torch.zeros((len(examples), length, taps, hidden), dtype=torch.bfloat16)
    tokens = torch.zeros((len(examples), length), dtype=torch.int64)
    rows, tops, known = [], [], []
    for i, example in enumerate(examples):
        n = len(example.states)
        states[i, :n] = torch.from_numpy(np.array(example.states).view(np.int16)).view(torch.bfloat16)
        tokens[i, :n] = torch.from_numpy(example.tokens[1:].astype(np.int64))
        first = example.prompt - 1  # row t foretells token t + 2; the answer's first is the target's own to say
        rows.append(i * length + torch.arange(first, n - 1))
        tops.append(torch.from_numpy(example.top[1:].astype(np.int64)))
        known.append(torch.from_numpy(np.exp(example.top_logits[1:])))
    ids = rank[torch.cat(tops)]
    return Batch(states, tokens, torch.cat(rows), ids.clamp(min=0), torch.cat(known) * (ids >= 0))


def in_order(count: int, lengths: Sequence[int], rows: int, seed: int) -> Iterator[list[int]]:
    """Yield batches of text numbers, each of at most ``rows`` padded rows, for one pass over all of them.

    The order depends on ``seed`` alone.
    """
    draw = random.Random(seed)
    order = list(range(count))
    draw.shuffle(order)
    for at in range(0, count, _BUCKETS):
        made: list[list[int]] = [[]]
        for i in sorted(order[at : at + _BUCKETS], key=lambda i: lengths[i]):
            if made[-1] and (len(made[-1]) + 1) * lengths[i] > rows:
                made.append([])
            made[-1].append(i)
        draw.shuffle(made)
        yield from made

"""From texts on disk to what a step of training takes: held-out texts, the draft vocabulary, batches."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.training.data.shards import Example

_HELD_OUT = 0.02  # share of the texts that are never trained on
_BUCKETS = 512  # texts sorted by length among themselves, so that a batch is not padded much


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of one step: B of them, padded to L rows; N of these rows foretell a token of an answer."""

    states: Tensor  # [B, L, taps, H] bfloat16; taps is 0 where they were not asked for
    tokens: Tensor  # [B, L + 1] row t's own and then the token after it
    rows: Tensor  # [N] of B * L
    places: Tensor  # [N] t of each of them
    ids: Tensor  # [N, K] the target's likeliest tokens, as rows of the draft vocabulary
    p: Tensor  # [N, K] their probabilities; 0 for one that is not in it


def held_out(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Return texts to train on and texts to judge by.

    Which is which depends on the prompt alone, so nothing that is judged by was answered in training as well.
    """
    if not examples:
        return [], []
    lots = [_lot(example) for example in examples]
    limit = max(_HELD_OUT, min(lots))
    judged = [e for e, lot in zip(examples, lots, strict=True) if lot <= limit]
    return [e for e, lot in zip(examples, lots, strict=True) if lot > limit], judged


def _lot(example: Example) -> float:
    """Return a number in [0, 1) that depends on a text's prompt."""
    prompt = example.tokens[: example.prompt].tobytes()
    return int.from_bytes(hashlib.sha256(prompt).digest()[:7], "big") / 2**56


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


def batch_of(examples: Sequence[Example], rank: Tensor, *, states: bool = True) -> Batch:
    """Lay texts side by side, with what the tapped layers held or without it."""
    length, taps, hidden = max(len(e.tokens) for e in examples) - 1, *examples[0].states.shape[1:]
    held = torch.zeros((len(examples), length, taps if states else 0, hidden), dtype=torch.bfloat16)
    tokens = torch.zeros((len(examples), length + 1), dtype=torch.int64)
    rows, places, tops, known = [], [], [], []
    for i, example in enumerate(examples):
        n = len(example.tokens) - 1
        if states:
            held[i, :n] = torch.from_numpy(np.array(example.states).view(np.int16)).view(torch.bfloat16)
        tokens[i, : n + 1] = torch.from_numpy(example.tokens.astype(np.int64))
        # row t foretells token t + 2; the answer's first is the target's own to say
        places.append(torch.arange(example.prompt - 1, n - 1))
        rows.append(i * length + places[-1])
        tops.append(torch.from_numpy(example.top[1:].astype(np.int64)))
        known.append(torch.from_numpy(np.exp(example.top_logits[1:])))
    ids = rank[torch.cat(tops)]
    p = torch.cat(known) * (ids >= 0)
    return Batch(held, tokens, torch.cat(rows), torch.cat(places), ids.clamp(min=0), p)


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

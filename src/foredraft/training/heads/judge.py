"""What a module is worth on answers that it was not trained on: rounds replayed, acceptance by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from foredraft.training.data.replay import Replay, expected, replay
from foredraft.training.data.shards import Example
from foredraft.training.heads.data import Batch, batch_of
from foredraft.training.heads.loss import ROWS, Ends, weighted_loss
from foredraft.training.heads.module import Guesser

GUESSES: Final = 5  # of a replayed chain
_TEXTS: Final = 16  # side by side


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a module is worth on held-out answers."""

    greedy: Replay  # chains of ``GUESSES``, or of as many steps as there are
    drawn: float  # tokens a pass at temperature 1, expected
    acceptance: tuple[float, ...]  # sum of min(p, q), by step
    agreement: tuple[float, ...]  # how often the likeliest tokens are the same, by step


def states_of(module: Guesser, ends: Ends, batch: Batch, steps: int) -> list[Tensor]:
    """Return what the head reads [B, L, H] at each step, bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        states = module.unrolled(batch.states, ends.embedded(batch.tokens), steps)
    return [s.to(torch.bfloat16) for s in states]


@torch.no_grad()
def judged(module: Guesser, ends: Ends, texts: Sequence[Example], rank: Tensor) -> Judgement:
    """Replay rounds on answers: greedy ones as generation would, drawn ones in expectation."""
    right: list[Any] = []
    ratios: list[Any] = []
    steps = GUESSES if module.steps is None else min(GUESSES, module.steps)
    chain = GUESSES if steps == 1 else steps
    sums, rows = np.zeros((2, steps)), np.zeros(steps)
    for at in range(0, len(texts), _TEXTS):
        some = texts[at : at + _TEXTS]
        batch = batch_of(some, rank, states=module.reads)
        found = [_step(s.flatten(0, 1)[batch.rows], ends, batch) for s in states_of(module, ends, batch, steps)]
        for step, scores in enumerate(found):
            real = batch.places >= step
            sums[:, step] += [float(scores[i][real].sum()) for i in (0, 1)]
            rows[step] += int(real.sum())
        found = found * (chain // steps)
        first = 0
        for text in some:
            part = slice(first, first + len(text.top) - 1)
            first = part.stop
            if (text.top[:, 0] == text.tokens[text.prompt :]).all():
                right.append(np.stack([f[1][part].numpy() > 0 for f in found]))
            else:
                own = torch.from_numpy(text.tokens[text.prompt + 1 :].astype(np.int64))
                ratios.append(_ratios([f[2][part] for f in found], batch, part, rank[own]))
    acceptance, agreement = (tuple((part / np.maximum(1, rows)).round(4).tolist()) for part in sums)
    return Judgement(replay(right, chain), expected(ratios, chain), acceptance, agreement)


def _step(s: Tensor, ends: Ends, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return acceptance, agreement, and log q at the target's likeliest tokens [N, K]."""
    _, acceptance, agreement = weighted_loss(s, ends, batch.ids, batch.p, torch.zeros(len(s)))
    chosen = []
    for at in range(0, len(s), ROWS):
        logits = ends.logits(s[at : at + ROWS])
        chosen.append(logits.gather(1, batch.ids[at : at + ROWS]) - logits.logsumexp(-1, keepdim=True))
    return acceptance, agreement, torch.cat(chosen)


def _ratios(chosen: Sequence[Tensor], batch: Batch, part: slice, own: Tensor) -> Any:
    """Return min(1, q / p) of a text's own tokens, by step: 0 where the token is not among the likeliest."""
    ids, p = batch.ids[part], batch.p[part]
    here = (ids == own[:, None]) & (p > 0)
    return torch.stack([((c.exp() / p.clamp(min=1e-30)).clamp(max=1.0) * here).sum(-1) for c in chosen]).numpy()

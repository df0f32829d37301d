"""The training of a distilled draft model in torch: its layers and last norm learn the target's law at each place."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.shared.made_models import Tensor as Written
from benchmarks.shared.made_models import write
from benchmarks.shared.target_answers import Answer
from foredraft.models.checkpoint import open_weights

OTHERS = 4096  # unlikely tokens that a step looks at
PLACES = 512  # rows of logits in memory at a time
WARM_UP, FLOOR = 0.05, 0.03  # of the steps; of the rate, at the end
SAVE_EVERY = 50  # steps
BUCKET = 8  # batches that are sorted by length together, so that little of a batch is padding


@dataclass(frozen=True)
class Course:
    """How a training goes; the same course, answers and start give the same model."""

    steps: int
    batch: int
    rate: float
    seed: int
    threads: int | None = None


def train(
    start: Path, work: Path, answers: Sequence[Answer], course: Course, tell: Callable[[str], None]
) -> tuple[dict[str, Any], list[list[float]]]:
    """Return the trained weights by name, and the loss curve as [step, mean KL in nats a place, seconds so far].

    Goes on from ``work/training.pt`` where that lies there.
    """
    from transformers import AutoModelForCausalLM

    if course.threads is not None:
        torch.set_num_threads(course.threads)
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    head = model.get_output_embeddings().weight.detach().bfloat16()
    model.get_input_embeddings().weight.requires_grad_(False)
    model.get_output_embeddings().weight.requires_grad_(False)
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    weights = [p for _, p in trained]
    decayed = {"params": [p for p in weights if p.ndim > 1], "weight_decay": 0.01}
    adam = torch.optim.AdamW(
        [decayed, {"params": [p for p in weights if p.ndim == 1], "weight_decay": 0.0}], betas=(0.9, 0.98)
    )
    done, kept = 0, work / "training.pt"
    curve: list[list[float]] = []
    if kept.exists():
        state = torch.load(kept, weights_only=True)
        done, curve = state["done"], state["curve"]
        adam.load_state_dict(state["adam"])
        model.load_state_dict(state["weights"], strict=False)
    order = batches(answers, course)
    began = time.perf_counter() - (curve[-1][2] if curve else 0.0)
    for step in range(done, course.steps):
        for group in adam.param_groups:
            group["lr"] = course.rate * pace(step / course.steps)
        loss = learn(
            model.base_model,
            head,
            [answers[i] for i in order[step]],
            adam,
            weights,
            np.random.default_rng((course.seed, step)),
        )
        spent = time.perf_counter() - began
        curve.append([step, round(loss, 4), round(spent, 1)])
        left = spent / (step + 1) * (course.steps - step - 1)
        tell(f"step {step + 1}/{course.steps}, KL {loss:.3f}, {left:.0f} s left")
        if (step + 1) % SAVE_EVERY == 0 and step + 1 < course.steps:
            state = {"done": step + 1, "curve": curve, "adam": adam.state_dict()}
            torch.save({**state, "weights": dict(trained)}, kept.with_suffix(".part"))
            os.replace(kept.with_suffix(".part"), kept)
    return dict(model.state_dict()), curve


def pace(share: float) -> float:
    """Return the rate's factor after a share of the steps: a short warm-up, then half a cosine."""
    if share < WARM_UP:
        return (share + 0.01) / (WARM_UP + 0.01)
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * (share - WARM_UP) / (1 - WARM_UP)))


def batches(answers: Sequence[Answer], course: Course) -> list[list[int]]:
    """Return which answers each step learns from: every answer once, in a new order, before any comes again."""
    made: list[list[int]] = []
    draw = np.random.default_rng(course.seed)
    while len(made) < course.steps:
        order = draw.permutation(len(answers))
        epoch: list[list[int]] = []
        for at in range(0, len(order), BUCKET * course.batch):
            bucket = sorted(order[at : at + BUCKET * course.batch].tolist(), key=lambda i: len(answers[i].tokens))
            epoch += [bucket[i : i + course.batch] for i in range(0, len(bucket), course.batch)]
        made += [epoch[i] for i in draw.permutation(len(epoch))]
    return made[: course.steps]


def learn(
    trunk: nn.Module,
    head: Tensor,
    batch: Sequence[Answer],
    adam: torch.optim.Optimizer,
    weights: list[nn.Parameter],
    draw: np.random.Generator,
) -> float:
    """Take one step; return the mean loss."""
    length = max(len(a.tokens) for a in batch) - 1
    ids = torch.zeros((len(batch), length), dtype=torch.int64)
    places: list[int] = []
    for row, a in enumerate(batch):
        ids[row, : len(a.tokens) - 1] = torch.from_numpy(a.tokens[:-1])
        places += range(row * length + a.first - 1, row * length + len(a.tokens) - 1)
    # padding follows the text and attention looks back only: no mask is needed
    with torch.autocast("cpu", torch.bfloat16):
        hidden = trunk(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)[places]
    top = torch.from_numpy(np.concatenate([a.top for a in batch])).long()
    p = torch.from_numpy(np.concatenate([a.log_p for a in batch])).exp()
    tokens, among, bias = some_of(len(head), top, draw)
    loss, slope = kl(hidden.detach().bfloat16(), head[tokens], bias, among, p)
    hidden.backward(slope / len(places))
    nn.utils.clip_grad_norm_(weights, 1.0)
    adam.step()
    adam.zero_grad()
    return loss / len(places)


def some_of(vocabulary: int, top: Tensor, draw: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens whose logits a step computes, where ``top`` lie among them, and what is added to each logit.

    They are all that are likely somewhere in the batch and a sample of the others, weighted to stand for all of these:
    the whole head would cost more than the layers.
    """
    likely, places = torch.unique(top, return_inverse=True)
    others = np.setdiff1d(np.arange(vocabulary), likely.numpy(), assume_unique=True)
    drawn = torch.from_numpy(draw.permutation(others)[:OTHERS])
    bias = torch.zeros(len(likely) + len(drawn))
    bias[len(likely) :] = math.log(len(others) / max(1, len(drawn)) or 1.0)
    return torch.cat([likely, drawn]), places, bias


def kl(hidden: Tensor, head: Tensor, bias: Tensor, top: Tensor, p: Tensor) -> tuple[float, Tensor]:
    """Return the sum over rows of KL(p, q) on the TOP tokens and the tail as one, and its slope by ``hidden``.

    ``hidden`` [N, H] and ``head`` [V, H] are bfloat16, ``bias`` [V] is added to the logits, ``top`` [N, TOP] are rows
    of the head and ``p`` their probabilities. With s = softmax the slope by a logit is s - p on the top tokens and
    s (1 - p_tail / q_tail) on all others.
    """
    slopes, total = [], 0.0
    tails = (1 - p.sum(-1, keepdim=True)).clamp_min(1e-6)
    for at in range(0, len(hidden), PLACES):
        rows = slice(at, at + PLACES)
        logits = (hidden[rows] @ head.T).float().add_(bias)
        log_s = logits.sub_(logits.logsumexp(-1, keepdim=True))
        log_q = log_s.gather(1, top[rows])
        q = log_q.exp()
        tail = (1 - q.sum(-1, keepdim=True)).clamp_min(1e-4)
        here, left = p[rows], tails[rows]
        total += float((here * (here.clamp_min(1e-9).log() - log_q)).sum() + (left * (left.log() - tail.log())).sum())
        slope = log_s.exp_().mul_(1 - left / tail).scatter_(1, top[rows], q - here)
        slopes.append((slope.bfloat16() @ head).float())
    return total, torch.cat(slopes)


def save(start: Path, out: Path, weights: dict[str, Any]) -> None:
    """Write the trained weights over a copy of ``start``'s tensors, in its types."""
    before = open_weights(start)

    def data(name: str) -> Callable[[], Any]:
        trained = weights[name]
        if before.dtype(name) == "BF16":
            return lambda: trained.bfloat16().view(torch.int16).numpy().view(np.uint16)
        return lambda: trained.float().numpy().astype(np.float32)

    kinds = {name: before.dtype(name) if before.dtype(name) == "BF16" else "F32" for name in before.names()}
    write(out, [Written(name, kind, before.shape(name), data(name)) for name, kind in kinds.items()])

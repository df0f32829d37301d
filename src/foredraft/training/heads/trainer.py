"""The loop that trains heads on what a target said: resumable at any step, judged by what rounds would yield."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.errors import NumericalError, StorageError
from foredraft.training.data.shards import Example
from foredraft.training.heads.data import Batch, batch_of, in_order, ranks
from foredraft.training.heads.judge import Judgement, judged, states_of
from foredraft.training.heads.loss import Ends, weighted_loss
from foredraft.training.heads.module import Guesser
from foredraft.training.heads.state import read_state, write_state

WARM_UP: Final = 0.02  # share of the training in which the rates rise
DECAY: Final = 0.5  # share of it in which they fall
MIN_RATE: Final = 0.02  # of a rate, at the end
MUON: Final = 0.02  # rate of the matrices: the spectral norm of a step
ADAM: Final = 2e-3  # rate of the norms
FADING: Final = 4.0  # weight of step i is exp(-i / FADING) (DSpark, arXiv 2607.05147)


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """How long and how finely to train."""

    epochs: float = 6.0  # how often each foretold token is visited
    unrolled: int = 3  # steps that the module takes over its own states
    rate: float = 1.0  # times the usual rates
    rows: int = 4096  # of a batch, padding included
    seed: int = 0


@dataclass(slots=True)
class Progress:
    """How far a training is. ``seconds`` are those spent training, of all its runs."""

    visits: int = 0
    steps: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    loss: float = math.nan
    history: list[dict[str, Any]] = field(default_factory=list)


class HeadsTrainer:
    """Trains ``module`` on texts (to train on, to judge by), between the frozen ``ends`` of the target.

    ``ids`` [Vd] are the tokens that the ends' head has rows for, of ``vocabulary`` in all.
    """

    def __init__(
        self,
        module: Guesser,
        ends: Ends,
        ids: NDArray[np.int32],
        texts: tuple[Sequence[Example], Sequence[Example]],
        plan: TrainPlan,
    ) -> None:
        self.module = module
        self.ends = ends
        self.plan = plan
        self.progress = Progress()
        self._ids = ids
        self._rank = ranks(ids, len(ends.embedding))
        self._texts, self._judged = texts
        self._lengths = [len(e.tokens) for e in self._texts]
        self.total = max(1, round(plan.epochs * sum(len(e.top) - 1 for e in self._texts)))
        matrices = [p for p in module.parameters() if p.ndim == 2]
        vectors = [p for p in module.parameters() if p.ndim != 2]
        muon, adam = MUON * plan.rate, ADAM * plan.rate
        self._optimisers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(matrices, lr=muon, weight_decay=0.0, momentum=0.95, adjust_lr_fn="original"), muon),
            (torch.optim.AdamW(vectors, lr=adam, betas=(0.9, 0.95), weight_decay=0.0), adam),
        ]

    @property
    def done(self) -> bool:
        """Whether the plan is carried out."""
        return self.progress.visits >= self.total

    def steps(self) -> Iterator[Progress]:
        """Train, a step at a time, until the plan is carried out. Raises NumericalError where the loss is no number."""
        progress = self.progress
        while not self.done:
            batches = list(in_order(len(self._texts), self._lengths, self.plan.rows, self.plan.seed + progress.epoch))
            for numbers in batches[progress.batch :]:
                began = perf_counter()
                batch = batch_of([self._texts[i] for i in numbers], self._rank, states=self.module.reads)
                progress.loss = self._step(batch)
                progress.visits += len(batch.rows)
                progress.steps += 1
                progress.batch += 1
                progress.seconds += perf_counter() - began
                yield progress
                if progress.visits >= self.total:
                    return
            progress.epoch, progress.batch = progress.epoch + 1, 0

    def _step(self, batch: Batch) -> float:
        rate = self._rate()
        for optimiser, base in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = base * rate
        loss = torch.zeros(())
        states = states_of(self.module, self.ends, batch, self.plan.unrolled)
        for step, (s, share) in enumerate(zip(states, self._weights(), strict=True)):
            weight = (batch.places >= step) * (share / len(batch.rows))  # the first rows of a step are void
            loss = loss + weighted_loss(s.flatten(0, 1)[batch.rows], self.ends, batch.ids, batch.p, weight)[0]
        if not math.isfinite(float(loss.detach())):
            raise NumericalError(f"the loss is no number at step {self.progress.steps}: what was saved before holds")
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        for optimiser, _ in self._optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return float(loss.detach())

    def _weights(self) -> list[float]:
        raw = [math.exp(-j / FADING) for j in range(self.plan.unrolled)]
        return [w / sum(raw) for w in raw]

    def _rate(self) -> float:
        """Return the share of the full rates: rising, level, falling."""
        way = self.progress.visits / self.total
        return min(1.0, (way + 1e-3) / WARM_UP, MIN_RATE + (1 - MIN_RATE) * (1 - way) / DECAY)

    def judge(self) -> Judgement:
        """Judge by the texts that are not trained on, and remember it."""
        progress = self.progress
        made = judged(self.module, self.ends, self._judged, self._rank)
        facts = {"visits": progress.visits, "seconds": progress.seconds, "loss": progress.loss}
        progress.history.append({**facts, **asdict(made), "tokens_a_pass": made.greedy.tokens_a_pass})
        return made

    def save(self, path: Path) -> None:
        """Write everything that going on takes, whole or not at all. Raises StorageError."""
        state = [optimiser.state_dict()["state"] for optimiser, _ in self._optimisers]
        write_state(path, self.module, state, self._ids, asdict(self.progress))

    def resume(self, path: Path) -> bool:
        """Go on from what ``save`` wrote; False where there is nothing. Raises StorageError for anything else."""
        if not path.is_file():
            return False
        state, progress = read_state(path, self.module, self._ids, len(self._optimisers))
        try:
            self.progress = Progress(**progress)
            for (optimiser, _), held in zip(self._optimisers, state, strict=True):
                optimiser.load_state_dict({**optimiser.state_dict(), "state": held})
        except (TypeError, ValueError) as error:
            raise StorageError(f"{path} is not the state of a training: {error}; delete it to begin anew") from error
        return True


def begin(module: Guesser, norm: Tensor, ends: Ends, seed: int) -> None:
    """Give a module its first weights: small ones, and a last norm like the target's, but so that laws begin soft.

    ``norm`` [H] are the weights of the target's last norm.
    """
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim == 2:
                p.normal_(0.0, 0.02, generator=draw)
        spread = float((norm.square() * ends.head.float().square().mean(0)).sum().sqrt()) / ends.divisor  # of logits
        module.norm.weight.copy_(norm / spread)


def every(seconds: float) -> Callable[[], bool]:
    """Return a function that says yes once in so many seconds."""
    last = perf_counter()

    def due() -> bool:
        nonlocal last
        if perf_counter() - last < seconds:
            return False
        last = perf_counter()
        return True

    return due

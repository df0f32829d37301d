"""The loop that trains heads on what a target said: resumable at any step, judged by what rounds would yield."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foredraft.errors import StorageError
from foredraft.models.store import refused
from foredraft.training.heads_data import Batch, batch_of, in_order, ranks
from foredraft.training.heads_loss import weighted_loss
from foredraft.training.heads_module import Heads
from foredraft.training.replay import Replay, expected, replay
from foredraft.training.shards import Example

WARM_UP: Final = 0.02  # share of the training in which the rates rise
DECAY: Final = 0.5  # share of it in which they fall
LEAST: Final = 0.02  # of a rate, at the end
MUON: Final = 0.02  # rate of the matrices: the spectral norm of a step
ADAM: Final = 2e-3  # rate of the norms
JUDGED: Final = 5  # guesses that a replayed chain has
FADING: Final = 4.0  # weight of step i is exp(-i / FADING) (DSpark, arXiv 2607.05147)


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """How long and how finely to train."""

    epochs: float = 6.0  # how often each foretold token is visited
    unrolled: int = 3  # steps that the module takes over its own states
    rows: int = 4096  # of a batch, padding included
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """What heads are worth on held-out answers."""

    visits: int
    seconds: float
    loss: float
    greedy: Replay  # chains of ``JUDGED`` guesses
    drawn: float  # tokens a pass at temperature 1, expected
    acceptance: tuple[float, ...]  # sum of min(p, q), by step
    agreement: tuple[float, ...]


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
    """Trains ``module`` on texts. ``embedding`` [V, H] and ``head`` [Vd, H], bfloat16, are the target's and frozen.

    ``ids`` [Vd] are the tokens that ``head`` has rows for.
    """

    def __init__(
        self,
        module: Heads,
        embedding: Tensor,
        head: Tensor,
        ids: Any,
        texts: tuple[Sequence[Example], Sequence[Example]],
        plan: TrainPlan,
    ) -> None:
        self.module = module
        self.plan = plan
        self.progress = Progress()
        self._embedding = embedding
        self._head = head
        self._rank = ranks(ids, len(embedding))
        self._texts, self._judged = texts
        self._lengths = [len(e.tokens) for e in self._texts]
        self.total = max(1, round(plan.epochs * sum(len(e.top) - 1 for e in self._texts)))
        matrices = [p for p in module.parameters() if p.ndim == 2]
        vectors = [p for p in module.parameters() if p.ndim != 2]
        self._optimisers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(matrices, lr=MUON, weight_decay=0.0, momentum=0.95, adjust_lr_fn="original"), MUON),
            (torch.optim.AdamW(vectors, lr=ADAM, betas=(0.9, 0.95), weight_decay=0.0), ADAM),
        ]

    @property
    def done(self) -> bool:
        """Whether the plan is carried out."""
        return self.progress.visits >= self.total

    def steps(self) -> Iterator[Progress]:
        """Train, a step at a time, until the plan is carried out."""
        progress = self.progress
        while not self.done:
            batches = list(in_order(len(self._texts), self._lengths, self.plan.rows, self.plan.seed + progress.epoch))
            for numbers in batches[progress.batch :]:
                began = perf_counter()
                batch = batch_of([self._texts[i] for i in numbers], self._rank)
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
        for s, weight in zip(self._states(batch, self.plan.unrolled), self._weights(), strict=True):
            each = torch.full((len(batch.rows),), weight / len(batch.rows))
            loss = loss + weighted_loss(s.flatten(0, 1)[batch.rows], self._head, batch.ids, batch.p, each)[0]
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
        return min(1.0, (way + 1e-3) / WARM_UP, LEAST + (1 - LEAST) * (1 - way) / DECAY)

    def _states(self, batch: Batch, steps: int) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            states = self.module.unrolled(batch.states, F.embedding(batch.tokens, self._embedding), steps)
        return [s.to(torch.bfloat16) for s in states]

    @torch.no_grad()
    def judge(self) -> Judgement:
        """Replay rounds on the held-out answers: greedy ones as generation would, drawn ones in expectation."""
        right: list[Any] = []
        ratios: list[Any] = []
        sums = np.zeros((2, JUDGED))
        rows = 0
        for at in range(0, len(self._judged), 16):
            texts = self._judged[at : at + 16]
            batch = batch_of(texts, self._rank)
            found = [self._judged_step(s.flatten(0, 1)[batch.rows], batch) for s in self._states(batch, JUDGED)]
            sums += np.array([[float(f[i].sum()) for f in found] for i in (0, 1)])
            first = 0
            for text in texts:
                n = len(text.top) - 1
                part = slice(first, first + n)
                first += n
                if (text.top[:, 0] == text.tokens[text.prompt :]).all():
                    right.append(np.stack([f[1][part].numpy() > 0 for f in found]))
                else:
                    own = torch.from_numpy(text.tokens[text.prompt + 1 :].astype(np.int64))
                    ratios.append(self._ratios([f[2][part] for f in found], batch, part, own))
            rows += first
        progress = self.progress
        acceptance, agreement = (tuple((part / max(1, rows)).round(4).tolist()) for part in sums)
        made = Judgement(
            progress.visits, progress.seconds, progress.loss, replay(right, JUDGED), expected(ratios, JUDGED),
            acceptance, agreement,
        )  # fmt: skip
        progress.history.append({**asdict(made), "tokens_a_pass": made.greedy.tokens_a_pass})
        return made

    def _judged_step(self, s: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return acceptance, agreement, and log q at the target's likeliest tokens [N, K]."""
        zero = torch.zeros(len(s))
        _, acceptance, agreement = weighted_loss(s, self._head, batch.ids, batch.p, zero)
        chosen = []
        for at in range(0, len(s), 256):
            logits = (s[at : at + 256] @ self._head.T).float()
            chosen.append(logits.gather(1, batch.ids[at : at + 256]) - logits.logsumexp(-1, keepdim=True))
        return acceptance, agreement, torch.cat(chosen)

    def _ratios(self, chosen: Sequence[Tensor], batch: Batch, part: slice, own: Tensor) -> Any:
        """Return min(1, q / p) of a text's own tokens, by step: 0 where the token is not among the likeliest."""
        ids, p = batch.ids[part], batch.p[part]
        here = (ids == self._rank[own][:, None]) & (p > 0)
        ratios = [((c.exp() / p.clamp(min=1e-30)).clamp(max=1.0) * here).sum(-1) for c in chosen]
        return torch.stack(ratios).numpy()

    def save(self, path: Path) -> None:
        """Write everything that going on takes, whole or not at all. Raises StorageError."""
        tensors = {f"module.{name}": p.detach() for name, p in self.module.named_parameters()}
        for i, (optimiser, _) in enumerate(self._optimisers):
            for j, state in optimiser.state_dict()["state"].items():
                tensors |= {f"optimiser.{i}.{j}.{key}": torch.as_tensor(value) for key, value in state.items()}
        partial = path.with_suffix(".partial")
        try:
            save_file(tensors, partial, {"progress": json.dumps(asdict(self.progress)), "plan": self._key()})
            partial.replace(path)
        except (OSError, SafetensorError) as fault:
            partial.unlink(missing_ok=True)
            raise refused(path.parent, fault) if isinstance(fault, OSError) else StorageError(str(fault)) from fault

    def resume(self, path: Path) -> bool:
        """Go on from what ``save`` wrote; False where there is nothing, or it is of another module."""
        if not path.is_file():
            return False
        try:
            with safe_open(path, "pt") as file:
                facts = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except (OSError, SafetensorError) as fault:
            raise StorageError(f"{path} cannot be read: {fault}; delete it to begin anew") from fault
        if facts.get("plan") != self._key():
            return False
        with torch.no_grad():
            for name, p in self.module.named_parameters():
                p.copy_(tensors[f"module.{name}"])
        for i, (optimiser, _) in enumerate(self._optimisers):
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                if name.startswith(f"optimiser.{i}."):
                    _, _, j, key = name.split(".", 3)
                    state.setdefault(int(j), {})[key] = value
            optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
        self.progress = Progress(**json.loads(facts["progress"]))
        return True

    def _key(self) -> str:
        shape = {name: list(p.shape) for name, p in self.module.named_parameters()}
        mixed = int((self._rank * torch.arange(1, 1 + len(self._rank))).sum())  # of the draft vocabulary
        return json.dumps([shape, mixed])


def begin(module: Heads, norm: Tensor, head: Tensor, seed: int) -> None:
    """Give a module its first weights: small ones, and a last norm like the target's, but so that laws begin soft.

    ``norm`` [H] are the weights of the target's last norm.
    """
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim == 2:
                p.normal_(0.0, 0.02, generator=draw)
        spread = float((norm.square() * head.float().square().mean(0)).sum().sqrt())  # of the logits
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

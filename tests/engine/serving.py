"""Services over toy models, jobs whose updates are kept, and drafters that break: for the tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter, Planner
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.none import NoDrafter
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.loop import run
from foredraft.engine.service import Job, Service, Update
from foredraft.models.model import Rows, wanted_rows
from foredraft.models.target import CachedTarget
from foredraft.planning.costs import Costs, PassTable
from foredraft.planning.planner import AutoPlanner
from tests.core.toys import Table

V = 12


class Plans:
    """Planners for a machine on which rows are next to free."""

    def __init__(self) -> None:
        self.auto = AutoPlanner(Costs(PassTable((1, 64), (1.0, 1.001), 0.0, 0.0)), clock=lambda: 0.0)

    def planner(self, length: int | None) -> Planner:
        return self.auto if length is None else FixedPlanner(length)


class Hurt:
    """A model whose logits depend on all tokens so far, and on nothing but what its slots hold.

    It fails, or answers with NaN, when told to, and notes how many rows each sequence had in its passes.
    """

    context = 256
    layers = 2
    rewindable = True
    why_not_rewindable = ""
    vocabulary = V

    def __init__(self, seed: int = 1) -> None:
        self.rows = Table.random(seed, V).rows
        self.error: Exception | None = None
        self.fails: Callable[[Sequence[Rows]], bool] = lambda rows: True
        self.spoils: Callable[[Rows], bool] = lambda row: False
        self.passes: list[list[int]] = []
        self._slots: dict[int, list[int]] = {}  # of each token that it holds, the state after it

    def forward(self, rows: Sequence[Rows], taps: tuple[int, ...] = (), *, logits: bool = True) -> Scored:
        self.passes.append([len(row.tokens) for row in rows])
        if self.error is not None and self.fails(rows):
            error, self.error = self.error, None
            raise error
        states: list[int] = []
        for row in rows:
            slot = self._slots.setdefault(row.slot, [])
            assert row.start <= len(slot)
            del slot[row.start :]
            before = slot[-1] if slot else 17
            for token, parent in zip(row.tokens, row.parents, strict=True):
                state = before if parent < 0 else slot[row.start + parent]
                slot.append((state * 31 + token + 1) % len(self.rows))
            states += slot[len(slot) - row.wanted :] if row.wanted else []
        _, starts = wanted_rows(rows)
        scores = self.rows[states].reshape(-1, V)
        for row, start in zip(rows, starts, strict=True):
            if self.spoils(row):
                scores[start : start + row.wanted] = float("nan")
        hidden = {tap: np.array(states, np.float64).reshape(-1, 1) + tap for tap in taps}
        return Scored(scores if logits else scores[:0], starts, hidden)

    def compact(self, slot: int, start: int, rows: Sequence[int]) -> int:
        held = self._slots[slot]
        self._slots[slot] = held[:start] + [held[start + row] for row in rows]
        return len(rows)

    def release(self, slot: int) -> None:
        self._slots.pop(slot, None)


@dataclass
class Breaking:
    """A drafter that guesses by ``guess``, until ``breaks`` says of a method and a sequence that it is to fail."""

    breaks: Callable[[str, TokenSequence], bool]
    guess: Callable[[TokenSequence], Any] = lambda sequence: Draft.chain(sequence.tokens[-2:])
    name: str = "breaking"
    taps: tuple[int, ...] = ()
    sequences: set[TokenSequence] = field(default_factory=set)

    def begin(self, sequence: TokenSequence) -> None:
        self.sequences.add(sequence)
        self._try("begin", sequence)

    def propose(self, sequences: Sequence[TokenSequence], quotes: Sequence[Any], noises: Sequence[Any]) -> list[Any]:
        for sequence in sequences:
            self._try("propose", sequence)
        return [self.guess(sequence) for sequence in sequences]

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        for sequence in sequences:
            self._try("observe", sequence)

    def end(self, sequence: TokenSequence) -> None:
        self.sequences.discard(sequence)
        self._try("end", sequence)

    def _try(self, method: str, sequence: TokenSequence) -> None:
        if self.breaks(method, sequence):
            raise RuntimeError(f"broken in {method}")


class Listener:
    """A job with what it was told; one that has left raises when it is told anything."""

    def __init__(self, sequence: TokenSequence, **options: Any) -> None:
        self.updates: list[Update] = []
        self.left = False
        self.job = Job(sequence, self.deliver, **options)

    def deliver(self, update: Update) -> None:
        if self.left:
            raise ConnectionError("nobody is there")
        assert not self.ended, "told something after the end"
        self.updates.append(update)

    @property
    def told(self) -> list[int]:
        return [token for update in self.updates if update.outcome is not None for token in update.outcome.tokens]

    @property
    def ended(self) -> bool:
        return bool(self.updates) and self.updates[-1].finish_reason is not None

    @property
    def reason(self) -> str | None:
        return self.updates[-1].finish_reason if self.updates else None


def text(prompt: Sequence[int], seed: int | None = None, length: int = 12, choice: int = 0) -> TokenSequence:
    """Return a sequence: greedy, or sampled with a seed by the coupled rule."""
    limit, params = len(prompt) + length, SamplingParams(0.0 if seed is None else 1.0)
    return TokenSequence(list(prompt), limit, params, Noise(seed or 0, choice, coupled=True), stop_ids=frozenset({0}))


def alone(model: Any, sequence: TokenSequence) -> list[int]:
    """Return the answer that plain decoding gives a text of the same options."""
    copy = text(sequence.tokens[: sequence.prompt_length], None, 0)
    if sequence.limit <= sequence.prompt_length:
        return []
    copy.limit, copy.params, copy.noise = sequence.limit, sequence.params, sequence.noise
    for _ in run([copy], CachedTarget(model, slots=1), NoDrafter(), FixedPlanner(0)):
        pass
    return copy.answer


def service(model: Any, drafter: Drafter | None = None, **options: Any) -> Service:
    """Return a service without a thread over a model."""
    target = CachedTarget(model, slots=1)
    return Service(target, drafter or NoDrafter(), Plans(), **{"thread": False, **options})


def serve(engine: Service, *listeners: Listener) -> None:
    """Submit jobs and step until all have ended."""
    engine.submit([listener.job for listener in listeners])
    while not engine.idle:
        engine.step()

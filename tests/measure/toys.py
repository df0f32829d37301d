"""A toy model behind the real cache, whole hosts around it, and drafters with one fault each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.law import Dense, Law
from foredraft.core.noise import Noise
from foredraft.core.protocols import Round, Watch
from foredraft.core.round import run_round
from foredraft.core.sampling import SamplingParams, law_of
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.models.model import Rows, wanted_rows
from foredraft.models.target import CachedTarget
from foredraft.runtime.loaded_model import LoadedModel, find_sampler
from tests.core.toys import Guess, Table, ToyDrafter, ToyTarget, sampled_chain

V = 12
WHOLE = SamplingParams(temperature=1.0)
PROMPTS = ([1, 2, 3], [4, 4], [7, 1, 7, 1], [9])


class TableModel:
    """A Model over a table; ``off(rows)`` is added to the logits of a pass over so many rows, row by row."""

    context = 256

    def __init__(self, table: Table, off: Callable[[int], Any] | None = None, why_not: str = "") -> None:
        self.table = table
        self.vocabulary = table.rows.shape[1]
        self.why_not_rewindable = why_not
        self.rewindable = not why_not
        self._off = off
        self._slots: dict[int, list[int]] = {}

    def forward(self, rows: Sequence[Rows], taps: tuple[int, ...] = (), *, logits: bool = True) -> Scored:
        logits = []
        for row in rows:
            slot = self._slots.setdefault(row.slot, [])
            del slot[row.start :]
            paths: list[list[int]] = []
            for token, parent in zip(row.tokens, row.parents, strict=True):
                paths.append([*(slot if parent < 0 else paths[parent]), token])
            slot.extend(row.tokens)
            logits += [self.table(path) for path in paths]
        wanted, starts = wanted_rows(rows)
        out = np.array([logits[i] for i in wanted]).reshape(-1, self.vocabulary)
        if self._off is not None and len(logits) > 1:
            out = out + self._off(len(logits))
        return Scored(out, starts, {})

    def compact(self, slot: int, start: int, rows: Sequence[int]) -> int:
        held = self._slots[slot]
        self._slots[slot] = held[:start] + [held[start + row] for row in rows]
        return len(rows)

    def release(self, slot: int) -> None:
        self._slots.pop(slot, None)


def target_table() -> Table:
    return Table.random(5, V, scale=1.5)


def draft_table() -> Table:
    return Table(target_table().rows + np.random.default_rng(6).normal(0, 1.0, (101, V)))


def host(
    off: Callable[[int], Any] | None = None, *, tier: str = "torch", dtype: str = "f32", why_not: str = ""
) -> LoadedModel:
    model: Any = TableModel(target_table(), off, why_not)
    return LoadedModel(
        name="toy", target=CachedTarget(model), tokenizer=None, tier=tier, device="cpu", dtype=dtype,
        fingerprint="fd-toy", context=256, no_speculation_reason=why_not or None, notice=None, folder=None,
            sampler=find_sampler(),
    )  # fmt: skip


def certain(text: Any, quote: Any, noise: Any) -> Draft:
    """Guess what the draft's table holds likeliest."""
    tokens: list[int] = []
    while quote.worth(1.0, len(tokens)):
        tokens.append(int(np.argmax(draft_table()([*text.tokens, *tokens]))))
    return Draft.chain(tokens, source="certain")


def sampled(text: Any, quote: Any, noise: Any) -> Draft:
    """Guess from the draft's table's law at the sequence's own options."""
    return sampled_chain(lambda path: law_of(draft_table()(path), text.params))(text, quote, noise)


def lying(text: Any, quote: Any, noise: Any) -> Draft:
    """Guess the likeliest token, and name the law it was not drawn from."""
    tokens: list[int] = []
    laws = []
    while quote.worth(1.0, len(tokens)):
        law: Any = law_of(draft_table()([*text.tokens, *tokens]), text.params)
        tokens.append(int(np.argmax(law.probabilities)) if isinstance(law, Dense) else law.token)
        laws.append(law)
    return Draft.chain(tokens, laws, "lying")


def drafter(guess: Guess, name: str) -> Any:
    return ToyDrafter(guess, name)


def run_watched(
    count: int, guesser: Any, watch: Watch, *, coupled: bool, noise: type[Noise] = Noise,
    params: SamplingParams = WHOLE, length: int = 3, tokens: int = 60, first_seed: int = 1000,
) -> None:  # fmt: skip
    """Let ``watch`` see so many toy sequences of so many tokens, a batch of them at a time."""
    target: Any = ToyTarget(target_table())
    sequences = [
        TokenSequence(
            list(PROMPTS[i % 4]), len(PROMPTS[i % 4]) + tokens, params, noise(first_seed + i, coupled=coupled)
        )
        for i in range(count)
    ]
    while going := [sequence for sequence in sequences if sequence.finish_reason is None]:
        run_round(going, target, guesser, FixedPlanner(length), [watch])


def round_of(token: int, p: Law, draft: Draft) -> Round:
    """Return the round that committed one token after nothing of its draft was accepted."""
    outcome = Outcome(draft, (token,), 0, (), ("correction",), None)
    return Round(
        (TokenSequence([1], 9),), (outcome,), Scored(np.zeros((1, V)), (0,), {}), (lambda node: p,), 0.0, 0.0, 0.0
    )

"""Drafting with the answer known: the replay oracle, and what a drafter would have guessed at another length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

import numpy as np

from foredraft.core.draft import ROOT, Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter, Quote
from foredraft.core.round import propose
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.model import ModelDrafter
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.measure.bench.rounds import Spent
from foredraft.models.target import CachedTarget
from foredraft.runtime.drafters import parts_of

LENGTH: Final = 15  # guesses of the oracle's chains
_UNSEEN: Final = Scored(np.zeros((0, 0)), (0,), {})


class KnownAnswer:
    """Guesses what the answer is known to be: every guess is right and costs nothing, so no drafter can gain more.

    For one sequence at a time, with the answer [N] that it will have.
    """

    name = "oracle"
    taps: tuple[int, ...] = ()

    def __init__(self, answer: Sequence[int]) -> None:
        self._answer = tuple(answer)

    def begin(self, sequence: TokenSequence) -> None:
        """Do nothing."""

    def propose(
        self,
        sequences: Sequence[TokenSequence],
        quotes: Sequence[Quote],
        noises: Sequence[Noise],  # noqa: ARG002
    ) -> list[Draft]:
        """Return what comes next, as far as the quote finds it worth it."""
        drafts = []
        for sequence, quote in zip(sequences, quotes, strict=True):
            left = self._answer[len(sequence) - sequence.prompt_length :]
            length = 0
            while length < min(quote.limit, len(left)) and quote.worth(1.0, length):
                length += 1
            drafts.append(Draft.chain(left[:length], source=self.name))
        return drafts

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Do nothing."""

    def end(self, sequence: TokenSequence) -> None:
        """Do nothing."""


def replayable(drafter: Drafter) -> bool:
    """Say whether a drafter guesses by the text alone, so that no pass of the target is needed to ask it."""
    for part in parts_of(drafter):
        if part.taps or (isinstance(part, ModelDrafter) and not isinstance(part.model, CachedTarget)):
            return False
    return True


def replay(
    drafter: Drafter,
    sequence: TokenSequence,
    answer: Sequence[int],
    length: int,
    vocabulary: int,
    clock: Callable[[], float] = perf_counter,
) -> list[Spent]:
    """Return the rounds that a drafter held to ``length`` guesses takes to ``answer`` [N], the target never asked.

    ``sequence`` is the prompt, ready to run. A guess is kept iff it is the answer's token: so it is when decoding is
    greedy or coupled. ``rest_s`` of the rounds is 0. Raises DrafterError as the drafter does.
    """
    planner, rounds = FixedPlanner(length), list[Spent]()
    drafter.begin(sequence)
    try:
        _grow(drafter, sequence, Draft(), (), answer[:1])
        while len(sequence) - sequence.prompt_length < len(answer):
            left = answer[len(sequence) - sequence.prompt_length :]
            began = clock()
            (draft,) = propose(
                [sequence], drafter, planner.quote([sequence]), [sequence.noise.at(len(sequence))], vocabulary
            )
            took = clock() - began
            path = followed(draft, left)
            tokens = left[: len(path) + 1]
            rounds.append(Spent(len(draft), len(path), len(tokens), took, 0.0))
            _grow(drafter, sequence, draft, path, tokens)
    finally:
        drafter.end(sequence)
    return rounds


def followed(draft: Draft, tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the path of a draft along these tokens, as far as it goes: nodes, each the parent of the next."""
    path: list[int] = []
    for token in tokens:
        node = path[-1] if path else ROOT
        found = next((child for child in draft.children(node) if draft.tokens[child] == token), None)
        if found is None:
            break
        path.append(found)
    return tuple(path)


def _grow(
    drafter: Drafter, sequence: TokenSequence, draft: Draft, path: tuple[int, ...], tokens: Sequence[int]
) -> None:
    for token in tokens:
        sequence.append(token)
    last = "plain" if not len(draft) else "correction" if draft.children(path[-1] if path else ROOT) else "bonus"
    origins = [draft.source] * len(path) + [last] * (len(tokens) - len(path))
    kept = path[: len(tokens) - 1]
    outcome = Outcome(draft, tuple(tokens), len(path), kept, tuple(origins), sequence.finish_reason)
    drafter.observe([sequence], [outcome], _UNSEEN)

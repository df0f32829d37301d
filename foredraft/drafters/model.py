"""A second, smaller model drafts token by token (Leviathan et al. 2022; Chen et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from array_api_compat import array_namespace

from foredraft.core.draft import Array, Draft, Outcome, Quote, Scored
from foredraft.core.law import Law, Point
from foredraft.core.noise import Noise
from foredraft.core.sampling import law_after
from foredraft.core.sequence import Sequence as Text
from foredraft.errors import NumericalError
from foredraft.models.target import CachedTarget


class ModelDrafter:
    """Drafts a chain with a model of its own cache, which catches up whenever it is asked.

    ``vocabulary`` is the target's V: a draft model with fewer or more rows of padding is cut or filled to it.
    ``temperature`` is the drafter's own (None: the request's); the text stays exact at any value, because each guess
    carries the law it was drawn from. ``draft_tokens`` caps a draft beside the quote. A sequence that has outgrown the
    draft model's context is no longer drafted for.
    """

    name = "model"
    taps: tuple[int, ...] = ()

    def __init__(
        self, model: CachedTarget, vocabulary: int, temperature: float | None = None, draft_tokens: int | None = None
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.temperature = temperature
        self.draft_tokens = draft_tokens

    def begin(self, sequence: Text) -> None:
        """Take a slot, re-using a cached prefix where there is one."""
        self.model.begin(sequence)

    def propose(self, sequences: Sequence[Text], quotes: Sequence[Quote], noises: Sequence[Noise]) -> list[Draft]:
        """Guess a token at a time, one batched pass for all the sequences that still find it worth it."""
        guesses: list[list[int]] = [[] for _ in sequences]
        laws: list[list[Law]] = [[] for _ in sequences]
        survival = [1.0] * len(sequences)
        lost: set[int] = set()
        while True:
            going = [
                i
                for i, sequence in enumerate(sequences)
                if i not in lost
                and self._has_room(sequence, guesses[i])
                and quotes[i].worth(survival[i], len(guesses[i]))
            ]
            if not going:
                break
            logits = self.model.extend([(sequences[i], sequences[i].tokens + guesses[i]) for i in going])  # [B, V]
            for row, i in enumerate(going):
                try:
                    law = self._law(logits[row, :], sequences[i], tuple(guesses[i]))
                except NumericalError:  # no law, no guess; the target may know better
                    lost.add(i)
                    continue
                token = noises[i].guess(law, len(guesses[i]), len(guesses[i]))
                survival[i] *= float(law[token])
                guesses[i].append(token)
                laws[i].append(law)
        return [Draft.chain(g, _unless_certain(q), self.name) for g, q in zip(guesses, laws, strict=True)]

    def observe(self, sequences: Sequence[Text], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Do nothing: the cache finds its way back when next asked."""

    def end(self, sequence: Text) -> None:
        """Give the slot back."""
        self.model.end(sequence)

    def _has_room(self, sequence: Text, guesses: list[int]) -> bool:
        if self.draft_tokens is not None and len(guesses) >= self.draft_tokens:
            return False
        return len(sequence) + len(guesses) <= self.model.context

    def _law(self, row: Array, sequence: Text, path: tuple[int, ...]) -> Law:
        """Return q over the target's vocabulary, shaped as the target's law is, at the drafter's own temperature."""
        params = sequence.params
        if self.temperature is not None:
            params = replace(params, temperature=self.temperature)
        row = row[: self.vocabulary]
        missing = self.vocabulary - int(row.shape[0])
        if missing > 0:
            xp = array_namespace(row)
            row = xp.concat([row, xp.full((missing,), -math.inf, dtype=row.dtype, device=row.device)])
        return law_after(row, sequence, path, params)


def _unless_certain(laws: list[Law]) -> list[Law] | None:
    return None if all(isinstance(law, Point) for law in laws) else laws

"""A second, smaller model drafts token by token (Leviathan et al. 2022; Chen et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from array_api_compat import array_namespace

from foredraft.core.distribution import law_after
from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.law import Array, Law, Point
from foredraft.core.noise import Noise
from foredraft.core.protocols import Quote
from foredraft.core.sequence import TokenSequence
from foredraft.errors import GenerationError, NumericalError
from foredraft.planning.acceptance import confidence_of


class DraftModel(Protocol):
    """What drafts: a model with a cache of its own (``CachedTarget``), or a view of the target (``LayersView``)."""

    @property
    def context(self) -> int:
        """Positions it was made for."""
        ...

    def begin(self, sequence: TokenSequence) -> None:
        """Meet a sequence."""
        ...

    def ready(self, sequence: TokenSequence) -> bool:
        """Say whether it can draft for a sequence now."""
        ...

    def extend(self, batch: Sequence[tuple[TokenSequence, Sequence[int]]]) -> Array:
        """Return the logits [B, V] after each sequence's tokens and the guesses that follow them.

        In one draft a sequence is asked for its own tokens first, then with each guess added in turn.
        """
        ...

    def end(self, sequence: TokenSequence) -> None:
        """Forget a sequence."""
        ...


class ModelDrafter:
    """Drafts a chain with a model that has a cache of its own, or with a view of the target.

    ``vocabulary`` is the target's V: a draft model with fewer or more rows of padding is cut or filled to it.
    ``temperature`` is the drafter's own (None: the request's); the text stays exact at any value, because each guess
    carries the law it was drawn from. ``draft_tokens`` caps a draft beside the quote. A sequence that has outgrown the
    draft model's context is no longer drafted for.
    """

    taps: tuple[int, ...] = ()

    def __init__(
        self,
        model: DraftModel,
        vocabulary: int,
        temperature: float | None = None,
        draft_tokens: int | None = None,
        name: str = "model",
    ) -> None:
        self.name = name
        self.model = model
        self.vocabulary = vocabulary
        self.temperature = temperature
        self.draft_tokens = draft_tokens

    def begin(self, sequence: TokenSequence) -> None:
        """Take a slot, re-using a cached prefix where there is one."""
        self.model.begin(sequence)

    def propose(
        self, sequences: Sequence[TokenSequence], quotes: Sequence[Quote], noises: Sequence[Noise]
    ) -> list[Draft]:
        """Guess a token at a time, one batched pass for all the sequences that still find it worth it."""
        chains = [_Chain(ended=not self.model.ready(sequence)) for sequence in sequences]
        while going := [i for i, c in enumerate(chains) if self._goes_on(c, sequences[i], quotes[i])]:
            texts = [(sequences[i], sequences[i].tokens + chains[i].tokens) for i in going]
            logits = self.model.extend(texts)  # [B, V]
            for row, i in enumerate(going):
                self._grow(chains[i], logits[row, :], sequences[i], noises[i])
        return [
            replace(Draft.chain(c.tokens, _unless_certain(c.laws), self.name), confidences=tuple(c.confidences))
            for c in chains
        ]

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Do nothing: the cache finds its way back when next asked."""

    def end(self, sequence: TokenSequence) -> None:
        """Give the slot back."""
        self.model.end(sequence)

    def _goes_on(self, chain: _Chain, sequence: TokenSequence, quote: Quote) -> bool:
        length = len(chain.tokens)
        if chain.ended or (self.draft_tokens is not None and length >= self.draft_tokens):
            return False
        return len(sequence) + length <= self.model.context and quote.worth(chain.confidence, length)

    def _grow(self, chain: _Chain, row: Array, sequence: TokenSequence, noise: Noise) -> None:
        depth = len(chain.tokens)
        try:
            law = self._law(row, sequence, tuple(chain.tokens))
        except (GenerationError, NumericalError):  # nothing can be drawn after the guesses, so they end here
            chain.ended = True
            return
        token = noise.guess(law, depth, depth)
        chain.confidence *= confidence_of(law, token, row[: self.vocabulary], noise, depth)
        chain.confidences.append(chain.confidence)
        chain.tokens.append(token)
        chain.laws.append(law)

    def _law(self, row: Array, sequence: TokenSequence, path: tuple[int, ...]) -> Law:
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


@dataclass(slots=True)
class _Chain:
    """A draft while it grows. ``confidence`` is the drafter's own idea of the chance that all of it is accepted."""

    tokens: list[int] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    confidence: float = 1.0
    ended: bool = False


def _unless_certain(laws: list[Law]) -> list[Law] | None:
    return None if all(isinstance(law, Point) for law in laws) else laws

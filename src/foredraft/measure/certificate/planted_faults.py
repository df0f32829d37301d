"""Planted faults: what a test of the law must find, or it had no power where it was run.

Noise that favours guesses: under ``ratio`` it accepts them too readily, under ``coupled`` their clocks run too fast.
And a drafter that replaces a drawn guess by the likeliest one and still names the law it was drawn from, the commonest
fault in the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from array_api_compat import array_namespace

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.law import Dense, Law
from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter, Quote
from foredraft.core.sequence import TokenSequence

FAVOUR: Final = 4.0


@dataclass(frozen=True, slots=True)
class FavouringNoise(Noise):
    """Noise by which a guess is FAVOUR times as likely to be accepted as it ought to be, as far as that goes.

    ``favoured`` holds the guesses of the round under ``coupled``: places ahead -> token.
    """

    favoured: dict[int, int] = field(default_factory=dict)

    def at(self, position: int) -> Noise:
        """Return the same noise as seen from ``position``, nothing favoured yet."""
        return replace(self, position=position, favoured={})

    def test(self, node: int) -> float:
        """Return a number that is too small."""
        return Noise.test(self, node) / FAVOUR

    def race(self, law: Law, depth: int) -> int:
        """Draw by the place's clocks, one of them too fast."""
        token = self.favoured.get(depth, -1)
        place = self.position + depth
        return law.first(lambda ids: self.clocks(ids, place) / np.where(ids == token, FAVOUR, 1.0))


class FaultyDrafter:
    """Another drafter's first guess of each draft, made the likeliest one and favoured by the sequence's noise."""

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.taps = drafter.taps
        self._drafter = drafter

    def begin(self, sequence: TokenSequence) -> None:
        """Let the drafter meet the sequence."""
        self._drafter.begin(sequence)

    def propose(
        self, sequences: Sequence[TokenSequence], quotes: Sequence[Quote], noises: Sequence[Noise]
    ) -> list[Draft]:
        """Guess as the drafter does, and spoil the first guess."""
        drafts = self._drafter.propose(sequences, quotes, noises)
        return [_spoilt(draft, noise) for draft, noise in zip(drafts, noises, strict=True)]

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Let the drafter see the outcome."""
        self._drafter.observe(sequences, outcomes, scored)

    def end(self, sequence: TokenSequence) -> None:
        """Let the drafter forget the sequence."""
        self._drafter.end(sequence)


def _spoilt(draft: Draft, noise: Noise) -> Draft:
    if not isinstance(draft, Draft) or not len(draft):
        return draft  # what is no draft is refused where every other is
    law = None if draft.laws is None else draft.laws[0]
    token = _likeliest(law) if isinstance(law, Dense) else draft.tokens[0]
    if isinstance(noise, FavouringNoise):
        noise.favoured[0] = token
    return Draft((token,), draft.parents[:1], None if law is None else (law,), draft.source)


def _likeliest(law: Dense) -> int:
    return int(law.ids[int(array_namespace(law.probabilities).argmax(law.probabilities))])

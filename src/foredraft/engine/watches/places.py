"""What a round says of each place in the text: the token, the target's law there, and the law of the guess, if any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from foredraft.core.draft import Draft
from foredraft.core.law import Law, Point
from foredraft.core.protocols import Round
from foredraft.core.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class Place:
    """One committed token, and what was known before it was drawn.

    ``q`` is the law that the draft gave its first guess here, None where nothing was guessed. Both laws are functions
    of the text before the token, whatever was accepted: without that no test below would hold.
    """

    sequence: TokenSequence
    token: int
    p: Law
    q: Law | None

    @property
    def possible(self) -> bool:
        """Whether the target could draw this token at all."""
        return float(self.p[self.token]) > 0


def places(done: Round) -> Iterator[Place]:
    """Yield the places of a round's committed tokens, a sequence at a time, in the order of its text."""
    for sequence, outcome, laws in zip(done.sequences, done.outcomes, done.laws, strict=True):
        for token, node in zip(outcome.tokens, outcome.nodes, strict=True):
            yield Place(sequence, token, laws(node), guess_law(outcome.draft, node))


def guess_law(draft: Draft, node: int) -> Law | None:
    """Return the law that the first guess after ``node`` was drawn from, by the drafter's word."""
    children = draft.children(node)
    if not children:
        return None
    return Point(draft.tokens[children[0]]) if draft.laws is None else draft.laws[children[0]]

"""What crosses the seams: a draft, its scores, its outcome, and the protocols of those who make them.

Shapes, here and everywhere:

    B   sequences in a batch
    N   guesses in one sequence's draft (its nodes); ragged, and zero is ordinary decoding
    R   rows of a pass: the sum over its sequences of N + 1
    V   tokens in the target's vocabulary
    H   width of a hidden state

A draft is a tree. Node ``i`` is a guess that follows node ``parents[i]``; ``ROOT`` (-1) is the committed sequence
itself. A chain is ``parents = (-1, 0, 1, ...)``. Parents come before their children.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Final

from foredraft.core.law import Array
from foredraft.errors import DrafterError

if TYPE_CHECKING:
    from foredraft.core.law import Law

ROOT: Final = -1


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of guesses for one sequence, with the law each guess was drawn from.

    ``laws`` is None when every guess is certain of itself (a one-hot q: retrieval, argmax); otherwise it holds one law
    a node, exactly the one the token was drawn from, a later sibling's given the earlier ones.
    Any sequences do, kept as tuples. Raises DrafterError for wrong lengths or numbers, or a parent after its child.
    """

    tokens: tuple[int, ...] = ()  # [N]
    parents: tuple[int, ...] = ()  # [N]
    laws: tuple[Law, ...] | None = None  # [N] of [V]
    source: str = "none"
    confidences: tuple[float, ...] | None = None  # [N] of each guess with all it builds on: a price, never a law

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "tokens", tuple(index(token) for token in self.tokens))
            object.__setattr__(self, "parents", tuple(index(parent) for parent in self.parents))
        except TypeError as error:
            raise DrafterError(f"the tokens and parents of a draft are whole numbers: {error}") from error
        n, who = len(self.tokens), "" if self.source == "none" else f"{self.source}: "
        if self.laws is not None:
            object.__setattr__(self, "laws", tuple(self.laws))
        if len(self.parents) != n or (self.laws is not None and len(self.laws) != n):
            laws = "none" if self.laws is None else len(self.laws)
            raise DrafterError(f"{who}a draft of {n} tokens has {len(self.parents)} parents and {laws} laws")
        for i, parent in enumerate(self.parents):
            if not ROOT <= parent < i:
                raise DrafterError(f"{who}node {i} of a draft names parent {parent}, which is not before it")

    @classmethod
    def chain(cls, tokens: Sequence[int], laws: Sequence[Law] | None = None, source: str = "none") -> Draft:
        """Return the draft whose guesses follow one another."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), None if laws is None else tuple(laws), source)

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> tuple[int, ...]:
        """Return the guesses that follow ``node`` (or ROOT), in the order they were drawn."""
        return tuple(i for i, parent in enumerate(self.parents) if parent == node)

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from the committed sequence down to ``node``, which comes last."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def depths(self) -> tuple[int, ...]:
        """Return how many guesses deep each node lies; a child of the committed sequence lies 1 deep."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    def first(self, nodes: int) -> Draft:
        """Return the draft without all but its first ``nodes`` nodes.

        Exact under every rule: the cut looks at positions, never at what was drawn.
        """
        if nodes >= len(self):
            return self
        laws = None if self.laws is None else self.laws[:nodes]
        confidences = self.confidences and self.confidences[:nodes]
        return Draft(self.tokens[:nodes], self.parents[:nodes], laws, self.source, confidences)


@dataclass(frozen=True, slots=True)
class Scored:
    """What one pass of the target says: a row for each sequence's last token, then one for each of its guesses."""

    logits: Array  # [R, V]
    starts: tuple[int, ...]  # [B] the row of each sequence's last committed token; its guesses' rows follow
    hidden: Mapping[int, Array]  # layer -> [R, H], for the layers that drafters tap
    earlier: Sequence[Mapping[int, Array]] = ()  # [B] the same of the tokens that were fed before those rows


@dataclass(frozen=True, slots=True)
class Kept:
    """What the accept rule decides: the surviving path, and the law of the one token that follows it."""

    path: tuple[int, ...]  # nodes, each the parent of the next
    law: Law  # [V] a residual after a rejection, the target's own (the bonus) otherwise


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round committed to one sequence."""

    draft: Draft
    tokens: tuple[int, ...]  # committed this round; at least one, or none because the sequence failed
    accepted: int  # how many of them were guesses of the draft
    kept: tuple[int, ...]  # the nodes whose keys and values stay in the target's cache
    origins: tuple[str, ...]  # [len(tokens)] who wrote each: a drafter's name, "correction", "bonus" or "plain"
    finish_reason: str | None  # "stop", "length", "error", or None when the sequence goes on

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node (or ROOT) that each committed token follows: [len(tokens)]."""
        return (ROOT, *self.kept)[: len(self.tokens)]

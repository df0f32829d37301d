"""What a forward pass takes and gives: the seam between a cache of slots and whoever does the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foredraft.core.draft import Scored
from foredraft.errors import ModelError


@dataclass(frozen=True, slots=True)
class Rows:
    """What one sequence contributes to a pass: tokens that follow the first ``start`` tokens its slot already holds.

    Row ``i`` follows row ``parents[i]``, or the slot's first ``start`` tokens where that is -1, and sees itself, its
    ancestors and those tokens, nothing else; its position is ``start`` plus the number of its ancestors. The pass
    writes its keys and values at place ``start + i`` of the slot. Logits are wanted of the last ``wanted`` rows.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    wanted: int


class Model(Protocol):
    """A forward pass over a cache of slots. It trusts its caller about what each slot holds."""

    vocabulary: int  # width of the logits, padding included
    context: int  # positions the model was made for

    @property
    def rewindable(self) -> bool:
        """Whether a slot can be put back to fewer tokens; not so for recurrent states."""
        return not self.why_not_rewindable

    @property
    def why_not_rewindable(self) -> str:
        """One clause; empty for a model that can be rewound."""
        ...

    def forward(self, rows: Sequence[Rows], taps: tuple[int, ...] = (), *, logits: bool = True) -> Scored:
        """Run the rows of several slots through the model in one pass.

        ``Scored.logits`` is [sum of wanted, V] in float32 or wider (numpy on the CPU, torch on a GPU),
        ``Scored.starts`` the first wanted row of each, ``Scored.hidden[layer]`` the [sum of wanted, H] output of that
        layer (-1 is the embedding). Slots grow as needed. Without ``logits`` these are [0, V].
        """
        ...

    def compact(self, slot: int, start: int, rows: Sequence[int]) -> int:
        """Keep of the last pass only ``rows`` (increasing, each the parent of the next), moved to follow ``start``.

        Returns how many the slot now holds beyond ``start``; fewer than asked for are fed again by the caller.
        """
        ...

    def release(self, slot: int) -> None:
        """Forget a slot's content and free what memory that frees."""
        ...


def wanted_rows(rows: Sequence[Rows]) -> tuple[list[int], tuple[int, ...]]:
    """Return the rows of the pass whose logits are wanted, and where each sequence's begin among them.

    Raises ModelError where more or fewer are wanted than a sequence can have.
    """
    wanted: list[int] = []
    starts: list[int] = []
    end = 0
    for row in rows:
        if not 0 <= row.wanted <= len(row.tokens):
            raise ModelError(f"{row.wanted} rows cannot be wanted of a sequence of {len(row.tokens)}")
        end += len(row.tokens)
        starts.append(len(wanted))
        wanted.extend(range(end - row.wanted, end))
    return wanted, tuple(starts)

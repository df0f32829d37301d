"""Sequences through rounds, a bounded number at a time, until each has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import Protocol

from foredraft.core.draft import Outcome
from foredraft.core.protocols import Drafter, Planner, Target, Watch
from foredraft.core.round import run_round
from foredraft.core.sequence import TokenSequence


class SequenceTarget(Target, Protocol):
    """A target that holds sequences in slots."""

    def begin(self, sequence: TokenSequence) -> None:
        """Take a slot for a sequence."""
        ...

    def end(self, sequence: TokenSequence) -> None:
        """Give its slot back."""
        ...


def run(
    sequences: Sequence[TokenSequence],
    target: SequenceTarget,
    drafter: Drafter,
    planner: Planner,
    watches: Sequence[Watch] = (),
    width: int = 8,
) -> Generator[list[tuple[TokenSequence, Outcome]], None, None]:
    """Yield, round after round, what was committed to each sequence in it.

    At most ``width`` sequences run at a time; the next begins as soon as one ends. Whatever happens, and also when the
    caller stops early, every sequence that had begun has ended afterwards.
    """
    waiting = deque(sequences)
    running: list[TokenSequence] = []
    try:
        while waiting or running:
            while waiting and len(running) < width:
                running.append(waiting.popleft())
                target.begin(running[-1])
                drafter.begin(running[-1])
            yield list(zip(running, run_round(running, target, drafter, planner, watches), strict=True))
            for sequence in [s for s in running if s.finish_reason is not None]:
                running.remove(sequence)
                _end(sequence, target, drafter)
    finally:
        with ExitStack() as ends:  # all of them, whatever a drafter does at one
            for sequence in running:
                ends.callback(_end, sequence, target, drafter)


def _end(sequence: TokenSequence, target: SequenceTarget, drafter: Drafter) -> None:
    try:
        drafter.end(sequence)
    finally:
        target.end(sequence)

"""How far a set of sub-layers guesses along the target's own answers, without generating anything.

A *window* is a place in an answer and the tokens that follow it. Its slot holds the target's own keys and values of all
before it; the rows of the window then run through the sub-layers in one pass. A drafter's inputs are the target's
tokens for as long as it guesses right, so the leading right rows of a window are exactly the guesses that a greedy
round from there would accept. Nothing has to be put back between two sets: each overwrites the rows of the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from array_api_compat import array_namespace

from foredraft.core.law import Array
from foredraft.models.capabilities import Layered
from foredraft.models.model import Rows
from foredraft.models.target import BLOCK
from foredraft.training.layers.answers import Answer

WIDTH: Final = 8  # rows of a window, and so the longest draft that is judged
COUNT: Final = 64  # windows; each takes a slot
FEWEST: Final = 8  # of them, however long the answers are
ROOM: Final = 1 << 16  # tokens that all slots hold together, about
FIRST_SLOT: Final = 1 << 15  # far above those that a target numbers from 0
PASS: Final = 64  # rows of a pass
PRIOR: Final = 16  # windows that the agreement of all rows counts as, where few windows are left to say


@dataclass(frozen=True, slots=True)
class Runs:
    """What windows said of a set: at each depth, how many were right so far, and how many of those were right again."""

    at_risk: tuple[int, ...]  # [WIDTH]
    survived: tuple[int, ...]  # [WIDTH]
    right: int  # rows right, of all
    rows: int

    @property
    def agreement(self) -> float:
        """Share of the target's tokens guessed right."""
        return self.right / self.rows

    def expected(self, length: int) -> float:
        """Return the tokens that a round of so many guesses yields, the target's own one included."""
        total = path = 1.0
        for at_risk, survived in zip(self.at_risk[:length], self.survived[:length], strict=True):
            path *= (survived + PRIOR * self.agreement) / (at_risk + PRIOR)
            total += path
        return total


@dataclass(frozen=True, slots=True)
class _Window:
    rows: Rows
    targets: tuple[int, ...]  # the token after each row


class Windows:
    """Windows spread over answers, each in a slot of its own; ``close`` frees them.

    Needs an answer of at least three tokens. ``tell`` hears (done, of) while the slots are filled.
    """

    def __init__(
        self, model: Layered, answers: Sequence[Answer], tell: Callable[[int, int], None], count: int = COUNT
    ) -> None:
        self.model = model
        # long prompts are read anew for each window, and held by it
        count = min(count, max(FEWEST, ROOM // max(len(answer.tokens) for answer in answers)))
        answers = answers[:count]
        self._windows = list(_spread(answers, count))
        texts = list(_texts(answers, count))
        for i, (window, tokens) in enumerate(zip(self._windows, texts, strict=True)):
            tell(i, len(texts))
            for at in range(0, len(tokens), BLOCK):
                block = tokens[at : at + BLOCK]
                model.forward([Rows(window.rows.slot, at, block, tuple(range(-1, len(block) - 1)), 0)])
        tell(len(texts), len(texts))

    def runs(self, sub_layers: Sequence[int]) -> Runs:
        """Judge one set of sub-layers."""
        right: list[list[bool]] = []
        for group in self._groups():
            logits = self.model.run([window.rows for window in group], sub_layers=sub_layers).logits
            right += _judged(logits, group)
        return _counted(right)

    def exits(self) -> list[Runs]:
        """Judge the early exits after 1, 2, ... layers, all in one pass: last norm and head on each tapped layer.

        The keys and values of a first few layers are the target's own, so this is what those exits would draft.
        """
        depths = range(self.model.layers - 1)
        right: list[list[list[bool]]] = [[] for _ in depths]
        for group in self._groups():
            rows = [window.rows for window in group]
            tapped = self.model.run(rows, tuple(depths)).hidden
            for depth in depths:
                logits = self.model.run(rows, hidden=tapped[depth], sub_layers=()).logits
                right[depth] += _judged(logits, group)
        return [_counted(each) for each in right]

    def close(self) -> None:
        """Free the slots."""
        for window in self._windows:
            self.model.release(window.rows.slot)

    def _groups(self) -> Iterator[list[_Window]]:
        step = PASS // WIDTH
        for at in range(0, len(self._windows), step):
            yield self._windows[at : at + step]


def _places(answers: Sequence[Answer], count: int) -> Iterator[tuple[Answer, int]]:
    """Give the places of windows: evenly over each answer, from its first token on, one further token at least."""
    each = -(-count // len(answers))
    for answer in answers:
        last = len(answer.tokens) - 2
        room = last - answer.prompt + 1
        for start in sorted({answer.prompt + room * i // each for i in range(each)} if room > 0 else ()):
            yield answer, start


def _texts(answers: Sequence[Answer], count: int) -> Iterator[tuple[int, ...]]:
    for answer, start in _places(answers, count):
        yield answer.tokens[:start]


def _spread(answers: Sequence[Answer], count: int) -> Iterator[_Window]:
    for i, (answer, start) in enumerate(_places(answers, count)):
        tokens = answer.tokens[start : start + WIDTH + 1]
        n = len(tokens) - 1
        yield _Window(Rows(FIRST_SLOT + i, start, tokens[:n], tuple(range(-1, n - 1)), n), tokens[1:])


def _judged(logits: Array, group: Sequence[_Window]) -> list[list[bool]]:
    best = [int(token) for token in array_namespace(logits).argmax(logits, axis=-1)]
    right, at = [], 0
    for window in group:
        n = len(window.targets)
        right.append([a == b for a, b in zip(best[at : at + n], window.targets, strict=True)])
        at += n
    return right


def _counted(right: Sequence[Sequence[bool]]) -> Runs:
    at_risk, survived = [0] * WIDTH, [0] * WIDTH
    for window in right:
        for depth, fine in enumerate(window):
            at_risk[depth] += 1
            if not fine:
                break
            survived[depth] += 1
    rows = sum(len(window) for window in right)
    return Runs(tuple(at_risk), tuple(survived), sum(sum(window) for window in right), rows)

"""One text that is being written, and where it copies from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from foredraft.core.draft import ROOT, Draft
from foredraft.retrieval.backend import Retrieval
from foredraft.retrieval.calibration import Calibration
from foredraft.retrieval.index import KINDS, PREDICTION, TEXT, Guesses, Hint
from foredraft.retrieval.prediction import Cursor

Source = tuple[Any, int]  # an index and its kind
LIKELY: Final = 0.5  # chance from which a guess of the prediction is taken as it is


@dataclass(slots=True)
class Counts:
    """Guesses copied from one kind of source."""

    drafted: int = 0
    accepted: int = 0

    @property
    def rejected(self) -> int:
        """Those that were drafted in vain, whether tested or behind a rejected one."""
        return self.drafted - self.accepted


class Copier:
    """Proposes from the text, a prediction and what is recalled; learns what became of it. ``counts`` is by kind."""

    def __init__(self, engine: Retrieval, calibration: Calibration, prediction: Sequence[int] = ()) -> None:
        self.counts = {kind: Counts() for kind in KINDS}
        self._calibration = calibration
        self._text = engine.index()
        self._search = engine.search(self._text, calibration.table)
        self._length = 0
        self._cursor = Cursor(prediction)
        self._expected: tuple[Source, ...] = ()
        if len(prediction):
            self._expected = ((engine.index(), PREDICTION),)
            self._expected[0][0].extend(prediction)
        self._recalled: Sequence[Source] = ()
        self._others: tuple[Source, ...] = self._expected
        self._end = len(prediction)
        self._rows: list[list[int]] = []
        self._resume: tuple[Any, int] | None = None  # an index and what comes after the guess that was rejected

    def read(self, tokens: list[int]) -> None:
        """Index what is new of the text."""
        self._text.extend(np.array(tokens[self._length :], dtype=np.int32))
        self._length = len(tokens)

    def propose(
        self, tokens: list[int], recalled: Sequence[Source], limit: int, branches: int, floor: float
    ) -> Guesses:
        """Guess how the text goes on; ``recalled`` are the memories that it may read."""
        if recalled is not self._recalled:
            self._recalled, self._others = recalled, (*self._expected, *recalled)
        fresh, self._length = tokens[self._length :], len(tokens)
        found = self._search.propose(fresh, self._others, self._hints(), limit, branches, floor)
        if self._expected and not self._likely(found):
            hints = [(source and source - 1, place) for source, place in self._hints() if source != 1]
            without = self._search.propose((), self._recalled, hints, limit, branches, floor)
            if sum(without.paths) > sum(found.paths):
                # an unlikely prediction outvotes what it contradicts, and must not silence it
                found = replace(without, rows=[[*row[:3], row[3] and row[3] + 1, row[4]] for row in without.rows])
        self._rows = found.rows
        return found

    def _likely(self, found: Guesses) -> bool:
        return bool(found.rows) and self._kind(found.rows[0][3]) == PREDICTION and found.paths[0] >= LIKELY

    def observe(self, draft: Draft, tokens: Sequence[int]) -> None:
        """Learn from a draft, which is the first so many guesses of the last proposal, and what was committed."""
        rows, node, rejected = self._rows[: len(draft)], ROOT, None
        buckets: list[int] = []
        hits: list[bool] = []
        path: set[int] = set()  # guesses that were accepted
        placed = 0  # committed tokens that the last accepted guess accounts for
        family: dict[int, list[int]] = {}
        for i, parent in enumerate(draft.parents):
            family.setdefault(parent, []).append(i)
        for committed, token in enumerate(tokens, 1):
            children = family.get(node)
            if children is None:
                break
            buckets += (rows[i][2] for i in children)
            hits += (rows[i][0] == token for i in children)
            chosen = next((i for i in children if rows[i][0] == token), None)
            if chosen is None:
                rejected = children[0]
                break
            node, placed = chosen, committed
            path.add(node)
        self._calibration.learn(buckets, hits)
        self._count(rows, path)
        if placed and self._kind(rows[node][3]) == PREDICTION and not self._cursor.places:
            self._cursor.find(rows[node][4] + 1)  # it was lost, and what was accepted finds it again
            self._follow(tokens[placed:])
        else:
            self._follow(tokens)
        self._resume_after(None if rejected is None else rows[rejected], len(tokens))
        self._rows = []

    def _count(self, rows: Sequence[Sequence[int]], accepted: set[int]) -> None:
        """Count guesses by kind; what follows the prediction's last token was not predicted, and cannot fail it."""
        beyond: list[bool] = []
        over = self._cursor.places[:1] == [self._end]
        for i, (_, parent, _, source, place) in enumerate(rows):
            kind = self._kind(source)
            after = beyond[parent] if parent >= 0 else over
            beyond.append(after or (kind == PREDICTION and place == self._end - 1))
            if i in accepted or kind != PREDICTION or not after:
                self.counts[KINDS[kind]].drafted += 1
                self.counts[KINDS[kind]].accepted += i in accepted

    def _follow(self, tokens: Sequence[int]) -> None:
        if self._expected:
            for token in tokens:
                self._cursor.advance(token)

    def _resume_after(self, rejected: list[int] | None, committed: int) -> None:
        """Expect the copy to go on behind a token that was changed."""
        if rejected is not None and self._kind(rejected[3]) != PREDICTION:
            self._resume = (self._index(rejected[3]), rejected[4] + 1)
        elif not self._rows and self._resume is not None and committed == 1:
            self._resume = (self._resume[0], self._resume[1] + 1)
        else:
            self._resume = None

    def _hints(self) -> list[Hint]:
        hints = [(1, place) for place in self._cursor.places]
        if self._resume is not None:
            index, place = self._resume
            numbers = [0] if index is self._text else [i for i, o in enumerate(self._others, 1) if o[0] is index]
            hints += [(number, place) for number in numbers]
        return hints

    def _kind(self, source: int) -> int:
        return TEXT if source == 0 else self._others[source - 1][1]

    def _index(self, source: int) -> Any:
        return self._text if source == 0 else self._others[source - 1][0]

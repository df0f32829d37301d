"""An index over token lists and a search through several of them: the two protocols, and whoever fulfils them here.

An index holds int32 tokens in documents. For each of a few lengths k it chains the positions whose last k tokens are
the same, the latest first, as LZ77 does. A search follows a bounded number of links for the end of the text, extends
each match backwards (never out of its document), and lets the candidates vote for the next token, guess by guess:
longer matches, more of them and later ones weigh more, and so does what matches on beyond one edited token. A
candidate that disagrees drops out; a text that is copied to its end goes on in the guesses themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

END: Final = -1  # stands between two documents
TEXT, PREDICTION, MEMORY = range(3)  # kinds of sources
KINDS: Final = ("text", "prediction", "memory")
BUCKETS: Final = 3 * 8 * 3 * 3 * 3  # kind, length of the match, what matches beyond one edit, supporters, share of vote
MAX_GUESSES: Final = 256  # guesses in a proposal

Hint = tuple[int, int]  # a source, and the position in it to copy from


@dataclass(frozen=True, slots=True)
class Guesses:
    """Guesses, each after its parent: a chain, or a tree where alternatives were asked for.

    ``rows`` is [N] of (token, parent, bucket, source, position it is copied from); ``paths`` [N] the calibrated chance
    that a guess and all it builds on are accepted. ``steps`` counts the links that were followed.
    """

    rows: list[list[int]]
    paths: list[float]
    steps: int


class Index(Protocol):
    """Token lists that can be searched. Read by any number of threads at a time, or changed by one."""

    def __len__(self) -> int:
        """How many tokens it holds, the ends of documents included."""
        ...

    @property
    def bytes(self) -> int:
        """Bytes it occupies."""
        ...

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append tokens, END where a document ends."""
        ...

    def tokens(self) -> NDArray[np.int32]:
        """Return a copy of all it holds: [T]."""
        ...


class Search(Protocol):
    """Proposes how one text goes on. ``table`` holds the chance of acceptance of each bucket: [BUCKETS] of float."""

    def propose(
        self,
        fresh: Sequence[int],
        others: Sequence[tuple[Any, int]],
        hints: Sequence[Hint] = (),
        limit: int = 15,
        branches: int = 0,
        floor: float = 0.0,
    ) -> Guesses:
        """Append ``fresh`` to the text and guess up to ``limit`` tokens more, at most MAX_GUESSES.

        ``others`` are further indexes to copy from, each with its kind. Source 0 is the text, 1 the first of the
        others. ``hints`` are candidates beside those that are found. ``branches`` is how many alternatives to the first
        choice each guess may have; no guess has a path less likely than ``floor``.
        """
        ...

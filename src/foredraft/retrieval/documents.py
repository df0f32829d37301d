"""Documents of recent text: which of them to keep, and how much of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from foredraft.retrieval.cache_file import Document
from foredraft.retrieval.memory import GENERATIONS


def distinct(documents: Sequence[Document]) -> list[Document]:
    """Return the documents without those that are the beginning, the end or the whole of another.

    They stay in their order; of those that are the same the last stays.
    """
    held: dict[bytes, Document] = {}
    for document in documents:
        held.pop(document.tobytes(), None)  # what is said again is no longer old
        held[document.tobytes()] = document
    for step in (1, -1):
        # sorted, what begins another stands right before one that it begins
        order = sorted((document[::step].astype(">i4").tobytes(), key) for key, document in held.items())
        for (text, key), (longer, _) in pairwise(order):
            if longer.startswith(text):
                del held[key]
    return list(held.values())


def size(documents: Sequence[Document]) -> int:
    """Return how many tokens documents take, the ends between them included."""
    return sum(map(len, documents)) + max(0, len(documents) - 1)


def bounded(documents: Sequence[Document], bound: int) -> tuple[list[Document], int]:
    """Return the latest documents that fit, each cut to its last quarter of the bound, and how many tokens are gone.

    Of the oldest that does not fit whole, its end is kept.
    """
    kept: list[Document] = []
    room, most = bound, bound // GENERATIONS
    for document in reversed(documents):
        if room <= 0:
            break
        kept.append(document[-min(room, most) :])
        room -= len(kept[-1]) + 1
    kept.reverse()
    return kept, sum(map(len, documents)) - sum(map(len, kept))

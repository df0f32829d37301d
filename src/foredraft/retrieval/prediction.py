"""Following a predicted text: where it goes on, and where it may go on after an edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NEAR: Final = 8  # tokens that may have been left out at once
PLACES: Final = 8  # hypotheses at a time
LOST: Final = 16  # tokens without a match in a row after which no place is expected any more


class Cursor:
    """Where in a predicted text the answer is expected to go on: ``places``, the likeliest first.

    A token that is not the expected one is a substitution, an insertion, or follows what was left out; each is a
    place, and the next tokens tell which was right.
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = tuple(prediction)
        self._misses = 0
        self.places: list[int] = [0] if self._prediction else []

    def advance(self, token: int) -> None:
        """Follow the answer by one token."""
        text = self._prediction
        going = [place + 1 for place in self.places if place < len(text) and text[place] == token]
        if going:
            self.places, self._misses = going, 0
            return
        self._misses += 1
        if self._misses > LOST:
            self.places = []
            return
        after: list[int] = []
        for place in self.places[:2]:
            skipped = (at + 1 for at in range(place + 1, place + 1 + NEAR) if text[at : at + 1] == (token,))
            after += (next(skipped, place + 1), place + 1, place)
        self.places = [place for place in dict.fromkeys(after) if place <= len(text)][:PLACES]

    def find(self, place: int) -> None:
        """Go on from ``place``, which the text itself has confirmed."""
        self.places, self._misses = [place], 0

"""Tokens into text as they come: stop strings, and pieces that are safe to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class TokenStream(Protocol):
    """Incremental detokenisation: the pieces joined are the decoded whole."""

    def push(self, token: int) -> str:
        """Return the text this token completes; empty while a character is still in parts."""
        ...

    def finish(self) -> str:
        """Return what was held back."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer: the text one token completed.

    ``origin`` says who wrote the token: a drafter's name (guessed and accepted), "correction" (drawn where a guess was
    rejected), "bonus" (added to a draft that survived whole) or "plain" (nothing was guessed). ``text`` may be empty.
    """

    text: str
    token: int
    origin: str


class AnswerText:
    """The text of one answer while it grows.

    ``push`` is what ends a sequence at a stop string; the string itself and what follows it are not part of the text.
    What could still become a stop string is not released before that is settled. A stop string that is complete before
    the answer has ``min_tokens`` tokens is text like any other.
    """

    def __init__(self, stream: TokenStream, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self.text = ""
        self._stream = stream
        self._stop = tuple(stop)
        self._longest = max((len(s) for s in self._stop), default=0)
        self._ends: list[int] = []  # length of the text after each token
        self._min_tokens = min_tokens
        self._passed = 0  # length of the text that no stop string may end in
        self._stopped = False
        self._shown_tokens = 0
        self._shown_text = 0

    def push(self, token: int) -> bool:
        """Add one token; say whether it completed a stop string."""
        self._add(self._stream.push(token), len(self._ends) + 1)
        self._ends.append(len(self.text))
        return self._stopped

    def finish(self) -> None:
        """Settle what was held back; nothing follows but the last ``release``."""
        if not self._stopped:
            self._add(self._stream.finish(), len(self._ends))
        self._longest = 0

    def release(self, tokens: Sequence[int], origins: Sequence[str]) -> list[Piece]:
        """Return a piece for each token not yet shown whose text is settled.

        ``tokens`` and ``origins`` are those of the answer so far.
        """
        safe = len(self.text) - self._open()
        pieces = []
        while self._shown_tokens < len(self._ends) and self._end(self._shown_tokens) <= safe:
            index = self._shown_tokens
            end = self._end(index)
            pieces.append(Piece(self.text[self._shown_text : end], tokens[index], origins[index]))
            self._shown_text = max(end, self._shown_text)
            self._shown_tokens += 1
        return pieces

    def _end(self, index: int) -> int:
        # the last token carries what was only settled at the end; a cut text ends earlier than its tokens
        if self._longest == 0 and index == len(self._ends) - 1:
            return len(self.text)
        return min(self._ends[index], len(self.text))

    def _add(self, text: str, tokens: int) -> None:
        searched = max(0, len(self.text) - self._longest + 1)
        self.text += text
        if tokens < self._min_tokens:
            self._passed = len(self.text)
            return
        starts = {s: max(searched, self._passed - len(s) + 1) for s in self._stop}
        found = [at for s, start in starts.items() if (at := self.text.find(s, start)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self._stopped = True

    def _open(self) -> int:
        """Return how many characters at the end of the text may be the beginning of a stop string."""
        if self._stopped:
            return 0
        for length in range(min(self._longest - 1, len(self.text)), 0, -1):
            if any(s.startswith(self.text[-length:]) for s in self._stop):
                return length
        return 0

"""Tokens in colour: who wrote each, drafter, correction or bonus.

The 256-colour numbers have a contrast of about 4 to 1 against black and white alike, and blue against orange (accepted
against corrected) is told apart by every common kind of colour vision. Plain tokens are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TextIO

from foredraft.cli.terminal.console import Console, harmless

_MANY: Final[Mapping[str, str]] = {
    "suffix": "38;5;32",
    "lookup": "38;5;62",
    "model": "38;5;29",
    "correction": "38;5;166",
    "bonus": "38;5;133",
}
_FEW: Final[Mapping[str, str]] = {"suffix": "34", "lookup": "36", "model": "32", "correction": "31", "bonus": "35"}
_STRANGERS_MANY: Final = ("38;5;136", "38;5;30", "38;5;168", "38;5;98")
_STRANGERS_FEW: Final = ("33", "96")
_OF_THE_TARGET: Final = ("correction", "bonus", "plain")


@dataclass(slots=True)
class Ink:
    """The colours of one run: fixed ones for the drafters that ship, the next free one for a stranger's."""

    many: bool
    seen: list[str] = field(default_factory=list)
    _strangers: list[str] = field(default_factory=list)

    def paint(self, text: str, origin: str) -> str:
        """Return the text in its writer's colour."""
        if origin not in self.seen:
            self.seen.append(origin)
        if origin == "plain" or not text:
            return text
        return f"\x1b[{self._code(origin)}m{text}\x1b[0m"

    def legend(self) -> str:
        """Return what the colours meant, each in its own."""
        drafters = [name for name in self.seen if name not in _OF_THE_TARGET]
        parts = [self.paint(f"guessed by {name}, accepted" if name == drafters[0] else name, name) for name in drafters]
        words = {"correction": "correction", "bonus": "bonus", "plain": "plain"}
        parts += [self.paint(word, name) for name, word in words.items() if name in self.seen]
        return " · ".join(parts)

    def _code(self, origin: str) -> str:
        known = _MANY if self.many else _FEW
        if origin in known:
            return known[origin]
        if origin not in self._strangers:
            self._strangers.append(origin)
        colours = _STRANGERS_MANY if self.many else _STRANGERS_FEW
        return colours[self._strangers.index(origin) % len(colours)]


class Pen:
    """Writes an answer to a stream as it comes."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        self._stream = stream
        self.ink = Ink(console.many_colours) if console.coloured(stream) else None
        self._tame = self.ink is not None or stream.isatty()
        self._last = "\n"

    def write(self, text: str, origin: str) -> None:
        """Write one piece."""
        if self._tame:
            text = harmless(text)
        if text:
            self._last = text[-1]
        self._stream.write(text if self.ink is None else self.ink.paint(text, origin))
        self._stream.flush()

    def end(self) -> None:
        """End the last line, if it has begun."""
        if self._last != "\n":
            self._stream.write("\n")
            self._last = "\n"
        self._stream.flush()

"""What the command line is asked with, and what it answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foredraft.api import Stream
from foredraft.engine.text import Piece

OWN = """
from foredraft import Draft

class Own:
    name = "own"
    taps = ()
    def begin(self, sequence): pass
    def propose(self, sequences, quotes, noises):
        return [{guess} for s, q in zip(sequences, quotes)]
    def observe(self, sequences, outcomes, scored): pass
    def end(self, sequence): pass
"""


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The last line of stdout."""
        document: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return document


Ask = Callable[..., Answer]


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Keyboard(Screen):
    """A stdin that says so too."""


def interrupt_after(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C once, in place of the next piece."""
    calls = iter(range(10_000))
    whole = Stream.__next__

    def next_piece(stream: Stream) -> Piece:
        if next(calls) == pieces:
            raise KeyboardInterrupt
        return whole(stream)

    monkeypatch.setattr(Stream, "__next__", next_piece)


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path

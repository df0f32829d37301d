"""Where the words go: stdout for the answer, stderr for everything else, each a terminal or not."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TextIO

from foredraft.cli.terminal.progress import Progress
from foredraft.cli.terminal.text_width import wrapped

COLOUR: Final = ("auto", "always", "never")
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM: Final = "\x1b[2m{}\x1b[0m"


@dataclass(slots=True)
class Console:
    """The streams of one run and what they can show. ``environment`` is the process's, read nowhere else."""

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    environment: Mapping[str, str]
    colour: str = "auto"
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(self.stderr)

    @classmethod
    def of_process(cls) -> Console:
        """Return this process's console."""
        for name in ("stdin", "stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by whoever started us
                mode = "r" if name == "stdin" else "w"
                setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - lives as long as we do
        for stream in (sys.stdout, sys.stderr):
            # a character that the terminal's encoding lacks is shown as an escape rather than ending the run
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        return cls(sys.stdin, sys.stdout, sys.stderr, os.environ)

    def choose_colour(self, asked: str | None) -> None:
        """Take the user's word for it."""
        self.colour = asked or "auto"

    def coloured(self, stream: TextIO) -> bool:
        """Say whether to colour what goes to ``stream``: --color, then NO_COLOR, then FORCE_COLOR, then what it is."""
        if self.colour != "auto":
            return self.colour == "always"
        if self.environment.get("NO_COLOR"):
            return False
        if self.environment.get("FORCE_COLOR", "0") not in ("", "0"):
            return True
        return stream.isatty() and self.environment.get("TERM") != "dumb"

    @property
    def many_colours(self) -> bool:
        """Whether the terminal knows 256 colours."""
        return "256" in self.environment.get("TERM", "") or bool(self.environment.get("COLORTERM"))

    @property
    def width(self) -> int:
        """Columns to write in."""
        return shutil.get_terminal_size((100, 24)).columns

    def say(self, message: str) -> None:
        """Tell the user something on stderr, on one line that cannot hurt a terminal."""
        self._note(harmless(" ".join(message.split())), "foredraft: {}\n")

    def remark_parts(self, parts: Sequence[str]) -> None:
        """Write what belongs on one line, as a remark; on more where a terminal is too narrow for it."""
        told = [harmless(part) for part in parts]
        for line in wrapped(told, " · ", self.width) if self.stderr.isatty() else [" · ".join(told)]:
            self.remark(line)

    def remark(self, message: str) -> None:
        """Write a line of lesser weight on stderr: statistics, notes."""
        self._note(harmless(message), (_DIM if self.coloured(self.stderr) else "{}") + "\n")

    def legend(self, painted: str) -> None:
        """Write on stderr what the colours meant."""
        self._note(painted, "{}\n")

    def _note(self, message: str, form: str) -> None:
        self.progress.close()
        self.stdout.flush()
        self.stderr.write(form.format(message))
        self.stderr.flush()

    def print(self, text: str = "") -> None:
        """Write a line of the result on stdout."""
        self.progress.close()
        self.stdout.write(text + "\n")
        self.stdout.flush()


def harmless(text: str) -> str:
    """Return the text with control characters made visible: a model's words must not steer a terminal."""
    return _UNSAFE.sub(_visible, text)


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)  # the picture of that control character
    return "\u2421" if code == 0x7F else f"\\x{code:02x}"

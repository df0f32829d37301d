"""argparse with one sentence for every mistake, and the types of option values."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NoReturn

from foredraft.errors import OptionError

_WIDTH: Final = 26
_LIKE: Final = 0.65


class Parser(argparse.ArgumentParser):
    """A parser that raises OptionError instead of printing its usage and leaving."""

    def __init__(self, prog: str, description: str, epilog: str | None = None, usage: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description[0].upper() + description[1:],
            epilog=epilog,
            usage=usage,
            formatter_class=_formatter,
            allow_abbrev=False,
        )
        self._words: list[str] = []
        self.shown: Callable[[Sequence[str]], Parser] | None = None  # of a verb of several parts: whose help, by words

    def print_help(self, file: Any = None) -> None:
        """Print the help, of the part of the verb that the words name where it has parts."""
        if self.shown is None:
            super().print_help(file)
        else:
            self.shown(self._words).print_help(file)

    def read(self, words: Sequence[str], *, mixed: bool = False) -> argparse.Namespace:
        """Parse; ``mixed`` lets options stand between positional words. Raises OptionError."""
        self._words = list(words)
        known, rest = self.parse_known_intermixed_args(words) if mixed else self.parse_known_args(words)
        if not rest:
            return known
        word = rest[0].partition("=")[0]
        if word.startswith("-"):
            raise OptionError(f"there is no option {word}{nearest(word, self._option_string_actions)}")
        positional = [action.dest for action in self._actions if not action.option_strings]
        if "prompt" in positional:
            raise OptionError(f"unexpected word {rest[0]!r}: a prompt of several words goes in quotes")
        takes = "takes fewer words" if positional else "takes options only"
        raise OptionError(f"unexpected word {rest[0]!r}: {self.prog} {takes}, see {self.prog} --help")

    def error(self, message: str) -> NoReturn:
        """Raise argparse's complaint as a sentence."""
        found = re.fullmatch(r"argument ([^:]+): (.*)", message, re.DOTALL)
        if found is None:
            raise OptionError(message)
        name, complaint = found[1].split("/")[-1], found[2]
        if complaint.startswith("expected "):
            following = [after for word, after in pairwise(self._words) if word in found[1].split("/")]
            dashed = [word for word in following if word.startswith("-") and word not in self._option_string_actions]
            hint = f"; one that begins with a dash is joined to it: {name}={dashed[0]:.40}" if dashed else ""
            raise OptionError(f"{name} needs a value{hint}")
        raise OptionError(f"{name} {complaint}" if complaint.startswith("must ") else f"{name}: {complaint}")


class Once(argparse.Action):
    """Takes a value, and refuses a second one rather than forget the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse calls it so
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        """Keep the value. Raises OptionError for a second."""
        if getattr(namespace, self.dest) is not None:
            raise OptionError(f"{option} is there twice: give one")
        setattr(namespace, self.dest, values)


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=_WIDTH)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the known word most like this one, or nothing."""
    names = list(known)
    near = [name for name in names if len(word) > 3 and name.startswith(word)]
    bare = {name.lstrip("-"): name for name in names}  # dashes, which all have, are no likeness
    near = near or [bare[name] for name in difflib.get_close_matches(word.lstrip("-"), bare, n=1, cutoff=_LIKE)]
    return f"; did you mean {near[0]}?" if near else ""


def whole(text: str) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def number(text: str) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def whole_or_auto(text: str) -> int | str:
    """Read a whole number or the word auto."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number or auto, not {text!r}") from None


def wholes(text: str) -> list[int]:
    """Read whole numbers with commas between them."""
    return [whole(part.strip()) for part in text.split(",")]


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a type that takes one of these words."""

    def read(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"must be {' or '.join(choices)}, not {text!r}")
        return text

    return read

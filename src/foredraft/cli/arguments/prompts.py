"""Prompts as they come: an argument, stdin, a file, or a file of many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TextIO

from foredraft.cli.arguments.files import read_text
from foredraft.errors import PromptError
from foredraft.system.json_text import parse_json


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file of prompts: the texts to say in turn, the answer that is expected and its kind, if said."""

    number: int  # from 1
    turns: tuple[str, ...]
    prediction: str | None = None
    category: str | None = None


def read_prompt(word: str | None, stdin: TextIO) -> str:
    """Return the prompt a word stands for: itself, all of stdin (``-``) or a file (``@PATH``). Raises PromptError."""
    if word is None:
        raise PromptError("a prompt is missing: give it in quotes, as @FILE, or - for stdin")
    if word == "-":
        text = _read_stdin(stdin)
    elif word == "@":
        raise PromptError("@ needs the name of a file, as in @question.txt")
    elif word.startswith("@"):
        text = _read_file(word[1:])
    else:
        return _full(word, "the prompt")
    # an editor or echo ends a text with a newline that is not meant
    return _full(text.removesuffix("\n"), "stdin" if word == "-" else word[1:])


def read_lines(name: str, stdin: TextIO, *, predictions: bool = False) -> list[Line]:
    """Return the prompts of a file of JSON lines (``-`` is stdin), with ``predictions`` only where they are used.

    Raises PromptError, which names a bad line.
    """
    text = _read_stdin(stdin) if name == "-" else _read_file(name)
    name = "stdin" if name == "-" else name
    lines = [
        _line(i, line, f"{name}, line {i}", predictions)
        for i, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    if not lines:
        raise PromptError(f"{name} holds no prompts: it needs a JSON object a line, with prompt or turns")
    return lines


def _line(number: int, text: str, where: str, predictions: bool) -> Line:
    try:
        line = parse_json(text)
    except ValueError as error:
        raise PromptError(f"{where} is not JSON: {error}") from error
    if not isinstance(line, dict) or ("prompt" in line) == ("turns" in line):
        raise PromptError(f"{where} must be an object with either prompt or turns")
    turns: Any = [line["prompt"]] if "prompt" in line else line["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise PromptError(f"{where}: a prompt is text, turns a list of texts, none of them empty")
    from foredraft.options import Options

    for key in line:  # notes of a collection may stand beside a prompt, options may not: nobody would honour them
        if key in Options.__annotations__ and not (predictions and key == "prediction"):
            raise PromptError(f"{where} has {key!r}, which is not an option of a line: give it for all of them")
    prediction = line.get("prediction")
    if prediction is not None:
        if not isinstance(prediction, str) or not prediction:
            raise PromptError(f"{where}: a prediction is text that is not empty")
        if len(turns) > 1:
            raise PromptError(f"{where}: a prediction is of one answer, and there are {len(turns)} turns")
    category = line.get("category")
    return Line(number, tuple(turns), prediction, category if isinstance(category, str) else None)


def _full(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PromptError(f"{where} is not UTF-8 text") from None
    if not text.strip():
        raise PromptError(f"{where} is empty: give it some text")
    return text


def _read_stdin(stdin: TextIO) -> str:
    try:
        return stdin.read()
    except UnicodeDecodeError as error:
        raise PromptError(f"stdin is not {error.encoding} text: {error.reason}") from error


def _read_file(name: str) -> str:
    try:
        return read_text(name)
    except OSError as error:
        raise PromptError(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PromptError(f"{name or 'the file of prompts'} {error}") from error

"""Prompts as they come: an argument, stdin, a file, or a file of many."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from foredraft.errors import PromptError


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file of prompts: the texts to say in turn."""

    number: int  # from 1
    turns: tuple[str, ...]


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


def read_lines(name: str, stdin: TextIO) -> list[Line]:
    """Return the prompts of a file of JSON lines (``-`` is stdin). Raises PromptError, which names a bad line."""
    text = _read_stdin(stdin) if name == "-" else _read_file(name)
    lines = [
        Line(i, _turns(line, f"{name}, line {i}")) for i, line in enumerate(text.split("\n"), start=1) if line.strip()
    ]
    if not lines:
        raise PromptError(f"{name} holds no prompts: it needs a JSON object a line, with prompt or turns")
    return lines


def _turns(text: str, where: str) -> tuple[str, ...]:
    try:
        line = json.loads(text)
    except ValueError as fault:
        raise PromptError(f"{where} is not JSON: {fault}") from fault
    if not isinstance(line, dict) or ("prompt" in line) == ("turns" in line):
        raise PromptError(f"{where} must be an object with either prompt or turns")
    turns: Any = [line["prompt"]] if "prompt" in line else line["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise PromptError(f"{where}: a prompt is text, turns a list of texts, none of them empty")
    return tuple(turns)


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
    except UnicodeDecodeError as fault:
        raise PromptError(f"stdin is not {fault.encoding} text: {fault.reason}") from fault


def _read_file(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except OSError as fault:
        raise PromptError(f"{name or '@'} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise PromptError(f"{name} is not UTF-8 text") from fault

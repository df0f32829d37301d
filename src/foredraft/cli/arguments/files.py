"""Texts and option values that lie in files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from foredraft.errors import OptionError
from foredraft.system.json_text import require_regular

_HANDED_IN: Final = re.compile(r"/dev/(?:stdin|fd/\d+)|/proc/(?:self|\d+)/fd/\d+")


def read_text(name: str, most: int | None = None) -> str:
    """Return the UTF-8 text of a file of ``most`` bytes at most, a byte order mark left out.

    What the shell has opened for us may be a pipe (/dev/stdin, or /dev/fd/N of a process substitution); any other pipe
    or device is not opened, for it may never end. Raises OSError, and ValueError with what ends the sentence "it ...".
    """
    if not name:
        raise ValueError("has no name")
    path = Path(name)
    try:
        if not _HANDED_IN.fullmatch(name):
            require_regular(path)
        with path.open("rb") as file:
            data = file.read(-1 if most is None else most + 1)
        if most is not None and len(data) > most:
            raise ValueError(f"has more than {most} bytes")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except UnicodeEncodeError:
        raise ValueError("is no name of a file") from None
    except ValueError as error:
        way = ": give a pipe as /dev/stdin" if path.is_fifo() else ""
        raise ValueError(f"{str(error).removeprefix('it ')}{way}") from None


def read_schema(word: str) -> str:
    """Return the JSON schema a word stands for: itself where it begins as one does, else a file, PATH or @PATH.

    Raises OptionError.
    """
    from foredraft.grammar.source import SCHEMA_BYTES

    if not word.strip():
        raise OptionError("json_schema is empty")
    if word.lstrip().startswith("{"):
        return word
    path = word.removeprefix("@")
    try:
        return read_text(path, SCHEMA_BYTES)
    except FileNotFoundError as error:
        raise OptionError(f"json_schema must be a JSON object or a file, and there is no file {path!r:.60}") from error
    except OSError as error:
        raise OptionError(f"json_schema: {path!r:.60} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"json_schema: {path:.60} {error}") from error


def read_keys(name: str) -> list[str]:
    """Return the API keys of a file, a line each; blank lines and comments (#) are none. Raises OptionError."""
    try:
        lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise OptionError(f"--api-key-file: {name!r:.60} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"--api-key-file: {name!r:.60} is not UTF-8 text") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise OptionError(f"--api-key-file: {name!r:.60} holds no key")
    return keys


def read_prediction(name: str) -> str:
    """Return the text of a file as it stands. Raises OptionError."""
    try:
        text = read_text(name)
    except OSError as error:
        raise OptionError(f"--prediction: {name!r:.60} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"--prediction: {name!r:.60} {error}") from error
    if not text:
        raise OptionError(f"--prediction: {name!r:.60} is empty")
    return text

"""Option values that lie in files."""

from __future__ import annotations

from pathlib import Path

from foredraft.errors import OptionError


def read_schema(word: str) -> str:
    """Return the JSON schema a word stands for: itself where it begins as one does, else a file, PATH or @PATH.

    Raises OptionError.
    """
    from foredraft.models.grammar_source import SCHEMA_BYTES

    if not word.strip():
        raise OptionError("json_schema is empty")
    if word.lstrip().startswith("{"):
        return word
    path = word.removeprefix("@")
    try:
        with Path(path).open("rb") as file:
            return file.read(SCHEMA_BYTES + 1).decode()
    except UnicodeEncodeError as fault:
        raise OptionError("json_schema is not UTF-8 text") from fault
    except FileNotFoundError as fault:
        raise OptionError(f"json_schema must be a JSON object or a file, and there is no file {path!r:.60}") from fault
    except UnicodeDecodeError as fault:
        raise OptionError(f"json_schema: {path} is not UTF-8 text") from fault
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else fault
        raise OptionError(f"json_schema: {path!r:.60} cannot be read: {reason}") from fault


def read_keys(name: str) -> list[str]:
    """Return the API keys of a file, a line each; blank lines and comments (#) are none. Raises OptionError."""
    try:
        lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
    except OSError as fault:
        raise OptionError(f"--api-key-file: {name!r:.60} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise OptionError(f"--api-key-file: {name!r:.60} is not UTF-8 text") from fault
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise OptionError(f"--api-key-file: {name!r:.60} holds no key")
    return keys


def read_prediction(name: str) -> str:
    """Return the text of a file as it stands. Raises OptionError."""
    try:
        text = Path(name).read_text(encoding="utf-8-sig")
    except OSError as fault:
        raise OptionError(f"--prediction: {name!r:.60} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise OptionError(f"--prediction: {name!r:.60} is not UTF-8 text") from fault
    if not text:
        raise OptionError(f"--prediction: {name!r:.60} is empty")
    return text

"""What a search has learnt so far, in a file: a search that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

from foredraft.system.files import write_whole
from foredraft.system.json_text import parse_json, read_regular
from foredraft.training.layers.answers import Answer
from foredraft.training.layers.windows import Runs

FORMAT: Final = 2
_BYTES: Final = 1 << 28
_PAUSE_S: Final = 2.0  # between two writes


@dataclass(slots=True)
class State:
    """The target's answers and what each set tried came to; costs are not kept, because the machine may have changed.

    ``key`` says what all of it depends on.
    """

    path: Path
    key: str
    answers: list[Answer] = field(default_factory=list)
    tried: dict[tuple[int, ...], Runs] = field(default_factory=dict)
    _written: float = 0.0

    def note(self, sub_layers: tuple[int, ...], runs: Runs) -> None:
        """Remember what a set came to; the file follows within seconds. Raises StorageError."""
        self.tried[sub_layers] = runs
        if monotonic() - self._written > _PAUSE_S:
            self.write()

    def write(self) -> None:
        """Write the file, whole or not at all. Raises StorageError."""
        tried = [[list(each), *asdict(runs).values()] for each, runs in self.tried.items()]
        answers = [[answer.prompt, list(answer.tokens)] for answer in self.answers]
        document = {"format": FORMAT, "key": self.key, "answers": answers, "tried": tried}
        document["digest"] = _digest(document)
        write_whole(self.path, json.dumps(document))
        self._written = monotonic()


def state_key(facts: Mapping[str, Any], prompts: Sequence[Sequence[int]]) -> str:
    """Return a digest of all that a search's findings depend on."""
    return hashlib.sha256(json.dumps([dict(facts), [list(p) for p in prompts]]).encode()).hexdigest()[:16]


def open_state(path: Path, key: str) -> State:
    """Return what a search under the same key left, or an empty state.

    A file that is torn, changed by anyone else, or of a search for something else counts as none: all of it can be
    found again.
    """
    try:
        found = parse_json(read_regular(path, _BYTES))
        digest = found.pop("digest")
        if found["format"] != FORMAT or found["key"] != key or digest != _digest(found):
            return State(path, key)
        answers = [Answer(tuple(tokens), prompt) for prompt, tokens in found["answers"]]
        tried = {tuple(each): Runs(tuple(a), tuple(s), right, rows) for each, a, s, right, rows in found["tried"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return State(path, key)
    return State(path, key, answers, tried)


def _digest(document: Mapping[str, Any]) -> str:
    """Return what the file's own writer makes of its content: a file that parses may still be damaged."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

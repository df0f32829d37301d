"""What a target said and what its tapped layers held while it said it, on disk: bounded, in whole files only.

A shard is one safetensors file of many texts laid end to end. It appears whole under its name or not at all, so that a
collection that was killed goes on after its last whole shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from foredraft.errors import ModelError, StorageError
from foredraft.models.checkpoint import open_file
from foredraft.models.weights import floats
from foredraft.system.files import refused, require_space, sync

_NAMES: Final = ("lengths", "prompts", "tokens", "states", "top", "top_logits")
_NAME: Final = "states-{:05}.safetensors"
_HEADER: Final = 1024  # bytes of a shard beside its texts, at most


@dataclass(frozen=True, slots=True)
class Example:
    """One text of L tokens that the target wrote after a prompt, and its A = L - prompt rows of scores.

    Row ``i`` of ``states`` belongs to the i-th token and so foretells the next; the last token was never read.
    """

    tokens: NDArray[np.int32]  # [L]
    prompt: int
    states: NDArray[np.uint16]  # [L - 1, taps, H] bfloat16 bits
    top: NDArray[np.int32]  # [A, K] the likeliest tokens
    top_logits: NDArray[np.float32]  # [A, K] less the logarithm of the sum of all exponentials: log-probabilities

    @property
    def nbytes(self) -> int:
        """Bytes it takes on disk."""
        return 16 + self.tokens.nbytes + self.states.nbytes + self.top.nbytes + self.top_logits.nbytes


def narrowed(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return float32 values as the bits of the nearest bfloat16, ties to even."""
    return floats.narrowed(np.ascontiguousarray(values, np.float32), "F32", "states")


def bytes_a_token(taps: int, hidden: int, top: int) -> int:
    """Return what one token of an answer takes on disk."""
    return 4 + 2 * taps * hidden + 8 * top


class Shards:
    """The shards of one folder. ``limit`` bounds their bytes in all: there is room for no more.

    ``key`` says what the states depend on; shards under another key are not these. Raises StorageError.
    """

    def __init__(self, folder: Path, key: str, limit: int) -> None:
        self.folder = folder
        self.key = key
        self.limit = limit
        self.waiting = 0  # bytes that are not on disk yet
        self._held: list[Example] = []
        self._largest = 0  # bytes of a text
        self.paths: list[Path] = []
        self.bytes = 0
        self._look()

    @property
    def full(self) -> bool:
        """Whether there may be no room for a further text."""
        return self.bytes + self.waiting + self._largest + _HEADER > self.limit

    @property
    def number(self) -> int:
        """The shard that is made next: the first that is not there, also where somebody deleted one between others."""
        names = {path.name for path in self.paths}
        return next(i for i in range(len(names) + 1) if _NAME.format(i) not in names)

    def sweep(self) -> None:
        """Remove what a killed process left half written, and look again. Nobody else may be writing here."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob("*.partial"):
                left.unlink()
        except OSError as error:
            raise refused(self.folder, error, "folder") from error
        self._look()

    def add(self, example: Example) -> bool:
        """Take a text in, which ``flush`` writes; False where there is no room for it."""
        self._largest = max(self._largest, example.nbytes)
        if self.bytes + self.waiting + example.nbytes + _HEADER > self.limit:
            return False
        self._held.append(example)
        self.waiting += example.nbytes
        return True

    def flush(self) -> None:
        """Write what was taken in as one shard. Raises StorageError and loses nothing that is on disk."""
        if not self._held:
            return
        require_space(self.folder, self.waiting, "folder")
        path = self.folder / _NAME.format(self.number)
        partial = path.with_suffix(".partial")
        try:
            save_file(_laid_out(self._held), partial, {"key": self.key})
            sync(partial)
            partial.replace(path)
            sync(self.folder)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise refused(self.folder, error, "folder") from error
            raise StorageError(f"cannot write {path}: {error}") from error
        self._held.clear()
        self.waiting = 0
        self.paths = sorted([*self.paths, path])
        self.bytes += path.stat().st_size

    def _look(self) -> None:
        try:
            self.paths = sorted(self.folder.glob("states-*.safetensors"))
            self.bytes = sum(path.stat().st_size for path in self.paths)
        except OSError as error:
            raise refused(self.folder, error, "folder") from error

    def examples(self) -> Iterator[Example]:
        """Yield every text on disk, shard by shard. Raises StorageError for a shard that is not one of these."""
        for path in self.paths:
            for example in read_shard(path, self.key):
                self._largest = max(self._largest, example.nbytes)
                yield example


def read_shard(path: Path, key: str) -> list[Example]:
    """Return the texts of a shard; its arrays are views of the file. Raises StorageError for any other file."""
    try:
        whole = open_file(path, again="")
        if whole.metadata.get("key") != key:
            raise StorageError(f"{path} holds states of another model or other layers: name another folder")
        return list(_taken_apart({name: whole.raw(name) for name in _NAMES}))
    except (OSError, ModelError, ValueError) as error:
        raise StorageError(f"{path} cannot be read: {error}; delete it, and it is made again") from error


def _laid_out(examples: Sequence[Example]) -> dict[str, Any]:
    return {
        "lengths": np.array([len(e.tokens) for e in examples], np.int64),
        "prompts": np.array([e.prompt for e in examples], np.int64),
        "tokens": np.concatenate([e.tokens for e in examples]),
        "states": np.concatenate([e.states for e in examples]),
        "top": np.concatenate([e.top for e in examples]),
        "top_logits": np.concatenate([e.top_logits for e in examples]),
    }


def _taken_apart(whole: dict[str, Any]) -> Iterator[Example]:
    lengths, prompts = whole["lengths"], whole["prompts"]
    tokens = int(lengths.sum())
    if (
        len(lengths) != len(prompts)
        or not bool((prompts >= 1).all() and (lengths > prompts).all())
        or len(whole["tokens"]) != tokens
        or len(whole["states"]) != tokens - len(lengths)
        or not len(whole["top"]) == len(whole["top_logits"]) == tokens - int(prompts.sum())
    ):
        raise ValueError("its arrays are not of the lengths that it names")
    token = row = score = 0
    for length, prompt in zip(lengths.tolist(), prompts.tolist(), strict=True):
        scores = length - prompt
        yield Example(
            whole["tokens"][token : token + length],
            prompt,
            whole["states"][row : row + length - 1],
            whole["top"][score : score + scores],
            whole["top_logits"][score : score + scores],
        )
        token, row, score = token + length, row + length - 1, score + scores


@dataclass(slots=True)
class Growing:
    """A text while it is being written."""

    states: list[Any] = field(default_factory=list)
    top: list[Any] = field(default_factory=list)
    top_logits: list[Any] = field(default_factory=list)

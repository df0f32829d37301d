"""What a target said and what its tapped layers held while it said it, on disk: bounded, in whole files only.

A shard is one safetensors file of many texts laid end to end. It appears whole under its name or not at all, so that a
collection that was killed goes on after its last whole shard.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from foredraft.errors import ModelError, StorageError
from foredraft.models.store import refused, require_space
from foredraft.models.weights import open_file

SHARD_BYTES: Final = 512 << 20  # at which a batch is cut in two
_NAMES: Final = ("lengths", "prompts", "tokens", "states", "top", "top_logits")
_NAME: Final = "states-{:05}.safetensors"


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
        """Bytes it takes on disk, about."""
        return self.tokens.nbytes + self.states.nbytes + self.top.nbytes + self.top_logits.nbytes


def narrowed(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return float32 values as the bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def bytes_a_token(taps: int, hidden: int, top: int) -> int:
    """Return what one token of an answer takes on disk."""
    return 4 + 2 * taps * hidden + 8 * top


class Shards:
    """The shards of one folder. ``limit`` bounds their bytes in all: there is room for no more.

    ``key`` says what the states depend on; shards under another key are not these. Raises StorageError.
    """

    def __init__(self, folder: Path, key: str, limit: int, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder = folder
        self.key = key
        self.limit = limit
        self._shard_bytes = shard_bytes
        self._waiting: list[Example] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob("*.partial"):
                left.unlink()
            self.paths = sorted(folder.glob("states-*.safetensors"))
        except OSError as fault:
            raise refused(folder, fault) from fault
        self.bytes = sum(path.stat().st_size for path in self.paths)

    @property
    def full(self) -> bool:
        """Whether there is no room for a further shard."""
        return self.bytes + self.waiting + self._shard_bytes // 2 > self.limit

    @property
    def waiting(self) -> int:
        """Bytes that are not on disk yet."""
        return sum(example.nbytes for example in self._waiting)

    def add(self, example: Example) -> None:
        """Take a text in; it is on disk once a shard is full, or after ``flush``."""
        self._waiting.append(example)
        if self.waiting >= self._shard_bytes:
            self.flush()

    def flush(self, note: str = "") -> None:
        """Write what is waiting as one shard. ``note`` is kept with it. Raises StorageError and loses nothing."""
        if not self._waiting:
            return
        require_space(self.folder, self.waiting)
        path = self.folder / _NAME.format(len(self.paths))
        partial = path.with_suffix(".partial")
        try:
            save_file(_laid_out(self._waiting), partial, {"key": self.key, "note": note})
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        except (OSError, SafetensorError) as fault:
            partial.unlink(missing_ok=True)
            if isinstance(fault, OSError):
                raise refused(self.folder, fault) from fault
            raise StorageError(f"cannot write {path}: {fault}") from fault
        self._waiting.clear()
        self.paths.append(path)
        self.bytes += path.stat().st_size

    def examples(self) -> Iterator[Example]:
        """Yield every text on disk, shard by shard. Raises StorageError for a shard that is not one of these."""
        for path in self.paths:
            yield from read_shard(path, self.key)


def read_shard(path: Path, key: str) -> list[Example]:
    """Return the texts of a shard; its arrays are views of the file. Raises StorageError for any other file."""
    try:
        whole = open_file(path)
        if whole.metadata.get("key") != key:
            raise StorageError(f"{path} holds states of another model or other layers: name another folder")
        return list(_taken_apart({name: whole.raw(name) for name in _NAMES}))
    except (OSError, ModelError, ValueError) as fault:
        raise StorageError(f"{path} cannot be read: {fault}; delete it, and it is made again") from fault


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
    token = row = score = 0
    for length, prompt in zip(whole["lengths"].tolist(), whole["prompts"].tolist(), strict=True):
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

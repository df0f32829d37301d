"""What was said in earlier requests: texts by scope, in generations, bounded in tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from threading import RLock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import OptionError
from foredraft.retrieval.backend import Retrieval, retrieval
from foredraft.retrieval.cache_file import Document, split
from foredraft.retrieval.index import END, MEMORY, Index

GENERATIONS: Final = 4
LIMIT: Final = 1_000_000
MAX_GENERATIONS: Final = 1024  # of all scopes together: an index takes some room however little it holds


@dataclass(slots=True, eq=False)
class _Generation:
    scope: str
    index: Index
    tokens: int = 0
    settled: int = 0  # tokens at its beginning that a file holds, or held


class Memory:
    """Earlier texts, to copy from. A scope reads its own texts alone, unless ``shared`` lets all read all.

    At most ``limit`` tokens are held over all scopes. Each scope fills generations of a quarter of that; when there is
    no room, the generation that was begun first, of whatever scope, is dropped whole. Raises OptionError for a limit
    under 4 tokens.

    ``lock`` is held while an index changes; whoever searches what ``recall`` gave holds it too.
    """

    def __init__(self, limit: int = LIMIT, shared: bool = False, engine: Retrieval | None = None) -> None:
        if limit < GENERATIONS:
            raise OptionError(f"a memory holds at least {GENERATIONS} tokens, not {limit}")
        self.limit = limit
        self.shared = shared
        self.lock = RLock()
        self._engine = engine or retrieval()
        self._generations: list[_Generation] = []  # the one begun first comes first
        self._last: dict[str, tuple[int, bytes]] = {}  # length and digest of each scope's latest text
        self._recalled: dict[str, tuple[tuple[Index, int], ...]] = {}

    @property
    def tokens(self) -> int:
        """Tokens held, over all scopes, the ends of texts included."""
        with self.lock:
            return sum(generation.tokens for generation in self._generations)

    @property
    def bytes(self) -> int:
        """Bytes of the indexes."""
        with self.lock:
            return sum(generation.index.bytes for generation in self._generations)

    @property
    def scopes(self) -> dict[str, int]:
        """Tokens held, by scope."""
        with self.lock:
            held: dict[str, int] = {}
            for generation in self._generations:
                held[generation.scope] = held.get(generation.scope, 0) + generation.tokens
            return held

    def remember(self, tokens: Sequence[int] | NDArray[np.int32], scope: str = "") -> None:
        """Add a text. One that begins with the scope's last text, as a conversation's next turn does, adds the rest.

        Of a text longer than a generation the end is kept.
        """
        text = np.array(tokens, dtype=np.int32)
        if not len(text):
            return
        with self.lock:
            length, digest = self._last.get(scope, (0, b""))
            goes_on = 0 < length <= len(text) and _digest(text[:length]) == digest
            fresh = text[length:] if goes_on else np.append(np.int32(END), text)
            current = next((g for g in reversed(self._generations) if g.scope == scope), None)
            if goes_on and current is not None:  # it is said again, also where a file had it
                current.settled = min(current.settled, max(0, current.tokens - length))
            most = self.limit // GENERATIONS
            if current is None or current.tokens + len(fresh) > most:
                current, fresh = self._begin(scope), text[-most:]
            self._make_room(len(fresh), current)
            current.index.extend(fresh)
            current.tokens += len(fresh)
            self._last[scope] = len(text), _digest(text)

    def recall(self, scope: str = "") -> tuple[tuple[Index, int], ...]:
        """Return the indexes that a scope may read, the latest first; the same object until they are others."""
        with self.lock:
            if scope not in self._recalled:
                readable = [g for g in reversed(self._generations) if self.shared or g.scope == scope]
                if not readable:
                    return ()
                self._recalled[scope] = tuple((generation.index, MEMORY) for generation in readable)
            return self._recalled[scope]

    def forget(self, scope: str | None = None) -> None:
        """Drop all texts of a scope, or of every scope."""
        with self.lock:
            self._keep([g for g in self._generations if scope is not None and g.scope != scope])

    def unsaved(self, scope: str) -> tuple[list[Document], Callable[[], None]]:
        """Return a scope's texts that no file holds, the oldest first, and what to call when one does.

        A text that began in a file and went on since is one of them, as a whole.
        """
        with self.lock:
            mine = [(generation, generation.tokens) for generation in self._generations if generation.scope == scope]
            texts = [text for generation, _ in mine for text in _since(generation.index.tokens(), generation.settled)]

        def settle() -> None:
            with self.lock:
                for generation, tokens in mine:
                    generation.settled = tokens

        return texts, settle

    def dump(self) -> list[tuple[str, NDArray[np.int32]]]:
        """Return scope and tokens (END between texts) of each generation, the one begun first first."""
        with self.lock:
            return [(generation.scope, generation.index.tokens()) for generation in self._generations]

    def restore(self, generations: Iterable[tuple[str, NDArray[np.int32]]]) -> None:
        """Hold what ``dump`` gave in the place of what is held now, within this memory's own bound."""
        with self.lock:
            self._keep([])
            for scope, tokens in generations:
                kept = tokens[-(self.limit // GENERATIONS) :]
                generation = self._begin(scope)
                self._make_room(len(kept), generation)
                generation.index.extend(kept)
                generation.tokens = len(kept)

    def _begin(self, scope: str) -> _Generation:
        generation = _Generation(scope, self._engine.index())
        self._keep([*self._generations, generation])
        return generation

    def _make_room(self, wanted: int, current: _Generation) -> None:
        """Drop the oldest generations but ``current``, which is never more than a quarter, until there is room."""
        kept = list(self._generations)
        held = sum(generation.tokens for generation in kept)
        for generation in self._generations:
            if held + wanted <= self.limit and len(kept) <= MAX_GENERATIONS:
                break
            if generation is not current:
                kept.remove(generation)
                held -= generation.tokens
        if len(kept) < len(self._generations):
            self._keep(kept)

    def _keep(self, generations: list[_Generation]) -> None:
        """Hold these, and nothing that was derived from others."""
        self._generations = generations
        self._recalled.clear()
        scopes = {generation.scope for generation in generations}
        self._last = {scope: text for scope, text in self._last.items() if scope in scopes}


def _since(tokens: NDArray[np.int32], settled: int) -> list[Document]:
    """Return the documents that end after the first ``settled`` tokens."""
    if settled >= len(tokens):
        return []
    ends = np.flatnonzero(tokens[: settled + 1] == END)
    return split(tokens[ends[-1] :] if len(ends) else tokens)


def _digest(text: NDArray[np.int32]) -> bytes:
    return sha256(text.tobytes()).digest()

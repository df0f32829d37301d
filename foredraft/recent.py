"""Recent text by scope: what a model's requests said, to copy from again, in memory and on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from foredraft.errors import OptionError
from foredraft.models.tokenizer import Tokenizer
from foredraft.retrieval.cache_file import split
from foredraft.retrieval.memory import GENERATIONS, LIMIT, Memory
from foredraft.retrieval.store import FOLDER, Store, check_scope, distinct
from foredraft.sampling_options import text as check_text
from foredraft.sampling_options import whole

CACHE_TOKENS: Final = LIMIT


class RecentText:
    """The recent text of one model, at most ``limit`` tokens over all scopes; files under ``folder``/recent.

    Nothing crosses from one scope to another, unless ``shared`` lets every scope read all. Nothing is read from the
    disk or written to it but by ``load``, ``save`` and ``forget``. Raises OptionError for a limit that holds nothing.
    """

    def __init__(self, words: Tokenizer | None, vocabulary: int, folder: Path, limit: int, shared: bool) -> None:
        self.shared = shared
        self.memory = Memory(whole("cache_tokens", limit, least=GENERATIONS), shared)
        self._words = words
        self._vocabulary = vocabulary
        self._folder = folder / FOLDER

    def remember(self, text: str | Sequence[int], scope: str) -> None:
        """Add a text, or its token ids, to a scope. Raises OptionError."""
        check_scope(scope)
        if not isinstance(text, Sequence):
            raise OptionError(f"what to remember must be text or token ids, not {text!r:.60}")
        if isinstance(text, str):
            if self._words is None:
                raise OptionError("a text to remember needs a tokenizer, or must be token ids")
            check_text("the text to remember", text)
            text = self._words.encode(text, special=False)
        for token in text:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self._vocabulary:
                raise OptionError(f"token {token!r:.40} is not in the vocabulary of {self._vocabulary}")
        self.memory.remember(text, scope)

    def forget(self, scope: str) -> None:
        """Drop a scope's text, in memory and on disk. Raises OptionError or StorageError."""
        check_scope(scope)
        self.memory.forget(scope)
        if self._words is not None:
            self._store().remove(scope)

    def load(self, scope: str) -> None:
        """Add a scope's file to what is held of it; where scopes are shared, those of all the others too.

        Raises OptionError, and StorageError for a file that cannot be used.
        """
        store = self._store()
        check_scope(scope)
        for name in [name for name in store.scopes() if self.shared and name != scope] + [scope]:
            here = self._documents(name)
            found = distinct([*store.load(name), *here])
            with self.memory.lock:
                self.memory.forget(name)
                for document in found:
                    self.memory.remember(document, name)

    def save(self, scope: str) -> int:
        """Add what is held of a scope to its file, and return how many tokens of its oldest text had to go.

        Raises OptionError or StorageError.
        """
        check_scope(scope)
        return self._store().save(scope, self._documents(scope), self.memory.limit)

    def _documents(self, scope: str) -> list[np.ndarray[tuple[int], np.dtype[np.int32]]]:
        return [document for name, tokens in self.memory.dump() if name == scope for document in split(tokens)]

    def _store(self) -> Store:
        if self._words is None:
            raise OptionError("recent text on disk needs a tokenizer: load the model with tokenizer=")
        return Store(self._folder, self._words.fingerprint(), self._vocabulary)

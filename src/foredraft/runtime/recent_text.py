"""Recent text by scope: what a model's requests said, to copy from again, in memory and on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from foredraft.checks import text as check_text
from foredraft.checks import whole
from foredraft.errors import OptionError, StorageError
from foredraft.retrieval.cache_file import Document, split
from foredraft.retrieval.folder import FOLDER, check_scope
from foredraft.retrieval.memory import GENERATIONS, LIMIT, Memory
from foredraft.retrieval.store import Saved, Store
from foredraft.tokenizer.tokenizer import Tokenizer

CACHE_TOKENS: Final = LIMIT
_MAX_TOKENS: Final = 2**31 - 1  # of an index


def check_cache(tokens: object, share: object) -> None:
    """Refuse options of the recent text that are none. Raises OptionError."""
    whole("cache_tokens", tokens, minimum=GENERATIONS, maximum=_MAX_TOKENS)
    if not isinstance(share, bool):
        raise OptionError(f"share_cache must be True or False, not {share!r:.60}")


class RecentText:
    """The recent text of one model, at most ``limit`` tokens over all scopes; files under ``folder``/recent.

    Nothing crosses from one scope to another, unless ``shared`` lets every scope read all. Nothing is read from the
    disk or written to it but by ``load``, ``save`` and ``forget``. What a file held is written to no other: once a
    scope is cleared, only what was said since is saved. Raises OptionError for a limit that holds nothing.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocabulary: int, folder: Path, limit: int, shared: bool) -> None:
        check_cache(limit, shared)
        self.shared = shared
        self.memory = Memory(limit, shared)
        self._epochs: dict[str, str | None] = {}  # of the files that were read and written
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._folder = folder / FOLDER

    def remember(self, text: str | Sequence[int], scope: str) -> None:
        """Add a text, or its token ids, to a scope; of one longer than a quarter of the limit, its end.

        Raises OptionError.
        """
        check_scope(scope)
        if not isinstance(text, Sequence) or isinstance(text, bytes | bytearray | memoryview):
            raise OptionError(f"what is remembered is text or token ids, not {text!r:.60}")
        if isinstance(text, str):
            if self._tokenizer is None:
                raise OptionError("a text to remember needs a tokenizer, or must be token ids")
            check_text("the text to remember", text)
            text = self._tokenizer.encode(text, special=False)
        for token in text:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self._vocabulary:
                raise OptionError(f"token {token!r:.40} is not in the vocabulary of {self._vocabulary}")
        self.memory.remember(text, scope)

    def forget(self, scope: str) -> None:
        """Drop a scope's text, in memory and on disk, with what was set aside. Raises OptionError or StorageError."""
        check_scope(scope)
        self.memory.forget(scope)
        self._epochs.pop(scope, None)
        if self._tokenizer is not None:
            self._store().remove(scope)

    def load(self, scope: str) -> None:
        """Add a scope's file to what is held of it; where scopes are shared, those of all the others too.

        Raises OptionError, and StorageError for the files that cannot be used; all others are loaded then.
        """
        store = self._store()
        check_scope(scope)
        faults: list[str] = []
        own = self._read(store, scope, faults)
        if self.shared:
            try:
                others = [name for name in store.scopes() if name != scope]
            except StorageError as error:
                others = []
                faults.append(str(error))
            for name in others:
                self._hold(name, self._read(store, name, faults))
        self._hold(scope, own)  # the latest is the last to make room
        if faults:
            raise StorageError("; ".join(faults))

    def save(self, scope: str) -> int:
        """Add what was said in a scope to its file, and return how many tokens of its oldest text had to go.

        Raises OptionError or StorageError.
        """
        saved = self._save(self._store(), check_scope(scope))
        if saved is not None and saved.fault is not None:
            raise StorageError(f"{saved.fault}; what this process knows was saved")
        return 0 if saved is None else saved.dropped

    def _read(self, store: Store, scope: str, faults: list[str]) -> tuple[list[Document], str | None] | None:
        try:
            return store.load(scope)
        except StorageError as error:
            faults.append(str(error))
            return None

    def _hold(self, scope: str, found: tuple[list[Document], str | None] | None) -> None:
        """Hold what a file holds, and what was said here and is not in it; keep what is held where there is none."""
        if found is None:
            return
        documents, epoch = found
        with self.memory.lock:
            here, _ = self.memory.unsaved(scope)
            self.memory.forget(scope)
            for document in documents:
                self.memory.remember(document, scope)
            self.memory.unsaved(scope)[1]()
            held = {document.tobytes() for document in documents}
            for document in here:
                if document.tobytes() not in held:
                    self.memory.remember(document, scope)
            self._epochs[scope] = epoch

    def _save(self, store: Store, scope: str) -> Saved | None:
        documents, settle = self.memory.unsaved(scope)
        known, epoch = self._documents(scope), self._epochs.get(scope)
        saved = store.save(scope, documents, self.memory.limit, known, epoch)
        if saved is None:
            return None
        with self.memory.lock:
            settle()
            before = self._epochs.get(scope)
            if before not in (None, saved.epoch) and saved.fault is None:  # it was cleared, so it is no longer held
                self._hold(scope, (documents, saved.epoch))
            self._epochs[scope] = saved.epoch
        return saved

    def _documents(self, scope: str) -> list[Document]:
        return [document for name, tokens in self.memory.dump() if name == scope for document in split(tokens)]

    def _store(self) -> Store:
        if self._tokenizer is None:
            raise OptionError("recent text on disk needs a tokenizer: load the model with tokenizer=")
        return Store(self._folder, self._tokenizer.fingerprint(), self._vocabulary)

"""From tokens to text while they arrive, such that the pieces joined are what decoding them all at once gives."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Final, Protocol

from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

_BYTE: Final = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# what each of these writes for a token depends on its neighbours only through a run of byte tokens
_LOCAL: Final = frozenset(("Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"))


class TextStream(Protocol):
    """Text out of tokens, one at a time; what may still change is held back."""

    def push(self, token: int) -> str:
        """Take the next token and return the text that is now certain."""
        ...

    def finish(self) -> str:
        """Return what was held back; the stream is then ready for another text."""
        ...


def text_stream(backend: Backend, skipped: frozenset[int], whole: bool) -> TextStream:
    """Return the stream that suits a tokenizer: ``skipped`` ids leave no text; ``whole`` holds all until the end."""
    steps = _steps(backend)
    if not whole and [step["type"] for step in steps] == ["ByteLevel"]:
        return _ByteStream(backend, skipped)
    return _PieceStream(backend, skipped, not whole and all(_local(step) for step in steps))


class _ByteStream:
    """For byte-level vocabularies: tokens are bytes, and a character is told when its last byte has come."""

    def __init__(self, backend: Backend, skipped: frozenset[int]) -> None:
        self._backend = backend
        self._skipped = skipped
        self._values = byte_values()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        piece = self._backend.id_to_token(token)
        if token in self._skipped or piece is None:
            return ""
        try:
            data = bytes([self._values[character] for character in piece])
        except KeyError:  # an added token, written as it is
            data = piece.encode()
        return self._decoder.decode(data)

    def finish(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class _PieceStream:
    """For SentencePiece vocabularies: tokens are text but for byte tokens, whose runs are told when they end.

    One bad byte spoils a whole run. Under decoders of an unknown kind (not ``local``) all is held until ``finish``.
    """

    def __init__(self, backend: Backend, skipped: frozenset[int], local: bool) -> None:
        self._backend = backend
        self._skipped = skipped
        self._local = local
        self._context: list[int] = []  # tokens already told, one with visible text among them
        self._context_text = ""
        self._held: list[int] = []

    def push(self, token: int) -> str:
        piece = self._backend.id_to_token(token)
        if token in self._skipped or piece is None:
            return ""  # leaves no trace in the whole text either
        self._held.append(token)
        if not self._local or _BYTE.fullmatch(piece):
            return ""
        text = self._decode(self._context + self._held)
        new = text[len(self._context_text) :]
        alone = self._decode(self._held)
        if alone:
            self._context, self._context_text = self._held, alone
        else:  # only a space that is dropped at a beginning, and it is no beginning for what follows
            self._context, self._context_text = self._context + self._held, text
        self._held = []
        return new

    def finish(self) -> str:
        text = self._decode(self._context + self._held)[len(self._context_text) :]
        self._context, self._context_text, self._held = [], "", []
        return text

    def _decode(self, tokens: list[int]) -> str:
        return str(self._backend.decode(tokens, skip_special_tokens=True)) if tokens else ""


def byte_values() -> dict[str, int]:
    """Return the byte that each letter of the byte-level alphabet stands for.

    Printable Latin-1 stands for itself, the other bytes, in order, for the code points from 256 on (GPT-2's encoding).
    """
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    values = {letter: ord(letter) for letter in alphabet if ord(letter) < 256}
    others = (byte for byte in range(256) if byte not in values.values())
    return values | {chr(256 + i): byte for i, byte in enumerate(others)}


def _steps(backend: Backend) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return [{"type": "None"}]
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    return list(state["decoders"]) if state.get("type") == "Sequence" else [state]


def _local(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":  # a longer pattern could match across tokens
        return len(step["pattern"].get("String", "")) == 1
    return step["type"] in _LOCAL and step.get("stop", 0) == 0

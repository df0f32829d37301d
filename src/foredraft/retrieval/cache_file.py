"""A file of recent text: what it says of itself, a digest, and tokens.

    magic 8 bytes | version u32 | length of the header u32 | SHA-256 of header and tokens | header, JSON | tokens, i32

All numbers are little-endian. The header names the scope, the tokenizer's fingerprint, how many documents and tokens
there are, how many there may be, and the file's epoch; END stands between two documents.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import StorageError
from foredraft.retrieval.index import END

MAGIC: Final = b"FDRECENT"
VERSION: Final = 2
_FIXED: Final = struct.Struct("<8sII32s")
_MAX_HEADER: Final = 1 << 16
Document = NDArray[np.int32]


class Unusable(StorageError):  # noqa: N818 - it says what the file is
    """A file that is there and cannot be used. The message ends the sentence "it ..."."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself. ``tokens`` counts END between documents, too.

    ``limit`` is the most tokens that the file may hold: the largest bound of those who saved it. ``epoch`` is drawn
    when a file is made anew, so that whoever loaded an earlier one can tell that it was cleared.
    """

    scope: str
    tokenizer: str
    documents: int
    tokens: int
    limit: int
    epoch: str


def write(scope: str, tokenizer: str, documents: Sequence[Document], limit: int, epoch: str) -> bytes:
    """Return the file of these documents, none of which is empty."""
    tokens = joined(documents)
    header = json.dumps(asdict(Header(scope, tokenizer, len(documents), len(tokens), limit, epoch))).encode()
    rest = header + tokens.astype("<i4").tobytes()
    return _FIXED.pack(MAGIC, VERSION, len(header), hashlib.sha256(rest).digest()) + rest


def read_header(data: bytes) -> Header:
    """Return the header of a file, of which ``data`` is at least the beginning. Raises Unusable."""
    length = _header_length(data)
    try:
        found: Any = json.loads(data[_FIXED.size : _FIXED.size + length])
        header = Header(**found)
    except (ValueError, TypeError, RecursionError) as error:
        raise Unusable("is damaged") from error
    if [type(value) for value in asdict(header).values()] != [str, str, int, int, int, str]:
        raise Unusable("is damaged")
    return header


def read(data: bytes, scope: str, tokenizer: str, vocabulary: int) -> list[Document]:
    """Return the documents of a file that should be this scope's and this tokenizer's. Raises Unusable."""
    header, start = read_header(data), _FIXED.size + _header_length(data)
    if len(data) < start + 4 * header.tokens:
        raise Unusable("is truncated")
    if hashlib.sha256(data[_FIXED.size :]).digest() != _FIXED.unpack_from(data)[3]:
        raise Unusable("is damaged")
    if header.tokenizer != tokenizer:
        raise Unusable("was written with another tokenizer")
    if header.scope != scope:
        raise Unusable(f"holds another scope, {header.scope!r}")
    tokens = np.frombuffer(data, dtype="<i4", offset=start).astype(np.int32)
    documents = split(tokens)
    if len(tokens) and not END <= tokens.min() <= tokens.max() < vocabulary:
        raise Unusable(f"holds tokens that the vocabulary of {vocabulary} lacks")
    if (len(tokens), len(documents)) != (header.tokens, header.documents):
        raise Unusable("is damaged")
    return documents


def joined(documents: Sequence[Document]) -> Document:
    """Return documents as one list of tokens, END between them: [T]."""
    end = np.array([END], dtype=np.int32)
    parts = [part for document in documents for part in (end, document)][1:]
    return np.concatenate(parts) if parts else end[:0]


def split(tokens: Document) -> list[Document]:
    """Return the documents in a list of tokens, END between them; none is empty."""
    parts = np.split(tokens, np.flatnonzero(tokens == END))
    return [part for part in (part[1:] if len(part) and part[0] == END else part for part in parts) if len(part)]


def _header_length(data: bytes) -> int:
    if data[: len(MAGIC)] != MAGIC[: len(data)] or not data:
        raise Unusable("is no file of recent text")
    if len(data) < _FIXED.size:
        raise Unusable("is truncated")
    _, version, length, _ = _FIXED.unpack_from(data)
    if version != VERSION:
        raise Unusable(f"was written by another version of Foredraft (format {version}, here {VERSION})")
    if length > _MAX_HEADER:
        raise Unusable("is damaged")
    if len(data) < _FIXED.size + length:
        raise Unusable("is truncated")
    return int(length)

"""A model folder without weights of its own: a file in it says which GGUF holds them, and where each lies.

So a GGUF is read in place, and neither its vocabulary nor its names are read anew at each start.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foredraft.errors import StorageError, WeightsError
from foredraft.system.files import Progress, refused, write_whole
from foredraft.system.json_text import parse_json, read_regular

if TYPE_CHECKING:
    from foredraft.models.gguf.stored import Stored

LINK: Final = "gguf.json"
FORMAT: Final = 2
_PIECE: Final = 1 << 24  # bytes that are digested at a time
_MAX_BYTES: Final = 64 << 20  # bytes of a link
_AGAIN: Final = "name the .gguf file itself, or fetch the model again"


@dataclass(frozen=True, slots=True)
class Link:
    """What a folder says of its GGUF: ``file`` is absolute, or relative to the folder; ``digest`` as ``file_digest``.

    ``modified`` is when it last changed, in nanoseconds; ``identity`` is that of the folder (``ModelFolder``), for
    whoever asks when the file is gone; ``tensors`` are the fields of each Stored.
    """

    file: str
    bytes: int
    modified: int
    digest: str
    identity: str
    tensors: tuple[dict[str, Any], ...]


def make_link(path: Path, file: str, digest: str, identity: str, tensors: Sequence[Stored]) -> Link:
    """Return the link to the GGUF at ``path``, which it will call ``file``."""
    stat = path.stat()
    return Link(file, stat.st_size, stat.st_mtime_ns, digest, identity, tuple(tensor.to_fields() for tensor in tensors))


def write_link(folder: Path, link: Link) -> None:
    """Write a folder's link, whole or not at all. Raises StorageError."""
    write_whole(folder / LINK, json.dumps({"format": FORMAT, **asdict(link)}) + "\n")


def read_link(folder: Path) -> Link | None:
    """Return a folder's link, None where it has none. Raises WeightsError for one that is damaged."""
    path = folder / LINK
    if not path.exists():
        return None
    try:
        found = parse_json(read_regular(path, _MAX_BYTES))
        if found.pop("format") != FORMAT:
            raise ValueError("it is of another format")
        link = Link(**{**found, "tensors": tuple(found["tensors"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path} is damaged: {_AGAIN}") from error
    texts, numbers = (link.file, link.digest, link.identity), (link.bytes, link.modified)
    if not all(isinstance(text, str) and text for text in texts) or any(type(number) is not int for number in numbers):
        raise WeightsError(f"{path} is damaged: {_AGAIN}")
    return link


def whole_link(folder: Path) -> Link | None:
    """Return the link of a folder. One whose link is damaged, or of another version, is removed: None.

    Raises StorageError where the disk refuses.
    """
    try:
        link = read_link(folder)
    except WeightsError:
        link = None
    if link is None:
        discard(folder)
    return link


def discard(folder: Path) -> None:
    """Remove a folder that can be made anew. Raises StorageError where the disk refuses."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise refused(folder.parent, error) from error


def linked_file(folder: Path, link: Link) -> Path:
    """Return where the GGUF of a folder lies. Raises WeightsError for one that is gone or another.

    One whose time has changed is read whole: no sample would find what was changed in it.
    """
    path = Path(os.path.normpath(folder / link.file))  # an absolute one stays as it is
    try:
        stat = path.stat()
        if stat.st_size != link.bytes:
            raise WeightsError(
                f"{path} has {stat.st_size} bytes where it had {link.bytes}, so it was cut or replaced: {_AGAIN}"
            )
        if stat.st_mtime_ns != link.modified:
            if file_digest(path) != link.digest:
                raise WeightsError(f"{path} is not the file that {folder} was made for: {_AGAIN}")
            with suppress(StorageError):  # it was copied or touched: the next start need not read it
                write_link(folder, replace(link, modified=stat.st_mtime_ns))
    except FileNotFoundError:
        raise WeightsError(f"{path} is gone, and {folder} has no weights without it: {_AGAIN}") from None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}") from error
    return path


def file_digest(path: Path, progress: Progress | None = None) -> str:
    """Return the SHA-256 of a whole file; ``progress`` is told of the bytes read. Raises OSError."""
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            if progress is not None:
                progress(min(file.tell(), size), size, "reading")
    return digest.hexdigest()


def content_identity(config: Path, digest: str) -> str:
    """Return the identity of a configuration and weights that are known by the digest of all of them."""
    return hashlib.sha256(config.read_bytes() + digest.encode()).hexdigest()[:16]

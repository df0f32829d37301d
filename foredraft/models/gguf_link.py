"""A model folder without weights of its own: a file in it says which GGUF holds them, and where each lies.

So a GGUF is read in place, and neither its vocabulary nor its names are read anew at each start.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foredraft.errors import WeightsError
from foredraft.models.json_text import parse_json, read_regular
from foredraft.models.store import write_whole

if TYPE_CHECKING:
    from foredraft.models.gguf_tensors import Stored

LINK: Final = "gguf.json"
FORMAT: Final = 1
_SAMPLE: Final = 1 << 20
_MOST: Final = 64 << 20  # bytes of a link
_AGAIN: Final = "name the .gguf file itself, or fetch the model again"


@dataclass(frozen=True, slots=True)
class Link:
    """What a folder says of its GGUF: ``file`` is absolute, or relative to the folder; ``sample`` as ``sample_of``.

    ``identity`` is that of the folder (``folder_identity``), for whoever asks when the file is gone; ``tensors`` are
    the fields of each Stored.
    """

    file: str
    bytes: int
    sample: str
    identity: str
    tensors: tuple[dict[str, Any], ...]


def make_link(path: Path, file: str, identity: str, tensors: Sequence[Stored]) -> Link:
    """Return the link to the GGUF at ``path``, which it will call ``file``."""
    return Link(file, path.stat().st_size, sample_of(path), identity, tuple(asdict(tensor) for tensor in tensors))


def write_link(folder: Path, link: Link) -> None:
    """Write a folder's link, whole or not at all. Raises StorageError."""
    write_whole(folder / LINK, json.dumps({"format": FORMAT, **asdict(link)}) + "\n")


def read_link(folder: Path) -> Link | None:
    """Return a folder's link, None where it has none. Raises WeightsError for one that is damaged."""
    path = folder / LINK
    if not path.exists():
        return None
    try:
        found = parse_json(read_regular(path, _MOST))
        if found.pop("format") != FORMAT:
            raise ValueError("it is of another format")
        link = Link(**{**found, "tensors": tuple(found["tensors"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        raise WeightsError(f"{path} is damaged: {_AGAIN}") from fault
    texts = (link.file, link.sample, link.identity)
    if not all(isinstance(text, str) and text for text in texts) or type(link.bytes) is not int:
        raise WeightsError(f"{path} is damaged: {_AGAIN}")
    return link


def linked_file(folder: Path, link: Link) -> Path:
    """Return where the GGUF of a folder lies. Raises WeightsError for one that is gone, shortened or another."""
    path = Path(os.path.normpath(folder / link.file))  # an absolute one stays as it is
    try:
        size = path.stat().st_size
        if size < link.bytes:
            raise WeightsError(f"{path} has {size} bytes where it had {link.bytes}: it is truncated; fetch it again")
        if size != link.bytes or sample_of(path) != link.sample:
            raise WeightsError(f"{path} is not the file that {folder} was made for: {_AGAIN}")
    except FileNotFoundError:
        raise WeightsError(f"{path} is gone, and {folder} has no weights without it: {_AGAIN}") from None
    except OSError as fault:
        raise WeightsError(f"{path} cannot be read: {fault.strerror or fault}") from fault
    return path


def sample_of(path: Path) -> str:
    """Return a digest of a file's first and last mebibyte. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(_SAMPLE))
        file.seek(max(0, path.stat().st_size - _SAMPLE))
        digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def weight_bytes(folder: Path) -> int:
    """Return the bytes of a folder's weights: of its safetensors, or of the GGUF that it links to."""
    link = read_link(folder)
    return link.bytes if link is not None else sum(path.stat().st_size for path in folder.glob("*.safetensors"))

"""A short name for a set of weights, so that an answer can say what it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foredraft.models.gguf.link import LINK, content_identity, linked_file, read_link
from foredraft.system.json_text import parse_json, read_regular

if TYPE_CHECKING:
    from foredraft.models.spec import DecoderSpec
    from foredraft.models.weights.base import Weights

_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096
_VALUES: Final = 64  # of each tensor, at most


def folder_identity(folder: Path) -> str:
    """Return a digest of a folder's configuration and weights.

    What came from a GGUF was read whole when it was made, and is known by that. Others' weights are sampled (their
    headers and 64 places spread over each file), because reading all of a large model would take longer than loading
    it; ``source_of`` tells more. Raises WeightsError for a linked GGUF that is gone or another.
    """
    config, link = folder / "config.json", read_link(folder)
    if link is not None:
        linked_file(folder, link)
        return link.identity
    if (digest := _source_digest(folder)) is not None:
        return content_identity(config, digest)
    return identity_of(sorted([config, *folder.glob("*.safetensors")]))


def source_of(folder: Path) -> str:
    """Return what shows that weights may have changed since: their files' sizes and times.

    Empty where the identity is of all their content.
    """
    if (folder / LINK).exists() or _source_digest(folder) is not None:
        return ""
    stats = [(path.name, path.stat()) for path in sorted(folder.glob("*.safetensors"))]
    return " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats)


def _source_digest(folder: Path) -> str | None:
    """Return the digest of the GGUF that a folder was converted from, where its record says it."""
    try:
        found = parse_json(read_regular(folder / "foredraft.json", 1 << 20))["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def known_identity(folder: Path) -> str:
    """Return a folder's identity, also where the GGUF it links to is gone. Raises WeightsError for a damaged link."""
    link = read_link(folder)
    return folder_identity(folder) if link is None else link.identity


def identity_of(paths: Sequence[Path]) -> str:
    """Return the identity of a configuration and its files of weights; see ``folder_identity``."""
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}\n".encode())
        with path.open("rb") as file:
            if size <= _SAMPLES * _SAMPLE_BYTES:
                digest.update(file.read())
                continue
            for i in range(_SAMPLES):
                file.seek((size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def weights_digest(weights: Weights, spec: DecoderSpec) -> str:
    """Return a digest of what a decoder computes with: the same for a model in bfloat16 and in wider copies of that.

    Of each tensor that the decoder needs, in the order of their names, values a fixed step apart are read and rounded
    to bfloat16. Raises WeightsError for a tensor that is no float.
    """
    from foredraft.models.layout import decoder_prefix, needed
    from foredraft.models.weights.floats import narrowed

    digest = hashlib.sha256()
    for name in sorted(needed(weights, spec, decoder_prefix(weights.names()))):
        sample = weights.sample(name, _VALUES)
        digest.update(f"{name}:{list(weights.shape(name))}\n".encode())
        digest.update(narrowed(sample, weights.dtype(name), f"{weights.folder}: {name}").tobytes())
    return digest.hexdigest()[:16]


def fingerprint(*facts: str) -> str:
    """Return the ``system_fingerprint``: within one, a seed gives one text."""
    return "fd-" + hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]

"""A short name for a set of weights, so that an answer can say what it came from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096


def folder_identity(folder: Path) -> str:
    """Return a digest of a folder's configuration and weights.

    The weights are sampled (their headers and 64 places spread over each file), because reading all of a large model
    would take longer than loading it.
    """
    digest = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
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


def fingerprint(*facts: str) -> str:
    """Return the ``system_fingerprint``: within one, a seed gives one text."""
    return "fd-" + hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]

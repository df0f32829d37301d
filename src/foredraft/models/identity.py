"""A short name for a set of weights, so that an answer can say what it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from foredraft.models.spec import DecoderSpec
    from foredraft.models.weights.base import Weights

_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096
_VALUES: Final = 64  # of each tensor, at most


def identity_of(paths: Sequence[Path]) -> str:
    """Return the identity of a configuration and its files of weights; see ``ModelFolder.identity``."""
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

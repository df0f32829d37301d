"""What one answer brings along, its grammar and its text, can end that answer and no other."""

from __future__ import annotations

from collections.abc import Callable

from foredraft.core.draft import Array
from foredraft.core.sampling import Shaping
from foredraft.core.sequence import Sequence as Text
from foredraft.errors import GenerationError, NumericalError


def contain(sequence: Text) -> None:
    """Let whatever shapes a sequence's logits or ends its text raise nothing but GenerationError and NumericalError."""
    if sequence.shaping is not None and not isinstance(sequence.shaping, _Shaping):
        sequence.shaping = _Shaping(sequence.shaping)
    if sequence.ends is not None and not isinstance(sequence.ends, _Ends):
        sequence.ends = _Ends(sequence.ends)


class _Shaping:
    def __init__(self, shaping: Shaping) -> None:
        self._shaping = shaping

    def __call__(self, row: Array, sequence: Text, path: tuple[int, ...]) -> Array:
        try:
            return self._shaping(row, sequence, path)
        except (GenerationError, NumericalError):
            raise
        except Exception as fault:
            raise _of(fault) from fault


class _Ends:
    def __init__(self, ends: Callable[[int], bool]) -> None:
        self._ends = ends

    def __call__(self, token: int) -> bool:
        try:
            return self._ends(token)
        except (GenerationError, NumericalError):
            raise
        except Exception as fault:
            raise _of(fault) from fault


def _of(fault: Exception) -> GenerationError:
    return GenerationError(f"the answer cannot go on: {type(fault).__name__}: {' '.join(str(fault).split()):.200}")

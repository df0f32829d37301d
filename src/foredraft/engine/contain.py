"""What one answer brings along, its grammar and its text, can end that answer and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from foredraft.core.sequence import TokenSequence
from foredraft.errors import GenerationError, NumericalError

if TYPE_CHECKING:
    from foredraft.core.sequence import Shaping


def contain(sequence: TokenSequence) -> None:
    """Let whatever shapes a sequence's logits or ends its text raise nothing but GenerationError and NumericalError."""
    if sequence.shaping is not None and not isinstance(sequence.shaping, _Contained):
        sequence.shaping = cast("Shaping", _Contained(sequence.shaping))
    if sequence.ends is not None and not isinstance(sequence.ends, _Contained):
        sequence.ends = _Contained(sequence.ends)


class _Contained:
    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: Any) -> Any:
        try:
            return self._call(*given)
        except (GenerationError, NumericalError):
            raise
        except Exception as error:  # grammars and texts may break in any way, and only their answer may end of it
            raise _of(error) from error


def _of(error: Exception) -> GenerationError:
    return GenerationError(f"the answer cannot go on: {type(error).__name__}: {' '.join(str(error).split()):.200}")

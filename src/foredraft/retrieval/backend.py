"""Who does the retrieval here: the native library, or Python and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from foredraft.retrieval.index import Index, Search


@dataclass(frozen=True, slots=True)
class Retrieval:
    """One of the two ways to do it. ``notice`` says that it is the slower one, and why."""

    name: str
    index: Callable[[], Index]
    search: Callable[[Any, Any], Search]  # (the text's index, the table)
    notice: str | None = None


@cache
def retrieval() -> Retrieval:
    """Return the native library's retrieval, or Python's with a notice where there is none."""
    from foredraft.errors import ModelError
    from foredraft.retrieval import native, portable

    try:
        native.functions()
    except ModelError as error:
        why = f"retrieval runs in Python, slower: {error}"
        return Retrieval("python", portable.PortableIndex, portable.PortableSearch, why)
    return Retrieval("native", native.NativeIndex, native.NativeSearch)

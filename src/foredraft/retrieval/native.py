"""The retrieval of the native library, through ctypes: one call a proposal."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_double, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import DrafterError, ModelError
from foredraft.native.library import library
from foredraft.retrieval.index import MAX_GUESSES, TEXT, Guesses, Hint


class NativeQuery(ctypes.Structure):
    """``fd_query`` of native/retrieval.h."""

    _fields_ = (
        *(("sources", c_int32), ("hinted", c_int32), ("source", c_void_p), ("kind", c_void_p), ("hints", c_void_p)),
        *(("fresh", c_int32), ("branches", c_int32), ("fresh_token", c_void_p), ("limit", c_int32)),
        *(("reserved", c_int32), ("floor", c_double)),
        *((name, c_void_p) for name in ("probability", "guess", "path")),
    )


@cache
def functions() -> Any:
    """Return the library, the functions of retrieval typed. Raises ModelError if it has none."""
    lib = library()
    try:
        for name, result, takes in (
            ("fd_index_open", c_int32, [POINTER(c_void_p)]),
            ("fd_index_close", None, [c_void_p]),
            ("fd_index_extend", c_int32, [c_void_p, c_void_p, c_int64]),
            ("fd_index_read", c_int64, [c_void_p, c_void_p, POINTER(c_uint64)]),
            ("fd_retrieve", c_int32, [POINTER(NativeQuery), POINTER(c_int64)]),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, takes
    except AttributeError as error:
        raise ModelError("the native library has no retrieval: install foredraft again") from error
    return lib


class NativeIndex:
    """An index of the native library."""

    def __init__(self) -> None:
        self._lib = functions()
        self.handle = c_void_p()
        if self._lib.fd_index_open(byref(self.handle)):
            raise DrafterError("there is not enough memory for an index")

    def __len__(self) -> int:
        return int(self._lib.fd_index_read(self.handle, None, byref(c_uint64())))

    @property
    def bytes(self) -> int:
        """Bytes it occupies."""
        occupied = c_uint64()
        self._lib.fd_index_read(self.handle, None, byref(occupied))
        return occupied.value

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append tokens, END where a document ends."""
        fresh = np.ascontiguousarray(tokens, dtype=np.int32)
        if self._lib.fd_index_extend(self.handle, fresh.ctypes.data, len(fresh)):
            raise DrafterError(f"there is not enough memory to index {len(fresh)} tokens")

    def tokens(self) -> NDArray[np.int32]:
        """Return a copy of all it holds: [T]."""
        copied = np.empty(len(self), dtype=np.int32)
        self._lib.fd_index_read(self.handle, copied.ctypes.data, byref(c_uint64()))
        return copied

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._lib.fd_index_close(self.handle)


class NativeSearch:
    """Proposes how one text goes on; its buffers are made once."""

    def __init__(self, text: NativeIndex, table: Any) -> None:
        self._text = text
        self._retrieve = functions().fd_retrieve
        self._rows = np.empty((MAX_GUESSES, 5), dtype=np.int32)
        self._paths = np.empty(MAX_GUESSES, dtype=np.float64)
        self._steps = c_int64()
        self._table = (c_double * len(table)).from_buffer(table)
        self._query = NativeQuery(
            guess=self._rows.ctypes.data,
            path=self._paths.ctypes.data,
            probability=ctypes.addressof(self._table),
        )
        self._others: Sequence[tuple[NativeIndex, int]] | None = None

    def propose(
        self,
        fresh: Sequence[int],
        others: Sequence[tuple[NativeIndex, int]],
        hints: Sequence[Hint] = (),
        limit: int = 15,
        branches: int = 0,
        floor: float = 0.0,
    ) -> Guesses:
        """Append ``fresh`` to the text and guess on; see ``Search``."""
        query = self._query
        if others is not self._others:
            self._name_sources(others)
        query.fresh, query.hinted = len(fresh), len(hints)
        new = (c_int32 * len(fresh))(*fresh)
        hinted = (c_int32 * (2 * len(hints)))(*(number for hint in hints for number in hint))
        query.fresh_token, query.hints = ctypes.addressof(new), ctypes.addressof(hinted)
        query.limit, query.branches, query.floor = min(limit, MAX_GUESSES), branches, floor
        count = self._retrieve(query, self._steps)
        if count < 0:
            raise DrafterError("there is not enough memory to index the text")
        return Guesses(self._rows[:count].tolist(), self._paths[:count].tolist(), self._steps.value)

    def _name_sources(self, others: Sequence[tuple[NativeIndex, int]]) -> None:
        self._others = others
        count = 1 + len(others)
        self._sources = (c_void_p * count)(self._text.handle, *(index.handle for index, _ in others))
        self._kinds = (c_int32 * count)(TEXT, *(kind for _, kind in others))
        self._query.sources = count
        self._query.source, self._query.kind = ctypes.addressof(self._sources), ctypes.addressof(self._kinds)

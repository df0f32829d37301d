"""A model that says only some of its tokens: a draft, for whose few layers the whole head would be too dear.

Its folder is an ordinary checkpoint with one file more, which names these tokens (FR-Spec, arXiv 2502.14856).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from array_api_compat import array_namespace
from numpy.typing import NDArray

from foredraft.core.capabilities import WithNotice
from foredraft.core.draft import Scored
from foredraft.errors import ModelError, WeightsError
from foredraft.models.capabilities import Narrowing
from foredraft.models.checkpoint import DRAFTED
from foredraft.models.model import Rows
from foredraft.system.files import write_whole

FILE: Final = DRAFTED
FORMAT: Final = 1


class NarrowModel:
    """The Model protocol over a model whose head is read for ``ids`` (increasing) alone; other logits are -inf.

    Raises ModelError for a model whose head cannot be read in part.
    """

    def __init__(self, model: object, ids: Sequence[int]) -> None:
        if not isinstance(model, Narrowing):
            raise ModelError(f"{FILE} asks for a part of the head, which transformers' own module does not give")
        self.vocabulary = model.vocabulary
        self.context = model.context
        self.notice = model.notice if isinstance(model, WithNotice) else None
        self.ids = tuple(ids)
        self._model = model
        self._subset = model.subset(self.ids)

    @property
    def rewindable(self) -> bool:
        """Whether a slot can be put back."""
        return self._model.rewindable

    @property
    def why_not_rewindable(self) -> str:
        """One clause; empty for a model that can be rewound."""
        return self._model.why_not_rewindable

    def forward(self, rows: Sequence[Rows], taps: tuple[int, ...] = (), *, logits: bool = True) -> Scored:
        """Run the rows of several slots in one pass; see Model."""
        scored = self._model.run(rows, taps, subset=self._subset, logits=logits)
        some = scored.logits  # [R, Vd]
        xp = array_namespace(some)
        shape = (int(some.shape[0]), self.vocabulary)
        wide = xp.full(shape, -math.inf, dtype=some.dtype, device=some.device)
        if logits:
            wide[:, xp.asarray(self.ids, dtype=xp.int64, device=some.device)] = some
        return replace(scored, logits=wide)

    def compact(self, slot: int, start: int, rows: Sequence[int]) -> int:
        """Move the kept rows together; see Model."""
        return self._model.compact(slot, start, rows)

    def release(self, slot: int) -> None:
        """Free a slot's memory."""
        self._model.release(slot)


def narrow_vocabulary(folder: Path, vocabulary: int) -> tuple[int, ...] | None:
    """Return the tokens that a checkpoint of so many says, increasing, or None where it says all.

    Raises WeightsError for a file that does not name such tokens.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error
    ids = found.get("vocabulary") if isinstance(found, dict) and found.get("format") == FORMAT else None
    if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i < vocabulary for i in ids):
        raise WeightsError(f"{path} names no tokens below {vocabulary} in format {FORMAT}")
    if any(a >= b for a, b in pairwise(ids)):
        raise WeightsError(f"{path} does not name its tokens in increasing order")
    return tuple(ids)


def describe_vocabulary(
    folder: Path, ids: NDArray[Any], target: Mapping[str, Any], provenance: Mapping[str, Any]
) -> None:
    """Write which tokens a checkpoint says, whose draft it is, and how it was made. Raises StorageError."""
    document = {"format": FORMAT, "vocabulary": ids.tolist(), "target": target, "provenance": provenance}
    write_whole(folder / FILE, json.dumps(document))

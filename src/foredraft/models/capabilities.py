"""What a model may have beyond ``Model``, each a protocol of its own: whoever lacks it runs as well.

Told by ``isinstance``, once where a model comes in. ``notice`` is ``foredraft.core.capabilities.WithNotice``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from foredraft.core.draft import Scored
from foredraft.core.law import Array
from foredraft.models.model import Model, Rows
from foredraft.models.spec import DecoderSpec


@runtime_checkable
class WithLayers(Protocol):
    """A model that says how many layers can be tapped."""

    @property
    def layers(self) -> int:
        """Layers are numbered below this; -1 is the embedding."""


@runtime_checkable
class WithSpec(Protocol):
    """A model that was made of our own table of facts."""

    @property
    def spec(self) -> DecoderSpec:
        """The decoder as that table."""


@runtime_checkable
class WithThreads(Protocol):
    """A model that runs on threads of its own."""

    @property
    def threads(self) -> int:
        """How many, on which the time of a pass depends."""


@runtime_checkable
class WithInstallNote(Protocol):
    """A model that may have written to the cache as it was opened."""

    @property
    def install_note(self) -> str | None:
        """What that takes there, a sentence without its full stop; None where nothing new was written."""


@runtime_checkable
class Weighed(Protocol):
    """A model that knows its weights as bytes in memory."""

    def floor(self) -> float:
        """Read all of them once, by the threads of a pass, and return the seconds: what no pass can beat."""

    def weight_bytes(self) -> int:
        """Return the bytes that ``floor`` reads."""

    def read_bytes(self) -> int | None:
        """Return the bytes that a pass reads where matrices are of several types; None where all are of one."""


@runtime_checkable
class Layered(Model, WithLayers, Protocol):
    """A model whose sub-layers can be run apart: 2 * layer is a layer's attention, 2 * layer + 1 its MLP."""

    def run(
        self,
        rows: Sequence[Rows],
        taps: tuple[int, ...] = (),
        *,
        sub_layers: Sequence[int] | None = None,
        hidden: Array | None = None,
        logits: bool = True,
    ) -> Scored:
        """Run rows through some of the model, as ``forward`` does through all of it.

        ``sub_layers``: which to run, increasing; None runs all, and none at all leaves embedding, last norm and head.
        Only those run write keys and values. ``hidden`` [rows, H] enters instead of the tokens' embeddings. Raises
        ModelError for sub-layers that are not there or out of order.
        """


@runtime_checkable
class Narrowing(Model, Protocol):
    """A model whose head can be read for some tokens alone."""

    def subset(self, ids: Sequence[int]) -> int:
        """Prepare a part of the vocabulary, ``ids`` increasing; return the number to ask ``run`` for it by."""

    def run(self, rows: Sequence[Rows], taps: tuple[int, ...] = (), *, subset: int = 0, logits: bool = True) -> Scored:
        """Run rows as ``forward`` does; logits are [R, len(ids)] of a ``subset``, of all tokens where that is 0."""

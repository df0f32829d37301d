"""What may be had beyond the protocols at the seams, each a protocol of its own: whoever lacks it works as well.

Told by ``isinstance``, once where an object comes in; what is asked for in every round by its type, for ``isinstance``
takes as long as a draft by copying.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

from foredraft.core.protocols import Drafter, Quote

if TYPE_CHECKING:
    from foredraft.core.sequence import TokenSequence


@runtime_checkable
class WithNotice(Protocol):
    """A drafter, or a model, that takes a slower path than there could be, and says so."""

    @property
    def notice(self) -> str | None:
        """A sentence for the user without its full stop; None where there is nothing to say."""


@runtime_checkable
class Instant(Protocol):
    """A drafter that costs next to nothing beside a pass: whoever chooses among drafters asks it in every round."""

    @property
    def free(self) -> bool:
        """Whether that is so; False leaves it to what its drafts are seen to take."""


@runtime_checkable
class Sharing(Protocol):
    """A drafter of one request around one that many requests have, which can be asked for all of them at once."""

    @property
    def shared(self) -> Drafter:
        """The drafter within: it proposes and observes; ``begin`` and ``end`` are still the wrapper's."""


class Copied(Protocol):
    """What was copied from one kind of source."""

    @property
    def drafted(self) -> int:
        """Guesses that were made."""

    @property
    def accepted(self) -> int:
        """Those of them that were accepted."""


@runtime_checkable
class Copying(Protocol):
    """A drafter that copies from more than the text, and is told of it beforehand."""

    def prepare(self, sequence: TokenSequence, prediction: Sequence[int] = (), scope: str | None = None) -> None:
        """Say what is expected of a sequence and whose recent text it may read and adds to, before it begins."""

    def counts(self, sequence: TokenSequence) -> Mapping[str, Copied]:
        """Return what was drafted from each kind of source, "prediction" among them, before the sequence ends."""


@runtime_checkable
class PathQuote(Protocol):
    """A quote that prices a guess which costs nothing to draft by the guess's own chance."""

    def pays(self, path_probability: float, rows: int) -> bool:
        """Say whether a guess pays that survives with ``path_probability``, all it builds on included.

        ``rows`` are the guesses the draft already has.
        """


@runtime_checkable
class FloorQuote(Protocol):
    """A quote that can say beforehand how sure a drafter must be."""

    def floors(self, most: int) -> Sequence[float]:
        """Return the least chance of what a guess builds on, for each of up to ``most`` guesses that can pay."""


@runtime_checkable
class Reasoning(Protocol):
    """A planner that says why it decided as it did."""

    def reasons(self, sequence: TokenSequence) -> str:
        """Return why the latest draft of a sequence was as long as it was, in words; empty where there is no reason."""


@runtime_checkable
class EndWatch(Protocol):
    """A watch of a server that is told of every sequence that ends."""

    def end(self, sequence: TokenSequence) -> None:
        """Forget a sequence, whose drafter has forgotten it and whose slot is about to be free."""


def prices_paths(quote: Quote) -> TypeGuard[PathQuote]:
    """Say whether a quote has ``pays``."""
    return issubclass(type(quote), PathQuote)


def knows_floors(quote: Quote) -> TypeGuard[FloorQuote]:
    """Say whether a quote has ``floors``."""
    return issubclass(type(quote), FloorQuote)

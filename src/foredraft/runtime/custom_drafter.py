"""Drafters that users wrote: imported, made, and asked such that whatever breaks in them is said in one sentence."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Final

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter, Quote
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.first import FirstOf
from foredraft.errors import DrafterError
from foredraft.retrieval.copier import Counts

_METHODS: Final = ("begin", "propose", "observe", "end")
_COPYING: Final = ("prepare", "counts")
_OWN: Final = "foredraft"
_BROKE: Final = (Exception, SystemExit)  # a stranger's exit() ends no program of ours; Ctrl-C is nobody's fault


def import_drafter(name: str) -> Drafter:
    """Import a user's own drafter class, ``package.module:Class``, and make one. Raises DrafterError."""
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise DrafterError(f"drafter {name}: {error}") from error
    except _BROKE as error:  # a stranger's module may break in any way
        raise DrafterError(f"drafter {name}: importing {module_name} failed: {_cause(error)}") from error
    made = getattr(module, class_name, None)
    if made is None:
        raise DrafterError(f"drafter {name}: {module_name} has no {class_name}")
    try:
        drafter = made()
    except _BROKE as error:  # as above
        raise DrafterError(f"drafter {name}: {class_name}() failed: {_cause(error)}") from error
    return guarded(drafter)


def guarded(drafter: Any) -> Drafter:
    """Return a drafter whose faults are DrafterErrors: the object itself where it is one of ours.

    Raises DrafterError as ``check_drafter`` does.
    """
    checked = check_drafter(drafter)
    if isinstance(checked, FirstOf):
        return FirstOf([guarded(part) for part in checked.drafters])
    if type(checked).__module__.partition(".")[0] == _OWN or isinstance(checked, CustomDrafter):
        return checked
    copies = all(callable(getattr(checked, name, None)) for name in _COPYING)  # by any means, __getattr__ included
    return CopyingCustomDrafter(checked) if copies else CustomDrafter(checked)


def check_drafter(drafter: Any) -> Drafter:
    """Return the object if it speaks the protocol. Raises DrafterError naming what it lacks."""
    if isinstance(drafter, type):
        raise DrafterError(f"drafter must be an object, not the class {drafter.__name__}: give {drafter.__name__}()")
    who = type(drafter).__name__
    try:
        return _speaking(drafter, who)
    except DrafterError:
        raise
    except _BROKE as error:  # a name or taps that are worked out, and break at it
        raise DrafterError(f"{who} is not a drafter: looking at it failed: {_cause(error)}") from error


def _speaking(drafter: Any, who: str) -> Drafter:
    missing = [part for part in ("name", "taps", *_METHODS) if not hasattr(drafter, part)]
    if missing:
        raise DrafterError(
            f"{who} is not a drafter: it has no {', '.join(missing)}"
            " (a model drafts as model:PATH, or as assistant_model=)"
        )
    wrong = [name for name in _METHODS if not callable(getattr(drafter, name))]
    if wrong:
        raise DrafterError(f"{who} is not a drafter: {', '.join(wrong)} cannot be called")
    if not isinstance(drafter.name, str) or not drafter.name:
        raise DrafterError(f"{who} is not a drafter: its name must be text, not {drafter.name!r:.60}")
    try:
        tuple(index(tap) for tap in drafter.taps)
    except TypeError as error:
        raise DrafterError(
            f"{who} is not a drafter: its taps must be numbers of layers, not {drafter.taps!r:.60}"
        ) from error
    checked: Drafter = drafter
    return checked


class CustomDrafter:
    """A user's drafter. What it raises comes out as a DrafterError that names it, the method and the cause.

    A sequence that it broke on is still ended, and what it raises then is no news.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.name = drafter.name
        self.taps = tuple(drafter.taps)
        self._broken: set[TokenSequence] = set()

    @property
    def notice(self) -> str | None:
        """What it says of a slower path, if anything."""
        try:
            note: str | None = getattr(self.drafter, "notice", None)  # a user's own object: it may come and go
        except _BROKE as error:
            raise DrafterError(f"drafter {self.name}: notice failed: {_cause(error)}") from error
        return note

    def begin(self, sequence: TokenSequence) -> None:
        """Let it meet a sequence. Raises DrafterError."""
        self._ask("begin", (sequence,), sequence)

    def propose(
        self, sequences: Sequence[TokenSequence], quotes: Sequence[Quote], noises: Sequence[Noise]
    ) -> Sequence[Draft]:
        """Return its drafts. Raises DrafterError."""
        drafts: Sequence[Draft] = self._ask("propose", sequences, sequences, quotes, noises)
        return drafts

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Let it see the outcome. Raises DrafterError."""
        self._ask("observe", sequences, sequences, outcomes, scored)

    def end(self, sequence: TokenSequence) -> None:
        """Let it forget a sequence. Raises DrafterError."""
        broken = sequence in self._broken
        try:
            self._ask("end", (sequence,), sequence)
        except DrafterError:
            if not broken:
                raise
        finally:
            self._broken.discard(sequence)

    def _ask(self, method: str, sequences: Sequence[TokenSequence], *arguments: Any) -> Any:
        try:
            return getattr(self.drafter, method)(*arguments)
        except _BROKE as error:  # as above
            self._broken.update(sequences)
            if isinstance(error, DrafterError):
                raise
            raise DrafterError(f"drafter {self.name}: {method} failed: {_cause(error)}") from error


class CopyingCustomDrafter(CustomDrafter):
    """A user's drafter that copies from more than the text (``core.capabilities.Copying``)."""

    def prepare(self, sequence: TokenSequence, prediction: Sequence[int] = (), scope: str | None = None) -> None:
        """Tell it what is expected of a sequence. Raises DrafterError."""
        self._ask("prepare", (sequence,), sequence, prediction, scope)

    def counts(self, sequence: TokenSequence) -> Mapping[str, Counts]:
        """Return what it drafted from each kind of source. Raises DrafterError."""
        counts: Mapping[str, Counts] = self._ask("counts", (sequence,), sequence)
        return counts


def _cause(error: BaseException) -> str:
    """Return what went wrong in one line, with its kind."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words:.200}" if words else type(error).__name__

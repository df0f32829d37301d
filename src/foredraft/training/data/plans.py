"""What to make and how much to spend on it, and what a training that was begun has settled of that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeVar

from foredraft.errors import OptionError, StorageError
from foredraft.models.heads.file import KINDS
from foredraft.system.files import write_whole
from foredraft.system.json_text import parse_json

MIN_TOKENS: Final = 1000  # tokens of answers
DRAFT_LAYERS: Final = (2, 6)  # least and most


@dataclass(frozen=True, slots=True)
class Plan:
    """What every training asks. Raises OptionError for a number that cannot be."""

    tokens: int = 1_500_000  # of the target's answers
    epochs: float = 8.0
    vocabulary: int = 8192  # tokens that may be guessed
    gigabytes: float = 12.0  # that states may take on disk
    longest: int = 160  # tokens of an answer
    seed: int = 0

    settled: ClassVar[tuple[str, ...]] = ("vocabulary", "seed")  # cannot change once something was trained

    def __post_init__(self) -> None:
        for name, least in (("tokens", MIN_TOKENS), ("vocabulary", 16), ("longest", 4)):
            if getattr(self, name) < least:
                raise OptionError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("epochs", "gigabytes"):
            if not 0 < getattr(self, name) < 1e6:
                raise OptionError(f"{name} must be a number above 0 and below 1000000, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class HeadsPlan(Plan):
    """A plan for heads."""

    kind: str = "recurrent"
    medusa: int = 4  # heads of that kind

    settled: ClassVar[tuple[str, ...]] = ("vocabulary", "seed", "kind", "medusa")

    def __post_init__(self) -> None:
        Plan.__post_init__(self)
        if self.kind not in KINDS:
            raise OptionError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")


@dataclass(frozen=True, slots=True)
class DraftPlan(Plan):
    """A plan for a smaller model."""

    layers: int = 4  # of the target's, that it begins as

    settled: ClassVar[tuple[str, ...]] = ("vocabulary", "seed", "layers")

    def __post_init__(self) -> None:
        Plan.__post_init__(self)
        least, most = DRAFT_LAYERS
        if not least <= self.layers <= most:
            raise OptionError(f"layers must be from {least} to {most}, not {self.layers}")


P = TypeVar("P", bound=Plan)


def parse_plan(kind: type[P], path: Path, named: Mapping[str, Any]) -> P:
    """Return the plan that was kept in ``path``, with what is ``named`` now in its place; defaults fill the rest.

    Raises OptionError where something is named otherwise that can no longer be changed, StorageError for a file that
    is no plan.
    """
    kept: dict[str, Any] = {}
    if path.exists():
        try:
            kept = parse_json(path.read_text(encoding="utf-8"))
            kind(**kept)
        except (OSError, ValueError, TypeError) as error:
            raise StorageError(f"{path} cannot be read: {error}; delete it to name the options again") from error
    for name in kind.settled:
        if name in kept and named.get(name, kept[name]) != kept[name]:
            raise OptionError(f"{name} is {kept[name]} in the training under {path.parent}: name another folder")
    return kind(**{**kept, **named})


def keep_plan(path: Path, plan: Plan) -> None:
    """Write a plan for ``parse_plan``. Raises StorageError."""
    write_whole(path, json.dumps({f.name: asdict(plan)[f.name] for f in fields(plan)}, indent=1))


class Tell(Protocol):
    """Told how far a part of the work is, and what there is to say of it."""

    def __call__(self, done: int, total: int, label: str, note: str = "") -> None:
        """Draw it, or do nothing."""
        ...

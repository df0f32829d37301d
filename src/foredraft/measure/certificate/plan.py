"""How deep a certificate looks, and what each of its checks says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from foredraft.errors import OptionError
from foredraft.measure.certificate.divergence import Divergence

RULES: Final = ("ratio", "coupled")
THRESHOLD: Final = 1e-4
LAW_TOKENS: Final = 3072  # the least that finds the planted fault of every drafter tried, docs/exactness.md


@dataclass(frozen=True, slots=True)
class Batch:
    """How much of a text is sampled for one test: answers, the guesses of a round, and sequences that run together."""

    answers: int
    length: int
    width: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How deep to look.

    ``rules`` are those to certify; ``draft_tokens`` the length that stands beside 1 and 4 (None: the drafter's
    default); ``tokens`` the longest answer; ``samples`` the answers in each test of the law (None: as many as make 3072
    tokens); ``width`` the sequences in a mixed batch. The noise follows from ``seed``. Raises OptionError for a value
    outside its range.
    """

    rules: tuple[str, ...] = RULES
    draft_tokens: int | None = None
    tokens: int = 64
    samples: int | None = None
    width: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 2:
            raise OptionError(f"tokens must be at least 2, not {self.tokens}")
        if self.draft_tokens is not None and self.draft_tokens < 1:
            raise OptionError(f"draft_tokens must be at least 1 here, not {self.draft_tokens}")
        if self.samples is not None and self.samples < 1:
            raise OptionError(f"samples must be at least 1, not {self.samples}")
        if not 0 <= self.seed < 1 << 32:
            raise OptionError(f"seed must be between 0 and 4294967295 here, not {self.seed}")

    @property
    def sampled(self) -> int:
        """The answers in each test of the law."""
        return -(-LAW_TOKENS // self.tokens) if self.samples is None else self.samples

    def batch(self, length: int) -> Batch:
        """Return how much each test of the law samples, with rounds of so many guesses."""
        return Batch(self.sampled, length, self.width)

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """The draft lengths of the equality checks."""
        return tuple(dict.fromkeys((1, 4, self.draft_tokens)))


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found of one drafter; ``note`` says in words why it failed, or what to know."""

    name: str
    drafter: str
    ok: bool
    figures: Mapping[str, Any] = field(default_factory=dict)
    divergences: tuple[Divergence, ...] = ()
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the document's form."""
        parts: dict[str, Any] = {"name": self.name, "drafter": self.drafter, "ok": self.ok, **self.figures}
        if "identical" in self.figures:
            parts["divergences"] = [d.to_dict() for d in self.divergences]
        return {**parts, "note": self.note}

"""What may be had beyond the protocols is told by what is there, and by nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from foredraft.core.capabilities import (
    Copying,
    EndWatch,
    Instant,
    Reasoning,
    Sharing,
    WithNotice,
    knows_floors,
    prices_paths,
)
from foredraft.engine.fixed_planner import FixedQuote

from .toys import ToyDrafter, nothing


class Own(ToyDrafter):
    """A drafter with all there is, whichever way it is there."""

    free = True

    def __init__(self) -> None:
        super().__init__(nothing)
        self.shared = self
        self.prepare = lambda *_: None

    @property
    def notice(self) -> None:
        return None

    def counts(self, sequence: Any) -> dict[str, Any]:
        return {}


def test_a_plain_drafter_has_none() -> None:
    drafter, own = ToyDrafter(nothing), Own()
    for capability in (WithNotice, Instant, Sharing, Copying):
        assert isinstance(own, capability)
        assert not isinstance(drafter, capability)


def test_a_half_is_none() -> None:
    assert not isinstance(SimpleNamespace(prepare=print), Copying)
    assert not isinstance(SimpleNamespace(see=print), EndWatch)
    assert isinstance(SimpleNamespace(see=print, end=print), EndWatch)
    assert isinstance(SimpleNamespace(reasons=print), Reasoning)


class Priced(FixedQuote):
    def pays(self, path_probability: float, rows: int) -> bool:
        return path_probability > 0.5


class Floored(FixedQuote):
    def floors(self, most: int) -> list[float]:
        return [0.5] * most


@pytest.mark.parametrize("quote", [FixedQuote(1), Priced(1), Floored(1)], ids=lambda quote: type(quote).__name__)
def test_quotes(quote: FixedQuote) -> None:
    assert prices_paths(quote) == isinstance(quote, Priced)
    assert knows_floors(quote) == isinstance(quote, Floored)

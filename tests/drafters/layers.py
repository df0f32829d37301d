"""A choice of layers, and a drafter that leaves them room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foredraft import Draft
from foredraft.models.views.layer_choice import LayerChoice

SOME = (0, 1, 2, 5)  # of six
CHOICE = LayerChoice(
    model="tiny", identity="0", layers=3, sub_layers=SOME, draft_tokens=2, agreement=0.5, cost=0.6,
    predicted_speedup=1.1, measured_speedup=1.2, measured_from=1.1, measured_to=1.3, measured_tokens=900,
    plain_tokens_per_s=10.0, predicted_tokens_per_s=11.0,
    measured_tokens_per_s=12.0, tier="native-avx2", dtype="bf16", machine="here", date="2026-01-01",
)  # fmt: skip


class Bushes:
    """Guesses a tree now and then, so that its rows are moved together, and leaves the rest to others."""

    name = "bushes"
    taps: tuple[int, ...] = ()

    def begin(self, sequence: Any) -> None: ...

    def propose(self, sequences: Sequence[Any], quotes: Sequence[Any], noises: Sequence[Any]) -> list[Draft]:
        tree = Draft((7, 97, 98, 98, 97), (-1, -1, 1, -1, 3))
        return [Draft() if len(s) % 3 else tree for s in sequences]

    def observe(self, sequences: Sequence[Any], outcomes: Sequence[Any], scored: Any) -> None: ...

    def end(self, sequence: Any) -> None: ...

"""A model that does wrong when told to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from foredraft import Draft, LanguageModel


class Faulty:
    """Stands for a target's model: ``before`` is called with the number of each pass, ``after`` with its logits."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.passes = 0
        self.before: Callable[[int], None] = lambda _: None
        self.after: Callable[[int, Any], Any] = lambda _, scored: scored

    @classmethod
    def in_(cls, model: LanguageModel) -> Faulty:
        """Put one in place of a model's own."""
        faulty = cls(model.loaded.target.model)
        model.loaded.target.model = faulty  # type: ignore[assignment]
        return faulty

    def forward(self, *arguments: Any, **more: Any) -> Any:
        self.passes += 1
        self.before(self.passes)
        return self.after(self.passes, self._model.forward(*arguments, **more))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Slow:
    """A drafter that takes its time and guesses nothing: answers last as long as a test needs."""

    name = "slow"
    taps: tuple[int, ...] = ()

    def begin(self, sequence: Any) -> None: ...

    def propose(self, sequences: Any, quotes: Any, noises: Any) -> list[Draft]:
        time.sleep(0.02)
        return [Draft()] * len(sequences)

    def observe(self, *_: Any) -> None: ...

    def end(self, sequence: Any) -> None: ...

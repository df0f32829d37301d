"""A growing sequence and the rule that ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from foredraft.core.law import Array, Law
from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams, law_of


@dataclass(slots=True, eq=False)
class TokenSequence:
    """A prompt and the answer so far, as token ids.

    The answer ends, with ``finish_reason`` "stop", at a token of ``stop_ids`` or where ``ends`` says so (it is told
    each answer token once, in order: stop strings); with "length", at ``limit`` tokens in all. ``cancel`` ends it
    from outside, between rounds; ``fail`` because its law could not be formed, and ``error`` says why. How a token is
    drawn is its own: ``params`` and ``noise``, what shapes its logits, and the function from shaped logits to a law.
    Two sequences are equal only if they are the same object. What caches hold of one serves its ``owner`` alone.
    """

    tokens: list[int]
    limit: int
    params: SamplingParams = field(default_factory=SamplingParams)
    noise: Noise = field(default_factory=lambda: Noise(0))
    shaping: Shaping | None = None
    law: Callable[[Array, SamplingParams], Law] = law_of
    stop_ids: frozenset[int] = frozenset()
    ends: Callable[[int], bool] | None = None
    prompt_length: int = -1
    finish_reason: str | None = None
    error: Exception | None = None
    owner: str = ""

    def __post_init__(self) -> None:
        if self.prompt_length < 0:
            self.prompt_length = len(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def answer(self) -> list[int]:
        """The tokens generated so far, a final end-of-text token included."""
        return self.tokens[self.prompt_length :]

    @property
    def room(self) -> int:
        """How many tokens may still be committed."""
        return self.limit - len(self.tokens)

    def append(self, token: int) -> bool:
        """Commit one token; say whether the sequence goes on."""
        self.tokens.append(token)
        ended = self.ends is not None and self.ends(token)
        if ended or token in self.stop_ids:
            self.finish_reason = "stop"
        elif self.room <= 0:
            self.finish_reason = "length"
        return self.finish_reason is None

    def cancel(self) -> None:
        """End the sequence as it stands."""
        self.finish_reason = self.finish_reason or "cancelled"

    def fail(self, error: Exception) -> None:
        """End the sequence because no token could be drawn for it."""
        self.finish_reason, self.error = "error", error


class Shaping(Protocol):
    """What happens to one sequence's logits before the temperature: bias, penalties, masks."""

    def __call__(self, row: Array, sequence: TokenSequence, path: tuple[int, ...]) -> Array:
        """Return ``row`` [V] as shaped for the token after ``path``, the guesses beyond the committed sequence."""
        ...

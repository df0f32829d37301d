"""What rounds would have yielded on held-out answers, read off the steps' guesses along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Replay:
    """Rounds replayed on greedy answers, with chains of so many guesses."""

    tokens: int
    rounds: int
    survived: tuple[int, ...]  # rounds whose first 1, 2, ... guesses were all accepted

    @property
    def tokens_a_pass(self) -> float:
        """Mean tokens that a pass yields, its own included."""
        return self.tokens / self.rounds if self.rounds else 1.0

    @property
    def conditional(self) -> tuple[float, ...]:
        """Acceptance of each guess, given that those before it were accepted."""
        before = (self.rounds, *self.survived)
        return tuple(b / a if a else 0.0 for a, b in zip(before, self.survived, strict=False))


def replay(right: Sequence[Bools], length: int) -> Replay:
    """Replay greedy rounds. ``right`` holds for each answer [steps, n] whether step j at row t foretold its token.

    A round that starts at row t guesses with step 0 at t, step 1 at t + 1 and so on, and the next starts behind what
    was accepted and one token more: exactly what generation does.
    """
    tokens = rounds = 0
    survived = [0] * length
    for answer in right:
        n = answer.shape[1]
        t = 0
        while t < n:
            accepted = 0
            while accepted < min(length, n - t) and answer[accepted, t + accepted]:
                survived[accepted] += 1
                accepted += 1
            tokens += min(accepted + 1, n - t)
            rounds += 1
            t += accepted + 1
    return Replay(tokens, rounds, tuple(survived))


def expected(ratios: Sequence[Floats], length: int) -> float:
    """Return the tokens a pass yields at temperature 1 under the ratio rule, in expectation over guesses.

    ``ratios`` holds for each answer, which was drawn from the target, [steps, n] min(1, q / p) of its own token: the
    chance that this token came about by a guess accepted, given that it came about (min(p, q) / p). So the rounds
    along an answer are a chain of known chances, and their expected number needs no draw.
    """
    tokens = rounds = 0.0
    for answer in ratios:
        steps, n = answer.shape
        begins = np.zeros(n + 1)  # the chance that a round begins at a row
        begins[0] = 1.0
        for t in range(n):
            reached = float(begins[t])
            rounds += reached
            most = min(length, steps, n - t)
            for i in range(most):
                accepted = float(answer[i, t + i])
                begins[t + i + 1] += reached * (1.0 - accepted)
                reached *= accepted
            begins[min(t + most + 1, n)] += reached
        tokens += n
    return tokens / rounds if rounds else 1.0

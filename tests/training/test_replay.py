"""Rounds read off the steps' guesses, against rounds played, and against everything that can happen."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from foredraft.training.data.replay import expected, replay


def played(right: Any, length: int) -> tuple[int, int, list[int]]:
    """Tokens, rounds, and rounds whose first 1, 2, ... guesses were accepted, one token at a time."""
    n, t, rounds = right.shape[1], 0, 0
    survived = [0] * length
    while t < n:
        rounds += 1
        for step in range(length + 1):
            guess_is_right = step < length and t < n and bool(right[step, t])
            t += 1  # a guess that is right, or the target's own token
            if not guess_is_right:
                break
            survived[step] += 1
            if t == n:
                break
    return n, rounds, survived


@pytest.mark.parametrize("length", [1, 3, 5])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_replayed_rounds_are_the_rounds_played(length: int, share: float) -> None:
    rng = np.random.default_rng(3)
    answers = [rng.random((5, n)) < share for n in (1, 2, 7, 40)]
    found = replay(answers, length)
    each = [played(answer, length) for answer in answers]
    assert (found.tokens, found.rounds) == (sum(e[0] for e in each), sum(e[1] for e in each))
    assert found.survived == tuple(sum(e[2][i] for e in each) for i in range(length))
    assert found.tokens_a_pass == found.tokens / found.rounds
    before = (found.rounds, *found.survived)
    assert found.conditional == tuple(b / a if a else 0.0 for a, b in itertools.pairwise(before))


def test_no_answers() -> None:
    assert replay([], 3).tokens_a_pass == expected([], 3) == 1.0


P = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))
STEPS, N = 2, 4


def q_of(step: int, before: tuple[int, ...]) -> tuple[Fraction, ...]:
    """A drafter whose law depends on how far it guesses and on the text: nothing that cancels."""
    raw = [1 + (3 * step + 2 * token + sum(before) + len(before)) % 4 for token in range(3)]
    return tuple(Fraction(r, sum(raw)) for r in raw)


def rounds_by_enumeration() -> Fraction:
    """The expected rounds of N tokens under the ratio rule, over everything that guesses and draws can be."""
    total = Fraction(0)
    open_ = [((), Fraction(1))]  # where a round begins: the text so far, and its chance
    while open_:
        begun = []
        for text, chance in open_:
            if len(text) == N:
                continue
            total += chance
            reached = [(text, chance)]
            for step in range(STEPS):
                going = []
                for so_far, weight in reached:
                    if len(so_far) == N:
                        begun.append((so_far, weight))
                        continue
                    q = q_of(step, so_far)
                    for token in range(3):
                        accepted = min(P[token], q[token])
                        going.append(((*so_far, token), weight * accepted))
                        if residual := max(Fraction(0), P[token] - q[token]):
                            begun.append(((*so_far, token), weight * residual))
                reached = going
            for so_far, weight in reached:
                bonus = P if len(so_far) < N else (Fraction(0),) * 3
                begun += [((*so_far, token), weight * bonus[token]) for token in range(3)]
                if len(so_far) == N:
                    begun.append((so_far, weight))
        open_ = [(text, chance) for text, chance in begun if chance]
    return total


def test_expected_rounds_are_those_of_everything_that_can_happen() -> None:
    """A text drawn from the target says how many rounds it takes in the mean; all texts together say it exactly."""
    mean = 0.0
    for text in itertools.product(range(3), repeat=N):
        chance = float(np.prod([float(P[token]) for token in text]))
        ratios = np.array(
            [
                [float(min(Fraction(1), q_of(step, text[:t])[text[t]] / P[text[t]])) for t in range(N)]
                for step in range(STEPS)
            ]
        )
        mean += chance * N / expected([ratios], STEPS)
    assert mean == pytest.approx(float(rounds_by_enumeration()), rel=1e-12)


def test_certain_and_hopeless_drafters() -> None:
    assert expected([np.ones((3, 12), np.float32)], 3) == 4.0
    assert expected([np.zeros((3, 12), np.float32)], 3) == 1.0

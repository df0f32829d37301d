"""What enumeration is held against: exact laws and means, worked out without a line of the rule under test."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from foredraft.core.law import Dense
from foredraft.core.sampling import SamplingParams

from .toys import Table

Row = Sequence[Any]
PROMPT = (1, 0)


def law(*weights: Any) -> np.ndarray:
    """Return weights as rational probabilities."""
    exact = [Fraction(w) for w in weights]
    return np.array([w / sum(exact) for w in exact], dtype=object)


def random_table(seed: int, vocabulary: int, holes: bool = False) -> Table:
    """Return random rational laws; with ``holes`` many zeros, ties and one-hots among them."""
    rng = random.Random(seed)
    rows = []
    for _ in range(47):
        weights = [rng.choice((0, 0, 1, 1, 2)) if holes else rng.randint(1, 9) for _ in range(vocabulary)]
        if not any(weights):
            weights[rng.randrange(vocabulary)] = 1
        rows.append(law(*weights))
    return Table(np.stack(rows))


def text_law(
    table: Table, length: int, stop: frozenset[int] = frozenset(), prompt: Row = PROMPT
) -> dict[Any, Fraction]:
    """Return the law of plain text: the target's own chain rule."""
    done: dict[tuple[int, ...], Fraction] = {}

    def grow(text: tuple[int, ...], weight: Fraction) -> None:
        if len(text) == length or (text and text[-1] in stop):
            done[text] = weight
            return
        for token, probability in enumerate(table([*prompt, *text])):
            if probability:
                grow((*text, token), weight * probability)

    grow((), Fraction(1))
    return done


def q_of(table: Table) -> Callable[[Sequence[int]], Dense]:
    return lambda path: Dense(table(path))


def mean_accepted_chain(p: Table, q: Table, k: int) -> Fraction:
    """Return E[accepted] = the sum over paths of at most k tokens of the product of min(p, q)."""

    def below(path: tuple[int, ...], weight: Fraction, depth: int) -> Fraction:
        if depth == k:
            return Fraction(0)
        both = [min(a, b) for a, b in zip(p(path), q(path), strict=True)]
        both_and_more = (weight * m + below((*path, x), weight * m, depth + 1) for x, m in enumerate(both) if m)
        return sum(both_and_more, Fraction(0))

    return below(PROMPT, Fraction(1), 0)


def mean_accepted_siblings(p: np.ndarray, q: np.ndarray, count: int, replacement: bool) -> Fraction:
    """Return the chance that one of ``count`` sampled siblings survives, tested against what the earlier left."""
    if count == 0 or not any(q):
        return Fraction(0)
    total = Fraction(0)
    left = np.maximum(p - q, 0)
    for x, mass in enumerate(q):
        kept = min(mass, p[x])
        total += kept
        if mass > kept:
            rest = q.copy()
            rest[x] = Fraction(0) if not replacement else rest[x]
            rest = rest / sum(rest) if any(rest) else rest
            total += (mass - kept) * mean_accepted_siblings(left / sum(left), rest, count - 1, replacement)
    return total


def filtered_by_hand(row: Row, params: SamplingParams) -> list[float]:
    """Return the filtered law of a row without ties, the slow way round."""
    scaled = [float(np.exp((x - max(row)) / params.temperature)) for x in row]
    order = sorted(range(len(row)), key=lambda i: -scaled[i])
    order = order[: params.top_k or len(row)]
    total, held, kept = sum(scaled[i] for i in order), 0.0, []
    for i in order:
        if held < params.top_p * total:
            kept.append(i)
        held += scaled[i]
    kept = [i for i in kept if scaled[i] >= params.min_p * scaled[kept[0]]]
    total = sum(scaled[i] for i in kept)
    return [scaled[i] / total if i in kept else 0.0 for i in range(len(row))]

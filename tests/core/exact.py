"""What enumeration is held against: exact laws and means, worked out without a line of the rule under test."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from foredraft.core.noise import philox
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


def text_law(table: Any, length: int, stop: frozenset[int] = frozenset(), prompt: Row = PROMPT) -> dict[Any, Fraction]:
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


def pieces(law: Row) -> list[tuple[Fraction, Fraction]]:
    """Return the part of [0, 1) that each token owns when the law is drawn from by inversion."""
    edges = [Fraction(0)]
    for mass in law:
        edges.append(edges[-1] + mass)
    return list(itertools.pairwise(edges))


def shared(a: tuple[Fraction, Fraction], b: tuple[Fraction, Fraction]) -> Fraction:
    return max(min(a[1], b[1]) - max(a[0], b[0]), Fraction(0))


def matches(p: Row, q: Row) -> list[Fraction]:
    """Return, for each token, the chance that both laws draw it from one number, by inversion."""
    return [shared(a, b) for a, b in zip(pieces(p), pieces(q), strict=True)]


def mean_matched_chain(p: Any, q: Any, k: int, path: tuple[int, ...] = PROMPT) -> Fraction:
    """Return E[accepted] of a chain when target and drafter draw from one number a place."""
    if k == 0:
        return Fraction(0)
    both = enumerate(matches(p(path), q(path)))
    return sum((m * (1 + mean_matched_chain(p, q, k - 1, (*path, x))) for x, m in both if m), Fraction(0))


def mean_matched_siblings(p: Row, q: Row, count: int) -> Fraction:
    """Return the chance that the target's token is among ``count`` distinct ones, all drawn from one number."""
    owned = pieces(p)

    def below(piece: tuple[Fraction, Fraction], law: Row, count: int) -> Fraction:
        total = Fraction(0)
        for x, own in enumerate(pieces(law)):
            part = (max(own[0], piece[0]), min(own[1], piece[1]))
            if part[0] < part[1]:
                total += shared(part, owned[x])
                rest = [mass if i != x else Fraction(0) for i, mass in enumerate(law)]
                if count > 1 and any(rest):
                    total += below(part, [mass / sum(rest) for mass in rest], count - 1)
        return total

    return below((Fraction(0), Fraction(1)), q, count)


class Shaped:
    """A table whose next token is penalised for each time it occurred, and never the one before it."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __call__(self, tokens: Row) -> Any:
        weights = [
            w / (1 + list(tokens).count(x)) if x != tokens[-1] else 0 * w for x, w in enumerate(self.table(tokens))
        ]
        return np.array([w / sum(weights) for w in weights], dtype=object)


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


def clock_by_hand(seed: int, choice: int, position: int, token: int) -> float:
    """Return the clock of one token at one place: a unit exponential from half of a Philox block."""
    words = philox((token // 2, 4, position, choice), (seed % 2**32, seed // 2**32))
    high, low = words[2:] if token % 2 else words[:2]
    return -math.log(((high // 64) * 2**26 + low // 64 + 0.5) / 2**52)


def raced_by_hand(law: Row, seed: int, choice: int, position: int) -> int:
    """Return the token whose clock rings first, spelled out."""
    rings = {x: clock_by_hand(seed, choice, position, x) / mass for x, mass in enumerate(law) if mass > 0}
    return min(rings, key=lambda x: (rings[x], x))

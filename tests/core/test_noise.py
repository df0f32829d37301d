"""The noise: Philox by its published vectors, and streams that share nothing."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from foredraft.core import noise as noise_module
from foredraft.core.noise import Noise, philox

from .exact import clock_by_hand

F = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # Random123's kat_vectors, philox4x32 of 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((F, F, F, F), (F, F), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]) -> None:
    assert philox(counter, key) == words


class Probe:
    """Asks for the numbers themselves: ``draw`` gives the uniform one, ``first`` those behind the clocks of ``ids``."""

    def __init__(self, *ids: int) -> None:
        self.ids = np.array(ids)

    def draw(self, uniform: float) -> float:
        return uniform

    def first(self, clocks: Any) -> list[float]:
        return np.exp(-clocks(self.ids)).tolist()  # type: ignore[no-any-return]


def numbers_of(noise: Any, tokens: int = 6, nodes: int = 5) -> list[float]:
    """Return the last number, those of some guesses and tests, and those behind the clocks of some tokens."""
    return [
        noise.last(),
        *(noise.guess(Probe(), node, 0) for node in range(nodes)),
        *(noise.test(node) for node in range(nodes)),
        *noise.race(Probe(*range(tokens)), 0),
    ]


def test_no_number_is_used_twice() -> None:
    """Seed (both halves), choice, position, purpose, node and token each make another number."""
    numbers = []
    for seed, choice, position in itertools.product((0, 1, 1 << 32), (0, 1, 2), (0, 1, 7)):
        numbers += numbers_of(Noise(seed, choice).at(position))
    # a clock keeps a bit less of a word than a uniform number does: equal words show in the upper bits
    assert len({int(x * 2**25) for x in numbers}) == len(numbers) == 27 * 17


def test_the_same_question_has_the_same_answer() -> None:
    noise = Noise(2**64 - 1, 3, 9)
    assert numbers_of(noise) == numbers_of(noise) == numbers_of(Noise(2**64 - 1, 3).at(9))


def test_a_place_has_one_clock_a_token_whoever_asks() -> None:
    """From whichever position it is seen, for whichever node, among whichever tokens."""
    noise = Noise(4, 1, coupled=True)
    wanted = noise.at(7).race(Probe(*range(10)), 0)  # type: ignore[arg-type]
    assert noise.at(4).race(Probe(*range(10)), 3) == wanted  # type: ignore[arg-type, comparison-overlap]
    for node in range(3):
        assert noise.at(5).guess(Probe(9, 2, 3), node, 2) == [wanted[i] for i in (9, 2, 3)]  # type: ignore


def test_who_draws_with_which_noise() -> None:
    """Under ``ratio`` a guess has a number of its own, whatever its depth; under ``coupled`` the place's clocks."""
    ratio, coupled = Noise(4, 1, 7), Noise(4, 1, 7, coupled=True)
    own = [ratio.guess(Probe(), node, node % 2) for node in range(6)]  # type: ignore[arg-type]
    assert len(set(own)) == 6
    assert own == [ratio.guess(Probe(), node, 5) for node in range(6)]  # type: ignore[arg-type]
    assert coupled.guess(Probe(1, 2), 3, 4) == coupled.race(Probe(1, 2), 4)  # type: ignore[arg-type]
    assert coupled.at(3).coupled


def test_many_counters_at_once_are_the_same_philox() -> None:
    rng = np.random.default_rng(0)
    for words in rng.integers(0, 2**32, (20, 5)).tolist():
        ids = rng.integers(0, 2**32, 50, dtype=np.uint64)
        many = philox((ids, *words[:3]), tuple(words[3:]))
        one_by_one = [philox((int(i), *words[:3]), tuple(words[3:])) for i in ids]
        assert np.stack(many, axis=1).tolist() == [list(four) for four in one_by_one]


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32])
def test_clocks_are_the_exponentials_of_their_words(kind: Any) -> None:
    ids = np.array([0, 1, 2, 3, 5, 49151, 151_935, 2**31 - 1], dtype=kind)
    for seed, choice, position in ((0, 0, 0), (2**64 - 1, 7, 12), (2**33 + 5, 0, 131_072)):
        asked: list[Any] = []
        law = SimpleNamespace(first=lambda clocks, asked=asked: asked.append(clocks(ids)))
        Noise(seed, choice).race(law, position)  # type: ignore[arg-type]
        wanted = [clock_by_hand(seed, choice, position, int(token)) for token in ids]
        np.testing.assert_allclose(asked[0], wanted, rtol=1e-14)


@pytest.mark.parametrize("word", [0, F, 63, 64, 1 << 31])
def test_a_clock_rings_in_positive_and_finite_time(word: int) -> None:
    law = SimpleNamespace(first=lambda clocks: clocks(np.arange(4)))
    with patch.object(noise_module, "philox", lambda counter, key: [np.full_like(counter[0], word)] * 4):
        clocks: Any = Noise(0).race(law, 0)  # type: ignore[arg-type]
    assert np.all((clocks > 0) & np.isfinite(clocks))


def test_numbers_are_uniform_and_streams_uncorrelated() -> None:
    """Those behind the clocks as well: tokens of a pair, of two pairs, and of neighbouring places."""
    n = 4000
    streams = np.array([[*numbers_of(z, 4, 2), *z.race(Probe(0, 1), 1)] for z in map(Noise, range(n))])
    assert streams.min() >= 0
    assert streams.max() < 1
    assert np.all(np.abs(streams.mean(0) - 0.5) < 5 * np.sqrt(1 / 12 / n))
    for column in streams.T:
        counts = np.histogram(column, bins=16, range=(0, 1))[0]
        assert ((counts - n / 16) ** 2 / (n / 16)).sum() < 56.5  # chi-square, 15 degrees, one in a million
    off = np.corrcoef(streams.T) - np.eye(streams.shape[1])
    assert np.abs(off).max() < 5 / np.sqrt(n)

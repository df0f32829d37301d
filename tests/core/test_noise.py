"""The noise: Philox by its published vectors, and streams that share nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from foredraft.core.noise import Noise, philox

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


def test_no_number_is_used_twice() -> None:
    """Seed (both halves), choice, position, purpose and node each make another number."""
    numbers = []
    for seed, choice, position in itertools.product((0, 1, 1 << 32), (0, 1, 2), (0, 1, 7)):
        noise = Noise(seed, choice).at(position)
        numbers.append(noise.last())
        numbers.extend(of(node) for of in (noise.guess, noise.test) for node in range(5))
    assert len(set(numbers)) == len(numbers) == 27 * 11


def test_the_same_question_has_the_same_answer() -> None:
    noise = Noise(2**64 - 1, 3, 9)
    assert noise.guess(1) == noise.guess(1) == Noise(2**64 - 1, 3).at(9).guess(1)


def test_numbers_are_uniform_and_streams_uncorrelated() -> None:
    n = 4000
    streams = np.array([[z.guess(0), z.guess(1), z.test(0), z.test(1), z.last()] for z in map(Noise, range(n))])
    assert streams.min() >= 0
    assert streams.max() < 1
    assert np.all(np.abs(streams.mean(0) - 0.5) < 5 * np.sqrt(1 / 12 / n))
    for column in streams.T:
        counts = np.histogram(column, bins=16, range=(0, 1))[0]
        assert ((counts - n / 16) ** 2 / (n / 16)).sum() < 56.5  # chi-square, 15 degrees, one in a million
    off = np.corrcoef(streams.T) - np.eye(5)
    assert np.abs(off).max() < 5 / np.sqrt(n)

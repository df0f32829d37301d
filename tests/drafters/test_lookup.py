"""The lookup drafter copies what followed the latest occurrence of the longest repeated suffix."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.core.noise import Noise
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.lookup import Lookup, find_continuation
from foredraft.engine.fixed_planner import FixedQuote
from foredraft.errors import OptionError


def draft(tokens: list[int], limit: int = 6, **bounds: int | None) -> tuple[int, ...]:
    drafter = Lookup(**bounds)  # type: ignore[arg-type]
    sequence = TokenSequence(list(tokens), limit=1000)
    drafter.begin(sequence)
    return drafter.propose([sequence], [FixedQuote(limit)], [Noise(0)])[0].tokens


def reference(tokens: list[int], min_ngram: int, max_ngram: int) -> tuple[int, int]:
    """The definition, spelled out: longest suffix first, latest occurrence first."""
    for length in range(min(max_ngram, len(tokens) - 1), min_ngram - 1, -1):
        suffix = tokens[-length:]
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == suffix:
                return end, length
    return 0, 0


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(0, 4),
)
def test_it_finds_what_the_definition_says(tokens: list[int], min_ngram: int, more: int) -> None:
    found = find_continuation(np.array(tokens, dtype=np.int64), min_ngram, min_ngram + more)
    assert found == reference(tokens, min_ngram, min_ngram + more)


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    assert draft([1, 2, 3, 9, 9, 3, 8, 8, 1, 2, 3], limit=1) == (9,)


def test_of_equally_long_matches_the_latest_wins() -> None:
    assert draft([3, 5, 0, 3, 6, 0, 3], limit=1) == (6,)


def test_a_loop_is_drafted_as_a_loop() -> None:
    assert draft([1, 2, 3, 1, 2, 3, 1], limit=7) == (2, 3, 1, 2, 3, 1, 2)


def test_no_match_no_draft() -> None:
    assert draft([1, 2, 3]) == ()
    assert draft([1]) == ()


def test_a_match_shorter_than_the_minimum_is_no_match() -> None:
    assert draft([5, 1, 2, 1], min_ngram=2, max_ngram=4) == ()
    assert draft([5, 1, 2, 5, 1], min_ngram=2, max_ngram=4, limit=1) == (2,)


def test_the_quote_decides_the_length() -> None:
    assert draft([4, 4, 4], limit=0) == ()
    assert draft([4, 4, 4], limit=3) == (4, 4, 4)


def test_a_longer_match_is_trusted_for_longer() -> None:
    assert draft([1, 2, 3, 4, 5, 6, 9, 2], limit=6, per_match=2) == (3, 4)
    assert draft([1, 2, 3, 4, 5, 6, 1, 2], limit=6, per_match=2) == (3, 4, 5, 6)
    assert draft([1, 2, 3, 4, 5, 6, 1, 2], limit=3, per_match=2) == (3, 4, 5)


def test_the_mirror_follows_a_text_that_outgrows_it() -> None:
    drafter = Lookup()
    sequence = TokenSequence([1, 2], limit=10_000)
    drafter.begin(sequence)
    assert drafter.propose([sequence], [FixedQuote(2)], [Noise(0)])[0].tokens == ()
    sequence.tokens += [*range(10, 3000), 1]
    assert drafter.propose([sequence], [FixedQuote(2)], [Noise(0)])[0].tokens == (2, 10)


def test_each_sequence_has_its_own_text() -> None:
    drafter = Lookup()
    one, other = TokenSequence([1, 7, 1], limit=10), TokenSequence([1, 8, 1], limit=10)
    for sequence in (one, other):
        drafter.begin(sequence)
    drafts = drafter.propose([one, other], [FixedQuote(1)] * 2, [Noise(0)] * 2)
    assert [d.tokens for d in drafts] == [(7,), (8,)]
    drafter.end(one)
    with pytest.raises(KeyError):
        drafter.propose([one], [FixedQuote(1)], [Noise(0)])


@pytest.mark.parametrize(("low", "high"), [(0, 3), (4, 3), (-1, -1)])
def test_bounds_that_make_no_sense_are_refused(low: int, high: int) -> None:
    with pytest.raises(OptionError, match="min_ngram"):
        Lookup(low, high)

"""Logits before the temperature: the order of the steps, counts along a path, masks, and every kind of array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.core.sequence import TokenSequence
from foredraft.engine.shaping import Shaper, ShapingOptions, shaper
from foredraft.errors import GenerationError, NoTokenLeft

V = 12
STOP = frozenset({10, 11})


def text(prompt: Sequence[int] = (1, 2), answer: Sequence[int] = (), stop_ids: frozenset[int] = STOP) -> TokenSequence:
    return TokenSequence(tokens=[*prompt, *answer], limit=99, stop_ids=stop_ids, prompt_length=len(prompt))


def row_of(seed: int = 0, kind: Any = np.float64) -> Any:
    return np.random.default_rng(seed).normal(0, 3, V).astype(kind)


class Only:
    """A grammar that allows these tokens, whatever came before; None allows all."""

    name = "regex"

    def __init__(self, *allowed: int) -> None:
        self.allowed = allowed
        self.asked: list[tuple[int, ...]] = []

    def mask(self, sequence: TokenSequence, path: tuple[int, ...]) -> bytes | None:
        self.asked.append(path)
        if not self.allowed:
            return None
        return np.packbits([i in self.allowed for i in range(32)], bitorder="little").tobytes()


def slow(options: ShapingOptions, row: Any, prompt: list[int], answer: list[int]) -> list[float]:
    """Replay the list of tokens, one logit at a time, in the order that the contract states."""
    logits = [float(x) for x in row]
    bias = dict(options.logit_bias)
    for token in range(V):
        x = logits[token] + bias.get(token, 0.0)
        if token in prompt + answer:
            x = x / options.repetition_penalty if x > 0 else x * options.repetition_penalty
        count = answer.count(token)
        if count:
            x -= options.presence_penalty + options.frequency_penalty * count
        logits[token] = x
    for words in options.bad_words:
        before = (prompt + answer)[len(prompt + answer) - len(words) + 1 :] if len(words) > 1 else []
        if tuple(before) == words[:-1]:
            logits[words[-1]] = -math.inf
    if len(answer) < options.min_tokens:
        for token in STOP:
            logits[token] = -math.inf
    return logits


def test_the_steps_are_taken_in_the_order_of_the_contract() -> None:
    options = ShapingOptions(
        logit_bias=((3, 5.0), (4, 100.0)),
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        bad_words=((4,),),
        min_tokens=9,
    )
    row = np.zeros(V)
    row[3] = -1.0
    shaped = Shaper(options)(row, text((3, 1), (3, 3, 6)))
    assert shaped[3] == (-1.0 + 5.0) / 2.0 - 0.5 - 0.25 * 2  # the bias first: it turns the logit's sign
    assert shaped[6] == 0.0 * 2.0 - 0.5 - 0.25  # presence and frequency after the repetition penalty, unscaled by it
    assert shaped[1] == 0.0  # a token of the prompt is repeated, but not present in the answer
    assert shaped[4] == -math.inf  # masks last: no bias outweighs them
    assert shaped[10] == shaped[11] == -math.inf
    assert row[3] == -1.0
    assert not np.any(np.isinf(row))


tokens = st.integers(0, 9)
amounts = st.floats(-2, 2, allow_nan=False).map(lambda x: round(x, 3))


@given(
    st.builds(
        ShapingOptions,
        logit_bias=st.dictionaries(tokens, st.floats(-100, 100), max_size=3).map(lambda d: tuple(d.items())),
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
        presence_penalty=st.sampled_from([0.0, 0.7, -2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.3, -1.0]),
        bad_words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
        min_tokens=st.integers(0, 5),
    ),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(0, 99),
)
def test_a_path_counts_as_committed_tokens_do(
    options: ShapingOptions, prompt: list[int], rounds: list[list[int]], path: list[int], seed: int
) -> None:
    """Growing by rounds, at every node of the path, and again with the path committed: the slow reference each time."""
    sequence = text(prompt)
    shape = Shaper(options)
    for number, committed in enumerate(rounds):
        row = row_of(seed + number)
        for end in range(len(path), -1, -1):
            shaped = shape(row, sequence, tuple(path[:end]))
            assert shaped.tolist() == slow(options, row, prompt, sequence.answer + path[:end])
        sequence.tokens.extend(committed)
    row = row_of(seed)
    drafted = Shaper(options)(row, sequence, tuple(path))
    sequence.tokens.extend(path)
    assert shape(row, sequence).tolist() == drafted.tolist()


def test_the_counts_outgrow_their_first_room() -> None:
    sequence = TokenSequence(tokens=list(range(500)), limit=9999)
    shape = Shaper(ShapingOptions(repetition_penalty=2.0))
    row = np.ones(1000)
    assert shape(row, sequence).tolist() == [0.5] * 500 + [1.0] * 500
    sequence.tokens.extend(range(400, 700))
    assert shape(row, sequence, (700,)).tolist() == [0.5] * 701 + [1.0] * 299


@pytest.mark.parametrize(
    ("answer", "path", "banned"),
    [
        ((), (), {7}),
        ((5,), (), {7}),
        ((5, 6), (), {7, 8}),
        ((), (5, 6), {7, 8}),
        ((5,), (6,), {7, 8}),  # the word begins in what is committed and ends in the draft
        ((5, 6), (1,), {7}),
        ((6, 5), (), {7}),
    ],
)
def test_bad_words_across_the_edge_of_the_draft(
    answer: tuple[int, ...], path: tuple[int, ...], banned: set[int]
) -> None:
    shape = Shaper(ShapingOptions(bad_words=((7,), (5, 6, 8))))
    shaped = shape(np.zeros(V), text((1, 2), answer), path)
    assert set(np.flatnonzero(np.isinf(shaped)).tolist()) == banned


def test_a_bad_word_may_begin_in_the_prompt() -> None:
    shaped = Shaper(ShapingOptions(bad_words=((2, 8),)))(np.zeros(V), text((1, 2)))
    assert np.flatnonzero(np.isinf(shaped)).tolist() == [8]


@pytest.mark.parametrize(
    ("answer", "path", "masked"), [(0, 0, True), (2, 0, True), (1, 1, True), (3, 0, False), (1, 2, False)]
)
def test_stop_ids_wait_for_min_tokens(answer: int, path: int, masked: bool) -> None:
    shape = Shaper(ShapingOptions(min_tokens=3))
    shaped = shape(np.zeros(V), text((1, 2), [4] * answer), (4,) * path)
    assert np.isinf(shaped[10]) == masked
    assert np.isinf(shaped).sum() == (2 if masked else 0)


def test_siblings_do_not_see_each_other() -> None:
    shape = Shaper(ShapingOptions(repetition_penalty=2.0, frequency_penalty=0.5))
    sequence, row = text((1,)), np.full(V, 4.0)
    left = shape(row, sequence, (5,))
    right = shape(row, sequence, (6,))
    again = shape(row, sequence, (5,))
    assert (left[5], left[6]) == (1.5, 4.0)
    assert (right[5], right[6]) == (4.0, 1.5)
    assert again.tolist() == left.tolist()
    assert shape(row, sequence).tolist() == [4.0, 2.0, *[4.0] * (V - 2)]


def test_after_a_stop_id_in_the_path_the_row_is_left_alone() -> None:
    grammar = Only(3)
    shape = Shaper(ShapingOptions(repetition_penalty=2.0, min_tokens=9, bad_words=((4,),)), grammar)
    row = row_of()
    assert shape(row, text(), (5, 10)) is row
    assert grammar.asked == []


def test_the_grammar_is_asked_node_by_node() -> None:
    grammar = Only(3, 5)
    shaped = Shaper(ShapingOptions(), grammar)(row_of(), text(), (7, 8))
    assert grammar.asked == [(7, 8)]
    assert np.flatnonzero(np.isfinite(shaped)).tolist() == [3, 5]
    assert shaped[3] == row_of()[3]


def test_a_path_that_breaks_the_grammar_rules_nothing_out() -> None:
    assert np.isfinite(Shaper(ShapingOptions(), Only())(row_of(), text(), (7,))).all()


def test_nothing_asked_is_nothing_done() -> None:
    assert shaper(ShapingOptions()) is None
    assert shaper(ShapingOptions(min_tokens=1)) is not None
    assert shaper(ShapingOptions(), Only(1)) is not None


def test_masks_that_leave_nothing_are_named() -> None:
    options = ShapingOptions(bad_words=((3,),), min_tokens=4)
    with pytest.raises(
        NoTokenLeft, match=r"token 2 of the answer: regex, bad_words and min_tokens rule every one out$"
    ) as caught:
        Shaper(options, Only(3, 10))(row_of(), text((1, 2)), (5,))
    assert isinstance(caught.value, GenerationError)
    with pytest.raises(NoTokenLeft, match="no token is left at token 1 of the answer: regex rules every one out"):
        Shaper(ShapingOptions(), Only(31))(row_of(), text())
    everything = ShapingOptions(bad_words=tuple((i,) for i in range(V)))
    with pytest.raises(NoTokenLeft, match="bad_words rules"):
        Shaper(everything)(row_of(), text())


@pytest.mark.parametrize("fault", [math.nan, math.inf])
def test_a_broken_row_is_left_for_the_law_to_report(fault: float) -> None:
    """Also where the broken logit is one that a mask would hide."""
    for row in (np.full(V, -math.inf), np.full(V, fault), np.where(np.arange(V) == 3, fault, row_of())):
        shaped = Shaper(ShapingOptions(bad_words=((3,),), min_tokens=4))(row, text())
        assert np.array_equal(shaped, row, equal_nan=True)


def test_ruled_out_logits_stay_ruled_out() -> None:
    row = row_of()
    row[1] = -math.inf
    options = ShapingOptions(repetition_penalty=0.5, frequency_penalty=-1.0, logit_bias=((1, 50.0),))
    assert Shaper(options)(row, text((1,), (1, 1)))[1] == -math.inf


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_every_kind_of_array_is_shaped_alike(kind: str) -> None:
    options = ShapingOptions(
        logit_bias=((3, 0.3), (1, -7.0)),
        repetition_penalty=1.7,
        presence_penalty=0.3,
        frequency_penalty=0.1,
        bad_words=((4,), (5, 6)),
        min_tokens=9,
    )
    row = row_of(kind=kind)
    for grammar in (None, Only(1, 2, 3, 5)):
        answers = []
        for array in (row, torch.asarray(row), array_api_strict.asarray(row)):
            shaped = Shaper(options, grammar)(array, text((1, 2), (3, 3)), (3, 5))
            assert type(shaped) is type(array)
            assert shaped.dtype == array.dtype
            assert np.asarray(array).tolist() == row.tolist()
            answers.append(np.asarray(shaped).tolist())
        assert answers[0] == answers[1] == answers[2]
        assert answers[0][6] == -math.inf


def test_options_are_values() -> None:
    options = ShapingOptions(min_tokens=2)
    assert replace(options, min_tokens=0) == ShapingOptions()

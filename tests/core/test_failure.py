"""A sequence whose law cannot be formed fails alone: its neighbours, and the counts, know nothing of it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.watches.tally import Tally
from foredraft.errors import NumericalError

from .plain import CHARACTERS, KINDS_OF_PARAMS, V, drafters, plain, shaped
from .toys import Table, ToyDrafter, ToyTarget, generate, nothing

BAD = {"nan": [math.nan] * V, "one nan": [math.nan, *[0.0] * (V - 1)], "inf": [math.inf] * V, "none": [-math.inf] * V}
LARGEST = "the model answered with logits whose largest is "
POISON = V - 1  # a text that begins with it fails


class Poisoned(Table):
    """Answers with bad logits after ``length`` tokens of a text that begins with ``POISON``."""

    def __init__(self, table: Table, row: Sequence[float], length: int) -> None:
        super().__init__(table.rows)
        self.row, self.length = np.array(row), length

    def __call__(self, tokens: Sequence[int]) -> Any:
        bad = tokens[0] == POISON and len(tokens) >= self.length
        return self.row if bad else super().__call__(tokens)


def refusing(length: int) -> Any:
    """Return a shaping that leaves nothing after ``length`` tokens, the drafted prefix counted."""

    def shape(row: Any, sequence: TokenSequence, path: tuple[int, ...]) -> Any:
        if len(sequence) + len(path) >= length:
            raise NumericalError("no token is left")
        return row

    return shape


def batch(params: Sequence[SamplingParams], coupled: bool, poisoned: bool, shaping: Any = None) -> list[TokenSequence]:
    """Return three texts with room for eight tokens, the second poisoned or left out."""
    prompts = [[0, 1], [POISON, 2, 1], [3]]
    return [
        TokenSequence(prompt, len(prompt) + 8, each, Noise(5, i, coupled=coupled), shaping=shaping if i == 1 else None)
        for i, (prompt, each) in enumerate(zip(prompts, params, strict=True))
        if poisoned or i != 1
    ]


@pytest.mark.parametrize("how", [*BAD, "shaping"])
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("greedy", [False, True])
def test_it_fails_alone(how: str, after: int, coupled: bool, greedy: bool) -> None:
    """At the first pass or in mid-text; the others' texts, and all counts, are those of a batch without it."""
    table = Table.random(4, V)
    target_table = table if how == "shaping" else Poisoned(table, BAD[how], 3 + after)
    params = [SamplingParams() if greedy else SamplingParams(1.0)] * 3
    for character in ("nothing", "sampled", "sampled tree", "perfect"):
        guess = drafters(table, random.Random(1), frozenset())[character]
        tallies = Tally(), Tally()
        together = batch(params, coupled, True, refusing(3 + after) if how == "shaping" else None)
        apart = batch(params, coupled, False)
        history = generate(together, ToyTarget(target_table), ToyDrafter(guess), FixedPlanner(3), [tallies[0]])
        generate(apart, ToyTarget(table), ToyDrafter(guess), FixedPlanner(3), [tallies[1]])
        failed, others = together.pop(1), together
        assert [t.tokens for t in others] == [t.tokens for t in apart]
        assert [t.finish_reason for t in others] == ["length", "length"]
        assert failed.finish_reason == "error"
        assert isinstance(failed.error, NumericalError)
        assert str(failed.error) == ("no token is left" if how == "shaping" else f"{LARGEST}{np.max(BAD[how])}")
        *before, last = history[1]
        assert (last.tokens, last.accepted, last.kept, last.origins, last.nodes) == ((), 0, (), (), ())
        assert last.finish_reason == "error"
        assert failed.answer == [token for o in before for token in o.tokens]
        assert len(failed.answer) <= after
        if character == "nothing":
            assert len(failed.answer) == after
        counted = Tally()
        for outcomes, sequence in zip(history, [others[0], failed, others[1]], strict=True):
            grown = TokenSequence(sequence.tokens[: sequence.prompt_length], sequence.limit)
            for outcome in outcomes:
                if outcome.tokens:
                    grown.tokens += outcome.tokens
                    counted.count(grown, outcome)
        for what in ("answers", "tokens", "passes", "total", "by_drafter"):
            assert getattr(tallies[0], what) == getattr(counted, what)
        if after == 0:
            assert (tallies[0].tokens, tallies[0].passes) == (tallies[1].tokens, tallies[1].passes)
            assert tallies[0].total == tallies[1].total


@pytest.mark.parametrize("character", [c for c in CHARACTERS if c != "nothing"])
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(1, 6),
    shape=st.booleans(),
    params=st.lists(st.sampled_from(KINDS_OF_PARAMS), min_size=2, max_size=2),
)
def test_bad_logits_off_the_accepted_path_harm_nobody(
    character: str, seed: int, length: int, shape: bool, params: list[SamplingParams]
) -> None:
    """A wrong guess may lead where the model has no answer: nobody asks for it there."""
    table = Table.random(seed, V)
    sequences = [
        TokenSequence([i], 9, each, Noise(seed, i, coupled=True), shaped if shape else None)
        for i, each in enumerate(params)
    ]
    right = {tuple(plain(table, sequence, ())[0][:n]) for sequence in sequences for n in range(10)}

    class Trap(Table):
        def __call__(self, tokens: Sequence[int]) -> Any:
            return table(tokens) if tuple(tokens) in right else np.full(V, math.nan)

    guess = drafters(table, random.Random(seed), frozenset())[character]
    generate(sequences, ToyTarget(Trap(table.rows)), ToyDrafter(guess), FixedPlanner(length))
    assert [t.finish_reason for t in sequences] == ["length"] * 2
    assert [t.tokens for t in sequences] == [plain(table, t, ())[0] for t in sequences]


def test_another_error_is_not_taken_for_one_of_numbers() -> None:
    def shape(row: Any, sequence: TokenSequence, path: tuple[int, ...]) -> Any:
        raise KeyError("a fault of the shaping's own")

    sequence = TokenSequence([1], 9, shaping=shape)
    with pytest.raises(KeyError, match="of the shaping's own"):
        generate([sequence], ToyTarget(Table.random(1, V)), ToyDrafter(nothing), FixedPlanner(0))
    assert sequence.finish_reason is None

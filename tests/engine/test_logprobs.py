"""Log-probabilities: against the plain formula, and the same for a text with drafting and without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.core.draft import Draft
from foredraft.core.noise import Noise
from foredraft.core.round import run_round
from foredraft.core.sampling import SamplingParams, law_of
from foredraft.core.sequence import TokenSequence
from foredraft.engine.watches.logprobs import LogprobRecorder, TokenLogprob, logprobs
from foredraft.errors import NumericalError, OptionError
from tests.core.toys import EagerPlanner, Table, ToyDrafter, ToyTarget, nothing, onehot_tree, sampled_chain

TABLE = Table.random(3, 7)
SHIFTED = Table(TABLE.rows + np.random.default_rng(4).normal(0, 0.7, TABLE.rows.shape))


def shifted(path: Sequence[int]) -> Any:
    return law_of(SHIFTED(path), SamplingParams(1.0))


def best(path: Sequence[int]) -> list[int]:
    return [int(token) for token in np.argsort(-TABLE(path))]


GUESSES = {
    "nothing": nothing,
    "chain": sampled_chain(shifted, 4),
    "tree": onehot_tree(best, (((), ()), ((),))),
}


def recorded(guess: str, tops: Sequence[int | None]) -> list[tuple[TokenSequence, list[TokenLogprob]]]:
    """Answer a batch under the coupled rule; return each sequence with its record."""
    recorder = LogprobRecorder()
    params = SamplingParams(0.8, top_p=0.9)
    sequences = [
        TokenSequence([i, 2], 20 + i, params, Noise(i, coupled=True), stop_ids=frozenset({6})) for i in range(len(tops))
    ]
    records = [
        [] if top is None else recorder.want(sequence, top) for sequence, top in zip(sequences, tops, strict=True)
    ]
    target, drafter = ToyTarget(TABLE), ToyDrafter(GUESSES[guess])
    while running := [sequence for sequence in sequences if sequence.finish_reason is None]:
        run_round(running, target, drafter, EagerPlanner(5), [recorder])
    assert not recorder._kept, "a sequence that has ended is still held"
    return list(zip(sequences, records, strict=True))


@pytest.mark.parametrize("guess", ["chain", "tree"])
def test_every_token_has_its_own_rows(guess: str) -> None:
    tops = [0, 3, None, 20, 1]
    found, plain = recorded(guess, tops), recorded("nothing", tops)
    for (sequence, record), (_, without), top in zip(found, plain, tops, strict=True):
        assert record == without
        if top is None:
            assert record == []
            continue
        assert [made.token for made in record] == sequence.answer
        for place, made in enumerate(record, start=sequence.prompt_length):
            row = TABLE(sequence.tokens[:place])  # raw: neither the temperature nor top-p is in it
            wanted = row - np.log(np.exp(row).sum())
            np.testing.assert_allclose(made.logprob, wanted[made.token], rtol=1e-12)
            assert [i for i, _ in made.top_logprobs] == np.argsort(-row).tolist()[:top]
            np.testing.assert_allclose([x for _, x in made.top_logprobs], np.sort(wanted)[::-1][:top], rtol=1e-12)


def test_a_sequence_that_fails_records_what_it_committed() -> None:
    rows = TABLE.rows.copy()
    rows[:, 0] = np.nan
    recorder = LogprobRecorder()
    sequence = TokenSequence([1], 9, SamplingParams(1.0))
    record = recorder.want(sequence, 2)
    target = ToyTarget(Table(rows))
    target.keep = lambda sequences, outcomes: None  # type: ignore[method-assign]  # it asks too much of one that failed
    run_round([sequence], target, ToyDrafter(nothing), EagerPlanner(0), [recorder])
    assert sequence.finish_reason == "error"
    assert record == []
    assert not recorder._kept


def test_ties_go_to_the_lower_id_and_any_array_will_do() -> None:
    row = np.array([1.0, 2.0, 2.0, -np.inf, 2.0, 1.0], np.float32)
    wanted = torch.log_softmax(torch.as_tensor(row).double(), -1).numpy()
    for array in (row, torch.as_tensor(row), row.astype(np.float64)):
        value, tops = logprobs(array, 3, 2)
        assert value == -np.inf
        assert [i for i, _ in tops] == [1, 2]
        assert [i for i, _ in logprobs(array, 0, 9)[1]] == [1, 2, 4, 0, 5, 3]
        np.testing.assert_allclose(logprobs(array, 0)[0], wanted[0], rtol=1e-12)
    assert logprobs(row, 0)[1] == []


@pytest.mark.parametrize(("token", "top"), [(-1, 0), (3, 0), (0, -1)])
def test_what_is_not_there(token: int, top: int) -> None:
    with pytest.raises(OptionError, match="among 3 logits"):
        logprobs(np.zeros(3), token, top)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_without_a_finite_maximum(bad: float) -> None:
    with pytest.raises(NumericalError, match=r"largest is (nan|inf)"):
        logprobs(np.array([0.0, bad]), 0, 1)


def test_a_draft_has_laws_here() -> None:
    """The chain's guesses are drawn, so that refusals happen and rows of refused guesses are there to be confused."""
    drafter = ToyDrafter(GUESSES["chain"])
    sequence = TokenSequence([0, 2], 60, SamplingParams(0.8, top_p=0.9), Noise(0, coupled=True))
    target = ToyTarget(TABLE)
    while sequence.finish_reason is None:
        run_round([sequence], target, drafter, EagerPlanner(4))
    drafts: list[Draft] = [outcome.draft for outcome in drafter.seen]
    assert sum(outcome.accepted for outcome in drafter.seen) > 5
    assert any(0 < outcome.accepted < len(draft) for outcome, draft in zip(drafter.seen, drafts, strict=True))

"""The cache of slots and the target over it: what is fed, kept, forgotten and re-used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.sequence import TokenSequence
from foredraft.errors import DrafterError
from foredraft.models.checkpoint import open_weights
from foredraft.models.model import Rows
from foredraft.models.slots import Slots, common_prefix
from foredraft.models.spec import read_spec
from foredraft.models.target import CachedTarget
from foredraft.models.torch_decoder.decoder import TorchDecoder
from tests.models.checkpoints import make_checkpoint

V = 97


class Recorder:
    """A model in front of another that notes the passes and checks the rules a caller must keep."""

    def __init__(self, model: TorchDecoder, rewindable: bool = True) -> None:
        self.model = model
        self.vocabulary = model.vocabulary
        self.context = model.context
        self.rewindable = rewindable
        self.passes: list[list[tuple[int, int, int, int]]] = []  # slot, start, rows, wanted
        self.compacted: list[tuple[int, ...]] = []
        self.released: list[int] = []
        self.keeps_at_most = 1000

    def forward(self, rows: Sequence[Rows], taps: tuple[int, ...] = (), *, logits: bool = True) -> Scored:
        assert len({row.slot for row in rows}) == len(rows)
        self.passes.append([(row.slot, row.start, len(row.tokens), row.wanted) for row in rows])
        return self.model.forward(rows, taps, logits=logits)

    def compact(self, slot: int, start: int, rows: Sequence[int]) -> int:
        self.compacted.append(tuple(rows))
        return self.model.compact(slot, start, rows[: self.keeps_at_most])

    def release(self, slot: int) -> None:
        self.released.append(slot)
        self.model.release(slot)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TorchDecoder:
    folder: Path = make_checkpoint("llama", tmp_path_factory.mktemp("m"), max_position_embeddings=2048)
    spec = read_spec(json.loads((folder / "config.json").read_text()))
    return TorchDecoder(spec, open_weights(folder), dtype="f64")


@pytest.fixture
def model(decoder: TorchDecoder) -> Recorder:
    return Recorder(decoder)


def text(length: int, seed: int = 0) -> TokenSequence:
    return TokenSequence([int(token) for token in np.random.default_rng(seed).integers(3, V, length)], limit=2000)


def plain(decoder: TorchDecoder, tokens: Sequence[int]) -> np.ndarray:
    rows = Rows(900, 0, tuple(tokens), tuple(range(-1, len(tokens) - 1)), len(tokens))
    logits: np.ndarray = decoder.forward([rows]).logits
    return logits


def commit(sequence: TokenSequence, draft: Draft, kept: tuple[int, ...], last: int) -> Outcome:
    tokens = (*(draft.tokens[node] for node in kept), last)
    sequence.tokens.extend(tokens)
    return Outcome(draft, tokens, len(kept), kept, ("x",) * len(tokens), None)


def same(ours: object, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


@settings(max_examples=15)
@given(data=st.data())
def test_rounds_of_any_trees_score_as_whole_texts_do(decoder: TorchDecoder, data: st.DataObject) -> None:
    """Random batches, trees and outcomes, round after round: every row equals the plain pass over its path."""
    target = CachedTarget(Recorder(decoder), slots=2)
    sequences = [text(data.draw(st.integers(1, 40)), seed) for seed in range(data.draw(st.integers(1, 3)))]
    token = st.integers(3, V - 1)
    for _ in range(3):
        drafts, outcomes = [], []
        for _ in sequences:
            n = data.draw(st.integers(0, 5))
            parents = tuple(data.draw(st.integers(-1, i - 1)) for i in range(n))
            drafts.append(Draft(tuple(data.draw(token) for _ in range(n)), parents))
        scored = target.score(sequences, drafts)
        for sequence, draft, start in zip(sequences, drafts, scored.starts, strict=True):
            same(scored.logits[start], plain(decoder, sequence.tokens)[-1])
            for node in range(len(draft)):
                path = [draft.tokens[i] for i in draft.path(node)]
                same(scored.logits[start + 1 + node], plain(decoder, sequence.tokens + path)[-1])
        for sequence, draft in zip(sequences, drafts, strict=True):
            end = data.draw(st.integers(-1, len(draft) - 1))
            outcomes.append(commit(sequence, draft, draft.path(end), data.draw(token)))
        target.keep(sequences, outcomes)
        target.keep(sequences, outcomes)
        for sequence in sequences:
            slot = target.slots.slot(sequence)
            assert slot is not None
            assert target.slots.held(slot) == sequence.tokens[:-1]


def test_one_pass_a_round_and_one_row_a_token(model: Recorder) -> None:
    target, sequence = CachedTarget(model), text(600)
    target.begin(sequence)
    first = Draft.chain((5, 6))
    target.score([sequence], [first])
    assert model.passes == [[(0, 0, 88, 0)], [(0, 88, 514, 3)]]  # the prompt's last block carries the guesses
    target.keep([sequence], [commit(sequence, first, (0, 1), 7)])
    target.score([sequence], [Draft()])
    assert model.passes[2:] == [[(0, 602, 1, 1)]]
    target.keep([sequence], [commit(sequence, Draft(), (), 8)])
    assert model.compacted == [tuple(range(514))]


def test_a_prompt_in_a_batch_is_fed_alone_up_to_its_end(model: Recorder) -> None:
    target, old, fresh = CachedTarget(model), text(30), text(40, seed=1)
    target.score([old], [Draft()])
    target.keep([old], [commit(old, Draft(), (), 9)])
    scored = target.score([old, fresh], [Draft.chain((3, 4)), Draft()])
    assert model.passes[1:] == [[(1, 0, 39, 0)], [(0, 30, 3, 3), (1, 39, 1, 1)]]
    same(scored.logits[scored.starts[1]], plain(model.model, fresh.tokens)[-1])


def test_a_score_never_kept_leaves_no_trace(model: Recorder) -> None:
    target, sequence = CachedTarget(model), text(20)
    target.score([sequence], [Draft.chain((5, 6, 7))])
    again = target.score([sequence], [Draft.chain((8,))])
    same(again.logits, plain(model.model, [*sequence.tokens, 8])[-2:])


def test_a_model_that_keeps_less_is_fed_the_rest(model: Recorder) -> None:
    target, sequence = CachedTarget(model), text(10)
    model.keeps_at_most = 2
    draft = Draft((5, 6, 7), (-1, -1, 1))
    target.score([sequence], [draft])
    target.keep([sequence], [commit(sequence, draft, (1, 2), 9)])
    same(target.score([sequence], [Draft()]).logits, plain(model.model, sequence.tokens)[-1:])


def test_extend_costs_a_row_a_token_and_finds_its_way_back(model: Recorder) -> None:
    target, one, two = CachedTarget(model), text(9), text(12, seed=1)
    target.begin(one)
    target.begin(two)
    guesses: list[int] = []
    for guess in (5, 6, 7):
        logits = target.extend([(one, one.tokens + guesses), (two, two.tokens + guesses)])
        same(logits[0], plain(model.model, one.tokens + guesses)[-1])
        same(logits[1], plain(model.model, two.tokens + guesses)[-1])
        guesses.append(guess)
    assert [[rows for _, _, rows, _ in step] for step in model.passes] == [[9, 12], [1, 1], [1, 1]]
    one.tokens.extend((5, 50))  # the first guess was right, the second was not
    same(target.extend([(one, one.tokens)])[0], plain(model.model, one.tokens)[-1])
    assert model.passes[-1] == [(0, 10, 1, 1)]
    target.rewind(one, 4)
    target.extend([(one, one.tokens)])
    assert model.passes[-1] == [(0, 4, 7, 1)]


def test_the_next_turn_feeds_only_what_is_new(model: Recorder) -> None:
    target, first = CachedTarget(model), text(50)
    target.begin(first)
    target.score([first], [Draft()])
    target.end(first)
    second = TokenSequence([*first.tokens, 5, 6, 7], limit=100)
    target.begin(second)
    assert (target.reused(first), target.reused(second)) == (0, 50)
    target.score([second], [Draft()])
    assert model.passes[-1] == [(0, 50, 3, 1)]
    target.end(second)
    shorter = TokenSequence(second.tokens[:20], limit=100)
    target.begin(shorter)
    same(target.score([shorter], [Draft()]).logits, plain(model.model, shorter.tokens)[-1:])
    assert model.passes[-1] == [(0, 19, 1, 1)]  # all but the last token is there; that one is always fed


def test_what_cannot_be_rewound_takes_no_guesses_and_starts_over(decoder: TorchDecoder) -> None:
    model = Recorder(decoder, rewindable=False)
    target, first = CachedTarget(model, slots=1), text(10)
    with pytest.raises(DrafterError, match="cannot be rewound"):
        target.score([first], [Draft.chain((5,))])
    target.score([first], [Draft()])
    target.keep([first], [commit(first, Draft(), (), 9)])
    target.score([first], [Draft()])
    assert model.passes[-1] == [(0, 10, 1, 1)]
    target.end(first)
    longer = TokenSequence([*first.tokens, 4], limit=100)
    target.begin(longer)
    target.score([longer], [Draft()])
    assert model.passes[-1] == [(0, 11, 1, 1)]
    target.end(longer)
    target.begin(other := TokenSequence(longer.tokens[:8], limit=100))
    target.score([other], [Draft()])
    assert model.passes[-1] == [(0, 0, 8, 1)]


@pytest.mark.parametrize("taps", [(), (0, 1)], ids=["plain", "tapped"])
@pytest.mark.parametrize("chunk", [1, 3, 16, 200])
def test_what_is_fed_ahead_is_scored_as_what_is_not(model: Recorder, chunk: int, taps: tuple[int, ...]) -> None:
    target, one, two = CachedTarget(model), text(40), text(60, seed=1)
    wanted = CachedTarget(model.model).score([one, two], [Draft.chain((3, 4)), Draft()], taps)
    target.begin(one)
    target.begin(two)
    for sequence in (one, two):
        fed = 0
        while now := target.feed(sequence, chunk, taps):
            assert now == min(chunk, len(sequence) - 1 - fed)
            fed += now
        assert fed == len(sequence) - 1
        assert target.ahead(sequence, together=True, taps=taps) == 0
    model.passes.clear()
    scored = target.score([one, two], [Draft.chain((3, 4)), Draft()], taps)
    assert model.passes == [[(0, 39, 3, 3), (1, 59, 1, 1)]]
    same(scored.logits, wanted.logits)
    for tap in taps:
        same(scored.hidden[tap], wanted.hidden[tap])
        for ours, theirs in zip(scored.earlier, wanted.earlier, strict=True):
            same(ours[tap], theirs[tap])
    target.keep([one, two], [commit(one, Draft.chain((3, 4)), (0,), 9), commit(two, Draft(), (), 9)])
    assert all(not said for said in target.score([one, two], [Draft()] * 2, taps).earlier)


def test_what_was_said_of_a_text_that_changed_is_not_told(model: Recorder) -> None:
    target, sequence = CachedTarget(model), text(40)
    target.begin(sequence)
    target.feed(sequence, 20, (0,))
    target.rewind(sequence, 10)
    target.feed(sequence, 15, (0, 1))
    scored = target.score([sequence], [Draft()], (1,))
    assert scored.earlier[0][1].shape[0] == 29  # from the tenth on
    target.rewind(sequence, 10)
    target.feed(sequence, 20, (0,))
    assert target.score([sequence], [Draft()], (0, 1)).earlier[0].keys() == {0}  # nobody said of the other


def test_a_stretch_that_the_last_pass_can_take_is_not_fed_ahead(model: Recorder) -> None:
    target, sequence = CachedTarget(model), text(600)
    target.begin(sequence)
    assert (target.ahead(sequence, together=False), target.ahead(sequence, together=True)) == (88, 599)
    target.feed(sequence, 590)
    assert (target.ahead(sequence, together=True), target.ahead(sequence, together=True, taps=(0,))) == (0, 9)
    recurrent = CachedTarget(Recorder(model.model, rewindable=False))
    recurrent.begin(sequence)
    assert (recurrent.ahead(sequence, together=True, taps=(0,)), recurrent.feed(sequence, 5)) == (0, 0)


def test_taps_that_are_not_there_are_refused(model: Recorder) -> None:
    target = CachedTarget(model.model)
    target.check_taps((-1, 0, model.model.layers - 1))
    for wrong in (-2, model.model.layers):
        with pytest.raises(DrafterError, match=f"there is no layer {wrong} to tap"):
            target.check_taps((0, wrong))


def test_a_slot_serves_its_owner_alone(model: Recorder) -> None:
    target = CachedTarget(model, slots=1)
    for owner, reused in (("ann", 0), ("ann", 49), ("eve", 0), ("eve", 49), ("ann", 0), ("", 0)):
        sequence = text(50)
        sequence.owner = owner
        target.begin(sequence)
        assert (target.reused(sequence), target.occupied) == (reused, 1)
        same(target.score([sequence], [Draft()]).logits, plain(model.model, sequence.tokens)[-1:])
        target.end(sequence)
        assert target.occupied == 0


def test_anothers_slot_is_not_taken_for_its_prefix() -> None:
    slots = Slots(3)
    a, b, c, d, e = (object() for _ in range(5))
    for sequence, owner in ((a, "ann"), (b, "eve")):
        slots.hold(slots.take(sequence, [1, 2, 3, 4], owner), [1, 2, 3, 4])
    of_ann = slots.slot(a)
    slots.release(a)
    slots.release(b)
    assert slots.take(c, [1, 2, 3, 9], "eve") != of_ann
    assert slots.take(d, [1, 2, 3, 9], "bob") != of_ann  # a new one
    assert slots.held(slots.take(e, [1, 2, 3, 9], "ann")) == [1, 2, 3]
    assert slots.slot(e) == of_ann


def test_a_sparing_pool_keeps_a_long_text_from_a_short_prefix() -> None:
    slots = Slots(2)
    slots.sparing = True
    first, second, third, fourth, fifth = (object() for _ in range(5))
    slots.hold(slots.take(first, [0]), list(range(90)))
    long = slots.slot(first)
    slots.release(first)
    other = slots.take(second, [*range(30), 99])
    assert slots.held(other) == []  # a third is not worth the rest
    slots.hold(other, [7] * 10)
    slots.release(second)
    assert slots.take(third, [*range(31), 99]) == long  # a little more is
    slots.release(third)
    assert slots.take(fourth, [8, 9]) == other  # of two that are no use the one whose last use is longer ago
    assert slots.take(fifth, [5, 6]) == long  # none other is left


def test_slots_beyond_the_count_are_given_up(model: Recorder) -> None:
    target = CachedTarget(model, slots=2)
    sequences = [text(5, seed) for seed in range(4)]
    for sequence in sequences:
        target.begin(sequence)
    assert len(target.slots) == 4
    for sequence in sequences:
        target.end(sequence)
    target.end(sequences[0])
    assert (len(target.slots), target.slots.free, model.released) == (2, 2, [0, 1])


def test_least_recently_used_is_overwritten_first() -> None:
    slots = Slots(2)
    a, b, c = object(), object(), object()
    for sequence, tokens in ((a, [1, 2, 3]), (b, [7, 8, 9])):
        slots.hold(slots.take(sequence, tokens), tokens)
    first, second = slots.slot(a), slots.slot(b)
    slots.release(b)
    slots.release(a)
    assert slots.take(c, [5, 5]) == second
    assert slots.held(slots.take(object(), [1, 2, 9])) == [1, 2]
    assert first != second


@given(a=st.lists(st.integers(0, 1)), b=st.lists(st.integers(0, 1)))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n in (len(a), len(b)) or a[n] != b[n]

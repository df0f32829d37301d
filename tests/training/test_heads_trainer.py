"""The loop learns, stops and goes on to the bit, and judges the same way twice."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from foredraft.errors import NumericalError, StorageError
from foredraft.training.heads import state as heads_state
from foredraft.training.heads.data import batch_of, draft_vocabulary, held_out, in_order, ranks
from foredraft.training.heads.draft_module import Student
from foredraft.training.heads.judge import GUESSES
from foredraft.training.heads.module import MedusaHeads, RecurrentHeads
from foredraft.training.heads.state import begun_vocabulary
from foredraft.training.heads.trainer import HeadsTrainer, TrainPlan, begin
from tests.training.making import TAPS, H, V, ends_of, example, shape_of, texts_of

pytestmark = pytest.mark.slow

IDS = np.arange(V, dtype=np.int32)
MODULES: dict[str, Any] = {
    "recurrent": lambda: RecurrentHeads(shape_of()),
    "medusa": lambda: MedusaHeads(shape_of(), 3),
    "student": lambda: Student(shape_of(0), 2),
}


def trainer_of(kind: str = "recurrent", epochs: float = 20.0, **given: Any) -> HeadsTrainer:
    module, ends = MODULES[kind](), ends_of()
    begin(module, torch.ones(H), ends, 0)
    plan = TrainPlan(epochs=epochs, unrolled=1 if kind == "student" else 3, rows=128, **given)
    return HeadsTrainer(module, ends, IDS, texts_of(), plan)


@pytest.mark.parametrize("kind", MODULES)
def test_a_law_that_can_be_learnt_is_learnt(kind: str) -> None:
    trainer = trainer_of(kind)
    before = trainer.judge()
    assert before.greedy.tokens_a_pass < 1.4
    losses = [progress.loss for progress in trainer.steps()]
    after = trainer.judge()
    assert trainer.done
    assert np.mean(losses[-5:]) < 0.4 * np.mean(losses[:3])
    guesses = 3 if kind == "medusa" else GUESSES
    assert len(after.greedy.conditional) == guesses
    assert after.greedy.tokens_a_pass > 0.7 * (1 + guesses)
    assert 2.0 < after.drawn < 1 + guesses
    assert len(after.acceptance) == {"recurrent": GUESSES, "medusa": 3, "student": 1}[kind]
    assert min(after.agreement) > 0.7
    assert trainer.progress.visits >= trainer.total


def test_judging_twice_says_the_same_and_trains_nothing() -> None:
    trainer = trainer_of(epochs=3)
    for _ in trainer.steps():
        pass
    weights = [p.detach().clone() for p in trainer.module.parameters()]
    assert trainer.judge() == trainer.judge()
    assert all(torch.equal(a, b) for a, b in zip(weights, trainer.module.parameters(), strict=True))
    assert len(trainer.progress.history) == 2


@pytest.mark.parametrize("kind", MODULES)
def test_a_training_that_was_stopped_goes_on_to_the_bit(kind: str, tmp_path: Path) -> None:
    whole, path = trainer_of(kind, 6), tmp_path / "state.safetensors"
    losses = [progress.loss for progress in whole.steps()]
    assert len(losses) > 12
    parted: list[float] = []
    for stop in (2, 7, None):  # in the first epoch, in a later one, and to the end
        part = trainer_of(kind, 6)
        assert part.resume(path) is bool(parted)
        for progress in part.steps():
            parted.append(progress.loss)
            if len(parted) == stop:
                break
        part.save(path)
    assert parted == losses
    mine, theirs = dict(whole.module.named_parameters()), dict(part.module.named_parameters())
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert part.progress.visits == whole.progress.visits
    np.testing.assert_array_equal(begun_vocabulary(path), IDS)
    assert trainer_of(kind, 6).resume(tmp_path / "none") is False
    assert begun_vocabulary(tmp_path / "none") is None


def test_states_of_other_trainings(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    trainer_of().save(path)
    with pytest.raises(StorageError, match="is the state of another training: name another folder"):
        trainer_of("medusa").resume(path)
    other = HeadsTrainer(MODULES["recurrent"](), ends_of(), IDS[::-1].copy(), texts_of(), TrainPlan())
    with pytest.raises(StorageError, match="is the state of another training"):
        other.resume(path)
    sound = load_file(path)
    for name in ("optimiser.7.0.step", "optimiser.x", "optimiser.a.b.c"):
        save_file({**sound, name: torch.zeros(1)}, path, {"progress": "{}"})
        with pytest.raises(StorageError, match=f"{path} is not the state of a training: .*; delete it to begin anew"):
            trainer_of().resume(path)
    for progress in ('{"other": 1}', "[]"):
        save_file(sound, path, {"progress": progress})
        with pytest.raises(StorageError, match=f"{path} is not the state of a training: .*; delete it to begin anew"):
            trainer_of().resume(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StorageError, match=r"cannot be read: .*; delete it to begin anew"):
        trainer_of().resume(path)


def test_a_disk_that_fills_up_leaves_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.safetensors"
    trainer = trainer_of(epochs=2)
    trainer.save(path)
    before = path.read_bytes()

    def half(tensors: Any, partial: Path, *_: Any) -> None:
        partial.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(heads_state, "save_file", half)
    with pytest.raises(StorageError, match=r"no space left on device; free some space or choose another folder$"):
        trainer.save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_a_loss_that_is_no_number_changes_nothing() -> None:
    trainer = trainer_of()
    weights = [p.detach().clone() for p in trainer.module.parameters()]
    bad = example(0)
    states = np.array(bad.states)
    states[3] = 0x7FC0  # NaN
    broken = type(bad)(bad.tokens, bad.prompt, states, bad.top, bad.top_logits)
    trainer._texts = [broken] * len(trainer._texts)
    with pytest.raises(NumericalError, match="the loss is no number at step 0"):
        next(trainer.steps())
    assert all(torch.equal(a, b) for a, b in zip(weights, trainer.module.parameters(), strict=True))


def test_void_rows_teach_nothing() -> None:
    """A prompt of one token has no row that a second step could have been taken at."""
    trainer = trainer_of()
    texts = [example(i, 12, prompt=1) for i in range(3)]
    batch = batch_of(texts, ranks(IDS, V))
    assert batch.places.min() == 0
    trainer._step(batch)
    reached = [p.detach().clone() for p in trainer.module.parameters()]
    again = trainer_of()
    before = again.module.unrolled
    calls = []

    def poisoned(states: Any, embeddings: Any, steps: int) -> Any:
        found = before(states, embeddings, steps)
        for step, s in enumerate(found):
            s = s.clone()
            s[:, :step] = 100.0
            found[step] = s
        calls.append(steps)
        return found

    again.module.unrolled = poisoned  # type: ignore[method-assign]
    again._step(batch)
    assert calls == [3]
    assert all(torch.equal(a, b) for a, b in zip(reached, again.module.parameters(), strict=True))


def test_batches() -> None:
    texts = [example(i, 14 + i, prompt=4 + i % 3) for i in range(5)]
    rank = ranks(IDS[::2], V)
    batch = batch_of(texts, rank)
    length = 17
    assert batch.states.shape == (5, length, TAPS, H)
    assert batch.tokens.shape == (5, length + 1)
    assert len(batch.rows) == len(batch.places) == sum(len(t.top) - 1 for t in texts)
    at = 0
    for i, text in enumerate(texts):
        for j in range(1, len(text.top)):  # the answer's first token is the target's own
            row = i * length + text.prompt - 2 + j
            assert int(batch.rows[at]) == row
            assert int(batch.places[at]) == row % length
            assert batch.tokens[i, row % length + 1] == text.tokens[text.prompt - 1 + j]
            for token, log_p, of, p in zip(text.top[j], text.top_logits[j], batch.ids[at], batch.p[at], strict=True):
                known = token % 2 == 0
                assert float(p) == pytest.approx(np.exp(log_p) if known else 0.0)
                assert not known or IDS[::2][int(of)] == token
            at += 1
    bare = batch_of(texts, rank, states=False)
    assert bare.states.shape == (5, length, 0, H)
    assert torch.equal(bare.tokens, batch.tokens)


def test_the_order_is_of_every_text_once_within_the_rows() -> None:
    lengths = [10 + i % 37 for i in range(1200)]
    first, again, other = ([*in_order(len(lengths), lengths, 256, seed)] for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(i for batch in first for i in batch) == list(range(1200))
    assert all(len(batch) * max(lengths[i] for i in batch) <= 256 for batch in first)
    assert [*in_order(2, [500, 600], 256, 0)] in ([[0], [1]], [[1], [0]])


def test_no_prompt_is_on_both_sides() -> None:
    texts = [example(i % 200, 12 + i // 200) for i in range(600)]  # three answers to each of 200 prompts
    trained, judged = held_out(texts)
    assert len(trained) + len(judged) == 600
    assert 3 <= len(judged) <= 36
    begin = [{tuple(t.tokens[: t.prompt]) for t in side} for side in (trained, judged)]
    assert not begin[0] & begin[1]
    more = held_out([*texts, *[example(900 + i) for i in range(50)]])
    assert {id(t) for t in judged} <= {id(t) for t in more[1]}
    assert held_out([]) == ([], [])
    assert len(held_out(texts[:2])[1]) == 1


def test_the_commonest_tokens_make_the_vocabulary() -> None:
    text = example(0, 30)
    counts = np.bincount(text.tokens[text.prompt :], minlength=V)
    ids = draft_vocabulary([text], V, 5)
    assert (np.diff(ids) > 0).all()
    assert counts[ids].min() >= np.delete(counts, ids).max()

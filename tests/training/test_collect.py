"""What a recorder keeps is what the model says when asked directly; batches depend on their number alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.none import NoDrafter
from foredraft.drafters.suffix import Suffix
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.loop import run
from foredraft.errors import PromptError
from foredraft.models.model import Rows
from foredraft.models.target import CachedTarget
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.training.data import collect as collect_module
from foredraft.training.data.collect import Collector, CollectPlan, opening
from foredraft.training.data.recorder import Recorder, Tapping, likeliest
from foredraft.training.data.shards import Example, Shards, narrowed
from tests.tiny import make_chat_model
from tests.training.making import host_of

TIMES, TOP = (0, 2), 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return host_of(folder, folder / "cache")


def texts_for(loaded: LoadedModel, count: int = 5) -> Iterator[TokenSequence]:
    for i in range(count):
        assert loaded.tokenizer is not None
        tokens = loaded.tokenizer.encode("abcab" * (i + 1))
        drawn = i % 2 == 1
        yield TokenSequence(
            tokens=tokens, limit=len(tokens) + 12 + 3 * i, params=SamplingParams(0.7 if drawn else 0.0),
            noise=loaded.sampler.noise(i), law=loaded.sampler.law, stop_ids=frozenset({259}),
        )  # fmt: skip


def recorded(loaded: LoadedModel, drafter: Any, slots: int = 0) -> list[Example]:
    found: list[Example] = []
    recorder = Recorder(TIMES, found.append, TOP)
    target = CachedTarget(loaded.target.model, slots)
    counts = [0, 0]
    with closing(
        run(list(texts_for(loaded)), target, Tapping(drafter, TIMES), FixedPlanner(6), (recorder,), 3)
    ) as rounds:
        for done in rounds:
            counts[0] += sum(outcome.accepted for _, outcome in done)
            counts[1] += sum(len(set(outcome.draft.parents)) < len(outcome.draft) for _, outcome in done)
    assert (counts[0] > 10) is isinstance(drafter, Suffix)
    assert (counts[1] > 0) is isinstance(drafter, Branching)  # trees
    return found


class Branching(Suffix):
    """A second guess beside the first, so that every draft is a tree whose first branch may be wrong."""

    def propose(self, sequences: Any, quotes: Any, noises: Any) -> Any:
        drafts = super().propose(sequences, quotes, noises)
        return [
            replace(d, tokens=(d.tokens[0] ^ 1, *d.tokens), parents=(-1, *(p + 1 if p >= 0 else -1 for p in d.parents)))
            if len(d)
            else d
            for d in drafts
        ]


@pytest.mark.parametrize("kind", ["plain", "chain", "tree"])
@pytest.mark.parametrize("tier", ["auto", "off"])
def test_a_recorder_keeps_what_a_direct_pass_says(folder: Path, kind: str, tier: str) -> None:
    loaded = host_of(folder, folder / "cache", native_tier=tier)
    drafter: Any = {"plain": NoDrafter(), "chain": Suffix(0.0), "tree": Branching(0.0)}[kind]
    found = recorded(loaded, drafter)
    assert len(found) == 5
    for text in found:
        n = len(text.tokens)
        rows = Rows(99, 0, tuple(text.tokens.tolist()), tuple(range(-1, n - 1)), n)
        direct = loaded.target.model.forward([rows], TIMES)
        states = np.stack([direct.hidden[tap] for tap in TIMES], 1)[:-1]
        logits = direct.logits[text.prompt - 1 : n - 1].astype(np.float64)
        told = (text.states.astype(np.uint32) << 16).view(np.float32)
        if loaded.tier != "torch":
            np.testing.assert_array_equal(text.states, narrowed(states))
        np.testing.assert_allclose(told, states, rtol=2**-7, atol=1e-4)
        wanted = np.argsort(-logits, -1, kind="stable")[:, :TOP]
        np.testing.assert_array_equal(text.top, wanted)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        np.testing.assert_allclose(text.top_logits, np.take_along_axis(log_p, wanted, 1), atol=1e-5)


def test_a_prefix_that_lay_in_a_slot_is_not_recorded(loaded: LoadedModel) -> None:
    """Why a collector keeps no slots: whoever starts from one has states that nobody saw."""
    assert len(recorded(loaded, NoDrafter(), slots=8)) < 5


@pytest.mark.parametrize("width", [7, 300, 5000, 5 * 128])
def test_the_likeliest_of_many(width: int) -> None:
    logits = np.random.default_rng(0).normal(size=(9, width)).astype(np.float32) * 5
    logits[1] = np.round(logits[1])  # ties
    ids, values = likeliest(logits, 32)
    wanted = np.argsort(-logits, -1, kind="stable")[:, :32]
    np.testing.assert_array_equal(np.take_along_axis(logits, ids, 1), np.take_along_axis(logits, wanted, 1))
    np.testing.assert_array_equal(ids[[0, 2, 3]], wanted[[0, 2, 3]])
    wide = logits.astype(np.float64)
    log_p = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    np.testing.assert_allclose(values, np.take_along_axis(log_p, ids, 1), atol=1e-5)


PLAN = CollectPlan(10_000, longest=9, batch=6)


def collector_in(
    loaded: LoadedModel, folder: Path, plan: CollectPlan = PLAN, limit: int = 1 << 26, **given: Any
) -> Collector:
    shards = Shards(folder, "key", limit)
    shards.sweep()
    prompts: Sequence[Sequence[int]] = given.get("prompts", [[65 + i, 66, 67] for i in range(20)])
    return Collector(loaded, prompts, TIMES, shards, plan)


def ignore(*_: int) -> None:
    """Hear nothing."""


def test_a_batch_depends_on_its_number_alone(loaded: LoadedModel, tmp_path: Path) -> None:
    whole = collector_in(loaded, tmp_path / "whole")
    for _ in range(3):
        whole.batch(ignore)
    for _ in range(3):  # each in what might be a process of its own, the second killed before it was done
        parts = collector_in(loaded, tmp_path / "parts")
        if len(parts.shards.paths) == 1:
            with pytest.raises(KeyboardInterrupt):
                parts.batch(interrupting(parts.tokens + 30))
            parts = collector_in(loaded, tmp_path / "parts")
        parts.batch(ignore)
    files = [sorted(folder.iterdir()) for folder in (tmp_path / "whole", tmp_path / "parts")]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert len(files[0]) == 3
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))
    assert parts.tokens == whole.tokens


def test_tokens_end_with_the_text_that_reaches_them(loaded: LoadedModel, tmp_path: Path) -> None:
    """Whole texts, so at most one too many; all batches but the last are what they would have been."""
    longer = collector_in(loaded, tmp_path / "longer")
    for _ in range(4):
        longer.batch(ignore)
    for wanted in (longer.tokens // 2, longer.tokens // 2 + 7, longer.tokens // 3, 1):
        folder = tmp_path / f"s{wanted}"
        told: list[int] = []
        collector = collector_in(loaded, folder, replace(PLAN, tokens=wanted))
        while not collector.done:
            collector.batch(lambda done, of: told.append(done))  # noqa: B023 - called in this turn
        last = list(collector.shards.examples())[-1]
        assert wanted <= collector.tokens < wanted + len(last.top) <= wanted + PLAN.longest
        assert told[-1] == collector.tokens == sum(len(text.top) for text in collector.shards.examples())
        assert told == sorted(told)
        *before, _ = paths = sorted(folder.iterdir())
        assert all(path.read_bytes() == (tmp_path / "longer" / path.name).read_bytes() for path in before)
        again = collector_in(loaded, folder, replace(PLAN, tokens=wanted))
        assert again.done
        more = collector_in(loaded, folder, replace(PLAN, tokens=collector.tokens + 1))  # goes on behind them
        more.batch(ignore)
        assert sorted(folder.iterdir())[: len(paths)] == paths
        assert more.tokens > collector.tokens


def test_a_shard_that_was_deleted_is_made_again(loaded: LoadedModel, tmp_path: Path) -> None:
    """Whichever it is: the others stay as they are, and nothing is there twice."""
    collector = collector_in(loaded, tmp_path / "s")
    for _ in range(3):
        collector.batch(ignore)
    before = {path: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    for path in before:
        path.unlink()
        again = collector_in(loaded, tmp_path / "s", replace(PLAN, tokens=collector.tokens))
        assert not again.done
        again.batch(ignore)
        assert again.done
        assert {path: path.read_bytes() for path in (tmp_path / "s").iterdir()} == before
        assert sum(len(text.top) for text in again.shards.examples()) == collector.tokens


def interrupting(most: int) -> Any:
    def tell(done: int, of: int) -> None:
        if done > most:
            raise KeyboardInterrupt

    return tell


def test_every_text_is_kept_and_every_prompt_used_once(loaded: LoadedModel, tmp_path: Path) -> None:
    collector = collector_in(loaded, tmp_path / "s", replace(PLAN, batch=8))
    for _ in range(6):
        collector.batch(ignore)
    texts = list(collector.shards.examples())
    begin = [tuple(text.tokens[: text.prompt].tolist()) for text in texts]
    given = [(65 + i, 66, 67) for i in range(20)]
    short = 2 * 8 * 6 - len(texts)  # answers of fewer than three tokens
    assert short <= 6
    for prompt in given:
        assert begin.count(prompt) in (1, 2)
    own = [prompt for prompt in begin if prompt not in given]
    assert len(own) >= 2 * 28 - short
    start = opening(loaded)
    assert start is not None
    assert all(list(prompt[: len(start)]) == start for prompt in own)
    assert all(3 <= len(text.top) <= 9 for text in texts)


def test_no_room_ends_it(loaded: LoadedModel, tmp_path: Path) -> None:
    limit = 200_000
    collector = collector_in(loaded, tmp_path / "s", limit=limit)
    batches = 0
    while not collector.done:
        collector.batch(ignore)
        batches += 1
        assert sum(path.stat().st_size for path in (tmp_path / "s").iterdir()) <= limit
    assert batches > 1
    assert 0 < collector.tokens < PLAN.tokens
    assert collector_in(loaded, tmp_path / "s", limit=limit).done
    assert not collector_in(loaded, tmp_path / "s", limit=10 * limit).done


def test_wide_states_make_small_batches(loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = collector_in(loaded, tmp_path / "s")
    assert collector._size() == 6
    monkeypatch.setattr(collect_module, "SHARD_BYTES", 3 * 4 * 9 * (4 + 2 * 2 * 32 + 8 * 32))
    assert collector._size() == 3
    monkeypatch.undo()
    weights = 32 * (260 + 3 * (2 * 8 * 6 + 3 * 48))
    monkeypatch.setattr(collect_module, "QUICK", 5 * weights // 128 + 1)
    assert collector._size() == 5
    monkeypatch.setattr(collect_module, "QUICK", weights // 128)
    assert collector._size() == 2


def test_nothing_to_ask(loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mute = replace(loaded, tokenizer=None)
    with pytest.raises(PromptError, match="without a chat template the model cannot write any: give some"):
        collector_in(mute, tmp_path / "a", prompts=[])
    collector = collector_in(mute, tmp_path / "b", prompts=[[65, 66]])  # the one prompt again and again
    collector.batch(ignore)
    assert collector.tokens > 0
    monkeypatch.setattr(collect_module, "_QUESTION", 1)  # too short for a question
    with pytest.raises(PromptError, match="the model writes no questions of its own: give prompts"):
        collector_in(loaded, tmp_path / "c", prompts=[]).batch(ignore)

"""What a step does: chunks that keep to their time, one price for a batch, fields of a job that are filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from foredraft.core.draft import Outcome, Scored
from foredraft.core.protocols import Round
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.lookup import Lookup
from foredraft.drafters.none import NoDrafter
from foredraft.engine.chunks import MAX_ROWS, MIN_ROWS, Chunks
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.service import Service
from foredraft.models.target import CachedTarget
from tests.engine.serving import Breaking, Hurt, Listener, Plans, serve, service, text

ABC = [1, 2, 3] * 5


def test_chunks_are_what_fits_into_their_time() -> None:
    chunks = Chunks(0.02)
    assert chunks.rows == 2 * MIN_ROWS  # nothing is known
    chunks.learn(32, 0.032)
    assert chunks.rows == MIN_ROWS  # 1 ms a row: 20 rows, cut to a multiple
    for _ in range(20):
        chunks.learn(64, 0.0064)
    assert chunks.rows == 192
    chunks.learn(64, 10.0)  # a stall teaches only so much
    assert chunks.rows == 64
    for _ in range(20):
        chunks.learn(512, 1e-4)
    assert chunks.rows == MAX_ROWS
    rows = chunks.rows
    chunks.learn(MIN_ROWS - 1, 100.0)
    chunks.learn(64, -1.0)
    assert chunks.rows == rows
    for _ in range(40):
        chunks.learn(16, 100.0)
    assert chunks.rows == MIN_ROWS


def test_a_long_prompt_keeps_nobody_waiting_for_more_than_a_chunk() -> None:
    model = Hurt()
    engine = service(model, clock=lambda: 0.0)  # a clock that teaches nothing: chunks stay as they begin
    running = [Listener(text(ABC, seed, 40)) for seed in (1, 2)]
    for job in running:
        job.job.sequence.stop_ids = frozenset()
    engine.submit([job.job for job in running])
    engine.step()
    long = [Listener(text([4, 5, 6] * 60, 3, 10), owner=owner) for owner in ("a", "b")]
    engine.submit([job.job for job in long])
    while not all(job.told for job in long):
        model.passes.clear()
        told = [len(job.told) for job in running]
        engine.step()
        assert [len(job.told) for job in running] == [count + 1 for count in told]
        assert sum(sum(rows) for rows in model.passes if len(rows) == 1) <= 2 * MIN_ROWS
    assert engine.snapshot().rounds > 10


def test_prompts_take_turns() -> None:
    engine = service(Hurt(), clock=lambda: 0.0)
    running = Listener(text(ABC, 1, 60))
    engine.submit([running.job])
    engine.step()
    long, short = Listener(text([4, 5, 6] * 60, 3, 10)), Listener(text([5, 4, 7] * 12, 3, 10))
    engine.submit([long.job, short.job])
    steps = 0
    while not short.told:
        engine.step()
        steps += 1
    assert not long.told
    assert steps <= 4  # two chunks of its own, two of the other's


def test_a_lone_prompt_is_read_and_answered_in_one_pass() -> None:
    model = Hurt()
    engine = service(model)
    job = Listener(text([4, 5, 6] * 60, 3, 3))
    engine.submit([job.job])
    engine.step()
    assert model.passes == [[180]]
    assert len(job.told) == 1


def test_what_the_tapped_layers_say_of_a_prompt_reaches_the_drafter() -> None:
    seen: dict[TokenSequence, list[float]] = {}

    class Sees(Breaking):
        def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
            for i, (sequence, outcome) in enumerate(zip(sequences, outcomes, strict=True)):
                rows = [scored.starts[i] + 1 + node for node in outcome.nodes]
                earlier = scored.earlier[i].get(1) if scored.earlier else None
                known = seen.setdefault(sequence, [])
                known += [] if earlier is None else earlier[:, 0].tolist()
                known += scored.hidden[1][rows, 0].tolist()

    model = Hurt()
    engine = service(model, clock=lambda: 0.0)
    drafter = Sees(lambda *_: False, taps=(1,))
    plain = [Listener(text(ABC, seed, 30)) for seed in (1, 2)]
    engine.submit([job.job for job in plain])
    engine.step()
    tapped = [Listener(text([4, 5] * 40 + [seed], seed, 9), drafter=drafter, draft_tokens=2) for seed in (3, 4)]
    other = Listener(text([9] * 30, 5, 9), drafter=Breaking(lambda *_: False, taps=(0,)), draft_tokens=2)
    serve(engine, *tapped, other)
    for job in tapped:
        state, wanted = 17, []
        for token in job.job.sequence.tokens[:-1]:
            state = (state * 31 + token + 1) % len(model.rows)
            wanted.append(state + 1.0)
        assert seen[job.job.sequence] == wanted


def test_what_was_said_of_a_prompt_goes_with_its_job() -> None:
    engine = service(Hurt(), clock=lambda: 0.0)
    beside, job = (Listener(text(p, 1, 30), drafter=Breaking(lambda *_: False, taps=(1,))) for p in (ABC, [4, 5] * 40))
    engine.submit([beside.job])
    engine.step()
    engine.submit([job.job])
    engine.step()
    target: Any = engine._scheduler._target
    assert len(target._ahead) == 1
    engine.cancel(job.job)
    engine.step()
    assert not target._ahead
    assert job.reason == "cancelled"


def test_each_planner_sees_the_whole_batch_and_answers_its_own() -> None:
    asked: list[int] = []
    learnt: list[int] = []

    class Auto(FixedPlanner):
        def quote(self, sequences: Sequence[TokenSequence]) -> Any:
            asked.append(len(sequences))
            return super().quote(sequences)

        def record(self, done: Round) -> None:
            learnt.append(len(done.sequences))

    class Told(Plans):
        def planner(self, length: int | None) -> Any:
            return auto if length is None else FixedPlanner(length)

    auto = Auto(4)
    engine = Service(CachedTarget(Hurt()), Lookup(), Told(), thread=False)
    jobs = [
        Listener(text(ABC, 1, 20)), Listener(text(ABC, 2, 20)), Listener(text(ABC, 3, 20), draft_tokens=1),
        Listener(text(ABC, 4, 20), draft_tokens=0),
    ]  # fmt: skip
    engine.submit([job.job for job in jobs])
    for _ in range(5):
        engine.step()
    assert asked == learnt == [4] * 5
    most = [max(job.job.decisions) for job in jobs]
    assert most[0] == most[1] == 4
    assert most[2:] == [1, 0]
    for job in jobs[:2]:
        engine.cancel(job.job)
    while not engine.idle:
        engine.step()
    assert asked == learnt == [4] * 5


def test_a_request_ends_with_its_slot() -> None:
    engine = service(Hurt())
    job = Listener(text(ABC, None, 9000))
    job.job.sequence.stop_ids = frozenset()
    serve(engine, job)
    assert (job.reason, len(job.job.sequence)) == ("length", Hurt.context)
    full = Listener(text([1] * Hurt.context, None, 9))
    serve(engine, full)
    assert (full.reason, full.told, full.updates[-1].outcome) == ("length", [], None)


def test_a_job_tells_what_became_of_it() -> None:
    now = [10.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    engine = service(Hurt(), NoDrafter(), clock=clock)
    jobs = [Listener(text(ABC, seed, 5), owner="me") for seed in (1, 1)]
    for job in jobs:
        serve(engine, job)
        assert job.job.admitted is not None
        assert job.job.first is not None
        assert 10.0 < job.job.admitted < job.job.first
        assert job.job.decisions == {0: len(job.told) - 1}
    assert [job.job.cached_tokens for job in jobs] == [0, len(ABC) - 1]
    shown = engine.snapshot()
    told = [len(job.told) for job in jobs]
    assert (shown.answers, shown.tokens, shown.passes) == (2, sum(told), sum(told) - 2)
    assert (shown.rounds, shown.failures, shown.faults, shown.drafts) == (sum(told), 0, {}, {})


def test_load_is_the_share_of_the_slots_that_is_asked_for() -> None:
    engine = service(Hurt(), slots=4)
    assert engine.snapshot().load == 0.0
    engine.submit([Listener(text(ABC, seed)).job for seed in range(1, 7)])
    assert engine.snapshot().load == 1.5
    engine.step()
    shown = engine.snapshot()
    assert (shown.running, shown.waiting, shown.free_slots) == (4, 2, 0)
    assert shown.load == 1.5


def test_a_state_that_cannot_be_rewound_reads_its_prompt_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hurt, "rewindable", False)
    model = Hurt()
    engine = service(model)
    job, beside = Listener(text([4, 5] * 30, 3, 3)), Listener(text(ABC, 1, 3))
    serve(engine, job, beside)
    assert model.passes[0] == [60, 15]
    assert (job.reason, beside.reason) == ("length", "length")

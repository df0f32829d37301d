"""What breaks under a service: a drafter, the target, who listens, who looks on, the service itself."""

from __future__ import annotations

import gc
from collections.abc import Callable
from threading import Event
from typing import Any
from weakref import ref

import numpy as np
import pytest

from foredraft.core.draft import Draft
from foredraft.core.law import Dense
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.lookup import Lookup
from foredraft.engine.service import Service
from foredraft.errors import Draining, GenerationError, NumericalError, OptionError, Overloaded
from foredraft.models.target import CachedTarget
from tests.engine.serving import Breaking, Hurt, Listener, V, alone, serve, service, text

ABC = [1, 2, 3] * 5


def check(*jobs: Listener) -> None:
    for job in jobs:
        assert job.told == alone(Hurt(), job.job.sequence)
        assert job.reason in ("stop", "length")


def whole(engine: Service) -> None:
    """Assert that nothing is left of any job."""
    shown = engine.snapshot()
    assert (shown.running, shown.waiting, shown.reading, shown.load) == (0, 0, 0, 0)
    assert shown.free_slots == shown.slots
    assert engine.idle


@pytest.mark.parametrize("method", ["begin", "propose", "observe", "end"])
def test_a_drafter_that_raises_is_dropped_for_that_job(method: str) -> None:
    seven: list[TokenSequence] = []
    drafter = Breaking(lambda m, s: m == method and s in seven and len(s) > 14, lambda s: Draft.chain(s.tokens[-3:-1]))
    engine = service(Hurt(), drafter)
    jobs = [Listener(text(ABC, seed), draft_tokens=2) for seed in (1, 2, 3)]
    seven.append(jobs[1].job.sequence)
    serve(engine, *jobs)
    check(*jobs)
    assert [job.job.drafting_fault is None for job in jobs] == [True, False, True]
    assert str(jobs[1].job.drafting_fault) == f"broken in {method}"
    assert engine.snapshot().faults == {"breaking": 1}
    rounds = [sum(count for guesses, count in job.job.decisions.items() if guesses) for job in jobs]
    assert (rounds[0] > 1) == (rounds[2] > 1) is True
    assert (rounds[1] > 1) == (method == "end")
    assert not drafter.sequences
    whole(engine)


NAN = Dense(np.full(V, np.nan))
ODD: dict[str, Callable[[TokenSequence], Any]] = {
    "no draft": lambda s: None,
    "a token that is not there": lambda s: Draft.chain([V + 3]),
    "a law of NaN": lambda s: Draft.chain([1], [NAN]),
    "a law over too few": lambda s: Draft.chain([1], [Dense(np.array([0.0, 1.0]))]),
    "a longer text": lambda s: s.tokens.append(1) or Draft(),  # type: ignore[func-returns-value]
    "a shorter text": lambda s: s.tokens.pop() and Draft(),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_drafter_that_answers_nonsense_harms_nobody(odd: Callable[[TokenSequence], Any]) -> None:
    drafter = Breaking(lambda *_: False, lambda s: odd(s) if s.noise.seed == 2 else Draft.chain([1, 2]))
    engine = service(Hurt(), drafter)
    jobs = [Listener(text(ABC, seed), draft_tokens=3) for seed in (1, 2, 3)]
    serve(engine, *jobs)
    check(*jobs)
    assert [job.job.drafting_fault is None for job in jobs] == [True, False, True]
    assert jobs[0].job.decisions.get(2, 0) > 1


def test_a_drafter_that_gives_too_few_drafts_is_asked_for_each_alone() -> None:
    class Few(Breaking):
        def propose(self, sequences: Any, quotes: Any, noises: Any) -> Any:
            return super().propose(sequences, quotes, noises)[:1]

    engine = service(Hurt(), Few(lambda *_: False))
    jobs = [Listener(text(ABC, seed), draft_tokens=2) for seed in (1, 2)]
    serve(engine, *jobs)
    check(*jobs)
    assert engine.snapshot().faults == {}
    assert all(job.job.decisions.get(2) for job in jobs)


def test_a_drafter_that_taps_what_is_not_there_is_dropped() -> None:
    engine = service(Hurt(), Breaking(lambda *_: False, taps=(0, 9)))
    job, other = Listener(text(ABC), draft_tokens=2), Listener(text(ABC, 1), drafter=Lookup(), draft_tokens=2)
    serve(engine, job, other)
    check(job, other)
    assert str(job.job.drafting_fault) == "there is no layer 9 to tap: the model has 2"
    assert other.job.drafting_fault is None


def test_a_drafter_that_hangs_is_dropped() -> None:
    now = [0.0]

    def slow(sequence: TokenSequence) -> Draft:
        now[0] += 3.0 if len(sequence) == 17 else 0.001
        return Draft.chain([1])

    engine = service(Hurt(), Breaking(lambda *_: False, slow), clock=lambda: now[0])
    job, other = Listener(text(ABC), draft_tokens=1), Listener(text(ABC, 1), drafter=Lookup(), draft_tokens=1)
    serve(engine, job, other)
    check(job, other)
    assert "a draft took 3.0 s" in str(job.job.drafting_fault)
    assert other.job.drafting_fault is None


def test_a_target_that_fails_in_a_prompt_fails_that_job() -> None:
    model = Hurt()
    engine = service(model, clock=lambda: 0.0)
    good = Listener(text(ABC, 1, 30))
    engine.submit([good.job])
    engine.step()
    bad, other = Listener(text([5] * 100, 2)), Listener(text([6] * 40, 3))
    model.error, model.fails = MemoryError("too much"), lambda rows: rows[0].start == 32
    serve(engine, bad, other)
    check(good, other)
    assert (bad.reason, str(bad.updates[-1].error), bad.told) == ("error", "too much", [])
    assert engine.snapshot().failures == 1
    serve(engine, again := Listener(text([5] * 100, 2)))
    check(again)
    assert again.job.cached_tokens == 0  # what was written before it failed may be why
    whole(engine)


def test_a_target_that_fails_in_a_round_fails_the_batch_and_no_more() -> None:
    model = Hurt()
    engine = service(model, slots=2)
    jobs = [Listener(text(ABC, seed)) for seed in (1, 2, 3)]
    engine.submit([job.job for job in jobs])
    for _ in range(3):
        engine.step()
    model.error, model.fails = RuntimeError("no more"), lambda rows: len(rows) == 2
    serve(engine, late := Listener(text(ABC, 4)))
    assert [job.reason for job in jobs[:2]] == ["error", "error"]
    assert [str(job.updates[-1].error) for job in jobs[:2]] == ["no more"] * 2
    assert jobs[0].updates[-1].outcome is None
    check(jobs[2], late)
    whole(engine)


def test_logits_of_nan_fail_their_sequence_alone() -> None:
    model = Hurt()
    engine = service(model, Lookup())
    jobs = [Listener(text(ABC, seed), draft_tokens=2) for seed in (1, 2, 3)]
    engine.submit([job.job for job in jobs])
    for _ in range(3):
        engine.step()
    slot = engine._scheduler._target.slots.slot(jobs[1].job.sequence)  # type: ignore[attr-defined]
    model.spoils = lambda row: row.slot == slot
    engine.step()
    model.spoils = lambda row: False
    while not engine.idle:
        engine.step()
    check(jobs[0], jobs[2])
    assert isinstance(jobs[1].updates[-1].error, NumericalError)
    assert (jobs[1].reason, engine.snapshot().failures) == ("error", 1)
    serve(engine, again := Listener(text(ABC, 2)))
    check(again)


@pytest.mark.parametrize("part", ["shaping", "ends"])
def test_what_an_answer_brings_along_fails_it_alone(part: str) -> None:
    def broken(*given: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise KeyError("a grammar in pieces")
        return given[0] if part == "shaping" else False

    calls: list[int] = []
    engine = service(Hurt(), Lookup())
    jobs = [Listener(text(ABC, seed), draft_tokens=2) for seed in (1, 2, 3)]
    setattr(jobs[1].job.sequence, part, broken)
    serve(engine, *jobs)
    check(jobs[0], jobs[2])
    error = jobs[1].updates[-1].error
    assert isinstance(error, GenerationError)
    assert str(error) == "the answer cannot go on: KeyError: 'a grammar in pieces'"
    whole(engine)


def test_who_has_left_is_cancelled_alone() -> None:
    engine = service(Hurt())
    jobs = [Listener(text(ABC, seed)) for seed in (1, 2, 3)]
    engine.submit([job.job for job in jobs])
    engine.step()
    jobs[1].left = True
    engine.step()
    assert engine.snapshot().running == 2
    assert jobs[1].job.sequence.finish_reason == "cancelled"
    while not engine.idle:
        engine.step()
    check(jobs[0], jobs[2])
    assert not jobs[1].ended


def test_a_watch_that_raises_fails_the_batch() -> None:
    class Blind:
        left = 2

        def see(self, done: Any) -> None:
            self.left -= 1
            if self.left == 0:
                raise ZeroDivisionError("saw nothing")

        def end(self, sequence: TokenSequence) -> None:
            raise ZeroDivisionError("saw no end")

    engine = service(Hurt(), watches=[Blind()], thread=True)
    first = [Waits(text(ABC, seed)) for seed in (1, 2)]
    engine.submit([job.job for job in first])
    assert all(job.done.wait(60) for job in first)
    assert {job.reason for job in first} == {"error"}
    engine.close()
    whole(engine)


class Waits(Listener):
    """A job with an event for its end."""

    def __init__(self, sequence: TokenSequence, **options: Any) -> None:
        super().__init__(sequence, **options)
        self.done = Event()

    def deliver(self, update: Any) -> None:
        super().deliver(update)
        if self.ended:
            self.done.set()


def test_a_service_that_errs_tells_everybody_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = service(Hurt(), thread=True)
    monkeypatch.setattr(engine._scheduler, "read", lambda: 1 / 0)
    lost = [Waits(text(ABC, seed)) for seed in range(1, 12)]
    engine.submit([job.job for job in lost])
    assert all(job.done.wait(60) for job in lost)
    assert {str(job.updates[-1].error) for job in lost} == {"division by zero"}
    monkeypatch.undo()
    engine.submit([(good := Waits(text(ABC, 1))).job])
    assert good.done.wait(60)
    check(good)
    engine.close()
    whole(engine)


def test_a_full_queue_takes_all_or_none() -> None:
    engine = service(Hurt(), slots=1, queue=3)  # one of the four is as good as served
    jobs = [Listener(text(ABC, seed)) for seed in range(1, 9)]
    engine.submit([job.job for job in jobs[:3]])
    with pytest.raises(Overloaded, match="3 answers wait already") as full:
        engine.submit([job.job for job in jobs[3:5]])
    assert full.value.retry_after == 5
    assert engine.snapshot().waiting == 3
    engine.submit([jobs[3].job])
    engine.step()
    with pytest.raises(Overloaded, match="3 answers wait already"):
        engine.submit([jobs[4].job])
    while not engine.idle:
        engine.step()
    check(*jobs[:4])
    assert not jobs[4].updates


def test_owners_take_turns() -> None:
    engine, ended = service(Hurt(), slots=1), []

    class Ends(Listener):
        def deliver(self, update: Any) -> None:
            super().deliver(update)
            if self.ended:
                ended.append((self.job.owner, self.job.sequence.noise.seed))

    def jobs(owner: str, count: int) -> list[Any]:
        return [Ends(text(ABC, seed, 2), owner=owner).job for seed in range(1, count + 1)]

    engine.submit(jobs("greedy", 5))
    engine.submit(jobs("late", 2))
    engine.submit(jobs("last", 1))
    while not engine.idle:
        engine.step()
    assert [owner for owner, _ in ended] == ["greedy", "late", "last", "greedy", "late", "greedy", "greedy", "greedy"]
    assert [seed for owner, seed in ended if owner == "greedy"] == [1, 2, 3, 4, 5]


def test_draining_lets_end_what_was_taken_and_takes_nothing_more() -> None:
    engine = service(Hurt(), slots=2, thread=True)
    jobs = [Waits(text(ABC, seed)) for seed in range(1, 6)]
    engine.submit([job.job for job in jobs])
    assert engine.drain(60.0)
    check(*jobs)
    with pytest.raises(Draining):
        engine.submit([Listener(text(ABC)).job])
    engine.close()
    engine.close()
    assert engine._thread is not None
    assert not engine._thread.is_alive()
    whole(engine)


def test_draining_ends_what_takes_too_long() -> None:
    gate = Event()

    class Gated(Hurt):
        def forward(self, *given: Any, **options: Any) -> Any:
            gate.wait(60)
            return super().forward(*given, **options)

    engine = service(Gated(), slots=1, thread=True)
    jobs = [Waits(text(ABC, seed)) for seed in (1, 2)]
    engine.submit([job.job for job in jobs])
    opened: list[bool] = []
    jobs[1].deliver = lambda update: opened.append(True)  # type: ignore[method-assign]
    wait = engine._wait

    def waits(seconds: float) -> bool:
        if seconds != 0.0:  # those that are left have been cancelled by now
            gate.set()
        return wait(seconds)

    engine._wait = waits  # type: ignore[method-assign]
    assert not engine.drain(0.0)
    assert [job.reason for job in jobs] == ["cancelled"] * 2
    assert len(jobs[0].told) <= 1
    engine.close()
    whole(engine)


def test_the_thread_sleeps_while_there_is_nothing_to_do() -> None:
    engine = service(Hurt(), thread=True)
    steps = []
    step = engine.step
    engine.step = lambda: (steps.append(1), step())[1]  # type: ignore[method-assign]
    job = Waits(text(ABC, 1))
    engine.submit([job.job])
    assert job.done.wait(60)
    engine.cancel(job.job)  # too late, and nobody is woken for it
    before = len(steps)
    assert not Event().wait(0.05)
    assert len(steps) == before > 0
    engine.close()


def test_nothing_is_kept_of_those_that_ended() -> None:
    engine = service(Hurt(), Lookup(), slots=4)
    ended: list[Any] = []
    for i in range(120):
        job = Listener(text([1 + i % 9, 2, 3] * 4, i + 1, 6), owner=f"owner {i}", draft_tokens=i % 3)
        ended.append(ref(job))
        engine.submit([job.job])
        engine.step()
        if i % 4 == 0:
            engine.cancel(job.job)
    while not engine.idle:
        engine.step()
    del job
    gc.collect()
    assert not any(each() for each in ended)
    scheduler: Any = engine._scheduler
    target: CachedTarget = scheduler._target
    kept: list[Any] = [
        engine._jobs, engine._cancelled, engine._waiting._of, scheduler.owners, scheduler.drafting._parts,
        scheduler._pricing._of, target._ahead, target._passes, target._reused, target.slots._of,
    ]  # fmt: skip
    assert [len(each) for each in kept] == [0] * len(kept)
    assert len(target.slots._held) == len(target.slots._owners) == 4


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"queue": -1}, {"chunk_ms": 0.0}, {"chunk_ms": float("nan")}])
def test_numbers_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        service(Hurt(), **wrong)

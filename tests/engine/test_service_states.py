"""Random lives of a service against a list of what was asked of it: after each step everything must add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foredraft.core.draft import Draft
from foredraft.core.protocols import Drafter
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.lookup import Lookup
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.none import NoDrafter
from foredraft.engine.service import Service
from foredraft.errors import Draining, Overloaded
from foredraft.models.slots import common_prefix
from foredraft.models.target import CachedTarget
from foredraft.planning.choose import Chooser
from tests.engine.serving import Breaking, Hurt, Listener, Plans, V, alone, text

pytestmark = pytest.mark.slow

SLOTS, QUEUE = 3, 6
STEMS = [[1, 2, 3, 1, 2, 3] * 8, [4, 5] * 20, [7]]
OWNERS = ("ann", "bob", "")
METHODS = ("begin", "propose", "observe", "end")


def nonsense(sequence: TokenSequence) -> Any:
    """Return something that is sometimes a draft."""
    kinds: Sequence[Any] = (Draft.chain([1, 2]), Draft.chain([V]), "a draft", Draft())
    return kinds[len(sequence) % len(kinds)]


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Hurt()
        self.target = CachedTarget(self.model, slots=2)
        draft = ModelDrafter(CachedTarget(Hurt(2), slots=2), V)
        drafters: list[Drafter | None] = [
            None, NoDrafter(), Lookup(), draft, Breaking(lambda *_: False, nonsense, "nonsense"),
            *(Breaking(lambda m, s, wrong=method: m == wrong and len(s) % 3 == 0, name=method) for method in METHODS),
        ]  # fmt: skip
        self.drafters = drafters
        self.service = Service(
            self.target, Chooser([Lookup()]), Plans(), slots=SLOTS, queue=QUEUE, thread=False, clock=lambda: 0.0
        )
        self.jobs: list[Listener] = []  # in the order in which they came
        self.wanted: dict[Listener, list[int]] = {}
        self.hurt: set[Listener] = set()  # those whose target may have failed
        self.doomed: set[Listener] = set()  # those that were cancelled: ended after the next step
        self.seen: dict[str, list[list[int]]] = {owner: [] for owner in OWNERS}  # texts that went through the cache
        self.draining = False

    @property
    def open(self) -> list[Listener]:
        return [job for job in self.jobs if not job.ended and job.job.sequence.finish_reason is None]

    @property
    def waiting(self) -> list[Listener]:
        return [job for job in self.open if job.job.admitted is None]

    @rule(
        owner=st.sampled_from(OWNERS),
        stem=st.integers(0, 2),
        tail=st.lists(st.integers(1, V - 1), min_size=1, max_size=4),
        seed=st.one_of(st.none(), st.integers(1, 3)),
        drafter=st.integers(0, 8),
        draft_tokens=st.sampled_from(["auto", 0, 1, 5]),
        length=st.integers(0, 14),
        count=st.integers(1, 3),
    )
    def submit(
        self, owner: str, stem: int, tail: list[int], seed: int | None, drafter: int, draft_tokens: Any,
        length: int, count: int,
    ) -> None:  # fmt: skip
        came = [
            Listener(
                text([*STEMS[stem], *tail], seed, length, choice),
                owner=owner, drafter=self.drafters[drafter], draft_tokens=draft_tokens,
            )
            for choice in range(count)
        ]  # fmt: skip
        if self.draining:
            with pytest.raises(Draining):
                self.service.submit([job.job for job in came])
        elif len(self.open) + count > SLOTS + QUEUE:
            with pytest.raises(Overloaded) as full:
                self.service.submit([job.job for job in came])
            assert 1 <= full.value.retry_after <= 60
        else:
            self.service.submit([job.job for job in came])
            self.jobs += came
            self.wanted.update({job: alone(Hurt(), job.job.sequence) for job in came})

    @rule()
    def step(self) -> None:
        doomed, free = self.doomed & set(self.open), SLOTS - len(self.open) + len(self.waiting)
        queued = [job for job in self.waiting if job not in doomed]
        before = [job for job in self.open if job.job.first is not None]
        told = {job: len(job.told) for job in before}
        self.service.step()
        self.model.error = None
        assert not doomed & set(self.open), "a cancelled job goes on"
        assert all(len(job.told) > told[job] or job not in self.open for job in before), "somebody was kept waiting"
        assert sum(job.job.admitted is not None for job in queued) >= min(free, len(queued)), "a slot lies idle"

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        self.service.cancel(job.job)
        if not job.ended:
            self.doomed.add(job)

    @rule(data=st.data())
    @precondition(lambda self: self.open)
    def leave(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.open))
        job.left = True

    @rule(rows=st.integers(1, 40))
    def fail(self, rows: int) -> None:
        """Let the target fail at the next pass with so many rows."""
        self.model.fails = lambda passed: sum(len(row.tokens) for row in passed) >= rows
        self.model.error = MemoryError("no more")
        self.hurt.update(self.open)
        self.step()

    @rule(slot=st.integers(0, SLOTS - 1))
    def spoil(self, slot: int) -> None:
        """Let one slot answer with NaN once."""
        self.model.spoils = lambda row: row.slot == slot
        self.hurt.update(self.open)
        self.step()
        self.model.spoils = lambda row: False

    @rule(seconds=st.sampled_from([0.0, 1.0]))
    @precondition(lambda self: len(self.jobs) > 6)
    def drain(self, seconds: float) -> None:
        left = self.open
        ended = self.service.drain(seconds)
        assert self.service.idle
        assert not seconds or ended, "a clock that stands still leaves all the time there is"
        if not ended:
            self.doomed.update(left)
        self.draining = True

    @invariant()
    def texts_are_the_targets(self) -> None:
        for job in self.jobs:
            wanted, answer = self.wanted[job], job.job.sequence.answer
            if not (job.left or job in self.hurt):
                assert job.told == answer, "not all of an answer was told"
            if job.job.sequence.error is None:
                assert answer == wanted[: len(answer)]
            if job.reason in ("stop", "length"):
                assert answer == wanted
            if job.job.sequence.finish_reason == "cancelled":
                assert job in self.doomed or job.left
            if job.reason == "error":
                assert job in self.hurt
                assert job.updates[-1].error is not None

    @invariant()
    def slots_add_up(self) -> None:
        shown, running = self.service.snapshot(), len(self.open) - len(self.waiting)
        assert (shown.running, shown.waiting) == (running, len(self.waiting))
        assert shown.free_slots == SLOTS - running
        assert self.service.idle == (not self.open)
        slots = self.target.slots
        assert len(slots) <= SLOTS
        assert slots.free == len(slots) - running
        for job in self.open:
            slot = slots.slot(job.job.sequence)
            assert (slot is None) == (job.job.admitted is None)
            if slot is not None:
                held, tokens = slots.held(slot), job.job.sequence.tokens
                assert held == tokens[: len(held)]
                assert len(held) == len(tokens) - 1 or job.job.first is None

    @invariant()
    def turns_are_fair(self) -> None:
        for owner in OWNERS:  # an owner's own jobs come in order
            own = [job for job in self.jobs if job.job.owner == owner and job not in self.doomed]
            admitted = [job.job.admitted is not None for job in own]
            assert admitted == sorted(admitted, reverse=True)

    @invariant()
    def prefixes_are_the_owners(self) -> None:
        for job in self.jobs:
            if job.job.admitted is not None:
                tokens, owner = job.job.sequence.tokens, job.job.owner
                others = [j.job.sequence.tokens for j in self.jobs if j is not job and j.job.owner == owner]
                most = max((common_prefix(tokens, other) for other in others), default=0)
                assert job.job.cached_tokens <= min(most, job.job.sequence.prompt_length - 1)

    def teardown(self) -> None:
        for _ in range(400):
            if self.service.idle:
                break
            self.service.step()
        self.slots_add_up()
        self.texts_are_the_targets()
        assert self.service.idle
        for drafter in self.drafters:
            if isinstance(drafter, Breaking):
                assert not drafter.sequences, "a drafter was never told of an end"
        assert not self.service._scheduler.drafting._parts
        assert not self.service._scheduler._pricing._of
        self.service.close()


Lives.TestCase.settings = settings(max_examples=150, stateful_step_count=40, report_multiple_bugs=False)
TestLives = Lives.TestCase

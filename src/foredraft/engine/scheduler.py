"""Jobs that hold a slot: their prompts are read a chunk at a time, their answers go on in rounds of all of them.

Belongs to one thread. What becomes of one job harms no other: a fault of the target ends those that it was asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Protocol

from foredraft.core.capabilities import EndWatch
from foredraft.core.draft import Outcome
from foredraft.core.protocols import Drafter, Watch
from foredraft.core.round import run_round
from foredraft.core.sequence import TokenSequence
from foredraft.engine.chunks import MAX_ROWS, MIN_ROWS, Chunks
from foredraft.engine.dispatch import Drafting, Plans, Pricing
from foredraft.engine.job import Job, Update
from foredraft.engine.loop import SequenceTarget


class Slotted(SequenceTarget, Protocol):
    """A target whose slots outlast their sequences, and that can be fed ahead of a round."""

    @property
    def context(self) -> int:
        """Positions that a slot can have."""
        ...

    @property
    def occupied(self) -> int:
        """How many sequences hold a slot."""
        ...

    def serve(self, slots: int) -> None:
        """Keep so many slots for re-use."""
        ...

    def check_taps(self, taps: tuple[int, ...]) -> None:
        """Raise DrafterError for a layer that is not there."""
        ...

    def reused(self, sequence: TokenSequence) -> int:
        """Return how many of its tokens lay in a sequence's slot when it began."""
        ...

    def ahead(self, sequence: TokenSequence, together: bool, taps: tuple[int, ...] = ()) -> int:
        """Return how many tokens ``score`` would feed in passes of their own before the one that answers."""
        ...

    def feed(self, sequence: TokenSequence, count: int, taps: tuple[int, ...] = ()) -> int:
        """Feed up to ``count`` tokens ahead of the next score; return how many that were."""
        ...

    def rewind(self, sequence: TokenSequence, length: int) -> None:
        """Forget all but the first tokens of a sequence."""
        ...


class Scheduler:
    """Holds up to ``slots`` jobs. ``forget`` is told of each that ended, its slot given back, before the job is.

    ``chunk_s`` is how long reading may keep the rounds of others waiting at a time, in seconds. Whoever of ``watches``
    is an ``EndWatch`` is told of every sequence that ends.
    """

    def __init__(
        self,
        target: Slotted,
        drafter: Drafter,
        plans: Plans,
        slots: int,
        chunk_s: float,
        watches: Sequence[Watch],
        forget: Callable[[Job], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.slots = slots
        self.reading: deque[Job] = deque()  # whose turn it is comes first
        self.running: list[Job] = []
        self.owners: dict[str, int] = {}  # how many slots each holds
        self.drafting = Drafting(target.vocabulary, target.check_taps, clock)
        self.rounds = 0
        self.failures = 0
        self._pricing = Pricing(plans)
        self._target = target
        self._drafter = drafter
        self._chunks = Chunks(chunk_s)
        self._watches = tuple(watches)
        self._told_of_ends = tuple(watch for watch in watches if isinstance(watch, EndWatch))
        self._forget = forget
        self._clock = clock
        target.serve(slots)

    @property
    def occupied(self) -> int:
        """How many slots the target has given away."""
        return self._target.occupied

    @property
    def jobs(self) -> list[Job]:
        """Those that hold a slot."""
        return [*self.reading, *self.running]

    @property
    def free(self) -> int:
        """How many slots there are for more."""
        return self.slots - len(self.reading) - len(self.running)

    def admit(self, job: Job) -> None:
        """Take a slot for a job, the one that spares it most."""
        job.admitted = self._clock()
        self.owners[job.owner] = self.owners.get(job.owner, 0) + 1
        self.reading.append(job)
        try:
            self._target.begin(job.sequence)
            job.cached_tokens = self._target.reused(job.sequence)
            self.drafting.add(job, self._drafter if job.drafter is None else job.drafter)
            self.drafting.begin(job.sequence)
            self._pricing.add(job)
        except Exception as error:  # whatever it is, it is this job's alone
            self._fail(job, error)
            return
        sequence = job.sequence
        if sequence.room <= 0 or sequence.finish_reason is not None:
            sequence.finish_reason = sequence.finish_reason or "length"
            self._end(job, Update(None, sequence.finish_reason, sequence.error))

    def cancel(self, job: Job) -> None:
        """End a job that holds a slot, as far as it has come."""
        if job in self.running or job in self.reading:
            job.sequence.cancel()
            self._end(job, Update(None, "cancelled"))

    def read(self) -> None:
        """Read on in the prompts, one after the other, as much as those that are running can wait for."""
        rows = self._chunks.rows if self.running else MAX_ROWS
        for job in tuple(self.reading):
            lacks = self._lacks(job)
            if lacks and rows >= MIN_ROWS:
                rows -= self._feed(job, min(rows, lacks))
                if job.sequence.finish_reason is not None:
                    continue
                self.reading.remove(job)
                self.reading.append(job)
                lacks = self._lacks(job)
            if not lacks:
                self.reading.remove(job)
                self.running.append(job)

    def round(self) -> None:
        """Run a round of all whose prompt was read."""
        batch = tuple(self.running)
        if not batch:
            return
        self.rounds += 1
        sequences = [job.sequence for job in batch]
        try:
            outcomes = run_round(sequences, self._target, self.drafting, self._pricing, self._watches)
        except Exception as error:  # the target's, or that of whoever looks on: nobody knows what was committed
            for job in batch:
                self._fail(job, error)
            return
        for job, outcome in zip(batch, outcomes, strict=True):
            self._note(job, outcome)

    def check(self) -> None:
        """Assert that slots are held by those jobs that are under way, and by nobody else."""
        count = len(self.jobs)
        assert self._target.occupied == count == sum(self.owners.values()), "a slot was lost"
        assert all(job.sequence.finish_reason is None for job in self.jobs), "a job that ended holds a slot"

    def fail_all(self, error: Exception) -> None:
        """End every job, for a fault that is nobody's."""
        for job in self.jobs:
            try:
                self._fail(job, error)
            except Exception:  # it was said, and there is nothing more to do about it
                continue

    def _lacks(self, job: Job) -> int:
        """Return how many tokens of a prompt are to be read before the job can join a round."""
        together = bool(self.running) or len(self.reading) > 1
        return self._target.ahead(job.sequence, together, self.drafting.taps)

    def _feed(self, job: Job, count: int) -> int:
        began = self._clock()
        try:
            fed = self._target.feed(job.sequence, count, self.drafting.taps_of(job.sequence))
        except Exception as error:  # as above
            self._fail(job, error)
            return count
        self._chunks.learn(fed, self._clock() - began)
        return fed

    def _note(self, job: Job, outcome: Outcome) -> None:
        """Tell a job what a round brought it, and end it where that was the last."""
        if outcome.finish_reason == "error":
            self.failures += 1
        elif job.first is None:
            job.first = self._clock()
        else:
            job.decisions[len(outcome.draft)] = job.decisions.get(len(outcome.draft), 0) + 1
        update = Update(outcome, outcome.finish_reason, job.sequence.error)
        if outcome.finish_reason is not None:
            self._end(job, update)
            return
        try:
            job.deliver(update)
        except Exception:  # nobody listens any more
            job.sequence.cancel()
            self._end(job, None)

    def _fail(self, job: Job, error: Exception) -> None:
        """End a job for a fault; what its slot holds may be why, so that nobody gets it."""
        job.sequence.fail(error)
        self.failures += 1
        self._target.rewind(job.sequence, 0)
        self._end(job, Update(None, "error", error))

    def _end(self, job: Job, update: Update | None) -> None:
        """Give the slot back, then say so."""
        (self.running if job in self.running else self.reading).remove(job)
        self.owners[job.owner] -= 1
        if not self.owners[job.owner]:
            del self.owners[job.owner]
        with ExitStack() as ends:  # all of them, the last first, whatever happens at one
            ends.callback(tell, job, update)
            ends.callback(self._forget, job)
            ends.callback(self._target.end, job.sequence)
            for watch in self._told_of_ends:
                ends.callback(watch.end, job.sequence)
            ends.callback(self._pricing.end, job.sequence)
            ends.callback(self.drafting.end, job.sequence)


def tell(job: Job, update: Update | None) -> None:
    """Deliver the last update of a job, if there is one. Whoever does not hear it has left."""
    if update is not None:
        try:
            job.deliver(update)
        except Exception:  # as above
            return

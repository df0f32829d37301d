"""The engine of a server: jobs come from any thread, one thread of its own serves them, and sleeps when there are none.

A step of that thread hears who was cancelled, gives free slots to those that wait, reads on in prompts for as long as
the running answers may wait, and runs a round of these. docs/serving.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from threading import Condition, Thread, current_thread
from time import perf_counter
from typing import Final

from foredraft.core.protocols import Drafter, Round, Watch
from foredraft.engine.admission import Waiting
from foredraft.engine.contain import contain
from foredraft.engine.dispatch import Plans
from foredraft.engine.job import Job, Snapshot, Update
from foredraft.engine.scheduler import Scheduler, Slotted, tell
from foredraft.engine.watches.tally import Tally
from foredraft.errors import Draining, OptionError, Overloaded

__all__ = ["Job", "Service", "Snapshot", "Update"]

CHUNK_MS: Final = 12.0
_GAIN: Final = 0.1
_MAX_WAIT: Final = 60.0  # seconds that anybody is told to wait
_GRACE: Final = 10.0  # seconds in which what was cancelled must have ended


class Service:
    """Serves jobs over the slots of one target, ``slots`` at a time; up to ``queue`` more wait.

    ``drafter`` is that of jobs which name none, ``plans`` gives the planner of a draft length
    (``foredraft.runtime.planner.Planning``). Reading a prompt keeps running answers waiting for about ``chunk_ms``
    milliseconds at a time. ``watches`` see every round. Without ``thread`` nothing happens but in ``step``. The target,
    and all that drafts, belong to the service until it is closed. Raises OptionError for a number that cannot be.
    """

    def __init__(
        self,
        target: Slotted,
        drafter: Drafter,
        plans: Plans,
        *,
        slots: int = 8,
        queue: int = 256,
        chunk_ms: float = CHUNK_MS,
        watches: Sequence[Watch] = (),
        thread: bool = True,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if slots < 1 or queue < 0 or not 0.0 < chunk_ms < math.inf:
            raise OptionError(f"{slots} slots, a queue of {queue} and chunks of {chunk_ms} ms cannot be")
        self._wake = Condition()
        self._waiting = Waiting(queue)
        self._jobs: set[Job] = set()
        self._cancelled: set[Job] = set()
        self._draining = False
        self._closed = False
        self._held_s = 1.0  # seconds that a job has held a slot of late
        self._tally = Tally()
        self._context = target.context
        self._clock = clock
        watches = (_Locked(self._tally, self._wake), *watches)
        self._scheduler = Scheduler(target, drafter, plans, slots, chunk_ms / 1000, watches, self._forget, clock)
        self._thread = Thread(target=self._run, name="foredraft-engine", daemon=True) if thread else None
        if self._thread is not None:
            self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Let jobs wait for a slot: all of them or none. Raises Overloaded or Draining."""
        with self._wake:
            if self._draining:
                raise Draining("the service is about to end and takes nothing more")
            slots = self._scheduler.slots
            if len(self._jobs) + len(jobs) > slots + self._waiting.most:  # whoever finds a free slot hardly waits
                seconds = self._held_s * (len(self._waiting) + len(jobs)) / slots
                raise Overloaded(
                    f"{len(self._waiting)} answers wait already, and there is room for {self._waiting.most}",
                    float(math.ceil(min(_MAX_WAIT, max(1.0, seconds)))),
                )
            for job in jobs:
                job.sequence.owner = job.owner
                job.sequence.limit = min(job.sequence.limit, self._context)
                contain(job.sequence)
            self._jobs.update(jobs)
            self._waiting.add(jobs)
            self._wake.notify_all()

    def cancel(self, job: Job) -> None:
        """End a job; its slot is free after the round under way, and its last update says "cancelled".

        One that has ended, or that was never submitted, is left as it is.
        """
        with self._wake:
            if job in self._jobs:
                self._cancelled.add(job)
                self._wake.notify_all()

    def snapshot(self) -> Snapshot:
        """Return how the service is."""
        with self._wake:
            tally, scheduler = deepcopy(self._tally), self._scheduler
            waiting = len(self._waiting)
            running = len(self._jobs) - waiting
            assert self._jobs or not scheduler.occupied, "nobody is served, and yet a slot is taken"
            return Snapshot(
                running=running,
                reading=min(running, len(scheduler.reading)),
                waiting=waiting,
                free_slots=scheduler.slots - scheduler.occupied,
                slots=scheduler.slots,
                rounds=scheduler.rounds,
                passes=tally.passes,
                answers=tally.answers,
                tokens=tally.tokens,
                drafts=tally.by_drafter,
                faults=dict(scheduler.drafting.faults),
                failures=scheduler.failures,
                load=len(self._jobs) / scheduler.slots,
            )

    @property
    def idle(self) -> bool:
        """Whether there is no job at all."""
        return not self._jobs

    def step(self) -> None:
        """Do what there is to do, once: for the engine's thread, or whoever made the service without one."""
        self._hear()
        self._admit()
        self._scheduler.read()
        self._scheduler.round()
        self._check()

    def drain(self, seconds: float) -> bool:
        """Take nothing more, let what is there end within so many seconds, then cancel what is left.

        Returns whether all have ended by themselves. Not for the engine's own thread.
        """
        with self._wake:
            self._draining = True
        if self._wait(seconds):
            return True
        with self._wake:
            self._cancelled |= self._jobs
            self._wake.notify_all()
        self._wait(_GRACE)
        return False

    def close(self) -> None:
        """Cancel what there is and end the thread. Closing twice is fine."""
        self.drain(0.0)
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(_GRACE)

    def _wait(self, seconds: float) -> bool:
        """Wait until there is no job, or for so long; say which."""
        if self._thread is not None:
            with self._wake:
                return self._wake.wait_for(lambda: not self._jobs, seconds)
        end = self._clock() + seconds
        while self._jobs and self._clock() < end:
            self.step()
        return not self._jobs

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
            try:
                self.step()
            except Exception as error:  # ours: whoever is under way is told, and the next are served
                self._collapse(error)

    def _hear(self) -> None:
        """End those that were cancelled."""
        if not self._cancelled:  # the usual case needs no lock: whoever comes too late is heard in the next step
            return
        with self._wake:
            cancelled, self._cancelled = self._cancelled, set()
            gone = [job for job in cancelled if self._waiting.remove(job)]
        for job in gone:
            job.sequence.cancel()
            self._forget(job)
            tell(job, Update(None, "cancelled"))
        for job in cancelled.difference(gone):
            self._scheduler.cancel(job)

    def _admit(self) -> None:
        """Give free slots to those that wait."""
        while self._scheduler.free:
            with self._wake:
                job = self._waiting.take(self._scheduler.owners)
            if job is None:
                return
            self._scheduler.admit(job)

    def _forget(self, job: Job) -> None:
        """Drop a job that has ended."""
        with self._wake:
            self._jobs.discard(job)
            self._cancelled.discard(job)
            if job.admitted is not None:
                self._held_s += _GAIN * (self._clock() - job.admitted - self._held_s)
            self._wake.notify_all()

    def _collapse(self, error: Exception) -> None:
        """End all that are under way, and those that nobody knows where they are."""
        self._scheduler.fail_all(error)
        with self._wake:
            lost = [job for job in self._jobs if job not in self._waiting]
        for job in lost:
            job.sequence.fail(error)
            self._forget(job)
            tell(job, Update(None, "error", error))

    def _check(self) -> None:
        self._scheduler.check()
        with self._wake:
            assert len(self._jobs) == len(self._waiting) + len(self._scheduler.jobs), "a job was lost"


class _Locked:
    """A tally that counts while nobody reads it."""

    def __init__(self, tally: Tally, lock: Condition) -> None:
        self._tally = tally
        self._lock = lock

    def see(self, done: Round) -> None:
        with self._lock:
            self._tally.see(done)

"""Jobs that wait for a slot: a bounded number, and fair between owners."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from foredraft.engine.job import Job


class Waiting:
    """A queue, of at most ``most`` jobs beside those for whom a slot is free.

    Next is whoever holds the fewest slots, of several the one who was served the longest ago; an owner's own jobs keep
    their order. Knows nothing of an owner who has nothing in it.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._of: dict[str, deque[Job]] = {}  # owners, the one served the longest ago first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, job: Job) -> bool:
        return job in self._of.get(job.owner, ())

    def add(self, jobs: Sequence[Job]) -> None:
        """Let jobs wait."""
        for job in jobs:
            self._of.setdefault(job.owner, deque()).append(job)
        self._count += len(jobs)

    def take(self, held: Mapping[str, int]) -> Job | None:
        """Return the next job, or None. ``held`` says how many slots owners hold; who is not in it holds none."""
        owner = min(self._of, key=lambda name: held.get(name, 0), default=None)
        if owner is None:
            return None
        own = self._of.pop(owner)
        job = own.popleft()
        self._count -= 1
        if own:
            self._of[owner] = own
        return job

    def remove(self, job: Job) -> bool:
        """Take one job out; say whether it was there."""
        if job not in self:
            return False
        own = self._of[job.owner]
        own.remove(job)
        self._count -= 1
        if not own:
            del self._of[job.owner]
        return True

"""What is served: a job is one answer on its way, an update what a round brought it, a snapshot how the service is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from foredraft.core.draft import Outcome
from foredraft.core.protocols import Drafter
from foredraft.core.sequence import TokenSequence
from foredraft.engine.watches.tally import Count


@dataclass(frozen=True, slots=True)
class Update:
    """What one round, or the end, brought one job. Made on the engine's thread.

    ``outcome`` is None where the job ended outside a round. ``finish_reason`` is "stop", "length", "error",
    "cancelled", or None while it goes on; ``error`` says why for "error".
    """

    outcome: Outcome | None
    finish_reason: str | None
    error: Exception | None = None


@dataclass(eq=False, slots=True)
class Job:
    """One answer; a request of n answers is n jobs.

    ``deliver`` is told each update on the engine's thread and must not block; a job whose ``deliver`` raises is
    cancelled, and told nothing more. ``drafter`` None is the service's own, ``draft_tokens`` a fixed length or "auto".
    A prefix in the cache serves only the ``owner`` whose text it is. The rest is the service's to fill: times are those
    of ``time.perf_counter``, ``decisions`` how many rounds after the first guessed so many tokens, ``drafting_fault``
    why the drafter was dropped for this job, if it was.
    """

    sequence: TokenSequence
    deliver: Callable[[Update], None]
    drafter: Drafter | None = None
    draft_tokens: int | str = "auto"
    owner: str = ""
    admitted: float | None = field(default=None, init=False)
    first: float | None = field(default=None, init=False)
    cached_tokens: int = field(default=0, init=False)
    decisions: dict[int, int] = field(default_factory=dict, init=False)
    drafting_fault: Exception | None = field(default=None, init=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a service is now, and what it has done since it began.

    ``running`` jobs hold a slot, ``reading`` of them are still at their prompt. ``passes`` counts a pass once for each
    answer that it went on with, ``tokens`` those of all answers, ``answers`` those that have a first token. ``drafts``
    tells by drafter its rounds, guesses and how many were accepted at each depth; ``faults`` how often one was dropped
    for a job; ``failures`` how many jobs a fault of the target ended. ``load`` is the share of the slots that is asked
    for: above 1, jobs wait.
    """

    running: int
    reading: int
    waiting: int
    free_slots: int
    slots: int
    rounds: int
    passes: int
    answers: int
    tokens: int
    drafts: Mapping[str, Count]
    faults: Mapping[str, int]
    failures: int
    load: float

"""A batch in which every job has a drafter and a draft length of its own, as one drafter and one planner.

Nothing that a drafter does is fatal here: one that raises, answers nonsense or hangs is dropped for the job, and the
answer goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Protocol

from foredraft.core.capabilities import Sharing
from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter, Planner, Quote, Round
from foredraft.core.round import check_unchanged, drafts_of
from foredraft.core.sequence import TokenSequence
from foredraft.engine.job import Job

NOTHING: Final = Draft()
_SECONDS: Final = 2.0  # that a draft may take before its drafter is dropped
_READING: Final = 0.01  # and more for each token of text that the drafter has not seen


class Plans(Protocol):
    """Where planners come from."""

    def planner(self, length: int | None) -> Planner:
        """Return the planner of a fixed length, or where that is None the one that decides."""
        ...


@dataclass(slots=True)
class _Part:
    """One job's drafter. ``asks`` proposes and observes: of wrappers of one drafter, the drafter that they share."""

    job: Job
    drafter: Drafter
    asks: Drafter
    seen: int = 0
    dropped: bool = False


@dataclass(slots=True)
class _Turn:
    """A sequence that is asked for, with its place in the batch."""

    place: int
    part: _Part
    quote: Quote
    noise: Noise


class Drafting:
    """The drafters of a batch as one. ``faults`` counts, by drafter, for how many jobs it was dropped.

    Jobs with one drafter are asked for together, those whose drafters are ``Sharing`` one too. ``check_taps`` raises
    for layers that cannot be tapped.
    """

    name = "batch"

    def __init__(
        self, vocabulary: int, check_taps: Callable[[tuple[int, ...]], None], clock: Callable[[], float] = perf_counter
    ) -> None:
        self.taps: tuple[int, ...] = ()
        self.faults: dict[str, int] = {}
        self._vocabulary = vocabulary
        self._check_taps = check_taps
        self._clock = clock
        self._parts: dict[TokenSequence, _Part] = {}

    def add(self, job: Job, drafter: Drafter) -> None:
        """Say who drafts for a job, before its sequence begins."""
        self._parts[job.sequence] = _Part(job, drafter, drafter.shared if isinstance(drafter, Sharing) else drafter)

    def taps_of(self, sequence: TokenSequence) -> tuple[int, ...]:
        """Return the layers that the drafter of a sequence wants to see."""
        part = self._parts[sequence]
        return () if part.dropped else tuple(part.drafter.taps)

    def begin(self, sequence: TokenSequence) -> None:
        """Let its drafter meet the sequence."""
        part = self._parts[sequence]
        try:
            self._check_taps(tuple(part.drafter.taps))
            part.drafter.begin(sequence)
        except Exception as error:  # a drafter may break in any way
            self._drop(part, error)
        self._tap()

    def propose(
        self, sequences: Sequence[TokenSequence], quotes: Sequence[Quote], noises: Sequence[Noise]
    ) -> list[Draft]:
        """Return a draft a sequence: an empty one where its drafter was dropped."""
        drafts = [NOTHING] * len(sequences)
        groups: dict[int, list[_Turn]] = {}
        for i, (sequence, quote, noise) in enumerate(zip(sequences, quotes, noises, strict=True)):
            part = self._parts[sequence]
            if not part.dropped:
                groups.setdefault(id(part.asks), []).append(_Turn(i, part, quote, noise))
        for turns in groups.values():
            try:
                answers = self._ask(turns)
            except Exception as error:  # as above
                answers = self._each(turns, error)
            for turn, draft in zip(turns, answers, strict=True):
                drafts[turn.place] = draft
        return drafts

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Let each job's drafter see what became of its own draft: one at a time, to know whose fault one is."""
        for i, (sequence, outcome) in enumerate(zip(sequences, outcomes, strict=True)):
            part = self._parts[sequence]
            if part.dropped:
                continue
            earlier = scored.earlier[i : i + 1]
            try:
                part.asks.observe(
                    [sequence], [outcome], Scored(scored.logits, scored.starts[i : i + 1], scored.hidden, earlier)
                )
            except Exception as error:  # as above
                self._drop(part, error)

    def end(self, sequence: TokenSequence) -> None:
        """Let its drafter forget the sequence. What one that was dropped says to that is no news."""
        part = self._parts.pop(sequence, None)
        if part is None:
            return
        try:
            part.drafter.end(sequence)
        except Exception as error:  # as above
            if not part.dropped:
                self._drop(part, error)
        self._tap()

    def _ask(self, turns: Sequence[_Turn]) -> list[Draft]:
        """Return the drafts of one drafter for some sequences, known to be drafts. Raises what the drafter does."""
        drafter = turns[0].part.asks
        sequences = [turn.part.job.sequence for turn in turns]
        texts = [list(sequence.tokens) for sequence in sequences]
        behind = sum(len(text) - turn.part.seen for text, turn in zip(texts, turns, strict=True))
        began = self._clock()
        try:
            answer = drafter.propose(sequences, [turn.quote for turn in turns], [turn.noise for turn in turns])
        finally:
            _restore(drafter.name, sequences, texts)
        seconds = self._clock() - began
        drafts = drafts_of(answer, drafter.name, [turn.quote.limit for turn in turns], self._vocabulary)
        for turn, text in zip(turns, texts, strict=True):
            turn.part.seen = len(text)
            if seconds > _SECONDS + _READING * behind:  # these drafts stand, for they were drawn; there are no more
                self._drop(turn.part, TimeoutError(f"a draft took {seconds:.1f} s"))
        return drafts

    def _each(self, turns: Sequence[_Turn], error: Exception) -> list[Draft]:
        """Ask for the sequences of a group that failed one by one, and drop the drafter for those that it fails on."""
        drafts: list[Draft] = []
        for turn in turns:
            draft = NOTHING
            try:
                if len(turns) == 1:
                    raise error
                (draft,) = self._ask([turn])
            except Exception as own:  # as above
                self._drop(turn.part, own)
            drafts.append(draft)
        return drafts

    def _drop(self, part: _Part, error: Exception) -> None:
        part.dropped, part.job.drafting_fault = True, error
        name = str(part.drafter.name)
        self.faults[name] = self.faults.get(name, 0) + 1
        self._tap()

    def _tap(self) -> None:
        taps = {tap for part in self._parts.values() if not part.dropped for tap in part.drafter.taps}
        self.taps = tuple(sorted(taps))


def _restore(name: str, sequences: Sequence[TokenSequence], texts: Sequence[list[int]]) -> None:
    """Undo what a drafter did to sequences, which it may only read. Raises DrafterError if it did something."""
    try:
        check_unchanged(name, sequences, [len(text) for text in texts])
    finally:
        for sequence, text in zip(sequences, texts, strict=True):
            if len(sequence) != len(text):
                sequence.tokens[:] = text


class Pricing:
    """The planners of a batch as one: each prices the whole batch, so that rows have one price, and answers its own."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._of: dict[TokenSequence, Planner] = {}

    def add(self, job: Job) -> None:
        """Say how long the drafts of a job may be."""
        length = None if isinstance(job.draft_tokens, str) else job.draft_tokens
        self._of[job.sequence] = self._plans.planner(length)

    def end(self, sequence: TokenSequence) -> None:
        """Forget a sequence."""
        self._of.pop(sequence, None)

    def quote(self, sequences: Sequence[TokenSequence]) -> list[Quote]:
        """Price one more guess for each sequence, by its own planner."""
        planners = [self._of[sequence] for sequence in sequences]
        quotes = {id(planner): planner.quote(sequences) for planner in _different(planners)}
        return [quotes[id(planner)][i] for i, planner in enumerate(planners)]

    def record(self, done: Round) -> None:
        """Let each planner that priced something learn from the round."""
        for planner in _different([self._of[sequence] for sequence in done.sequences]):
            planner.record(done)


def _different(planners: Sequence[Planner]) -> list[Planner]:
    return list({id(planner): planner for planner in planners}.values())

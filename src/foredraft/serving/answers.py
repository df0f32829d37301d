"""The answers to one request of a server on their way: updates of the engine become text and figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter

from foredraft.core.protocols import Drafter
from foredraft.engine.job import Job, Update
from foredraft.engine.watches.tally import summed
from foredraft.errors import Draining, ServiceError
from foredraft.options import Settings
from foredraft.result import TokenLogprob
from foredraft.runtime.copy_sources import predicted
from foredraft.runtime.request import Request, token_logprob
from foredraft.server.backend import Delta, GenerateRequest, Pace, ScoredPrompt, Summary
from foredraft.serving.engine import Engine
from foredraft.serving.scoring import PromptScores


class OneAnswer:
    """One answer (``server.seam.Answer``). Its text grows on the engine's thread; ``take`` is for any one other."""

    def __init__(
        self, engine: Engine, prompt: int, request: Request, asked: GenerateRequest, settings: Settings
    ) -> None:
        self.prompt = prompt
        self.submitted = 0.0
        self.ended = 0.0
        self.job = Job(request.sequence, self._deliver, owner=asked.owner)
        self._engine = engine
        self._request = request
        self._shown = 0
        self._deltas: deque[Delta] = deque()
        self._notify: Callable[[], None] = _nobody
        self._logprobs = settings.logprobs
        if asked.ignore_eos:
            request.sequence.stop_ids = settings.stop_token_ids

    def begin(self, notify: Callable[[], None]) -> Job:
        """Return the job, ready to be submitted."""
        if self._logprobs is not None:
            self._request.scores = self._engine.recorder.want(self._request.sequence, self._logprobs)
        self._notify = notify
        self.submitted = self.ended = perf_counter()
        return self.job

    def take(self) -> list[Delta]:
        """Return what has come since the last time."""
        found = []
        while self._deltas:
            found.append(self._deltas.popleft())
        return found

    @property
    def notice(self) -> str | None:
        """That its drafter was dropped, and why; None where it was not."""
        error = self.job.drafting_fault
        return None if error is None else f"the drafter was dropped: {error}"

    def _deliver(self, update: Update) -> None:
        """Take an update: on the engine's thread, where the text grows too, so that no reader meets it half grown."""
        request, outcome = self._request, update.outcome
        self.ended = perf_counter()
        request.cached_tokens = self.job.cached_tokens
        if outcome is not None:
            request.take(outcome)
        elif update.finish_reason is not None:
            request.answer.finish()
        if update.finish_reason is not None:
            self._engine.recorder.end(request.sequence)  # one that never had a slot is none of the engine's to forget
        pieces = tuple(request.answer.release(request.sequence.answer, request.origins))
        shown = self._shown
        self._shown += len(pieces)
        self._deltas.append(
            Delta(
                pieces=pieces,
                logprobs=self._scores(shown, self._shown),
                tokens=0 if outcome is None else len(outcome.tokens),
                at=self.ended,
                finish_reason=update.finish_reason,
                error=update.error,
            )
        )
        self._notify()

    def _scores(self, start: int, end: int) -> tuple[TokenLogprob, ...] | None:
        if self._request.scores is None:
            return None
        return tuple(token_logprob(score, self._engine.tokenizer) for score in self._request.scores[start:end])


class Answers:
    """The answers to one request (``server.seam.Exchange``)."""

    def __init__(
        self,
        engine: Engine,
        asked: GenerateRequest,
        settings: Settings,
        drafter: Drafter,
        requests: Sequence[Sequence[Request]],
    ) -> None:
        self._engine = engine
        self._asked = asked
        self._settings = settings
        self._drafter = drafter
        self._requests = requests
        self._scores: list[PromptScores] = []
        if asked.scored is not None:
            for each in requests:
                self._scores.append(PromptScores(each[0].sequence.tokens, asked.scored, asked.owner, engine.recorder))
        length = engine.runtime.draft_length(settings, drafter)
        self.answers = [
            OneAnswer(engine, i, request, asked, settings)
            for i, each in enumerate(requests if asked.generate else ())
            for request in each
        ]
        for answer in self.answers:
            answer.job.drafter = drafter
            answer.job.draft_tokens = "auto" if length is None else length

    @property
    def prompts(self) -> list[ScoredPrompt]:
        """The prompts, with what is wanted of them; their log-probabilities once they have been scored."""
        tokenizer, prompts = self._engine.tokenizer, []
        for i, (asked, each) in enumerate(zip(self._asked.prompts, self._requests, strict=True)):
            ids = each[0].sequence.tokens[: each[0].sequence.prompt_length]
            text, scores = "", None
            tokens: tuple[str, ...] = ()
            if self._asked.echo:
                text = asked if isinstance(asked, str) else tokenizer.decode(ids)
            if self._scores:
                tokens = tuple(tokenizer.token_text(token) for token in ids)
                scores = tuple(token_logprob(score, tokenizer) for score in self._scores[i].scores)
            prompts.append(ScoredPrompt(text, tuple(ids), tokens, scores))
        return prompts

    def score(self, notify: Callable[[], None]) -> None:
        """Begin to score the prompts. Raises Overloaded or Draining."""
        jobs = [score.make(notify) for score in self._scores if not score.done]
        self._submit(jobs)

    @property
    def scored(self) -> bool:
        """Whether every prompt has its scores. Raises what kept one from having them."""
        for score in self._scores:
            if score.cancelled:
                raise Draining("the server is about to end")
            if score.error is not None:
                raise score.error
        return all(score.done for score in self._scores)

    def start(self, notify: Callable[[], None]) -> None:
        """Begin to answer. Raises Overloaded or Draining."""
        self._submit([answer.begin(notify) for answer in self.answers])

    def cancel(self) -> None:
        """End what has not ended."""
        for job in [score.job for score in self._scores] + [answer.job for answer in self.answers]:
            if job is not None:
                self._engine.service.cancel(job)

    def _submit(self, jobs: Sequence[Job]) -> None:
        try:
            self._engine.service.submit(jobs)
        except ServiceError:
            for job in jobs:
                self._engine.recorder.end(job.sequence)
            raise

    def summary(self) -> Summary:
        """Return what it came to, once every answer has ended."""
        runtime, settings, drafter = self._engine.runtime, self._settings, self._drafter
        firsts = [each[0] for each in self._requests]
        sequences = [request.sequence for each in self._requests for request in each]
        copied = None if settings.prediction is None else predicted(drafter, sequences)
        tally = summed([first.tally for first in firsts])
        context = max(len(first.sequence) for first in firsts)
        speculative, plain = runtime.speculative(tally, settings, drafter, context)
        notices = runtime.notices_for(settings, drafter, copied) if self.answers else []
        notices += [said for answer in self.answers if (said := answer.notice) is not None]
        return Summary(
            prompt_tokens=sum(first.sequence.prompt_length for first in firsts),
            cached_tokens=sum(first.cached_tokens for first in firsts),
            completion_tokens=sum(len(s) - s.prompt_length for s in sequences),
            prediction=copied,
            speculative=speculative,
            pace=self._pace(tally.tokens - tally.answers, plain),
            notices=list(dict.fromkeys(notices)),
        )

    def _pace(self, decoded: int, plain: float | None) -> Pace:
        jobs = [answer.job for answer in self.answers]
        admitted = min((job.admitted for job in jobs if job.admitted is not None), default=None)
        first = min((job.first for job in jobs if job.first is not None), default=None)
        if admitted is None or first is None:
            return Pace(None, None, None, None, plain, None)
        queued = admitted - min(answer.submitted for answer in self.answers)
        decode = max(answer.ended for answer in self.answers) - first
        speed = decoded / decode if decode > 0 and decoded else None
        faster = speed / plain if speed and plain and len(jobs) == 1 else None
        return Pace(max(0.0, queued), first - admitted, decode, speed, plain, faster)


def _nobody() -> None:
    """Tell nobody."""

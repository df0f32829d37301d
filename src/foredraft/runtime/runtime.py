"""One loaded model, whoever asks it: in Python (``api``) or over HTTP (``serving``)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any

from foredraft.core.protocols import Drafter, Planner, Watch
from foredraft.engine.loop import run
from foredraft.engine.watches.law_watch import LawWatch
from foredraft.engine.watches.logprobs import LogprobRecorder
from foredraft.engine.watches.tally import Tally
from foredraft.options import Settings
from foredraft.result import Predicted, Result, Speculative, Timings
from foredraft.runtime.copy_sources import informed, predicted, uninformed
from foredraft.runtime.drafters import Drafters, slower_paths
from foredraft.runtime.loaded_model import LoadedModel, Machine, open_model
from foredraft.runtime.notices import notices_of
from foredraft.runtime.planner import Planning
from foredraft.runtime.recent_text import RecentText
from foredraft.runtime.request import Request, Requests
from foredraft.system.files import Progress

Onlooker = Callable[[Planner], Watch]  # makes the watch of one generation, told its planner


class Runtime:
    """A loaded model and all that answers are made with: drafters, planner, recent text, requests, watches.

    ``drafters`` says who drafts under which options, ``planning`` how far, ``requests`` makes sequences of prompts.
    ``watch`` keeps testing the text's law, where that was asked for; each of ``onlookers`` makes a watch of one
    generation. Not safe for use from two threads at once.
    """

    def __init__(
        self, loaded: LoadedModel, drafters: Drafters, recent_text: RecentText, watch: LawWatch | None = None
    ) -> None:
        self.loaded = loaded
        self.drafters = drafters
        self.recent_text = recent_text
        self.planning = Planning(loaded)
        self.requests = Requests(loaded)
        self.watch = watch
        self.onlookers: list[Onlooker] = []
        self.load_s = 0.0

    @property
    def slower_paths(self) -> list[str]:
        """What runs slower here than it could, and why; empty as a rule."""
        return ([] if self.loaded.notice is None else [self.loaded.notice]) + slower_paths(self.drafters.default)

    def drafter_for(self, settings: Settings) -> Drafter:
        """Return the drafter of one generation, told what else it may copy from. Raises DrafterError or OptionError."""
        return informed(self.drafters.of(settings), self.requests.prediction(settings), settings.cache_scope)

    def draft_length(self, settings: Settings, drafter: Drafter) -> int | None:
        """Return how many guesses a round may have; None where the planner decides."""
        return self.drafters.length(settings, drafter)

    def rounds(
        self, requests: Sequence[Request], settings: Settings, drafter: Drafter, tally: Tally
    ) -> Generator[None, None, None]:
        """Run requests to their end, a round a step; each request's own tally and text have grown after it."""
        of = {request.sequence: request for request in requests}
        planner = self.planning.planner(self.draft_length(settings, drafter))
        watches: list[Watch] = [tally, *([self.watch] if self.watch else []), *(a(planner) for a in self.onlookers)]
        if settings.logprobs is not None:
            watches.append(recorder := LogprobRecorder(self.loaded.sampler.logprobs))
            for request in requests:
                request.scores = recorder.want(request.sequence, settings.logprobs)
        with closing(run([r.sequence for r in requests], self.loaded.target, drafter, planner, watches)) as rounds:
            for outcomes in rounds:
                for sequence, outcome in outcomes:
                    request = of[sequence]
                    if not request.origins:
                        request.cached_tokens = self.loaded.target.reused(sequence)
                    request.take(outcome)
                yield

    def result_of(self, requests: Sequence[Request], settings: Settings, drafter: Drafter, tally: Tally) -> Result:
        """Return what the answers to one prompt came to; ``tally`` is that of all prompts that ran together."""
        loaded, first = self.loaded, requests[0]
        choices = [request.choice(loaded.tokenizer) for request in requests]
        copied = None if settings.prediction is None else predicted(drafter, [r.sequence for r in requests])
        speculative, plain = self.speculative(first.tally, settings, drafter, len(first.sequence))
        return Result(
            model=loaded.name,
            system_fingerprint=loaded.fingerprint,
            tier=loaded.tier,
            dtype=loaded.dtype,
            drafter=drafter.name,
            rule="coupled" if first.sequence.noise.coupled else "ratio",
            seed=settings.seed,
            prompt_tokens=first.sequence.prompt_length,
            cached_tokens=first.cached_tokens,
            completion_tokens=sum(len(choice.token_ids) for choice in choices),
            speculative=speculative,
            timings=Timings.of(tally, self.load_s, plain),
            choices=choices,
            notices=self.notices_for(settings, drafter, copied),
            prediction=copied,
        )

    def speculative(
        self, tally: Tally, settings: Settings, drafter: Drafter, context: int
    ) -> tuple[Speculative, float | None]:
        """Return what speculation did for texts of ``context`` tokens, and the tokens a second of plain decoding.

        The latter is None where it was never measured.
        """
        own = uninformed(drafter)
        pace = self.planning.pace(tally, own, context)
        return Speculative.of(
            tally, self.drafters.no_speculation_reason(settings, drafter) or pace.reason
        ), pace.plain_tokens_per_s

    def notices_for(self, settings: Settings, drafter: Drafter, copied: Predicted | None) -> list[str]:
        """Say what a user may not expect of the options he gave, and what the watch has found."""
        alarms = [] if self.watch is None or self.watch.notice is None else [self.watch.notice]
        return notices_of(settings, self.drafters, uninformed(drafter), copied) + alarms


def open_runtime(
    model: Any,
    machine: Machine,
    *,
    drafter: str | Drafter,
    draft_tokens: int | None,
    draft_temperature: float | None,
    tokenizer: Any,
    watch: bool,
    cache_tokens: int,
    share_cache: bool,
    progress: Progress | None,
) -> Runtime:
    """Load a model and its default drafter; see ``foredraft.load``, which has checked the options.

    Raises ModelError, DrafterError, FetchError, StorageError or OptionError.
    """
    began = perf_counter()
    loaded = open_model(model, machine, tokenizer, progress)
    recent_text = RecentText(
        loaded.tokenizer, loaded.target.vocabulary, machine.cache_folder, cache_tokens, share_cache
    )
    drafters = Drafters(loaded, machine, drafter, draft_tokens, draft_temperature, recent_text.memory, progress)
    if loaded.folder is not None:
        loaded.folder.close()  # target and heads have taken what they need
    runtime = Runtime(loaded, drafters, recent_text, LawWatch() if watch else None)
    runtime.load_s = perf_counter() - began
    return runtime

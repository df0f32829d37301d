"""Load a model and ask it: ``load``, ``LanguageModel.generate`` and ``stream``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any, Unpack, overload

from foredraft.checks import switch
from foredraft.core.protocols import Drafter, Planner, Watch
from foredraft.engine.law_watch import LawWatch
from foredraft.engine.logprobs import LogprobRecorder
from foredraft.engine.loop import run
from foredraft.engine.tally import Tally
from foredraft.engine.text import Piece
from foredraft.errors import OptionError, PromptError, TokenizerError
from foredraft.options import Options, Settings, draft_length, draft_warmth, settle
from foredraft.prompts import Prompt, is_batch
from foredraft.result import Predicted, Result, Speculative, Timings
from foredraft.runtime.copy_sources import informed, predicted, uninformed
from foredraft.runtime.custom_drafter import check_drafter
from foredraft.runtime.drafters import Drafters, check_names, slower_paths
from foredraft.runtime.host import Host, Machine, load_host
from foredraft.runtime.notices import notices_of
from foredraft.runtime.planner import Planning
from foredraft.runtime.recent_text import CACHE_TOKENS, RecentText, check_cache
from foredraft.runtime.request import Request, Requests
from foredraft.system.files import Progress

DEFAULT_MODEL = "smollm2-135m"


def load(
    model: Any = DEFAULT_MODEL,
    *,
    drafter: str | Drafter = "auto",
    draft_tokens: int | str = "auto",
    draft_temperature: float | None = None,
    tokenizer: Any = None,
    device: str | None = None,
    dtype: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    offline: bool = False,
    cache: str | Path | None = None,
    native_tier: str | None = None,
    watch: bool = False,
    cache_tokens: int = CACHE_TOKENS,
    share_cache: bool = False,
    progress: Progress | None = None,
) -> LanguageModel:
    """Return a model ready to generate.

    ``model`` is an alias, a folder, a hub id, a ``.gguf`` file, or a transformers model object (``tokenizer`` then is
    its tokenizer; without one, prompts are token ids). ``drafter`` is a name (``auto``, ``none``, ``lookup``,
    ``suffix``, ``model:PATH``, ``layers``, ``heads``, ``package.module:Class``, or some with ``+``) or a ``Drafter``.
    ``device`` is cpu, cuda or mps (default: cuda where torch finds one), ``dtype`` bf16, f32, f64, file (as the file
    has it; a GGUF in its own blocks) or auto (file for a GGUF on the native pass, else bf16), ``context`` a smaller one
    than the model's own, ``cache`` the folder where models are kept (~/.cache/foredraft; only the command line reads
    FOREDRAFT_CACHE), ``offline`` forbids the network. ``native_tier`` forces a tier of the native CPU pass (amx, avx2,
    ...) or torch (off). ``watch`` keeps testing the text's law (``LanguageModel.watch``). ``cache_tokens`` bounds the
    recent text held for requests with a ``cache_scope``, over all scopes; only with ``share_cache`` may one copy from
    others' text. ``progress`` is told (bytes done, bytes in all, what) of a fetch.

    Raises ModelError, DrafterError, FetchError, StorageError or OptionError.
    """
    began = perf_counter()
    check_cache(cache_tokens, share_cache)
    if isinstance(drafter, str):
        check_names(drafter)
    else:
        check_drafter(drafter)
    if not isinstance(cache, str | Path | None):
        raise OptionError(f"cache must be the path of a folder, not {cache!r:.60}")
    length, warmth = draft_length(draft_tokens), draft_warmth(draft_temperature)
    machine = Machine(device, dtype, threads, context, offline, None if cache is None else Path(cache), native_tier)
    host = load_host(model, machine, tokenizer, progress)
    recent = RecentText(host.tokenizer, host.target.vocabulary, machine.cache_folder, cache_tokens, share_cache)
    drafters = Drafters(host, machine, drafter, length, warmth, recent.memory, progress)
    loaded = LanguageModel(host, drafters, recent, Planning(host))
    loaded.watch = LawWatch() if switch("watch", watch) else None
    loaded.load_s = perf_counter() - began
    return loaded


class LanguageModel:
    """A loaded model with its default drafter. Made by ``load``; not safe for use from two threads at once."""

    def __init__(self, host: Host, drafters: Drafters, recent: RecentText, planning: Planning) -> None:
        self.host = host
        self.load_s = 0.0
        self.watch: LawWatch | None = None
        self.onlookers: list[Callable[[Planner], Watch]] = []  # each makes a watch of one generation, told its planner
        self.drafter_of = drafters.of  # options as ``settle`` leaves them -> who drafts under them
        self.drafter = drafters.default
        self._drafters = drafters
        self._recent = recent
        self._requests = Requests(host)
        self._planning = planning

    @property
    def slower_paths(self) -> list[str]:
        """What runs slower here than it could, and why; empty as a rule."""
        return ([] if self.host.notice is None else [self.host.notice]) + slower_paths(self.drafter)

    def remember(self, text: str | Sequence[int], scope: str) -> None:
        """Add a text, or its token ids, to what requests with this ``cache_scope`` may copy from."""
        self._recent.remember(text, scope)

    def forget(self, scope: str) -> None:
        """Drop the recent text of a scope, in memory and on disk; others save only what they hear from then on.

        Raises OptionError or StorageError.
        """
        self._recent.forget(scope)

    def load_cache(self, scope: str) -> None:
        """Add the recent text that was saved for a scope. Raises StorageError for files that cannot be used."""
        self._recent.load(scope)

    def save_cache(self, scope: str) -> int:
        """Add the recent text of a scope to its file; return how many tokens of its oldest text had to go."""
        return self._recent.save(scope)

    @overload
    def generate(self, prompt: str, **options: Unpack[Options]) -> Result: ...
    @overload
    def generate(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Any: ...
    def generate(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Any:
        """Return the answer to a prompt, or a list of answers to a list of prompts.

        A prompt is text (put through the model's chat template unless ``raw=True``), a list of messages
        (``{"role", "content"}``) or a list of token ids. Options are those of ``foredraft.options.Options``.

        Raises OptionError or PromptError before anything runs (of a list it says which prompt), NumericalError or
        GenerationError if no token can be drawn. Of a list, and of ``n`` answers, only the one concerned fails and
        nothing is raised: its ``finish_reason`` is "error" and ``fault`` says why.
        """
        running = self.start(prompt, **options)
        running.finish()
        if is_batch(prompt):
            return running.results
        result = running.results[0]
        if len(result.choices) == 1 and result.fault is not None:
            raise result.fault
        return result

    def start(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Running:
        """Return the answers of ``generate`` before any round: for whoever wants what there is when interrupted.

        Raises OptionError or PromptError as ``generate`` does.
        """
        settings = settle(options)
        requests = []
        for i, each in enumerate(prompt if is_batch(prompt) else [prompt]):
            try:
                requests.append(self._requests.make(each, settings))
            except (PromptError, TokenizerError) as fault:
                if is_batch(prompt):
                    fault.args = (f"prompts[{i}]: {fault}",)
                raise
        return Running(self, requests, settings)

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Return the answer to one prompt piece by piece, as it is made. Options as for ``generate``, less ``n``."""
        settings = settle(options)
        if is_batch(prompt):
            raise PromptError("stream answers one prompt: call it once for each")
        if settings.n > 1:
            raise OptionError(f"stream gives one answer, not n={settings.n}: use generate")
        return Stream(Running(self, [self._requests.make(prompt, settings)], settings))

    def _drafter(self, settings: Settings) -> Drafter:
        """Return the drafter of one generation, told what else it may copy from."""
        return informed(self._drafters.of(settings), self._requests.prediction(settings), settings.cache_scope)

    def _rounds(
        self, requests: Sequence[Request], settings: Settings, drafter: Drafter, tally: Tally
    ) -> Generator[None, None, None]:
        """Run the requests to their end, a round a step; each request's own tally and text have grown after it."""
        of = {request.sequence: request for request in requests}
        planner = self._planning.planner(self._drafters.length(settings, drafter))
        watches: list[Watch] = [tally, *([self.watch] if self.watch else []), *(a(planner) for a in self.onlookers)]
        if settings.logprobs is not None:
            watches.append(recorder := LogprobRecorder(self.host.sampler.logprobs))
            for request in requests:
                request.scores = recorder.want(request.sequence, settings.logprobs)
        with closing(run([r.sequence for r in requests], self.host.target, drafter, planner, watches)) as rounds:
            for outcomes in rounds:
                for sequence, outcome in outcomes:
                    request = of[sequence]
                    if not request.origins:
                        request.cached_tokens = self.host.target.reused(sequence)
                    request.take(outcome)
                yield

    def _result(self, requests: Sequence[Request], settings: Settings, drafter: Drafter, tally: Tally) -> Result:
        """Return what the answers to one prompt came to."""
        host, first = self.host, requests[0]
        choices = [request.choice(host.tokenizer) for request in requests]
        copied = None if settings.prediction is None else predicted(drafter, [r.sequence for r in requests])
        pace = self._planning.pace(first.tally, uninformed(drafter), len(first.sequence))
        return Result(
            model=host.name,
            system_fingerprint=host.fingerprint,
            tier=host.tier,
            dtype=host.dtype,
            drafter=drafter.name,
            rule="coupled" if first.sequence.noise.coupled else "ratio",
            seed=settings.seed,
            prompt_tokens=first.sequence.prompt_length,
            cached_tokens=first.cached_tokens,
            completion_tokens=sum(len(choice.token_ids) for choice in choices),
            speculative=Speculative.of(first.tally, self._drafters.off(settings, drafter) or pace.reason),
            timings=Timings.of(tally, self.load_s, pace.plain_tokens_per_s),
            choices=choices,
            notices=self._notices(settings, drafter, copied),
            prediction=copied,
        )

    def _notices(self, settings: Settings, drafter: Drafter, copied: Predicted | None) -> list[str]:
        """Say what a user may not expect of the options he gave, and what the watch has found."""
        alarms = [] if self.watch is None or self.watch.notice is None else [self.watch.notice]
        return notices_of(settings, self._drafters, uninformed(drafter), copied) + alarms


class Running(Iterator[None]):
    """Answers on their way, a round a step; ``results``, one a prompt, are there once they have ended or were left."""

    def __init__(self, model: LanguageModel, requests: Sequence[Sequence[Request]], settings: Settings) -> None:
        self.requests = requests
        self.results: list[Result] = []
        self._rounds = self._run(model, settings, model._drafter(settings))

    def __next__(self) -> None:
        next(self._rounds)

    def finish(self) -> None:
        """Run to the end. What Ctrl-C interrupts has results too: of the answers as far as they came."""
        try:
            for _ in self:
                pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop generating."""
        self._rounds.close()

    def _run(self, model: LanguageModel, settings: Settings, drafter: Drafter) -> Generator[None, None, None]:
        tally = Tally()
        every = [request for requests in self.requests for request in requests]
        rounds = model._rounds(every, settings, drafter, tally)
        try:
            yield from rounds
        finally:
            rounds.close()
            for request in every:
                request.sequence.cancel()
            self.results = [model._result(requests, settings, drafter, tally) for requests in self.requests]


class Stream(Iterator[Piece]):
    """An answer as it is made: an iterator of pieces; ``result`` is there once it has ended.

    Leaving early is fine: ``close`` (or the end of a ``with``) gives the model's slot back.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self._pieces = self._run(running.requests[0][0])

    def __next__(self) -> Piece:
        return next(self._pieces)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def result(self) -> Result | None:
        """What came of it; None while it runs."""
        return self._running.results[0] if self._running.results else None

    def close(self) -> None:
        """Stop generating."""
        self._pieces.close()

    def _run(self, request: Request) -> Generator[Piece, None, None]:
        try:
            for _ in self._running:
                yield from request.answer.release(request.sequence.answer, request.origins)
        finally:
            self._running.close()
        if request.sequence.fault is not None:
            raise request.sequence.fault

"""Load a model and ask it: ``load``, ``LanguageModel.generate`` and ``stream``."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Unpack, overload

from foredraft.compose import (
    LOOKUP_TOKENS,
    Host,
    Machine,
    check_drafter,
    check_names,
    draft_model,
    load_host,
    make_drafter,
)
from foredraft.core.draft import Drafter, Watch
from foredraft.drafters.none import NoDrafter
from foredraft.engine.logprobs import LogprobRecorder
from foredraft.engine.loop import run
from foredraft.engine.planner import FixedPlanner
from foredraft.engine.tally import Tally
from foredraft.engine.text import Piece
from foredraft.errors import OptionError, PromptError
from foredraft.measure.watch import LawWatch
from foredraft.models.store import Progress
from foredraft.options import AssistantModel, Options, Settings, draft_length, settle
from foredraft.prompts import Prompt, is_batch
from foredraft.request import Request, Requests
from foredraft.result import Result, Speculative, Timings

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
    progress: Progress | None = None,
) -> LanguageModel:
    """Return a model ready to generate.

    ``model`` is an alias, a folder, a hub id, a ``.gguf`` file, or a transformers model object (``tokenizer`` then is
    its tokenizer; without one, prompts are token ids). ``drafter`` is a name (``auto``, ``none``, ``lookup``,
    ``model:PATH``, ``layers``, ``package.module:Class``, several joined by ``+``) or an object that is a ``Drafter``.
    ``device`` is cpu, cuda or mps (default: cuda where torch finds one), ``dtype`` auto (bf16), bf16, f32 or file,
    ``context`` a smaller context than the model's own, ``cache`` the folder where models are kept, ``offline`` forbids
    the network. ``native_tier`` forces a tier of the native CPU pass (amx, avx512, avx2, portable) or torch (off).
    ``watch`` keeps a test of the text's law running over everything that is generated (``LanguageModel.watch``).
    ``progress`` is told (bytes done, bytes in all, what) while something is fetched or converted.

    Raises ModelError, DrafterError, FetchError, StorageError or OptionError.
    """
    began = perf_counter()
    if isinstance(drafter, str):
        check_names(drafter)
    machine = Machine(device, dtype, threads, context, offline, None if cache is None else Path(cache), native_tier)
    host = load_host(model, machine, tokenizer, progress)
    loaded = LanguageModel(host, machine, drafter, draft_length(draft_tokens), draft_temperature, progress)
    loaded.watch = LawWatch() if watch else None
    loaded.load_s = perf_counter() - began
    return loaded


class LanguageModel:
    """A loaded model with its default drafter. Made by ``load``; not safe for use from two threads at once."""

    def __init__(
        self,
        host: Host,
        machine: Machine,
        drafter: str | Drafter,
        draft_tokens: int | None,
        draft_temperature: float | None,
        progress: Progress | None = None,
    ) -> None:
        self.host = host
        self.load_s = 0.0
        self.watch: LawWatch | None = None
        self._machine = machine
        self._requests = Requests(host)
        self._progress = progress
        self._draft_hosts: dict[str, Host] = {}
        self._drafters: dict[tuple[str, int | None, float | None], Drafter] = {}
        self._draft_tokens = draft_tokens
        self._draft_temperature = draft_temperature
        self._default: object = drafter
        self.drafter = self._drafter(drafter, draft_tokens, draft_temperature)

    @overload
    def generate(self, prompt: str, **options: Unpack[Options]) -> Result: ...
    @overload
    def generate(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Any: ...
    def generate(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Any:
        """Return the answer to a prompt, or a list of answers to a list of prompts.

        A prompt is text (put through the model's chat template unless ``raw=True``), a list of messages
        (``{"role", "content"}``) or a list of token ids. Options are those of ``foredraft.options.Options``.

        Raises OptionError or PromptError before anything runs, NumericalError if no token can be drawn; of a list only
        the answer concerned fails, with ``finish_reason`` "error" and the fault in ``fault``.
        """
        settings = settle(options)
        if is_batch(prompt):
            return self._answer(list(prompt), settings)
        result = self._answer([prompt], settings)[0]
        if result.fault is not None:
            raise result.fault
        return result

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Return the answer to one prompt piece by piece, as it is made. Options as for ``generate``, less ``n``."""
        settings = settle(options)
        if is_batch(prompt):
            raise PromptError("stream answers one prompt: call it once for each")
        if settings.n > 1:
            raise OptionError(f"stream gives one answer, not n={settings.n}: use generate")
        return Stream(self, self._requests.make(prompt, settings)[0], settings)

    def _answer(self, prompts: list[Any], settings: Settings) -> list[Result]:
        requests = [self._requests.make(prompt, settings) for prompt in prompts]
        drafter = self._asked(settings)
        tally = Tally()
        for _ in self._rounds([r for each in requests for r in each], settings, drafter, tally):
            pass
        return [self._result(each, settings, drafter, tally) for each in requests]

    def _rounds(
        self, requests: Sequence[Request], settings: Settings, drafter: Drafter, tally: Tally
    ) -> Generator[None, None, None]:
        """Run the requests to their end, a round a step; each request's own tally and text have grown after it."""
        of = {request.sequence: request for request in requests}
        planner = FixedPlanner(self._length(settings, drafter))
        watches: list[Watch] = [tally] if self.watch is None else [tally, self.watch]
        if settings.logprobs is not None:
            recorder = LogprobRecorder(self.host.sampler.logprobs)
            for request in requests:
                request.scores = recorder.want(request.sequence, settings.logprobs)
            watches.append(recorder)
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
            speculative=Speculative.of(first.tally, self._reason(settings, drafter)),
            timings=Timings.of(tally, self.load_s),
            choices=choices,
            notices=self._notices(settings),
        )

    def _notices(self, settings: Settings) -> list[str]:
        """Say what a user may not expect of the options he gave, and what the watch has found."""
        notices = []
        if settings.seed is not None and settings.rule == "ratio" and not settings.sampling.greedy:
            notices.append(
                "under rule ratio a seed's text also depends on the drafter and its lengths; under coupled it does not"
            )
        if self.watch is not None and self.watch.alarmed:
            notices.append(
                f"the watch found texts that do not have the model's law (after {self.watch.alarmed_after} tokens;"
                f" a false alarm has probability {self.watch.alpha:g}): foredraft certify says more"
            )
        return notices

    def _reason(self, settings: Settings, drafter: Drafter) -> str | None:
        if self.host.off is not None:
            return f"off: {self.host.off}"
        if isinstance(drafter, NoDrafter):
            return "off: drafter none was asked for"
        return "off: 0 draft tokens were asked for" if self._length(settings, drafter) == 0 else None

    def _length(self, settings: Settings, drafter: Drafter) -> int:
        if isinstance(drafter, NoDrafter):
            return 0
        asked = settings.draft_tokens if settings.draft_tokens is not None else self._draft_tokens
        return LOOKUP_TOKENS if asked is None else asked

    def _asked(self, settings: Settings) -> Drafter:
        """Return the drafter of one generation: the one its options name, or the default."""
        plain = settings.drafter is None and settings.draft_temperature is None and settings.draft_tokens is None
        if plain or (settings.drafter is None and not isinstance(self._default, str)):
            return self.drafter
        name = self._default if settings.drafter is None else settings.drafter
        length = self._draft_tokens if settings.draft_tokens is None else settings.draft_tokens
        warmth = self._draft_temperature if settings.draft_temperature is None else settings.draft_temperature
        return self._drafter(name, length, warmth)

    def _drafter(self, asked: object, length: int | None, temperature: float | None) -> Drafter:
        if self.host.off is not None:
            return NoDrafter()
        if isinstance(asked, AssistantModel):
            if not isinstance(asked.model, str | Path):
                host = load_host(asked.model, Machine(context=self._machine.context))
                return draft_model(host, self.host, length, temperature)
            asked = f"model:{asked.model}"
        if not isinstance(asked, str):
            return check_drafter(asked)
        key = (asked, length, temperature)
        if key not in self._drafters:
            self._drafters[key] = make_drafter(asked, self.host, self._load_draft, length, temperature)
        return self._drafters[key]

    def _load_draft(self, name: str) -> Host:
        """Load a draft model once, under the target's own machine options; its context is its own."""
        if name not in self._draft_hosts:
            machine = replace(self._machine, context=None)
            self._draft_hosts[name] = load_host(name, machine, progress=self._progress)
        return self._draft_hosts[name]


class Stream(Iterator[Piece]):
    """An answer as it is made: an iterator of pieces; ``result`` is there once it has ended.

    Leaving early is fine: ``close`` (or the end of a ``with``) gives the model's slot back.
    """

    def __init__(self, model: LanguageModel, request: Request, settings: Settings) -> None:
        self.result: Result | None = None
        self._pieces = self._run(model, request, settings)

    def __next__(self) -> Piece:
        return next(self._pieces)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop generating."""
        self._pieces.close()

    def _run(self, model: LanguageModel, request: Request, settings: Settings) -> Generator[Piece, None, None]:
        drafter = model._asked(settings)
        tally = Tally()
        rounds = model._rounds([request], settings, drafter, tally)
        try:
            for _ in rounds:
                yield from request.answer.release(request.sequence.answer, request.origins)
        finally:
            rounds.close()
            request.sequence.cancel()
            self.result = model._result([request], settings, drafter, tally)
        if request.sequence.fault is not None:
            raise request.sequence.fault

"""Load a model and ask it: ``load``, ``LanguageModel.generate`` and ``stream``."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
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
from foredraft.core.draft import Drafter
from foredraft.core.noise import Noise
from foredraft.core.sequence import Sequence as Text
from foredraft.drafters.none import NoDrafter
from foredraft.engine.loop import run
from foredraft.engine.planner import FixedPlanner
from foredraft.engine.tally import Tally
from foredraft.engine.text import AnswerText, Piece
from foredraft.errors import OptionError, PromptError
from foredraft.models.store import Progress
from foredraft.options import AssistantModel, Options, Settings, draft_length, settle
from foredraft.prompts import Prompt, is_batch, prompt_ids
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
    progress: Progress | None = None,
) -> LanguageModel:
    """Return a model ready to generate.

    ``model`` is an alias, a folder, a hub id, a ``.gguf`` file, or a transformers model object (``tokenizer`` then is
    its tokenizer; without one, prompts are token ids). ``drafter`` is a name (``auto``, ``none``, ``lookup``,
    ``model:PATH``, ``package.module:Class``, several joined by ``+``) or an object with the ``Drafter`` protocol.
    ``device`` is cpu, cuda or mps (default: cuda where torch finds one), ``dtype`` auto (bf16), bf16, f32 or file,
    ``context`` a smaller context than the model's own, ``cache`` the folder where models are kept, ``offline`` forbids
    the network. ``native_tier`` forces a tier of the native CPU pass (amx, avx512, avx2, portable) or torch (off).
    ``progress`` is told (bytes done, bytes in all, what) while something is fetched or converted.

    Raises ModelError, DrafterError, FetchError, StorageError or OptionError.
    """
    began = perf_counter()
    if isinstance(drafter, str):
        check_names(drafter)
    machine = Machine(device, dtype, threads, context, offline, None if cache is None else Path(cache), native_tier)
    host = load_host(model, machine, tokenizer, progress)
    loaded = LanguageModel(host, machine, drafter, draft_length(draft_tokens), draft_temperature, progress)
    loaded.load_s = perf_counter() - began
    return loaded


@dataclass(slots=True)
class _Request:
    """One prompt on its way."""

    sequence: Text
    answer: AnswerText
    cached_tokens: int = 0
    tally: Tally = field(default_factory=Tally)
    origins: list[str] = field(default_factory=list)


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
        self._machine = machine
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

        Raises OptionError or PromptError before anything runs, NumericalError if the model breaks.
        """
        settings = settle(options)
        if not is_batch(prompt):
            return self._answer([prompt], settings)[0]
        return self._answer(list(prompt), settings)

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Return the answer to one prompt piece by piece, as it is made. Options as for ``generate``."""
        settings = settle(options)
        if is_batch(prompt):
            raise PromptError("stream answers one prompt: call it once for each")
        return Stream(self, self._request(prompt, settings), settings)

    def _answer(self, prompts: list[Any], settings: Settings) -> list[Result]:
        requests = [self._request(prompt, settings) for prompt in prompts]
        drafter = self._asked(settings)
        tally = Tally()
        for _ in self._rounds(requests, settings, drafter, tally):
            pass
        return [self._result(request, settings, drafter, tally) for request in requests]

    def _request(self, prompt: Any, settings: Settings) -> _Request:
        """Turn a prompt into a sequence ready to run."""
        words = self.host.tokenizer
        ids = prompt_ids(prompt, words, settings, self.host.target.vocabulary, self.host.context)
        if settings.stop and words is None:
            raise OptionError("stop strings need a tokenizer: load the model with tokenizer=")
        answer = AnswerText(words.stream() if words is not None else _Wordless(), settings.stop)
        for token in settings.stop_token_ids:
            if token >= self.host.target.vocabulary:
                raise OptionError(f"stop token {token} is not in the vocabulary of {self.host.target.vocabulary}")
        stop_ids = settings.stop_token_ids | (words.stop_ids if words is not None else frozenset())
        sequence = Text(
            tokens=ids,
            limit=min(len(ids) + settings.max_tokens, self.host.context),
            params=settings.sampling,
            noise=Noise(secrets.randbits(64) if settings.seed is None else settings.seed),
            stop_ids=frozenset(stop_ids),
            ends=answer.push,
        )
        return _Request(sequence, answer)

    def _rounds(
        self, requests: Sequence[_Request], settings: Settings, drafter: Drafter, tally: Tally
    ) -> Generator[None, None, None]:
        """Run the requests to their end, a round a step; each request's own tally and text have grown after it."""
        of = {request.sequence: request for request in requests}
        planner = FixedPlanner(self._length(settings, drafter))
        with closing(run([r.sequence for r in requests], self.host.target, drafter, planner, [tally])) as rounds:
            for outcomes in rounds:
                for sequence, outcome in outcomes:
                    request = of[sequence]
                    if not request.origins:
                        request.cached_tokens = self.host.target.reused(sequence)
                    request.tally.count(sequence, outcome)
                    request.origins.extend(outcome.origins)
                    if outcome.finish_reason is not None:
                        request.answer.finish()
                yield

    def _result(self, request: _Request, settings: Settings, drafter: Drafter, tally: Tally) -> Result:
        sequence = request.sequence
        return Result(
            model=self.host.name,
            system_fingerprint=self.host.fingerprint,
            tier=self.host.tier,
            dtype=self.host.dtype,
            drafter=drafter.name,
            rule="ratio",
            seed=settings.seed,
            text=request.answer.text,
            token_ids=sequence.answer,
            prompt_tokens=sequence.prompt_length,
            cached_tokens=request.cached_tokens,
            completion_tokens=len(sequence.answer),
            finish_reason=sequence.finish_reason,
            speculative=Speculative.of(request.tally, self._reason(settings, drafter)),
            timings=Timings.of(tally, self.load_s),
            origins=request.origins,
        )

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

    def __init__(self, model: LanguageModel, request: _Request, settings: Settings) -> None:
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

    def _run(self, model: LanguageModel, request: _Request, settings: Settings) -> Generator[Piece, None, None]:
        drafter = model._asked(settings)
        tally = Tally()
        rounds = model._rounds([request], settings, drafter, tally)
        try:
            for _ in rounds:
                yield from request.answer.release(request.sequence.answer, request.origins)
        finally:
            rounds.close()
            request.sequence.cancel()
            self.result = model._result(request, settings, drafter, tally)


class _Wordless:
    """The token stream of a model without a tokenizer: its text is empty."""

    def push(self, token: int) -> str:  # noqa: ARG002 - there are no words to look it up in
        """Return nothing."""
        return ""

    def finish(self) -> str:
        """Return nothing."""
        return ""

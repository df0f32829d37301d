"""Load a model and ask it: ``load``, ``LanguageModel.generate`` and ``stream``."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack, overload

from foredraft.checks import switch
from foredraft.core.protocols import Drafter
from foredraft.engine.text import Piece
from foredraft.engine.watches.law_watch import LawWatch
from foredraft.errors import OptionError, PromptError, TokenizerError
from foredraft.options import Options, draft_length, parse_draft_temperature, parse_options
from foredraft.prompts import Prompt, is_batch
from foredraft.result import Result
from foredraft.runtime.custom_drafter import check_drafter
from foredraft.runtime.drafter_names import check_names
from foredraft.runtime.loaded_model import LoadedModel, Machine
from foredraft.runtime.recent_text import CACHE_TOKENS, check_cache
from foredraft.runtime.request import Request
from foredraft.runtime.running import Running
from foredraft.runtime.runtime import Onlooker, Runtime, open_runtime
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
    check_cache(cache_tokens, share_cache)
    if isinstance(drafter, str):
        check_names(drafter)
    else:
        check_drafter(drafter)
    if not isinstance(cache, str | Path | None):
        raise OptionError(f"cache must be the path of a folder, not {cache!r:.60}")
    length, warmth = draft_length(draft_tokens), parse_draft_temperature(draft_temperature)
    runtime = open_runtime(
        model,
        Machine(device, dtype, threads, context, offline, None if cache is None else Path(cache), native_tier),
        drafter=drafter,
        draft_tokens=length,
        draft_temperature=warmth,
        tokenizer=tokenizer,
        watch=switch("watch", watch),
        cache_tokens=cache_tokens,
        share_cache=share_cache,
        progress=progress,
    )
    return LanguageModel(runtime)


class LanguageModel:
    """A loaded model with its default drafter. Made by ``load``; not safe for use from two threads at once.

    ``runtime`` is what answers are made with (``foredraft.runtime.runtime``), for whoever measures or serves.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @property
    def loaded(self) -> LoadedModel:
        """The model itself: its target, tokenizer, tier, dtype, fingerprint, context."""
        return self.runtime.loaded

    @property
    def drafter(self) -> Drafter:
        """The default drafter."""
        return self.runtime.drafters.default

    @property
    def load_s(self) -> float:
        """Seconds that loading took."""
        return self.runtime.load_s

    @property
    def watch(self) -> LawWatch | None:
        """The test of the text's law, where ``load`` was asked for one."""
        return self.runtime.watch

    @property
    def onlookers(self) -> list[Onlooker]:
        """Whoever looks on at each generation: append what makes a watch of a planner."""
        return self.runtime.onlookers

    @property
    def slower_paths(self) -> list[str]:
        """What runs slower here than it could, and why; empty as a rule."""
        return self.runtime.slower_paths

    def remember(self, text: str | Sequence[int], scope: str) -> None:
        """Add a text, or its token ids, to what requests with this ``cache_scope`` may copy from."""
        self.runtime.recent_text.remember(text, scope)

    def forget(self, scope: str) -> None:
        """Drop the recent text of a scope, in memory and on disk; others save only what they hear from then on.

        Raises OptionError or StorageError.
        """
        self.runtime.recent_text.forget(scope)

    def load_cache(self, scope: str) -> None:
        """Add the recent text that was saved for a scope. Raises StorageError for files that cannot be used."""
        self.runtime.recent_text.load(scope)

    def save_cache(self, scope: str) -> int:
        """Add the recent text of a scope to its file; return how many tokens of its oldest text had to go."""
        return self.runtime.recent_text.save(scope)

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
        nothing is raised: its ``finish_reason`` is "error" and ``error`` says why.
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
        settings = parse_options(options)
        requests = []
        for i, each in enumerate(prompt if is_batch(prompt) else [prompt]):
            try:
                requests.append(self.runtime.requests.make(each, settings))
            except (PromptError, TokenizerError) as error:
                if is_batch(prompt):
                    error.args = (f"prompts[{i}]: {error}",)
                raise
        return Running(self.runtime, requests, settings)

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Return the answer to one prompt piece by piece, as it is made. Options as for ``generate``, less ``n``."""
        settings = parse_options(options)
        if is_batch(prompt):
            raise PromptError("stream answers one prompt: call it once for each")
        if settings.n > 1:
            raise OptionError(f"stream gives one answer, not n={settings.n}: use generate")
        return Stream(Running(self.runtime, [self.runtime.requests.make(prompt, settings)], settings))


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
        if request.sequence.error is not None:
            raise request.sequence.error

"""A loaded model behind the engine of a server: requests become jobs, and what rounds bring them becomes text again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Final, cast

from foredraft.core.protocols import Watch
from foredraft.engine.service import Service
from foredraft.engine.watches.logprobs import LogprobRecorder
from foredraft.errors import OptionError, PromptError
from foredraft.options import Options, parse_options
from foredraft.planning.choose import Chooser
from foredraft.prompts import prompt_ids
from foredraft.runtime.runtime import Runtime
from foredraft.server.backend import DraftCount, GenerateRequest, Load
from foredraft.serving.answers import Answers
from foredraft.serving.engine import Engine
from foredraft.serving.recent_rounds import RecentRounds
from foredraft.serving.scoring import PromptDrafter

_CACHE_SCOPE: Final = 32


class Serving:
    """What answers requests of one model. It owns the model until it is closed.

    ``slots`` answers run at a time and ``queue`` more may wait; ``name`` is what requests call the model, ``rule`` is
    that of requests which name none. Raises OptionError for numbers that cannot be, PromptError for a model
    without a tokenizer.
    """

    def __init__(self, runtime: Runtime, name: str, slots: int = 8, queue: int = 256, rule: str = "auto") -> None:
        loaded = runtime.loaded
        if loaded.tokenizer is None:
            raise PromptError("a server needs a model with a tokenizer")
        self.name = name
        self.context = loaded.context
        self._rule = parse_options({"rule": rule}).rule
        self.most = slots + queue
        self.tokenizer = loaded.tokenizer
        self.runtime = runtime
        self.recorder = LogprobRecorder(loaded.sampler.logprobs)
        self.rounds = RecentRounds(runtime.planning)
        self.facts: Mapping[str, Any] = {
            "tier": loaded.tier,
            "dtype": loaded.dtype,
            "drafter": runtime.drafters.default.name,
            "system_fingerprint": loaded.fingerprint,
        }
        self._making = Lock()  # what makes a request ready is not made for two threads
        planning = runtime.planning
        planning.auto()  # passes are timed before anything is served
        watches: list[Watch] = [self.recorder, self.rounds, *([runtime.watch] if runtime.watch is not None else [])]
        self.service = Service(
            loaded.target, runtime.drafters.default, planning, slots=slots, queue=queue, watches=watches
        )

    def prepare(self, asked: GenerateRequest) -> Answers:
        """Check a request and make it ready to start. Raises OptionError, PromptError, DrafterError, TokenizerError."""
        settings = parse_options(cast("Options", {"rule": self._rule, **asked.options}))
        settings = replace(settings, template=tuple(sorted(asked.template.items())))
        if settings.cache_scope is not None:
            settings = replace(settings, cache_scope=_scope(asked.owner, settings.cache_scope))
        if len(asked.prompts) * settings.n > self.most:
            count = len(asked.prompts) * settings.n
            raise OptionError(f"n asks for {count} answers at once, and this server takes {self.most} at most")
        requests = []
        with self._making:
            drafter = self.runtime.drafter_for(settings)
            for i, prompt in enumerate(asked.prompts):
                try:
                    requests.append(self.runtime.requests.make(prompt, settings))
                except PromptError as error:
                    if len(asked.prompts) > 1:
                        error.args = (f"prompt[{i}]: {error}",)
                    raise
        return Answers(
            Engine(self.runtime, self.service, self.recorder, self.tokenizer), asked, settings, drafter, requests
        )

    def encode(self, prompt: Any, special: bool, template: Mapping[str, bool | str]) -> list[int]:
        """Return the tokens of a text or of messages. Raises PromptError or TokenizerError."""
        if isinstance(prompt, str) and not special:
            return self.tokenizer.encode(prompt, special=False) if prompt else []
        raw = isinstance(prompt, str)
        settings = replace(parse_options({"raw": True} if raw else {}), template=tuple(sorted(template.items())))
        with self._making:
            return prompt_ids(prompt, self.tokenizer, settings, self.runtime.loaded.target.vocabulary, self.context)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids. Raises PromptError for ids that are none."""
        width = self.runtime.loaded.target.vocabulary
        if (wrong := next((token for token in ids if not 0 <= token < width), None)) is not None:
            raise PromptError(f"token {wrong} is not in the vocabulary of {width}")
        return self.tokenizer.decode(ids)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token."""
        return [self.tokenizer.token_text(token) for token in ids]

    def load(self) -> Load:
        """Return what is going on."""
        now, recent = self.service.snapshot(), self.rounds.figures()
        counts = {name: count for name, count in now.drafts.items() if name != PromptDrafter.name}
        return Load(
            running=now.running,
            waiting=now.waiting,
            slots=now.slots,
            free=now.free_slots,
            rounds=now.rounds,
            decisions=recent.decisions,
            drafts={
                name: DraftCount(count.rounds, count.drafted, count.accepted, tuple(count.accepted_per_position))
                for name, count in counts.items()
            },
            faults=self._faults(now.faults),
            failures=now.failures,
            draft_length=recent.draft_length,
            acceptance=recent.acceptance,
            tokens_per_pass=recent.tokens_per_pass,
            tokens_per_s=recent.tokens_per_s,
            plain_tokens_per_s=recent.plain_tokens_per_s,
            speedup=recent.speedup,
        )

    def _faults(self, dropped: Mapping[str, int]) -> dict[str, int]:
        """Return how often each drafter was dropped; those that a planner chooses among are counted by themselves."""
        faults = dict(dropped)
        drafter = self.runtime.drafters.default
        for source in drafter.sources if isinstance(drafter, Chooser) else ():
            if source.faults:
                faults[source.name] = faults.get(source.name, 0) + source.faults
        return faults

    def drain(self, seconds: float) -> bool:
        """Admit no more, and end what runs longer than so many seconds; say whether nothing had to be ended."""
        return self.service.drain(seconds)

    def close(self) -> None:
        """End everything now."""
        self.service.close()


def served_name(model: str) -> str:
    """Return what a model is called that was named by an alias, a hub id or a path: no path, which would tell of us."""
    path = Path(model)
    return path.stem if path.suffix == ".gguf" else path.name if path.is_absolute() or path.exists() else model


def _scope(owner: str, name: str) -> str:
    """Return the scope of recent text that a name means to one owner, and to nobody else."""
    return hashlib.sha256(f"{owner}\0{name}".encode("utf-8", "surrogateescape")).hexdigest()[:_CACHE_SCOPE]

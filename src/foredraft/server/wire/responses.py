"""The two kinds of request as their answers look: whole, and in chunks."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from foredraft.engine.text import Piece
from foredraft.result import TokenLogprob
from foredraft.server.backend import Delta, ScoredPrompt
from foredraft.server.wire.response_fields import CompletionLogprobs, chat_logprobs, joined, origins


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """What a request wants to be told beside the text. ``top`` is how many likeliest tokens; None for no logprobs."""

    top: int | None = None
    echo: bool = False
    token_ids: bool = False
    usage: bool = False
    continuous: bool = False
    origins: bool = False


@dataclass(slots=True)
class Gathered:
    """One answer, gathered from its deltas."""

    pieces: list[Piece] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, delta: Delta) -> None:
        """Take what came."""
        self.pieces += delta.pieces
        self.logprobs += delta.logprobs or ()
        self.finish_reason = delta.finish_reason


class View(Protocol):
    """How one kind of request is answered."""

    options: ResponseOptions

    def whole(self, answers: Sequence[Gathered], prompts: Sequence[ScoredPrompt]) -> dict[str, Any]:
        """Return everything, without usage."""
        ...

    def openings(self, prompts: Sequence[ScoredPrompt]) -> list[dict[str, Any]]:
        """Return the chunks that come before any text, one an answer."""
        ...

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        """Return what is new of one answer."""
        ...

    def finish(self, index: int, reason: str | None) -> dict[str, Any]:
        """Return the last chunk of one answer."""
        ...

    def bare(self) -> dict[str, Any]:
        """Return a chunk of no answer."""
        ...


class _Kind:
    """What both kinds share. ``choices`` is how many answers there are to each prompt."""

    def __init__(
        self, prefix: str, model: str, fingerprint: str, created: int, options: ResponseOptions, choices: int
    ) -> None:
        self.options = options
        self._choices = choices
        self._common = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint,
        }

    def _more(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return what a choice of a chunk tells beside its text."""
        more: dict[str, Any] = {}
        if self.options.token_ids:
            more["token_ids"] = [piece.token for piece in pieces]
        if self.options.origins:
            more["origins"] = origins(pieces)
        return more


class CompletionView(_Kind):
    """``/v1/completions``."""

    def __init__(self, model: str, fingerprint: str, created: int, options: ResponseOptions, choices: int) -> None:
        super().__init__("cmpl", model, fingerprint, created, options, choices)
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def whole(self, answers: Sequence[Gathered], prompts: Sequence[ScoredPrompt]) -> dict[str, Any]:
        """Return everything, without usage."""
        choices = []
        for index in range(self._choices * len(prompts)):
            prompt = prompts[index // self._choices]
            answer = answers[index] if answers else Gathered(finish_reason="length")
            text = "".join(piece.text for piece in answer.pieces)
            parts = [self._of_prompt(index, prompt), self._of_answer(index, answer.pieces, answer.logprobs)]
            choice = {
                "index": index,
                "text": prompt.text + text if self.options.echo else text,
                "logprobs": None if self.options.top is None else joined([part for part in parts if part is not None]),
                "finish_reason": answer.finish_reason,
                **self._more(answer.pieces),
            }
            if self.options.token_ids:
                choice["prompt_token_ids"] = list(prompt.token_ids)
            choices.append(choice)
        return {**self._chunk(choices)}

    def openings(self, prompts: Sequence[ScoredPrompt]) -> list[dict[str, Any]]:
        """Return the prompts where they are echoed, or their tokens are wanted."""
        if not (self.options.echo or self.options.token_ids):
            return []
        chunks = []
        for index in range(self._choices * len(prompts)):
            prompt = prompts[index // self._choices]
            choice = self._choice(index, prompt.text if self.options.echo else "", (), None)
            choice["logprobs"] = self._of_prompt(index, prompt)
            if self.options.token_ids:
                choice["prompt_token_ids"] = list(prompt.token_ids)
            chunks.append(self._chunk([choice]))
        return chunks

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        """Return what is new of one answer."""
        choice = self._choice(index, "".join(piece.text for piece in delta.pieces), delta.pieces, None)
        choice["logprobs"] = self._of_answer(index, delta.pieces, delta.logprobs or ())
        return self._chunk([choice])

    def finish(self, index: int, reason: str | None) -> dict[str, Any]:
        """Return the last chunk of one answer."""
        return self._chunk([self._choice(index, "", (), reason)])

    def bare(self) -> dict[str, Any]:
        """Return a chunk of no answer."""
        return self._chunk([])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._common, "object": "text_completion", "choices": choices}

    def _choice(self, index: int, text: str, pieces: Sequence[Piece], reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason, **self._more(pieces)}

    def _of_prompt(self, index: int, prompt: ScoredPrompt) -> dict[str, Any] | None:
        if self.options.top is None or not self.options.echo:
            return None
        return self._logprobs.setdefault(index, CompletionLogprobs()).prompt(prompt, self.options.top)

    def _of_answer(
        self, index: int, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob]
    ) -> dict[str, Any] | None:
        if self.options.top is None:
            return None
        return self._logprobs.setdefault(index, CompletionLogprobs()).answer(pieces, logprobs, self.options.top)


class ChatView(_Kind):
    """``/v1/chat/completions``."""

    def __init__(self, model: str, fingerprint: str, created: int, options: ResponseOptions, choices: int) -> None:
        super().__init__("chatcmpl", model, fingerprint, created, options, choices)

    def whole(self, answers: Sequence[Gathered], prompts: Sequence[ScoredPrompt]) -> dict[str, Any]:
        """Return everything, without usage."""
        every = answers or [Gathered(finish_reason="length")] * self._choices
        choices = [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": "".join(piece.text for piece in answer.pieces),
                    "refusal": None,
                },
                "logprobs": None if self.options.top is None else chat_logprobs(answer.logprobs),
                "finish_reason": answer.finish_reason,
                **self._more(answer.pieces),
            }
            for index, answer in enumerate(every)
        ]
        return self._with_prompt({**self._common, "object": "chat.completion", "choices": choices}, prompts)

    def openings(self, prompts: Sequence[ScoredPrompt]) -> list[dict[str, Any]]:
        """Return whose turn it is; the first chunk has the prompt's tokens where they are wanted."""
        chunks = [
            self._chunk([self._choice(index, {"role": "assistant", "content": ""}, ())])
            for index in range(self._choices)
        ]
        chunks[0] = self._with_prompt(chunks[0], prompts)
        return chunks

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        """Return what is new of one answer."""
        choice = self._choice(index, {"content": "".join(piece.text for piece in delta.pieces)}, delta.pieces)
        if self.options.top is not None:
            choice["logprobs"] = chat_logprobs(delta.logprobs or ())
        return self._chunk([choice])

    def finish(self, index: int, reason: str | None) -> dict[str, Any]:
        """Return the last chunk of one answer."""
        return self._chunk([{**self._choice(index, {}, ()), "finish_reason": reason}])

    def bare(self) -> dict[str, Any]:
        """Return a chunk of no answer."""
        return self._chunk([])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._common, "object": "chat.completion.chunk", "choices": choices}

    def _choice(self, index: int, delta: dict[str, Any], pieces: Sequence[Piece]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **self._more(pieces)}

    def _with_prompt(self, document: dict[str, Any], prompts: Sequence[ScoredPrompt]) -> dict[str, Any]:
        if self.options.token_ids:
            document["prompt_token_ids"] = list(prompts[0].token_ids)
        return document

"""What answers hold, for the OpenAPI document; tests hold real answers against it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Reply(BaseModel):
    """No field but those that are named."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ErrorFacts(Reply):
    """What went wrong. ``param`` is the field that is to blame, ``code`` a word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(Reply):
    """Every failure."""

    error: ErrorFacts


class PromptDetails(Reply):
    """``cached_tokens`` were in the cache already, and not read again."""

    cached_tokens: int


class CompletionDetails(Reply):
    """Tokens that were guessed from the request's ``prediction``: accepted, and in vain."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Reply):
    """Tokens that were read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class SpeculativeReply(Reply):
    """What speculation did, as ``foredraft generate --json`` tells it."""

    rounds: int
    drafted: int
    accepted: int
    mean_tokens_per_pass: float
    acceptance_rate: float
    accepted_per_position: list[int]
    reason: str | None
    by_drafter: dict[str, dict[str, int]]


class TimingsReply(Reply):
    """llama.cpp's names, in milliseconds and tokens a second; ``predicted_ms`` begins with the first token."""

    queue_ms: float | None
    prompt_n: int
    cache_n: int
    prompt_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float | None
    predicted_per_second: float | None
    draft_n: int
    draft_n_accepted: int
    plain_tokens_per_s: float | None
    speedup: float | None


class Origin(Reply):
    """Who wrote a token: a drafter, ``correction``, ``bonus`` or ``plain``; and the text that it completed."""

    token: int
    text: str
    origin: str


class CompletionLogprobs(Reply):
    """Log-probabilities by the model's raw logits; the first token of a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TopLogprob(Reply):
    """A token and its log-probability; ``bytes`` is null for a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(TopLogprob):
    """The same of a token that was written, with the likeliest in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Reply):
    """Log-probabilities of the answer's tokens."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionChoice(Reply):
    """One answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    origins: list[Origin] | None = None


class Whole(Reply):
    """What every answer, and every chunk, begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage | None = None
    speculative: SpeculativeReply | None = None
    timings: TimingsReply | None = None
    notices: list[str] | None = None


class CompletionReply(Whole):
    """The answers to ``/v1/completions``, and a chunk of them."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatMessage(Reply):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Reply):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] | None = None


class ChatReply(Whole):
    """The answers to ``/v1/chat/completions``."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_token_ids: list[int] | None = None


class ChatDelta(Reply):
    """What is new of a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(Reply):
    """What is new of an answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] | None = None
    origins: list[Origin] | None = None


class ChatChunk(Whole):
    """A chunk of a streamed chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    prompt_token_ids: list[int] | None = None


class ModelReply(Reply):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    tier: str
    dtype: str
    drafter: str
    system_fingerprint: str


class ModelsReply(Reply):
    """All of them: one."""

    object: Literal["list"]
    data: list[ModelReply]


class TokenizeReply(Reply):
    """The tokens of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeReply(Reply):
    """The text of tokens."""

    prompt: str


class StatusReply(Reply):
    """Whether it lives and answers."""

    status: Literal["ok", "loading", "draining"]


class VersionReply(Reply):
    """Foredraft's own."""

    version: str


class StatsReply(Reply):
    """What is going on; the figures without a count are of the last seconds, null where there were none."""

    model: str
    drafter: str
    tier: str
    dtype: str
    running: int
    waiting: int
    slots: int
    free: int
    load: float
    draft_length: float | None
    acceptance: float | None
    tokens_per_pass: float | None
    tokens_per_s: float | None
    plain_tokens_per_s: float | None
    speedup: float | None
    drafters: dict[str, Any]

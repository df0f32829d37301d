"""What crosses between the HTTP server and the model that it serves: a request, its answers, and what they came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from foredraft.engine.text import Piece
from foredraft.result import Predicted, Speculative, TokenLogprob


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request: ``n`` answers to each of its prompts, which are text, messages or token ids.

    ``options`` are those of ``foredraft.options.Options``. ``owner`` says whose text it is: nothing is re-used across
    owners. ``template`` holds variables for the chat template. ``scored`` is how many of the likeliest tokens are told
    beside each of the prompt's own; None where their log-probabilities are not wanted. ``echo`` says that the prompts'
    text is wanted. Without ``generate`` nothing is answered, and the prompts are all there is.
    """

    prompts: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    owner: str = ""
    template: Mapping[str, bool | str] = field(default_factory=dict)
    scored: int | None = None
    echo: bool = False
    generate: bool = True
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round brought one answer: text that is safe to show, a piece a token, and who wrote it.

    ``logprobs`` are those of the pieces' tokens; None where nobody asked. ``tokens`` counts what the round committed,
    shown or not; ``at`` is on the clock of ``time.perf_counter``. ``finish_reason`` is "stop", "length", "error",
    "cancelled" or None; ``error`` is why, for "error".
    """

    pieces: tuple[Piece, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    tokens: int
    at: float
    finish_reason: str | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """A prompt as the model read it: its tokens, and where it is echoed its text, its words and how likely they were.

    ``logprobs`` [tokens - 1] begins with the second token; None where nobody asked.
    """

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of a request in seconds: in the queue, reading prompts, writing; and tokens a second. None: none yet."""

    queued_s: float | None
    prompt_s: float | None
    decode_s: float | None
    tokens_per_s: float | None
    plain_tokens_per_s: float | None
    speedup: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a request came to, all its answers together."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prediction: Predicted | None
    speculative: Speculative
    pace: Pace
    notices: Sequence[str]


@dataclass(frozen=True, slots=True)
class DraftCount:
    """What one drafter did since the start: drafts, guesses, how many survived, and how many at each depth."""

    drafts: int
    drafted: int
    accepted: int
    accepted_per_position: Sequence[int]


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine is doing. The ``recent`` figures are of the last seconds; None where there were none.

    ``draft_length`` is guesses a round and sequence, ``tokens_per_s`` is of all answers together, ``speedup`` against
    what plain decoding of as many would take by the planner's costs.
    """

    running: int
    waiting: int
    slots: int
    free: int
    rounds: int
    decisions: Mapping[str, int]  # "draft" and "plain": rounds of one sequence with guesses and without
    drafts: Mapping[str, DraftCount]
    faults: Mapping[str, int]  # how often each drafter was dropped for an answer
    failures: int  # answers that a fault of the target ended
    draft_length: float | None
    acceptance: float | None
    tokens_per_pass: float | None
    tokens_per_s: float | None
    plain_tokens_per_s: float | None
    speedup: float | None


class Answer(Protocol):
    """One answer on its way."""

    @property
    def prompt(self) -> int:
        """Which of the request's prompts it answers."""
        ...

    @property
    def submitted(self) -> float:
        """When it was handed to the engine, on the clock of ``time.perf_counter``."""
        ...

    def take(self) -> list[Delta]:
        """Return what has come since the last time."""
        ...


class Exchange(Protocol):
    """The answers to one request."""

    @property
    def answers(self) -> Sequence[Answer]:
        """In the order of their indices: prompt by prompt, choice by choice."""
        ...

    @property
    def prompts(self) -> Sequence[ScoredPrompt]:
        """The prompts; their log-probabilities once they have been scored."""
        ...

    def score(self, notify: Callable[[], None]) -> None:
        """Begin to score the prompts; ``notify`` is called on another thread as that goes on.

        Raises Overloaded or Draining.
        """
        ...

    @property
    def scored(self) -> bool:
        """Whether every prompt has its scores. Raises what kept one from having them."""
        ...

    def start(self, notify: Callable[[], None]) -> None:
        """Begin to answer; ``notify`` is called on another thread when an answer has got further.

        Raises Overloaded or Draining, and then nothing has begun.
        """
        ...

    def cancel(self) -> None:
        """End what has not ended."""
        ...

    def summary(self) -> Summary:
        """Return what it came to, once every answer has ended."""
        ...


class Served(Protocol):
    """A model that answers."""

    @property
    def name(self) -> str:
        """What requests call it."""
        ...

    @property
    def context(self) -> int:
        """Tokens of a prompt and its answer together."""
        ...

    @property
    def most(self) -> int:
        """How many answers it could ever hold at once, running and waiting."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """Its tier, dtype, drafter and ``system_fingerprint``."""
        ...

    def prepare(self, asked: GenerateRequest) -> Exchange:
        """Check a request and make it ready to start. Takes its time: not for the event loop.

        Raises OptionError, PromptError, DrafterError or TokenizerError.
        """
        ...

    def encode(self, prompt: Any, special: bool, template: Mapping[str, bool | str]) -> list[int]:
        """Return the tokens of a text or of messages. Raises PromptError or TokenizerError."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids. Raises PromptError for ids that are none."""
        ...

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token."""
        ...

    def load(self) -> Load:
        """Return what is going on."""
        ...

    def drain(self, seconds: float) -> bool:
        """Admit no more, and end what runs longer than so many seconds; say whether nothing had to be ended."""
        ...

    def close(self) -> None:
        """End everything now."""
        ...

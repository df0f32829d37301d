"""What a generation gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from foredraft.engine.watches.tally import Tally


@dataclass(frozen=True, slots=True)
class Speculative:
    """What speculation did for one answer.

    ``reason`` says why there were no guesses ("off: ..."), or what a planner went by ("on: ..."); None for neither.
    """

    rounds: int
    drafted: int
    accepted: int
    mean_tokens_per_pass: float
    acceptance_rate: float
    accepted_per_position: list[int]
    reason: str | None
    by_drafter: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, tally: Tally, reason: str | None) -> Speculative:
        """Read a tally."""
        return cls(
            rounds=tally.passes,
            drafted=tally.total.drafted,
            accepted=tally.total.accepted,
            mean_tokens_per_pass=tally.mean_tokens_per_pass,
            acceptance_rate=tally.acceptance_rate,
            accepted_per_position=list(tally.total.accepted_per_position),
            reason=reason,
            by_drafter={
                name: {"rounds": c.rounds, "drafted": c.drafted, "accepted": c.accepted}
                for name, c in tally.by_drafter.items()
            },
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """What plain decoding is measured to give, in tokens a second (None: never measured), and what was decided, why."""

    plain_tokens_per_s: float | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of wall clock, and decoded tokens a second; those of the whole batch where there was one.

    ``plain_tokens_per_s`` and ``speedup`` are None until plain decoding has been measured on this machine.
    """

    load_s: float
    prefill_s: float
    decode_s: float
    tokens_per_s: float | None
    draft_s: float
    verify_s: float
    plain_tokens_per_s: float | None = None
    speedup: float | None = None

    @classmethod
    def of(cls, tally: Tally, load_s: float, plain: float | None = None) -> Timings:
        """Read the batch's tally; ``plain`` is what one text gives without guesses."""
        decoded = tally.tokens - tally.answers
        speed = decoded / tally.decode_s if tally.decode_s > 0 else None
        return cls(
            load_s=load_s,
            prefill_s=tally.prefill_s,
            decode_s=tally.decode_s,
            tokens_per_s=speed,
            draft_s=tally.draft_s,
            verify_s=tally.verify_s,
            plain_tokens_per_s=plain,
            speedup=speed / plain if speed and plain and tally.answers == 1 else None,
        )


@dataclass(frozen=True, slots=True)
class Predicted:
    """Tokens that were drafted from the prediction: how many were accepted, and how many in vain."""

    accepted: int
    rejected: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of a token's probability, by the target's raw logits: before any option touches them.

    ``top_logprobs`` holds the likeliest tokens at that place, the likeliest first, as many as were asked for. ``token``
    is the token's own text; a token that is part of a character has a replacement sign there.
    """

    token_id: int
    token: str
    logprob: float
    top_logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the ``n`` answers to a prompt.

    ``token_ids`` holds every generated token, a final end-of-text token included; ``text`` is what they say, cut before
    a stop string. ``origins`` tells who wrote each token (see ``Piece.origin``); ``logprobs`` is None unless asked for.
    ``finish_reason`` is "stop", "length", "cancelled" or "error"; ``fault`` then says why no token could be drawn.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    logprobs: list[TokenLogprob] | None
    origins: list[str]
    fault: Exception | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as ``foredraft generate -n N --json`` prints it."""
        names = ("index", "text", "token_ids", "finish_reason")
        document: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.logprobs is not None:
            document["logprobs"] = [asdict(each) for each in self.logprobs]
        if self.fault is not None:
            document["error"] = str(self.fault)
        return document


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one prompt: an answer, and where ``n`` were asked for, the others in ``choices``.

    ``text``, ``token_ids``, ``finish_reason``, ``logprobs``, ``origins`` and ``fault`` are those of choice 0, which is
    the answer that ``n`` = 1 gives; ``completion_tokens``, ``speculative`` and ``timings`` count all of them.
    ``cached_tokens`` of the ``prompt_tokens`` were not fed again: an earlier request had left them in the cache.
    ``notices`` says what may not be expected of the options; ``prediction`` is None where none was given.
    """

    model: str
    system_fingerprint: str
    tier: str
    dtype: str
    drafter: str
    rule: str
    seed: int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    speculative: Speculative
    timings: Timings
    choices: list[Choice]
    notices: list[str]
    prediction: Predicted | None = None

    @property
    def text(self) -> str:
        """The answer."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Its tokens."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        """Why it ended."""
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        """Its tokens' log-probabilities, where they were asked for."""
        return self.choices[0].logprobs

    @property
    def origins(self) -> list[str]:
        """Who wrote each of its tokens."""
        return self.choices[0].origins

    @property
    def fault(self) -> Exception | None:
        """Why no token could be drawn, where that ended it."""
        return self.choices[0].fault

    def to_dict(self) -> dict[str, Any]:
        """Return the document ``foredraft generate --json`` prints; what was not asked for is not in it."""
        first = self.choices[0].to_dict()
        del first["index"]
        names = ("model", "system_fingerprint", "tier", "dtype", "drafter", "rule", "seed")
        document: dict[str, Any] = {name: getattr(self, name) for name in names}
        document |= {"text": first.pop("text"), "token_ids": first.pop("token_ids")}
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            document[name] = getattr(self, name)
        document |= first
        document |= {"speculative": asdict(self.speculative), "timings": asdict(self.timings)}
        if self.prediction is not None:
            document["prediction"] = asdict(self.prediction)
        if self.notices:
            document["notices"] = self.notices
        if len(self.choices) > 1:
            document["choices"] = [choice.to_dict() for choice in self.choices]
        return document

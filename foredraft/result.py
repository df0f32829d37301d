"""What a generation gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from foredraft.engine.tally import Tally


@dataclass(frozen=True, slots=True)
class Speculative:
    """What speculation did for one answer. ``reason`` says why it was off, where it was."""

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
    def of(cls, tally: Tally, load_s: float) -> Timings:
        """Read the batch's tally."""
        decoded = tally.tokens - tally.answers
        return cls(
            load_s=load_s,
            prefill_s=tally.prefill_s,
            decode_s=tally.decode_s,
            tokens_per_s=decoded / tally.decode_s if tally.decode_s > 0 else None,
            draft_s=tally.draft_s,
            verify_s=tally.verify_s,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """One answer.

    ``token_ids`` holds every generated token, a final end-of-text token included; ``text`` is what they say, cut before
    a stop string. ``origins`` tells who wrote each token (see ``Piece.origin``). ``cached_tokens`` of the
    ``prompt_tokens`` were not fed again, because an earlier request had left them in the cache.
    """

    model: str
    system_fingerprint: str
    tier: str
    dtype: str
    drafter: str
    rule: str
    seed: int | None
    text: str
    token_ids: list[int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str | None
    speculative: Speculative
    timings: Timings
    origins: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the document ``foredraft generate --json`` prints."""
        document = asdict(self)
        del document["origins"]
        return document

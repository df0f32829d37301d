"""Answers and chunks as OpenAI writes them, with what this server adds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from foredraft.engine.text import Piece
from foredraft.result import TokenLogprob
from foredraft.server.backend import ScoredPrompt, Summary


def usage(prompt_tokens: int, completion_tokens: int, summary: Summary | None = None) -> dict[str, Any]:
    """Return the tokens that were read and written; with a summary also those of the cache and of a prediction."""
    counts: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if summary is not None:
        used = summary.prediction
        counts["prompt_tokens_details"] = {"cached_tokens": summary.cached_tokens}
        counts["completion_tokens_details"] = {
            "accepted_prediction_tokens": used.accepted if used else 0,
            "rejected_prediction_tokens": used.rejected if used else 0,
        }
    return counts


def whole_usage(summary: Summary) -> dict[str, Any]:
    """Return what a request read and wrote."""
    return usage(summary.prompt_tokens, summary.completion_tokens, summary)


def facts(summary: Summary) -> dict[str, Any]:
    """Return what this server tells beside OpenAI's fields."""
    told: dict[str, Any] = {"speculative": asdict(summary.speculative), "timings": timings(summary)}
    if summary.notices:
        told["notices"] = list(summary.notices)
    return told


def timings(summary: Summary) -> dict[str, Any]:
    """Return llama.cpp's timings."""
    pace, fed = summary.pace, summary.prompt_tokens - summary.cached_tokens
    return {
        "queue_ms": _ms(pace.queued_s),
        "prompt_n": fed,
        "cache_n": summary.cached_tokens,
        "prompt_ms": _ms(pace.prompt_s),
        "prompt_per_second": fed / pace.prompt_s if pace.prompt_s else None,
        "predicted_n": summary.completion_tokens,
        "predicted_ms": _ms(pace.decode_s),
        "predicted_per_second": pace.tokens_per_s,
        "draft_n": summary.speculative.drafted,
        "draft_n_accepted": summary.speculative.accepted,
        "plain_tokens_per_s": pace.plain_tokens_per_s,
        "speedup": pace.speedup,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def origins(pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """Return who wrote each token."""
    return [{"token": piece.token, "text": piece.text, "origin": piece.origin} for piece in pieces]


class CompletionLogprobs:
    """The log-probabilities of one text as ``/v1/completions`` writes them, which knows where each token begins."""

    def __init__(self) -> None:
        self._offset = 0

    def prompt(self, prompt: ScoredPrompt, top: int) -> dict[str, Any]:
        """Return those of a prompt that is echoed."""
        scores = [None, *(prompt.logprobs or ())]
        return self._of(prompt.tokens, scores, top, [len(token) for token in prompt.tokens])

    def answer(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob], top: int) -> dict[str, Any]:
        """Return those of the next tokens of the answer."""
        tokens = [score.token for score in logprobs]
        return self._of(tokens, logprobs, top, [len(piece.text) for piece in pieces])

    def _of(
        self, tokens: Sequence[str], scores: Sequence[TokenLogprob | None], top: int, lengths: Sequence[int]
    ) -> dict[str, Any]:
        offsets = []
        for length in lengths:
            offsets.append(self._offset)
            self._offset += length
        return {
            "tokens": list(tokens),
            "token_logprobs": [None if score is None else score.logprob for score in scores],
            "top_logprobs": [None if score is None else _top_logprobs(score, top) for score in scores],
            "text_offset": offsets,
        }


def _top_logprobs(score: TokenLogprob, top: int) -> dict[str, float]:
    """Return the likeliest tokens, best first, the chosen one among them; of two of one text the better."""
    found: dict[str, float] = {}
    for each in (*score.top_logprobs[:top], score):
        found.setdefault(each.token, each.logprob)
    return found


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return log-probabilities of several stretches as those of one."""
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


def chat_logprobs(logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Return log-probabilities as ``/v1/chat/completions`` writes them."""
    return {
        "content": [
            {**_token(score), "top_logprobs": [_token(each) for each in score.top_logprobs]} for score in logprobs
        ],
        "refusal": None,
    }


def _token(score: TokenLogprob) -> dict[str, Any]:
    whole = "�" not in score.token
    return {
        "token": score.token,
        "logprob": score.logprob,
        "bytes": list(score.token.encode("utf-8", "replace")) if whole else None,
    }

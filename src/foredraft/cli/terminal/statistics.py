"""What an answer, or many, came to: the statistics on stderr, part by part, and the totals of a document."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from foredraft.result import Result

_OFF: Final = "off: "
_ON: Final = "on: "
_COUNTED: Final = re.compile(r"guesses a pass$| acceptance ")
_ENOUGH: Final = 16  # tokens; of fewer what happens once, at the first time, would be all that is seen
_NEARLY: Final = 0.995  # below it a loss shows in two places behind the point only


def parts_of(result: Result, *, fed: bool = False) -> list[str]:
    """Return one answer's statistics, tier and dtype last; ``fed`` adds how much of the prompt had to be read."""
    decoded = result.completion_tokens - len(result.choices)
    parts = [_length(result), *_speed(decoded, result.timings.tokens_per_s, result.timings.speedup)]
    parts += _speculation(result.drafter, _counts([result]), result.speculative.reason)
    parts += _predictions([result])
    if fed:
        parts.append(f"{result.prompt_tokens - result.cached_tokens} of {result.prompt_tokens} prompt tokens read")
    return [*parts, f"{result.tier} {result.dtype}"]


def parts_total(results: Sequence[Result]) -> list[str]:
    """Return the statistics of many answers; of the reasons the last one's."""
    counts, last = _counts(results), results[-1]
    answers, failed = sum(len(r.choices) for r in results), sum(c.fault is not None for r in results for c in r.choices)
    notes = f" ({failed} with an error)" if failed else ""
    parts = [many(answers, "answer") + notes, many(counts["completion_tokens"], "token")]
    parts += _speed(counts["completion_tokens"] - answers, _tokens_per_s(results), _speedup(results))
    parts += _speculation(last.drafter, counts, last.speculative.reason)
    parts += _predictions(results)
    return [*parts, f"{last.tier} {last.dtype}"]


def totals(results: Sequence[Result]) -> dict[str, Any]:
    """Return the totals of many answers under the names of one answer's document; rates are ratios of totals."""
    counts = _counts(results)
    names: dict[str, dict[str, int]] = {}
    for result in results:
        for name, count in result.speculative.by_drafter.items():
            into = names.setdefault(name, dict.fromkeys(count, 0))
            for key, value in count.items():
                into[key] += value
    speculative = {key: counts[key] for key in ("rounds", "drafted", "accepted")}
    more: dict[str, Any] = {}
    if (used := _predicted(results)) is not None:
        more["prediction"] = {"accepted": used[0], "rejected": used[1]}
    if found := notices(results):
        more["notices"] = found
    return {
        "prompt_tokens": counts["prompt_tokens"],
        "completion_tokens": counts["completion_tokens"],
        "speculative": {
            **speculative,
            "mean_tokens_per_pass": _per_pass(counts),
            "acceptance_rate": _rate(counts),
            "by_drafter": names,
        },
        "timings": {
            "load_s": results[0].timings.load_s if results else None,
            "prefill_s": sum(r.timings.prefill_s for r in results),
            "decode_s": sum(r.timings.decode_s for r in results),
            "tokens_per_s": _tokens_per_s(results),
        },
        **more,
    }


def many(count: int, thing: str) -> str:
    """Return so many things, in words."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def notices(results: Sequence[Result]) -> list[str]:
    """Return what the answers' notices say, each once."""
    return list(dict.fromkeys(notice for result in results for notice in result.notices))


def _length(result: Result) -> str:
    count = many(result.completion_tokens, "token")
    notes = {"length": " (limit)", "stop": "", "error": " (error)"}
    if len(result.choices) > 1:
        failed = sum(choice.fault is not None for choice in result.choices)
        return f"{len(result.choices)} answers, {count}" + (f" ({failed} with an error)" if failed else "")
    return count + notes.get(result.finish_reason or "", " (stopped)")


def _predicted(results: Sequence[Result]) -> tuple[int, int] | None:
    """Return how many tokens of predictions were accepted and how many rejected; None where there was none."""
    used = [result.prediction for result in results if result.prediction is not None]
    return (sum(each.accepted for each in used), sum(each.rejected for each in used)) if used else None


def _predictions(results: Sequence[Result]) -> list[str]:
    accepted, rejected = _predicted(results) or (0, 0)
    return [f"prediction {accepted} of {accepted + rejected} accepted"] if accepted + rejected else []


def _speed(decoded: int, tokens_per_s: float | None, speedup: float | None) -> list[str]:
    """Return tokens a second, and how many times plain decoding that is: where that was measured here, and enough."""
    parts = [] if tokens_per_s is None else [f"{tokens_per_s:.1f} tokens/s"]
    if speedup is not None and decoded >= _ENOUGH:
        parts.append(f"{speedup:.{1 if speedup >= _NEARLY else 2}f}x plain")
    return parts


def _speculation(drafter: str, counts: dict[str, int], reason: str | None) -> list[str]:
    """Return how guesses fared and what a planner went by; or why there were none, in its words."""
    words = reason or ""
    drafted, accepted = counts["drafted"], counts["accepted"]
    if words.startswith(_OFF) and not drafted:
        return [words]
    rate = f" ({100 * _rate(counts):.0f}%)" if drafted else ""
    parts = [f"{_per_pass(counts):.2f} a pass", f"{drafter} {accepted} of {drafted} accepted{rate}"]
    if words.startswith(_ON):
        # how many guesses there were and how they fared stands in the parts before
        told = [clause for clause in words.removeprefix(_ON).split(", ") if not _COUNTED.search(clause)]
        parts += [", ".join(told).removesuffix(" here")] if told else []
    return parts


def _counts(results: Sequence[Result]) -> dict[str, int]:
    return {
        "answers": sum(1 for r in results for choice in r.choices if choice.token_ids),
        "prompt_tokens": sum(r.prompt_tokens for r in results),
        "completion_tokens": sum(r.completion_tokens for r in results),
        "rounds": sum(r.speculative.rounds for r in results),
        "drafted": sum(r.speculative.drafted for r in results),
        "accepted": sum(r.speculative.accepted for r in results),
    }


def _per_pass(counts: dict[str, int]) -> float:
    return (counts["completion_tokens"] - counts["answers"]) / counts["rounds"] if counts["rounds"] else 1.0


def _rate(counts: dict[str, int]) -> float:
    return counts["accepted"] / counts["drafted"] if counts["drafted"] else 0.0


def _tokens_per_s(results: Sequence[Result]) -> float | None:
    seconds = sum(r.timings.decode_s for r in results)
    decoded = sum(max(0, len(choice.token_ids) - 1) for r in results for choice in r.choices)
    return decoded / seconds if seconds > 0 else None


def _speedup(results: Sequence[Result]) -> float | None:
    """Return how many times plain decoding's speed many answers had; None where that is not known of each of them."""
    seconds = plain = 0.0
    for result in results:
        if not result.timings.tokens_per_s:  # one that decoded nothing takes no time
            continue
        if result.timings.speedup is None:
            return None
        seconds += result.timings.decode_s
        plain += result.timings.decode_s * result.timings.speedup
    return plain / seconds if seconds > 0 else None

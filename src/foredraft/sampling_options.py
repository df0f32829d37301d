"""The options that shape logits, count answers or bind an answer to a grammar: each checked, none ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from operator import index
from typing import Any, Final, SupportsIndex, cast

from foredraft.engine.shaping import ShapingOptions
from foredraft.errors import OptionError
from foredraft.grammar.source import GrammarSource, is_text
from foredraft.system.json_text import parse_json

MAX_N: Final = 128
MAX_LOGPROBS: Final = 20
_STRONGEST_PENALTY: Final = 100.0
_STRONGEST_BIAS: Final = 100.0


def whole(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """Return ``value`` if it is a whole number in range. Raises OptionError."""
    given = index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else None
    if given is None or given < least or (most is not None and given > most):
        span = f"of at least {least}" if most is None else f"between {least} and {most}"
        raise OptionError(f"{name} must be a whole number {span}, not {value!r:.60}")
    return given


def number(name: str, value: object, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Return ``value`` as a float if it is a finite number in range. Raises OptionError."""
    span = "" if (least, most) == (-math.inf, math.inf) else f" between {least:g} and {most:g}"
    wrong = OptionError(f"{name} must be a number{span}, not {value!r:.60}")
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong
    try:
        given = float(value)
    except OverflowError as fault:
        raise wrong from fault
    if not math.isfinite(given) or not least <= given <= most:
        raise wrong
    return given


def text(name: str, value: object) -> str:
    """Return ``value`` if it is text that can be written as UTF-8. Raises OptionError."""
    if not isinstance(value, str):
        raise OptionError(f"{name} must be text, not {value!r:.60}")
    if not is_text(value):
        raise OptionError(f"{name} is not UTF-8 text")
    return value


def switch(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False. Raises OptionError."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, not {value!r:.60}")
    return value


def shaping(given: Mapping[str, Any], max_tokens: int) -> ShapingOptions:
    """Return bias, penalties and min tokens; bad words are text still, and become tokens where a tokenizer is.

    Raises OptionError.
    """
    min_tokens = whole("min_tokens", given.get("min_tokens", 0), least=0)
    if min_tokens > max_tokens:
        raise OptionError(f"min_tokens {min_tokens} is more than max_tokens {max_tokens}")
    repetition = number(
        "repetition_penalty",
        given.get("repetition_penalty", 1.0),
        least=1 / _STRONGEST_PENALTY,
        most=_STRONGEST_PENALTY,
    )
    return ShapingOptions(
        logit_bias=_logit_bias(given.get("logit_bias", {})),
        repetition_penalty=repetition,
        presence_penalty=number("presence_penalty", given.get("presence_penalty", 0.0), least=-2, most=2),
        frequency_penalty=number("frequency_penalty", given.get("frequency_penalty", 0.0), least=-2, most=2),
        min_tokens=min_tokens,
    )


def bad_words(value: object) -> tuple[str, ...]:
    """Return what must not be written; one text needs no list. Raises OptionError."""
    words: tuple[object, ...] = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    texts = [word for word in words if isinstance(word, str) and word.strip()]
    if len(texts) != len(words):
        wrong = next(word for word in words if not isinstance(word, str) or not word.strip())
        raise OptionError(f"a bad word must be text that is not blank, not {wrong!r:.60}")
    return tuple(text("bad_words", word) for word in texts)


def logprobs(value: object) -> int | None:
    """Return how many of the likeliest tokens are told beside each chosen one; None for no log-probabilities at all.

    True asks for the chosen tokens' alone, as 0 does. Raises OptionError.
    """
    if value is None or value is False:
        return None
    return 0 if value is True else whole("logprobs", value, least=0, most=MAX_LOGPROBS)


def grammar(given: Mapping[str, Any]) -> GrammarSource | None:
    """Return what the whole answer must match, or None. Raises OptionError."""
    if "json_schema" in given and "regex" in given:
        raise OptionError("regex is there beside json_schema, and both say what the answer must look like: give one")
    if "json_schema" in given:
        return GrammarSource.of_schema(given["json_schema"])
    return GrammarSource.of_regex(given["regex"]) if "regex" in given else None


def _logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    """Read a mapping of token ids, which JSON writes as text, to numbers; or the same as ``ID:VALUE,...`` or JSON."""
    pairs = _pairs(value)
    bias: dict[int, float] = {}
    for key, amount in pairs:
        token = int(key) if isinstance(key, str) and key.strip().isdecimal() and len(key) < 20 else key
        if isinstance(token, bool) or not isinstance(token, SupportsIndex) or index(token) < 0:
            raise OptionError(f"logit_bias names its tokens by their ids, and {key!r:.60} is none")
        if index(token) in bias:
            raise OptionError(f"logit_bias names token {index(token)} twice")
        name = f"logit_bias of token {index(token)}"
        bias[index(token)] = number(name, amount, least=-_STRONGEST_BIAS, most=_STRONGEST_BIAS)
    return tuple(sorted(bias.items()))


def _pairs(value: object) -> list[tuple[Any, Any]]:
    wrong = OptionError(f"logit_bias must map token ids to numbers (ID:VALUE,... or JSON), not {value!r:.60}")
    if isinstance(value, Mapping):
        return list(value.items())
    if not isinstance(value, str):
        raise wrong
    try:
        if value.lstrip().startswith("{"):
            return cast("list[tuple[Any, Any]]", parse_json(value, list))
        return [(key, float(amount)) for key, _, amount in (part.partition(":") for part in value.split(","))]
    except ValueError as fault:
        raise wrong from fault

"""The options of one generation: read once, checked once, never ignored."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Final, SupportsIndex, TypedDict, cast

from foredraft.checks import number, switch, text, whole
from foredraft.core.protocols import Drafter
from foredraft.core.sampling import SamplingParams
from foredraft.engine.shaping import ShapingOptions
from foredraft.errors import OptionError
from foredraft.grammar.source import GrammarSource
from foredraft.retrieval.folder import check_scope
from foredraft.system.json_text import parse_json

MAX_N: Final = 128
MAX_LOGPROBS: Final = 20
_STRONGEST_PENALTY: Final = 100.0
_STRONGEST_BIAS: Final = 100.0

MAX_TOKENS: Final = 512
RULES: Final = ("auto", "ratio", "coupled")


class Options(TypedDict, total=False):
    """Keywords of ``generate``, ``stream`` and ``Conversation.send``, named as on the command line.

    The last six have transformers' names and meaning.
    """

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: int | Sequence[int]
    system: str | None
    raw: bool
    drafter: str | Drafter
    draft_tokens: int | str
    draft_temperature: float | None
    rule: str
    prediction: str | Sequence[int] | None
    cache_scope: str | None
    min_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | str | None
    bad_words: str | Sequence[str] | None
    logprobs: int | None
    n: int
    json_schema: Mapping[str, Any] | str | None
    regex: str | None
    max_new_tokens: int
    do_sample: bool
    assistant_model: Any
    prompt_lookup_num_tokens: int
    num_assistant_tokens: int
    assistant_early_exit: int


@dataclass(frozen=True, slots=True)
class Settings:
    """What one generation will do. ``drafter`` and ``draft_tokens`` are None where the model's own defaults hold.

    ``shaping`` lacks the ``bad_words``, which are text until a tokenizer has read them (``prompts.bad_word_ids``).
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = MAX_TOKENS
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    system: str | None = None
    raw: bool = False
    drafter: object = None
    draft_tokens: int | None = None
    draft_temperature: float | None = None
    rule: str = "auto"
    prediction: str | tuple[int, ...] | None = None
    cache_scope: str | None = None
    shaping: ShapingOptions = field(default_factory=ShapingOptions)
    bad_words: tuple[str, ...] = ()
    grammar: GrammarSource | None = None
    logprobs: int | None = None  # how many of the likeliest tokens are told beside each; None for none at all
    n: int = 1
    template: tuple[tuple[str, bool | str], ...] = ()  # variables of the chat template


def parse_options(options: Options) -> Settings:
    """Check every option and return what it comes to. Raises OptionError, one sentence a fault."""
    given = {name: value for name, value in cast("dict[str, Any]", options).items() if value is not None}
    for name in given:
        if name not in Options.__annotations__:
            raise OptionError(f"unknown option {name!r}{_nearest(name)}")
    if given.get("rule", "auto") not in RULES:
        raise OptionError(f"rule must be auto, ratio or coupled, not {given['rule']!r}")
    drafter, draft_tokens = _drafting(given)
    max_tokens = _max_tokens(given)
    return Settings(
        sampling=SamplingParams(
            temperature=_temperature(given),
            top_k=whole("top_k", given.get("top_k", 0), minimum=0),
            top_p=number("top_p", given.get("top_p", 1.0)),
            min_p=number("min_p", given.get("min_p", 0.0)),
        ),
        max_tokens=max_tokens,
        seed=None if "seed" not in given else whole("seed", given["seed"], minimum=0, maximum=2**64 - 1),
        stop=_stop(given.get("stop", ())),
        stop_token_ids=_stop_ids(given.get("stop_token_ids", ())),
        system=None if "system" not in given else text("system", given["system"]),
        raw=switch("raw", given.get("raw", False)),
        drafter=drafter,
        draft_tokens=draft_tokens,
        draft_temperature=parse_draft_temperature(given.get("draft_temperature")),
        rule=given.get("rule", "auto"),
        prediction=_prediction(given.get("prediction")),
        cache_scope=None if "cache_scope" not in given else check_scope(given["cache_scope"]),
        shaping=shaping(given, max_tokens),
        bad_words=bad_words(given.get("bad_words", ())),
        grammar=grammar(given),
        logprobs=logprobs(given.get("logprobs")),
        n=whole("n", given.get("n", 1), minimum=1, maximum=MAX_N),
    )


def check_vocabulary(settings: Settings, vocabulary: int) -> None:
    """Refuse tokens that a vocabulary of so many does not have. Raises OptionError."""
    for token in settings.stop_token_ids:
        if token >= vocabulary:
            raise OptionError(f"stop token {token} is not in the vocabulary of {vocabulary}")
    for token, _ in settings.shaping.logit_bias:
        if token >= vocabulary:
            raise OptionError(f"logit_bias names token {token}, which is not in the vocabulary of {vocabulary}")


def draft_length(value: object) -> int | None:
    """Return a draft length; None for "auto", the planner's. Raises OptionError."""
    return None if value in ("auto", None) else whole("draft_tokens", value, minimum=0)


def parse_draft_temperature(value: object) -> float | None:
    """Return the drafter's own temperature; None for the request's. Raises OptionError."""
    if value is None:
        return None
    temperature = number("draft_temperature", value)
    if temperature < 0:
        raise OptionError(f"draft_temperature must be at least 0, not {temperature}")
    return temperature


def _drafting(given: Mapping[str, Any]) -> tuple[object, int | None]:
    drafter = given.get("drafter")
    draft_tokens = draft_length(given.get("draft_tokens"))
    if "assistant_model" in given:
        if drafter is not None:
            raise OptionError("drafter and assistant_model name two drafters: give one")
        drafter = AssistantModel(given["assistant_model"])
    if "prompt_lookup_num_tokens" in given:
        if drafter is not None:
            raise OptionError("prompt_lookup_num_tokens asks for the lookup drafter, but another is named: give one")
        drafter = "lookup"
        draft_tokens = whole("prompt_lookup_num_tokens", given["prompt_lookup_num_tokens"], minimum=1)
    if "assistant_early_exit" in given:
        if drafter is not None:
            raise OptionError("assistant_early_exit asks for the layers drafter, but another is named: give one")
        drafter = f"layers:{whole('assistant_early_exit', given['assistant_early_exit'], minimum=1)}"
    if "num_assistant_tokens" in given:
        draft_tokens = whole("num_assistant_tokens", given["num_assistant_tokens"], minimum=1)
    return drafter, draft_tokens


@dataclass(frozen=True, slots=True)
class AssistantModel:
    """A draft model by transformers' name for it: a name, a folder or a model object."""

    model: Any


def _prediction(value: object) -> str | tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) and value:
        return text("prediction", value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not len(value):
        raise OptionError(f"prediction must be text or token ids, and not empty, not {value!r:.60}")
    return tuple(whole("a token of a prediction", token, minimum=0) for token in value)


def _temperature(given: Mapping[str, Any]) -> float:
    if "do_sample" not in given:
        return number("temperature", given.get("temperature", 0.0))
    if not switch("do_sample", given["do_sample"]):
        if given.get("temperature", 0) not in (0, 1):
            raise OptionError(f"do_sample=False is greedy, and temperature {given['temperature']} is not: give one")
        return 0.0
    return number("temperature", given.get("temperature", 1.0))


def _max_tokens(given: Mapping[str, Any]) -> int:
    names = [name for name in ("max_tokens", "max_new_tokens") if name in given]
    if len(names) == 2 and given[names[0]] != given[names[1]]:
        raise OptionError("max_tokens and max_new_tokens mean the same and differ: give one")
    return whole(names[0], given[names[0]], minimum=1) if names else MAX_TOKENS


def _stop(value: object) -> tuple[str, ...]:
    strings: tuple[object, ...] = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    for s in strings:
        if not isinstance(s, str) or not s:
            raise OptionError(f"a stop string must be text that is not empty, not {s!r}")
    return tuple(text("stop", s) for s in strings)


def _stop_ids(value: object) -> frozenset[int]:
    ids: Iterable[object] = value if isinstance(value, Iterable) and not isinstance(value, str | bytes) else (value,)
    return frozenset(whole("stop_token_ids", i, minimum=0) for i in ids)


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, Options.__annotations__, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def shaping(given: Mapping[str, Any], max_tokens: int) -> ShapingOptions:
    """Return bias, penalties and min tokens; bad words are text still, and become tokens where a tokenizer is.

    Raises OptionError.
    """
    min_tokens = whole("min_tokens", given.get("min_tokens", 0), minimum=0)
    if min_tokens > max_tokens:
        raise OptionError(f"min_tokens {min_tokens} is more than max_tokens {max_tokens}")
    repetition = number(
        "repetition_penalty",
        given.get("repetition_penalty", 1.0),
        minimum=1 / _STRONGEST_PENALTY,
        maximum=_STRONGEST_PENALTY,
    )
    return ShapingOptions(
        logit_bias=_logit_bias(given.get("logit_bias", {})),
        repetition_penalty=repetition,
        presence_penalty=number("presence_penalty", given.get("presence_penalty", 0.0), minimum=-2, maximum=2),
        frequency_penalty=number("frequency_penalty", given.get("frequency_penalty", 0.0), minimum=-2, maximum=2),
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
    return 0 if value is True else whole("logprobs", value, minimum=0, maximum=MAX_LOGPROBS)


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
        bias[index(token)] = number(name, amount, minimum=-_STRONGEST_BIAS, maximum=_STRONGEST_BIAS)
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
    except ValueError as error:
        raise wrong from error

"""What requests may hold. Types are strict; fields that nobody knows are kept, to be warned of."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

MAX_STOPS: Final = 4
MAX_DRAFT_TOKENS: Final = 64
MAX_N: Final = 128
_MAX_SEED: Final = 2**64 - 1
_MAX_WHOLE: Final = 2**31 - 1
_IDS: Final[dict[str, Any]] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_FORMS: Final = "must be text, a list of texts, token ids or a list of token ids, and not empty"


def _stop(value: object) -> str | list[str] | None:
    strings = [value] if isinstance(value, str) else value
    if value is None:
        return None
    if not isinstance(strings, list) or not all(isinstance(s, str) and s for s in strings):
        raise ValueError("must be text that is not empty, or a list of such")
    if len(strings) > MAX_STOPS:
        raise ValueError(f"holds {len(strings)} texts, and {MAX_STOPS} are the limit")
    return strings


def _ids_or_none(value: object) -> list[int] | None:
    return None if value is None else _ids(value)


def _ids(value: object) -> list[int]:
    ids = [_integral(each) for each in value] if isinstance(value, list) else None
    if ids is None or not all(map(_is_id, ids)):
        raise ValueError("must be a list of token ids")
    return cast("list[int]", ids)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _prompt(value: object) -> str | list[Any]:
    """Return a prompt, or a list of prompts of one kind."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        if all(isinstance(part, str) and part for part in value):
            return value
        with suppress(ValueError):
            return [_ids(part) for part in value] if all(value) and isinstance(value[0], list) else _ids(value)
    raise ValueError(_PROMPT_FORMS)


def _text_or_parts(value: object) -> str:
    """Return a content: text, or a list of parts that are text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be text, or a list of parts that are text")
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError("holds a part that is not text, and this model reads nothing else")
    return "".join(part["text"] for part in value)


_TEXT_OR_PARTS: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            },
        },
    ]
}
_ARRAY_OF_TEXT: Final = {"type": "array", "items": {"type": "string", "minLength": 1}}
_TEXTS: Final = {"type": "string", "minLength": 1}
Content = Annotated[str, PlainValidator(_text_or_parts), WithJsonSchema(_TEXT_OR_PARTS)]
Prompts = Annotated[
    Any,
    PlainValidator(_prompt),
    WithJsonSchema(
        {
            "anyOf": [
                _TEXTS,
                {**_ARRAY_OF_TEXT, "minItems": 1},
                _IDS,
                {"type": "array", "items": _IDS, "minItems": 1},
            ]
        }
    ),
]
Stops = Annotated[
    Any,
    PlainValidator(_stop),
    WithJsonSchema({"anyOf": [_TEXTS, {**_ARRAY_OF_TEXT, "maxItems": MAX_STOPS}, {"type": "null"}]}),
]
Ids = Annotated[
    Any, PlainValidator(_ids_or_none), WithJsonSchema({"anyOf": [{**_IDS, "minItems": 0}, {"type": "null"}]})
]


def _integral(value: object) -> object:
    """Return 1 for 1.0, which JSON Schema takes for an integer too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_integral)]


class Strict(BaseModel):
    """No conversions, no NaN; fields that nobody knows are kept."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    def fields(self) -> list[str]:
        """Return the names of the fields that the request gave."""
        return sorted(self.model_fields_set)


class Closed(BaseModel):
    """The same for objects of ours, in which an unknown field is a mistake."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Named(Strict):
    """A request, which may name the model that it is for."""

    model: str | None = Field(None, description="The served model's name; it may be left out.")


class StreamOptions(Strict):
    """What a stream tells beside the text."""

    include_usage: bool | None = Field(None, description="A last chunk without choices that holds `usage`.")
    continuous_usage_stats: bool | None = Field(None, description="`usage` so far in every chunk.")
    include_origins: bool | None = Field(None, description="Who wrote each token, in every choice of a chunk.")


class Prediction(Strict):
    """OpenAI's predicted output: what most of the answer is expected to be, to copy guesses from."""

    type: Literal["content"]
    content: Content


class Schema(Strict):
    """A named JSON schema."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """What the whole answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class Speculation(Closed):
    """Who guesses, how far, and by which rule guesses are accepted."""

    drafter: str | None = Field(None, description="auto, none, lookup, suffix, heads, layers, or some joined by +.")
    draft_tokens: Annotated[Whole, Field(ge=0, le=MAX_DRAFT_TOKENS)] | Literal["auto"] | None = None
    rule: Literal["auto", "ratio", "coupled"] | None = None


class Common(Named):
    """The fields of both kinds of request."""

    temperature: float | None = Field(None, ge=0, le=100, description="1 where it is left out; 0 is greedy.")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Whole | None = Field(None, ge=-1, le=_MAX_WHOLE, description="0 and -1 are off.")
    min_p: float | None = Field(None, ge=0, le=1)
    max_tokens: Whole | None = Field(None, ge=0, le=_MAX_WHOLE)
    min_tokens: Whole | None = Field(None, ge=0, le=_MAX_WHOLE)
    n: Whole | None = Field(None, ge=1, le=MAX_N)
    seed: Whole | None = Field(None, ge=0, le=_MAX_SEED, description="One seed, one text, however it is drafted.")
    stop: Stops = None
    stop_token_ids: Ids = None
    bad_words: Stops = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    continuous_usage_stats: bool | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    logit_bias: dict[str, float] | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    user: str | None = Field(None, description="Whose text it is, within one key: nothing is re-used across users.")
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    speculative: bool | Speculation | None = Field(None, description="false switches every drafter off.")
    cache_scope: str | None = Field(None, description="Copy from what was said under this name, and remember this.")


class CompletionRequest(Common):
    """A text to go on with, or several."""

    prompt: Prompts
    echo: bool | None = None
    logprobs: Whole | None = Field(None, ge=0, le=20)
    best_of: Whole | None = Field(None, ge=1, le=MAX_N, description="Only as many as n.")


class Message(Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class ChatRequest(Common):
    """A conversation to go on with."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Whole | None = Field(None, ge=0, le=_MAX_WHOLE)
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(Named):
    """A text, or a conversation, to be told the tokens of."""

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Named):
    """Tokens to be told the text of."""

    tokens: Annotated[Any, PlainValidator(_ids), WithJsonSchema({**_IDS, "minItems": 0})]

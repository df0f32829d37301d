"""From a request's fields to what the served model is asked: each is honoured, refused, or warned of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foredraft.server.backend import GenerateRequest
from foredraft.server.errors import ApiError
from foredraft.server.wire.request_schema import ChatRequest, Common, CompletionRequest, Message, Named, Speculation

COMPLETION_TOKENS: Final = 16  # OpenAI's default
WARNING: Final = "X-Foredraft-Warning"
DRAFTERS: Final = ("auto", "none", "lookup", "suffix", "heads", "layers")
_MAX_DRAFTERS: Final = 3
# switches that models are made for; any other variable could change what is said, or reach the template itself
_TEMPLATE: Final[Mapping[str, tuple[bool | str, ...]]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "reasoning_effort": ("low", "medium", "high"),
}
# fields that other servers know and this one cannot honour, and the values that ask for nothing
_REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "tools": ([],), "tool_choice": ("none",), "functions": ([],), "function_call": ("none",),
    "parallel_tool_calls": (True, False), "modalities": (["text"],), "audio": (), "web_search_options": (),
    "reasoning_effort": (), "verbosity": (), "service_tier": ("auto", "default"), "store": (False,), "suffix": ("",),
    "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (), "structured_outputs": (),
    "grammar": ("",), "json_schema": (), "use_beam_search": (False,), "prompt_logprobs": (),
    "truncate_prompt_tokens": (), "skip_special_tokens": (True,), "include_stop_str_in_output": (False,),
    "allowed_token_ids": (), "logits_processors": ([],), "typical_p": (1, 1.0), "mirostat": (0,),
    "dry_multiplier": (0, 0.0), "xtc_probability": (0, 0.0), "chat_template": (), "add_generation_prompt": (True,),
    "continue_final_message": (False,), "documents": ([],), "priority": (0,), "echo": (False,),
    "cache_prompt": (True,), "best_of": (1,), "n_predict": (), "length_penalty": (1, 1.0), "early_stopping": (False,),
    "lora": ([],),
}  # fmt: skip
_IN_MESSAGE: Final = ("name", "tool_calls", "tool_call_id", "function_call", "refusal", "audio")


def check_known(body: Named, name: str) -> list[str]:
    """Return the fields that nobody knows. Raises ApiError for one that cannot be honoured, and for another model."""
    if body.model is not None and body.model != name:
        raise ApiError(404, f"the model {body.model!r:.80} is not served here: {name} is", "model", "model_not_found")
    given = body.model_extra or {}
    for field, value in given.items():
        if value is not None and field in _REFUSED and not _harmless(value, _REFUSED[field]):
            raise ApiError(400, f"{field} cannot be honoured by this server: leave it out", field, "unsupported")
    return [field for field in given if field not in _REFUSED]


def _harmless(value: Any, values: tuple[Any, ...]) -> bool:
    return any(type(value) is type(each) and value == each for each in values)


def warned(unknown: list[str]) -> dict[str, str]:
    """Return the header that names fields without effect."""
    if not unknown:
        return {}
    names = ", ".join(_printable(name) for name in unknown[:8])
    more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
    return {WARNING: f"no effect: {names}{more}"}


def _printable(name: str) -> str:
    """Return a name as a header can hold it."""
    return "".join(sign if "!" <= sign <= "~" and sign != "," else "?" for sign in name[:40]) or '""'


def of_completion(body: CompletionRequest, owner: str, most_prompts: int) -> GenerateRequest:
    """Return what a completion asks. Raises ApiError."""
    prompts = body.prompt if isinstance(body.prompt, list) and not isinstance(body.prompt[0], int) else [body.prompt]
    if len(prompts) > most_prompts:
        raise ApiError(400, f"prompt holds {len(prompts)} prompts, and {most_prompts} are the limit", "prompt")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise ApiError(400, "best_of cannot be honoured by this server: leave it out", "best_of", "unsupported")
    budget = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    options = {**_options(body), "raw": True, "logprobs": body.logprobs}
    return GenerateRequest(
        prompts=prompts,
        options=_with_budget(options, budget),
        owner=_owner(body, owner),
        scored=body.logprobs if body.echo else None,
        echo=bool(body.echo),
        generate=budget > 0,
        ignore_eos=bool(body.ignore_eos),
    )


def of_chat(body: ChatRequest, owner: str, context: int) -> GenerateRequest:
    """Return what a chat asks; without a budget the context is it. Raises ApiError."""
    budgets = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(budgets) > 1:
        raise ApiError(400, "max_tokens and max_completion_tokens differ: give one", "max_completion_tokens")
    budget = next(iter(budgets), context) or 0
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", "top_logprobs")
    options = {**_options(body), "logprobs": (body.top_logprobs or 0) if body.logprobs else None}
    return GenerateRequest(
        prompts=[turns(body.messages)],
        options=_with_budget(options, budget),
        owner=_owner(body, owner),
        template=template(body.chat_template_kwargs),
        generate=budget > 0,
        ignore_eos=bool(body.ignore_eos),
    )


def turns(messages: list[Message]) -> list[dict[str, str]]:
    """Return messages as the library takes them. Raises ApiError for a part of one that cannot be honoured."""
    for i, message in enumerate(messages):
        given = {name for name, value in (message.model_extra or {}).items() if value not in (None, [])}
        if found := sorted(given.intersection(_IN_MESSAGE)):
            raise ApiError(
                400, f"messages[{i}].{found[0]} cannot be honoured by this server", "messages", "unsupported"
            )
    roles = {"developer": "system"}
    return [{"role": roles.get(each.role, each.role), "content": each.content} for each in messages]


def template(given: Mapping[str, Any] | None) -> dict[str, bool | str]:
    """Return variables for the chat template. Raises ApiError for all but those that are known to be safe."""
    for name, value in (given or {}).items():
        if name not in _TEMPLATE or not _harmless(value, _TEMPLATE[name]):
            known = ", ".join(_TEMPLATE)
            raise ApiError(
                400,
                f"chat_template_kwargs may hold {known}, and not {name!r:.40}: {value!r:.40}",
                "chat_template_kwargs",
            )
    return dict(given or {})


def _owner(body: Common, owner: str) -> str:
    return owner if body.user is None else f"{owner}/{body.user}"


def _with_budget(options: dict[str, Any], budget: int) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    return {**given, "max_tokens": max(1, budget)}


def _options(body: Common) -> dict[str, Any]:
    """Return the options that both kinds of request have, by the library's names."""
    top_k = body.top_k
    names = (
        "top_p", "min_p", "seed", "stop", "stop_token_ids", "bad_words", "min_tokens", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "logit_bias", "n", "cache_scope",
    )  # fmt: skip
    options = {name: getattr(body, name) for name in names}
    options["temperature"] = 1.0 if body.temperature is None else body.temperature
    options["top_k"] = 0 if top_k == -1 else top_k
    options["json_schema"] = _json_schema(body)
    options["prediction"] = None if body.prediction is None else body.prediction.content
    return {**options, **_drafting(body.speculative)}


def _json_schema(body: Common) -> Mapping[str, Any] | None:
    form = body.response_format
    if form is None or form.type == "text":
        return None
    if body.ignore_eos:
        raise ApiError(400, "ignore_eos and response_format contradict each other: give one", "ignore_eos")
    if form.type == "json_object":
        return {"type": "object"}
    if form.json_schema is None:
        raise ApiError(400, "response_format of type json_schema needs a json_schema", "response_format")
    return form.json_schema.schema_


def _drafting(asked: bool | Speculation | None) -> dict[str, Any]:
    if asked is False:
        return {"drafter": "none"}
    if not isinstance(asked, Speculation):
        return {}
    if asked.drafter is not None:
        check_drafter(asked.drafter)
    return {"drafter": asked.drafter, "draft_tokens": asked.draft_tokens, "rule": asked.rule}


def check_drafter(names: str) -> None:
    """Refuse a drafter that a request may not name: files, models and classes are the server's own to choose."""
    parts = names.split("+")
    if not set(parts) <= set(DRAFTERS) or len(set(parts)) < len(parts) or len(parts) > _MAX_DRAFTERS:
        known = ", ".join(DRAFTERS)
        raise ApiError(
            400, f"speculative.drafter is one of {known}, or some joined by +, not {names!r:.60}", "speculative"
        )

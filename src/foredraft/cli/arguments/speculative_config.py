"""``--speculative-config``: vLLM's description of a drafter, read into ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from foredraft.cli.arguments.parser import nearest
from foredraft.errors import OptionError

if TYPE_CHECKING:
    from foredraft.core.protocols import Drafter

_KEYS: Final = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
_LATER: Final = (
    "eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "dflash", "deepseek_mtp",
)  # fmt: skip
_OPTION: Final = "--speculative-config"
_METHODS: Final = "ngram, suffix or draft_model"


def read(text: str, drafter: str | None, draft_tokens: int | str | None) -> tuple[str | Drafter, int | None]:
    """Return the drafter and draft length that the JSON describes (None: not said).

    ``drafter`` and ``draft_tokens`` are what other options say. Raises OptionError for anything that is not understood
    and for two options that contradict each other.
    """
    config = _parsed(text)
    if drafter is not None:
        raise OptionError(f"{_OPTION} and --drafter both name a drafter: give one")
    length = _whole(config, "num_speculative_tokens")
    if length is not None and draft_tokens not in (None, length):
        raise OptionError(f"{_OPTION} asks for {length} draft tokens and --draft-tokens for {draft_tokens}: give one")
    return _drafter(config), length


def _parsed(text: str) -> Mapping[str, Any]:
    from foredraft.checks import unique
    from foredraft.system.json_text import parse_json

    try:
        config = parse_json(text, unique)
    except ValueError as error:
        raise OptionError(f"{_OPTION} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise OptionError(f"{_OPTION} must be a JSON object, not {text:.60}")
    for key in config:
        if key not in _KEYS:
            raise OptionError(f"{_OPTION} has no key {key!r}{nearest(key, _KEYS)}")
    return config


def _drafter(config: Mapping[str, Any]) -> str | Drafter:
    model = config.get("model")
    if model is not None and (not isinstance(model, str) or not model):
        raise OptionError(f"{_OPTION}: model must be a name or a path, not {model!r}")
    method = config.get("method")
    if method is None:
        method = "ngram" if model in (None, "[ngram]", "ngram") else "suffix" if model == "suffix" else "draft_model"
    if method in ("ngram", "[ngram]"):
        return _lookup(config)
    if method in _LATER:
        raise OptionError(f"{_OPTION}: method {method} is not in this version yet: use {_METHODS}")
    if method not in ("draft_model", "suffix"):
        raise OptionError(f"{_OPTION} has no method {method!r}: use {_METHODS}")
    for key in ("prompt_lookup_max", "prompt_lookup_min"):
        if config.get(key) is not None:
            raise OptionError(f"{_OPTION}: {key} belongs to method ngram, not {method}")
    if method == "suffix":
        if model not in (None, "suffix"):
            raise OptionError(f"{_OPTION}: method suffix copies and has no model: leave model out")
        return "suffix"
    if model is None:
        raise OptionError(f"{_OPTION}: method draft_model needs a model")
    return f"model:{model}"


def _lookup(config: Mapping[str, Any]) -> str | Drafter:
    """Return the lookup drafter; as in vLLM, one bound given alone is both."""
    most, least = _whole(config, "prompt_lookup_max"), _whole(config, "prompt_lookup_min")
    if most is None and least is None:
        return "lookup"
    from foredraft.drafters.lookup import Lookup

    if least is None:
        least = most
    if most is None:
        most = least
    assert least is not None
    assert most is not None
    if least > most:
        raise OptionError(f"{_OPTION}: prompt_lookup_min {least} is above prompt_lookup_max {most}")
    return Lookup(min_ngram=least, max_ngram=most)


def _whole(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{_OPTION}: {key} must be a whole number of at least 1, not {value!r}")
    return value

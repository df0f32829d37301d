"""Python's names for options put as the command line's."""

from __future__ import annotations

import re
from typing import Final

# words of plain English too, so they are options only where a complaint begins with them
_SINGLE: Final = frozenset(
    {
        "temperature", "seed", "rule", "regex", "n", "logprobs", "device", "dtype", "threads", "context", "system",
        "raw", "tokens", "samples", "prediction", "minutes", "lengths", "epochs", "vocabulary", "kind", "gigabytes",
        "longest", "layers",
    }
)  # fmt: skip
_DOUBLE: Final = frozenset(
    {
        "max_tokens", "top_k", "top_p", "min_p", "stop_token_ids", "draft_tokens", "draft_temperature", "min_tokens",
        "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "json_schema",
        "native_tier", "cache_scope",
    }
)  # fmt: skip
_VERBS: Final = "must|is|asks|has|had|does|cannot|rules|and|needs"
_BEGINNING: Final = re.compile(rf"(?:^|(?<=: ))(?:{'|'.join(sorted(_SINGLE))})(?= (?:{_VERBS})\b|, [a-z]+_)")


def as_options(message: str) -> str:
    """Return the sentence with ``max_tokens`` written ``--max-tokens``, so that it names what was typed."""
    message = re.sub(_BEGINNING, lambda found: f"{'-' if found[0] == 'n' else '--'}{found[0]}", message)
    return re.sub(r"(?<![\w/.'\"-])[a-z]+(?:_[a-z]+)+(?![\w/'\"(])", _dashed, message)


def _dashed(found: re.Match[str]) -> str:
    return "--" + found[0].replace("_", "-") if found[0] in _DOUBLE else found[0]

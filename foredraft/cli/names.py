"""Python's names for options put as the command line's."""

from __future__ import annotations

import re
from typing import Final

# words of plain English too, so they are options only where a complaint begins with them
_SINGLE: Final = frozenset(
    {
        "temperature", "seed", "rule", "regex", "n", "logprobs", "device", "dtype", "threads", "context", "system",
        "raw", "tokens", "samples", "minutes",
    }
)  # fmt: skip
_DOUBLE: Final = frozenset(
    {
        "max_tokens", "top_k", "top_p", "min_p", "stop_token_ids", "draft_tokens", "draft_temperature", "min_tokens",
        "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "json_schema",
        "native_tier",
    }
)  # fmt: skip


def as_options(message: str) -> str:
    """Return the sentence with ``max_tokens`` written ``--max-tokens``, so that it names what was typed."""
    first, _, rest = message.partition(" ")
    if first in _SINGLE and re.match(r"(must|is|asks|has|does|cannot)\b", rest):
        message = f"{'-' if first == 'n' else '--'}{first} {rest}"
    return re.sub(r"(?<![\w/.'\"-])[a-z]+(?:_[a-z]+)+(?![\w/'\"(])", _dashed, message)


def _dashed(found: re.Match[str]) -> str:
    return "--" + found[0].replace("_", "-") if found[0] in _DOUBLE else found[0]

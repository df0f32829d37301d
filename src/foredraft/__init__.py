"""Lossless speculative decoding: several tokens for one reading of a language model's weights, the text unchanged.

import foredraft
lm = foredraft.load("smollm2-135m")
print(lm.generate("Why is the sky blue?", max_tokens=200).text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foredraft._version import __version__

if TYPE_CHECKING:
    from foredraft.api import LanguageModel, Stream, load
    from foredraft.conversation import Conversation
    from foredraft.core.draft import Draft
    from foredraft.engine.text import Piece
    from foredraft.errors import ForedraftError
    from foredraft.result import Result

__all__ = [
    "Conversation",
    "Draft",
    "ForedraftError",
    "LanguageModel",
    "Piece",
    "Result",
    "Stream",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    # public names are imported when first asked for, so that `import foredraft` and `--help` cost milliseconds
    import importlib

    homes = {
        "Conversation": "conversation",
        "Draft": "core.draft",
        "ForedraftError": "errors",
        "LanguageModel": "api",
        "Piece": "engine.text",
        "Result": "result",
        "Stream": "api",
        "load": "api",
    }
    if name not in homes:
        raise AttributeError(f"module 'foredraft' has no attribute {name!r}")
    return getattr(importlib.import_module(f"foredraft.{homes[name]}"), name)

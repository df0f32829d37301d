"""What packed weights are kept by: the text of a decoder's spec, under the names its fields had when this was fixed."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Final

from foredraft.models.spec import DecoderSpec

_NAMES: Final = {"norm_position": "places"}  # of today's fields, those that had another name


def spec_key(spec: DecoderSpec) -> str:
    """Return a spec as text. It changes with every fact, and with no name: a new name would pack all weights anew."""
    return _text(spec)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))}{',' if len(value) == 1 else ''})"
    if not is_dataclass(value):
        return repr(value)
    facts = (f"{_NAMES.get(each.name, each.name)}={_text(getattr(value, each.name))}" for each in fields(value))
    return f"{type(value).__name__}({', '.join(facts)})"

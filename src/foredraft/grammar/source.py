"""A grammar as it was asked for, and what it may cost: checked before llguidance sees it.

llguidance bounds most work with fuel of its own. What it does not bound is refused here: nesting that would exhaust its
stack, multiples whose automaton has a state a number, and patterns whose automaton grows with their square.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import lcm
from typing import Any, Final
from urllib.parse import unquote

from foredraft.checks import is_text, unique
from foredraft.errors import OptionError

SCHEMA_BYTES: Final = 64 << 10
PATTERN_BYTES: Final = 8 << 10  # of one regex, or of a schema's patterns together
DEPTH: Final = 64
LEVELS: Final = 800  # an 8 MiB stack was seen to hold twice as many
MULTIPLE: Final = 20_000
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """What the whole answer must match. ``kind`` is the option: "json_schema" or "regex"; ``text`` is its source."""

    kind: str
    text: str

    @classmethod
    def of_schema(cls, schema: object) -> GrammarSource:
        """Read a JSON schema, an object or its JSON text; the order of its properties counts. Raises OptionError."""
        if isinstance(schema, str):
            if not schema.strip():
                raise OptionError("json_schema is empty")
            _check_size(len(schema.encode(errors="replace")))
            try:
                schema = json.loads(schema, parse_constant=_no_constant, object_pairs_hook=unique)
            except (ValueError, RecursionError) as error:
                raise OptionError(f"json_schema is not JSON: {error}") from error
        if not isinstance(schema, Mapping):
            raise OptionError(f"json_schema must be a JSON object, not {schema!r:.60}")
        try:
            text = json.dumps(schema, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"json_schema cannot be written as JSON: {error}") from error
        if not is_text(json.dumps(schema, ensure_ascii=False)):
            raise OptionError("json_schema is not UTF-8 text")
        _check_size(len(text))
        _check_schema(schema)
        return cls("json_schema", text)

    @classmethod
    def of_regex(cls, regex: object) -> GrammarSource:
        """Read a regular expression in Rust's syntax. Raises OptionError."""
        if not isinstance(regex, str) or not regex:
            raise OptionError(f"regex must be text that is not empty, not {regex!r:.60}")
        if not is_text(regex):
            raise OptionError("regex is not UTF-8 text")
        if (size := len(regex.encode(errors="replace"))) > PATTERN_BYTES:
            raise OptionError(f"regex has {size} bytes, and {PATTERN_BYTES} are the limit")
        return cls("regex", regex)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _check_size(size: int) -> None:
    if size > SCHEMA_BYTES:
        raise OptionError(f"json_schema has {size} bytes, and {SCHEMA_BYTES} are the limit")


def _check_schema(schema: Any) -> None:
    """Raise OptionError for a schema that is too deep, or too fine for its automaton."""
    if (depth := _depth(schema)) > DEPTH:
        raise OptionError(f"json_schema is nested {depth} levels deep, and {DEPTH} are the limit")
    parts = list(_objects(schema))
    if (levels := _levels(schema, parts)) > LEVELS:
        raise OptionError(
            f"the definitions of json_schema are {levels} levels deep together, and {LEVELS} are the limit"
        )
    patterns = sum(len(pattern.encode(errors="replace")) for part in parts for pattern in _patterns(part))
    if patterns > PATTERN_BYTES:
        raise OptionError(
            f"the patterns of json_schema have {patterns} bytes together, and {PATTERN_BYTES} are the limit"
        )
    _check_multiples([part["multipleOf"] for part in parts if _is_number(part.get("multipleOf"))])


def _depth(value: Any) -> int:
    """Return how many objects and lists lie within each other; not recursive, so that any depth can be told."""
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, Mapping | list | tuple)]:
        depth += 1
        level = [inner for v in level for inner in _inside(v)]
    return depth


def _inside(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list | tuple) else ()


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
    for inner in _inside(value):
        yield from _objects(inner)


def _levels(schema: Any, parts: list[Mapping[str, Any]]) -> int:
    """Return the depth of the schema and of all that it refers to, each counted once: no chain can be longer."""
    whole = _depth(schema)
    pointers = {str(part["$ref"]) for part in parts if "$ref" in part}
    if any("$id" in part for part in parts[1:]):  # pointers then need not start at the root
        return whole * (1 + len(pointers))
    targets = (_target(schema, pointer) for pointer in pointers)
    return whole + sum(whole if target is None else _depth(target) for target in targets)


def _target(schema: Any, pointer: str) -> Any:
    """Return what a JSON pointer into the schema points to; None if that is not found."""
    path = unquote(pointer.partition("#")[2])
    value = schema if path.startswith("/") else None
    for step in path.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(name)
        else:
            inside = _inside(value)
            value = inside[int(name)] if name.isdecimal() and int(name) < len(inside) else None
    return value


def _patterns(part: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(pattern := part.get("pattern"), str):
        yield pattern
    if isinstance(named := part.get("patternProperties"), Mapping):
        yield from map(str, named)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_multiples(multiples: list[float]) -> None:
    """Refuse multiples whose automata, apart or intersected, have too many states."""
    numbers = [abs(Decimal(repr(multiple))).normalize() for multiple in multiples if multiple]
    places = [max(0, -int(number.as_tuple().exponent)) for number in numbers]
    if any(max(number.adjusted(), place) > _DIGITS for number, place in zip(numbers, places, strict=True)):
        raise OptionError(f"multipleOf in json_schema may have {_DIGITS} digits before and behind the point")
    apart = sum(int(number.scaleb(place)) for number, place in zip(numbers, places, strict=True))
    together = lcm(*(int(number.scaleb(max(places))) for number in numbers))
    if (states := max(apart, together)) > MULTIPLE:
        raise OptionError(f"multipleOf in json_schema comes to {states} states in all, and {MULTIPLE} are the limit")

"""Chat templates: Jinja code out of a model folder, run in a sandbox that also ends.

The environment is the one templates are written for (Hugging Face's: trimmed blocks, ``tojson``, ``raise_exception``,
``strftime_now``, loop controls, ``generation`` blocks). What is added is a bound on the work: loops are counted, and
operators that could build huge values are checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from foredraft.errors import TokenizerError

_MAX_STEPS: Final = 1_000_000  # turns of all loops of one rendering together
_MAX_CHARACTERS: Final = 100_000_000
_METER: Final = "foredraft_metered"


class ChatTemplate:
    """A compiled template. Raises TokenizerError if its syntax is broken."""

    def __init__(self, source: str) -> None:
        self._environment = _Environment()
        try:
            self._template = self._environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise _fault(error) from error

    def render(
        self, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any], add_generation_prompt: bool
    ) -> str:
        """Return the prompt for ``messages``. Raises TokenizerError, in the template's own words where it has some."""
        self._environment.steps = 0
        parts: list[str] = []
        length = 0
        turns = [dict(message) for message in messages]
        try:
            for part in self._template.generate(
                messages=turns, tools=None, documents=None, add_generation_prompt=add_generation_prompt, **variables
            ):
                parts.append(part)
                length += len(part)
                if length > _MAX_CHARACTERS:
                    raise SecurityError("it writes without end")
        except Exception as error:  # a template is a stranger's program: whatever it does wrong is its fault
            raise _fault(error) from error
        return "".join(parts)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with loops counted. ``steps`` belongs to one rendering at a time."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.steps = 0
        self.filters["tojson"] = _tojson
        self.filters[_METER] = self._metered
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _Namespace

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _METER, [], [], None, None, lineno=loop.lineno)
        return tree

    def _metered(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.steps += 1
            if self.steps > _MAX_STEPS:
                raise SecurityError("its loops go on without end")
            yield item

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if _size(operator, left, right) > _MAX_CHARACTERS:
            raise SecurityError(f"it builds a huge value with {operator}")
        return super().call_binop(context, operator, left, right)


def _size(operator: str, left: Any, right: Any) -> int:
    """Return a bound on what an operator would build: characters, or digits."""
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        return len(left) + len(right)
    if operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, (str, list, tuple)) and isinstance(times, int):
                return len(many) * times
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * max(0, right) * 1000  # slow long before it is large
    if operator == "%" and isinstance(left, str):
        return _MAX_CHARACTERS + 1  # a width in the format can ask for any length
    return 0


class _Namespace(Namespace):
    """Jinja's namespace without names that reach into Python."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"it sets the attribute {name}")
        super().__setitem__(name, value)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the model's own words for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own protocol

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes what HTML would take amiss
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _fault(error: Exception) -> TokenizerError:
    words = str(error).strip().splitlines()
    return TokenizerError(f"the model's chat template fails: {words[0] if words else type(error).__name__}")

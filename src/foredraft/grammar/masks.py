"""JSON schemas and regular expressions as masks over a model's tokens, through llguidance.

A mask depends on the tokens of the answer alone: every token is allowed after which the answer can still become one
that matches. Forced text is not tokenised for the model (llguidance's ``no_forcing``), which keeps that true, and keeps
a long constant from being worked out again at every token.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from foredraft.core.sequence import TokenSequence
from foredraft.errors import GenerationError, GrammarLimit, OptionError, TokenizerError
from foredraft.grammar.source import GrammarSource
from foredraft.tokenizer.tokenizer import Tokenizer

_KEPT: Final = 32  # compiled grammars
_OWN_TOKENS: Final = '%llguidance {"no_forcing": true}\n'
_PLACE: Final = re.compile(
    r'^at \d+\(\d+\): |failed to compile JSON schema: |failed to parse "%json": |invalid regex ".*" \(in regex\): '
)
_UNMET: Final = "Unsatisfiable schema: "
_ADVICE: Final = re.compile(r"; consider .*")  # on how to write llguidance's own grammars, which nobody here does
_ONE_OF: Final = re.compile(r"oneOf constraints .*")
_COERCE: Final = 'oneOf needs "x-guidance": {"coerce_one_of": true} in the schema, which takes it as anyOf'
_MAX_CHARACTERS: Final = 200


class Grammars:
    """The grammars of one model: compiled once, kept while they are in use.

    ``vocabulary`` is V, padding included; the model's stop ids are what may follow a complete answer.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._our_tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[GrammarSource, LLMatcher] = OrderedDict()

    def follow(self, source: GrammarSource) -> GrammarState:
        """Return the grammar at the start of an answer.

        Raises OptionError if it does not compile, cannot be met or is too large, TokenizerError if llguidance does not
        understand the model's tokenizer.
        """
        if source not in self._compiled:
            self._compiled[source] = self._compile(source)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(source)
        return GrammarState(source.kind, self._compiled[source], self._stop_ids())

    def _compile(self, source: GrammarSource) -> LLMatcher:
        if self._tokenizer is None:
            self._tokenizer = self._wrapped()
        matcher = LLMatcher(self._tokenizer, _lark(source), log_level=0, limits=_limits())
        if matcher.is_error():
            reason = _reason(matcher)
            if reason.startswith(_UNMET):
                raise OptionError(f"{source.kind} cannot be met: {reason.removeprefix(_UNMET)}")
            raise OptionError(f"{source.kind} does not compile: {reason}")
        matcher.compute_bitmask()  # what blows up at the first token is refused here
        if matcher.is_error():
            if (reason := _reason(matcher)).startswith("NoExtension"):
                raise OptionError(f"{source.kind} cannot be met: no text matches it")
            raise OptionError(f"{source.kind} is too complex: {reason}")
        return matcher

    def _wrapped(self) -> LLTokenizer:
        stop_ids = sorted(self._stop_ids())
        if not stop_ids:
            raise OptionError("json_schema and regex need a model whose tokenizer names an end-of-text token")
        width = max(self._vocabulary, self._our_tokenizer.vocabulary)
        try:
            return LLTokenizer(self._our_tokenizer.definition(), n_vocab=width, eos_token=stop_ids)
        except (ValueError, RuntimeError) as error:
            raise TokenizerError(
                f"json_schema and regex do not work with this model's tokenizer: {str(error).splitlines()[0]}"
            ) from error

    def _stop_ids(self) -> frozenset[int]:
        return frozenset(token for token in self._our_tokenizer.stop_ids if token < self._vocabulary)


class GrammarState:
    """A grammar that follows one sequence, and runs ahead of it along guesses. Not for two sequences at once."""

    def __init__(self, name: str, start: LLMatcher, stop_ids: frozenset[int]) -> None:
        self.name = name
        self._start = start
        self._stop_ids = stop_ids
        self._matcher = start.deep_copy()
        self._followed = 0  # tokens of the answer that the matcher has consumed
        self._ahead: list[int] = []  # and tokens beyond them

    def mask(self, sequence: TokenSequence, path: tuple[int, ...] = ()) -> bytes | None:
        """Return which tokens may follow ``path``, a bit a token, the lowest bit first; None if ``path`` breaks it.

        Once the answer is complete and nothing can be added, only stop ids may follow; after one of them nothing is
        asked for (None). Raises GrammarLimit when the grammar cannot be followed any further, GenerationError if what
        is committed breaks it.
        """
        for last in (False, True):
            if not self._move(sequence, path):
                if not self._matcher.is_error():
                    return None
            else:
                mask = self._matcher.compute_bitmask()
                if not self._matcher.is_error():
                    return mask
            if last:
                break
            self._restart()  # states that refused guesses have left behind count against the limits
        place = len(sequence) - sequence.prompt_length + len(path) + 1
        raise GrammarLimit(
            f"{self.name} is too complex to follow at token {place} of the answer: {_reason(self._matcher)}"
        )

    def allowed_prefix(self, sequence: TokenSequence, tokens: Sequence[int]) -> int:
        """Return how many of the guesses ``tokens``, one after another, the grammar allows after the answer so far.

        A stop id is the last that can be allowed. Raises GrammarLimit as ``mask`` does.
        """
        if self.mask(sequence) is None:
            return len(tokens)
        if self._matcher.is_stopped():  # nothing but an end may follow, which is not a token to llguidance then
            return int(len(tokens) > 0 and tokens[0] in self._stop_ids)
        ends = [i for i, token in enumerate(tokens) if token in self._stop_ids]
        return int(self._matcher.validate_tokens(list(tokens[: ends[0] + 1] if ends else tokens)))

    def _move(self, sequence: TokenSequence, path: tuple[int, ...]) -> bool:
        """Bring the matcher to where ``path`` ends; say whether it got there."""
        fresh = sequence.tokens[sequence.prompt_length + self._followed :]
        wanted = [*fresh, *path]
        if not self._stop_ids.isdisjoint(wanted):
            return False
        shared = 0
        while shared < min(len(self._ahead), len(wanted)) and self._ahead[shared] == wanted[shared]:
            shared += 1
        if shared < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - shared)
        taken = shared + self._matcher.try_consume_tokens(wanted[shared:])
        if taken < len(fresh) and not self._matcher.is_error():
            raise GenerationError(f"the answer has left its {self.name} at token {self._followed + taken + 1}")
        arrived = min(taken, len(fresh))
        self._followed += arrived
        self._ahead = wanted[arrived:taken]
        return taken == len(wanted)

    def _restart(self) -> None:
        self._matcher = self._start.deep_copy()
        self._followed = 0
        self._ahead = []


def _lark(source: GrammarSource) -> str:
    if source.kind == "json_schema":
        return str(LLMatcher.grammar_from_lark(f"{_OWN_TOKENS}start: %json {source.text}"))
    grammar = json.loads(LLMatcher.grammar_from_regex(source.text))
    for part in grammar["grammars"]:
        part["lark_grammar"] = _OWN_TOKENS + part["lark_grammar"]
    return json.dumps(grammar)


def _limits() -> LLParserLimits:
    """Bound one grammar to about a second of compiling, tens of milliseconds a token and 100 MB."""
    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=200_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


def _reason(matcher: LLMatcher) -> str:
    """Return what llguidance complains of, in one line."""
    lines = matcher.get_error().strip().splitlines() or [matcher.stop_reason()]
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = named[0] if named else _PLACE.sub("", _PLACE.sub("", lines[0]))
    reason = _ONE_OF.sub(_COERCE, _ADVICE.sub("", reason))
    return reason[:_MAX_CHARACTERS].rstrip(". ")

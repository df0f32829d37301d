"""Grammars as masks: against a language written out, against a fresh matcher on any walk, and against bombs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from foredraft.core.sequence import TokenSequence
from foredraft.errors import GenerationError, GrammarLimit, OptionError, TokenizerError
from foredraft.grammar import masks as masks
from foredraft.grammar.masks import Grammars, GrammarState
from foredraft.grammar.source import DEPTH, LEVELS, PATTERN_BYTES, SCHEMA_BYTES, GrammarSource
from foredraft.models.gguf.header import read_header
from foredraft.models.gguf.tokenizer import tokenizer_of
from foredraft.tokenizer.stream import byte_values
from foredraft.tokenizer.tokenizer import Tokenizer
from tests.models.gguf_files import pieces, vocabulary_file

BYTES = {byte: letter for letter, byte in byte_values().items()}
PIECES = ('{"', '":', '"}', "ab", "abc", "bb", '"a"', "日", "日本", "12", ", ", "a" * 60, "</s>", "<|im_end|>")
PADDING = 37


def spelled(text: str) -> str:
    return "".join(BYTES[byte] for byte in text.encode())


def make_tokenizer() -> Tokenizer:
    """Return single bytes, some longer pieces, half a character among them, and two ends of text."""
    halves = [BYTES[byte] for byte in "日".encode()]
    words = [*sorted(BYTES.values()), *map(spelled, PIECES[:-2]), halves[0] + halves[1]]
    backend = Backend(models.BPE({word: i for i, word in enumerate(words)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(PIECES[-2:]))
    return Tokenizer.from_backend(backend, stop_ids=[len(words)], special_tokens={"eos_token": "<|im_end|>"})


WORDS = make_tokenizer()
V = WORDS.vocabulary + PADDING
GRAMMARS = Grammars(WORDS, V)
OBJECT = {
    "type": "object",
    "properties": {"ab": {"type": "integer"}, "日本": {"enum": ["abc", "é", True]}},
    "required": ["ab", "日本"],
    "additionalProperties": False,
}
SOURCES = (
    GrammarSource.of_schema(OBJECT),
    GrammarSource.of_regex(r"(ab|a日本?)*(12)?"),
    GrammarSource.of_schema({"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 1}),
)


VALUES = byte_values()
TOKENS = [bytes(VALUES[letter] for letter in WORDS.token(token)) for token in range(WORDS.vocabulary - 2)]


def text(answer: Sequence[int] = ()) -> TokenSequence:
    return TokenSequence(tokens=[5, 6, 7, *answer], limit=9999, stop_ids=WORDS.stop_ids, prompt_length=3)


def allowed(mask: bytes | None) -> set[int]:
    assert mask is not None
    return set(np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), count=V, bitorder="little")).tolist())


def letters(written: str) -> list[int]:
    """Return single bytes' tokens."""
    order = sorted(BYTES.values())
    return [order.index(BYTES[byte]) for byte in written.encode()]


def state(source: GrammarSource) -> GrammarState:
    return GRAMMARS.follow(source)


# against a language that is written out


@pytest.mark.parametrize(
    ("regex", "language"),
    [
        ("ab|abc|日|bbé", ["ab", "abc", "日", "bbé"]),
        ("abcabc", ["abcabc"]),  # forced text: every way to write it stays open
        ("^(a|b){1,3}$", [a + b + c for a in "ab" for b in ("", "a", "b") for c in ("", "a", "b")]),
        ("a?", ["", "a"]),
    ],
)
def test_a_mask_is_what_can_still_become_a_word_of_the_language(regex: str, language: list[str]) -> None:
    follows = state(GrammarSource.of_regex(regex))
    whole = {word.encode() for word in language}
    open_ends = [(b"", ())]
    seen = 0
    while open_ends:
        written, path = open_ends.pop()
        mask = allowed(follows.mask(text(), path))
        can = {token for token, piece in enumerate(TOKENS) if any(word.startswith(written + piece) for word in whole)}
        assert mask == can | (WORDS.stop_ids if written in whole else set())
        open_ends += [(written + TOKENS[token], (*path, token)) for token in can]
        seen += 1
    assert seen > 1


def test_characters_of_several_bytes_may_be_written_in_parts() -> None:
    follows = state(GrammarSource.of_regex("日"))
    first, second, third = letters("日")
    assert allowed(follows.mask(text())) == {first, *(i for i in range(V) if WORDS.token(i) == spelled("日"))} | {
        i for i in range(WORDS.vocabulary) if WORDS.token(i) == WORDS.token(first) + WORDS.token(second)
    }
    assert allowed(follows.mask(text(), (first, second))) == {third}


def test_padding_and_special_tokens_are_never_allowed() -> None:
    mask = allowed(state(GrammarSource.of_regex("(?s:.)*")).mask(text()))
    assert max(mask) < WORDS.vocabulary
    assert mask >= WORDS.stop_ids
    assert {*letters("a\n")} <= mask


def test_a_model_with_fewer_rows_than_its_tokenizer_has_tokens() -> None:
    tokenizer = make_tokenizer()
    narrow = Grammars(tokenizer, tokenizer.vocabulary - 1)
    mask = narrow.follow(GrammarSource.of_regex("a")).mask(text(letters("a")))
    assert allowed(mask) == {tokenizer.vocabulary - 2}


# against a fresh matcher


def replayed(source: GrammarSource, answer: Sequence[int]) -> set[int] | None:
    """Walk token by token, each checked against the mask before it; None where one is forbidden."""
    fresh = state(source)
    sequence = text()
    for token in answer:
        if token in WORDS.stop_ids or token not in allowed(fresh.mask(sequence)):
            return None
        sequence.tokens.append(token)
    return allowed(fresh.mask(sequence))


def walk(source: GrammarSource, answer: list[int], choices: list[int]) -> list[int]:
    """Return tokens that mostly follow the grammar: an odd choice picks from what is allowed, an even one anything."""
    tokens: list[int] = []
    for choice in choices:
        mask = replayed(source, answer + tokens)
        going = sorted((mask or set()) - WORDS.stop_ids)
        tokens.append(going[choice // 2 % len(going)] if choice % 4 and going else choice % V)
    return tokens


@settings(max_examples=150)
@given(
    st.sampled_from(SOURCES),
    st.lists(
        st.tuples(st.lists(st.lists(st.integers(0, 4000), max_size=4), max_size=4), st.integers(0, 4000)), max_size=4
    ),
)
def test_any_walk_along_guesses_gives_what_a_fresh_matcher_gives(
    source: GrammarSource, rounds: list[tuple[list[list[int]], int]]
) -> None:
    """Trees of guesses, forbidden ones among them, then a token committed, which may be one of the guesses."""
    follows, sequence = state(source), text()
    for branches, choice in rounds:
        for choices in branches:
            path = walk(source, sequence.answer, choices)
            expected = replayed(source, sequence.answer + path)
            mask = follows.mask(sequence, tuple(path))
            assert (None if mask is None else allowed(mask)) == expected
            prefixes = [replayed(source, sequence.answer + path[: i + 1]) for i in range(len(path))]
            assert follows.allowed_prefix(sequence, path) == _length(source, sequence.answer, path, prefixes)
        going = sorted((replayed(source, sequence.answer) or set()) - WORDS.stop_ids)
        if not going:
            break
        sequence.tokens.append(going[choice % len(going)])
    mask = follows.mask(sequence)
    assert allowed(mask) == replayed(source, sequence.answer)


def _length(source: GrammarSource, answer: list[int], path: list[int], prefixes: list[set[int] | None]) -> int:
    """Count the guesses that are allowed where they stand; a stop id is the last that can be."""
    kept = next((i for i, mask in enumerate(prefixes) if mask is None), len(path))
    if kept < len(path) and path[kept] in WORDS.stop_ids:
        kept += path[kept] in (replayed(source, answer + path[:kept]) or set())
    return kept


def test_a_grammar_that_ends_in_mid_draft() -> None:
    follows, sequence = state(GrammarSource.of_regex("abc")), text(letters("a"))
    a, b, c = letters("abc")
    end = min(WORDS.stop_ids)
    assert allowed(follows.mask(sequence, (b, c))) == WORDS.stop_ids
    assert follows.mask(sequence, (b, c, a)) is None
    assert follows.mask(sequence, (b, c, end)) is None
    assert follows.mask(sequence, (b, c, end, a)) is None
    assert follows.allowed_prefix(sequence, [b, c, end, end]) == 3
    assert follows.allowed_prefix(sequence, [b, c, a]) == 2
    assert follows.allowed_prefix(sequence, [b, end]) == 1
    assert c in allowed(follows.mask(sequence, (b,)))  # back from the end
    sequence.tokens += [b, c]
    assert allowed(follows.mask(sequence)) == WORDS.stop_ids
    assert [follows.allowed_prefix(sequence, guess) for guess in ([], [end], [end, end], [a])] == [0, 1, 1, 0]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 10_000), min_size=5, max_size=60))
def test_what_a_walk_ends_with_is_what_the_schema_says(choices: list[int]) -> None:
    follows, sequence = state(SOURCES[0]), text()
    for choice in choices:
        mask = allowed(follows.mask(sequence))
        if mask & WORDS.stop_ids:
            break
        spaces = {i for i in mask if not WORDS.token(i).strip("ĠĊĉč")}
        going = sorted(mask - spaces)
        sequence.tokens.append(going[choice % len(going)])
    else:
        return
    answer = json.loads(b"".join(TOKENS[token] for token in sequence.answer))
    assert list(answer) == ["ab", "日本"]
    assert isinstance(answer["ab"], int)
    assert answer["日本"] in ("abc", "é", True)


def test_words_that_json_schema_does_not_know_are_ignored() -> None:
    misspelt = GrammarSource.of_schema({"type": "integer", "maxImum": 3, "x": 1})
    assert allowed(state(misspelt).mask(text())) == allowed(
        state(GrammarSource.of_schema({"type": "integer"})).mask(text())
    )


def test_an_answer_that_breaks_its_grammar_is_never_passed_over() -> None:
    a, b, c = letters("abc")
    follows, sequence = state(GrammarSource.of_regex("abc")), text([a])
    assert c in allowed(follows.mask(sequence, (b,)))
    sequence.tokens += [b, b, c]
    for _ in range(2):
        with pytest.raises(GenerationError, match="the answer has left its regex at token 3"):
            follows.mask(sequence)


def test_two_sequences_of_one_grammar_do_not_meet() -> None:
    one, other = state(SOURCES[1]), state(SOURCES[1])
    start = allowed(other.mask(text()))
    assert allowed(one.mask(text(letters("ab12")))) == WORDS.stop_ids
    assert allowed(other.mask(text())) == start != WORDS.stop_ids


# what is refused


def chain(levels: int) -> dict[str, Any]:
    """Return definitions that refer to one another, each harmless alone: what overflowed llguidance's stack."""
    names = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(levels)}
    return {"$defs": names | {f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def with_id(levels: int) -> dict[str, Any]:
    schema = chain(levels)
    return {"$defs": {"x": {**schema, "$id": "http://a/b"}}, "$ref": "http://a/b#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (
            {"enum": ["x" * SCHEMA_BYTES]},
            f"json_schema has {SCHEMA_BYTES + 13} bytes, and {SCHEMA_BYTES} are the limit",
        ),
        ('{"a": "' + "é" * SCHEMA_BYTES + '"}', "are the limit"),
        (nested(DEPTH), f"json_schema is nested {DEPTH + 1} levels deep, and {DEPTH} are the limit"),
        ("[" * 5000, "json_schema is not JSON"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "json_schema is not JSON|levels deep"),
        (chain(1000), f"definitions of json_schema are .* levels deep together, and {LEVELS} are the limit"),
        (with_id(700), "levels deep together"),
        ({"anyOf": [{"pattern": "a?" * PATTERN_BYTES}]}, "patterns of json_schema have"),
        ({"patternProperties": {"a?" * PATTERN_BYTES: {}}}, "patterns of json_schema have"),
        ({"type": "integer", "multipleOf": 1_000_003}, "comes to 1000003 states"),
        ({"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 1009}]}, "comes to 1005973 states"),
        ({"type": "number", "multipleOf": 1e-9}, "multipleOf in json_schema may have 6 digits"),
        ({"type": "number", "multipleOf": 10**300}, "multipleOf in json_schema may have 6 digits"),
        ([], "json_schema must be a JSON object"),
        ("[]", "json_schema must be a JSON object"),
        ("{", "json_schema is not JSON"),
        ('{"a": NaN}', "json_schema is not JSON: NaN is no JSON number"),
        ({"a": float("inf")}, "json_schema cannot be written as JSON"),
        ({"a": {1, 2}}, "json_schema cannot be written as JSON"),
    ],
)
def test_schemas_refused_before_they_are_compiled(schema: Any, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence) as caught:
        GrammarSource.of_schema(schema)
    assert "\n" not in str(caught.value)


def test_limits_let_ordinary_schemas_through() -> None:
    state(GrammarSource.of_schema(chain(200)))
    state(GrammarSource.of_schema(nested(DEPTH - 2)))
    state(GrammarSource.of_schema({"type": "number", "multipleOf": 0.01}))
    state(GrammarSource.of_schema({"type": "integer", "multipleOf": 5}))
    state(GrammarSource.of_schema(json.dumps(OBJECT)))
    state(
        GrammarSource.of_schema({"$defs": {"a/b": {"enum": [1]}}, "anyOf": [{"$ref": "#/$defs/a~1b"}, {"enum": [2]}]})
    )


def test_schemas_that_are_a_dictionary_or_its_text_are_one() -> None:
    assert GrammarSource.of_schema(OBJECT) == GrammarSource.of_schema(json.dumps(OBJECT))


@pytest.mark.parametrize("regex", ["", None, 3, "a" * (PATTERN_BYTES + 1)])
def test_regexes_refused_before_they_are_compiled(regex: Any) -> None:
    with pytest.raises(OptionError, match=r"^regex "):
        GrammarSource.of_regex(regex)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (GrammarSource.of_regex("(a"), "regex does not compile: unclosed group"),
        (GrammarSource.of_regex("(?=a)b"), "regex does not compile: look-around"),
        (GrammarSource.of_regex(r"(a)\1"), "regex does not compile: backreferences are not supported"),
        (GrammarSource.of_regex("(" * 4000 + ")" * 4000), "regex does not compile: "),
        (GrammarSource.of_regex(r"[^\s\S]"), "regex cannot be met: no text matches it"),
        (GrammarSource.of_regex("a?" * 3000), "regex is too complex: lexer error: too many expressions constructed"),
        (GrammarSource.of_schema({"type": "nope"}), "json_schema does not compile: Invalid type: nope"),
        (GrammarSource.of_schema({"not": {}}), r'json_schema does not compile: Unimplemented keys: \["not"\]'),
        (GrammarSource.of_schema({"$ref": "#"}), "json_schema cannot be met: no text matches it"),
        (GrammarSource.of_schema({"enum": []}), "json_schema cannot be met: anyOf is empty"),
        (
            GrammarSource.of_schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
            r'oneOf needs "x-guidance": \{"coerce_one_of": true\} in the schema, which takes it as anyOf$',
        ),
        (GrammarSource.of_schema({"$ref": "file:///etc/hostname"}), "does not compile: .*does not fetch resources"),
        (GrammarSource.of_schema({"pattern": "(", "type": "string"}), "json_schema does not compile: unclosed group"),
        (
            GrammarSource.of_schema({"minimum": 5, "maximum": 3, "type": "integer"}),
            r"json_schema cannot be met: minimum \(5\) is greater than maximum \(3\)$",
        ),
        (
            GrammarSource.of_schema(
                {"allOf": [{"anyOf": [{"minLength": i}, {"maxLength": 9 + i}]} for i in range(30)]}
            ),
            "json_schema does not compile: ",
        ),
    ],
)
def test_grammars_that_do_not_compile_say_why_in_one_sentence(source: GrammarSource, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence) as caught:
        state(source)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("regex", ["a{1000000000}", "((a{10000}){10000}){10000}", "(a|b)*a(a|b){3000}", "(a+)+b"])
def test_repetition_costs_nothing(regex: str) -> None:
    follows, sequence = state(GrammarSource.of_regex(regex)), text()
    for token in letters("aaaa"):
        assert token in allowed(follows.mask(sequence))
        sequence.tokens.append(token)


def bursting() -> GrammarSource:
    """Return a schema that compiles and begins, and has too many ways to go on a token later."""
    names = {f"p{i}": {"type": "string", "pattern": f"^.*{i}.*$"} for i in range(500)}
    return GrammarSource.of_schema({"type": "object", "properties": names})


def test_a_limit_that_is_met_on_the_way_ends_that_answer_alone() -> None:
    follows, other = state(bursting()), state(bursting())
    sequence = text()
    start = allowed(follows.mask(sequence))
    for token in letters('{"p1'):
        sequence.tokens.append(token)
    for _ in range(2):
        with pytest.raises(
            GrammarLimit,
            match=r"^json_schema is too complex to follow at token 5 of the answer: (?!.*(recursive|consider))",
        ) as caught:
            follows.mask(sequence)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, GenerationError)
    assert allowed(other.mask(text())) == start
    assert allowed(follows.mask(text())) == start  # nor is the state itself spoilt


def test_a_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Counting:
        grammar_from_regex = LLMatcher.grammar_from_regex

        def __new__(cls, tokenizer: Any, grammar: str, **options: Any) -> Any:
            made.append(grammar)
            return LLMatcher(tokenizer, grammar, **options)

    grammars = Grammars(WORDS, V)
    monkeypatch.setattr(masks, "_KEPT", 2)
    monkeypatch.setattr(masks, "LLMatcher", Counting)
    for regex in ("a", "a", "b", "a", "c", "a", "b"):  # b is forgotten for c
        grammars.follow(GrammarSource.of_regex(regex))
    assert len(made) == 4


# other tokenizers


def test_sentencepiece_tokenizers_of_gguf_files(tmp_path: Path) -> None:
    backend, config = tokenizer_of(read_header(vocabulary_file(tmp_path / "a.gguf", pieces(), "llama")))
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    follows = Grammars(tokenizer, tokenizer.vocabulary).follow(GrammarSource.of_regex("é"))
    sequence = TokenSequence(tokens=[1], limit=99, stop_ids=tokenizer.stop_ids)
    first = np.flatnonzero(np.unpackbits(np.frombuffer(follows.mask(sequence) or b"", np.uint8), bitorder="little"))
    assert "<0xC3>" in {tokenizer.token(int(i)) for i in first}
    ids = {tokenizer.token(i): i for i in range(tokenizer.vocabulary)}
    last = follows.mask(sequence, (ids["<0xC3>"], ids["<0xA9>"]))
    assert (
        set(np.flatnonzero(np.unpackbits(np.frombuffer(last or b"", np.uint8), bitorder="little")))
        == tokenizer.stop_ids
    )


def test_tokenizers_that_cannot_be_masked_are_refused() -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "<end>": 2}, unk_token="a"))
    tokenizer = Tokenizer.from_backend(backend, stop_ids=[2])
    with pytest.raises(TokenizerError, match="json_schema and regex do not work with this model's tokenizer: "):
        Grammars(tokenizer, 3).follow(GrammarSource.of_regex("a"))
    with pytest.raises(OptionError, match="need a model whose tokenizer names an end-of-text token"):
        Grammars(Tokenizer.from_backend(backend), 3).follow(GrammarSource.of_regex("a"))

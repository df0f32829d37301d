"""Options of the command line as the keywords of ``generate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli import generate
from foredraft.cli.arguments.arguments import generation_options
from foredraft.cli.arguments.parser import Parser
from foredraft.options import parse_options

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def options_of(*words: str) -> dict[str, Any]:
    parser = Parser("foredraft generate", "x")
    generate.add_arguments(parser)
    return dict(generation_options(parser.read(["prompt", *words])))


def test_every_sampling_option_arrives() -> None:
    options = options_of(
        "--min-tokens", "3", "--repetition-penalty", "1.2", "--presence-penalty", "-0.5", "--frequency-penalty", "0.25",
        "--logit-bias", "5:-100,6:2", "--bad-words", "no", "--bad-words", "not that", "--logprobs", "2", "-n", "4",
        "--rule", "coupled", "--regex", "a|b",
    )  # fmt: skip
    assert options == {
        "min_tokens": 3,
        "repetition_penalty": 1.2,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.25,
        "logit_bias": "5:-100,6:2",
        "bad_words": ["no", "not that"],
        "logprobs": 2,
        "n": 4,
        "rule": "coupled",
        "regex": "a|b",
    }
    assert parse_options(options).shaping.logit_bias == ((5, -100.0), (6, 2.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["schema.json", "@schema.json", json.dumps(SCHEMA), " " + json.dumps(SCHEMA)])
def test_a_schema_is_its_text_or_a_file(tmp_path: Path, word: str) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA, indent=2))
    assert json.loads(options_of("--json-schema", word)["json_schema"]) == SCHEMA


def test_a_bias_may_be_json() -> None:
    options: Any = options_of("--logit-bias", '{"5": 1}')
    assert parse_options(options).shaping.logit_bias == ((5, 1.0),)


def test_nothing_named_is_nothing_said() -> None:
    assert options_of() == {}

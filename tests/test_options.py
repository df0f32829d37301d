"""Every option is read, checked and honoured, or refused in one sentence."""

import json
from typing import Any

import pytest

from foredraft.engine.shaping import ShapingOptions
from foredraft.errors import OptionError
from foredraft.grammar.source import GrammarSource
from foredraft.options import MAX_TOKENS, AssistantModel, Options, check_vocabulary, draft_length, parse_options


def test_the_defaults_are_greedy() -> None:
    settings = parse_options({})
    assert settings.sampling.greedy
    assert settings.max_tokens == MAX_TOKENS
    assert settings.seed is None
    assert settings.drafter is None
    assert settings.draft_tokens is None


def test_everything_given_arrives() -> None:
    settings = parse_options(
        {
            "max_tokens": 9,
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.9,
            "min_p": 0.1,
            "seed": 2**64 - 1,
            "stop": ["a", "b"],
            "stop_token_ids": [4],
            "system": "Be brief.",
            "raw": True,
            "drafter": "lookup",
            "draft_tokens": 7,
            "draft_temperature": 0.3,
            "rule": "coupled",
            "min_tokens": 3,
            "repetition_penalty": 1.2,
            "presence_penalty": -2,
            "frequency_penalty": 2,
            "logit_bias": {"7": -100, 3: 1.5},
            "bad_words": ["no", "never"],
            "logprobs": 5,
            "n": 128,
            "regex": "a+",
        }
    )
    sampling = settings.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 3, 0.9, 0.1)
    assert (settings.max_tokens, settings.seed, settings.stop) == (9, 2**64 - 1, ("a", "b"))
    assert (settings.stop_token_ids, settings.system, settings.raw) == (frozenset({4}), "Be brief.", True)
    assert (settings.drafter, settings.draft_tokens, settings.draft_temperature) == ("lookup", 7, 0.3)
    assert settings.shaping == ShapingOptions(
        logit_bias=((3, 1.5), (7, -100.0)),
        repetition_penalty=1.2,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        min_tokens=3,
    )
    assert (settings.bad_words, settings.logprobs, settings.n, settings.rule) == (("no", "never"), 5, 128, "coupled")
    assert settings.grammar == GrammarSource("regex", "a+")


def test_one_stop_string_needs_no_list() -> None:
    assert parse_options({"stop": "end"}).stop == ("end",)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature must be a number of at least 0"),
        ({"temperature": float("nan")}, "temperature must be a number"),
        ({"temperature": float("inf")}, "temperature must be a number"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"top_p": 0}, "top_p must be above 0"),
        ({"top_p": 2}, "top_p must be above 0"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"seed": -1}, "seed must be a whole number between 0 and 18446744073709551615"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop string"),
        ({"stop": [""]}, "stop string"),
        ({"stop": [3]}, "stop string"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"rule": "block"}, "rule must be auto, ratio or coupled, not 'block'"),
        ({"rule": 3}, "rule must be auto, ratio or coupled"),
        ({"rule": ["ratio"]}, "rule must be auto, ratio or coupled"),
        ({"min_tokens": -1}, "min_tokens must be a whole number of at least 0"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens 9 is more than max_tokens 8"),
        ({"min_tokens": MAX_TOKENS + 1}, f"more than max_tokens {MAX_TOKENS}"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number between 0.01 and 100, not 0"),
        ({"repetition_penalty": -1.1}, "repetition_penalty must be a number between 0.01 and 100"),
        ({"repetition_penalty": 1e30}, "repetition_penalty"),
        ({"repetition_penalty": 10**400}, "repetition_penalty"),
        ({"repetition_penalty": True}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty must be a number between -2 and 2, not 2.1"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty must be a number between -2 and 2"),
        ({"logit_bias": {3: 101}}, "logit_bias of token 3 must be a number between -100 and 100, not 101"),
        ({"logit_bias": {3: float("inf")}}, "logit_bias of token 3"),
        ({"logit_bias": {3: "much"}}, "logit_bias of token 3"),
        ({"logit_bias": {3: None}}, "logit_bias of token 3"),
        ({"logit_bias": {-1: 1}}, "logit_bias names its tokens by their ids, and -1 is none"),
        ({"logit_bias": {"-1": 1}}, "logit_bias names its tokens by their ids"),
        ({"logit_bias": {"x": 1}}, "logit_bias names its tokens by their ids, and 'x' is none"),
        ({"logit_bias": {True: 1}}, "logit_bias names its tokens by their ids"),
        ({"logit_bias": {3: 1, "3": 2}}, "logit_bias names token 3 twice"),
        ({"logit_bias": [3]}, "logit_bias must map token ids to numbers"),
        ({"logit_bias": "3"}, "logit_bias must map token ids to numbers"),
        ({"logit_bias": "3:x"}, "logit_bias must map token ids to numbers"),
        ({"logit_bias": '{"3": 1'}, "logit_bias must map token ids to numbers"),
        ({"logit_bias": "3:1,,4:2"}, "logit_bias must map token ids to numbers"),
        ({"bad_words": [""]}, "a bad word must be text that is not blank, not ''"),
        ({"bad_words": ["a", " "]}, "a bad word must be text"),
        ({"bad_words": [3]}, "a bad word must be text that is not blank, not 3"),
        ({"bad_words": 3}, "a bad word must be text"),
        ({"logprobs": 21}, "logprobs must be a whole number between 0 and 20"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": "all"}, "logprobs"),
        ({"n": 0}, "n must be a whole number between 1 and 128"),
        ({"n": 10**9}, "n must be a whole number between 1 and 128, not 1000000000"),
        ({"n": 2.0}, "n must be a whole number"),
        ({"json_schema": "{"}, "json_schema is not JSON"),
        ({"json_schema": 3}, "json_schema must be a JSON object"),
        ({"regex": ""}, "regex must be text that is not empty"),
        ({"regex": "a", "json_schema": {}}, "give one"),
        ({"draft_tokens": -1}, "draft_tokens"),
        ({"draft_tokens": "many"}, "draft_tokens"),
        ({"draft_temperature": -0.5}, "temperature"),
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"zzz": 1}, "unknown option 'zzz'$"),
        ({"max_tokens": 3, "max_new_tokens": 4}, "give one"),
        ({"drafter": "lookup", "assistant_model": "x"}, "give one"),
        ({"drafter": "model:x", "prompt_lookup_num_tokens": 3}, "give one"),
        ({"do_sample": False, "temperature": 0.7}, "give one"),
        ({"prompt_lookup_num_tokens": 0}, "prompt_lookup_num_tokens"),
        ({"num_assistant_tokens": 0}, "num_assistant_tokens"),
        ({"assistant_early_exit": 0}, "assistant_early_exit"),
        ({"assistant_early_exit": 2, "drafter": "lookup"}, "give one"),
    ],
)
def test_what_cannot_be_honoured_is_refused(options: Any, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        parse_options(options)


@pytest.mark.parametrize(
    ("name", "neutral"),
    [
        ("min_tokens", 0),
        ("repetition_penalty", 1.0),
        ("presence_penalty", 0.0),
        ("frequency_penalty", 0),
        ("logit_bias", {}),
        ("bad_words", []),
        ("logprobs", False),
        ("n", 1),
        ("rule", "auto"),
        *((name, None) for name in Options.__annotations__),
    ],
)
def test_neutral_values_ask_for_nothing(name: str, neutral: Any) -> None:
    options: Any = {name: neutral}
    assert parse_options(options) == parse_options({})


@pytest.mark.parametrize("text", ["3:1.5,7:-100", " 3 : 1.5 , 7 : -100 ", '{"3": 1.5, "7": -100}'])
def test_a_bias_may_be_text(text: str) -> None:
    assert parse_options({"logit_bias": text}).shaping.logit_bias == ((3, 1.5), (7, -100.0))


def test_one_bad_word_needs_no_list() -> None:
    assert parse_options({"bad_words": "no"}).bad_words == ("no",)


def test_true_asks_for_the_chosen_tokens_log_probabilities() -> None:
    flag: Any = True
    assert parse_options({"logprobs": flag}).logprobs == parse_options({"logprobs": 0}).logprobs == 0


def test_a_schema_is_a_dictionary_or_its_text() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    grammar = parse_options({"json_schema": schema}).grammar
    assert grammar == parse_options({"json_schema": json.dumps(schema)}).grammar
    assert grammar is not None
    assert list(json.loads(grammar.text)["properties"]) == ["b", "a"]  # in the order that was given


def test_tokens_that_the_vocabulary_does_not_have() -> None:
    check_vocabulary(parse_options({"logit_bias": {9: 1.0}, "stop_token_ids": [9]}), 10)
    with pytest.raises(OptionError, match="logit_bias names token 9, which is not in the vocabulary of 9"):
        check_vocabulary(parse_options({"logit_bias": {9: 1.0}}), 9)
    with pytest.raises(OptionError, match="stop token 9 is not in the vocabulary of 9"):
        check_vocabulary(parse_options({"stop_token_ids": [9]}), 9)


def test_transformers_names_keep_their_meaning() -> None:
    assert parse_options({"max_new_tokens": 5}).max_tokens == 5
    assert parse_options({"do_sample": True}).sampling.temperature == 1.0
    assert parse_options({"do_sample": True, "temperature": 0.4}).sampling.temperature == 0.4
    assert parse_options({"do_sample": False}).sampling.greedy
    assert parse_options({"do_sample": False, "temperature": 1.0}).sampling.greedy  # transformers' own default value
    lookup = parse_options({"prompt_lookup_num_tokens": 4})
    assert (lookup.drafter, lookup.draft_tokens) == ("lookup", 4)
    assisted = parse_options({"assistant_model": "some/model", "num_assistant_tokens": 3})
    assert (assisted.drafter, assisted.draft_tokens) == (AssistantModel("some/model"), 3)


def test_a_draft_length_is_a_number_or_auto() -> None:
    assert draft_length("auto") is None
    assert draft_length(None) is None
    assert draft_length(0) == 0
    with pytest.raises(OptionError):
        draft_length(2.5)


def test_every_option_is_known_to_the_table() -> None:
    assert {"max_tokens", "temperature", "seed", "drafter", "assistant_model"} <= set(Options.__annotations__)

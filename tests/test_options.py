"""Every option is read, checked and honoured, or refused in one sentence."""

from typing import Any

import pytest

from foredraft.errors import OptionError
from foredraft.options import MAX_TOKENS, AssistantModel, Options, draft_length, settle


def test_the_defaults_are_greedy() -> None:
    settings = settle({})
    assert settings.sampling.greedy
    assert settings.max_tokens == MAX_TOKENS
    assert settings.seed is None
    assert settings.drafter is None
    assert settings.draft_tokens is None


def test_everything_given_arrives() -> None:
    settings = settle(
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
            "rule": "ratio",
        }
    )
    sampling = settings.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 3, 0.9, 0.1)
    assert (settings.max_tokens, settings.seed, settings.stop) == (9, 2**64 - 1, ("a", "b"))
    assert (settings.stop_token_ids, settings.system, settings.raw) == (frozenset({4}), "Be brief.", True)
    assert (settings.drafter, settings.draft_tokens, settings.draft_temperature) == ("lookup", 7, 0.3)


def test_one_stop_string_needs_no_list() -> None:
    assert settle({"stop": "end"}).stop == ("end",)


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
        ({"rule": "coupled"}, "rule must be auto or ratio"),
        ({"rule": "block"}, "rule must be auto or ratio"),
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
    ],
)
def test_what_cannot_be_honoured_is_refused(options: Any, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        settle(options)


@pytest.mark.parametrize(
    ("name", "neutral", "wish"),
    [
        ("min_tokens", 0, 3),
        ("repetition_penalty", 1.0, 1.2),
        ("presence_penalty", 0.0, 0.5),
        ("frequency_penalty", 0, 0.5),
        ("logit_bias", {}, {3: 1.0}),
        ("bad_words", [], ["no"]),
        ("logprobs", None, 5),
        ("n", 1, 2),
        ("json_schema", None, "{}"),
        ("regex", None, "a+"),
    ],
)
def test_what_comes_later_is_refused_unless_it_asks_for_nothing(name: str, neutral: Any, wish: Any) -> None:
    neutral_options: Any = {name: neutral}
    assert settle(neutral_options) == settle({})
    wished: Any = {name: wish}
    with pytest.raises(OptionError, match=f"{name} is not in this version yet"):
        settle(wished)


def test_transformers_names_keep_their_meaning() -> None:
    assert settle({"max_new_tokens": 5}).max_tokens == 5
    assert settle({"do_sample": True}).sampling.temperature == 1.0
    assert settle({"do_sample": True, "temperature": 0.4}).sampling.temperature == 0.4
    assert settle({"do_sample": False}).sampling.greedy
    assert settle({"do_sample": False, "temperature": 1.0}).sampling.greedy  # transformers' own default value
    lookup = settle({"prompt_lookup_num_tokens": 4})
    assert (lookup.drafter, lookup.draft_tokens) == ("lookup", 4)
    assisted = settle({"assistant_model": "some/model", "num_assistant_tokens": 3})
    assert (assisted.drafter, assisted.draft_tokens) == (AssistantModel("some/model"), 3)


def test_a_draft_length_is_a_number_or_auto() -> None:
    assert draft_length("auto") is None
    assert draft_length(None) is None
    assert draft_length(0) == 0
    with pytest.raises(OptionError):
        draft_length(2.5)


def test_every_option_is_known_to_the_table() -> None:
    assert {"max_tokens", "temperature", "seed", "drafter", "assistant_model"} <= set(Options.__annotations__)

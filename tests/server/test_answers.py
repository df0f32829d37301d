"""What the server answers is what the library answers: the same text, however it is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foredraft import LanguageModel
from foredraft.errors import OptionError
from tests.server.client import Client

PROMPT = "abc abd"
HOT = {"temperature": 1.3, "seed": 5}


def test_greedy(served: Client, alone: LanguageModel) -> None:
    reply = served.complete(PROMPT, temperature=0, max_tokens=40)
    mine = alone.generate(PROMPT, raw=True, max_tokens=40)
    assert reply.status == 200
    (choice,) = reply.json["choices"]
    assert (choice["text"], choice["finish_reason"], choice["index"]) == (mine.text, mine.finish_reason, 0)
    usage = reply.json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (mine.prompt_tokens, mine.completion_tokens)
    assert usage["total_tokens"] == mine.prompt_tokens + mine.completion_tokens
    assert reply.json["system_fingerprint"] == mine.system_fingerprint


@pytest.mark.parametrize("speculative", [None, False, True, {"drafter": "lookup", "draft_tokens": 3}])
def test_one_seed_one_text_however_it_is_drafted(served: Client, alone: LanguageModel, speculative: Any) -> None:
    reply = served.complete(PROMPT, **HOT, max_tokens=40, speculative=speculative)
    assert reply.json["choices"][0]["text"] == alone.generate(PROMPT, raw=True, **HOT, max_tokens=40).text
    if speculative is False:
        assert reply.json["speculative"]["drafted"] == 0
        assert reply.json["speculative"]["reason"] == "off: drafter none was asked for"
        assert reply.json["timings"]["draft_n"] == 0
    if isinstance(speculative, dict):
        assert set(reply.json["speculative"]["by_drafter"]) <= {"lookup"}


def test_a_chat_goes_through_the_template(served: Client, alone: LanguageModel) -> None:
    reply = served.chat(PROMPT, **HOT, max_tokens=30)
    mine = alone.generate(PROMPT, **HOT, max_tokens=30)
    (choice,) = reply.json["choices"]
    assert choice["message"] == {"role": "assistant", "content": mine.text, "refusal": None}
    assert reply.json["usage"]["prompt_tokens"] == mine.prompt_tokens
    parts = [{"type": "text", "text": "abc"}, {"type": "text", "text": " abd"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    reply = served.post("/v1/chat/completions", {"messages": messages, **HOT, "max_completion_tokens": 20})
    mine = alone.generate(PROMPT, **HOT, max_tokens=20, system="Be brief.")
    assert reply.json["choices"][0]["message"]["content"] == mine.text


def test_several_answers_to_several_prompts(served: Client, alone: LanguageModel) -> None:
    prompts = [PROMPT, "zz", "q"]
    reply = served.complete(prompts, **HOT, n=2, max_tokens=20)
    mine = alone.generate(prompts, raw=True, **HOT, n=2, max_tokens=20)
    choices = reply.json["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3, 4, 5]
    assert [c["text"] for c in choices] == [c.text for result in mine for c in result.choices]
    assert choices[0]["text"] != choices[1]["text"]
    assert reply.json["usage"]["completion_tokens"] == sum(result.completion_tokens for result in mine)
    assert reply.json["usage"]["prompt_tokens"] == sum(result.prompt_tokens for result in mine)


def test_prompts_of_token_ids(served: Client, alone: LanguageModel) -> None:
    ids = [97, 98, 99]
    mine = alone.generate(ids, **HOT, max_tokens=10)
    one = served.complete(ids, **HOT, max_tokens=10, return_token_ids=True).json["choices"][0]
    assert (one["text"], one["token_ids"], one["prompt_token_ids"]) == (mine.text, mine.token_ids, ids)
    several = served.complete([ids, ids[::-1]], **HOT, max_tokens=10).json["choices"]
    assert [choice["text"] for choice in several] == [
        mine.text, alone.generate(ids[::-1], **HOT, max_tokens=10).text
    ]  # fmt: skip


def test_a_number_without_a_fraction_is_whole(served: Client) -> None:
    asked = {"temperature": 0, "max_tokens": 3.0, "n": 1.0, "stop_token_ids": [1.0]}
    replies = [served.complete(prompt, **asked).json for prompt in ([97.0, 98], [97, 98])]
    assert replies[0]["choices"] == replies[1]["choices"]


def test_stop_strings_and_tokens(served: Client, alone: LanguageModel) -> None:
    whole = alone.generate(PROMPT, raw=True, **HOT, max_tokens=60)
    word = next(c for c in whole.text[10:] if c.isascii() and c.isprintable())
    for stop in (word, [word, "never said"]):
        choice = served.complete(PROMPT, **HOT, max_tokens=60, stop=stop).json["choices"][0]
        assert choice["text"] == whole.text[: whole.text.index(word)]
        assert choice["finish_reason"] == "stop"
    token = whole.token_ids[20]
    choice = served.complete(PROMPT, **HOT, max_tokens=60, stop_token_ids=[token], return_token_ids=True).json[
        "choices"
    ][0]
    assert choice["token_ids"] == whole.token_ids[: whole.token_ids.index(token) + 1]


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.4},
        {"logit_bias": {"97": 20, "98": -100}},
        {"top_k": 5, "top_p": 0.8},
        {"min_p": 0.2},
        {"min_tokens": 20, "stop_token_ids": list(range(0, 250, 2))},
        {"bad_words": ["a", "b"]},
    ],
)
def test_options_mean_what_they_mean_in_the_library(
    served: Client, alone: LanguageModel, options: dict[str, Any]
) -> None:
    choice = served.complete(PROMPT, **HOT, max_tokens=30, **options).json["choices"][0]
    mine = alone.generate(PROMPT, raw=True, **HOT, max_tokens=30, **options)
    assert (choice["text"], choice["finish_reason"]) == (mine.text, mine.finish_reason)


def test_temperature_is_1_where_none_is_named(served: Client, alone: LanguageModel) -> None:
    said = served.complete(PROMPT, seed=3, max_tokens=20).json["choices"][0]["text"]
    assert said == alone.generate(PROMPT, raw=True, temperature=1.0, seed=3, max_tokens=20).text
    assert said != alone.generate(PROMPT, raw=True, max_tokens=20).text


def test_how_long_an_answer_is_where_nothing_is_said(served: Client) -> None:
    assert served.complete(PROMPT, seed=1, ignore_eos=True).json["usage"]["completion_tokens"] == 16
    usage = served.chat(PROMPT, seed=1, ignore_eos=True).json["usage"]
    assert usage["total_tokens"] == 512  # the context: an answer that outgrows it ends with "length"


def test_ignore_eos_goes_on(served: Client, alone: LanguageModel) -> None:
    end = {"logit_bias": {"259": 100}}
    assert served.complete(PROMPT, **HOT, **end).json["usage"]["completion_tokens"] == 1
    reply = served.complete(PROMPT, **HOT, **end, ignore_eos=True, max_tokens=7, return_token_ids=True)
    assert reply.json["choices"][0]["token_ids"] == [259] * 7
    assert reply.json["choices"][0]["finish_reason"] == "length"
    assert alone.generate(PROMPT, raw=True, **HOT, **end).token_ids == [259]


def test_logprobs_of_a_completion(served: Client, alone: LanguageModel) -> None:
    found = served.complete(PROMPT, **HOT, max_tokens=12, logprobs=3).json["choices"][0]["logprobs"]
    mine = alone.generate(PROMPT, raw=True, **HOT, max_tokens=12, logprobs=3).logprobs
    assert mine is not None
    assert found["token_logprobs"] == pytest.approx([each.logprob for each in mine], abs=1e-9)
    assert found["tokens"] == [each.token for each in mine]
    for tops, each in zip(found["top_logprobs"], mine, strict=True):
        assert tops[each.token] >= each.logprob - 1e-9
        assert max(tops.values()) == pytest.approx(each.top_logprobs[0].logprob, abs=1e-9)
    assert served.complete(PROMPT, **HOT, max_tokens=4).json["choices"][0]["logprobs"] is None


def test_logprobs_of_a_chat(served: Client, alone: LanguageModel) -> None:
    found = served.chat(PROMPT, **HOT, max_tokens=12, logprobs=True, top_logprobs=2).json["choices"][0]["logprobs"]
    mine = alone.generate(PROMPT, **HOT, max_tokens=12, logprobs=2).logprobs
    assert mine is not None
    assert [each["logprob"] for each in found["content"]] == pytest.approx([each.logprob for each in mine], abs=1e-9)
    for each, own in zip(found["content"], mine, strict=True):
        theirs = [top.logprob for top in own.top_logprobs]
        assert [top["logprob"] for top in each["top_logprobs"]] == pytest.approx(theirs, abs=1e-9)
        if each["bytes"] is not None:
            assert bytes(each["bytes"]).decode() == each["token"]
    only = served.chat(PROMPT, **HOT, max_tokens=2, logprobs=True).json["choices"][0]["logprobs"]
    assert [each["top_logprobs"] for each in only["content"]] == [[], []]


@pytest.mark.parametrize("speculative", [None, False])
def test_echo_scores_the_prompt(served: Client, alone: LanguageModel, speculative: Any) -> None:
    """As an answer that is forced to be the rest of the prompt, token by token, by the library."""
    prompt = "abc abd, and then some more of it: " * 3
    reply = served.complete(prompt, temperature=0, max_tokens=1, echo=True, logprobs=1, speculative=speculative)
    (choice,) = reply.json["choices"]
    found, ids = choice["logprobs"], list(prompt.encode())
    tokenizer = alone.loaded.tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(prompt)
    assert choice["text"].startswith(prompt)
    assert "".join(found["tokens"][: len(ids)]) == prompt
    assert found["text_offset"][: len(ids)] == list(range(len(ids)))
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    for place in (1, 2, 17, 18, 63, 64, 65, len(ids) - 1):
        mine = alone.generate(ids[:place], max_tokens=1, logprobs=1, logit_bias={ids[place]: 100}).logprobs
        assert mine is not None
        assert mine[0].token_id == ids[place]
        assert found["token_logprobs"][place] == pytest.approx(mine[0].logprob, abs=1e-9)
        assert max(found["top_logprobs"][place].values()) == pytest.approx(mine[0].top_logprobs[0].logprob, abs=1e-9)
    assert len(found["tokens"]) == len(ids) + 1
    assert reply.json["usage"]["completion_tokens"] == 1


def test_echo_without_an_answer(served: Client) -> None:
    reply = served.complete(["ab", "a", PROMPT], max_tokens=0, echo=True, logprobs=0)
    texts = [choice["text"] for choice in reply.json["choices"]]
    assert texts == ["ab", "a", PROMPT]
    assert [choice["finish_reason"] for choice in reply.json["choices"]] == ["length"] * 3
    assert [len(choice["logprobs"]["tokens"]) for choice in reply.json["choices"]] == [2, 1, 7]
    assert reply.json["usage"]["completion_tokens"] == 0
    assert reply.json["speculative"]["drafted"] == 0  # scoring a prompt is no drafting of an answer
    assert served.complete("ab", max_tokens=0, echo=True).json["choices"][0]["text"] == "ab"
    assert served.complete("ab", max_tokens=0).json["choices"][0]["text"] == ""


def test_special_tokens_in_a_prompt_are_scored_too(served: Client) -> None:
    a, b, c = served.post("/tokenize", {"prompt": "abc"}).json["tokens"]
    reply = served.complete([a, 259, b, 257, c], max_tokens=2, seed=1, echo=True, logprobs=0)
    scores = reply.json["choices"][0]["logprobs"]
    assert len(scores["token_logprobs"]) == 7
    assert scores["tokens"][:5] == ["a", "<|im_end|>", "b", "</s>", "c"]
    assert all(isinstance(score, float) for score in scores["token_logprobs"][1:])


def test_a_prediction_is_copied_from_and_counted(served: Client, alone: LanguageModel) -> None:
    answer = served.complete("abcdef", temperature=0, max_tokens=100, logit_bias={str(i): -100 for i in range(97)}).json
    text = answer["choices"][0]["text"]
    prediction = {"type": "content", "content": [{"type": "text", "text": text}]}
    reply = served.complete(
        "abcdef",
        temperature=0,
        max_tokens=100,
        logit_bias={str(i): -100 for i in range(97)},
        prediction=prediction,
        speculative={"drafter": "suffix", "draft_tokens": 4},  # a planner goes by the clock
    ).json
    assert reply["choices"][0]["text"] == text
    details = reply["usage"]["completion_tokens_details"]
    mine = alone.generate(
        "abcdef",
        raw=True,
        max_tokens=100,
        logit_bias=dict.fromkeys(range(97), -100),
        prediction=text,
        drafter="suffix",
        draft_tokens=4,
    ).prediction
    assert mine is not None
    assert details["accepted_prediction_tokens"] == mine.accepted > 0
    assert answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0


def test_json_that_matches_a_schema(served: Client, alone: LanguageModel) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    said = served.chat(PROMPT, **HOT, max_tokens=60, response_format=form).json["choices"][0]
    assert json.loads(said["message"]["content"])["a"] in (1, 2)
    assert said["message"]["content"] == alone.generate(PROMPT, **HOT, max_tokens=60, json_schema=schema).text
    any_object = served.chat(
        PROMPT, **HOT, max_tokens=20, response_format={"type": "json_object"}
    ).json["choices"][0]  # fmt: skip
    assert any_object["message"]["content"].lstrip().startswith("{")
    assert served.chat(PROMPT, **HOT, max_tokens=5, response_format={"type": "text"}).status == 200


def test_strangers_in_a_batch_change_nothing(served: Client, alone: LanguageModel) -> None:
    asked = [{"prompt": f"{PROMPT} {i}", "temperature": 1.2, "seed": i, "max_tokens": 25 + i} for i in range(12)]
    replies = served.together(*(("/v1/completions", body) for body in asked))
    for body, reply in zip(asked, replies, strict=True):
        options = {name: body[name] for name in ("temperature", "seed", "max_tokens")}
        assert reply.json["choices"][0]["text"] == alone.generate(body["prompt"], raw=True, **options).text


def test_the_second_turn_reads_only_what_is_new(served: Client) -> None:
    first = served.chat("a long story, told at length", max_tokens=8, seed=1).json
    said = first["choices"][0]["message"]["content"]
    turns = [
        {"role": "user", "content": "a long story, told at length"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "and then?"},
    ]
    second = served.post("/v1/chat/completions", {"messages": turns, "max_tokens": 4, "seed": 1}).json
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 1
    other = served.post("/v1/chat/completions", {"messages": turns, "max_tokens": 4, "seed": 1, "user": "else"}).json
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert other["choices"] == second["choices"]


def test_a_scope_is_copied_from(served: Client, alone: LanguageModel) -> None:
    options = {**HOT, "max_tokens": 60}
    fixed = {"drafter": "suffix", "draft_tokens": 8}  # so that counts do not depend on what a pass takes
    first = served.complete("qwerty", **options, cache_scope="mine", speculative=fixed).json
    again = served.complete("qwerty", **options, cache_scope="mine", speculative=fixed).json
    without = served.complete("qwerty", **options, speculative=fixed).json
    assert first["choices"][0]["text"] == again["choices"][0]["text"] == without["choices"][0]["text"]
    assert again["speculative"]["accepted"] > max(first["speculative"]["accepted"], without["speculative"]["accepted"])
    other = served.complete("qwerty", **options, cache_scope="mine", user="somebody else", speculative=fixed).json
    assert other["speculative"] == first["speculative"]
    assert alone.generate("qwerty", raw=True, **options).text == other["choices"][0]["text"]


def test_tokens_and_back(served: Client) -> None:
    reply = served.post("/tokenize", {"prompt": "abc", "return_token_strs": True}).json
    assert reply["count"] == len(reply["tokens"]) == 3
    assert reply["token_strs"] == ["a", "b", "c"]
    assert reply["max_model_len"] == 512
    assert served.post("/detokenize", {"tokens": reply["tokens"]}).json == {"prompt": "abc"}
    turns = served.post("/tokenize", {"messages": [{"role": "user", "content": "abc"}]}).json
    assert served.post("/detokenize", {"tokens": turns["tokens"]}).json["prompt"] == "user\nabc\nassistant\n"
    assert turns["count"] == served.chat("abc", max_tokens=1).json["usage"]["prompt_tokens"]
    assert served.post("/tokenize", {"prompt": "", "add_special_tokens": False}).json["tokens"] == []
    assert served.post("/detokenize", {"tokens": []}).json == {"prompt": ""}


def test_what_is_served(served: Client) -> None:
    (card,) = served.get("/v1/models").json["data"]
    assert served.get("/v1/models/tiny").json == card
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", 512)
    assert served.get("/v1/models/other/one").error["code"] == "model_not_found"
    assert served.complete(model="tiny", max_tokens=1).status == 200
    refused = served.complete(model="../etc/passwd", max_tokens=1)
    assert (refused.status, refused.error["param"]) == (404, "model")
    assert served.get("/version").json["version"]


def test_the_servers_own_rule_is_that_of_requests_which_name_none(served: Client) -> None:
    from foredraft.server.backend import GenerateRequest
    from foredraft.serving.model import Serving

    serving: Serving = served.app.state.server.served
    ways = [({}, False), ({"seed": 1}, True), ({"rule": "coupled"}, True), ({"rule": "ratio", "seed": 1}, False)]
    for options, coupled in ways:
        exchange = serving.prepare(GenerateRequest(["ab"], options))
        assert exchange.answers[0].job.sequence.noise.coupled == coupled
    with pytest.raises(OptionError, match="rule must be"):
        Serving(serving.runtime, "tiny", rule="mine")

"""Streams: the pieces are the whole, at every edge that a draft can have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foredraft import LanguageModel
from tests.server.client import Client, Serve

PROMPT = "abc abd"
HOT = {"temperature": 1.3, "seed": 5}


def texts(chunks: list[dict[str, Any]]) -> dict[int, str]:
    """Return what each answer's chunks say together."""
    said: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            said[choice["index"]] = said.get(choice["index"], "") + text
    return said


@pytest.mark.parametrize("drafted", [False, {"drafter": "suffix", "draft_tokens": 7}, None])
@pytest.mark.parametrize("seed", [5, 6])
def test_a_stream_is_the_whole(served: Client, alone: LanguageModel, drafted: Any, seed: int) -> None:
    """The model speaks bytes at random, so characters break at drafts' edges, and many never become one."""
    options = {"temperature": 1.3, "seed": seed, "max_tokens": 80}
    reply = served.complete(PROMPT, **options, stream=True, speculative=drafted)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in reply.headers
    assert texts(reply.chunks) == {0: alone.generate(PROMPT, raw=True, **options).text}
    *rest, last = reply.chunks
    assert [chunk["choices"][0]["finish_reason"] for chunk in rest] == [None] * len(rest)
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["speculative"]["rounds"] > 0
    assert last["timings"]["predicted_n"] == 80
    assert {chunk["id"] for chunk in reply.chunks} == {last["id"]}


def test_multibyte_characters_come_whole(served: Client, alone: LanguageModel) -> None:
    tokenizer = alone.loaded.tokenizer
    assert tokenizer is not None
    told = "größer 😀 日本語 " * 3
    prediction = {"type": "content", "content": told}
    regex_like = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": told}}}
    reply = served.chat("x", max_tokens=200, seed=1, stream=True, response_format=regex_like, prediction=prediction)
    assert json.loads(texts(reply.chunks)[0]) == told
    assert not any("�" in text for text in texts(reply.chunks).values())
    for chunk in reply.chunks:
        for choice in chunk["choices"]:
            choice["delta"].get("content", "").encode()


@pytest.mark.parametrize("drafted", [False, {"drafter": "suffix", "draft_tokens": 9}])
def test_a_stop_string_across_rounds_is_never_shown(served: Client, alone: LanguageModel, drafted: Any) -> None:
    schema = {"const": "one two three STOPPED four"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    options = {"seed": 1, "max_tokens": 100, "response_format": form, "speculative": drafted}
    reply = served.chat("x", **options, stop=["STOPPED", "never"], stream=True)
    assert texts(reply.chunks) == {0: '"one two three '}
    assert reply.chunks[-1]["choices"][0]["finish_reason"] == "stop"
    held = served.chat(
        "x", **options, stop=["STOPPER", "four!"], stream=True
    )  # what only began like one comes after all
    assert json.loads(texts(held.chunks)[0]) == schema["const"]


def test_a_chat_begins_with_the_role_and_ends_with_done(served: Client) -> None:
    reply = served.chat(PROMPT, **HOT, max_tokens=10, n=2, stream=True)
    assert reply.events[-1] == "[DONE]"
    first, second, *rest = reply.chunks
    assert [c["choices"][0]["delta"] for c in (first, second)] == [{"role": "assistant", "content": ""}] * 2
    assert [c["choices"][0]["index"] for c in (first, second)] == [0, 1]
    assert not any("role" in c["choices"][0]["delta"] for c in rest)
    ends = [c for c in rest if c["choices"][0]["finish_reason"]]
    assert sorted(c["choices"][0]["index"] for c in ends) == [0, 1]
    assert ["speculative" in c for c in ends] == [False, True]
    whole = served.chat(PROMPT, **HOT, max_tokens=10, n=2).json["choices"]
    assert texts(reply.chunks) == {c["index"]: c["message"]["content"] for c in whole}


def test_usage_when_asked_for(served: Client) -> None:
    asked = {**HOT, "max_tokens": 10, "stream": True}
    none = served.complete(PROMPT, **asked).chunks
    assert not any("usage" in chunk for chunk in none)
    *rest, last = served.complete(PROMPT, **asked, stream_options={"include_usage": True}).chunks
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (7, 10)
    assert [chunk["usage"] for chunk in rest] == [None] * len(rest)
    for way in ({"stream_options": {"continuous_usage_stats": True}}, {"continuous_usage_stats": True}):
        counts = [c["usage"]["completion_tokens"] for c in served.complete(PROMPT, **asked, **way).chunks]
        assert counts == sorted(counts)
        assert counts[-1] == 10


def test_who_wrote_each_token(served: Client, alone: LanguageModel) -> None:
    mine = alone.generate(PROMPT, **HOT, max_tokens=50, logprobs=0)
    told = {"include_origins": True}
    reply = served.chat(PROMPT, **HOT, max_tokens=50, stream=True, stream_options=told, return_token_ids=True)
    origins = [each for chunk in reply.chunks for each in chunk["choices"][0]["origins"]]
    assert [each["token"] for each in origins] == mine.token_ids
    assert "".join(each["text"] for each in origins) == mine.text
    assert {each["origin"] for each in origins} <= {"plain", "suffix", "correction", "bonus"}
    assert [token for c in reply.chunks for token in c["choices"][0]["token_ids"]] == mine.token_ids
    assert len(reply.chunks[0]["prompt_token_ids"]) == mine.prompt_tokens


def test_logprobs_come_with_their_tokens(served: Client) -> None:
    asked = {**HOT, "max_tokens": 20, "logprobs": 2}
    whole = served.complete(PROMPT, **asked, echo=True).json["choices"][0]
    chunks = served.complete(PROMPT, **asked, echo=True, stream=True).chunks
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"] is not None]
    for name in ("tokens", "text_offset"):
        assert [each for part in parts for each in part[name]] == whole["logprobs"][name]
    scores = [each for part in parts for each in part["token_logprobs"]]
    assert scores[1:] == pytest.approx(whole["logprobs"]["token_logprobs"][1:], abs=1e-9)
    assert texts(chunks) == {0: whole["text"]}
    assert chunks[0]["choices"][0]["text"] == PROMPT


def test_nothing_to_write_is_a_stream_too(served: Client) -> None:
    chunks = served.complete("ab", max_tokens=0, echo=True, stream=True).chunks
    assert texts(chunks) == {0: "ab"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_ping_where_nothing_comes(open_server: Serve, load: Any) -> None:
    import time

    from foredraft.server.limits import Limits
    from tests.server.faulty import Faulty

    model = load()
    client = open_server(model, limits=Limits(ping_s=0.02))
    Faulty.in_(model).before = lambda passes: time.sleep(0.1)
    reply = client.complete(PROMPT, temperature=0, max_tokens=3, stream=True, speculative=False)
    assert reply.body.count(b": ping\n\n") >= 2
    assert len(reply.chunks) >= 2

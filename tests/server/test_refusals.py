"""What is refused, and how: OpenAI's error object, the field named, nothing ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.client import Client, Serve

pytest.importorskip("fastapi", reason="the server needs the serve extra")
from foredraft.server.limits import Limits

NAN = float("nan")
HUGE = 10**400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", NAN), ("temperature", float("inf")), ("temperature", HUGE),
        ("temperature", "1"), ("temperature", True), ("temperature", []), ("top_p", 0), ("top_p", 1.01), ("top_p", NAN),
        ("top_k", -2), ("top_k", 1.5), ("top_k", 2**31), ("top_k", HUGE), ("min_p", -0.1), ("min_p", 2),
        ("max_tokens", -1), ("max_tokens", HUGE), ("max_tokens", 1.5), ("max_tokens", True), ("max_tokens", "9"),
        ("min_tokens", -1), ("min_tokens", HUGE), ("min_tokens", 17), ("n", 0), ("n", -1), ("n", 10**9), ("n", HUGE),
        ("n", 1.5), ("seed", -1), ("seed", 2**64), ("seed", HUGE), ("seed", 1.5), ("seed", NAN),
        ("presence_penalty", 2.1), ("presence_penalty", NAN), ("frequency_penalty", -2.1), ("frequency_penalty", HUGE),
        ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", NAN),
        ("logprobs", 21), ("logprobs", -1), ("logprobs", True), ("logprobs", HUGE), ("best_of", 3), ("best_of", HUGE),
        ("logit_bias", {"260": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"a": 1}), ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": NAN}), ("logit_bias", {"1": HUGE}), ("logit_bias", [1]), ("logit_bias", {"1": "1"}),
        ("stop", ""), ("stop", ["a", ""]), ("stop", [1]), ("stop", 5), ("stop", ["a", "b", "c", "d", "e"]),
        ("stop_token_ids", [260]), ("stop_token_ids", [-1]), ("stop_token_ids", ["1"]), ("stop_token_ids", 1),
        ("stop_token_ids", [HUGE]), ("bad_words", [" "]), ("stream", "yes"), ("stream", 1), ("echo", "yes"),
        ("stream_options", {"include_usage": True}), ("stream_options", 5), ("user", 5), ("model", 5),
        ("ignore_eos", 1), ("prompt", ""), ("prompt", []), ("prompt", [[]]), ("prompt", ["a", ""]),
        ("prompt", [1, "a"]), ("prompt", {"a": 1}), ("prompt", None), ("prompt", [260]),
        ("prompt", [HUGE]), ("prompt", [-1]), ("prompt", [True]),
        ("prompt", [1.5]), ("prompt", [["a"]]), ("prompt", 5), ("prompt", "\ud800"),
        ("prompt", "x" * 600), ("prompt", [1] * 600),
        ("prediction", "x"), ("prediction", {"type": "content"}), ("prediction", {"type": "content", "content": ""}),
        ("prediction", {"type": "content", "content": "x" * 9999}), ("prediction", {"type": "other", "content": "x"}),
        ("prediction", {"type": "content", "content": [{"type": "image_url", "image_url": {}}]}),
        ("response_format", "json"), ("response_format", {"type": "xml"}), ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"pattern": "a" * 9000}}}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"multipleOf": 99991}}}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": []}}),
        ("speculative", 1), ("speculative", "suffix"), ("speculative", {"drafter": "model:/etc/passwd"}),
        ("speculative", {"drafter": "os:system"}), ("speculative", {"drafter": "heads:/tmp/x"}),
        ("speculative", {"drafter": "layers:3"}), ("speculative", {"drafter": "suffix+suffix"}),
        ("speculative", {"drafter": ""}), ("speculative", {"draft_tokens": 65}), ("speculative", {"draft_tokens": -1}),
        ("speculative", {"draft_tokens": HUGE}), ("speculative", {"rule": "other"}), ("speculative", {"drafters": "x"}),
        ("cache_scope", ""), ("cache_scope", "../up"), ("cache_scope", 5), ("suffix", "end"), ("guided_json", {}),
        ("tools", [{"type": "function"}]), ("prompt_logprobs", 1), ("structured_outputs", {"regex": "a"}),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_honoured(served: Client, field: str, value: Any) -> None:
    reply = served.complete(**{"prompt": "ab", field: value})
    assert reply.status == 400
    error = reply.error
    assert error["type"] == "invalid_request_error"
    if not _is_no_number(value):
        assert error["param"] == field
    assert "\n" not in error["message"]
    assert len(error["message"]) < 300


def _is_no_number(value: Any) -> bool:
    """Say whether a body with this is no JSON, so that no field is to blame."""
    text = json.dumps(value)
    return any(word in text for word in ("NaN", "Infinity", "\\ud800"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"), ({"messages": [1] * 100_000}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"), ({"messages": [{"role": "king", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "name": "me"}]}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "y" * 600}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"), ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"), ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"), ({"functions": [{}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"), ({"chat_template_kwargs": 1}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": "{{ 1 }}"}}, "chat_template_kwargs"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"min_tokens": 3, "max_completion_tokens": 2}, "min_tokens"),
        ({"ignore_eos": True, "response_format": {"type": "json_object"}}, "ignore_eos"),
    ],
)  # fmt: skip
def test_a_chat_that_cannot_be_honoured(served: Client, fields: dict[str, Any], param: str) -> None:
    reply = served.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **fields})
    assert reply.status == 400
    assert reply.error["param"] == param


def test_fields_that_ask_for_nothing_are_fine(served: Client) -> None:
    nothing = {
        "tools": None, "tool_choice": "none", "service_tier": "auto", "store": False, "best_of": 1, "suffix": None,
        "stop": None, "seed": None, "logit_bias": None, "response_format": {"type": "text"}, "max_tokens": 1,
    }  # fmt: skip
    reply = served.complete("ab", **nothing)
    assert reply.status == 200
    assert "x-foredraft-warning" not in reply.headers


def test_unknown_fields_are_warned_of(served: Client) -> None:
    reply = served.complete("ab", max_tokens=1, frobnicate=1, **{"a\r\nSet-Cookie: x": 1, "ü ": 2, "": 3})
    assert reply.status == 200
    assert reply.headers["x-foredraft-warning"] == 'no effect: frobnicate, a??Set-Cookie:?x, ??, ""'
    many = served.complete("ab", max_tokens=1, **{f"x{i}": 1 for i in range(20)})
    assert many.headers["x-foredraft-warning"].endswith("x7 and 12 more")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"5", b'"x"', b"null", b"\xff\xfe", b'{"prompt": NaN}', b'{"prompt": "a", "x": 1e999}',
        b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", b"[" * 100_000, b'{"a":' * 50_000, b'{"prompt": "\\ud800"}',
        b'{"prompt": "a",}', b"{'prompt': 'a'}", b"\x00",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_bodies_that_are_no_json_object(served: Client, path: str, body: bytes) -> None:
    reply = served.post(path, (body,))
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_only_json_is_read(served: Client, kind: str) -> None:
    """A page elsewhere can make a browser send these without asking first."""
    reply = served.post("/v1/completions", {"prompt": "a"}, content_type=kind)
    assert reply.status == 400
    assert "Content-Type: application/json" in reply.error["message"]


def test_a_packed_body_is_refused_by_its_name(served: Client) -> None:
    reply = served.post("/v1/completions", {"prompt": "a"}, content_encoding="gzip")
    assert reply.status == 400
    assert reply.error["message"] == "the body is encoded as 'gzip', and only plain bodies are read"
    assert served.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, content_encoding="identity").status == 200


def test_a_large_body_is_refused_while_it_comes(open_server: Serve) -> None:
    client = open_server(limits=Limits(body=1000))
    read = 0

    def parts() -> Any:
        nonlocal read
        for _ in range(100):
            read += 1
            yield b"x" * 100

    reply = client.post("/v1/completions", tuple(parts()))
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    assert reply.headers["connection"] == "close"
    declared = client.post("/v1/completions", (b"{}",), content_length=str(10**30), expect="100-continue")
    assert declared.status == 413
    assert client.complete("ab", max_tokens=1).status == 200


def test_a_slow_body_is_cut(open_server: Serve) -> None:
    import asyncio

    from tests.server.client import HOST

    client = open_server(limits=Limits(body_s=0.05))
    sent: list[Any] = []

    async def never() -> Any:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in {**HOST, "content-type": "application/json"}.items()]
    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b"",
        "root_path": "", "http_version": "1.1", "scheme": "http", "client": None, "server": None, "state": {},
    }  # fmt: skip
    asyncio.run(client.app(scope, never, send))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/completions", 405),
        ("PUT", "/health", 405),
    ],
)
def test_addresses_that_are_none(served: Client, method: str, path: str, status: int) -> None:
    reply = served.get(path) if method == "GET" else served.post(path, {}) if method == "POST" else _put(served, path)
    assert reply.status == status
    assert reply.error["type"] in ("not_found_error", "invalid_request_error")


def _put(client: Client, path: str) -> Any:
    import asyncio

    from tests.server.client import call

    return asyncio.run(call(client.app, "PUT", path, {}))


def test_more_answers_than_will_ever_fit(open_server: Serve) -> None:
    client = open_server(engine={"slots": 1, "queue": 4})
    reply = client.complete("ab", n=6, max_tokens=1)
    assert (reply.status, reply.error["param"]) == (400, "n")
    assert client.complete("ab", n=5, max_tokens=1).status == 200  # one in the slot, four behind it
    assert client.complete(["ab", "cd"], n=2, max_tokens=1).status == 200
    many = open_server(limits=Limits(prompts=3)).complete(["a"] * 4, max_tokens=1)
    assert (many.status, many.error["param"]) == (400, "prompt")


def test_tokens_that_are_none(served: Client) -> None:
    for tokens in ([260], [-1], ["a"], 5, [HUGE], None):
        assert served.post("/detokenize", {"tokens": tokens}).status == 400
    assert served.post("/tokenize", {}).error["param"] == "prompt"
    assert served.post("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}).status == 400
    assert served.post("/tokenize", {"prompt": "x" * 3000}).status == 400


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"speculative": {"draft_tokens": 1000}}, "speculative.draft_tokens"),
        ({"speculative": {"foo": 1}}, "speculative.foo"),
        ({"speculative": {"rule": "x"}}, "speculative.rule"),
        ({"prediction": {"type": "content"}}, "prediction.content is missing"),
        ({"prediction": {"content": "a"}}, "prediction.type is missing"),
        ({"speculative": "none"}, "speculative: "),
    ],
)
def test_what_is_wrong_inside_an_object_is_named(served: Client, body: dict[str, Any], said: str) -> None:
    reply = served.complete("ab", max_tokens=1, **body)
    assert reply.status == 400
    assert reply.error["message"].startswith(said)

"""The OpenAPI document says what is true."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.client import Client

pytest.importorskip("fastapi", reason="the server needs the serve extra")
from foredraft.server.wire import response_schema as response_schema

ASKED = {"temperature": 1, "seed": 1, "max_tokens": 8}


@pytest.fixture(scope="module")
def document(served: Client) -> dict[str, Any]:
    found: dict[str, Any] = served.get("/openapi.json").json
    return found


def test_every_address_is_in_it(document: dict[str, Any]) -> None:
    assert set(document["paths"]) == {
        "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{name}", "/tokenize", "/detokenize",
        "/health", "/ready", "/metrics", "/version", "/stats",
    }  # fmt: skip
    for path, methods in document["paths"].items():
        for operation in methods.values():
            statuses = set(operation["responses"])
            assert "422" not in statuses, path
            assert {"200", "400"} <= statuses
            for status, response in operation["responses"].items():
                if status != "200":
                    assert response["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorReply")


@pytest.mark.parametrize(
    "options", [{}, {"logprobs": 2}, {"n": 2, "return_token_ids": True}, {"echo": True, "logprobs": 0}]
)
def test_completions_are_as_it_says(served: Client, options: dict[str, Any]) -> None:
    response_schema.CompletionReply.model_validate(served.complete(**ASKED, **options).json)
    told = {"include_usage": True, "include_origins": True}
    for chunk in served.complete(**ASKED, **options, stream=True, stream_options=told).chunks:
        response_schema.CompletionReply.model_validate(chunk)


@pytest.mark.parametrize("options", [{}, {"logprobs": True, "top_logprobs": 2}, {"n": 2, "return_token_ids": True}])
def test_chats_are_as_it_says(served: Client, options: dict[str, Any]) -> None:
    response_schema.ChatReply.model_validate(served.chat(**ASKED, **options).json)
    told = {"continuous_usage_stats": True, "include_origins": True}
    for chunk in served.chat(**ASKED, **options, stream=True, stream_options=told).chunks:
        response_schema.ChatChunk.model_validate(chunk)


def test_the_rest_is_as_it_says(served: Client) -> None:
    response_schema.ModelsReply.model_validate(served.get("/v1/models").json)
    response_schema.ModelReply.model_validate(served.get("/v1/models/tiny").json)
    response_schema.TokenizeReply.model_validate(served.post("/tokenize", {"prompt": "a"}).json)
    response_schema.DetokenizeReply.model_validate(served.post("/detokenize", {"tokens": [1]}).json)
    response_schema.StatusReply.model_validate(served.get("/health").json)
    response_schema.StatusReply.model_validate(served.get("/ready").json)
    response_schema.VersionReply.model_validate(served.get("/version").json)
    response_schema.StatsReply.model_validate(served.get("/stats").json)
    response_schema.ErrorReply.model_validate(served.get("/nothing").json)


def test_every_field_of_the_specification_is_in_it(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    common = {
        "model", "max_tokens", "temperature", "top_p", "stop", "stream", "stream_options", "n", "seed", "logprobs",
        "presence_penalty", "frequency_penalty", "logit_bias", "user", "ignore_eos", "min_tokens", "top_k", "min_p",
        "repetition_penalty", "stop_token_ids", "return_token_ids", "continuous_usage_stats", "response_format",
        "prediction", "speculative",
    }  # fmt: skip
    assert common | {"prompt", "echo"} <= set(schemas["CompletionRequest"]["properties"])
    chat = {"messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs"}
    assert common | chat <= set(schemas["ChatRequest"]["properties"])
    assert schemas["ChatRequest"]["additionalProperties"] is True

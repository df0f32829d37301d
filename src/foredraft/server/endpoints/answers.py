"""Endpoints that answer: completions and chats, whole or as events."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from foredraft.server.backend import GenerateRequest
from foredraft.server.endpoints.shared import ANSWERED, TheDesk, TheModel
from foredraft.server.errors import ApiError
from foredraft.server.guard import OWNER
from foredraft.server.limits import BoundedRoute
from foredraft.server.state import ServerState
from foredraft.server.wire import response_schema as response_schema
from foredraft.server.wire.exchange import ServedRequest
from foredraft.server.wire.request_fields import check_known, of_chat, of_completion, warned
from foredraft.server.wire.request_schema import ChatRequest, Common, CompletionRequest
from foredraft.server.wire.responses import ChatView, CompletionView, ResponseOptions
from foredraft.server.wire.stream import streamed, whole

router = APIRouter(route_class=BoundedRoute)


def _streamed(
    model: type[response_schema.Reply], chunk: type[response_schema.Reply]
) -> dict[int | str, dict[str, Any]]:
    kinds = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in (chunk, response_schema.ErrorReply)]
    document = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": kinds}}
    data = {"anyOf": [{"const": "[DONE]"}, document], "description": "`[DONE]` is the last, unless an error is."}
    event = {"type": "object", "required": ["data"], "properties": {"data": data}}
    return {
        200: {
            "model": model,
            "description": "The answers; with `stream` as events.",
            "content": {"text/event-stream": {"schema": event}},
        },
        **ANSWERED,
    }


@router.post(
    "/v1/completions",
    response_class=Response,
    responses=_streamed(response_schema.CompletionReply, response_schema.CompletionReply),
    tags=["answers"],
)
async def completions(body: CompletionRequest, request: Request, state: TheDesk, model: TheModel) -> Response:
    """Go on with a text, or with several."""
    headers = warned(check_known(body, model.name))
    asked = of_completion(body, request.scope[OWNER], state.limits.prompts)
    options = _told(body, top=body.logprobs, echo=bool(body.echo))
    view = CompletionView(model.name, model.facts["system_fingerprint"], state.created, options, body.n or 1)
    return await _answered(state, asked, body, view, request, headers)


@router.post(
    "/v1/chat/completions",
    response_class=Response,
    responses=_streamed(response_schema.ChatReply, response_schema.ChatChunk),
    tags=["answers"],
)
async def chat_completions(body: ChatRequest, request: Request, state: TheDesk, model: TheModel) -> Response:
    """Go on with a conversation."""
    headers = warned(check_known(body, model.name))
    asked = of_chat(body, request.scope[OWNER], model.context)
    options = _told(body, top=(body.top_logprobs or 0) if body.logprobs else None)
    view = ChatView(model.name, model.facts["system_fingerprint"], state.created, options, body.n or 1)
    return await _answered(state, asked, body, view, request, headers)


def _told(body: Common, *, top: int | None, echo: bool = False) -> ResponseOptions:
    options = body.stream_options
    if options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream to be true", "stream_options")
    continuous = bool(body.continuous_usage_stats or (options and options.continuous_usage_stats))
    return ResponseOptions(
        top=top,
        echo=echo,
        token_ids=bool(body.return_token_ids),
        usage=bool(options and options.include_usage),
        continuous=continuous,
        origins=bool(options and options.include_origins),
    )


async def _answered(
    state: ServerState,
    asked: GenerateRequest,
    body: Common,
    view: CompletionView | ChatView,
    request: Request,
    headers: dict[str, str],
) -> Response:
    served_request = ServedRequest(state, asked, request.scope[OWNER], body.fields())
    if not body.stream:
        return await whole(served_request, view, request.receive, headers)
    return await streamed(served_request, view, request.receive, headers)

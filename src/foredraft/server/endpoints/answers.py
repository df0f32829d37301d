"""Endpoints that answer: completions and chats, whole or as events."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from foredraft.server.backend import Asked
from foredraft.server.endpoints.shared import ANSWERED, TheDesk, TheModel
from foredraft.server.errors import ApiError
from foredraft.server.guard import OWNER
from foredraft.server.limits import BoundedRoute
from foredraft.server.state import Desk
from foredraft.server.wire import response_schema as replies
from foredraft.server.wire.exchange import Conduct
from foredraft.server.wire.request_fields import check_known, of_chat, of_completion, warned
from foredraft.server.wire.request_schema import ChatRequest, Common, CompletionRequest
from foredraft.server.wire.responses import ChatView, CompletionView, Told
from foredraft.server.wire.stream import streamed, whole

router = APIRouter(route_class=BoundedRoute)


def _streamed(model: type[replies.Reply], chunk: type[replies.Reply]) -> dict[int | str, dict[str, Any]]:
    kinds = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in (chunk, replies.ErrorReply)]
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
    responses=_streamed(replies.CompletionReply, replies.CompletionReply),
    tags=["answers"],
)
async def completions(body: CompletionRequest, request: Request, desk: TheDesk, model: TheModel) -> Response:
    """Go on with a text, or with several."""
    headers = warned(check_known(body, model.name))
    asked = of_completion(body, request.scope[OWNER], desk.limits.prompts)
    told = _told(body, top=body.logprobs, echo=bool(body.echo))
    view = CompletionView(model.name, model.facts["system_fingerprint"], desk.created, told, body.n or 1)
    return await _answered(desk, asked, body, view, request, headers)


@router.post(
    "/v1/chat/completions",
    response_class=Response,
    responses=_streamed(replies.ChatReply, replies.ChatChunk),
    tags=["answers"],
)
async def chat_completions(body: ChatRequest, request: Request, desk: TheDesk, model: TheModel) -> Response:
    """Go on with a conversation."""
    headers = warned(check_known(body, model.name))
    asked = of_chat(body, request.scope[OWNER], model.context)
    told = _told(body, top=(body.top_logprobs or 0) if body.logprobs else None)
    view = ChatView(model.name, model.facts["system_fingerprint"], desk.created, told, body.n or 1)
    return await _answered(desk, asked, body, view, request, headers)


def _told(body: Common, *, top: int | None, echo: bool = False) -> Told:
    options = body.stream_options
    if options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream to be true", "stream_options")
    continuous = bool(body.continuous_usage_stats or (options and options.continuous_usage_stats))
    return Told(
        top=top,
        echo=echo,
        token_ids=bool(body.return_token_ids),
        usage=bool(options and options.include_usage),
        continuous=continuous,
        origins=bool(options and options.include_origins),
    )


async def _answered(
    desk: Desk, asked: Asked, body: Common, view: CompletionView | ChatView, request: Request, headers: dict[str, str]
) -> Response:
    conduct = Conduct(desk, asked, request.scope[OWNER], body.fields())
    if not body.stream:
        return await whole(conduct, view, request.receive, headers)
    return await streamed(conduct, view, request.receive, headers)

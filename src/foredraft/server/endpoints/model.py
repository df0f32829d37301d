"""Endpoints about the model: what is served, and its tokens."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from foredraft.server.backend import Served
from foredraft.server.endpoints.shared import ASKED, TOLD, TheDesk, TheModel, faults
from foredraft.server.errors import ApiError, document, refusal
from foredraft.server.limits import BoundedRoute
from foredraft.server.state import ServerState
from foredraft.server.wire import response_schema as response_schema
from foredraft.server.wire.request_fields import check_known, template, turns, warned
from foredraft.server.wire.request_schema import DetokenizeRequest, TokenizeRequest

router = APIRouter(route_class=BoundedRoute)


@router.get("/v1/models", responses={200: {"model": response_schema.ModelsReply}, **TOLD}, response_class=Response)
async def models(state: TheDesk, model: TheModel) -> Response:
    """Name what is served."""
    return document({"object": "list", "data": [_card(state, model)]})


@router.get(
    "/v1/models/{name:path}", responses={200: {"model": response_schema.ModelReply}, **TOLD, **faults(404)},
    response_class=Response,
)  # fmt: skip
async def one_model(name: str, state: TheDesk, model: TheModel) -> Response:
    """Describe what is served."""
    if name != model.name:
        raise ApiError(404, f"the model {name!r:.80} is not served here: {model.name} is", "model", "model_not_found")
    return document(_card(state, model))


def _card(state: ServerState, model: Served) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": state.created,
        "owned_by": "foredraft",
        "max_model_len": model.context,
        **model.facts,
    }


@router.post("/tokenize", responses={200: {"model": response_schema.TokenizeReply}, **ASKED}, response_class=Response)
async def tokenize(body: TokenizeRequest, state: TheDesk, model: TheModel) -> Response:
    """Return the tokens of a text or of a conversation."""
    headers = warned(check_known(body, model.name))
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give prompt or messages, one of them", "prompt")
    asked: Any = body.prompt if body.prompt is not None else turns(body.messages or [])
    special = body.add_special_tokens is not False
    variables = template(body.chat_template_kwargs)
    ids = await _in_thread(state, body, lambda: model.encode(asked, special, variables))
    strings = model.token_texts(ids) if body.return_token_strs else None
    counted = {"count": len(ids), "max_model_len": model.context, "tokens": ids, "token_strs": strings}
    return document(counted, headers=headers)


@router.post(
    "/detokenize", responses={200: {"model": response_schema.DetokenizeReply}, **ASKED}, response_class=Response
)
async def detokenize(body: DetokenizeRequest, state: TheDesk, model: TheModel) -> Response:
    """Return the text of tokens."""
    headers = warned(check_known(body, model.name))
    text = await _in_thread(state, body, lambda: model.decode(body.tokens))
    return document({"prompt": text}, headers=headers)


async def _in_thread(state: ServerState, body: Any, work: Any) -> Any:
    try:
        return await asyncio.get_running_loop().run_in_executor(state.makers, work)
    except Exception as error:  # what is the request's fault is told as such, the rest goes on up
        if (refused := refusal(error, body.fields())) is not None:
            raise refused from error
        raise

"""The application: every endpoint, and what stands around them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from foredraft._version import __version__
from foredraft.server.backend import Asked, Served
from foredraft.server.errors import ApiError, document, invalid, refusal
from foredraft.server.guard import OWNER, Guard
from foredraft.server.limits import BoundedRoute
from foredraft.server.state import Desk
from foredraft.server.watch.metrics import CONTENT_TYPE
from foredraft.server.watch.openapi import describe
from foredraft.server.watch.page import add_page
from foredraft.server.wire import response_schema as replies
from foredraft.server.wire.exchange import Conduct
from foredraft.server.wire.request_fields import WARNING, check_known, of_chat, of_completion, template, turns, warned
from foredraft.server.wire.request_schema import (
    ChatRequest,
    Common,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from foredraft.server.wire.responses import ChatView, CompletionView, Told
from foredraft.server.wire.stream import streamed, whole

_ABOUT: Final = (
    "OpenAI's API over one model, with speculative decoding. Fields that cannot be honoured are a 400 which names "
    f"them; fields that nobody knows have no effect, and the header {WARNING} says so."
)
_FAULTS: Final = {
    400: "A request that cannot be honoured; `param` names the field.",
    401: "No API key, or one that is not known.",
    404: "No such model, or no such address.",
    408: "The body took too long.",
    413: "The body is too large.",
    429: "This key has too many answers under way.",
    431: "The headers are too large.",
    500: "A fault of the engine.",
    503: "The queue is full, the model is being loaded, or the server is about to end: see Retry-After.",
}


def create_app(desk: Desk) -> FastAPI:
    """Return the application of one server."""
    app = FastAPI(
        title="Foredraft",
        version=__version__,
        description=_ABOUT,
        docs_url=None,  # they would fetch scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.desk = desk
    app.include_router(router)
    add_page(app)
    describe(app, keyed=bool(desk.keys))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_middleware(Guard, desk=desk)
    if desk.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=desk.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # those that are asked for: clients add their own
            expose_headers=[WARNING, "Retry-After"],
        )
    return app


async def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


async def _served(request: Request) -> Served:
    return (await _desk(request)).model()


TheDesk = Annotated[Desk, Depends(_desk)]
TheModel = Annotated[Served, Depends(_served)]


def _faults(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": replies.ErrorReply, "description": _FAULTS[status]} for status in statuses}


router = APIRouter(route_class=BoundedRoute)
_ANSWERED: Final = _faults(400, 401, 404, 408, 413, 429, 431, 500, 503)
_ASKED: Final = _faults(400, 401, 404, 408, 413, 431, 500, 503)
_TOLD: Final = _faults(400, 401, 431, 503)


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
        **_ANSWERED,
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


@router.get("/v1/models", responses={200: {"model": replies.ModelsReply}, **_TOLD}, response_class=Response)
async def models(desk: TheDesk, model: TheModel) -> Response:
    """Name what is served."""
    return document({"object": "list", "data": [_card(desk, model)]})


@router.get(
    "/v1/models/{name:path}", responses={200: {"model": replies.ModelReply}, **_TOLD, **_faults(404)},
    response_class=Response,
)  # fmt: skip
async def one_model(name: str, desk: TheDesk, model: TheModel) -> Response:
    """Describe what is served."""
    if name != model.name:
        raise ApiError(404, f"the model {name!r:.80} is not served here: {model.name} is", "model", "model_not_found")
    return document(_card(desk, model))


def _card(desk: Desk, model: Served) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": desk.created,
        "owned_by": "foredraft",
        "max_model_len": model.context,
        **model.facts,
    }


@router.post("/tokenize", responses={200: {"model": replies.TokenizeReply}, **_ASKED}, response_class=Response)
async def tokenize(body: TokenizeRequest, desk: TheDesk, model: TheModel) -> Response:
    """Return the tokens of a text or of a conversation."""
    headers = warned(check_known(body, model.name))
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give prompt or messages, one of them", "prompt")
    asked: Any = body.prompt if body.prompt is not None else turns(body.messages or [])
    special = body.add_special_tokens is not False
    variables = template(body.chat_template_kwargs)
    ids = await _in_thread(desk, body, lambda: model.encode(asked, special, variables))
    strings = model.spelled(ids) if body.return_token_strs else None
    counted = {"count": len(ids), "max_model_len": model.context, "tokens": ids, "token_strs": strings}
    return document(counted, headers=headers)


@router.post("/detokenize", responses={200: {"model": replies.DetokenizeReply}, **_ASKED}, response_class=Response)
async def detokenize(body: DetokenizeRequest, desk: TheDesk, model: TheModel) -> Response:
    """Return the text of tokens."""
    headers = warned(check_known(body, model.name))
    text = await _in_thread(desk, body, lambda: model.decode(body.tokens))
    return document({"prompt": text}, headers=headers)


async def _in_thread(desk: Desk, body: Any, work: Any) -> Any:
    try:
        return await asyncio.get_running_loop().run_in_executor(desk.makers, work)
    except Exception as fault:  # what is the request's fault is told as such, the rest goes on up
        if (refused := refusal(fault, body.fields())) is not None:
            raise refused from fault
        raise


@router.get("/health", responses={200: {"model": replies.StatusReply}, **_faults(400, 431)}, response_class=Response)
async def health(desk: TheDesk) -> Response:
    """Say that the server lives."""
    return document({"status": desk.status})


@router.get(
    "/ready", responses={200: {"model": replies.StatusReply}, **_faults(400, 431, 503)}, response_class=Response
)
async def ready(desk: TheDesk) -> Response:
    """Say whether the server answers."""
    desk.model()
    if desk.draining:
        raise ApiError(503, "the server is about to end", code="draining", headers={"Retry-After": "1"})
    return document({"status": desk.status})


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}, **_TOLD}, response_class=Response)
async def metrics(desk: TheDesk) -> Response:
    """Return what Prometheus reads."""
    return Response(desk.meters.exposition(), media_type=CONTENT_TYPE)


@router.get("/version", responses={200: {"model": replies.VersionReply}, **_TOLD}, response_class=Response)
async def version() -> Response:
    """Return Foredraft's own."""
    return document({"version": __version__})


@router.get("/stats", responses={200: {"model": replies.StatsReply}, **_TOLD}, response_class=Response)
async def stats(model: TheModel) -> Response:
    """Return what is going on, for a chart of it."""
    load, facts = model.load(), model.facts
    names = (
        "running", "waiting", "slots", "free", "draft_length", "acceptance", "tokens_per_pass", "tokens_per_s",
        "plain_tokens_per_s", "speedup",
    )  # fmt: skip
    drafters = {
        name: {"drafts": count.drafts, "drafted": count.drafted, "accepted": count.accepted}
        for name, count in load.drafts.items()
    }
    told = {name: facts[name] for name in ("drafter", "tier", "dtype")}
    figures = {name: getattr(load, name) for name in names}
    asked = (load.running + load.waiting) / load.slots
    return document({"model": model.name, **told, **figures, "load": asked, "drafters": drafters})


async def _invalid(_: Request, fault: Exception) -> Response:
    assert isinstance(fault, RequestValidationError)
    return invalid(fault).response()


async def _http(request: Request, fault: Exception) -> Response:
    if isinstance(fault, ApiError):
        return fault.response()
    assert isinstance(fault, HTTPException)
    if fault.status_code == 404:
        return ApiError(404, f"there is nothing at {request.url.path!r:.80}", code="not_found").response()
    return ApiError(fault.status_code, str(fault.detail), headers=fault.headers).response()

"""Endpoints about the server: whether it lives, what it counts, what is going on."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from foredraft._version import __version__
from foredraft.server.endpoints.shared import TOLD, TheDesk, TheModel, faults
from foredraft.server.errors import ApiError, document
from foredraft.server.limits import BoundedRoute
from foredraft.server.watch.metrics import CONTENT_TYPE
from foredraft.server.wire import response_schema as response_schema

router = APIRouter(route_class=BoundedRoute)


@router.get(
    "/health", responses={200: {"model": response_schema.StatusReply}, **faults(400, 431)}, response_class=Response
)
async def health(state: TheDesk) -> Response:
    """Say that the server lives."""
    return document({"status": state.status})


@router.get(
    "/ready", responses={200: {"model": response_schema.StatusReply}, **faults(400, 431, 503)}, response_class=Response
)
async def ready(state: TheDesk) -> Response:
    """Say whether the server answers."""
    state.model()
    if state.draining:
        raise ApiError(503, "the server is about to end", code="draining", headers={"Retry-After": "1"})
    return document({"status": state.status})


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}, **TOLD}, response_class=Response)
async def metrics(state: TheDesk) -> Response:
    """Return what Prometheus reads."""
    return Response(state.meters.exposition(), media_type=CONTENT_TYPE)


@router.get("/version", responses={200: {"model": response_schema.VersionReply}, **TOLD}, response_class=Response)
async def version() -> Response:
    """Return Foredraft's own."""
    return document({"version": __version__})


@router.get("/stats", responses={200: {"model": response_schema.StatsReply}, **TOLD}, response_class=Response)
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

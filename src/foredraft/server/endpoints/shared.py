"""What every endpoint takes and may answer with: the server's state, the model, refusals."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Depends, Request

from foredraft.server.backend import Served
from foredraft.server.state import ServerState
from foredraft.server.wire import response_schema as response_schema

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


async def desk_of(request: Request) -> ServerState:
    """Return the state of the server."""
    state: ServerState = request.app.state.server
    return state


async def served_of(request: Request) -> Served:
    """Return the model. Raises ApiError while it is loading."""
    return (await desk_of(request)).model()


TheDesk = Annotated[ServerState, Depends(desk_of)]
TheModel = Annotated[Served, Depends(served_of)]


def faults(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the refusals of an endpoint, as its document lists them."""
    return {status: {"model": response_schema.ErrorReply, "description": _FAULTS[status]} for status in statuses}


# who asks for answers may be told all of it; who asks about tokens or the model, less
ANSWERED: Final = faults(400, 401, 404, 408, 413, 429, 431, 500, 503)
ASKED: Final = faults(400, 401, 404, 408, 413, 431, 500, 503)
TOLD: Final = faults(400, 401, 431, 503)

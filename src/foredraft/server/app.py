"""The application: every endpoint, and what stands around them."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from foredraft._version import __version__
from foredraft.server.endpoints import answers, model, status
from foredraft.server.errors import ApiError, invalid
from foredraft.server.guard import Guard
from foredraft.server.state import ServerState
from foredraft.server.watch.openapi import describe
from foredraft.server.watch.page import add_page
from foredraft.server.wire.request_fields import WARNING

_ABOUT: Final = (
    "OpenAI's API over one model, with speculative decoding. Fields that cannot be honoured are a 400 which names "
    f"them; fields that nobody knows have no effect, and the header {WARNING} says so."
)


def create_app(state: ServerState) -> FastAPI:
    """Return the application of one server."""
    app = FastAPI(
        title="Foredraft",
        version=__version__,
        description=_ABOUT,
        docs_url=None,  # they would fetch scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.server = state
    for endpoints in (answers, model, status):
        app.include_router(endpoints.router)
    add_page(app)
    describe(app, keyed=bool(state.keys))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_middleware(Guard, state=state)
    if state.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=state.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # those that are asked for: clients add their own
            expose_headers=[WARNING, "Retry-After"],
        )
    return app


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return invalid(error).response()


async def _http(request: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return error.response()
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return ApiError(404, f"there is nothing at {request.url.path!r:.80}", code="not_found").response()
    return ApiError(error.status_code, str(error.detail), headers=error.headers).response()

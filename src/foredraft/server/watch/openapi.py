"""The OpenAPI document, less what FastAPI takes for granted and this server does otherwise."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from foredraft.server.guard import OPEN
from foredraft.server.wire.response_schema import ChatChunk, CompletionReply

_VALIDATION: Final = ("HTTPValidationError", "ValidationError")
_REF: Final = "#/components/schemas/{model}"


def describe(app: FastAPI, *, keyed: bool) -> None:
    """Make the application's document one that is true; ``keyed`` says that most addresses ask for a key."""
    made: dict[str, Any] = {}

    def document() -> dict[str, Any]:
        if not made:
            made.update(_document(app, keyed))
        return made

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, keyed: bool) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = document["components"]["schemas"]
    for name in _VALIDATION:
        schemas.pop(name, None)
    _, chunks = models_json_schema(
        [(CompletionReply, "serialization"), (ChatChunk, "serialization")], ref_template=_REF
    )
    for name, schema in chunks["$defs"].items():  # what events hold is in no answer of its own
        schemas.setdefault(name, schema)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operation["responses"].pop("422", None)  # what does not fit is a 400 here
            if keyed and path not in OPEN:
                operation["security"] = [{"key": []}]
            else:
                operation["responses"].pop("401", None)
    if keyed:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document

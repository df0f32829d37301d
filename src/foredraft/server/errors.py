"""Every failure as OpenAI's error object: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from foredraft.errors import (
    DrafterError,
    Draining,
    GenerationError,
    OptionError,
    Overloaded,
    PromptError,
    PromptTooLong,
    TokenizerError,
)

TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_MAX_CHARACTERS: Final = 280
_BRANCHES: Final = ("bool", "int", "float", "str")  # of a union, as pydantic calls them
_RETRY_S: Final = 1.0
# what the library calls otherwise than the request does
_NAMES: Final = {
    "json_schema": "response_format",
    "draft_tokens": "speculative",
    "drafter": "speculative",
    "stop token": "stop_token_ids",
    "bad word": "bad_words",
}
_WORD: Final = re.compile(r"stop token\b|bad word\b|[a-z]+(?:_[a-z]+)*")


class ApiError(HTTPException):
    """A request that is refused, with all that its answer says."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """Return the error object."""
        return error_object(self.status_code, str(self.detail), self.param, self.code)

    def response(self) -> Response:
        """Return the answer."""
        return document(self.body(), self.status_code, self.headers)


def error_object(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return OpenAI's error object for a status."""
    kind = TYPES.get(status, TYPES[400] if status < 500 else TYPES[500])
    return {
        "error": {
            "message": message if len(message) <= _MAX_CHARACTERS else f"{message[:_MAX_CHARACTERS]} …",
            "type": kind,
            "param": param,
            "code": code,
        }
    }


def document(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON, whatever a text in it holds."""
    return Response(encoded(value), status, dict(headers or {}), "application/json")


def encoded(value: Any) -> bytes:
    """Return a document as UTF-8. Raises ValueError for numbers that JSON does not have."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def busy(message: str, code: str, retry_after: float = _RETRY_S) -> ApiError:
    """Return the 503 of a server that cannot answer now but will."""
    return ApiError(503, message, None, code, retry(retry_after))


def retry(seconds: float) -> dict[str, str]:
    """Return the header that says when to come again."""
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def refusal(error: Exception, fields: Iterable[str] = ()) -> ApiError | None:
    """Return what an error of the library means to whoever asked; None for one that is the server's own.

    ``fields`` are the request's own, of which the message may name one.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Overloaded):
        return busy(str(error), "queue_full", error.retry_after)
    if isinstance(error, Draining):
        return busy(str(error), "draining")
    known = list(fields)
    prompt = next((name for name in ("messages", "prompt") if name in known), None)
    if isinstance(error, PromptTooLong):
        return ApiError(400, str(error), prompt, "context_length_exceeded")
    if isinstance(error, PromptError | TokenizerError):
        return ApiError(400, str(error), prompt)
    if isinstance(error, OptionError | GenerationError):
        return ApiError(400, str(error), named(str(error), known))
    if isinstance(error, DrafterError):
        return ApiError(400, str(error), named(str(error), known) or "speculative")
    return None


def named(message: str, fields: Iterable[str]) -> str | None:
    """Return the field that a sentence of the library names first, by the request's own name for it."""
    known = set(fields)
    word: str
    for word in _WORD.findall(message):
        name = _NAMES.get(word, word)
        if name == "max_tokens" and "max_completion_tokens" in known:
            return "max_completion_tokens"
        if name in known:
            return name
    return None


def invalid(error: RequestValidationError) -> ApiError:
    """Return the first thing that is wrong with a body, as one sentence."""
    errors = error.errors()
    of_first = [each for each in errors if each["loc"][:2] == errors[0]["loc"][:2]]
    first = max(of_first, key=lambda each: len(each["loc"]))  # of a union the branch that came furthest is meant
    place = [part for part in first["loc"] if part != "body"]
    if not place:
        return ApiError(400, "the body must be a JSON object, sent with Content-Type: application/json")
    param, words = str(place[0]), str(first["msg"]).removeprefix("Value error, ")
    inner = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place[1:] if _shown(part))
    if first["type"] == "missing":
        return ApiError(400, f"{param}{inner} is missing", param)
    return ApiError(400, f"{param}{inner}: {words[:1].lower()}{words[1:]}", param)


def _shown(part: object) -> bool:
    """Say whether a part of a place is the user's: pydantic also names the branches of a union, with capitals."""
    return isinstance(part, int) or (
        isinstance(part, str) and part.isidentifier() and part.islower() and part not in _BRANCHES
    )

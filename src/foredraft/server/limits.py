"""What a request may cost before it is understood: its size, its time, and how much one key may have under way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from foredraft.server.errors import ApiError, retry

_CLOSE: Final = {"Connection": "close"}
_DIGITS: Final = 1000  # of a whole number
_LINGER_S: Final = 2.0  # in which what is too large may still arrive, so that its sender gets to read why


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a server, in bytes and seconds; ``per_key`` is in answers under way, None for no bound."""

    body: int = 4 << 20
    headers: int = 32 << 10
    headers_s: float = 10.0
    body_s: float = 30.0
    write_s: float = 60.0  # in which a client must take what was written
    ping_s: float = 15.0
    prompts: int = 2048
    per_key: int | None = None


class BoundedRequest(Request):
    """A request whose body is read within its limits, and is JSON as JSON is defined."""

    @property
    def limits(self) -> Limits:
        """The server's."""
        limits: Limits = self.app.state.server.limits
        return limits

    async def body(self) -> bytes:
        """Return the body. Raises ApiError 413 as soon as it is too large, 408 when it takes too long."""
        if not hasattr(self, "_body"):
            limit = self.limits.body
            coding = self.headers.get("content-encoding", "identity").strip().lower()
            if coding not in ("identity", ""):
                raise ApiError(400, f"the body is encoded as {coding[:40]!r}, and only plain bodies are read")
            declared = self.headers.get("content-length", "")
            if declared.isdecimal() and int(declared[:20]) > limit:
                await self._refuse_large(limit)
            parts: list[bytes] = []
            try:
                async with asyncio.timeout(self.limits.body_s):
                    async for part in self.stream():
                        parts.append(part)
                        limit -= len(part)
                        if limit < 0:
                            await self._refuse_large(self.limits.body)
            except TimeoutError:
                raise ApiError(408, "the body took too long to arrive", headers=_CLOSE) from None
            except ClientDisconnect:
                raise ApiError(400, "the body broke off", headers=_CLOSE) from None
            self._body = b"".join(parts)
        return self._body

    async def _refuse_large(self, limit: int) -> NoReturn:
        if "expect" not in self.headers:  # whoever asks first is told before he sends
            with suppress(TimeoutError, ClientDisconnect):
                async with asyncio.timeout(_LINGER_S):
                    while (await self.receive()).get("more_body"):
                        pass
        raise ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large", headers=_CLOSE)

    async def json(self) -> Any:
        """Return the body as JSON. Raises ApiError 400 for what is none, NaN and infinite numbers included."""
        if not hasattr(self, "_json"):
            self._json = strict_json(await self.body())
        return self._json


class BoundedRoute(APIRoute):
    """A route whose requests are bounded."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, handed such requests."""
        handler = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handler(BoundedRequest(request.scope, request.receive))

        return bounded


def strict_json(body: bytes) -> Any:
    """Return a document. Raises ApiError for anything that RFC 8259 does not have, and for text that is no text."""
    try:
        text = body.decode()
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite, parse_int=_whole)
        if "\\u" in text:  # lone surrogates come as escapes
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise ApiError(400, "the body is not UTF-8 text") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deep") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:  # Python would say so in words of its own
        raise ValueError(f"a number in it has {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits:.20} is too large a number")
    return value


class PerKey:
    """How many answers each key has under way, and the most that it may have."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._under_way: dict[str, int] = {}

    def enter(self, owner: str, answers: int) -> None:
        """Count answers in. Raises ApiError 429 where they are too many."""
        under_way = self._under_way.get(owner, 0)
        if self._most is not None and under_way + answers > self._most:
            raise ApiError(
                429,
                f"this key may have {self._most} answers under way, and has {under_way}: try again when some ended",
                code="rate_limit_exceeded",
                headers=retry(1),
            )
        self._under_way[owner] = under_way + answers

    def leave(self, owner: str, answers: int) -> None:
        """Count answers out."""
        left = self._under_way.get(owner, 0) - answers
        if left > 0:
            self._under_way[owner] = left
        else:
            self._under_way.pop(owner, None)

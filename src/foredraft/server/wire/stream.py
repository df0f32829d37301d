"""Answers over HTTP: whole, or as server-sent events while they are written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foredraft.server.errors import ApiError, document, encoded
from foredraft.server.wire.exchange import ClientGone, ServedRequest, until_gone
from foredraft.server.wire.response_fields import facts, usage, whole_usage
from foredraft.server.wire.responses import Gathered, View

PING: Final = b": ping\n\n"
DONE: Final = b"data: [DONE]\n\n"
LEFT: Final = 499  # nginx's number for a client that left; nobody reads it
_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@asynccontextmanager
async def _watched(served_request: ServedRequest, receive: Receive) -> AsyncGenerator[None, None]:
    """Tell ``served_request`` if the client leaves meanwhile."""
    gone = asyncio.create_task(until_gone(receive))
    gone.add_done_callback(lambda task: None if task.cancelled() else served_request.leave())
    try:
        yield
    finally:
        gone.cancel()


async def whole(served_request: ServedRequest, view: View, receive: Receive, headers: Mapping[str, str]) -> Response:
    """Return the answers when they are all there; end them if the client leaves. Raises ApiError."""
    try:
        async with _watched(served_request, receive), aclosing(served_request.deltas()) as deltas:
            await served_request.begin()
            answers = [Gathered() for _ in served_request.exchange.answers]
            async for news in deltas:
                for index, delta in news:
                    answers[index].add(delta)
        summary = served_request.exchange.summary()
        body = view.whole(answers, served_request.exchange.prompts)
        return document({**body, "usage": whole_usage(summary), **facts(summary)}, headers=headers)
    except ClientGone:
        return Response(status_code=LEFT)
    finally:
        served_request.close()


async def streamed(served_request: ServedRequest, view: View, receive: Receive, headers: Mapping[str, str]) -> Response:
    """Return the answers as they are written, once the request has begun. Raises ApiError."""
    try:
        async with _watched(served_request, receive):
            await served_request.begin()
    except ClientGone:
        return Response(status_code=LEFT)
    return EventStream(served_request, view, headers)


class EventStream(Response):
    """Answers as they are written. The request has begun; it is ended when the client leaves."""

    def __init__(self, served_request: ServedRequest, view: View, headers: Mapping[str, str]) -> None:
        super().__init__(None, 200, {**_HEADERS, **headers}, "text/event-stream")
        self._conduct = served_request
        self._view = view

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set the headers, without a length that nobody knows."""
        super().init_headers(headers)
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI calls it so
        """Send events until there are no more, or nobody reads them."""
        try:
            async with _watched(self._conduct, receive), aclosing(_events(self._conduct, self._view)) as events:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGone:
            return
        finally:
            self._conduct.close()


async def _events(served_request: ServedRequest, view: View) -> AsyncGenerator[bytes, None]:
    """Yield a request's events; one that fails in mid-stream ends with an error in place of ``[DONE]``."""
    try:
        async with aclosing(_chunks(served_request, view)) as chunks:
            async for chunk in chunks:
                yield PING if chunk is None else _event(chunk)
        yield DONE
    except ApiError as error:
        yield _event(error.body())


async def _chunks(served_request: ServedRequest, view: View) -> AsyncGenerator[dict[str, Any] | None, None]:
    """Yield chunks; None where there has been nothing to say for a while."""
    options, exchange = view.options, served_request.exchange
    prompts, written, left = exchange.prompts, 0, len(exchange.answers)
    read = sum(len(prompt.token_ids) for prompt in prompts)

    def with_usage(chunk: dict[str, Any]) -> dict[str, Any]:
        if options.continuous:
            return {**chunk, "usage": usage(read, written)}
        return {**chunk, "usage": None} if options.usage else chunk

    for chunk in view.openings(prompts):
        yield with_usage(chunk)
    async with aclosing(served_request.deltas()) as deltas:
        async for news in deltas:
            if not news:
                yield None
            for index, delta in news:
                written += delta.tokens
                if any(piece.text for piece in delta.pieces) or (delta.pieces and _tells_tokens(view)):
                    yield with_usage(view.chunk(index, delta))
                if delta.finish_reason in ("stop", "length"):
                    left -= 1
                    last = facts(exchange.summary()) if left == 0 else {}
                    yield {**with_usage(view.finish(index, delta.finish_reason)), **last}
    if not exchange.answers:
        yield {**with_usage(view.finish(0, "length")), **facts(exchange.summary())}
    if options.usage:
        yield {**view.bare(), "usage": whole_usage(exchange.summary())}


def _tells_tokens(view: View) -> bool:
    """Say whether a token without a text, of its own is something to tell."""
    options = view.options
    return options.top is not None or options.token_ids or options.origins


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + encoded(chunk) + b"\n\n"

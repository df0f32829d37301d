"""A request's answers as the event loop sees them: news comes from the engine's thread, and a client may leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace

from starlette.types import Receive

from foredraft.errors import ForedraftError
from foredraft.server.backend import Delta, Exchange, GenerateRequest
from foredraft.server.errors import ApiError, busy, refusal
from foredraft.server.state import ServerState

News = list[tuple[int, Delta]]  # which answer, and what it got


class ClientGone(Exception):  # noqa: N818 - it is news, not an error
    """Nobody listens any more."""


class ServedRequest:
    """The answers to one request, from its preparation to their end.

    ``close`` must be called whatever happens: it ends what has not ended. ``fields`` are those of the request, for
    messages that name one.
    """

    def __init__(self, state: ServerState, asked: GenerateRequest, owner: str, fields: list[str]) -> None:
        self.exchange: Exchange
        self._state = state
        self._asked = asked
        self._owner = owner
        self._fields = fields
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._gone = False
        self._entered = 0
        self._ended = 0
        self._latest: dict[int, float] = {}

    async def begin(self) -> None:
        """Make the request ready, score its prompts where that is wanted, and hand it to the engine.

        Raises ApiError for what cannot be honoured or has no room, ClientGone.
        """
        try:
            self.exchange = await self._prepared()
            self._enter()
            for prompt in self.exchange.prompts:
                self._state.meters.prompt(len(prompt.token_ids))
            if self._asked.scored is not None:
                self.exchange.score(self._notify)
                while not self.exchange.scored:
                    await self._wait(None)
            if self.exchange.answers:
                self.exchange.start(self._notify)
        except BaseException as error:
            self.close()
            if isinstance(error, ClientGone) or not isinstance(error, Exception):
                raise
            raise self._refused(error) from error

    async def _prepared(self) -> Exchange:
        state = self._state
        served = state.model()
        if state.making >= served.most:
            raise busy(f"{state.making} requests are being read already", "queue_full")
        state.making += 1
        try:
            return await self._loop.run_in_executor(state.makers, served.prepare, self._asked)
        finally:
            state.making -= 1

    def _enter(self) -> None:
        count = max(1, len(self.exchange.answers))
        self._state.per_key.enter(self._owner, count)
        self._entered = count

    async def deltas(self) -> AsyncGenerator[News, None]:
        """Yield what comes, until every answer has ended; nothing, now and then, where nothing comes for a while.

        Raises ApiError where an answer fails, ClientGone.
        """
        while self._ended < len(self.exchange.answers):
            news = self._take()
            if news:
                yield news
                await asyncio.sleep(0)  # others have something to say too
            elif not await self._wait(self._state.limits.ping_s):
                yield []
            for _, delta in news:
                if delta.finish_reason in ("error", "cancelled"):
                    raise self._failed(delta)

    def _take(self) -> News:
        """Return what has come, that of several rounds as one."""
        news = []
        for index, answer in enumerate(self.exchange.answers):
            deltas = answer.take()
            for delta in deltas:
                self._count(index, delta, answer.submitted)
            if deltas:
                news.append((index, _joined(deltas)))
        return news

    def leave(self) -> None:
        """Say that nobody listens any more."""
        self._gone = True
        self._news.set()

    def close(self) -> None:
        """End what has not ended."""
        if hasattr(self, "exchange"):
            self.exchange.cancel()
        if self._entered:
            self._state.per_key.leave(self._owner, self._entered)
            self._entered = 0

    async def _wait(self, seconds: float | None) -> bool:
        """Wait for news; say whether there is some. Raises ClientGone."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        if self._gone:
            raise ClientGone
        return True

    def _notify(self) -> None:
        """Hear of news, on the engine's thread."""
        with suppress(RuntimeError):  # a loop that is closed has nobody who listens
            self._loop.call_soon_threadsafe(self._news.set)

    def _count(self, index: int, delta: Delta, submitted: float) -> None:
        self._state.meters.saw(delta, submitted, self._latest.get(index))
        if delta.tokens:
            self._latest[index] = delta.at
        self._ended += delta.finish_reason is not None

    def _failed(self, delta: Delta) -> ApiError:
        if delta.error is None:
            return busy("the server is about to end", "draining")
        return self._refused(delta.error)

    def _refused(self, error: Exception) -> ApiError:
        """Return what is told of a fault: the client's own as a refusal, the engine's as a 500."""
        found = refusal(error, self._fields)
        if found is None and isinstance(error, ForedraftError):
            found = ApiError(500, str(error), code="engine_fault")
        if found is None:
            self._state.report(f"a request failed: {type(error).__name__}: {error}")
            found = ApiError(500, "the engine failed at this request", code="engine_fault")
        return found


def _joined(deltas: list[Delta]) -> Delta:
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    return replace(
        last,
        pieces=tuple(piece for delta in deltas for piece in delta.pieces),
        logprobs=None if last.logprobs is None else tuple(one for delta in deltas for one in delta.logprobs or ()),
        tokens=sum(delta.tokens for delta in deltas),
    )


async def until_gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass

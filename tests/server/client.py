"""A client without a network: it calls the application as a server would, and can leave whenever it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

HOST = {"host": "127.0.0.1:8000"}


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    ended: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, which is all there is."""
        document = self.json
        assert set(document) == {"error"}
        assert set(document["error"]) == {"message", "type", "param", "code"}
        error: dict[str, Any] = document["error"]
        return error

    @property
    def events(self) -> list[str]:
        """What each event says, ``[DONE]`` included, comments not."""
        blocks = self.body.decode().split("\n\n")
        assert blocks[-1] == ""
        assert all(block.startswith(("data: ", ": ")) for block in blocks[:-1])
        return [block.removeprefix("data: ") for block in blocks[:-1] if block.startswith("data: ")]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The events of a stream that ended as it should."""
        events = self.events
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]


Leave = Callable[[Reply], bool]


async def call(
    app: Any,
    method: str,
    path: str,
    body: Iterable[bytes] | Any = None,
    headers: Mapping[str, str] | None = None,
    leave: Leave | None = None,
) -> Reply:
    """Ask, and return what came; ``leave`` says, before the first part of the answer and after each, whether to go."""
    reply = Reply()
    chunks = [b""] if body is None else list(body) if isinstance(body, tuple) else [json.dumps(body).encode()]
    sent = {**HOST, **({} if body is None else {"content-type": "application/json"}), **(headers or {})}
    gone = asyncio.Event()
    if leave is not None and leave(reply):
        gone.set()

    async def receive() -> dict[str, Any]:
        if chunks:
            part = chunks.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(chunks)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            reply.parts.append(message.get("body", b""))
            reply.ended = not message.get("more_body", False)
        if leave is not None and leave(reply):
            gone.set()

    path, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "scheme": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return reply


@dataclass
class Client:
    """Asks one application, a request at a time or several at once."""

    app: Any
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Reply:
        return asyncio.run(call(self.app, "GET", path, None, {**self.headers, **_names(headers)}))

    def post(self, path: str, body: Any, leave: Leave | None = None, **headers: str) -> Reply:
        return asyncio.run(call(self.app, "POST", path, body, {**self.headers, **_names(headers)}, leave))

    def complete(self, prompt: Any = "abc abd", **fields: Any) -> Reply:
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def chat(self, words: str = "abc abd", **fields: Any) -> Reply:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": words}], **fields})

    def together(self, *asked: tuple[str, Any]) -> list[Reply]:
        """Post several bodies at once."""

        async def every() -> list[Reply]:
            return await asyncio.gather(*(call(self.app, "POST", path, body, self.headers) for path, body in asked))

        return asyncio.run(every())


def _names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


Serve = Callable[..., Client]

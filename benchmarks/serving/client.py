"""A ``foredraft serve`` process, and a client that costs little: it keeps what came, and reads it later."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LONGEST_S = 120.0  # that an answer may take before the run is given up
CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"


class BrokenError(Exception):
    """The server closed a connection before its answer was whole."""


class Server:
    """A server of its own process, at a port of its own; ``with`` ends it."""

    def __init__(self, arguments: Any, *more: str) -> None:
        words = ["serve", arguments.model, "--port", "0", "--json", "--dtype", arguments.dtype, *more]
        for name in ("device", "threads", "native_tier", "slots"):
            if getattr(arguments, name) is not None:
                words += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
        environment = dict(os.environ)
        if arguments.cache is not None:
            environment["FOREDRAFT_CACHE"] = str(arguments.cache)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it ends with the server
        self._process = subprocess.Popen(
            [sys.executable, "-m", "foredraft", *words],
            stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: {self.said()}")
        self.facts: dict[str, Any] = json.loads(line)
        self.port = int(self.facts["url"].removesuffix("/v1").rpartition(":")[2])

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._process.terminate()
        try:
            self.status = self._process.wait(60)
        finally:
            self._process.kill()
            if kind is not None:
                print(self.said(), file=sys.stderr)

    def said(self) -> str:
        """Return what the server wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().strip()

    def memory(self) -> dict[str, int]:
        """Return resident memory in KiB, all and what no file is behind, and open descriptors. Linux only."""
        folder = Path("/proc") / str(self._process.pid)
        fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        return {
            "resident": int(fields["VmRSS"].split()[0]),
            "anonymous": int(fields["RssAnon"].split()[0]),
            "descriptors": len(list((folder / "fd").iterdir())),
        }

    def processor(self) -> float:
        """Return the seconds of processors that it has had. Linux only."""
        fields = (Path("/proc") / str(self._process.pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def get(self, path: str) -> Any:
        """Return the JSON document at an address."""
        return (await ask(self.port, path)).document

    async def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        found: list[int] = (await ask(self.port, "/tokenize", {"prompt": text})).document["tokens"]
        return found

    async def decisions(self) -> dict[str, int]:
        """Return how many rounds of an answer there have been with guesses, and without."""
        name = "foredraft_planner_decisions_total{decision="
        lines = (await ask(self.port, "/metrics")).body.decode().splitlines()
        counts = [line.removeprefix(name).split("} ") for line in lines if line.startswith(name)]
        return {label.strip('"'): int(float(count)) for label, count in counts}

    async def idle(self, seconds: float = 30.0) -> dict[str, Any]:
        """Wait until nothing runs or waits, for so long at most; return the load then."""
        end = time.perf_counter() + seconds
        while True:
            load: dict[str, Any] = await self.get("/stats")
            if (load["running"] == load["waiting"] == 0) or time.perf_counter() > end:
                return load
            await asyncio.sleep(0.05)


class Answer:
    """What came, with the seconds at which each part did; read when somebody asks."""

    def __init__(self) -> None:
        self.began = 0.0
        self.head = b""
        self.parts: list[tuple[float, bytes]] = []

    @property
    def status(self) -> int:
        """The status; 0 where there is none."""
        return int(self.head[9:12] or 0)

    @property
    def body(self) -> bytes:
        return b"".join(part for _, part in self.parts)

    @property
    def document(self) -> Any:
        """The body of an answer that is no stream."""
        return json.loads(self.body)

    @property
    def whole(self) -> bool:
        """Whether a stream came to its end."""
        return b"data: [DONE]\n\n" in self.body

    def events(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield a stream's events with the time at which each was there. The server sends each as an HTTP chunk."""
        rest = b""
        for at, part in self.parts:
            *blocks, rest = (rest + part).split(b"\n\n")
            for block in blocks:
                data = block.partition(b"data: ")[2]
                if data and data != b"[DONE]":
                    yield at, json.loads(data)


class Written:
    """A stream of one answer, read: when each piece of text came, its tokens, and what the server says of it."""

    def __init__(self, answer: Answer) -> None:
        self.began = answer.began
        self.times: list[float] = []
        self.tokens: list[int] = []
        self.text = ""
        self.last: dict[str, Any] = {}
        self.fault: str | None = None if answer.status == 200 else f"{answer.status} {answer.body[:200]!r}"
        for at, event in answer.events() if self.fault is None else ():
            if "error" in event:
                self.fault = str(event["error"]["message"])
                continue
            self.last = event
            for choice in event["choices"]:
                text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
                if text or choice.get("token_ids"):
                    self.times.append(at)
                self.text += text
                self.tokens += choice.get("token_ids", ())
        if self.fault is None and not answer.whole:
            self.fault = "the stream ended without [DONE]"

    def must(self) -> Written:
        """Return it, or end the run where the answer is none."""
        if self.fault is not None:
            raise SystemExit(f"a request failed: {self.fault}")
        return self

    @property
    def count(self) -> int:
        """How many tokens were written."""
        return int(self.last["timings"]["predicted_n"])

    @property
    def first_s(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.began


class Connection(asyncio.Protocol):
    """One connection, for one request after the other."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answer = Answer()
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] | None = None
        self._started: asyncio.Future[None] | None = None
        self._length = -1  # of the body, where that is known

    async def open(self) -> Connection:
        """Connect."""
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self.port)
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for waiting in (self._started, self._ended):
            if waiting is not None and not waiting.done():
                waiting.set_exception(BrokenError(f"the connection broke off: {exc}"))
                waiting.exception()  # whoever has left asks for neither

    def data_received(self, data: bytes) -> None:
        answer, now = self.answer, time.perf_counter()
        if not answer.parts:
            head, end, data = (answer.head + data).partition(b"\r\n\r\n")
            answer.head = head
            if not end:
                return
            lines = head.lower().split(b"\r\n")
            self._length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), -1)
        answer.parts.append((now, data))
        if self._started is not None and not self._started.done():
            self._started.set_result(None)
        if self._is_end() and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _is_end(self) -> bool:
        if self._length >= 0:
            return sum(len(part) for _, part in self.answer.parts) >= self._length
        tail = b""
        for _, part in reversed(self.answer.parts):
            tail = part[-5:] + tail
            if len(tail) >= 5:
                break
        return tail.endswith(b"0\r\n\r\n")  # no body has a bare carriage return: JSON writes it as an escape

    async def send(self, path: str, body: Any = None, part: float = 1.0) -> Answer:
        """Send a request, or the first part of it; return the answer, in which nothing has come yet."""
        if self._transport is None or self._transport.is_closing():
            await self.open()
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._ended, self._started, self._length = loop.create_future(), loop.create_future(), -1
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        self.answer = Answer()
        self.answer.began = time.perf_counter()
        request = "\r\n".join([*lines, "", ""]).encode() + data
        self._transport.write(request[: int(len(request) * part)])
        return self.answer

    async def ask(self, path: str, body: Any = None) -> Answer:
        """Return a whole answer. Raises BrokenError, or TimeoutError for a server that hangs."""
        answer = await self.send(path, body)
        await self.end()
        return answer

    async def end(self) -> None:
        """Wait for the answer's end. Raises as ``ask`` does."""
        assert self._ended is not None
        async with asyncio.timeout(LONGEST_S):
            await self._ended

    async def start(self) -> None:
        """Wait for the first part of the answer's body. Raises as ``ask`` does."""
        assert self._started is not None
        async with asyncio.timeout(LONGEST_S):
            await self._started

    def leave(self, reset: bool = False) -> None:
        """Go without a word, or with a reset in place of an end."""
        if self._transport is not None:
            if reset:
                linger = struct.pack("ii", 1, 0)
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
            self._transport = None


async def ask(port: int, path: str, body: Any = None) -> Answer:
    """Return the answer to one request over a connection of its own. Raises as ``Connection.ask`` does."""
    connection = Connection(port)
    try:
        return await connection.ask(path, body)
    finally:
        connection.leave()

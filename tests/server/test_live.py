"""A real server on the loopback: the real client, slow and huge senders, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from foredraft import LanguageModel
from foredraft.errors import OptionError
from tests.server.client import Serve

pytest.importorskip("uvicorn", reason="the server needs the serve extra")
from foredraft.server.limits import Limits
from foredraft.server.run import listen
from tests.server.live import Live, request

pytestmark = pytest.mark.slow

PROMPT = "abc abd"
LIMITS = Limits(headers=4096, headers_s=0.4, body_s=0.4, write_s=0.4, body=1 << 20)


def error(reply: bytes) -> tuple[int, dict[str, Any]]:
    """Return the status and the error object of a raw answer."""
    head, _, body = reply.partition(b"\r\n\r\n")
    document = json.loads(body)
    assert set(document) == {"error"}
    return int(head.split()[1]), document["error"]


@pytest.fixture(scope="module")
def live(open_server: Serve) -> Iterator[Live]:
    client = open_server(limits=LIMITS)
    with Live(client.app.state.server) as server:
        yield server


def test_the_real_client(live: Live, alone: LanguageModel) -> None:
    openai = pytest.importorskip("openai", reason="openai's own client is not installed")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{live.port}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        hot: dict[str, Any] = {"temperature": 1.2, "seed": 4, "max_tokens": 20}
        said = client.completions.create(model="tiny", prompt=PROMPT, **hot, logprobs=1)
        assert said.choices[0].text == alone.generate(PROMPT, raw=True, **hot).text
        assert said.usage.completion_tokens == 20
        assert said.speculative["rounds"] > 0
        turns: Any = [{"role": "user", "content": PROMPT}]
        mine = alone.generate(PROMPT, **hot).text
        chat = client.chat.completions.create(model="tiny", messages=turns, **hot, logprobs=True, top_logprobs=2)
        assert chat.choices[0].message.content == mine
        assert len(chat.choices[0].logprobs.content) == 20
        told = {"include_usage": True}
        with client.chat.completions.create(
            model="tiny", messages=turns, **hot, stream=True, stream_options=told, extra_body={"speculative": False}
        ) as stream:
            chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == mine
        assert chunks[-1].usage.completion_tokens == 20
        predicted = client.chat.completions.create(
            model="tiny", messages=turns, **hot, prediction={"type": "content", "content": mine}
        )
        assert predicted.choices[0].message.content == mine
        assert predicted.usage.completion_tokens_details.accepted_prediction_tokens >= 0
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="tiny", messages=turns, temperature=-1)
        assert refused.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gpt-9", messages=turns)


def test_headers_that_are_too_large(live: Live) -> None:
    for request_bytes in (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ):
        status, found = error(live.send(request_bytes))
        assert (status, found["type"]) == (431, "invalid_request_error")


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00", b"HELO\r\n\r\n", b"GET / HTTP/1.1\r\na b\r\n\r\n"])
def test_what_is_no_request(live: Live, junk: bytes) -> None:
    status, found = error(live.send(junk + b"\r\n\r\n"))
    assert (status, found["type"]) == (400, "invalid_request_error")


def test_names_that_no_header_can_hold(live: Live) -> None:
    for name in ("", " ", "a ", "\r\nx: y", "ü", "\x00", ", "):
        reply = live.ask("/v1/completions", {"prompt": "a", "max_tokens": 1, name: 1})
        assert reply.startswith(b"HTTP/1.1 200")
        assert b"\r\nx-foredraft-warning: no effect: " in reply


def test_slow_headers_are_cut(live: Live) -> None:
    drops = [b"GET /health HTTP/1.1\r\nHost: localhost\r\n", *[b"X-A: b\r\n"] * 200]
    status, _ = error(live.send(*drops, pause=0.02))
    assert status == 408
    status, _ = error(live.send())  # and whoever says nothing at all
    assert status == 408


def test_slow_bodies_are_cut(live: Live) -> None:
    head = request("/v1/completions", b"x" * 1000)[:-1000]
    status, found = error(live.send(head, *[b"x"] * 100, pause=0.02))
    assert (status, found["type"]) == (408, "timeout_error")


def test_who_goes_on_sending_after_the_answer_is_cut(live: Live) -> None:
    lines = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    reply = live.send(lines, *[b"x"] * 60, pause=0.02)  # returns only once the server has closed
    assert reply.startswith(b"HTTP/1.1 404")


def test_a_hundred_megabytes(live: Live) -> None:
    big = b'{"prompt": "' + b"x" * (100 << 20) + b'"}'
    status, found = error(live.send(request("/v1/completions", big)))
    assert (status, found["code"]) == (413, "body_too_large")
    chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunked += b"Transfer-Encoding: chunked\r\n\r\n"
    part = b"%x\r\n" % (1 << 18) + b"y" * (1 << 18) + b"\r\n"
    status, found = error(live.send(chunked, *[part] * 40, b"0\r\n\r\n"))
    assert (status, found["code"]) == (413, "body_too_large")
    asked_first = request("/v1/completions", b"x" * (2 << 20), "Expect: 100-continue").partition(b"\r\n\r\n")[0]
    reply = live.send(asked_first + b"\r\n\r\n")
    assert b"100 Continue" not in reply
    assert error(reply)[0] == 413
    assert live.ask("/v1/completions", {"prompt": "a", "max_tokens": 1}).startswith(b"HTTP/1.1 200")


def test_who_does_not_read_is_cut(live: Live) -> None:
    """His answer ends as others do; what nobody takes is not kept."""
    body = json.dumps(
        {"prompt": PROMPT, "max_tokens": 450, "ignore_eos": True, "stream": True, "logprobs": 20}
    ).encode()
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.connect(("127.0.0.1", live.port))
        connection.sendall(request("/v1/completions", body))
        end = time.monotonic() + 30
        while live.server.server_state.connections == set() and time.monotonic() < end:
            time.sleep(0.01)
        while live.server.server_state.connections and time.monotonic() < end:
            time.sleep(0.02)
        assert not live.server.server_state.connections
    assert live.desk.served is not None
    assert live.desk.served.load().running == 0


def test_a_client_that_hangs_up_frees_its_slots(live: Live) -> None:
    assert live.desk.served is not None
    for stream in (True, False):
        body = json.dumps({"prompt": PROMPT, "max_tokens": 490, "ignore_eos": True, "stream": stream, "n": 4}).encode()
        with closing(socket.create_connection(("127.0.0.1", live.port))) as connection:
            connection.sendall(request("/v1/completions", body))
            if stream:
                assert connection.recv(100)
        end = time.monotonic() + 20
        while live.desk.served.load().free < 8 and time.monotonic() < end:
            time.sleep(0.005)
        assert live.desk.served.load().free == 8


def test_a_thousand_connections_and_a_full_queue(open_server: Serve) -> None:
    """None hangs: each gets an answer or a 503 that says when to come again."""
    client = open_server(engine={"slots": 1, "queue": 2})
    body = json.dumps({"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "temperature": 0}).encode()
    with Live(client.app.state.server) as live:
        connections = []
        for _ in range(1000):
            connections.append(socket.create_connection(("127.0.0.1", live.port), timeout=60))
            connections[-1].sendall(request("/v1/completions", body))
        statuses = []
        for connection in connections:
            reply = b""
            while part := connection.recv(65536):
                reply += part
            connection.close()
            statuses.append(int(reply.split()[1]))
            if statuses[-1] == 503:
                assert re.search(rb"\r\nretry-after: [1-9]", reply)
                assert error(reply)[1]["code"] == "queue_full"
        assert len(statuses) == 1000
        assert set(statuses) == {200, 503}


def test_an_address_that_is_taken() -> None:
    with (
        closing(listen("127.0.0.1", 0)) as taken,
        pytest.raises(OptionError, match=r"^port \d+ of 127.0.0.1 is in use"),
    ):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(OptionError, match="there is no address"):
        listen("no such host", 1)


class Process:
    """``foredraft serve`` as a process."""

    def __init__(self, tiny: Path, cache: Path, *options: str) -> None:
        words = [sys.executable, "-m", "foredraft", "serve", str(tiny), "--port", "0", "--json", "--offline", *options]
        words += ["--dtype", "f32", "--threads", "1", "--drafter", "tests.server.faulty:Slow", "--draft-tokens", "1"]
        root = str(Path(__file__).parent.parent.parent)
        environment = {**os.environ, "FOREDRAFT_CACHE": str(cache), "PYTHONPATH": os.pathsep.join([*sys.path, root])}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment)
        assert self.process.stdout is not None
        self.facts = json.loads(self.process.stdout.readline())
        self.port = int(self.facts["url"].rpartition(":")[2].partition("/")[0])

    def begin(self, tokens: int) -> socket.socket:
        """Begin a stream, and return its connection once text comes."""
        body = json.dumps(
            {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
        )
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(request("/v1/completions", body.encode()))
        assert connection.recv(1)
        return connection

    def end(self) -> tuple[int, str]:
        _, told = self.process.communicate(timeout=60)
        return self.process.returncode, told


def rest(connection: socket.socket) -> bytes:
    found = b""
    with closing(connection):
        while part := connection.recv(65536):
            found += part
    return found


def test_sigterm_lets_answers_finish(tiny: Path, cache: Path) -> None:
    server = Process(tiny, cache, "--drain-seconds", "60")
    assert server.facts["model"] == "tiny"
    connection = server.begin(60)
    server.process.send_signal(signal.SIGTERM)
    refused = b""
    while b"draining" not in refused and server.process.poll() is None:  # the signal has to arrive first
        try:
            with closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)) as late:
                late.sendall(request("/v1/completions", b'{"prompt": "a", "max_tokens": 1}'))
                refused = b"".join(iter(lambda: late.recv(65536), b""))
        except OSError:
            break
    told = rest(connection)
    assert b'"finish_reason":"length"' in told
    assert b"data: [DONE]" in told
    if refused.startswith(b"HTTP/1.1 503"):
        assert b"\r\nretry-after: " in refused
    status, said = server.end()
    assert status == 0
    assert "answers may go on for 60 s" in said
    assert "cut off" not in said


@pytest.mark.parametrize("turn", range(3))  # it was a crash now and then
def test_a_second_signal_ends_at_once(tiny: Path, cache: Path, turn: int) -> None:
    server = Process(tiny, cache, "--drain-seconds", "600")
    connections = [server.begin(490) for _ in range(3)]
    server.process.send_signal(signal.SIGINT)
    assert server.process.stderr is not None
    assert "answers may go on" in server.process.stderr.readline()
    server.process.send_signal(signal.SIGINT)
    status, _ = server.end()
    for connection in connections:
        connection.close()
    assert status == 130

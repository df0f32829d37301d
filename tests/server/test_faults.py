"""Whatever breaks, the next request works, and every slot is free again."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from foredraft import Draft, LanguageModel
from tests.server.client import Client, Reply, Serve, call
from tests.server.faulty import Faulty

pytest.importorskip("fastapi", reason="the server needs the serve extra")

PROMPT = "abc abd"
LONG = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}


def all_free(client: Client) -> bool:
    """Wait for the engine to be idle, and say whether it has all its slots."""
    service = client.app.state.server.served.service
    end = time.monotonic() + 20
    while not service.idle and time.monotonic() < end:
        time.sleep(0.002)
    now = service.snapshot()
    return bool(now.free_slots == now.slots and now.running == now.waiting == 0)


class Broken:
    """A drafter that breaks at one of its methods."""

    name = "broken"
    taps: tuple[int, ...] = ()

    def __init__(self, where: str, how: Callable[[], Any]) -> None:
        self._where = where
        self._how = how

    def _at(self, where: str) -> Any:
        return self._how() if where == self._where else None

    def begin(self, sequence: Any) -> None:
        self._at("begin")

    def propose(self, sequences: Sequence[Any], quotes: Any, noises: Any) -> Any:
        return self._at("propose") or [Draft.chain([1], None, self.name)] * len(sequences)

    def observe(self, *_: Any) -> None:
        self._at("observe")

    def end(self, sequence: Any) -> None:
        self._at("end")


def _raise() -> None:
    raise RuntimeError("out of ideas")


@pytest.mark.parametrize("where", ["begin", "propose", "observe", "end"])
@pytest.mark.parametrize("planned", [True, False])
def test_a_drafter_is_never_fatal(
    open_server: Serve, load: Callable[..., LanguageModel], alone: LanguageModel, where: str, planned: bool
) -> None:
    model = load(drafter=Broken(where, _raise), draft_tokens="auto" if planned else 3)
    client = open_server(model)
    for _ in range(2):
        reply = client.complete(PROMPT, temperature=0, max_tokens=20)
        assert reply.status == 200
        assert reply.json["choices"][0]["text"] == alone.generate(PROMPT, raw=True, max_tokens=20).text
        if where != "end":
            assert any("dropped" in notice and "out of ideas" in notice for notice in reply.json["notices"])
    assert 'foredraft_drafter_faults_total{drafter="broken"} 2.0' in client.get("/metrics").body.decode()
    assert all_free(client)


@pytest.mark.parametrize(
    "answer",
    [[], [None], "draft", [Draft.chain([10**6])], [Draft.chain([1] * 99)], [Draft.chain([1]), Draft.chain([1])]],
)
def test_a_drafter_that_answers_nonsense(
    open_server: Serve, load: Callable[..., LanguageModel], alone: LanguageModel, answer: Any
) -> None:
    client = open_server(load(drafter=Broken("propose", lambda: answer), draft_tokens=4))
    reply = client.complete(PROMPT, temperature=0, max_tokens=20)
    assert reply.json["choices"][0]["text"] == alone.generate(PROMPT, raw=True, max_tokens=20).text


def test_a_target_that_raises_fails_its_batch_and_no_more(open_server: Serve, load: Any, alone: LanguageModel) -> None:
    model = load()
    client = open_server(model)
    faulty = Faulty.in_(model)

    def broken(passes: int) -> None:
        raise MemoryError("no more of it")

    faulty.before = broken
    reply = client.complete(PROMPT, max_tokens=5)
    assert (reply.status, reply.error["type"], reply.error["code"]) == (500, "server_error", "engine_fault")
    assert "MemoryError" not in reply.error["message"]  # that is the log's to tell
    stream = client.complete(PROMPT, max_tokens=5, stream=True)
    assert stream.status == 200
    assert "[DONE]" not in stream.events
    assert '"code":"engine_fault"' in stream.events[-1]
    faulty.before = lambda _: None
    after = client.complete(PROMPT, temperature=0, max_tokens=20)
    assert after.json["choices"][0]["text"] == alone.generate(PROMPT, raw=True, max_tokens=20).text
    assert all_free(client)
    assert "foredraft_engine_failures_total 2.0" in client.get("/metrics").body.decode()


@pytest.mark.parametrize("shaped", [{}, {"logprobs": 2}, {"echo": True, "logprobs": 1}, {"presence_penalty": 1.0}])
def test_nan_fails_the_request_and_not_the_server(
    open_server: Serve, load: Any, alone: LanguageModel, shaped: dict[str, Any]
) -> None:
    from dataclasses import replace

    model = load()
    client = open_server(model)
    faulty = Faulty.in_(model)
    faulty.after = lambda _, scored: replace(scored, logits=np.asarray(scored.logits) * float("nan"))
    for options in (shaped, {**shaped, "temperature": 0}):
        reply = client.complete(PROMPT, max_tokens=5, **options)
        assert reply.status == 500
        assert reply.error["code"] == "engine_fault"
    faulty.after = lambda _, scored: scored
    after = client.complete(PROMPT, temperature=0, max_tokens=20, **shaped)
    assert after.status == 200
    if not shaped:
        assert after.json["choices"][0]["text"] == alone.generate(PROMPT, raw=True, max_tokens=20).text
    assert all_free(client)


def test_a_fault_in_mid_stream_is_told_and_the_stream_closed(open_server: Serve, load: Any) -> None:
    model = load()
    client = open_server(model)
    faulty = Faulty.in_(model)

    def late(passes: int) -> None:
        if passes == 100:  # several tokens may share an event where the reader is slow
            raise RuntimeError("boom")

    faulty.before = late
    reply = client.complete(PROMPT, **LONG, stream=True, speculative=False, stream_options={"include_usage": True})
    assert reply.ended
    *chunks, last = reply.events
    assert len(chunks) >= 2
    assert last.startswith('{"error":{')
    assert "boom" not in last
    assert all_free(client)


def test_options_that_rule_everything_out_are_the_clients_fault(served: Client) -> None:
    """Found only once the text has got there, so it may come in mid-stream."""
    ruled = {"stop_token_ids": list(range(260)), "min_tokens": 2, "max_tokens": 4}
    reply = served.complete(PROMPT, **ruled)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert "min_tokens rules every one out" in reply.error["message"]
    assert '"invalid_request_error"' in served.complete(PROMPT, **ruled, stream=True).events[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_at_once(open_server: Serve, stream: bool) -> None:
    client = open_server()
    body = {"prompt": PROMPT, **LONG, "stream": stream, "n": 3}
    client.post("/v1/completions", body, lambda _: True)
    assert all_free(client)


def test_a_client_that_leaves_in_mid_round(open_server: Serve, load: Any) -> None:
    """Its slot is free before the pass after the one under way."""
    model = load()
    client = open_server(model)
    faulty = Faulty.in_(model)
    inside, left = threading.Event(), threading.Event()

    def wait(passes: int) -> None:
        if passes == 4:
            inside.set()
            assert left.wait(20)

    async def ask() -> Reply:
        loop = asyncio.get_running_loop()
        leaving = asyncio.Event()
        reply = Reply()

        async def receive() -> dict[str, Any]:
            if not reply.headers:
                reply.headers["asked"] = "yes"
                body = json.dumps({"prompt": PROMPT, **LONG, "speculative": False}).encode()
                return {"type": "http.request", "body": body, "more_body": False}
            await leaving.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            reply.status = message.get("status", reply.status)

        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "root_path": "",
            "http_version": "1.1", "scheme": "http", "client": None, "server": None, "state": {},
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }  # fmt: skip
        task = asyncio.create_task(client.app(scope, receive, send))
        await loop.run_in_executor(None, inside.wait, 20)
        leaving.set()
        await task
        left.set()
        return reply

    faulty.before = wait
    asyncio.run(ask())
    assert all_free(client)
    assert faulty.passes <= 5


def test_a_client_that_leaves_in_mid_stream(open_server: Serve, alone: LanguageModel) -> None:
    client = open_server()
    asked = {"prompt": PROMPT, **LONG, "stream": True}
    reply = client.post("/v1/completions", asked, lambda so_far: so_far.body.count(b"data: ") >= 3)
    assert not reply.ended
    assert all_free(client)
    after = client.complete(PROMPT, temperature=0, max_tokens=20)
    assert after.json["choices"][0]["text"] == alone.generate(PROMPT, raw=True, max_tokens=20).text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("options", [{"max_tokens": 2}, {"echo": True, "logprobs": 1, "max_tokens": 0}])
def test_a_client_that_leaves_in_prefill(open_server: Serve, load: Any, options: dict[str, Any], stream: bool) -> None:
    model = load()
    client = open_server(model)
    faulty = Faulty.in_(model)
    faulty.before = lambda _: time.sleep(0.02)
    client.post("/v1/completions", {"prompt": "z" * 400, **options, "stream": stream}, lambda _: True)
    assert all_free(client)


def test_a_full_queue_says_when_to_come_again(open_server: Serve, load: Any) -> None:
    model = load()
    client = open_server(model, engine={"slots": 1, "queue": 2})
    faulty = Faulty.in_(model)
    faulty.before = lambda _: time.sleep(0.02)
    asked = [("/v1/completions", {"prompt": f"a{i}", "max_tokens": 4, "stream": i % 2 == 0}) for i in range(40)]
    replies = client.together(*asked)
    statuses = [reply.status for reply in replies]
    assert set(statuses) == {200, 503}
    for reply in replies:
        if reply.status == 503:
            assert reply.error["code"] == "queue_full"
            assert int(reply.headers["retry-after"]) >= 1
    assert all_free(client)


def test_free_slots_are_no_queue(open_server: Serve, load: Any) -> None:
    model = load()
    client = open_server(model, engine={"slots": 6, "queue": 1})
    Faulty.in_(model).before = lambda _: time.sleep(0.02)
    asked = [("/v1/completions", {"prompt": f"a{i}", "max_tokens": 6, "ignore_eos": True}) for i in range(6)]
    assert {reply.status for reply in client.together(*asked)} == {200}
    assert all_free(client)


def test_an_end_cuts_off_what_takes_too_long(open_server: Serve, load: Any) -> None:
    model = load()
    client = open_server(model)
    faulty = Faulty.in_(model)
    faulty.before = lambda _: time.sleep(0.01)
    served = client.app.state.server.served

    async def both() -> tuple[Reply, Reply, bool]:
        loop = asyncio.get_running_loop()
        asked = {"prompt": PROMPT, **LONG, "speculative": False}
        whole = asyncio.create_task(call(client.app, "POST", "/v1/completions", asked))
        stream = asyncio.create_task(call(client.app, "POST", "/v1/completions", {**asked, "stream": True}))
        while served.service.snapshot().running < 2 and not whole.done():
            await asyncio.sleep(0.005)
        ended = await loop.run_in_executor(None, served.drain, 0.1)
        return await whole, await stream, ended

    whole, stream, ended = asyncio.run(both())
    assert not ended
    assert (whole.status, whole.error["code"]) == (503, "draining")
    assert '"code":"draining"' in stream.events[-1]
    assert all_free(client)


def test_an_end_waits_for_what_is_nearly_done(open_server: Serve, alone: LanguageModel) -> None:
    client = open_server()
    served = client.app.state.server.served

    async def both() -> tuple[Reply, bool]:
        loop = asyncio.get_running_loop()
        asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 100}
        whole = asyncio.create_task(call(client.app, "POST", "/v1/completions", asked))
        while served.service.idle and not whole.done():
            await asyncio.sleep(0.001)
        ended = await loop.run_in_executor(None, served.drain, 30.0)
        return await whole, ended

    reply, ended = asyncio.run(both())
    assert ended
    assert reply.json["choices"][0]["text"] == alone.generate(PROMPT, raw=True, max_tokens=100).text


def test_our_own_mistakes_are_a_500_and_the_next_request_works(
    open_server: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    client = open_server(report=said.append)
    served = client.app.state.server.served
    monkeypatch.setattr(type(served), "load", lambda _: 1 / 0)
    reply = client.get("/stats")
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert said == ["GET /stats failed: ZeroDivisionError: division by zero"]
    monkeypatch.undo()
    assert client.get("/stats").status == 200


@pytest.mark.slow
def test_random_disconnects_leave_nothing_behind(open_server: Serve) -> None:
    """A short soak; benchmarks/serving/run.py has the long one."""
    import random

    client = open_server(engine={"slots": 3, "queue": 64})
    rng = random.Random(1)

    async def every() -> list[Any]:
        async def one(i: int) -> Reply:
            body: dict[str, Any] = {"prompt": f"{i % 7} abc", "max_tokens": rng.randrange(1, 30), "seed": i}
            body |= rng.choice([{}, {"stream": True}, {"n": 2}, {"echo": True, "logprobs": 1}, {"cache_scope": "x"}])
            after = rng.choice([None, None, 0, 1, 3])
            leave = None if after is None else (lambda so_far: len(so_far.parts) >= after)
            return await call(client.app, "POST", "/v1/completions", body, None, leave)

        return await asyncio.gather(*(one(i) for i in range(60)))

    replies = asyncio.run(every())
    assert {reply.status for reply in replies} <= {0, 200, 499, 503}
    assert all_free(client)
    served = client.app.state.server.served
    assert served.recorder._kept == {}
    assert client.app.state.server.making == 0

"""Random requests, some of them left at a random moment, for ``run.py``: is anything lost?"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from typing import Any

from benchmarks.serving.client import CHAT, COMPLETE, Answer, BrokenError, Connection, Server, Written
from benchmarks.serving.texts import SPECULATION, Request, words

LEGS = 10
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}


def short(draws: random.Random) -> Request:
    """Return a short request of any kind."""
    body: dict[str, Any] = {
        "max_tokens": draws.randint(1, 24),
        "temperature": draws.choice((0, 0.7, 1)),
        "stream": False,
    }
    chat = draws.random() < 0.5
    if chat:
        body["messages"] = [{"role": "user", "content": words(draws, 40)} for _ in range(draws.choice((1, 1, 1, 3)))]
    else:
        body["prompt"] = words(draws, 40)
    extras: tuple[tuple[float, dict[str, Any]], ...] = (
        (0.6, {"stream": True}),
        (0.5, {"user": f"user-{draws.randrange(20)}"}),
        (0.5, {"speculative": draws.choice(SPECULATION[1:])}),
        (0.4, {"seed": draws.randrange(1 << 32)}),
        (0.1, {"stop": [draws.choice((".", "the", "\n"))]}),
        (0.05, {"n": 2}),
        (0.05, {"prediction": {"type": "content", "content": words(draws, 30)}}),
        (0.05, {"logprobs": True, "top_logprobs": 3} if chat else {"logprobs": 3, "echo": True}),
        (0.05, {"repetition_penalty": 1.2, "top_k": 40}),
        (0.03, {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}}),
    )
    for chance, extra in extras:
        if draws.random() < chance:
            body.update(extra)
    if body.get("speculative") == {"drafter": "lookup"}:
        body.pop("prediction", None)  # which it cannot use, and is refused
    return CHAT if chat else COMPLETE, body


class Soak:
    """Random requests over real sockets, some of which are left at a random moment. Counts, and what went wrong."""

    def __init__(self, port: int, count: int, leaving: float) -> None:
        self.port = port
        self.numbers = iter(range(count))
        self.done = 0
        self.kinds: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._leaving = leaving

    async def client(self, most: int) -> None:
        """Ask while there is something left of this leg."""
        connection = Connection(self.port)
        while self.done < most and (number := next(self.numbers, None)) is not None:
            self.done += 1
            draws = random.Random(number)
            path, body = short(draws)
            try:
                if draws.random() < self._leaving:
                    await self._leave(connection, path, body, draws)
                    connection = Connection(self.port)
                    continue
                answer = await connection.ask(path, body)
                self._judge(answer, body)
            except (BrokenError, OSError, TimeoutError) as error:
                self._wrong(f"{type(error).__name__}: {error}", body)
                connection = Connection(self.port)
            if draws.random() < 0.3:
                connection.leave()
        connection.leave()

    async def _leave(self, connection: Connection, path: str, body: Any, draws: random.Random) -> None:
        """Ask, and go."""
        moment = draws.choice(("in the request", "after it", "in the prompt", "at the first byte", "in the answer"))
        self.kinds[f"left {moment}"] += 1
        await connection.send(path, body, part=draws.random() if moment == "in the request" else 1.0)
        if moment == "in the prompt":
            await asyncio.sleep(0.02 * draws.random())
        elif moment == "at the first byte":
            await connection.start()
        elif moment == "in the answer":
            await asyncio.sleep(0.5 * draws.random())
        connection.leave(reset=draws.random() < 0.5)

    def _judge(self, answer: Answer, body: dict[str, Any]) -> None:
        self.kinds["stream" if body["stream"] else "whole"] += 1
        if answer.status != 200:
            self._wrong(f"{answer.status} {answer.body[:200]!r}", body)
        elif body["stream"]:
            if (fault := Written(answer).fault) is not None:
                self._wrong(fault, body)
        elif any(choice["finish_reason"] not in ("stop", "length") for choice in answer.document["choices"]):
            self._wrong("an answer without its end", body)

    def _wrong(self, what: str, body: Any) -> None:
        if self.faults.total() < 5:
            print(f"soak: {what}, for {body}", file=sys.stderr)
        self.faults[what[:80]] += 1


async def soak(server: Server, arguments: Any) -> dict[str, Any]:
    """Return what many random requests left behind: errors, slots, memory."""
    made = Soak(server.port, arguments.soak, arguments.leaving)
    memory, began = [], time.perf_counter()
    for leg in range(1, LEGS + 1):
        clients = [made.client(arguments.soak * leg // LEGS) for _ in range(arguments.soak_clients)]
        await asyncio.gather(*clients)
        load = await server.idle()
        memory.append(server.memory())
        print(
            f"soak: {made.done} asked, {made.faults.total()} errors, {load['free']}/{load['slots']} slots free, "
            f"{memory[-1]['resident'] / 1024:.0f} MiB",
            file=sys.stderr,
        )
    counts = {name: [each[name] for each in memory] for name in memory[0]}
    return {
        "requests": made.done,
        "kinds": dict(made.kinds),
        "errors": made.faults.total(),
        "faults": dict(made.faults.most_common(8)),
        "free_slots": load["free"],
        "slots": load["slots"],
        "running": load["running"],
        "memory": memory[-1]["resident"] / memory[0]["resident"],
        "memory_kib": counts,
        "seconds": time.perf_counter() - began,
    }

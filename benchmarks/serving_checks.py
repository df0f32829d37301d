"""What ``serving.py`` checks: that company changes no text, and that nothing is lost when clients leave."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sample_prompts import LETTER, PASSAGE, SAMPLE
from serving_client import CHAT, COMPLETE, Answer, BrokenError, Connection, Server, Written
from serving_load import drafts_a_pass

SPECULATION: tuple[Any, ...] = (
    None, False, {"draft_tokens": 4}, {"draft_tokens": 8}, {"drafter": "lookup"}, {"drafter": "suffix"},
)  # fmt: skip
NUMBERS = (0, 1, 3, 6, 14)  # of strangers, under load
LEGS = 10
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
Request = tuple[str, dict[str, Any]]  # address, body


def words(draws: random.Random, most: int) -> str:
    """Return a few words of a text, from some place on."""
    text = draws.choice((PASSAGE, LETTER, *(row["prompt"] for row in SAMPLE))).split()
    start = draws.randrange(len(text))
    return " ".join(text[start : start + draws.randint(1, most)])


def seeded(count: int, longest: int) -> list[Request]:
    """Return requests whose text is known beforehand: greedy and drawn in turn, chats and texts."""
    draws, made = random.Random(11), []
    for number in range(count):
        body: dict[str, Any] = {
            "temperature": number % 2, "seed": 1000 + number, "max_tokens": draws.randint(longest // 3, longest),
            "stream": True, "return_token_ids": True,
        }  # fmt: skip
        if draws.random() < 0.5:
            made.append((CHAT, {**body, "messages": [{"role": "user", "content": words(draws, 60)}]}))
        else:
            made.append((COMPLETE, {**body, "prompt": words(draws, 60)}))
        if draws.random() < 0.2:
            made[-1][1].update(top_p=0.9, presence_penalty=0.5)
    return made


def stranger(draws: random.Random, longest: int) -> Request:
    """Return a request of somebody else."""
    body = {"messages": [{"role": "user", "content": words(draws, 80)}], "stream": True, "temperature": 1.0}
    asked = draws.choice(SPECULATION)
    more = {} if asked is None else {"speculative": asked}
    return CHAT, {**body, **more, "max_tokens": draws.randint(4, longest), "user": f"stranger-{draws.randrange(50)}"}


class Crowd:
    """Strangers who ask all the time, ``count`` of them at present. They stay, or leave when it suits them."""

    def __init__(self, port: int, longest: int, leaving: bool = False) -> None:
        self.count = 0
        self.asked = 0
        self.left = 0
        self._port, self._longest, self._leaving = port, longest, leaving

    async def one(self, place: int) -> None:
        """Ask one question after the other while there is room for this one in the crowd."""
        draws = random.Random(place)
        while True:
            if place >= self.count:
                await asyncio.sleep(0.02)
                continue
            connection = Connection(self._port)
            self.asked += 1
            answer = await connection.send(*stranger(draws, self._longest))
            if self._leaving:
                await asyncio.sleep(draws.choice((0.005, 0.02, 0.1, 0.3, 0.6)) * draws.random())
                self.left += not answer.whole
            else:
                await connection.end()
                Written(answer).must()
            connection.leave(reset=draws.random() < 0.5)

    async def vary(self) -> None:
        """Be many, and few."""
        draws = random.Random(3)
        while True:
            self.count = draws.choice(NUMBERS)
            await asyncio.sleep(0.2 + draws.random())


@asynccontextmanager
async def company(crowd: Crowd, count: int | None) -> AsyncGenerator[None, None]:
    """Have so many strangers around, or now more and now less of them."""
    crowd.count = count or 0
    tasks = [asyncio.create_task(crowd.one(place)) for place in range(max(NUMBERS) if count is None else count)]
    if count is None:
        tasks.append(asyncio.create_task(crowd.vary()))
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()  # raises what befell a stranger
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def answers(port: int, requests: Sequence[Request], clients: int) -> list[Written]:
    """Return the answers to all requests, asked by so many clients."""
    numbers, found = iter(range(len(requests))), [Answer()] * len(requests)

    async def client() -> None:
        connection = await Connection(port).open()
        for number in numbers:
            found[number] = await connection.ask(*requests[number])
        connection.leave()

    await asyncio.gather(*(client() for _ in range(clients)))
    return [Written(answer).must() for answer in found]


async def seeded_identical(server: Server, arguments: Any) -> dict[str, Any]:
    """Return the share of seeded answers that are, in every company, what plain decoding alone gives."""
    requests, half = seeded(arguments.seeded, arguments.seeded_tokens), max(1, arguments.slots // 2)
    plain = [(path, {**body, "speculative": False}) for path, body in requests]
    want = await answers(server.port, plain, 1)
    conditions: dict[str, tuple[int, int | None, bool]] = {  # clients of ours, strangers, whether those leave
        "alone": (1, 0, False),
        "batch": (half, arguments.slots - half, False),
        "load": (3, None, False),
        "cancelled": (half, arguments.slots, True),
    }
    shares: dict[str, Any] = {}
    divergences = []
    for name, (clients, strangers, leaving) in conditions.items():
        before = await server.decisions()
        crowd = Crowd(server.port, 3 * arguments.seeded_tokens, leaving)
        async with company(crowd, strangers):
            got = await answers(server.port, requests, clients)
        wrong = [i for i, (a, b) in enumerate(zip(want, got, strict=True)) if a.tokens != b.tokens or a.text != b.text]
        divergences += [
            {"condition": name, "request": i, "position": parted(want[i].tokens, got[i].tokens)} for i in wrong
        ]
        now = await server.decisions()
        shares[name] = {
            "identical": f"{len(got) - len(wrong)}/{len(got)}",
            "rounds": {kind: count - before.get(kind, 0) for kind, count in now.items()},
            "drafts_a_pass": drafts_a_pass(got),
            "strangers": crowd.asked,
            "left": crowd.left,
            "cached_tokens": sum(answer.last["timings"]["cache_n"] for answer in got),
        }
        print(f"seeded, {name}: {shares[name]['identical']} identical", file=sys.stderr)
    compared = len(requests) * len(conditions)
    return {
        "share": 1 - len(divergences) / compared,
        "compared": compared,
        "tokens": sum(len(answer.tokens) for answer in want),
        "conditions": shares,
        "divergences": divergences[:8],
    }


def parted(want: Sequence[int], got: Sequence[int]) -> int:
    """Return where two answers part."""
    shorter = min(len(want), len(got))
    return next((i for i in range(shorter) if want[i] != got[i]), shorter)


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
            except (BrokenError, OSError, TimeoutError) as fault:
                self._wrong(f"{type(fault).__name__}: {fault}", body)
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

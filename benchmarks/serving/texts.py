"""Seeded texts in company, for ``run.py``: strangers, a load that comes and goes, neighbours that leave."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.serving.client import CHAT, COMPLETE, Answer, Connection, Server, Written
from benchmarks.serving.load import drafts_a_pass
from benchmarks.shared.sample_prompts import LETTER, PASSAGE, SAMPLE

SPECULATION: tuple[Any, ...] = (
    None, False, {"draft_tokens": 4}, {"draft_tokens": 8}, {"drafter": "lookup"}, {"drafter": "suffix"},
)  # fmt: skip
NUMBERS = (0, 1, 3, 6, 14)  # of strangers, under load
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
                await self._stay(answer, draws.choice((0, 1, 2, 4, 8, 16)), 4 * draws.random())
                self.left += not answer.whole
            else:
                await connection.end()
                Written(answer).must()
            connection.leave(reset=draws.random() < 0.5)

    async def _stay(self, answer: Answer, parts: int, seconds: float) -> None:
        """Wait until so much has come, or for so long."""
        end = time.perf_counter() + seconds
        while len(answer.parts) < parts and not answer.whole and time.perf_counter() < end:
            await asyncio.sleep(0.005)

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
        "cancelled": (half, arguments.slots - half + 1, True),
    }
    wanted = arguments.conditions.split(",")
    shares: dict[str, Any] = {}
    divergences = []
    for name in wanted:
        clients, strangers, leaving = conditions[name]
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
    compared = len(requests) * len(wanted)
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

"""Throughput by load, for ``run.py``: three arms take turns with the same requests."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.serving.client import CHAT, Answer, Connection, Server, Written

ARMS: dict[str, dict[str, Any]] = {
    "auto": {},
    "off": {"speculative": False},
    "fixed4": {"speculative": {"draft_tokens": 4}},
}


@dataclass(frozen=True)
class Block:
    """What one arm did in one turn."""

    answers: list[Written]
    seconds: float
    client: float  # seconds of a processor that asking took

    @property
    def tokens(self) -> int:
        return sum(answer.count for answer in self.answers)

    @property
    def texts(self) -> list[str]:
        return [answer.text for answer in self.answers]


def request(prompt: str, arm: str, user: str, arguments: Any, number: int) -> dict[str, Any]:
    """Return one request; its text is the same in every arm."""
    drawn = {"temperature": arguments.temperature, "seed": number}
    turns = [{"role": "user", "content": prompt}]
    return {"messages": turns, "max_tokens": arguments.max_tokens, "stream": True, "user": user, **drawn, **ARMS[arm]}


def block(answers: Sequence[Answer], began: float) -> Block:
    """Return what came of a turn, from the first request to the last byte; ``began`` is the process's time before."""
    client = time.process_time() - began
    seconds = max(answer.parts[-1][0] for answer in answers) - min(answer.began for answer in answers)
    return Block([Written(answer).must() for answer in answers], seconds, client)


async def closed(port: int, prompts: Sequence[str], clients: int, arm: str, name: str, arguments: Any) -> Block:
    """Let so many clients ask, each the next question when it has its answer."""
    numbers, answers = iter(range(len(prompts))), [Answer()] * len(prompts)

    async def client(user: str) -> None:
        connection = await Connection(port).open()
        for number in numbers:
            body = request(prompts[number], arm, user, arguments, number)
            answers[number] = await connection.ask(CHAT, body)
        connection.leave()

    began = time.process_time()
    await asyncio.gather(*(client(f"{name}-{i}") for i in range(clients)))
    return block(answers, began)


async def arriving(port: int, prompts: Sequence[str], rate: float, arm: str, name: str, arguments: Any) -> Block:
    """Ask at the times of a Poisson process, the same in every arm, however long answers take."""
    draws = random.Random(1)
    gaps = [draws.expovariate(rate) for _ in prompts]

    async def one(number: int) -> Answer:
        await asyncio.sleep(sum(gaps[1 : number + 1]))
        connection = await Connection(port).open()
        answer = await connection.ask(CHAT, request(prompts[number], arm, f"{name}-{number}", arguments, number))
        connection.leave()
        return answer

    began = time.process_time()
    return block(await asyncio.gather(*(one(number) for number in range(len(prompts)))), began)


async def by_clients(server: Server, prompts: Sequence[str], arguments: Any) -> dict[str, Any]:
    """Return tokens a second of every arm by number of clients, and by rate of arrival."""
    found: dict[str, Any] = {}
    warm = [prompts[i % len(prompts)] for i in range(4)]
    for arm in ARMS:
        await closed(server.port, warm, 2, arm, f"warm-{arm}", arguments)
    print(
        f"\n{'clients':>10}" + "".join(f"{arm:>10}" for arm in ARMS) + "   ratio  processor   (tokens/s)",
        file=sys.stderr,
    )
    for clients in map(int, filter(None, arguments.clients.split(","))):
        asked = [prompts[i % len(prompts)] for i in range(max(clients * arguments.per_client, arguments.least))]

        async def run(arm: str, name: str, clients: int = clients, asked: list[str] = asked) -> Block:
            return await closed(server.port, asked, clients, arm, name, arguments)

        found[str(clients)] = await in_turns(server, run, str(clients), arguments.pairs)
    for rate in map(float, filter(None, arguments.open_loop.split(","))):
        asked = [prompts[i % len(prompts)] for i in range(arguments.arrivals)]

        async def run_open(arm: str, name: str, rate: float = rate, asked: list[str] = asked) -> Block:
            return await arriving(server.port, asked, rate, arm, name, arguments)

        found[f"{rate:g}/s"] = await in_turns(server, run_open, f"{rate:g}/s", arguments.pairs)
    return found


async def in_turns(
    server: Server, run: Callable[[str, str], Awaitable[Block]], what: str, pairs: int
) -> dict[str, Any]:
    """Let the arms take turns, there and back again; return what each did, and auto against the better other one."""
    blocks: dict[str, list[Block]] = {arm: [] for arm in ARMS}
    processor = dict.fromkeys(ARMS, 0.0)
    for pair in range(pairs):
        there = [list(ARMS)[(i + pair) % len(ARMS)] for i in range(len(ARMS))]
        for turn, arm in enumerate((*there, *reversed(there))):
            before = server.processor()
            blocks[arm].append(await run(arm, f"{what}-{pair}-{turn}"))
            processor[arm] += server.processor() - before
    speeds = {arm: sum(b.tokens for b in own) / sum(b.seconds for b in own) for arm, own in blocks.items()}
    better = max(("off", "fixed4"), key=lambda arm: speeds[arm])
    seconds = {
        arm: [sum(b.seconds for b in own[i : i + 2]) for i in range(0, 2 * pairs, 2)] for arm, own in blocks.items()
    }
    ratios = [theirs / ours for ours, theirs in zip(seconds["auto"], seconds[better], strict=True)]
    ratio = statistics.median(ratios)
    spent = {arm: 1000 * processor[arm] / sum(b.tokens for b in blocks[arm]) for arm in ARMS}
    least = min(spent["off"], spent["fixed4"]) / spent["auto"]
    shown = "".join(f"{speeds[arm]:>10.1f}" for arm in ARMS)
    print(f"{what:>10}{shown}{ratio:>8.3f}{least:>11.3f}", file=sys.stderr)
    texts = blocks["off"][0].texts
    return {
        **speeds,
        "ratio": ratio,
        "better": better,
        "ratios": ratios,
        "processor_ms_a_token": spent,
        "processor_ratio": least,
        "identical": all(b.texts == texts for own in blocks.values() for b in own),
        "client_share": sum(b.client for own in blocks.values() for b in own) / sum(map(sum, seconds.values())),
        "latency": {arm: latency([a for b in own for a in b.answers]) for arm, own in blocks.items()},
        "drafts_a_pass": {arm: drafts_a_pass([a for b in own for a in b.answers]) for arm, own in blocks.items()},
    }


def latency(answers: Sequence[Written]) -> dict[str, float]:
    """Return medians of the time to the first token, between tokens and to the end, in milliseconds."""
    several = [answer for answer in answers if answer.count > 1]
    return {
        "first_ms": 1000 * statistics.median(answer.first_s for answer in answers),
        "between_ms": 1000 * statistics.median(map(between, several)) if several else 0.0,
        "whole_ms": 1000 * statistics.median(answer.times[-1] - answer.began for answer in answers),
    }


def between(answer: Written) -> float:
    """Return the seconds between two tokens of an answer, on average."""
    return (answer.times[-1] - answer.times[0]) / (answer.count - 1)


def drafts_a_pass(answers: Sequence[Written]) -> float:
    """Return how many guesses a sequence had in a pass, on average."""
    told = [answer.last["speculative"] for answer in answers]
    return float(sum(t["drafted"] for t in told) / max(1, sum(t["rounds"] for t in told)))

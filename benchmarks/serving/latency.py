"""Latencies, for ``run.py``: against the library, under a long prompt, at the second turn of a chat."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import foredraft
from benchmarks.serving.client import CHAT, COMPLETE, Connection, Server, Written
from benchmarks.serving.load import between, request
from benchmarks.shared.sample_prompts import PASSAGE

RUNNING = 4  # answers that a long prompt meets
ANSWER = 48  # tokens of a first turn


async def itl_overhead(
    server: Server, lm: foredraft.LanguageModel, prompts: Sequence[str], arguments: Any
) -> dict[str, Any]:
    """Return the time between tokens over HTTP against that in this process, prompt by prompt, taking turns."""
    found: dict[str, Any] = {}
    for arm in ("auto", "off"):
        ratios, same = [], []
        passes = {"http": 0, "library": 0}
        both: dict[str, list[float]] = {"http": [], "library": []}
        for number, prompt in enumerate(prompts):
            seconds = {"http": 0.0, "library": 0.0}
            texts = set()
            for turn, way in enumerate(("http", "library", "library", "http")):
                body = request(prompt, arm, f"itl-{arm}-{number}-{turn}", arguments, number)
                pace, text, rounds = await over_http(server, body) if way == "http" else in_process(lm, prompt, body)
                seconds[way] += pace / 2
                passes[way] += rounds
                texts.add(text)
            for way, each in seconds.items():
                both[way].append(1000 * each)
            ratios.append(seconds["http"] / seconds["library"])
            same.append(len(texts) == 1)
        medians = {way: statistics.median(each) for way, each in both.items()}
        found[arm] = {
            "ratio": statistics.median(ratios), **medians, "passes": passes, "identical": f"{sum(same)}/{len(same)}"
        }  # fmt: skip
        print(
            f"between tokens, {arm}: {medians['http']:.2f} ms over HTTP, {medians['library']:.2f} in process, "
            f"ratio {found[arm]['ratio']:.3f}",
            file=sys.stderr,
        )
    return found


async def over_http(server: Server, body: dict[str, Any]) -> tuple[float, str, int]:
    """Return the seconds between tokens, the text and the passes of one answer."""
    connection = await Connection(server.port).open()
    written = Written(await connection.ask(CHAT, body)).must()
    connection.leave()
    return between(written), written.text, written.last["speculative"]["rounds"]


def in_process(lm: foredraft.LanguageModel, prompt: str, body: dict[str, Any]) -> tuple[float, str, int]:
    """Return the same of the library's stream."""
    options = {name: body[name] for name in ("max_tokens", "temperature", "seed")}
    if body.get("speculative") is False:
        options["drafter"] = "none"
    times, parts = [], []
    with lm.stream(prompt, **options) as stream:
        for piece in stream:
            times.append(time.perf_counter())
            parts.append(piece.text)
    assert stream.result is not None
    made = stream.result
    return (times[-1] - times[0]) / (made.completion_tokens - 1), "".join(parts), made.speculative.rounds


def long_text(number: int) -> str:
    """Return a long text that no other number gives."""
    draws = random.Random(number)
    sentences = [sentence.strip() for sentence in PASSAGE.split(".") if sentence.strip()]
    return " ".join(f"{draws.choice(sentences)} ({draws.randrange(10_000)})." for _ in range(100))


async def p99_prefill(server: Server, prompts: Sequence[str], arguments: Any) -> dict[str, Any]:
    """Return the p99 of the time between chunks of running answers while a long prompt is read, against without."""
    gaps: dict[bool, list[float]] = {True: [], False: []}
    ratios, lengths = [], []
    for repeat in range(arguments.repeats):
        own: dict[bool, list[float]] = {True: [], False: []}
        for turn, disturbed in enumerate((True, False, False, True)):
            long = (await server.tokens(long_text(10 * repeat + turn)))[: arguments.prompt_tokens]
            assert len(long) == arguments.prompt_tokens, "the text is too short"
            name = f"prefill-{repeat}-{turn}"
            seconds = None if disturbed else lengths[-1]
            found, length = await running(server, prompts, long, name, seconds, arguments)
            own[disturbed] += found
            if disturbed:
                lengths.append(length)
        ratios.append(p99(own[True]) / p99(own[False]))
        for disturbed, each in own.items():
            gaps[disturbed] += each
    told = {
        "ratio": p99(gaps[True]) / p99(gaps[False]),
        "ratios": ratios,
        "p99_ms": {"with": 1000 * p99(gaps[True]), "without": 1000 * p99(gaps[False])},
        "median_ms": {"with": 1000 * statistics.median(gaps[True]), "without": 1000 * statistics.median(gaps[False])},
        "largest_ms": {"with": 1000 * max(gaps[True]), "without": 1000 * max(gaps[False])},
        "gaps": {"with": len(gaps[True]), "without": len(gaps[False])},
        "read_s": statistics.median(lengths),
    }
    print(
        f"p99 between chunks: {told['p99_ms']['with']:.1f} ms while a prompt is read ({told['read_s']:.2f} s), "
        f"{told['p99_ms']['without']:.1f} without, ratio {told['ratio']:.2f}",
        file=sys.stderr,
    )
    return told


async def running(
    server: Server, prompts: Sequence[str], long: list[int], name: str, seconds: float | None, arguments: Any
) -> tuple[list[float], float]:
    """Return the gaps of running answers while a long prompt is read, or for so many seconds, and how long that was."""
    connections = [Connection(server.port) for _ in range(RUNNING)]
    answers = []
    for i, connection in enumerate(connections):
        body = request(prompts[i % len(prompts)], "auto", f"{name}-{i}", arguments, i)
        more = {"max_tokens": 4000, "temperature": 1.0, "ignore_eos": True}
        answers.append(await connection.send(CHAT, {**body, **more}))
    while any(len(answer.parts) < 12 for answer in answers):
        await asyncio.sleep(0.005)
    began = time.perf_counter()
    if seconds is None:
        body = {"prompt": long, "max_tokens": 1, "temperature": 0, "stream": True, "user": name}
        newcomer = Connection(server.port)
        read = Written(await newcomer.ask(COMPLETE, body)).must()
        newcomer.leave()
        ended = read.times[0]
    else:
        await asyncio.sleep(seconds)
        ended = time.perf_counter()
    await asyncio.sleep(0.1)  # what was under way at the end
    for connection in connections:
        connection.leave()
    await server.idle()
    gaps = []
    for answer in answers:
        times = Written(answer).times
        gaps += [b - a for a, b in pairwise(times) if b >= began and a <= ended]
    return gaps, ended - began


def p99(values: Sequence[float]) -> float:
    """Return the value that one in a hundred exceeds."""
    return sorted(values)[int(0.99 * (len(values) - 1))]


async def second_turn(server: Server, arguments: Any) -> dict[str, Any]:
    """Return the time to the first token of a second turn against that of the first."""
    firsts, seconds, ratios, cached = [], [], [], []
    for repeat in range(arguments.repeats):
        connection = await Connection(server.port).open()
        sentences = long_text(1000 + repeat).split(". ")
        while len(await server.tokens(". ".join(sentences))) > arguments.history_tokens:
            sentences.pop()
        turns = [{"role": "user", "content": f"{'. '.join(sentences)}. What is this about?"}]
        body = {"temperature": 0, "max_tokens": ANSWER, "stream": True, "user": f"turns-{repeat}"}
        first = Written(await connection.ask(CHAT, {**body, "messages": turns})).must()
        turns += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Say it in six words."}]
        second = Written(await connection.ask(CHAT, {**body, "messages": turns})).must()
        connection.leave()
        firsts.append(first.first_s)
        seconds.append(second.first_s)
        ratios.append(second.first_s / first.first_s)
        cached.append([first.last["timings"]["cache_n"], second.last["timings"]["cache_n"]])
    told = {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "first_ms": 1000 * statistics.median(firsts),
        "second_ms": 1000 * statistics.median(seconds),
        "cached_tokens": cached,
    }
    print(
        f"first token: {told['first_ms']:.0f} ms in the first turn, {told['second_ms']:.0f} in the second, "
        f"ratio {told['ratio']:.3f}",
        file=sys.stderr,
    )
    return told

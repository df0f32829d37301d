"""Does serving keep what speculation promises: fast when idle, no slower under load, the same texts, nothing lost.

    by_clients         tokens a second of auto, off and fixed4 by the number of clients that ask in a closed loop, and
                       by the rate of arrivals of an open one (``--open-loop``, "2/s"); ratio is that of auto to the
                       better of the other two; processor_ratio the same in the server's processor time a token,
                       which other work on the machine moves less
    itl_overhead       time between tokens over HTTP against the library in this process, one client; itl has both, and
                       the same with speculation off
    p99_prefill_ratio  p99 of the time between chunks of 4 running answers while a prompt of 2,000 tokens is read,
                       against a stretch without one; prefill has the times
    second_turn_ttft   time to the first token of the second turn of a chat against the first, of 1,000 tokens; turns
                       has the times
    seeded_identical   share of seeded and greedy answers that are, token for token, plain decoding's alone: alone, in a
                       batch with strangers, under a load that comes and goes, beside neighbours that leave; seeded has
                       each
    soak               random short requests, 30 % of them left at a random moment: errors that are not the client's,
                       slots free in the end, resident memory in the end against after the first tenth

Against a ``foredraft serve`` process over loopback. Arms take turns, there and back (ABBA): ``--pairs`` rounds of that,
medians of the rounds. All arms write the same texts, which is checked. A part that was left out is null; ``--parts``
and ``--clients`` cut a run into pieces. The time between tokens of an answer is that from its first to its last, over
its tokens less one. Processor time and memory are read from /proc, so it runs on Linux.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.serving.client import Server
from benchmarks.serving.latency import itl_overhead, p99_prefill, second_turn
from benchmarks.serving.load import by_clients
from benchmarks.serving.soak import soak
from benchmarks.serving.texts import seeded_identical
from benchmarks.shared.script import finish, load, parser, read_prompts, spread

PARTS = ("by_clients", "itl_overhead", "p99_prefill_ratio", "second_turn_ttft", "seeded_identical", "soak")
CONDITIONS = ("alone", "batch", "load", "cancelled")
QUICK = {
    "max_tokens": 12, "per_task": 1, "per_client": 1, "least": 2, "pairs": 1, "arrivals": 6, "itl_prompts": 2,
    "repeats": 1, "prompt_tokens": 800, "seeded": 10, "seeded_tokens": 18, "soak": 80,
}  # fmt: skip


def options() -> Any:
    """Return the options of a run."""
    made = parser("serving: throughput by load, latencies, the same texts in any company, nothing lost")
    made.add_argument("--parts", default=",".join(PARTS), help="which, with commas between")
    made.add_argument("--slots", type=int, default=8, help="answers that the server writes at a time")
    made.add_argument("--max-tokens", type=int, default=96)
    made.add_argument("--temperature", type=float, default=0.0)
    made.add_argument("--per-task", type=int, default=2, help="prompts of each task")
    made.add_argument("--clients", default="1,2,4,8,16", help="numbers of closed-loop clients; may be empty")
    made.add_argument("--per-client", type=int, default=2, help="requests of each in a turn")
    made.add_argument("--least", type=int, default=6, help="requests in a turn at least")
    made.add_argument("--pairs", type=int, default=3, help="rounds of all arms, there and back")
    made.add_argument(
        "--open-loop", default="", metavar="RATE", help="also arrivals a second (Poisson); several by commas"
    )
    made.add_argument("--arrivals", type=int, default=24, help="requests of an open-loop turn")
    made.add_argument("--itl-prompts", type=int, default=12)
    made.add_argument("--repeats", type=int, default=6, help="of the long prompt, and of the two turns")
    made.add_argument("--prompt-tokens", type=int, default=2000, help="of the long prompt")
    made.add_argument("--history-tokens", type=int, default=1000, help="of the first turn")
    made.add_argument("--seeded", type=int, default=200, help="requests whose text must stay")
    made.add_argument("--seeded-tokens", type=int, default=48, help="of the longest of them")
    made.add_argument("--conditions", default=",".join(CONDITIONS), help="in which")
    made.add_argument("--soak", type=int, default=5000, help="random requests")
    made.add_argument("--soak-clients", type=int, default=12)
    made.add_argument("--leaving", type=float, default=0.3, help="share of them that are left")
    arguments = made.parse_args()
    for given, known in ((arguments.parts, PARTS), (arguments.conditions, CONDITIONS)):
        if unknown := set(given.split(",")) - set(known):
            made.error(f"there are {', '.join(known)}, and no {', '.join(sorted(unknown))}")
    if arguments.quick:
        vars(arguments).update(QUICK)
    return arguments


def main() -> None:
    arguments = options()
    prompts, digest = read_prompts(arguments.prompts)
    texts = [row["prompt"] for row in spread(prompts, arguments.per_task)]
    wanted = arguments.parts.split(",")
    found: dict[str, Any] = {}
    if timed := [part for part in wanted if part != "soak"]:
        with Server(arguments) as server:
            for part in timed:
                found[part] = measure(part, server, texts, arguments)
        found["exit"] = server.status
    if "soak" in wanted:  # memory is that of a process which has done nothing else
        with Server(arguments) as server:
            found["soak"] = asyncio.run(soak(server, arguments))
        found["soak"]["exit"] = server.status
    finish(
        {
            "by_clients": found.get("by_clients"),
            **headline(found, "itl_overhead", "itl", ("auto", "ratio")),
            **headline(found, "p99_prefill_ratio", "prefill", ("ratio",)),
            **headline(found, "second_turn_ttft", "turns", ("ratio",)),
            **headline(found, "seeded_identical", "seeded", ("share",)),
            "soak": found.get("soak"),
            "exit": found.get("exit"),
            "server": server.facts,
        },
        digest,
    )


def measure(part: str, server: Server, texts: list[str], arguments: Any) -> dict[str, Any]:
    """Return what one part found."""
    if part == "itl_overhead":
        lm = load(arguments, drafter="auto")
        lm.generate("Hello", max_tokens=16)
        return asyncio.run(itl_overhead(server, lm, texts[: arguments.itl_prompts], arguments))
    runs = {
        "by_clients": lambda: by_clients(server, texts, arguments),
        "p99_prefill_ratio": lambda: p99_prefill(server, texts, arguments),
        "second_turn_ttft": lambda: second_turn(server, arguments),
        "seeded_identical": lambda: seeded_identical(server, arguments),
    }
    return asyncio.run(runs[part]())


def headline(found: dict[str, Any], part: str, name: str, path: tuple[str, ...]) -> dict[str, Any]:
    """Return a part's one figure under its own key, and all of it under another."""
    figure: Any = found.get(part)
    for key in path:
        figure = None if figure is None else figure[key]
    return {part: figure, name: found.get(part)}


if __name__ == "__main__":
    main()

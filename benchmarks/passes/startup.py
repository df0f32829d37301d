"""What starting costs, and what an install weighs.

    help_s          foredraft --help, whole process
    first_token_s   foredraft generate with a short prompt, from its start to the first byte of the answer
    generate_s      the same process, one token, to its end
    installed_mb    files of foredraft and of everything it requires (no extras), by their packages' own lists
    largest_mb      the five largest of them

Processes run one after another from a warm disk; the least of them counts, the medians are in the table.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.shared.script import finish, parser

COMMAND = [sys.executable, "-m", "foredraft"]


def main() -> None:
    arguments = parser("start-up times and the size of the install").parse_args()
    runs = 3 if arguments.quick else 9
    generate = ["generate", "Say hello.", "--model", arguments.model, "--max-tokens", "1", "--dtype", arguments.dtype]
    for name in ("device", "threads"):
        if getattr(arguments, name) is not None:
            generate += [f"--{name}", str(getattr(arguments, name))]
    whole(generate)  # fetches the model and packs it, if nobody has
    ends = [timed(runs, lambda: whole(["--help"])), timed(runs, lambda: first_byte(generate))]
    ends.append(timed(runs, lambda: whole(generate)))
    sizes = installed()
    print(f"\n{'':32}{'least':>10}{'median':>10}")
    for name, times in zip(("--help", "generate to its first token", "generate to its end"), ends, strict=True):
        print(f"{name:32}{min(times):>9.3f}s{statistics.median(times):>9.3f}s")
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
    named = ", ".join(f"{name} {size:.0f}" for name, size in largest)
    print(f"\ninstalled: {sum(sizes.values()):.0f} MB in {len(sizes)} packages ({named})\n")
    least = [round(min(times), 4) for times in ends]
    figures = dict(zip(("help_s", "first_token_s", "generate_s"), least, strict=True))
    finish({**figures, "installed_mb": round(sum(sizes.values()), 1), "largest_mb": dict(largest)}, "none")


def timed(runs: int, once: Callable[[], float]) -> list[float]:
    """Return the seconds of each of several runs."""
    return [once() for _ in range(runs)]


def whole(words: list[str]) -> float:
    """Run the command to its end; return its seconds."""
    began = time.perf_counter()
    subprocess.run([*COMMAND, *words], check=True, capture_output=True)
    return time.perf_counter() - began


def first_byte(words: list[str]) -> float:
    """Run the command; return the seconds to the first byte of its answer."""
    began = time.perf_counter()
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - began
        process.stdout.read()
    return seconds


def installed() -> dict[str, float]:
    """Return the megabytes of foredraft and of what it requires, by package."""
    sizes: dict[str, float] = {}
    waiting = ["foredraft"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in sizes:
            continue
        found: Any = metadata.distribution(name)
        files = {Path(str(path.locate())) for path in found.files or ()}
        sizes[name] = sum(path.stat().st_size for path in files if path.is_file()) / 1e6
        for line in found.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed.name)
    return sizes


if __name__ == "__main__":
    main()

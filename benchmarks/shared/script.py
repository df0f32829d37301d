"""What every benchmark shares: prompts, a table for people, and one JSON line, last."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import foredraft
from benchmarks.shared.sample_prompts import SAMPLE

OTHER_TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")


def parser(description: str) -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--model", default="smollm2-135m")
    made.add_argument("--device", choices=("cpu", "cuda", "mps"))
    made.add_argument("--dtype", default="auto")
    made.add_argument("--threads", type=int)
    made.add_argument("--native-tier", help="force a tier of the native pass, or off for torch")
    made.add_argument("--cache", type=Path, help="folder where models are kept")
    made.add_argument("--prompts", type=Path, help="JSON lines with prompt or turns (default: a small bundled sample)")
    made.add_argument("--quick", action="store_true", help="the same keys from a sample, in under a minute")
    return made


def load(arguments: argparse.Namespace, *, drafter: str, draft_tokens: int | str = "auto") -> foredraft.LanguageModel:
    """Return the model that the options name."""
    return foredraft.load(
        arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        threads=arguments.threads,
        cache=arguments.cache,
        native_tier=arguments.native_tier,
        drafter=drafter,
        draft_tokens=draft_tokens,
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines."""
    # only a line feed ends one: splitlines would cut at U+2028 too, which JSON leaves as it is
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def read_prompts(path: Path | None) -> tuple[list[dict[str, Any]], str]:
    """Return prompts as {"task", "prompt"} and a hash of them."""
    rows: Sequence[dict[str, Any]] = SAMPLE
    if path is not None:
        rows = read_rows(path)
    prompts = []
    for row in rows:
        category = str(row.get("category", "all"))
        task = category if category in OTHER_TASKS or category == "all" else "mt_bench"
        prompts.append({"task": task, "prompt": row["prompt"] if "prompt" in row else row["turns"][0]})
    return prompts, hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:12]


def spread(prompts: list[dict[str, Any]], per_task: int) -> list[dict[str, Any]]:
    """Return so many prompts of each task, evenly over what the file has of it: a file is seldom in random order."""
    tasks: dict[str, list[dict[str, Any]]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt["task"], []).append(prompt)
    some = []
    for rows in tasks.values():
        count = min(per_task, len(rows))
        some += [rows[(2 * i + 1) * len(rows) // (2 * count)] for i in range(count)]
    return some


def finish(figures: dict[str, Any], prompts_hash: str) -> None:
    """Print the last line: the figures, and what they were measured on and with."""
    print(json.dumps({**figures, **surroundings(), "prompts": prompts_hash}))


def surroundings() -> dict[str, Any]:
    """Return machine, versions and revision."""
    versions = {"python": platform.python_version()}
    for name in ("foredraft", "torch", "transformers", "numpy", "tokenizers"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "none"
    return {"machine": _machine(), "versions": versions, "revision": _revision()}


def _machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {len(names) or '?'} cores, {platform.system()}"


def _revision() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"

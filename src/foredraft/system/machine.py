"""Facts about this machine, read from the system without loading anything large."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

FLAGS: Final = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "neon",
    "sve",
    "bf16",
)
_PACKAGES: Final = (
    "torch",
    "transformers",
    "numpy",
    "tokenizers",
    "safetensors",
    "gguf",
    "huggingface_hub",
    "array-api-compat",
)
_SAME: Final[Mapping[str, str]] = {"asimd": "neon"}  # arm64's name for it


@dataclass(frozen=True, slots=True)
class Processor:
    """The CPU: its name, the flags of FLAGS it has, and its cores: all, ours by affinity, ours by quota (None: all)."""

    name: str
    flags: tuple[str, ...]
    cores: int
    usable: int
    quota: float | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in all, bytes free for new programs, and the container's limit; None where the system does not say."""

    total: int | None
    available: int | None
    limit: int | None


def processor(root: Path = Path("/")) -> Processor:
    """Return the CPU that the files under ``root`` describe."""
    name, flags = "", set[str]()
    for line in _lines(root / "proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = name or value.strip()
        elif key.strip() in ("flags", "Features"):
            flags |= {_SAME.get(flag, flag) for flag in value.split()}
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    name = name or platform.processor() or platform.machine()
    return Processor(name, tuple(flag for flag in FLAGS if flag in flags), cores, usable, _quota(root))


def memory(root: Path = Path("/")) -> Memory:
    """Return the memory that the files under ``root`` describe."""
    kilobytes = {}
    for line in _lines(root / "proc/meminfo"):
        key, _, value = line.partition(":")
        kilobytes[key] = int(value.split()[0])
    total, available = kilobytes.get("MemTotal"), kilobytes.get("MemAvailable")
    limit = _first_number(root / "sys/fs/cgroup/memory.max", root / "sys/fs/cgroup/memory/memory.limit_in_bytes")
    if limit is not None and total is not None and limit >= total * 1024:
        limit = None  # a limit that binds nothing
    return Memory(None if total is None else total * 1024, None if available is None else available * 1024, limit)


def packages() -> dict[str, str | None]:
    """Return the version of each package that matters, None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def free_bytes(folder: Path) -> int | None:
    """Return the free space where ``folder`` is or would be; None where it cannot be told."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    try:
        return None if there is None else shutil.disk_usage(there).free
    except OSError:
        return None


def writable(folder: Path) -> bool:
    """Say whether ``folder`` is a folder, or could be made one, that can be written to."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _quota(root: Path) -> float | None:
    words = " ".join(_lines(root / "sys/fs/cgroup/cpu.max")).split()
    if len(words) == 2 and words[0] != "max":
        return int(words[0]) / int(words[1])
    old = root / "sys/fs/cgroup/cpu"
    most, period = _first_number(old / "cpu.cfs_quota_us"), _first_number(old / "cpu.cfs_period_us")
    return most / period if most and period and most > 0 else None


def _first_number(*paths: Path) -> int | None:
    for path in paths:
        for line in _lines(path):
            if line.strip().lstrip("-").isdigit():
                return int(line)
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def cores() -> int:
    """Return how many cores this process may use: its affinity, and the quota of its control group."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        count = os.cpu_count() or 1
    for folder, quota, period in (
        ("/sys/fs/cgroup", "cpu.max", ""),
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ):
        try:
            words = Path(folder, quota).read_text().split()
            limit = int(words[0]) / int(words[1] if not period else Path(folder, period).read_text())
        except (OSError, ValueError, IndexError, ZeroDivisionError):  # no such file, or "max"
            continue
        if limit > 0:
            count = min(count, max(1, int(limit)))
    return count


def machine() -> str:
    """Return what tells this machine from another: its processor, and how many it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{os.cpu_count()} x {next(named, '') or platform.processor() or platform.machine()}"

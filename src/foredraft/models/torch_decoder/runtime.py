"""What torch finds on this machine: the device to use, its threads, its description."""

from __future__ import annotations

from typing import Final

import torch

from foredraft.errors import OptionError

DEVICES: Final = ("cpu", "cuda", "mps")


def pick_device(name: str | None) -> str:
    """Return the device asked for, or the best there is. Raises OptionError for one that is not there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name is None:
        return "cuda" if there["cuda"] else "cpu"
    if name not in there:
        raise OptionError(f"device must be one of {', '.join(DEVICES)}, not {name!r}")
    if not there[name]:
        raise OptionError(f"torch {torch.__version__} finds no {name} device on this machine: use --device cpu")
    return name


def set_threads(threads: int | None) -> int:
    """Use so many threads for arithmetic on the CPU, or leave torch's own choice; return how many there are."""
    if threads is not None:
        torch.set_num_threads(threads)
    return int(torch.get_num_threads())


def describe(device: str) -> str:
    """Return the device in words."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()} (CUDA {torch.version.cuda})"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{device}, {capability}, {torch.get_num_threads()} threads"


def version() -> str:
    """Return torch's version."""
    return str(torch.__version__)

"""The built library, the memory it is given, and what this processor has for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import foredraft

SOURCES = Path(__file__).parent.parent.parent / "src" / "foredraft" / "native"  # an installed package holds none
NATIVE = Path(foredraft.__file__).parent / "native"
LIBRARY = NATIVE / f"libforedraft{ {'win32': '.dll', 'darwin': '.dylib'}.get(sys.platform, '.so') }"
Array = np.ndarray[Any, np.dtype[Any]]


def at(array: Array) -> int:
    return int(array.ctypes.data)


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros that start on a cache line, as those of the pass do."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(count + 64, np.uint8)
    start = -at(raw) % 64
    return raw[start : start + count].view(dtype).reshape(shape)


def probed(tier: str) -> int:
    """What fd_probe_tier returns in a child process, which a refused instruction may kill."""
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).fd_probe_tier(sys.argv[2].encode()) + 10)"
    return subprocess.run([sys.executable, "-c", code, str(LIBRARY), tier], check=False).returncode - 10

"""The native library through ctypes: opened, its errors, the tiers that this machine can run."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

from foredraft.errors import ModelError, OptionError
from foredraft.native.structs import NativeLawStruct, NativePlace, NativeRequest, NativeSpec

VERSION: Final = 5  # of the interface and the packed form; FD_VERSION of native/api.h
_SUFFIX: Final = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
LIBRARY: Final = Path(__file__).with_name(f"libforedraft{_SUFFIX}")
_PROBE: Final = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).fd_probe_tier(sys.argv[2].encode()) != 1)"


@cache
def library() -> Any:
    """Return the library, its functions typed. Raises ModelError if it is not there or of another version."""
    if not LIBRARY.is_file():
        raise ModelError("the native pass was not built into this install: install a C++ compiler and foredraft again")
    try:
        lib = ctypes.CDLL(str(LIBRARY))
        version = int(lib.fd_version())
    except (OSError, AttributeError) as error:
        raise ModelError(f"the native library {LIBRARY} cannot be loaded: {error}") from error
    if version != VERSION:
        raise ModelError(f"{LIBRARY} is of version {version} where {VERSION} is needed: install foredraft again")
    spec, model, out, law = POINTER(NativeSpec), c_void_p, POINTER(c_int32), POINTER(NativeLawStruct)
    for name, result, takes in (
        ("fd_error", c_char_p, []),
        ("fd_tiers", c_char_p, []),
        ("fd_probe_tier", c_int32, [c_char_p]),
        ("fd_packed_bytes", c_uint64, [spec]),
        ("fd_pack", c_int32, [spec, c_void_p, c_int32, c_int32, c_void_p, c_int32, c_int64, c_int64, c_int64]),
        ("fd_digest", c_int32, [c_void_p, c_uint64, c_int32, POINTER(c_uint64)]),
        ("fd_open", c_int32, [spec, c_void_p, c_uint64, c_char_p, c_int32, POINTER(c_void_p)]),
        ("fd_open_beside", c_int32, [spec, c_void_p, c_uint64, model, POINTER(c_void_p)]),
        ("fd_close", None, [model]),
        ("fd_forward", c_int32, [model, POINTER(NativeRequest)]),
        ("fd_compact", c_int32, [model, c_int32, c_int32, c_void_p, c_int32]),
        ("fd_release", c_int32, [model, c_int32]),
        ("fd_subset", c_int32, [model, c_void_p, c_int32, out]),
        ("fd_floor", c_int32, [model, POINTER(c_double)]),
        ("fd_memory", c_int32, [model, POINTER(c_uint64), POINTER(c_uint64)]),
        ("fd_law_make", c_int32, [law]),
        ("fd_law_total", c_double, [law]),
        ("fd_law_at", c_double, [law, c_int32]),
        ("fd_law_dense", None, [law, c_void_p]),
        ("fd_law_draw", c_int32, [law, c_double]),
        ("fd_law_race", c_int32, [law, NativePlace]),
        ("fd_law_race_as", None, [law, c_void_p, NativePlace, c_void_p, c_void_p]),
        ("fd_gaps", None, [NativePlace, c_int32, c_void_p]),
        ("fd_heads_open", c_int32, [model, model, c_void_p, POINTER(c_void_p)]),
        ("fd_heads_close", None, [c_void_p]),
        ("fd_heads_run", c_int32, [c_void_p, c_void_p]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, takes
    return lib


def check(code: int) -> None:
    """Raise ModelError with the library's own words if a call of it failed."""
    if code:
        raise ModelError(library().fd_error().decode())


def tiers() -> tuple[str, ...]:
    """Return the tiers that this machine announces and this build has, best first."""
    return tuple(library().fd_tiers().decode().split(","))


def choose_tier(wanted: str | None) -> tuple[str, str | None]:
    """Return the tier to run, and what is to be said where it is not the best announced.

    Raises OptionError for a tier that was asked for and does not run here.
    """
    there = tiers()
    if wanted is not None:
        if wanted not in there or not _runs(wanted):
            raise OptionError(f"this machine or build has no native tier {wanted}: it has {', '.join(there)}")
        return wanted, None
    for place, tier in enumerate(there):
        if _runs(tier):
            refused = ", ".join(there[:place])
            return tier, f"the processor announces {refused}, and refuses it; {tier} runs, slower" if refused else None
    raise ModelError("no tier of the native pass computes rightly on this machine")


@cache
def _runs(tier: str) -> bool:
    """Say whether a tier computes rightly. Tiles may be refused by a signal, so a child tries them."""
    if tier != "amx":
        return int(library().fd_probe_tier(tier.encode())) == 1
    try:
        return subprocess.run([sys.executable, "-ISc", _PROBE, LIBRARY, tier], timeout=20, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False

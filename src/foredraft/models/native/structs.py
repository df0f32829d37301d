"""The native library through ctypes: its structures, its errors, the tiers this machine can run, its cores."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

from foredraft.errors import ModelError, OptionError
from foredraft.models.rope import inverse_frequencies
from foredraft.models.spec import DecoderSpec

VERSION: Final = 5  # of the interface and the packed form; FD_VERSION of native/api.h
FLOATS: Final = ("BF16", "F16", "F32", "F64")
BLOCKS: Final = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")  # run as a file stores them
TYPES: Final = {name: number for number, name in enumerate((*FLOATS, *BLOCKS))}  # fd_type of native/api.h
PARTS: Final = (
    "embedding", "head", "norm", "qkv", "o", "gate", "up", "down", "qkv_bias", "o_bias", "gate_bias", "up_bias",
    "down_bias", "before_attention", "after_attention", "before_gated", "after_gated", "q_norm", "k_norm",
)  # fmt: skip
_SUFFIX: Final = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
LIBRARY: Final = Path(__file__).parents[2] / "native" / f"libforedraft{_SUFFIX}"
_PROBE: Final = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).fd_probe_tier(sys.argv[2].encode()) != 1)"


class NativeSpec(ctypes.Structure):
    """``fd_spec`` of native/api.h."""

    _fields_ = (
        *((name, c_int32) for name in ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_dim", "mlp")),
        *((name, c_int32) for name in ("context", "norm_before", "norm_after", "qk_norm")),
        *((name, c_int32) for name in ("qkv_bias", "o_bias", "mlp_bias", "activation", "tied", "f32", "ropes")),
        *((name, c_float) for name in ("eps", "attention_scale", "attention_cap", "logits_cap")),
        *((name, c_float) for name in ("embedding_scale", "residual_scale", "logits_divisor")),
        *((name, POINTER(c_int32)) for name in ("windows", "rope_of", "rope_dims")),
        *((name, POINTER(c_float)) for name in ("rope_scales", "rope_turns")),
        ("kinds", POINTER(c_int32)),
    )


class NativeRequest(ctypes.Structure):
    """``fd_request`` of native/api.h."""

    _fields_ = (
        ("sequences", c_int32),
        *((name, c_void_p) for name in ("slots", "starts", "counts", "tokens", "parents", "hidden")),
        *(("steps", c_int32), ("step", c_void_p), ("taps", c_int32), ("tap", c_void_p)),
        *(("wanted", c_int32), ("want", c_void_p), ("subset", c_int32), ("logits", c_void_p), ("tapped", c_void_p)),
    )


class NativeLawStruct(ctypes.Structure):
    """``fd_law`` of native/api.h."""

    _fields_ = (
        ("row", c_void_p),
        *((name, c_int32) for name in ("size", "wide", "top_k", "narrow")),
        *((name, c_double) for name in ("temperature", "top_p", "min_p")),
        *((name, c_void_p) for name in ("tops", "sums")),
        *((name, c_double) for name in ("peak", "cut", "total", "scale")),
        *(("minus", c_void_p), ("without", c_void_p), ("withouts", c_int32)),
    )


class NativePlace(ctypes.Structure):
    """``fd_place`` of native/api.h."""

    _fields_ = (("seed", c_uint64), ("position", c_uint32), ("choice", c_uint32))


def native_spec(
    spec: DecoderSpec, dtype: str, embedding_scale: float, kinds: Sequence[str] | None = None
) -> NativeSpec:
    """Return a spec as the library reads it; the arrays live as long as it does.

    ``kinds`` [2 + 7 * layers] are the types (of TYPES) of embedding, head, and each layer's q, k, v, o, gate, up and
    down; None: all are of the dtype.
    """
    ropes = tuple(dict.fromkeys(rope for rope in spec.ropes if rope is not None))
    turns = [float(turn) for rope in ropes for turn in inverse_frequencies(rope)]
    plain = ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_dim", "mlp", "context", "qkv_bias", "o_bias",
             "mlp_bias", "tied", "eps", "attention_scale", "attention_cap", "logits_cap", "residual_scale",
             "logits_divisor")  # fmt: skip
    made = NativeSpec(
        **{name: getattr(spec, name) for name in plain},
        norm_before=spec.places in ("pre", "sandwich"),
        norm_after=spec.places in ("post", "sandwich"),
        qk_norm=("none", "head", "full").index(spec.qk_norm),
        activation=("silu", "gelu_tanh").index(spec.activation),
        f32=dtype == "f32",
        ropes=len(ropes),
        embedding_scale=embedding_scale,
    )
    made.windows = _array(c_int32, spec.windows)
    made.rope_of = _array(c_int32, [-1 if rope is None else ropes.index(rope) for rope in spec.ropes])
    made.rope_dims = _array(c_int32, [rope.dim for rope in ropes])
    made.rope_scales = _array(c_float, [rope.attention_factor for rope in ropes])
    made.rope_turns = _array(c_float, turns)
    if kinds is not None:
        made.kinds = _array(c_int32, [TYPES[kind] for kind in kinds])
    return made


def _array(kind: Any, values: Sequence[float]) -> Any:
    return (kind * len(values))(*values)


@cache
def library() -> Any:
    """Return the library, its functions typed. Raises ModelError if it is not there or of another version."""
    if not LIBRARY.is_file():
        raise ModelError("the native pass was not built into this install: install a C++ compiler and foredraft again")
    try:
        lib = ctypes.CDLL(str(LIBRARY))
        version = int(lib.fd_version())
    except (OSError, AttributeError) as fault:
        raise ModelError(f"the native library {LIBRARY} cannot be loaded: {fault}") from fault
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

"""Rotary positions: how far each pair of features turns from one token to the next.

Su et al. 2021 (arXiv 2104.09864); "linear" stretches all turns, "llama3" the slow ones, "yarn" blends by frequency and
sharpens attention (Peng et al. 2023, arXiv 2309.00071).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import UnsupportedModel

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rope:
    """One rotation. ``dim`` features of each head turn, the first of them; the rest pass."""

    dim: int
    theta: float
    kind: str = "default"  # "default", "linear", "llama3" or "yarn"
    factor: float = 1.0  # how many times the context was stretched
    original: int = 0  # tokens the model was first trained for
    low: float = 1.0  # llama3: low_freq_factor; yarn: beta_slow
    high: float = 1.0  # llama3: high_freq_factor; yarn: beta_fast
    truncate: bool = True
    attention_factor: float = 1.0  # multiplies the cosines and sines


def read_rope(given: Mapping[str, object], config: Mapping[str, object], head_dim: int) -> Rope:
    """Return the rope that ``given`` (one layer kind's parameters) describes.

    Raises UnsupportedModel, with ``elsewhere`` where the kind has no entry here.
    """
    kind = given.get("rope_type") or given.get("type") or "default"
    theta = _number(given, "rope_theta")
    dim = int(head_dim * _number(given, "partial_rotary_factor", 1.0))
    if not 2 <= dim <= head_dim or dim % 2:
        raise UnsupportedModel(f"config.json: the rope cannot turn {dim} of {head_dim} features")
    longer = _number(config, "max_position_embeddings", 2048)
    original = int(_number(given, "original_max_position_embeddings", longer))
    if kind == "default":
        return Rope(dim, theta)
    if kind == "linear":
        return Rope(dim, theta, "linear", _number(given, "factor"))
    if kind == "llama3":
        low, high = _number(given, "low_freq_factor"), _number(given, "high_freq_factor")
        if low == high:
            raise UnsupportedModel("config.json: low_freq_factor and high_freq_factor of the rope must differ")
        return Rope(dim, theta, "llama3", _number(given, "factor"), original, low, high)
    if kind == "yarn" and config.get("model_type") != "phi3":  # Phi-3's "yarn" is a longrope
        factor = _number(given, "factor", longer / original)
        low, high = _number(given, "beta_slow", 1.0), _number(given, "beta_fast", 32.0)
        truncate = given.get("truncate", True) is not False
        return Rope(dim, theta, "yarn", factor, original, low, high, truncate, _yarn_attention(given, factor))
    raise UnsupportedModel(f"rope scaling of kind {kind!r} has no entry in the decoder table", elsewhere=True)


def inverse_frequencies(rope: Rope) -> Floats:
    """Return the turn of each feature pair per token, in radians: [dim / 2]."""
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    turns = np.power(np.float32(rope.theta), exponents)
    plain: Floats = (1.0 / turns).astype(np.float32)
    if rope.kind == "linear":
        return plain / np.float32(rope.factor)
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain)
    return plain


def tables(rope: Rope, start: int, stop: int) -> tuple[Floats, Floats]:
    """Return cosines and sines of positions ``start`` up to ``stop``: [stop - start, dim] each.

    Both halves of the features are written out, the first half's sines negated, so that turning is
    ``x * cos + swapped(x) * sin`` with the halves of x swapped.
    """
    angles = np.arange(start, stop, dtype=np.float32)[:, None] * inverse_frequencies(rope)
    cos, sin = (np.float32(rope.attention_factor) * f(angles) for f in (np.cos, np.sin))
    return np.concatenate([cos, cos], axis=1), np.concatenate([-sin, sin], axis=1)


def _llama3(rope: Rope, plain: Floats) -> Floats:
    wavelengths = 2 * math.pi / plain
    smooth = (rope.original / wavelengths - rope.low) / (rope.high - rope.low)
    blended = (1 - smooth) * plain / rope.factor + smooth * plain
    slow = wavelengths > rope.original / rope.low
    fast = wavelengths < rope.original / rope.high
    result: Floats = np.where(slow, plain / rope.factor, np.where(fast, plain, blended)).astype(np.float32)
    return result


def _yarn(rope: Rope, plain: Floats) -> Floats:
    def pair(rotations: float) -> float:
        """The feature pair that makes so many whole turns over the original context."""
        return rope.dim * math.log(rope.original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(rope.high), pair(rope.low)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    span = high - low or 0.001  # a step where both fall on one pair
    stretched = np.clip((np.arange(rope.dim // 2, dtype=np.float32) - low) / span, 0, 1)
    result: Floats = (plain / rope.factor * stretched + plain * (1 - stretched)).astype(np.float32)
    return result


def _yarn_attention(given: Mapping[str, object], factor: float) -> float:
    if given.get("attention_factor") is not None:
        return _number(given, "attention_factor")

    def sharper(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if given.get("mscale") and given.get("mscale_all_dim"):
        return sharper(_number(given, "mscale")) / sharper(_number(given, "mscale_all_dim"))
    return sharper(1.0)


def _number(given: Mapping[str, object], key: str, default: float | None = None) -> float:
    value = given.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise UnsupportedModel(f"config.json: {key} of the rope is {value!r} where a positive number is needed")
    return float(value)

"""The rope scaling of a GGUF file, in the terms of a Hugging Face config."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

from foredraft.errors import UnsupportedModel, WeightsError
from foredraft.models.gguf.config import Config, Keys
from foredraft.models.gguf.header import Header

Numbers = npt.NDArray[np.float64]
_CLOSE: Final = 2e-5  # what is left of a factor after single precision


def add_rope_scaling(header: Header, config: Config) -> None:
    """Put the file's rope scaling, if it has one, into ``config``.

    Raises UnsupportedModel for one that no known rule gives.
    """
    keys = Keys(header)
    if "rope_freqs.weight" in header.tensors:
        config["rope_scaling"] = _from_factors(header, config)
        return
    if "rope_factors_long.weight" in header.tensors:
        config["rope_scaling"] = {
            "rope_type": "longrope",
            "long_factor": _vector(header, "rope_factors_long.weight").tolist(),
            "short_factor": _vector(header, "rope_factors_short.weight").tolist(),
        }
        original = keys.whole("rope.scaling.original_context_length")
        config["original_max_position_embeddings"] = original
        return
    kind = keys.text("rope.scaling.type")
    old_factor = keys.real("rope.scale_linear", 1.0)  # as files before 2023-11 have it
    if kind is None and old_factor != 1.0:
        config["rope_scaling"] = {"rope_type": "linear", "factor": old_factor}
    elif kind == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": keys.real("rope.scaling.factor")}
    elif kind == "yarn":
        config["rope_scaling"] = _yarn(keys, config)
    elif kind not in (None, "none", "longrope"):  # longrope without factors scales nothing
        raise UnsupportedModel(f"{header.path} scales its rotation by the unknown rule {kind[:80]!r}")


def _yarn(keys: Keys, config: Config) -> dict[str, Any]:
    factor = keys.real("rope.scaling.factor")
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.whole(
            "rope.scaling.original_context_length", config["max_position_embeddings"]
        ),
    }
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if keys.has(f"rope.scaling.{key}"):
            scaling[name] = keys.real(f"rope.scaling.{key}")
    if keys.has("rope.scaling.attn_factor") and factor > 1:  # llama.cpp multiplies what Hugging Face replaces
        scaling["attention_factor"] = keys.real("rope.scaling.attn_factor") * (0.1 * math.log(factor) + 1)
    return scaling


def _vector(header: Header, name: str) -> Numbers:
    entry = header.tensors.get(name)
    if entry is None or len(entry.shape) != 1 or entry.quant_type.name != "F32" or entry.size > 1 << 16:
        raise WeightsError(f"{header.path} has no usable {name!r}")
    raw = np.fromfile(header.path, dtype=np.uint8, count=entry.size, offset=entry.start)
    values: Numbers = dequantize(raw.view(np.float32), entry.quant_type).astype(np.float64)
    if len(values) != entry.shape[0] or not np.all(np.isfinite(values)) or not np.all(values > 0):
        raise WeightsError(f"{header.path} has no usable {name!r}")
    return values


def _from_factors(header: Header, config: Config) -> dict[str, Any] | None:
    """Return the rule behind ``rope_freqs.weight``, which holds only its result: a divisor for every frequency.

    Llama 3's rule is known by four numbers. The largest divisor is ``factor``; between the two thresholds the
    reciprocal divisor is a straight line in the frequency, and the line gives the other three up to a common scale,
    which has no effect. The usual thresholds are tried first: those files give back the very config they came from.
    """
    divisors = _vector(header, "rope_freqs.weight")
    width = config["head_dim"]
    if len(divisors) * 2 != width:
        raise WeightsError(f"{header.path} has {len(divisors)} rotation factors for heads of {width}")
    frequencies = config["rope_theta"] ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    factor = float(f"{divisors.max():.6g}")
    if np.all(np.abs(divisors - factor) <= _CLOSE * factor):
        return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    candidates = [(1.0, 4.0, 8192), *_line(divisors, frequencies, factor)]
    for low, high, original in candidates:
        expected = llama3_divisors(frequencies, factor, low, high, original)
        if np.all(np.abs(expected - divisors) <= _CLOSE * divisors):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise UnsupportedModel(f"{header.path} scales its rotation by factors that follow no known rule")


def llama3_divisors(frequencies: Numbers, factor: float, low: float, high: float, original: int) -> Numbers:
    """Return what Llama 3's rule divides each frequency by, [D / 2].

    Source: the reference code of Llama 3.1, https://github.com/meta-llama/llama-models.
    """
    turns = original * frequencies / (2 * math.pi)  # rotations within the original context
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(1 / ((1 - share) / factor + share))


def _line(divisors: Numbers, frequencies: Numbers, factor: float) -> list[tuple[float, float, int]]:
    inside = (divisors > 1 + _CLOSE) & (divisors < factor * (1 - _CLOSE))
    if factor <= 1 or inside.sum() < 2:
        return []
    share = (1 / divisors[inside] - 1 / factor) / (1 - 1 / factor)
    slope, start = np.polyfit(frequencies[inside], share, 1)
    if slope <= 0 or start >= 0:
        return []
    high = round((1 - start) / -start, 4)  # with low = 1
    original = 2 * math.pi * slope * (high - 1)
    return [(1.0, float(high), round(original)), (1.0, float(round(high)), round(original))]

"""The figures of a roofline: passes by rows, speed-up by draft length, and what a batch leaves of it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

from foredraft.errors import OptionError

_INK: Final = "#333333"
_TICKS: Final = (1, 2, 4, 8, 16, 32, 64)


def plot(document: dict[str, Any], path: Path, title: str) -> None:
    """Draw the three figures side by side into a PNG. Raises OptionError where matplotlib is missing."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError as fault:
        raise OptionError("no figure without matplotlib: pip install 'foredraft[plots]'") from fault
    figure = figure_module.Figure(figsize=(15, 4.8), dpi=120, layout="constrained")
    passes, lengths, batches = figure.subplots(1, 3)
    figure.suptitle(title, color=_INK)
    _passes(passes, document)
    curves = [(curve, "-", f"acceptance {curve['name']}") for curve in document["curves"]]
    curves += [(curve, "--", f"{curve['name']} here ({curve['acceptance']:.2f})") for curve in document["drafters"]]
    for curve, style, label in curves:
        (line,) = lengths.plot(curve["speedup"], style, label=label)
        best = curve["best_length"]
        lengths.plot(best, curve["speedup"][best], "o", color=line.get_color())
        batches.plot(curve["batches"], curve["best_by_batch"], style, color=line.get_color(), label=label)
    for axes in (lengths, batches):
        axes.axhline(1.0, color=_INK, linewidth=0.8)
        axes.set_ylabel("times plain decoding")
    lengths.set_title("what a draft length gives (dots: the best)")
    lengths.set_xlabel("guesses a round")
    lengths.legend(fontsize=8)
    batches.set_title("what is left of it in a batch")
    batches.set_xlabel("texts at a time")
    batches.set_xscale("log", base=2)
    batches.set_xticks(_TICKS, [str(batch) for batch in _TICKS])
    for axes in (passes, lengths, batches):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _passes(axes: Any, document: dict[str, Any]) -> None:
    rows, plain = document["rows"], document["pass_ms"][0]
    axes.plot(rows, document["pass_ms"], "o-", label="a pass, measured")
    axes.plot(rows, [plain * m for m in rows], ":", color=_INK, label="a pass for each row")
    if document["weights_once_ms"] is not None:
        axes.axhline(document["weights_once_ms"], color="#999999", linestyle="--", label="the weights read once")
    axes.set_ylim(0, 1.15 * document["pass_ms"][-1])
    axes.set_title("one reading of the weights for many rows")
    axes.set_xlabel("rows of a pass")
    axes.set_ylabel("milliseconds")
    axes.legend(fontsize=8, loc="upper left")

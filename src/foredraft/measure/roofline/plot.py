"""The figures of a roofline: passes by rows, speed-up by draft length, and what a batch leaves of it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from foredraft.errors import OptionError

_INK: Final = "#333333"
_FAINT: Final = "#8a8a8a"
_WARNING: Final = "#b3261e"
_MEASURED: Final = "#1f5fa8"
_RAMP: Final = ("#a9cbe6", "#85b5dc", "#5f9ccf", "#3f82bf", "#2267a8", "#08407a")  # one hue: acceptance is a quantity
_DRAFTERS: Final = ("#d95f02", "#1b7a4f", "#a0338a", "#7a5c00")  # apart from the ramp and each other for all eyes
_STYLES: Final = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1, 1.5)))
_LEGEND: Final = {
    "loc": "upper left", "fontsize": 8.5, "alignment": "left", "facecolor": "white", "edgecolor": "none",
    "framealpha": 0.9,
}  # fmt: skip
_TICKS: Final = (1, 2, 4, 8, 16, 32, 64)
_ROOM: Final = 1.02  # of the axis' width: where names of curves begin


def plot(document: dict[str, Any], path: Path, title: str) -> None:
    """Draw the three figures side by side into a PNG. Raises OptionError where matplotlib is missing."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise OptionError("no figure without matplotlib: pip install 'foredraft[plots]'") from error
    figure = figure_module.Figure(figsize=(16, 5.2), dpi=120, layout="constrained")
    passes, lengths, batches = figure.subplots(1, 3, gridspec_kw={"wspace": 0.06})
    warning = "measured on a busy machine: not to be relied on" if document["busy"] else ""
    said = f"{_plain(title)}\n{warning}" if warning else _plain(title)
    figure.suptitle(said, color=_WARNING if warning else _INK, fontsize=13)
    _passes(passes, document)
    for axes in (passes, lengths, batches):
        axes.grid(alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK)
    _curves(lengths, batches, document)
    lengths.set_title("What a draft length gives (dots: the best)", fontsize=11)
    lengths.set_xlabel("guesses a round")
    batches.set_title("What is left of it in a batch (x: no length pays any more)", fontsize=11)
    batches.set_xlabel("texts at a time")
    _doubling(batches, "x", _TICKS)
    for axes in (lengths, batches):
        axes.axhline(1.0, color=_INK, linewidth=0.8, zorder=1)
        axes.set_ylabel("times plain decoding")
        axes.set_ylim(bottom=_lowest(document))
    figure.savefig(path)


def _passes(axes: Any, document: dict[str, Any]) -> None:
    """Draw the time of a pass between its two limits: reading the weights, and multiplying with them."""
    rows, times = document["rows"], document["pass_ms"]
    ends = (rows[0], rows[-1])
    axes.plot(ends, [times[0] * m for m in ends], ":", color=_FAINT, label="a pass for each row")
    if document["weights_once_ms"] is not None:
        speed = "" if document["read_gb_s"] is None else f", {document['read_gb_s']:.0f} GB/s"
        once = document["weights_once_ms"]
        axes.plot(ends, (once, once), "--", color=_DRAFTERS[1], label=f"the weights read once{speed}")
    if document["most_gflop_s"] is not None:
        each = times[rows.index(document["most_gflop_s_rows"])] / document["most_gflop_s_rows"]
        label = f"arithmetic at its fastest, {document['most_gflop_s']:.0f} GFLOP/s"
        axes.plot(ends, [each * m for m in ends], "-.", color=_DRAFTERS[0], label=label)
    axes.plot(rows, times, "o-", color=_MEASURED, linewidth=2, markersize=5, label="a pass, measured", zorder=3)
    _doubling(axes, "x", [tick for tick in _TICKS if tick <= rows[-1]])
    axes.set_yscale("log", base=2)
    least = min(times[0], document["weights_once_ms"] or times[0])
    axes.set_ylim(0.6 * least, 4.0 * times[-1])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title("One reading of the weights for many rows", fontsize=11)
    axes.set_xlabel("rows of a pass")
    axes.set_ylabel("milliseconds")
    axes.legend(**_LEGEND)


def _curves(lengths: Any, batches: Any, document: dict[str, Any]) -> None:
    named: list[tuple[float, str, str]] = []
    for curve, colour in zip(document["curves"], _RAMP, strict=True):
        _curve(lengths, batches, curve, colour, "-", 1.6)
        named.append((curve["speedup"][-1], curve["name"], colour))
    for i, curve in enumerate(document["drafters"]):
        colour, style = _DRAFTERS[i % len(_DRAFTERS)], _STYLES[1 + i % (len(_STYLES) - 1)]
        label = f"{_plain(curve['name'])}: {curve['acceptance']:.2f}"
        _curve(lengths, batches, curve, colour, style, 2.2, label)
    if document["drafters"]:
        told = "drafters here, the chance of their first guess"
        batches.legend(**{**_LEGEND, "loc": "upper right"}, title=told, title_fontsize=8.5)
    lengths.annotate(
        "acceptance", (_ROOM, 1.0), xycoords=("axes fraction", "axes fraction"), fontsize=8.5, color=_INK, ha="center"
    )
    last = len(document["curves"][0]["speedup"]) - 1
    for height, name, colour in _apart(named, 0.035 * max(height for height, *_ in named)):
        at = {"xytext": (9, 0), "textcoords": "offset points", "va": "center", "fontsize": 9.5}
        lengths.annotate(name, (last, height), color=colour, fontweight="bold", **at)


def _curve(
    lengths: Any, batches: Any, curve: dict[str, Any], colour: str, style: Any, width: float, label: str = ""
) -> None:
    best = curve["best_length"]
    lengths.plot(curve["speedup"], linestyle=style, color=colour, linewidth=width)
    lengths.plot(best, curve["speedup"][best], "o", color=colour, markersize=6, clip_on=False, zorder=4)
    batches.plot(
        curve["batches"], curve["best_by_batch"], linestyle=style, color=colour, linewidth=width, label=label or "_"
    )
    if (end := curve["stops_at_batch"]) is not None:
        batches.plot(end, 1.0, "X", color=colour, markersize=8, markeredgecolor="white", zorder=5)


def _apart(named: Sequence[tuple[float, str, str]], gap: float) -> list[tuple[float, str, str]]:
    """Return names with heights at which they do not overlap, the lowest where it belongs."""
    placed: list[tuple[float, str, str]] = []
    for height, name, colour in sorted(named):
        placed.append((max(height, placed[-1][0] + gap) if placed else height, name, colour))
    return placed


def _lowest(document: dict[str, Any]) -> float:
    """Return where the axis of speed-ups begins: at 0 only if something falls so far."""
    least: float = min(min(curve["speedup"]) for curve in (*document["curves"], *document["drafters"]))
    return max(0.0, min(0.9, least - 0.05))


def _doubling(axes: Any, which: str, ticks: Sequence[int]) -> None:
    getattr(axes, f"set_{which}scale")("log", base=2)
    getattr(axes, f"set_{which}ticks")(ticks, [str(tick) for tick in ticks])


def _plain(text: str) -> str:
    """Return a name such that no sign of it is taken for mathematics."""
    return text.replace("$", r"\$")

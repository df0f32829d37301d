"""Draw agreement against depth from the JSON line that layers.py printed.

    python -m benchmarks.drafting.layers_plot RUN.json PICTURE.png

Needs matplotlib, which nothing else here does: ``pip install matplotlib``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

INK, PALE = "#0072b2", "#d55e00"  # told apart by colour-blind readers too


def main() -> None:
    options = argparse.ArgumentParser(description="agreement of the model's own layers with the whole of it")
    options.add_argument("run", type=Path, help="output of benchmarks.drafting.layers, whose last line is JSON")
    options.add_argument("picture", type=Path)
    arguments = options.parse_args()
    run = json.loads(arguments.run.read_text(encoding="utf-8").strip().split("\n")[-1])
    curves = run["curves"]
    layers = curves["layers"]
    figure, axes = plt.subplots(figsize=(7.2, 4.0), dpi=150, layout="constrained")
    depths, exits = zip(*curves["exits"], strict=True)
    axes.plot([depth / layers for depth in depths], exits, "o-", color=PALE, ms=3.5, label="early exit")
    counts, shares = zip(*curves["left_out"], strict=True)
    axes.plot([1 - count / (2 * layers) for count in counts], shares, "s-", color=INK, ms=3, label="best set found")
    axes.set_xlabel("share of the sub-layers that are run")
    axes.set_ylabel("tokens guessed as the whole model would")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(arguments.picture)


if __name__ == "__main__":
    main()

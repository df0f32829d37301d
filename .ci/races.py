"""Passes of every kind on four threads, for the thread sanitizer to watch; and their bits against one thread's."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parent.parent))
from benchmarks.shared.made_models import random_llama
from foredraft.core.sampling import SamplingParams
from foredraft.models.heads.native import NativeHeads
from foredraft.models.heads.open import open_heads
from foredraft.models.model import Rows
from foredraft.models.native.model import NativeModel
from foredraft.models.native.sampling import NativeNoise
from foredraft.models.spec import read_spec
from foredraft.native.library import tiers
from tests.models.heads import make_heads

SIZES = {"hidden": 96, "layers": 3, "mlp": 200, "heads": 6, "kv_heads": 3, "vocabulary": 500}
TREE = (-1, 0, 0, 2, 1, -1, 5, 3, 3, 8, 9, 0)


def logits(model: NativeModel) -> np.ndarray:
    """Return the logits of a prefill, a batch of a tree and a chain, and what follows after the tree's best path."""
    text = tuple(int(token) for token in np.random.default_rng(0).integers(3, 500, 300))
    for slot in (0, 1):
        model.forward([Rows(slot, 0, text[: 290 + slot], tuple(range(-1, 289 + slot)), 0)])
    both = [Rows(0, 290, text[: len(TREE)], TREE, len(TREE)), Rows(1, 291, text[:9], tuple(range(-1, 8)), 9)]
    first = model.forward(both).logits
    model.compact(0, 290, [0, 2, 3])
    return np.concatenate([first, model.forward([Rows(0, 293, (7, 8), (-1, 0), 2)]).logits])


def guesses(model: NativeModel, folder: Path) -> list[float]:
    """Return how likely each guess of a chain is that begins after a read of several blocks."""
    heads = open_heads(str(folder / "heads.safetensors"), model, folder, folder, "made")
    assert isinstance(heads, NativeHeads)
    rng = np.random.default_rng(0)
    states = [rng.normal(size=(150, SIZES["hidden"])).astype(np.float32) for _ in heads.spec.taps]
    tokens = [int(token) for token in rng.integers(3, 500, 150)]
    return heads.chain(0, 0, states, tokens, [0.0] * 4, SamplingParams(1.0), NativeNoise(1)).confidence


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = random_llama(Path(place) / "model", **SIZES)
        spec = read_spec(json.loads((folder / "config.json").read_text()))
        make_heads(folder, folder / "heads.safetensors")
        for tier in tiers():
            for dtype in ("bf16", "f32", "rounded"):  # blocks, and rows that are no whole ones
                models = [NativeModel(spec, folder, dtype, tier=tier, threads=n) for n in (4, 1)]
                many, one = (logits(model) for model in models)
                assert np.array_equal(many, one), f"{tier} {dtype}: four threads give other bits than one"
                chains = [guesses(model, folder) for model in models]
                assert chains[0] == chains[1], f"{tier} {dtype}: heads guess otherwise on four threads"
                print(f"{tier} {dtype}: no difference")


if __name__ == "__main__":
    main()

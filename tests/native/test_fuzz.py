"""Random shapes, rows and trees: the native pass against torch's decoder, and against itself a row at a time."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.models.checkpoint import open_weights
from foredraft.models.model import Rows
from foredraft.models.native.model import NativeModel
from foredraft.models.runner import native_facts
from foredraft.models.spec import read_spec
from foredraft.models.torch_decoder.decoder import TorchDecoder
from tests.models.checkpoints import FAMILIES, make_checkpoint

pytestmark = pytest.mark.slow

TIERS = tuple(native_facts()["tiers"])


@dataclass(frozen=True)
class Part:
    """One sequence of a pass: the text its slot holds, how it was fed, and the tree that follows."""

    text: tuple[int, ...]
    block: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def path(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, Mapping[str, Any]]:
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    sizes: dict[str, Any] = {
        "hidden_size": heads * draw(st.integers(2, 25)),  # a multiple of the heads: transformers insists
        "intermediate_size": draw(st.integers(5, 90)),
        "vocab_size": draw(st.integers(20, 130)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_key_value_heads": kv_heads,
        "num_attention_heads": heads,
        "head_dim": draw(st.sampled_from((8, 12, 32, 50, 64, 80, 96, 128, 256))),
        "tie_word_embeddings": draw(st.booleans()),
    }
    family = draw(st.sampled_from(sorted(FAMILIES)))
    if family == "smollm3":
        sizes["no_rope_layers"] = [draw(st.integers(0, 1)) for _ in range(sizes["num_hidden_layers"])]
    if family in ("gemma2", "gemma3_text", "mistral"):
        sizes["sliding_window"] = draw(st.integers(1, 70))
    return family, sizes


@st.composite
def parts(draw: st.DrawFn) -> list[Part]:
    def one() -> Part:
        seed, length = draw(st.integers(0, 999)), draw(st.integers(0, 150))
        text = tuple(int(token) for token in np.random.default_rng(seed).integers(3, 20, length))
        count = draw(st.integers(1, 30))
        parents = tuple(draw(st.integers(-1, i - 1)) for i in range(count))
        return Part(text, draw(st.integers(1, 150)), tuple((3 + 7 * i + seed) % 17 + 3 for i in range(count)), parents)

    return [one() for _ in range(draw(st.integers(1, 3)))]


@contextmanager
def checkpoint(family: str, sizes: Mapping[str, Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        yield make_checkpoint(family, Path(place) / "model", **sizes)


def open_native(folder: Path, dtype: str, tier: str, threads: int = 2) -> NativeModel:
    spec = read_spec(json.loads((folder / "config.json").read_text()))
    return NativeModel(spec, open_weights(folder), dtype, threads=threads, tier=tier)


def feed(model: Any, slot: int, text: tuple[int, ...], block: int) -> None:
    for at in range(0, len(text), block):
        piece = text[at : at + block]
        model.forward([Rows(slot, at, piece, tuple(range(-1, len(piece) - 1)), 0)])


def together(model: Any, sequences: list[Part]) -> np.ndarray:
    """Return the logits of every row, all in one pass."""
    for slot, part in enumerate(sequences):
        feed(model, slot, part.text, part.block)
    rows = [
        Rows(slot, len(part.text), part.tokens, part.parents, len(part.tokens)) for slot, part in enumerate(sequences)
    ]
    logits: np.ndarray = model.forward(rows).logits
    return logits


@settings(max_examples=25)
@given(shapes(), parts(), st.sampled_from(TIERS))
def test_f32_is_torch(shape: tuple[str, Mapping[str, Any]], sequences: list[Part], tier: str) -> None:
    with checkpoint(*shape) as folder:
        spec = read_spec(json.loads((folder / "config.json").read_text()))
        theirs = together(TorchDecoder(spec, open_weights(folder), dtype="f32"), sequences)
        ours = together(open_native(folder, "f32", tier), sequences)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * float(np.abs(theirs).max()))


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@settings(max_examples=20)
@given(shapes(), parts(), st.sampled_from(TIERS), st.integers(0, 29))
def test_rows_have_the_bits_they_have_alone(
    dtype: str, shape: tuple[str, Mapping[str, Any]], sequences: list[Part], tier: str, chosen: int
) -> None:
    with checkpoint(*shape) as folder:
        model, alone = open_native(folder, dtype, tier), open_native(folder, dtype, tier, threads=1)
        logits = together(model, sequences)
        at = 0
        for slot, part in enumerate(sequences):
            feed(alone, 0, part.text, 7)
            for node in range(len(part.tokens)):
                path = part.path(node)
                for depth, step in enumerate(path):  # the slot holds what was written for the node before: overwrite it
                    row = Rows(0, len(part.text) + depth, (part.tokens[step],), (-1,), 1)
                    want = alone.forward([row]).logits
                np.testing.assert_array_equal(logits[at + node], want[0])
            kept = part.path(chosen % len(part.tokens))
            assert model.compact(slot, len(part.text), kept) == len(kept)
            end = len(part.text) + len(kept)
            for depth, step in enumerate(kept):
                alone.forward([Rows(0, len(part.text) + depth, (part.tokens[step],), (-1,), 0)])
            went_on = [m.forward([Rows(s, end, (5, 6), (-1, 0), 2)]).logits for m, s in ((model, slot), (alone, 0))]
            np.testing.assert_array_equal(*went_on)
            at += len(part.tokens)

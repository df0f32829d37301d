"""A sequence that fails, over the real cache: its neighbours, and its drafter, go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.lookup import Lookup
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.none import NoDrafter
from foredraft.engine.fixed_planner import FixedPlanner, FixedQuote
from foredraft.engine.loop import run
from foredraft.errors import NumericalError
from foredraft.models.checkpoint import open_weights
from foredraft.models.spec import read_spec
from foredraft.models.target import CachedTarget
from foredraft.models.torch_decoder.decoder import TorchDecoder
from tests.models.checkpoints import make_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("m"), max_position_embeddings=512)


def decoder(folder: Path) -> TorchDecoder:
    return TorchDecoder(read_spec(json.loads((folder / "config.json").read_text())), open_weights(folder), dtype="f64")


def refusing(length: int) -> Any:
    def shape(row: Any, sequence: TokenSequence, path: tuple[int, ...]) -> Any:
        if len(sequence) + len(path) >= length:
            raise NumericalError("no token is left")
        return row

    return shape


def batch(fails_at: int | None) -> list[TokenSequence]:
    """Return three texts, the second of which fails at so many tokens, or is not among them."""
    prompts = [[1, 2, 1, 2], [3, 1, 2, 3, 1], [5, 6]]
    sequences = [
        TokenSequence(list(prompt), 16, SamplingParams(0.8), Noise(7, i, coupled=True))
        for i, prompt in enumerate(prompts)
    ]
    if fails_at is None:
        del sequences[1]
    else:
        sequences[1].shaping = refusing(fails_at)
    return sequences


@pytest.mark.parametrize("fails_at", [5, 9])
@pytest.mark.parametrize("name", ["none", "lookup", "model"])
def test_a_failure_harms_neither_neighbours_nor_the_cache(folder: Path, name: str, fails_at: int) -> None:
    """At the first pass or in mid-text, in a guess or in the text; its slot serves again afterwards."""
    target = CachedTarget(decoder(folder))
    drafters: dict[str, Drafter] = {"none": NoDrafter(), "lookup": Lookup()}
    if name == "model":
        drafters[name] = ModelDrafter(CachedTarget(decoder(folder)), target.vocabulary)

    def generate(sequences: list[TokenSequence]) -> list[TokenSequence]:
        for _ in run(sequences, target, drafters[name], FixedPlanner(3)):
            pass
        return sequences

    wanted = [sequence.tokens for sequence in generate(batch(None))]
    for _ in range(2):
        first, failed, last = generate(batch(fails_at))
        assert [first.tokens, last.tokens] == wanted
        assert (failed.finish_reason, str(failed.error)) == ("error", "no token is left")
        assert fails_at - 4 < len(failed) <= fails_at
    again = batch(fails_at)[1:2]
    again[0].shaping = None
    assert generate(again)[0].finish_reason == "length"


def test_a_drafter_without_a_law_guesses_no_further(folder: Path) -> None:
    """The target may know better: here nothing is ever left on a path of two guesses, and the text never goes there."""
    model = CachedTarget(decoder(folder))

    def shape(row: Any, sequence: TokenSequence, path: tuple[int, ...]) -> Any:
        if len(path) == 2:
            raise NumericalError("no token is left")
        return row

    sequences = [TokenSequence([1, 2], 9, shaping=shape), TokenSequence([3, 4], 9)]
    drafter = ModelDrafter(model, model.vocabulary)
    for sequence in sequences:
        drafter.begin(sequence)
    drafts = drafter.propose(sequences, [FixedQuote(4)] * 2, [Noise(0)] * 2)
    assert [len(draft) for draft in drafts] == [2, 4]

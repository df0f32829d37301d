"""Self-speculation: the text stays the target's own, the cache too, and what cannot be drafted with is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

import foredraft
from foredraft import Draft, LanguageModel
from foredraft.core.noise import Noise
from foredraft.core.round import run_round
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.first import FirstOf
from foredraft.drafters.model import ModelDrafter
from foredraft.engine.fixed_planner import FixedPlanner, FixedQuote
from foredraft.errors import DrafterError, ModelError, StorageError
from foredraft.models.folder import ModelFolder
from foredraft.models.model import Rows
from foredraft.models.target import CachedTarget
from foredraft.models.views.layer_choice import (
    DRAFT_TOKENS,
    UNMEASURED,
    choice_file,
    find_choice,
    read_choice,
    write_choice,
)
from foredraft.models.views.sub_layers import LayersView, default_sub_layers, early_exit
from tests.drafters.layers import CHOICE, SOME, Bushes
from tests.models.checkpoints import FAMILIES, make_checkpoint
from tests.models.decoders import TEXT, TREE, broken, chain, open_decoder
from tests.native.models import close, open_native
from tests.tiny import make_chat_model

PROMPTS = ["abab abab ab", "x", "a longer prompt, so that the batch is ragged"]
MACHINES: list[Any] = [
    pytest.param({"dtype": "bf16"}, id="native bf16"),
    pytest.param({"dtype": "f32"}, id="native f32"),
    pytest.param({"dtype": "f64", "native_tier": "off"}, id="torch f64", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("layers") / "tiny")


@pytest.fixture(scope="module", params=MACHINES)
def lm(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return foredraft.load(tiny, drafter="none", threads=1, cache=tmp_path_factory.mktemp("cache"), **request.param)


@pytest.fixture
def target(tiny: Path) -> CachedTarget:
    return CachedTarget(open_decoder(tiny, dtype="f64"))


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 5}, {"temperature": 1.3, "seed": 1, "n": 2}])
def test_the_text_is_the_targets(lm: LanguageModel, options: Any) -> None:
    length = 12 if lm.loaded.dtype == "f64" else 24  # a pass of torch costs as much as a dozen
    plain = [lm.generate(prompt, max_tokens=length, **options) for prompt in PROMPTS]
    joined = FirstOf([Bushes(), ModelDrafter(LayersView(lm.loaded.target, SOME), lm.loaded.target.vocabulary)])
    whole = ModelDrafter(LayersView(lm.loaded.target, range(6)), lm.loaded.target.vocabulary, name="whole")
    for drafter in ("layers", "layers:1", whole, "lookup+layers", joined):
        for draft_tokens in (1, 4):
            asked = {"max_tokens": length, "drafter": drafter, "draft_tokens": draft_tokens, **options}
            alone = [lm.generate(prompt, **asked) for prompt in PROMPTS]
            for found in (alone, lm.generate(PROMPTS, **asked)):
                for ours, theirs in zip(found, plain, strict=True):
                    assert [c.token_ids for c in ours.choices] == [c.token_ids for c in theirs.choices]
            assert sum(result.speculative.drafted for result in alone) > 0
            if drafter is whole:  # all of them: the target's own guesses, to the bit in the native pass
                assert alone[0].speculative.acceptance_rate == 1.0


def test_a_draft_leaves_the_cache_as_it_was(target: CachedTarget, tiny: Path) -> None:
    """Bit for bit at every committed position, and in what the slot is believed to hold; so after verification too."""
    sequence = TokenSequence([*b"hello hello", 3], limit=60, prompt_length=1)
    drafter = ModelDrafter(LayersView(target, SOME), target.vocabulary)
    target.begin(sequence)
    run_round([sequence], target, drafter, FixedPlanner(0))
    for _ in range(6):
        slot = target.slots.slot(sequence)
        assert slot is not None
        cache = target.model._slots[slot]  # type: ignore[attr-defined]
        before = cache.clone()
        held = list(target.slots.held(slot))
        drafts = drafter.propose([sequence], [FixedQuote(4)], [Noise(0)])
        assert len(drafts[0]) == 4
        committed = len(sequence) - 1
        assert (cache[:, :, :, :committed] == before[:, :, :, :committed]).all()
        assert not (cache == before).all()
        assert target.slots.held(slot) == held == sequence.tokens[:-1]
        run_round([sequence], target, drafter, FixedPlanner(4))
    assert len(sequence) > 14
    again = (
        CachedTarget(open_decoder(tiny, dtype="f64"))
        .score([TokenSequence(list(sequence.tokens), limit=60)], [Draft()])
        .logits
    )
    np.testing.assert_allclose(target.score([sequence], [Draft()]).logits, again, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_the_native_pass_scores_the_same_bits_after_a_draft(tiny: Path, dtype: str) -> None:
    model = open_native(tiny, dtype, threads=1)
    guesses = Draft.chain((5, 6, 7, 8, 9))
    scores = []
    for drafting in (False, True):
        target, sequence = CachedTarget(model), TokenSequence([*range(40)], limit=99)
        model.release(0)
        target.begin(sequence)
        target.score([sequence], [Draft()])
        target.rewind(sequence, len(sequence) - 1)
        if drafting:
            drafter = ModelDrafter(LayersView(target, SOME), target.vocabulary)
            assert len(drafter.propose([sequence], [FixedQuote(7)], [Noise(0)])[0]) == 7
        scores.append(target.score([sequence], [guesses], (0, 1, 2)))
    np.testing.assert_array_equal(scores[0].logits, scores[1].logits)
    for layer in range(3):
        np.testing.assert_array_equal(scores[0].hidden[layer], scores[1].hidden[layer])


def test_nothing_is_drafted_where_the_target_lacks_more_than_the_last_token(target: CachedTarget) -> None:
    sequence, stranger = TokenSequence([*b"hello"], limit=60), TokenSequence([1, 2, 3], limit=60)
    view = LayersView(target, SOME)
    drafter = ModelDrafter(view, target.vocabulary)

    def drafted(sequence: TokenSequence) -> int:
        return len(drafter.propose([sequence], [FixedQuote(3)], [Noise(0)])[0])

    assert drafted(stranger) == 0
    target.begin(sequence)
    drafter.begin(sequence)
    assert drafted(sequence) == 0  # the prompt was not read
    run_round([sequence], target, drafter, FixedPlanner(0))
    assert drafted(sequence) == 3
    target.score([sequence], [Draft()])
    assert drafted(sequence) == 0  # a pass that was never kept: the slot is believed to hold the last token
    target.rewind(sequence, len(sequence) - 1)
    assert drafted(sequence) == 3
    target.rewind(sequence, 2)
    assert drafted(sequence) == 0
    with pytest.raises(DrafterError, match="does not hold this sequence"):
        view.extend([(sequence, sequence.tokens)])


def test_beside_a_sequence_that_is_not_ready_others_draft(target: CachedTarget) -> None:
    sequences = [TokenSequence([*b"hello"], limit=60), TokenSequence([*b"other"], limit=60)]
    drafter = ModelDrafter(LayersView(target, SOME), target.vocabulary)
    for sequence in sequences:
        target.begin(sequence)
    run_round(sequences, target, drafter, FixedPlanner(0))
    target.rewind(sequences[0], 1)
    drafts = drafter.propose(sequences, [FixedQuote(2)] * 2, [Noise(0)] * 2)
    assert [len(draft) for draft in drafts] == [0, 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_of_a_pass_in_torch_are_the_native_ones(family: str, tmp_path: Path) -> None:
    folder = make_checkpoint(family, tmp_path)
    ours, theirs = open_decoder(folder, dtype="f32"), open_native(folder, "f32", threads=1)
    for rows in ([chain(TEXT, 0, 20, 7)], [Rows(0, 20, (5, 9, 11, 5, 40, 41), TREE, 6)]):
        whole = ours.forward(rows, taps=(-1, 0, 1))
        for parts in (SOME, (3,), (), range(4)):
            a, b = (model.run(rows, (-1, 1), sub_layers=parts) for model in (ours, theirs))
            close(a.logits, b.logits)
            close(a.hidden[1], b.hidden[1])
            ours.forward(rows)  # what was written by a part is written anew
            theirs.forward(rows)
    last = ours.run([rows[0]], hidden=whole.hidden[0], sub_layers=range(2, 2 * ours.layers))
    np.testing.assert_array_equal(last.logits, whole.logits)


def test_sub_layers_that_are_not_there(tiny: Path) -> None:
    model = open_decoder(tiny, dtype="f32")
    for wrong, says in (((0, 0), "increasing"), ((6,), "no such sub-layer"), ((-1,), "no such sub-layer")):
        with pytest.raises(ModelError, match=says):
            model.run([chain(TEXT, 0, 2)], sub_layers=wrong)


def test_what_a_view_refuses(target: CachedTarget) -> None:
    with pytest.raises(DrafterError, match="skips every sub-layer"):
        LayersView(target, ())
    with pytest.raises(DrafterError, match="there is no sub-layer 6: a model of 3 layers has 0 to 5"):
        LayersView(target, (0, 6))
    with pytest.raises(DrafterError, match="there is no sub-layer -1"):
        LayersView(target, (-1, 2))


def test_transformers_name_for_an_early_exit(lm: LanguageModel) -> None:
    exited = lm.generate("abc", max_tokens=12, assistant_early_exit=2, num_assistant_tokens=3)
    assert exited.drafter == "layers"
    assert exited.speculative == lm.generate("abc", max_tokens=12, drafter="layers:2", draft_tokens=3).speculative


@pytest.mark.parametrize("machine", MACHINES)
def test_a_checkpoint_that_was_trained_to_exit_early(machine: Any, tmp_path: Path) -> None:
    """Its later layers hardly change what the first two say (as in LayerSkip), so layers:2 is nearly always right."""
    folder = make_chat_model(tmp_path / "exits", num_hidden_layers=6)

    def quieten(tensors: dict[str, Any]) -> None:
        for name in tensors:
            late = any(f"layers.{layer}." in name for layer in range(2, 6))
            if late and ("o_proj" in name or "down_proj" in name):
                tensors[name] *= 1e-5

    broken(folder, quieten)
    lm = foredraft.load(folder, drafter="none", threads=1, cache=tmp_path / "cache", **machine)
    drafted = accepted = 0
    for prompt in PROMPTS:
        plain = lm.generate(prompt, max_tokens=32)
        exited = lm.generate(prompt, max_tokens=32, drafter="layers:2", draft_tokens=3)
        assert exited.token_ids == plain.token_ids
        drafted += exited.speculative.drafted
        accepted += exited.speculative.accepted
    assert drafted > 20
    assert accepted >= 0.95 * drafted


def test_an_exit_deeper_than_the_model(lm: LanguageModel) -> None:
    for depth in ("0", "4", "999999999"):
        with pytest.raises(DrafterError, match=f"exit after layer {depth} is not in a model of 3 layers: name 1 to 2"):
            lm.generate("abc", drafter=f"layers:{depth}")
    with pytest.raises(
        DrafterError, match=r"after layer 3 of 3 is the whole model, which gains nothing.*: name 1 to 2"
    ):
        lm.generate("abc", assistant_early_exit=3)
    with pytest.raises(DrafterError, match="a model of one layer has no early exit"):
        early_exit(1, 1)


@pytest.mark.parametrize("which", ["-1", "3.5", "1e1", "nan", "\u0663", "1_0", "9" * 5000])
def test_a_depth_that_is_no_whole_number(lm: LanguageModel, which: str) -> None:
    with pytest.raises(DrafterError, match=r"is neither: N is a whole number of layers, as in layers:8, or a FILE$"):
        lm.generate("abc", drafter=f"layers:{which}")


def test_a_depth_that_is_missing(lm: LanguageModel) -> None:
    for drafter in ("layers:", "layers:+3", "suffix+layers:"):
        with pytest.raises(DrafterError, match=r"^layers: needs N, a whole number"):
            lm.generate("abc", drafter=drafter)


def test_a_default_that_nobody_measured_is_said(lm: LanguageModel) -> None:
    for drafter in ("layers", "suffix+layers"):
        notices = lm.generate("abc", max_tokens=4, drafter=drafter).notices
        assert notices == [UNMEASURED]
    assert lm.generate("abc", max_tokens=4, drafter="layers:1").notices == []
    assert lm.generate("abc", max_tokens=4).notices == []


def test_the_generic_path_has_no_layers_to_leave_out(tiny: Path) -> None:
    module = AutoModelForCausalLM.from_pretrained(tiny).eval()
    with pytest.raises(DrafterError, match="layers is not available for a model that runs through transformers"):
        foredraft.load(module, drafter="layers")


@pytest.mark.parametrize("layers", [1, 2, 3, 6, 30, 61])
def test_the_default_leaves_out_every_second_layer_of_the_middle_third(layers: int) -> None:
    kept = default_sub_layers(layers)
    out = sorted({part // 2 for part in range(2 * layers) if part not in kept})
    assert kept
    assert out
    assert all(b - a == 2 for a, b in pairwise(out))
    if layers >= 3:
        assert layers // 3 == out[0]
        assert out[-1] < 2 * layers // 3
        assert all({2 * layer, 2 * layer + 1}.isdisjoint(kept) for layer in out)
        assert early_exit(layers - 1, layers) == tuple(range(2 * layers - 2))


def test_a_choice_is_found_beside_the_model(lm: LanguageModel, tiny: Path) -> None:
    identity = ModelFolder(tiny).identity
    assert lm.loaded.identity == identity
    path = choice_file(lm.loaded.cache, identity)
    assert find_choice("", lm.loaded.cache, "tiny", identity, 3) == (default_sub_layers(3), DRAFT_TOKENS, UNMEASURED)
    write_choice(path, replace(CHOICE, identity=identity))
    try:
        assert find_choice("", lm.loaded.cache, "tiny", identity, 3) == (SOME, 2, None)
        assert find_choice(str(path), Path("/nowhere"), "tiny", identity, 3) == (SOME, 2, None)
        assert read_choice(path) == replace(CHOICE, identity=identity)
        result = lm.generate("abab", max_tokens=20, drafter="layers", draft_temperature=0.1)
        assert result.drafter == "layers"
        assert result.notices == []
        assert result.speculative.drafted <= 2 * result.speculative.rounds
    finally:
        path.unlink()


def test_a_choice_for_another_model(lm: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    write_choice(path, CHOICE)
    both = rf"was made for tiny \(0\), not for {lm.loaded.name} \({lm.loaded.identity}\)"
    with pytest.raises(DrafterError, match=both):
        lm.generate("abc", drafter=f"layers:{path}")
    stale = choice_file(tmp_path, "1")
    write_choice(stale, CHOICE)
    with pytest.raises(
        DrafterError, match=r"made for tiny \(0\), not for tiny \(1\): foredraft train layers makes one"
    ):
        find_choice("", tmp_path, "tiny", "1", 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("{", "is not JSON"),
        ("[" * 200_000, "is not JSON, so it is no choice of layers: it is nested too deeply"),
        ("[" * 300 + "]" * 300, "it is nested more than 200 levels deep"),
        (" " * (1 << 20) + "{}", "no choice of layers: it has more than 1048576 bytes"),
        ("\udcff", "no choice of layers: it is not UTF-8 text"),
        ('{"format": 2, "format": 2}', "the key 'format' is there twice"),
        ("[]", "no choice of layers of format 2"),
        ({"format": 1}, "no choice of layers of format 2"),
        ({"format": True}, "no choice of layers of format 2"),
        ({"cost": float("nan")}, "NaN is no JSON number"),
        ({"cost": float("-inf")}, "-Infinity is no JSON number"),
        ({"cost": True}, "its cost is missing or cannot be"),
        ({"cost": 10**400}, "its cost is missing"),
        ({"measured_tokens_per_s": 0}, "its measured_tokens_per_s is missing"),
        ({"agreement": 1.5}, "its agreement is missing"),
        ({"draft_tokens": 65}, "its draft_tokens is missing"),
        ({"draft_tokens": True}, "its draft_tokens is missing"),
        ({"sub_layers": [0, 1, 1]}, "its sub_layers is missing"),
        ({"sub_layers": [0, True]}, "its sub_layers is missing"),
        ({"sub_layers": list(range(6))}, "leaves nothing out: the whole model gains nothing"),
        ({"sub_layers": []}, "skips every sub-layer"),
        ({"sub_layers": [6]}, "no sub-layer 6"),
        ({"sub_layers": ["0"]}, "its sub_layers is missing or cannot be"),
        ({"draft_tokens": 0}, "its draft_tokens is missing"),
        ({"agreement": None}, "its agreement is missing"),
        ({"layers": 4}, "is damaged: it says 4 layers, and tiny has 3"),
    ],
)
def test_a_file_that_is_no_choice(change: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    write_choice(path, CHOICE)
    text = change if isinstance(change, str) else json.dumps({**json.loads(path.read_text()), **change})
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DrafterError, match=says):
        find_choice(str(path), tmp_path, "tiny", "0", 3)


def test_a_choice_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    write_choice(path, CHOICE)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_choice(path) == CHOICE


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(DrafterError, match=f"{path} is no choice of layers: it is not a regular file"):
            find_choice(str(path), tmp_path, "tiny", "0", 3)


def test_a_choice_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match=r"there is no file .*absent\.json: foredraft train layers makes one"):
        find_choice(str(tmp_path / "absent.json"), tmp_path, "tiny", "0", 3)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        write_choice(tmp_path / "file" / "choice.json", CHOICE)
    with pytest.raises(StorageError, match="cannot be read"):
        read_choice(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_it_is_not_chosen_unless_asked_for(lm: LanguageModel) -> None:
    assert CHOICE.pays
    for few in ({"measured_from": 1.03}, {"measured_tokens": 499}, {"measured_from": 0.5, "measured_to": 1.1}):
        assert not replace(CHOICE, **few).pays  # type: ignore[arg-type]
        assert not replace(CHOICE, **few).conclusive  # type: ignore[arg-type]
    slow = replace(CHOICE, measured_speedup=0.9, measured_from=0.8, measured_to=1.0)
    assert slow.conclusive
    assert not slow.pays
    assert lm.generate([1, 2, 3], max_tokens=2, drafter="auto").drafter == "suffix"

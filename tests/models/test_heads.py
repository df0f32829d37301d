"""Heads against their equations in float64, in torch and in the library; and files that are not what they say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from foredraft.core.sampling import SamplingParams
from foredraft.errors import DrafterError, ModelError, VocabularyMismatch, WeightsError
from foredraft.models.checkpoint import open_weights
from foredraft.models.heads import file as heads_file_module
from foredraft.models.heads import modules as heads_modules
from foredraft.models.heads.file import find_heads, heads_file, read_heads, write_heads
from foredraft.models.heads.layer import block_spec, block_weights, head_rows
from foredraft.models.heads.modules import MedusaHeads, RecurrentHeads
from foredraft.models.heads.native import NativeHeads
from foredraft.models.heads.open import open_heads
from foredraft.models.identity import weights_digest
from foredraft.models.model import Rows
from foredraft.models.native.model import NativeModel
from foredraft.models.native.sampling import NativeNoise
from foredraft.models.spec import read_spec
from tests.models.checkpoints import make_checkpoint
from tests.models.decoders import TEXT, open_decoder
from tests.models.heads import make_heads, random_heads, spec_of_heads
from tests.models.heads_by_hand import Equations, answers
from tests.native.models import open_native, spec_of

CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "two taps": ("llama", {}),
        "one tap as it is": ("llama", {"taps": (1,), "fused": False, "feeds": "residual"}),
        "a tied target": ("qwen2", {"tokens": (0, 3, 17, 18, 19, 95)}),
        "scaled embeddings, capped logits": ("gemma2", {"feeds": "residual", "head": True}),
        "divided logits": ("granite", {"taps": (0, 1, 2), "activation": "gelu_tanh", "kv_heads": 1}),
        "odd widths": ("llama", {"mlp": 37, "heads": 3, "kv_heads": 3, "head_dim": 6}),
    }
)
ROWS, STEPS = 21, 3


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    family, given = CASES[request.param]
    folder = make_checkpoint(family, tmp_path_factory.mktemp("target"))
    return folder, make_heads(folder, folder / "heads" / "h.safetensors", **given)


def states_of(path: Path, rows: int = ROWS) -> list[Any]:
    spec, _ = read_heads(path)
    rng = np.random.default_rng(7)
    return [rng.normal(size=(rows, spec.hidden)).astype(np.float32) for _ in spec.taps]


def opened(folder: Path, path: Path, model: Any) -> Any:
    return open_heads(str(path), model, folder, folder / "cache", "tiny")


def portable(heads: NativeHeads) -> RecurrentHeads:
    """The same heads over the native pass without the library's chain."""
    return RecurrentHeads(heads.spec, heads._weights, heads.target, heads.layer)


@pytest.mark.parametrize(
    ("dtype", "native", "close"), [("f64", False, 1e-5), ("f32", False, 2e-5), ("f32", True, 2e-5), ("bf16", True, 0.1)]
)
def test_the_equations(case: tuple[Path, Path], dtype: str, native: bool, close: float) -> None:
    folder, path = case
    model = open_native(folder, dtype, threads=2) if native else open_decoder(folder, dtype=dtype)
    states, tokens, drafted = states_of(path), list(TEXT[:ROWS]), [5, 90, 11][:STEPS]
    heads = opened(folder, path, model)
    assert type(heads) is (NativeHeads if native else RecurrentHeads)
    wanted = Equations(folder, path).chain([s.astype(float) for s in states], tokens, drafted)
    for ours in (heads, portable(heads)) if native else (heads,):
        for (state, logits), (their_state, their_logits) in zip(
            answers(ours, states, tokens, drafted), wanted, strict=True
        ):
            scale = np.abs(their_state).max()
            np.testing.assert_allclose(state, their_state, rtol=0, atol=close * scale)
            np.testing.assert_allclose(logits, their_logits, rtol=0, atol=close * max(1, np.abs(their_logits).max()))


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(1.2), SamplingParams(1.0, min_p=0.01), SamplingParams(0.7, top_p=0.9, top_k=20)],
)
@pytest.mark.parametrize("coupled", [True, False])
def test_a_chain_is_its_steps(case: tuple[Path, Path], dtype: str, params: SamplingParams, coupled: bool) -> None:
    """To the bit: read, choose, step, choose."""
    from foredraft.models.native.sampling import native_law
    from foredraft.planning.acceptance import lead

    folder, path = case
    heads = opened(folder, path, open_native(folder, dtype, threads=2))
    states, tokens, noise = states_of(path), list(TEXT[:ROWS]), NativeNoise(9, 0, ROWS + 1, coupled)
    chain = heads.chain(0, 0, states, tokens, [0.0] * 4, params, noise)
    assert len(chain.tokens) == 4
    assert not chain.broken
    state, logits = heads.read(1, 0, states, tokens)
    so_far = 1.0
    for depth in range(4):
        row = np.full(heads.width, -np.inf, np.float32)
        row[heads.vocabulary] = logits
        law = native_law(row, params)
        token = noise.guess(law, depth, depth)
        assert token == chain.tokens[depth]
        if chain.laws is not None:
            np.testing.assert_array_equal(chain.laws[depth].ids, law.ids)
            np.testing.assert_allclose(chain.laws[depth].probabilities, law.probabilities, rtol=1e-12)
            assert chain.laws[depth].fits(heads.width)
        wide = np.exp(logits.astype(float) - logits.max())
        drawn = lead(law, noise, depth) if coupled and not params.greedy else law[token]
        so_far *= 1 / wide.sum() if params.greedy else drawn
        np.testing.assert_allclose(chain.confidence[depth], so_far, rtol=1e-5)
        state, logits = heads.step(1, ROWS + depth, state, token)
    assert (chain.laws is None) == params.greedy
    for floor in (chain.confidence[1] * 1.001, chain.confidence[1]):
        short = heads.chain(0, 0, states, tokens, [0.0, 0.0, floor, 0.0], params, noise)
        assert short.tokens == chain.tokens[: 2 if floor > chain.confidence[1] else 4]
    assert heads.chain(0, 0, states, tokens, [2.0], params, noise).tokens == []


def test_bits_do_not_hang_on_rows_or_threads(case: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of several blocks is read alike in one pass, row by row, and by any number of threads."""
    folder, path = case
    states, tokens = states_of(path, 150), list((TEXT * 9)[:150])
    found = []
    for threads in (1, 2):
        heads = opened(folder, path, open_native(folder, "bf16", threads=threads))
        found.append(heads.read(0, 0, states, tokens))
        for at in range(150):
            last = heads.read(1, at, [s[at : at + 1] for s in states], tokens[at : at + 1])
        found.append(last)
    for state, logits in found[1:]:
        np.testing.assert_array_equal(state, found[0][0])
        np.testing.assert_array_equal(logits, found[0][1])
    monkeypatch.setattr(heads_modules, "ROW_BLOCK", 40)
    slow = opened(folder, path, open_decoder(folder, dtype="f64"))
    np.testing.assert_allclose(slow.read(0, 0, states, tokens)[1], found[0][1], rtol=0, atol=0.1 * 30)


def test_reading_leaves_the_target_alone_and_takes_turns_with_it(case: tuple[Path, Path]) -> None:
    folder, path = case
    model = open_native(folder, "f32", threads=2)
    heads = opened(folder, path, model)
    states, tokens = states_of(path), list(TEXT[:ROWS])
    chain = tuple(range(-1, ROWS - 1))
    model.forward([Rows(0, 0, TEXT[:ROWS], chain, 1)])

    def scored(_: int) -> Any:
        return model.forward([Rows(0, ROWS, (5,), (-1,), 1)]).logits

    def drafted(slot: int) -> Any:
        return heads.chain(slot, 0, states, tokens, [0.0] * 4, SamplingParams(), NativeNoise(0)).tokens

    before, guesses = scored(0), drafted(0)
    with ThreadPoolExecutor(4) as pool:
        both = [(pool.submit(scored, i), pool.submit(drafted, i % 4)) for i in range(40)]
        for score, guess in both:
            np.testing.assert_array_equal(score.result(), before)
            assert guess.result() == guesses
    for slot in range(4):
        heads.release(slot)
    assert heads.layer.slot_bytes() == 0


def test_nonsense_is_refused_by_the_library(tmp_path: Path) -> None:
    folder = make_checkpoint("llama", tmp_path)
    path = make_heads(folder, tmp_path / "h.safetensors")
    model = open_native(folder, "f32", threads=1)
    heads = opened(folder, path, model)
    states = states_of(path, 2)
    for slot, start, tokens in ((0, 0, [5, 97]), (0, 0, [-1, 5]), (0, 1, [5, 6]), (-1, 0, [5, 6]), (0, -1, [5, 6])):
        with pytest.raises(ModelError):
            heads.read(slot, start, states, tokens)
    with pytest.raises(ValueError, match="a row of features"):
        heads.read(0, 0, states[:1], [5, 6])
    with pytest.raises(ModelError, match="beyond the model's context"):
        heads.read(0, 0, states_of(path, 257), [5] * 257)
    heads.read(0, 0, states, [5, 6])
    stranger = open_native(folder, "f32", threads=1)
    with pytest.raises(ModelError, match="not those of this model"):
        NativeHeads(heads.spec, heads._weights, stranger, heads.layer)


def test_medusa(tmp_path: Path) -> None:
    folder = make_checkpoint("gemma2", tmp_path)
    path = make_heads(folder, tmp_path / "h.safetensors", kind="medusa")
    eq = Equations(folder, path)
    state = [s[-1:] for s in states_of(path)]
    f = eq.fused([s.astype(float) for s in state])
    wanted = []
    for i in (1, 2, 3):
        z = f @ eq.w[f"medusa.{i}.weight"].T
        wanted.append(eq.logits(eq.norm(z / (1 + np.exp(-z)) + f, eq.w["model.norm.weight"]))[0])
    for model in (open_native(folder, "f32", threads=1), open_decoder(folder, dtype="f32")):
        heads = opened(folder, path, model)
        assert isinstance(heads, MedusaHeads)
        np.testing.assert_allclose(heads.rows(state), wanted, rtol=0, atol=1e-4)


def rewritten(path: Path, change: Callable[[dict[str, Any], Any], None], to: Path) -> Path:
    """Write a file of heads again as ``change`` leaves its tensors and its description."""
    tensors = load_file(path)
    header = json.loads(path.read_bytes()[8:][: int.from_bytes(path.read_bytes()[:8], "little")])
    described = json.loads(header["__metadata__"]["foredraft"])
    change(tensors, described)
    save_file(tensors, to, metadata={"foredraft": json.dumps(described)})
    return to


def put(name: str, value: Any) -> Callable[[Any, Any], None]:
    return lambda tensors, described: described.update({name: value})


def tensor(name: str, change: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    return lambda tensors, described: tensors.update({name: change(tensors[name])})


def poke(name: str, value: float) -> Callable[[Any, Any], None]:
    return lambda tensors, described: tensors[name].view(-1)[-1:].fill_(value)


FAULTS: Mapping[str, tuple[type[Exception], str, Callable[[Any, Any], None]]] = MappingProxyType(
    {
        "format": (DrafterError, "no heads of format 1", put("format", 2)),
        "true is no format": (DrafterError, "no heads of format 1", put("format", True)),
        "kind": (DrafterError, "unknown kind, eagle", put("kind", "eagle")),
        "taps": (DrafterError, "taps is missing or of another kind", put("taps", [2, 0])),
        "no taps": (DrafterError, "taps is missing", put("taps", [])),
        "hidden": (DrafterError, "hidden is missing", put("hidden", 0)),
        "eps": (DrafterError, "eps is missing", put("eps", -1.0)),
        "feeds": (DrafterError, "feeds is missing", put("feeds", "both")),
        "activation": (DrafterError, "activation is missing", put("activation", "relu")),
        "target": (DrafterError, "target is missing", put("target", None)),
        "heads": (DrafterError, "4 attention heads of 8 cannot share 3", put("kv_heads", 3)),
        "a shape": (WeightsError, "enter.weight has the shape .* implies", tensor("enter.weight", lambda x: x[1:])),
        "a width": (WeightsError, "mlp.down_proj.weight has the shape|gate_proj", put("mlp", 41)),
        "missing": (WeightsError, "no tensor fuse.norms", lambda tensors, _: tensors.pop("fuse.norms")),
        "unexpected": (WeightsError, "no use for extra", lambda tensors, _: tensors.update(extra=torch.zeros(1))),
        "a wide matrix": (WeightsError, "enter.weight is F32", tensor("enter.weight", lambda x: x.float())),
        "a long vocabulary": (WeightsError, "vocabulary is I64", tensor("vocabulary", lambda x: x.long())),
        "nan": (WeightsError, "fuse.weight holds NaN", poke("fuse.weight", float("nan"))),
        "infinite": (WeightsError, "model.norm.weight holds NaN or inf", poke("model.norm.weight", float("-inf"))),
        "twice": (WeightsError, "increasing tokens below 97", tensor("vocabulary", lambda x: x.clamp(max=90))),
        "beyond": (WeightsError, "increasing tokens below 97", poke("vocabulary", 97)),
        "below": (WeightsError, "increasing tokens", lambda tensors, _: tensors["vocabulary"][:1].fill_(-1)),
        "empty": (WeightsError, "increasing tokens", tensor("vocabulary", lambda x: x[:0])),
    }
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = make_checkpoint("llama", tmp_path_factory.mktemp("target"))
    return folder, make_heads(folder, folder / "heads" / "h.safetensors")


@pytest.mark.parametrize("fault", FAULTS)
def test_files_that_are_not_what_they_say(whole: tuple[Path, Path], tmp_path: Path, fault: str) -> None:
    kind, says, change = FAULTS[fault]
    with pytest.raises(kind, match=says):
        read_heads(rewritten(whole[1], change, tmp_path / "broken.safetensors"))
    read_heads(rewritten(whole[1], lambda tensors, described: None, tmp_path / "fine.safetensors"))


def test_files_that_are_none(whole: tuple[Path, Path], tmp_path: Path) -> None:
    content = whole[1].read_bytes()
    path = tmp_path / "h.safetensors"
    with pytest.raises(DrafterError, match="foredraft train heads"):
        read_heads(path)
    for cut in (0, 4, 50, 400, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(WeightsError, match=r"(truncated|damaged).*, train the heads or copy the file again$"):
            read_heads(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(DrafterError, match="no heads of format 1"):
        read_heads(path)
    for text in ("", "[]", "{", "[" * 100_000):
        save_file({"a": torch.zeros(1)}, path, metadata={"foredraft": text})
        with pytest.raises(DrafterError, match="no heads of format 1"):
            read_heads(path)


def test_what_is_written_is_read(whole: tuple[Path, Path], tmp_path: Path) -> None:
    spec = spec_of_heads(whole[0], provenance={"tokens": 3})
    tensors = random_heads(spec, range(5))
    path = tmp_path / "new" / "h.safetensors"
    write_heads(path, spec, tensors)
    read, weights = read_heads(path)
    assert read == spec
    assert set(weights.names()) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(weights.raw(name), array)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with pytest.raises(WeightsError, match="holds NaN"):
        write_heads(path, spec, {**tensors, "enter.hidden_norm": np.full(32, np.nan, np.float32)})
    assert read_heads(path)[0] == spec


def test_heads_of_another_target(whole: tuple[Path, Path], tmp_path: Path) -> None:
    folder, path = whole
    model = open_native(folder, "f32", threads=1)
    own = spec_of_heads(folder)
    for given, kind, says in (
        ({"vocabulary": 96}, VocabularyMismatch, "tiny with 96 tokens, and tiny has 97"),
        ({"digest": "0" * 16}, DrafterError, rf"\({'0' * 16}\), not for tiny \({own.digest}\)"),
        ({"taps": (0, 3)}, DrafterError, "layer 3, which tiny has not"),
        ({"hidden": 16}, DrafterError, "16 features"),
    ):
        other = make_heads(folder, tmp_path / "other.safetensors", tokens=range(9), **given)
        with pytest.raises(kind, match=says):
            opened(folder, other, model)
    with pytest.raises(DrafterError, match="transformers' own module"):
        open_heads(str(path), object(), folder, tmp_path, "tiny")  # type: ignore[arg-type]
    with pytest.raises(DrafterError, match="transformers' own module"):
        open_heads(str(path), model, None, tmp_path, "tiny")


def test_where_heads_are_found(whole: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, path = whole
    digest = spec_of_heads(folder).digest
    monkeypatch.setattr(heads_file_module, "PACKAGED", tmp_path / "packaged")
    with pytest.raises(DrafterError, match="there are no heads for tiny: foredraft train heads makes them"):
        find_heads("", tmp_path, digest, "tiny")
    make_heads(folder, tmp_path / "packaged" / "a.safetensors", digest="0" * 16)
    with pytest.raises(DrafterError, match="there are no heads"):
        find_heads("", tmp_path, digest, "tiny")
    assert find_heads("", tmp_path, "0" * 16, "").name == "a.safetensors"
    ours = make_heads(folder, tmp_path / "packaged" / "b.safetensors")
    assert find_heads("", tmp_path, digest, "tiny") == ours
    kept = heads_file(tmp_path, digest)
    kept.parent.mkdir()
    kept.write_bytes(path.read_bytes())
    assert find_heads("", tmp_path, digest, "tiny") == kept
    assert find_heads(str(path), tmp_path, digest, "tiny") == find_heads(str(path.parent), tmp_path, digest, "") == path
    (tmp_path / "two").mkdir()
    for count, says in ((0, "no files"), (2, "2 files")):
        for i in range(count):
            (tmp_path / "two" / f"{i}.safetensors").touch()
        with pytest.raises(DrafterError, match=says):
            find_heads(str(tmp_path / "two"), tmp_path, digest, "tiny")


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_a_digest_is_of_the_numbers(tmp_path: Path, family: str) -> None:
    """The same in bfloat16 and in wider copies of it, with or without what a decoder has no use for."""
    folder = make_checkpoint(family, tmp_path / "target")
    spec = read_spec(json.loads((folder / "config.json").read_text()))
    saved = {name: value.bfloat16() for name, value in load_file(folder / "model.safetensors").items()}

    def digest(tensors: Mapping[str, Any]) -> str:
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
        return weights_digest(open_weights(folder), spec)

    wanted = digest(saved)
    for dtype in (torch.float32, torch.float64):
        assert digest({name: value.to(dtype) for name, value in saved.items()}) == wanted
    assert digest({**saved, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}) == wanted
    if spec.tied:
        assert digest({**saved, "lm_head.weight": torch.ones(4)}) == wanted
    for name in saved:
        if spec.composite and not name.startswith("language_model."):
            continue
        changed = saved[name].clone()
        changed.view(-1)[0] += 1
        assert digest({**saved, name: changed}) != wanted
    with pytest.raises(WeightsError, match="only 16, 32 and 64 bit floats"):
        digest({name: value.to(torch.int32) for name, value in saved.items()})


def test_a_blocks_own_weights(whole: tuple[Path, Path]) -> None:
    """Its pass over hidden rows is an ordinary decoder's, with or without a target beside it."""
    folder, path = whole
    spec, weights = read_heads(path)
    head, _ = head_rows(weights, open_weights(folder), spec_of(folder))
    tensors = block_weights(weights, head)
    alone = NativeModel(block_spec(spec, spec_of(folder), len(head)), tensors, "f32", threads=2)
    heads = opened(folder, path, open_native(folder, "f32", threads=1))
    rows, hidden = [Rows(0, 0, (0,) * 4, (-1, 0, 1, 2), 4)], np.random.default_rng(1).normal(size=(4, spec.hidden))
    ours, theirs = (model.run(rows, (0,), hidden=hidden.astype(np.float32)) for model in (alone, heads.layer))
    np.testing.assert_array_equal(ours.logits, theirs.logits)
    np.testing.assert_array_equal(ours.hidden[0], theirs.hidden[0])
    assert (heads.layer.threads, heads.layer.tier) == (1, heads.target.tier)

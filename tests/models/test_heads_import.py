"""MTP modules and EAGLE-3 heads of others: against their papers' equations in float64, and what is refused of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import foredraft
from foredraft.core.noise import Noise
from foredraft.core.round import run_round
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.heads import HeadsDrafter
from foredraft.engine.fixed_planner import FixedPlanner, FixedQuote
from foredraft.errors import DamagedHeads, DrafterError, VocabularyMismatch, WeightsError
from foredraft.models.checkpoint import open_weights
from foredraft.models.heads import attach as heads_module
from foredraft.models.heads.file import heads_file
from foredraft.models.heads.modules import EagleHeads, RecurrentHeads
from foredraft.models.heads.native import NativeHeads
from foredraft.models.heads.open import open_heads
from foredraft.models.identity import weights_digest
from foredraft.models.layout import decoder_prefix
from foredraft.models.model import Rows
from foredraft.models.target import CachedTarget
from foredraft.models.torch_decoder.decoder import TorchDecoder
from tests.models.checkpoints import make_checkpoint
from tests.models.decoders import TEXT, open_decoder
from tests.models.foreign_heads import Tensors, add_mtp, make_eagle3, read, write
from tests.models.heads import make_heads
from tests.models.heads_by_hand import answers
from tests.native.models import open_native, spec_of
from tests.tiny import make_chat_model

ROWS, DRAFTED = 21, (5, 90, 11)
MTP: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "llama": ("llama", {}),
        "its own head": ("llama", {"head": True}),
        "its own embedding": ("qwen2", {"embedding": True}),
        "qwen2, tied": ("qwen2", {}),
        "qwen3, named": ("qwen3", {"layout": "named"}),
        "gemma2": ("gemma2", {}),
        "gemma2, named, its own embedding and head": ("gemma2", {"layout": "named", "embedding": True, "head": True}),
        "gemma2, whose last layer sees everything": ("gemma2", {"layers": 4}),
        "granite": ("granite", {"head": True}),
    }
)
EAGLE: Mapping[str, tuple[tuple[int, ...], Mapping[str, Any]]] = MappingProxyType(
    {
        "the authors'": ((1, 3, 4), {}),
        "3.1": ((1, 3, 4), {"fc_norm": True, "norm_output": True}),
        "speculators'": (
            (-1, 3, 7),
            {
                "speculators": True, "prefix": "layers.0.", "embedding": True, "norm_before_residual": True,
                "norm_before_fc": True, "eagle_aux_hidden_state_layer_ids": [0, 4, 8],
            },
        ),
        "SpecForge's": (
            (0, 4, 7),
            {
                "attention_bias": True, "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 4, 7], "fc_norm": True},
            },
        ),
        "of another width": ((1, 3, 4), {"hidden_size": 24, "target_hidden_size": 32, "embedding": True}),
        "of every token": ((1, 3, 4), {"draft": None, "model_type": "qwen3"}),
        "with the target's head": ((1, 3, 4), {"draft": None, "head": False, "prefix": "model.midlayer."}),
        "of two layers": ((2, 6), {"taps": 2, "eagle_aux_hidden_state_layer_ids": [3, 7]}),
    }
)  # fmt: skip


def norm(x: Any, weight: Any, eps: float) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


class Layer:
    """A decoder layer in float64, its tensors by name; what is not there is not done."""

    def __init__(self, tensors: Tensors, prefix: str, config: Mapping[str, Any], spec: Any) -> None:
        own = ((name.removeprefix(prefix), value) for name, value in tensors.items() if name.startswith(prefix))
        self.w = {name: value.astype(float) for name, value in own}
        self.spec, self.unit = spec, "gemma" in config["model_type"]

    def normed(self, x: Any, name: str) -> Any:
        weight = self.w.get(f"{name}.weight")
        return x if weight is None else norm(x, weight + self.unit, self.spec.eps)

    def linear(self, x: Any, name: str) -> Any:
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)

    def attended(self, h: Any) -> Any:
        spec, n = self.spec, len(h)
        q, k, v = (self.linear(h, f"self_attn.{part}_proj").reshape(n, -1, spec.head_dim) for part in "qkv")
        q, k = self.normed(q, "self_attn.q_norm"), self.normed(k, "self_attn.k_norm")
        half = spec.head_dim // 2
        angle = np.arange(n)[:, None] * spec.ropes[-1].theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        q, k = (
            np.concatenate([p[..., :half] * cos - p[..., half:] * sin, p[..., half:] * cos + p[..., :half] * sin], -1)
            for p in (q, k)
        )
        k, v = (np.repeat(p, spec.heads // spec.kv_heads, 1) for p in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) * spec.attention_scale
        if spec.attention_cap:
            scores = np.tanh(scores / spec.attention_cap) * spec.attention_cap
        seen = np.tri(n, dtype=bool)
        if spec.windows[-1]:
            seen &= ~np.tri(n, k=-spec.windows[-1], dtype=bool)
        scores = np.where(seen, scores, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        gathered = np.einsum("hij,jhd->ihd", share / share.sum(-1, keepdims=True), v).reshape(n, -1)
        return self.linear(gathered, "self_attn.o_proj")

    def gated(self, h: Any) -> Any:
        gate = self.linear(h, "mlp.gate_proj")
        if self.spec.activation == "silu":
            gate = gate / (1 + np.exp(-gate))
        else:
            gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return self.linear(gate * self.linear(h, "mlp.up_proj"), "mlp.down_proj")

    def __call__(self, x: Any) -> Any:
        return self.rest(x, self.attended(self.normed(x, "input_layernorm")))

    def rest(self, x: Any, attended: Any) -> Any:
        scale = self.spec.residual_scale
        if "pre_feedforward_layernorm.weight" in self.w:
            x = x + self.normed(attended, "post_attention_layernorm")
            h = self.gated(self.normed(x, "pre_feedforward_layernorm"))
            return x + self.normed(h, "post_feedforward_layernorm")
        x = x + scale * attended
        return x + scale * self.gated(self.normed(x, "post_attention_layernorm"))


Chain = list[tuple[Any, Any]]


def mtp_chain(folder: Path, states: Any, tokens: list[int], drafted: list[int]) -> Chain:
    """Equations 21 to 23 of DeepSeek-V3 with one module again and again: what a step leaves, and its logits."""
    config, w = read(folder)
    spec = spec_of(folder)
    unit = "gemma" in config["model_type"]
    if f"model.layers.{spec.layers}.enorm.weight" in w:
        at = f"model.layers.{spec.layers}."
        names = {"e": "enorm", "h": "hnorm", "fc": "eh_proj", "out": "shared_head.norm"}
        layer = Layer(w, at, config, spec)
    else:
        at, layer = "mtp.", Layer(w, "mtp.layers.0.", config, spec)
        names = {"e": "pre_fc_norm_embedding", "h": "pre_fc_norm_hidden", "fc": "fc", "out": "norm"}
    part = {key: w[f"{at}{name}.weight"].astype(float) for key, name in names.items()}
    table = w["model.embed_tokens.weight"].astype(float)
    own = w.get(f"{at}embed_tokens.weight")
    embedding = spec.embedding_scale * table if own is None else own.astype(float)
    head = w.get(f"{at}shared_head.head.weight", table if spec.tied else w.get("lm_head.weight"))
    h = norm(states[0], w["model.norm.weight"].astype(float) + unit, spec.eps)
    found: Chain = []
    for step in range(len(drafted) + 1):
        following = np.array([*tokens, *drafted[:step]])
        e, g = norm(embedding[following], part["e"] + unit, spec.eps), norm(h, part["h"] + unit, spec.eps)
        s = norm(layer(np.concatenate([e, g], 1) @ part["fc"].T)[-1], part["out"] + unit, spec.eps)
        logits = s @ head.T / spec.logits_divisor
        cap = spec.logits_cap
        found.append((s, np.tanh(logits / cap) * cap if cap else logits))
        h = np.concatenate([h, s[None]])
    return found


def eagle_chain(folder: Path, target: Path, states: Any, tokens: list[int], drafted: list[int]) -> Chain:
    """EAGLE-3, its config's variations included."""
    config, w = read(folder)
    theirs = read(target)[1]
    options = {**config, **config.get("eagle_config", {})}
    inner = config.get("transformer_layer_config", config)
    (folder / "layer").mkdir(exist_ok=True)
    (folder / "layer" / "config.json").write_text(json.dumps(inner))
    spec = spec_of(folder / "layer")
    layer = Layer(
        w, next(n for n in w if n.endswith("hidden_norm.weight")).removesuffix("hidden_norm.weight"), inner, spec
    )
    embedding = w.get("embed_tokens.weight", theirs["model.embed_tokens.weight"]).astype(float)
    if options.get("fc_norm"):
        states = [norm(s, w[f"fc_norm.{i}.weight"].astype(float), spec.eps) for i, s in enumerate(states)]
    f = np.concatenate(states, 1)
    if options.get("norm_before_fc"):
        f = norm(f, w["input_norm.weight"].astype(float), spec.eps)
    f = f @ w["fc.weight"].astype(float).T
    found: Chain = []
    for step in range(len(drafted) + 1):
        e = layer.normed(embedding[np.array([*tokens, *drafted[:step]])], "input_layernorm")
        g = layer.normed(f, "hidden_norm")
        r = layer.rest(g if options.get("norm_before_residual") else f, layer.attended(np.concatenate([e, g], 1)))[-1]
        s = norm(r, w["norm.weight"].astype(float), spec.eps)
        state = s if options.get("norm_output") else r
        found.append((state, s @ w.get("lm_head.weight", theirs["lm_head.weight"]).astype(float).T))
        f = np.concatenate([f, state[None]])
    return found


def random_states(heads: Any, wide: int) -> list[Any]:
    rng = np.random.default_rng(7)
    return [3 * rng.normal(size=(ROWS, wide)).astype(np.float32) for _ in heads.spec.taps]


def alike(found: Chain, wanted: Chain, close: float) -> None:
    assert len(found) == len(wanted) == 1 + len(DRAFTED)
    for (state, logits), (their_state, their_logits) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(state, their_state, rtol=0, atol=close * np.abs(their_state).max())
        np.testing.assert_allclose(logits, their_logits, rtol=0, atol=close * max(1, np.abs(their_logits).max()))


MACHINES = pytest.mark.parametrize(
    ("dtype", "native", "close"),
    [("f64", False, 1e-6), ("f32", False, 3e-5), ("f32", True, 3e-5), ("bf16", True, 0.15)],
)


def target_of(folder: Path, dtype: str, native: bool) -> Any:
    return open_native(folder, dtype, threads=2) if native else open_decoder(folder, dtype=dtype)


@MACHINES
@pytest.mark.parametrize("case", MTP)
def test_the_equations_of_mtp(tmp_path: Path, case: str, dtype: str, native: bool, close: float) -> None:
    family, given = MTP[case]
    layers = given.get("layers", 3)
    folder = make_checkpoint(family, tmp_path / "m", num_hidden_layers=layers)
    add_mtp(folder, **{name: value for name, value in given.items() if name != "layers"})
    heads = open_heads("", target_of(folder, dtype, native), folder, tmp_path, "tiny")
    assert type(heads) is (NativeHeads if native and "embedding" not in given else RecurrentHeads)
    assert heads.spec.taps == (layers - 1,)
    assert heads.note is None
    states, tokens = random_states(heads, 32), list(TEXT[:ROWS])
    wanted = mtp_chain(folder, [s.astype(float) for s in states], tokens, list(DRAFTED))
    alike(answers(heads, states, tokens, list(DRAFTED)), wanted, close)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("deep") / "m", num_hidden_layers=8)


@MACHINES
@pytest.mark.parametrize("case", EAGLE)
def test_the_equations_of_eagle3(deep: Path, tmp_path: Path, case: str, dtype: str, native: bool, close: float) -> None:
    taps, given = EAGLE[case]
    folder = make_eagle3(tmp_path / "eagle", deep, **given)
    heads = open_heads(str(folder), target_of(deep, dtype, native), deep, tmp_path, "tiny")
    assert isinstance(heads, EagleHeads)
    assert heads.spec.taps == taps
    assert heads.context == 256
    assert heads.note == (
        "EAGLE-3 heads run in torch, which is slower than the native pass beside them" if native else None
    )
    tensors = load_file(folder / "model.safetensors")
    ids = tensors["d2t"] + np.arange(40) if "d2t" in tensors else np.arange(97)
    np.testing.assert_array_equal(heads.vocabulary, ids)
    states, tokens = random_states(heads, 32), list(TEXT[:ROWS])
    wanted = eagle_chain(folder, deep, [s.astype(float) for s in states], tokens, list(DRAFTED))
    alike(answers(heads, states, tokens, list(DRAFTED)), wanted, close)


@pytest.mark.parametrize("embedding", [True, False])
@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_states_that_are_tensors(
    deep: Path, tmp_path: Path, kind: str, embedding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pass on a GPU gives them."""
    monkeypatch.setattr(TorchDecoder, "_give", lambda self, x: x)
    if kind == "mtp":
        folder = add_mtp(make_checkpoint("llama", tmp_path / "m"), embedding=embedding)
        which = ""
    else:
        folder, which = deep, str(make_eagle3(tmp_path / "eagle", deep, embedding=embedding, norm_output=True))
    heads: Any = open_heads(which, open_decoder(folder, dtype="f64"), folder, tmp_path, "tiny")
    states, tokens = [s.astype(float) for s in random_states(heads, 32)], list(TEXT[:ROWS])
    found = [heads.read(0, 0, [torch.from_numpy(s) for s in states], tokens)]
    for i, token in enumerate(DRAFTED):
        found.append(heads.step(0, ROWS + i, found[-1][0], token))
    assert all(isinstance(part, torch.Tensor) for pair in found for part in pair)
    drafted = list(DRAFTED)
    if kind == "mtp":
        wanted = mtp_chain(folder, states, tokens, drafted)
    else:
        wanted = eagle_chain(Path(which), deep, states, tokens, drafted)
    alike([(state.numpy(), logits.numpy()) for state, logits in found], wanted, 1e-6)


@pytest.mark.parametrize("family", ["llama", "phi3", "olmo2", "gemma3", "smollm3"])
@pytest.mark.parametrize("layout", ["numbered", "named"])
@pytest.mark.parametrize("native", [True, False])
def test_the_pass_ignores_a_module_in_its_checkpoint(tmp_path: Path, family: str, layout: str, native: bool) -> None:
    """And every family's module can be read."""
    folder = make_checkpoint(family, tmp_path / "m")
    rows = [Rows(0, 0, TEXT[:9], tuple(range(-1, 8)), 9)]
    plain, digest = target_of(folder, "f32", native), weights_digest(open_weights(folder), spec_of(folder))
    before = plain.forward(rows).logits
    add_mtp(folder, layout=layout, embedding=True)
    model = target_of(folder, "f32", native)
    np.testing.assert_array_equal(model.forward(rows).logits, before)
    assert weights_digest(open_weights(folder), spec_of(folder)) == digest
    heads: Any = open_heads("", model, folder, tmp_path, "tiny")
    assert np.isfinite(heads.read(0, 0, random_states(heads, 32), list(TEXT[:ROWS]))[1]).all()


def test_a_layer_too_many_is_still_refused(tmp_path: Path) -> None:
    folder = add_mtp(
        make_checkpoint("llama", tmp_path / "m"), lambda tensors: tensors.pop("model.layers.3.eh_proj.weight")
    )
    for native in (True, False):
        with pytest.raises(WeightsError, match=r"has no use for model\.layers\.3\."):
            target_of(folder, "f32", native)


def test_the_embedding_is_the_models_own_whatever_comes_first() -> None:
    tail = "embed_tokens.weight"
    assert decoder_prefix([f"mtp.{tail}", f"model.layers.3.{tail}", f"model.{tail}"]) == "model."


def test_an_equal_embedding_is_not_kept_twice(tmp_path: Path) -> None:
    def twin(tensors: Tensors) -> None:
        tensors["model.layers.3.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].copy()

    folder = add_mtp(make_checkpoint("llama", tmp_path / "m"), twin, embedding=True)
    assert type(open_heads("", open_native(folder), folder, tmp_path, "tiny")) is NativeHeads


@pytest.mark.parametrize("layout", ["numbered", "named"])
def test_of_several_modules_the_first_is_used_and_that_is_said(tmp_path: Path, layout: str) -> None:
    folder = add_mtp(make_checkpoint("qwen3", tmp_path / "m"), layout=layout, modules=3)
    heads: Any = open_heads("", open_decoder(folder, dtype="f64"), folder, tmp_path, "tiny")
    assert heads.note == f"{folder} holds 3 MTP modules, and the first of them makes every guess"
    states = random_states(heads, 32)
    wanted = mtp_chain(folder, [s.astype(float) for s in states], list(TEXT[:ROWS]), list(DRAFTED))
    alike(answers(heads, states, list(TEXT[:ROWS]), list(DRAFTED)), wanted, 1e-6)


def test_whose_module_is_taken(tmp_path: Path) -> None:
    """What was trained here comes first; a path leads to another copy of the same model, and to no other model's."""
    bare = make_checkpoint("llama", tmp_path / "bare")
    copy = add_mtp(make_checkpoint("llama", tmp_path / "copy"))
    model = open_native(bare)
    with pytest.raises(DrafterError, match="there are no heads for tiny"):
        open_heads("", model, bare, tmp_path, "tiny")
    assert open_heads(str(copy), model, bare, tmp_path, "tiny").spec.provenance["module"] == "model.layers.3."
    assert open_heads("", open_native(copy), copy, tmp_path, "tiny").spec.provenance["checkpoint"] == str(copy)
    kept = make_heads(bare, tmp_path / "kept.safetensors")
    digest = weights_digest(open_weights(bare), spec_of(bare))
    heads_file(tmp_path, digest).parent.mkdir()
    heads_file(tmp_path, digest).write_bytes(kept.read_bytes())
    assert open_heads("", open_native(copy), copy, tmp_path, "tiny").spec.taps == (0, 2)
    heads_file(tmp_path, digest).write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(DamagedHeads, match="delete it, and the heads in the model's own checkpoint are used") as raised:
        open_heads("", open_native(copy), copy, tmp_path, "tiny")
    assert open_heads(raised.value.spare, open_native(copy), copy, tmp_path, "tiny").spec.taps == (2,)
    with pytest.raises(DrafterError, match="holds neither an MTP module nor EAGLE-3 heads"):
        open_heads(str(bare), model, bare, tmp_path, "tiny")
    other = add_mtp(
        make_checkpoint("llama", tmp_path / "other", rms_norm_eps=1e-3), lambda w: w["model.norm.weight"].fill(2)
    )
    with pytest.raises(DrafterError, match=rf"MTP module of another model \(\w+\), not of tiny \({digest}\)"):
        open_heads(str(other), model, bare, tmp_path, "tiny")


def test_modules_of_families_outside_the_table_are_refused_by_name(tmp_path: Path) -> None:
    bare = make_checkpoint("llama", tmp_path / "bare")
    config, tensors = read(add_mtp(make_checkpoint("llama", tmp_path / "m")))
    foreign = write(tmp_path / "foreign", {**config, "model_type": "deepseek_v3"}, tensors)
    with pytest.raises(DrafterError, match="model type 'deepseek_v3' has no entry in the decoder table"):
        open_heads(str(foreign), open_native(bare), bare, tmp_path, "tiny")
    with pytest.raises(
        DrafterError, match=r"the MTP module of .* is not read, because model type deepseek_v3 has no entry"
    ):
        open_heads("", object(), foreign, tmp_path, "tiny")  # type: ignore[arg-type]
    (foreign / "config.json").write_text("{")
    with pytest.raises(DrafterError, match=r"config\.json cannot be read"):
        open_heads(str(foreign), open_native(bare), bare, tmp_path, "tiny")


def drop(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.pop(name)


def put(name: str, value: Any) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: value(tensors.get(name)) if callable(value) else value})


MTP_FAULTS: Mapping[str, tuple[str, Callable[[Tensors], None]]] = MappingProxyType(
    {
        "no norm": (r"no tensor model\.layers\.3\.enorm\.weight", drop("model.layers.3.enorm.weight")),
        "no last norm": ("no tensor .*3.shared_head.norm", drop("model.layers.3.shared_head.norm.weight")),
        "no layer": (r"no tensor model\.layers\.3\.mlp\.up", drop("model.layers.3.mlp.up_proj.weight")),
        "a shape": (
            r"3\.eh_proj\.weight has the shape \[32, 63\]",
            put("model.layers.3.eh_proj.weight", lambda x: x[:, 1:].copy()),
        ),
        "a layer's shape": (
            r"layers\.3\.mlp\.up_proj\.weight has the shape",
            put("model.layers.3.mlp.up_proj.weight", lambda x: x[1:]),
        ),
        "a head's shape": (
            r"3\.shared_head\.head\.weight has the shape",
            put("model.layers.3.shared_head.head.weight", np.zeros((96, 32), np.float32)),
        ),
        "no floats": (r"3\.hnorm\.weight is I32", put("model.layers.3.hnorm.weight", lambda x: x.astype(np.int32))),
        "experts": (
            r"no use for model\.layers\.3\.mlp\.experts",
            put("model.layers.3.mlp.experts.0.up_proj.weight", np.zeros((4, 4), np.float32)),
        ),
    }
)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("fault", MTP_FAULTS)
def test_modules_that_are_not_what_they_should_be(tmp_path: Path, fault: str, native: bool) -> None:
    says, change = MTP_FAULTS[fault]
    folder = add_mtp(make_checkpoint("llama", tmp_path / "m"), change)
    model = target_of(folder, "f32", native)
    with pytest.raises(WeightsError, match=says) as raised:
        open_heads("", model, folder, tmp_path, "tiny")
    assert str(folder) in str(raised.value)


def test_a_named_module_has_no_unknown_parts(tmp_path: Path) -> None:
    folder = add_mtp(make_checkpoint("llama", tmp_path / "m"), put("mtp.more", np.zeros(3, np.float32)), layout="named")
    with pytest.raises(WeightsError, match=r"an MTP module has no use for mtp\.more"):
        open_heads("", open_native(folder), folder, tmp_path, "tiny")


def config(**given: Any) -> Callable[[Any, Any], None]:
    return lambda c, tensors: c.update(given)


def tensor(change: Callable[[Tensors], None]) -> Callable[[Any, Any], None]:
    return lambda c, tensors: change(tensors)


EAGLE_FAULTS: Mapping[str, tuple[type[Exception], str, Callable[[Any, Any], None]]] = MappingProxyType(
    {
        "EAGLE-2": (
            DrafterError,
            "kind LlamaForCausalLMEagle, and of EAGLE only",
            config(architectures=["LlamaForCausalLMEagle"]),
        ),
        "layers": (DrafterError, "has 2 layers", config(num_hidden_layers=2)),
        "no layers": (DrafterError, "has None layers", config(num_hidden_layers=None)),
        "family": (DrafterError, "model type 'minimax' has no entry", config(model_type="minimax")),
        "places": (DrafterError, "its layer is of the family olmo2", config(model_type="olmo2")),
        "quantised": (DrafterError, "quantised with fp8", config(quantization_config={"quant_method": "fp8"})),
        "width": (DrafterError, "reads 16 features of each layer, and tiny has 32", config(target_hidden_size=16)),
        "vocabulary": (VocabularyMismatch, "a target with 96 tokens, and tiny has 97", config(vocab_size=96)),
        "layers beyond": (
            DrafterError,
            r"layers \[1, 3, 8\], and its target has 8",
            config(eagle_aux_hidden_state_layer_ids=[2, 4, 9]),
        ),
        "layers in disorder": (DrafterError, r"layers \[3, 1, 5\]", config(eagle_aux_hidden_state_layer_ids=[4, 2, 6])),
        "no list of layers": (
            DrafterError,
            "where a list of layers is needed",
            config(eagle_aux_hidden_state_layer_ids="2"),
        ),
        "two layers of three": (
            WeightsError,
            r"fc\.weight has the shape",
            config(eagle_aux_hidden_state_layer_ids=[2, 4]),
        ),
        "no d2t": (WeightsError, "no tensor d2t", tensor(drop("d2t"))),
        "no t2d is no fault": (AssertionError, "", tensor(drop("t2d"))),
        "d2t of floats": (
            WeightsError,
            "d2t is not a list of 40 whole",
            tensor(put("d2t", lambda x: x.astype(np.float32))),
        ),
        "d2t too short": (WeightsError, "d2t is not a list of 40 whole", tensor(put("d2t", lambda x: x[1:]))),
        "d2t twice": (
            WeightsError,
            "increasing tokens below 97",
            tensor(lambda w: w["d2t"].__setitem__(5, w["d2t"][4] - 1)),
        ),
        "d2t beyond": (WeightsError, "increasing tokens below 97", tensor(lambda w: w["d2t"].__setitem__(-1, 58))),
        "d2t below": (WeightsError, "increasing tokens below 97", tensor(lambda w: w["d2t"].__setitem__(0, -1))),
        "t2d of others": (WeightsError, "t2d does not name", tensor(put("t2d", lambda x: ~x))),
        "t2d of another length": (WeightsError, "t2d does not name", tensor(put("t2d", lambda x: x[:90]))),
        "no head": (WeightsError, r"no tensor lm_head\.weight", tensor(drop("lm_head.weight"))),
        "a head's shape": (
            WeightsError,
            r"lm_head\.weight has the shape",
            tensor(put("lm_head.weight", lambda x: x[1:])),
        ),
        "no fc": (WeightsError, r"no tensor fc\.weight", tensor(drop("fc.weight"))),
        "no norm": (
            WeightsError,
            r"no tensor midlayer\.hidden_norm\.weight",
            tensor(drop("midlayer.hidden_norm.weight")),
        ),
        "a narrow q": (
            WeightsError,
            r"midlayer\.self_attn\.q_proj\.weight has the shape \[32, 32\]",
            tensor(put("midlayer.self_attn.q_proj.weight", lambda x: x[:, 32:].copy())),
        ),
        "more": (WeightsError, "have no use for mask_hidden", tensor(put("mask_hidden", np.zeros(3, np.float32)))),
        "more in the layer": (
            WeightsError,
            r"no use for midlayer\.extra",
            tensor(put("midlayer.extra", np.zeros(3, np.float32))),
        ),
        "norms without a flag": (
            WeightsError,
            "as its config.json has them have no use for fc_norm",
            tensor(put("fc_norm.0.weight", np.ones(32, np.float32))),
        ),
        "a flag without norms": (WeightsError, r"no tensor fc_norm\.0", config(fc_norm=True)),
        "an embedding's shape": (
            WeightsError,
            "embed_tokens.weight has the shape",
            tensor(put("embed_tokens.weight", np.ones((97, 31), np.float32))),
        ),
    }
)


@pytest.mark.parametrize("fault", EAGLE_FAULTS)
def test_eagle3_folders_that_are_not_what_they_should_be(deep: Path, tmp_path: Path, fault: str) -> None:
    kind, says, change = EAGLE_FAULTS[fault]
    folder = make_eagle3(tmp_path / "eagle", deep, change)
    model = open_native(deep)
    if kind is AssertionError:
        assert isinstance(open_heads(str(folder), model, deep, tmp_path, "tiny"), EagleHeads)
        return
    with pytest.raises(kind, match=says) as raised:
        open_heads(str(folder), model, deep, tmp_path, "tiny")
    assert str(folder) in str(raised.value)


def test_torn_heads_are_fetched_again_and_not_the_model(deep: Path, tmp_path: Path) -> None:
    folder = make_eagle3(tmp_path / "eagle", deep)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=r"model\.safetensors is truncated: .*, fetch the heads again$"):
        open_heads(str(folder), open_native(deep), deep, tmp_path, "tiny")


def test_pickled_heads_are_refused(deep: Path, tmp_path: Path) -> None:
    folder = make_eagle3(tmp_path / "eagle", deep)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin is pickled"):
        open_heads(str(folder), open_native(deep), deep, tmp_path, "tiny")


def test_eagle3_without_torch(deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_eagle3(tmp_path / "eagle", deep)
    monkeypatch.setattr(heads_module, "torch_installed", lambda: False)
    with pytest.raises(DrafterError, match="run in torch alone, which is not here: pip install"):
        open_heads(str(folder), open_native(deep), deep, tmp_path, "tiny")


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_mtp(make_chat_model(tmp_path_factory.mktemp("talker") / "m", num_hidden_layers=8))


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param({}, id="native bf16"),
        pytest.param({"dtype": "f64", "native_tier": "off"}, id="torch f64", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_the_text_is_the_targets(talker: Path, tmp_path: Path, kind: str, machine: dict[str, Any]) -> None:
    drafter = "heads" if kind == "mtp" else f"heads:{make_eagle3(tmp_path / 'eagle', talker, draft=200)}"
    lm = foredraft.load(talker, drafter="none", threads=1, cache=tmp_path, **machine)
    prompts = ["abab abab ab", "x", "a longer prompt, so that the batch is ragged"]
    for options in ({}, {"temperature": 1.0, "seed": 5}, {"temperature": 1.2, "seed": 1, "repetition_penalty": 1.2}):
        asked: dict[str, Any] = {"max_tokens": 12 if machine else 20, **options}
        for prompt in [*prompts, prompts]:
            plain, drafted = lm.generate(prompt, **asked), lm.generate(prompt, drafter=drafter, draft_tokens=3, **asked)
            for ours, theirs in zip(*([r] if isinstance(prompt, str) else r for r in (drafted, plain)), strict=True):
                assert ours.choices[0].token_ids == theirs.choices[0].token_ids
                assert ours.speculative.by_drafter["heads"]["drafted"] > 0
                said = any("EAGLE-3 heads run in torch" in notice for notice in ours.notices)
                assert said == (kind == "eagle3" and not machine)


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_drafts_are_what_the_equations_guess(deep: Path, tmp_path: Path, kind: str) -> None:
    """From the target's own states at every committed token, round after round, guesses refused between them."""
    if kind == "mtp":
        folder = add_mtp(make_checkpoint("qwen3", tmp_path / "m"))
        which = ""
    else:
        folder, which = deep, str(make_eagle3(tmp_path / "eagle", deep))
    model = open_decoder(folder, dtype="f64")
    heads: Any = open_heads(which, model, folder, tmp_path, "tiny")
    target, drafter = CachedTarget(model), HeadsDrafter(heads)
    sequence = TokenSequence([*TEXT[:9]], limit=60)
    target.begin(sequence)
    drafter.begin(sequence)
    for limit in (0, 3, 3, 2, 3):
        run_round([sequence], target, drafter, FixedPlanner(limit))
        n = len(sequence) - 1
        rows = Rows(99, 0, tuple(sequence.tokens[:n]), tuple(range(-1, n - 1)), n)
        hidden = model.forward([rows], heads.spec.taps).hidden
        states, guesses = [hidden[tap] for tap in heads.spec.taps], list[int]()
        for _ in range(3):
            given = (states, sequence.tokens[1:], guesses)
            found = mtp_chain(folder, *given) if kind == "mtp" else eagle_chain(Path(which), folder, *given)
            guesses.append(int(heads.vocabulary[np.argmax(found[-1][1])]))
        assert drafter.propose([sequence], [FixedQuote(3)], [Noise(0)])[0].tokens == tuple(guesses)
    assert len(sequence) > 9 + 4

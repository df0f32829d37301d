"""Models run through transformers' own module: exact where they can be rewound, refused by name where they cannot."""

from __future__ import annotations

import builtins
import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from foredraft.core.draft import Draft
from foredraft.core.round import run_round
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.watches.tally import Tally
from foredraft.errors import (
    ModelError,
    ModelNotFound,
    OptionError,
    UnsupportedModel,
    WeightsError,
)
from foredraft.models.hf import module as hf_module
from foredraft.models.hf.module import GenericModel
from foredraft.models.model import Rows
from foredraft.models.target import CachedTarget

WINDOW = 6
BASE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA = {k: BASE[k] for k in ("vocab_size", "hidden_size", "pad_token_id", "bos_token_id", "eos_token_id")} | {
    "num_hidden_layers": 2,
    "state_size": 8,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
GPT2 = {
    "vocab_size": 50,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA3N = BASE | {
    "vocab_size_per_layer_input": 50,
    "hidden_size_per_layer_input": 8,
    "num_hidden_layers": 4,
    "intermediate_size": [48] * 4,
    "num_kv_shared_layers": 2,
    "laurel_rank": 4,
    "sliding_window": WINDOW,
    "head_dim": 8,
    "activation_sparsity_pattern": [0.0] * 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
QWEN3_NEXT = BASE | {
    "head_dim": 8,
    "num_hidden_layers": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
BAMBA = BASE | {
    "attn_layer_indices": [1],
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
DEEPSEEK_V4 = BASE | {
    "num_key_value_heads": 1,
    "head_dim": 16,
    "moe_intermediate_size": 16,
    "q_lora_rank": 16,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "layer_types": ["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"],
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
    "mlp_layer_types": ["moe"] * 3,
    "hc_mult": 2,
    "sliding_window": WINDOW,
    "o_groups": 2,
    "o_lora_rank": 8,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 4,
    "num_nextn_predict_layers": 0,
}
RWKV = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "attention_hidden_size": 32,
    "intermediate_size": 40,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

FULL = {
    "gpt2": GPT2,
    "gpt_neox": BASE,
    "stablelm": BASE,
    "mixtral": BASE | {"num_local_experts": 4},
}
MOVING = {  # caches that drop what has left a window or a convolution
    "mistral": BASE | {"sliding_window": WINDOW},
    "cohere2": BASE | {"sliding_window": WINDOW, "layer_types": MIXED, "logit_scale": 1.0},
    "gemma3n_text": GEMMA3N,
    "lfm2": BASE | {"layer_types": ["conv", "full_attention", "conv"]},
}
RECURRENT = {
    "mamba": MAMBA,
    "mamba2": MAMBA | {"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "bamba": BAMBA,
    "qwen3_next": QWEN3_NEXT,
    "rwkv": RWKV,
    "minimax": BASE
    | {
        "num_local_experts": 2,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
}
REWINDABLE = [*FULL, *MOVING]
ALL = FULL | MOVING | RECURRENT


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """One thread, and transformers' remarks about missing GPU kernels and invented token ids kept out of the report."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on models this small, threads only wait for each other
    yield
    torch.set_num_threads(threads)
    logger.setLevel(level)


def build(kind: str, dtype: torch.dtype = torch.float64) -> Any:
    config = transformers.AutoConfig.for_model(kind, **ALL[kind])
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    module.generation_config.eos_token_id = None
    if module._can_set_experts_implementation():
        module.set_experts_implementation("eager")  # torch's grouped product stops at float32
    with torch.no_grad():
        for parameter in module.parameters():  # wide enough for attention to matter
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3)
    return module


MODULES: dict[str, Any] = {}


@pytest.fixture
def model(request: pytest.FixtureRequest) -> GenericModel:
    if request.param not in MODULES:
        MODULES[request.param] = build(request.param)
    return GenericModel(MODULES[request.param])


def rewindable(test: Any) -> Any:
    return pytest.mark.parametrize("model", REWINDABLE, indirect=True)(test)


def moving(test: Any) -> Any:
    return pytest.mark.parametrize("model", MOVING, indirect=True)(test)


def recurrent(test: Any) -> Any:
    return pytest.mark.parametrize("model", RECURRENT, indirect=True)(test)


def some(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 50) for _ in range(n)]


def chain(slot: int, start: int, tokens: list[int], wanted: int | None = None) -> Rows:
    n = len(tokens)
    return Rows(slot, start, tuple(tokens), tuple(range(-1, n - 1)), n if wanted is None else wanted)


def plain(model: GenericModel, tokens: list[int]) -> np.ndarray:
    """The module's own logits, one uncached pass."""
    with torch.no_grad():
        return model.module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def same(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    # a few modules compute positions or norms in float32 whatever their dtype
    assert a.shape == b.shape
    assert np.abs(b).max() > 0.3, "logits too flat to tell anything"
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def transformers_greedy(model: GenericModel, prompt: list[int], tokens: int) -> list[int]:
    settings = transformers.GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0, bos_token_id=1)
    ids = torch.tensor([prompt])
    whole = model.module.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return list(whole[0, len(prompt) :].tolist())


def exact(a: Any, b: Any) -> None:
    same(a, b, 1e-12)


# --- models that can be rewound ---------------------------------------------------------------------------------------


@rewindable
def test_a_chain_is_its_tokens_one_by_one_and_one_uncached_pass(model: GenericModel) -> None:
    assert model.rewindable
    assert model.why_not_rewindable == ""
    tokens = some(24)
    whole = plain(model, tokens)
    exact(model.forward([chain(0, 0, tokens)]).logits, whole)
    one_by_one = [model.forward([chain(1, i, [t])]).logits for i, t in enumerate(tokens)]
    exact(np.concatenate(one_by_one), whole)
    parts = [model.forward([chain(2, a, tokens[a:b])]).logits for a, b in [(0, 3), (3, 10), (10, 11), (11, 24)]]
    exact(np.concatenate(parts), whole)
    assert model.read_again == 0


@rewindable
def test_after_a_rollback_other_tokens_score_as_in_a_fresh_slot(model: GenericModel) -> None:
    """Far beyond the window, over and over, as speculation does it."""
    text = some(9)
    model.forward([chain(0, 0, text, 1)])
    rng = random.Random(1)
    for step in range(12):
        guess = some(5, seed=100 + step)
        got = model.forward([chain(0, len(text), guess)]).logits
        exact(got, plain(model, text + guess)[len(text) :])
        text += guess[: rng.randrange(1, 6)]
    assert model.read_again == 0


@rewindable
def test_several_passes_can_be_taken_back_at_once(model: GenericModel) -> None:
    """As a drafter does, which guesses token by token."""
    text = some(20)
    model.forward([chain(0, 0, text, 1)])
    for i, token in enumerate(some(6, seed=3)):
        model.forward([chain(0, 20 + i, [token])])
    other = some(4, seed=4)
    exact(model.forward([chain(0, 21, other)]).logits, plain(model, [*text, some(6, seed=3)[0], *other])[21:])
    assert model.read_again == 0


@moving
def test_what_has_left_the_window_is_read_again_when_needed_and_counted(model: GenericModel) -> None:
    text = some(30)
    model.forward([chain(0, 0, text, 1)])
    other = some(5, seed=5)
    exact(model.forward([chain(0, 11, other)]).logits, plain(model, text[:11] + other)[11:])
    assert model.read_again == 11


@moving
def test_plain_decoding_does_not_hold_more_than_the_recorded_tokens(model: GenericModel) -> None:
    model.forward([chain(0, 0, some(5), 1)])
    text = some(5)
    for i in range(2 * hf_module.RECORDED + 10):
        model.forward([chain(0, 5 + i, [3 + i % 7])])
        text.append(3 + i % 7)
    cache = model._slots[0].state
    for layer in cache.layers:
        if getattr(layer, "is_sliding", False):
            assert layer.keys.shape[-2] <= hf_module.RECORDED + WINDOW + 1
        if conv := getattr(layer, "conv_states", None):
            assert conv[0].shape[-1] <= hf_module.RECORDED + 8
    tail = some(3, seed=6)
    exact(model.forward([chain(0, len(text) - 2, tail)]).logits, plain(model, text[:-2] + tail)[-3:])


TREES = [
    ((-1, 0, 0, 1, 2, 2), 6),
    ((-1, 0, 1, 1, 2, 0, 5, 5, -1), 9),  # a second root among them
    ((-1, 0, 1, 2, 2, 3), 4),  # a trunk whose logits nobody wants
    ((-1, -1, -1), 3),
]


@rewindable
@pytest.mark.parametrize(("parents", "wanted"), TREES)
@pytest.mark.parametrize("held", [0, 1, 17])
def test_every_node_of_a_tree_scores_as_its_path_alone(
    model: GenericModel, parents: tuple[int, ...], wanted: int, held: int
) -> None:
    text, tokens = some(held, seed=7), some(len(parents), seed=8)
    if held:
        model.forward([chain(0, 0, text, 1)])
    taps = () if model.name.startswith("Gemma3n") else (1,)  # Gemma 3n has four hidden states a row
    scored = model.forward([Rows(0, held, tuple(tokens), parents, wanted)], taps)
    for place, node in enumerate(range(len(parents) - wanted, len(parents))):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        alone = text + [tokens[i] for i in path]
        exact(scored.logits[place], plain(model, alone)[-1])
    assert all(hidden.shape == (wanted, 32) for hidden in scored.hidden.values())
    assert model.read_again == 0
    # whichever path survives, what the cache is said to hold of it is really there
    for node in range(len(parents)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        kept = model.compact(0, held, path)
        assert 0 <= kept <= len(path)
    first_leaf = next(i for i in range(len(parents)) if i not in parents)
    path = [first_leaf]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    kept = model.compact(0, held, path)
    assert kept == len(path), "the first guesses are the likeliest and should need no second reading"
    alone, rest = text + [tokens[i] for i in path], some(3, seed=9)
    exact(model.forward([chain(0, held + kept, rest)]).logits, plain(model, alone + rest)[-3:])


@rewindable
def test_slots_in_one_pass_do_not_see_each_other(model: GenericModel) -> None:
    texts = [some(n, seed=n) for n in (3, 12, 25)]
    scored = model.forward([chain(i, 0, t, 2) for i, t in enumerate(texts)])
    assert scored.starts == (0, 2, 4)
    exact(scored.logits, np.concatenate([plain(model, t)[-2:] for t in texts]))
    more = [some(4, seed=40 + i) for i in range(3)]
    rows = [chain(i, len(texts[i]) - 1, more[i]) for i in (2, 0, 1)]
    exact(model.forward(rows).logits, np.concatenate([plain(model, texts[i][:-1] + more[i])[-4:] for i in (2, 0, 1)]))
    model.release(0)
    with pytest.raises(ModelError, match="holds 0"):
        model.forward([chain(0, 3, [5])])
    exact(model.forward([chain(0, 0, texts[1])]).logits, plain(model, texts[1]))


def test_compact_says_how_far_the_cache_follows_the_kept_rows() -> None:
    model = GenericModel(build("gpt_neox"))
    model.forward([chain(0, 0, some(5), 1)])
    model.forward([Rows(0, 5, (10, 11, 12, 13, 14), (-1, 0, 0, 1, 2), 5)])  # paths 0 1 3, run last, and 0 2 4
    assert model.compact(0, 5, (0, 1, 3)) == 3
    assert model.compact(0, 5, (0, 1)) == 2
    assert model.compact(0, 5, (0, 2, 4)) == 1
    assert model.compact(0, 5, ()) == 0
    assert model.compact(0, 6, (1, 3)) == 2  # counted from after a row that is kept anyway
    assert model.compact(9, 0, ()) == 0


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "stablelm", "mistral"])
def test_taps_are_what_each_layer_puts_out_the_last_one_before_the_final_norm(kind: str) -> None:
    model = GenericModel(build(kind))
    tokens = some(8)
    with torch.no_grad():
        truth = model.module(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states
    model.forward([chain(0, 0, tokens[:3], 1)])
    hidden = model.forward([chain(0, 3, tokens[3:], 4)], taps=(-1, 0, 2)).hidden
    assert set(hidden) == {-1, 0, 2}
    exact(hidden[-1], truth[0][0, -4:].numpy())
    exact(hidden[0], truth[1][0, -4:].numpy())
    base = model.module.base_model
    norm = next(getattr(base, n) for n in ("ln_f", "final_layer_norm", "norm") if hasattr(base, n))
    with torch.no_grad():
        exact(norm(torch.tensor(hidden[2])).numpy(), truth[3][0, -4:].numpy())
    assert np.abs(hidden[2] - truth[3][0, -4:].numpy()).max() > 0.1
    assert not list(base.modules())[-1]._forward_hooks
    with pytest.raises(ModelError, match="no layer 3"):
        model.forward([chain(0, 8, [4])], taps=(3,))


def test_what_the_model_says_about_itself() -> None:
    model = GenericModel(build("gpt2", torch.bfloat16), device="cpu")
    assert (model.vocabulary, model.context, model.device, model.dtype) == (50, 128, "cpu", "bf16")
    assert GenericModel(build("mamba")).context == hf_module.UNBOUNDED
    logits = model.forward([chain(0, 0, [3, 4])]).logits
    assert isinstance(logits, np.ndarray)
    assert logits.dtype == np.float32
    other = build("gpt2", torch.bfloat16)
    assert GenericModel(other).identity() == model.identity()
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    assert GenericModel(other).identity() != model.identity()


def test_a_module_handed_in_is_neither_copied_nor_changed() -> None:
    module = build("gpt2")
    flags = [(p.requires_grad, p.data_ptr()) for p in module.parameters()]
    model = GenericModel(module)
    model.forward([chain(0, 0, some(5))], taps=(2,))
    assert model.module is module
    assert flags == [(p.requires_grad, p.data_ptr()) for p in module.parameters()]
    module.train()
    module(input_ids=torch.tensor([[3, 4]]), labels=torch.tensor([[3, 4]])).loss.backward()  # its owner can go on


# --- models whose state cannot be rewound -----------------------------------------------------------------------------


@recurrent
def test_a_recurrent_model_says_so_by_name_and_generates_as_transformers_does(model: GenericModel) -> None:
    assert not model.rewindable
    assert type(model.module).__name__ in model.why_not_rewindable
    assert "rewound" in model.why_not_rewindable
    prompts = [some(9, seed=1), some(1, seed=2)]
    answers: list[list[int]] = [[], []]
    logits = model.forward([chain(i, 0, p, 1) for i, p in enumerate(prompts)]).logits
    for step in range(12):  # both at once, so that states mixed up would show
        for i in range(2):
            answers[i].append(int(logits[i].argmax()))
        rows = [chain(i, len(prompts[i]) + step, [answers[i][-1]]) for i in range(2)]
        assert all(model.compact(i, len(prompts[i]) + step - 1, [0]) == 1 for i in range(2) if step)
        logits = model.forward(rows).logits
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == transformers_greedy(model, prompt, 12)


@recurrent
def test_a_recurrent_slot_goes_on_or_starts_over_and_nothing_else(model: GenericModel) -> None:
    name = type(model.module).__name__
    tokens = some(12)
    model.forward([chain(0, 0, tokens[:8], 1)])
    with pytest.raises(ModelError, match=f"{name}.*holds 8 tokens, not 5"):
        model.forward([chain(0, 5, [4])])
    with pytest.raises(ModelError, match="holds 8"):
        model.forward([chain(0, 9, [4])])
    with pytest.raises(ModelError, match="tree"):
        model.forward([Rows(0, 8, (4, 5), (-1, -1), 2)])
    # refusals left the slot as it was, and several tokens at once are not taken for a new prompt
    together = model.forward([chain(0, 8, tokens[8:], 3)]).logits
    model.forward([chain(1, 0, tokens[:8], 1)])
    alone = [model.forward([chain(1, 8 + i, [t])]).logits for i, t in enumerate(tokens[8:])]
    exact(together, np.concatenate(alone[1:]))
    same(together, plain(model, tokens)[-3:], 1e-3)  # transformers' single steps run partly in float32
    over = model.forward([chain(0, 0, tokens[2:9])]).logits
    exact(over, plain(model, tokens[2:9]))


def test_a_state_kept_within_the_module_is_refused() -> None:
    config = transformers.RecurrentGemmaConfig(**BASE, lru_width=32, attention_window_size=8)
    module = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(UnsupportedModel, match="RecurrentGemmaForCausalLM keeps its state within itself"):
        GenericModel(module)


def test_a_cache_that_calls_itself_croppable_does_not_outvote_the_module() -> None:
    """DeepSeek V4's compressed layers inherit the flag and a crop that forgets their buffers."""
    config = transformers.AutoConfig.for_model("deepseek_v4", **DEEPSEEK_V4)
    module = AutoModelForCausalLM.from_config(config).eval()
    assert transformers.DynamicCache(config=config).is_croppable
    assert not GenericModel(module).rewindable


# --- whole generations ------------------------------------------------------------------------------------------------


class HalfRight:
    """Guesses random trees, about half of whose tokens are what the text will really say."""

    name = "half-right"
    taps = ()

    def __init__(self, truths: dict[int, list[int]], most: int) -> None:
        self.truths = truths  # prompt length -> answer
        self.most = most
        self.rng = random.Random(0)

    def begin(self, sequence: Any) -> None: ...

    def propose(self, sequences: Any, quotes: Any, noises: Any) -> list[Draft]:
        return [self.tree(self.truths[s.prompt_length][len(s.answer) :]) for s in sequences]

    def tree(self, ahead: list[int]) -> Draft:
        n = self.rng.randrange(self.most + 1)
        parents = tuple(self.rng.randrange(max(-1, i - 3), i) for i in range(n))
        depths = Draft((3,) * n, parents).depths()
        right = [d <= len(ahead) and self.rng.random() < 0.5 for d in depths]
        tokens = [ahead[d - 1] if r else self.rng.randrange(3, 50) for d, r in zip(depths, right, strict=True)]
        return Draft(tuple(tokens), parents, None, self.name)

    def observe(self, sequences: Any, outcomes: Any, scored: Any) -> None: ...

    def end(self, sequence: Any) -> None: ...


@pytest.mark.parametrize(("model", "guesses"), [*((m, 8) for m in REWINDABLE), ("mamba", 0)], indirect=["model"])
def test_greedy_text_under_a_drafter_is_what_transformers_generates(model: GenericModel, guesses: int) -> None:
    prompts = [some(n, seed=60 + n) for n in (2, 9, 15)]
    truths = {len(p): transformers_greedy(model, p, 20) for p in prompts}
    sequences = [TokenSequence(list(p), limit=len(p) + 20) for p in prompts]
    target, drafter, tally = CachedTarget(model), HalfRight(truths, guesses), Tally()
    for sequence in sequences:
        target.begin(sequence)
    while alive := [t for t in sequences if t.finish_reason is None]:
        run_round(alive, target, drafter, FixedPlanner(guesses), [tally])
    assert (tally.total.accepted > 5) == (guesses > 0)
    assert {t.prompt_length: t.answer for t in sequences} == truths


# --- what is refused --------------------------------------------------------------------------------------------------


def test_modules_that_cannot_be_run_are_refused_in_a_sentence() -> None:
    small = {k: BASE[k] for k in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    torch.manual_seed(0)
    bert = AutoModelForCausalLM.from_config(transformers.BertConfig(**small, intermediate_size=40)).eval()
    with pytest.raises(UnsupportedModel, match="both directions"):
        GenericModel(bert)
    as_decoder = transformers.BertConfig(**small, intermediate_size=40, is_decoder=True)
    assert GenericModel(AutoModelForCausalLM.from_config(as_decoder).eval()).rewindable
    t5 = transformers.T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        GenericModel(transformers.T5ForConditionalGeneration(t5).eval())
    with pytest.raises(UnsupportedModel, match="AutoModelForCausalLM"):
        GenericModel(build("gpt2").transformer)
    gpt1 = transformers.OpenAIGPTConfig(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    with pytest.raises(UnsupportedModel, match="keeps no cache"):
        GenericModel(AutoModelForCausalLM.from_config(gpt1).eval())
    with pytest.raises(UnsupportedModel, match="not a transformers model"):
        GenericModel(torch.nn.Linear(2, 2))
    with pytest.raises(OptionError, match="lies on cpu, not on cuda"):
        GenericModel(build("gpt2"), device="cuda")
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(transformers.GPT2Config(**GPT2)).eval()
    with pytest.raises(OptionError, match="no weights yet"):
        GenericModel(empty)


def test_training_mode_is_refused_at_the_start_and_later() -> None:
    module = build("gpt2").train()
    with pytest.raises(OptionError, match=r"call \.eval\(\)"):
        GenericModel(module)
    assert module.training
    model = GenericModel(module.eval())
    module.train()
    with pytest.raises(ModelError, match=r"call \.eval\(\)"):
        model.forward([chain(0, 0, [3])])


def test_a_failing_module_is_one_sentence_and_costs_only_its_slot() -> None:
    model = GenericModel(build("gpt2"))
    model.forward([chain(0, 0, some(5)), chain(1, 0, some(6))])
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel failed in its forward pass: .*index"):
        model.forward([chain(0, 5, [999])])
    with pytest.raises(ModelError, match="holds 0"):
        model.forward([chain(0, 5, [4])])
    exact(model.forward([chain(1, 6, [4])]).logits, plain(model, [*some(6), 4])[-1:])
    exact(model.forward([chain(0, 0, some(5))]).logits, plain(model, some(5)))


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build("gpt_neox", torch.float32).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(("dtype", "tolerance"), [("f64", 1e-5), ("f32", 1e-5), ("bf16", 0.5)])
def test_a_folder_loads_in_the_dtype_asked_for(folder: Path, dtype: str, tolerance: float) -> None:
    level = transformers.utils.logging.get_verbosity()
    model = GenericModel.from_folder(folder, "cpu", dtype)
    assert (model.dtype, model.device, model.module.training) == (dtype, "cpu", False)
    truth = plain(GenericModel(build("gpt_neox", torch.float32)), some(6))
    same(model.forward([chain(0, 0, some(6))]).logits, truth, tolerance)
    assert transformers.utils.logging.get_verbosity() == level


def test_loading_prints_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    GenericModel.from_folder(folder, "cpu", "f32")
    assert capfd.readouterr() == ("", "")


def test_experts_run_in_double_precision(tmp_path: Path) -> None:
    build("mixtral", torch.float32).save_pretrained(tmp_path)
    model = GenericModel.from_folder(tmp_path, "cpu", "f64")
    assert model.forward([chain(0, 0, some(6))]).logits.dtype == np.float64


@pytest.mark.parametrize("nested", [False, True])
def test_code_in_a_folder_is_never_run(folder: Path, tmp_path: Path, nested: bool) -> None:
    canary = tmp_path / "canary"
    (folder / "modeling_evil.py").write_text(
        f"open({str(canary)!r}, 'w').write('ran')\n"
        "from transformers import GPTNeoXConfig as EvilConfig, GPTNeoXForCausalLM as EvilModel\n"
    )
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(f"open({str(canary)!r}, 'w').write('ran')\n")
    asks = {"AutoConfig": "modeling_evil.EvilConfig", "AutoModelForCausalLM": "modeling_evil.EvilModel"}
    config = (folder / "config.json").read_text()
    if nested:
        edit(folder, text_config={"auto_map": asks, "trust_remote_code": True})
    else:
        edit(folder, auto_map=asks, model_type="evil")
    with pytest.raises(UnsupportedModel, match=r"remote code \(auto_map\)"):
        GenericModel.from_folder(folder, "cpu", "f32")
    assert not canary.exists()
    (folder / "config.json").write_text(config)
    GenericModel.from_folder(folder, "cpu", "f32")
    assert not canary.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attn_implementation": "someone/kernel"}, "remote code"),
        ({"_experts_implementation": {"": "someone/kernel"}}, "remote code"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantised \\(awq\\)"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised \\(gptq\\)"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised \\(fp8\\)"),
        ({"quantization_config": {"load_in_4bit": True}}, "quantised \\(method unnamed\\)"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "nobody_knows"}, "transformers cannot load"),
        ({"model_type": "vit"}, "transformers cannot load"),
        ({"hidden_size": 40}, "transformers cannot load"),
    ],
)
def test_a_config_that_cannot_be_honoured_is_refused(folder: Path, changes: dict[str, Any], words: str) -> None:
    edit(folder, **changes)
    with pytest.raises(UnsupportedModel, match=words) as caught:
        GenericModel.from_folder(folder, "cpu", "f32")
    assert "\n" not in str(caught.value)


def test_folders_that_are_no_models(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no folder"):
        GenericModel.from_folder(tmp_path / "nowhere", "cpu", "f32")
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        GenericModel.from_folder(tmp_path, "cpu", "f32")
    with pytest.raises(OptionError, match="dtype"):
        GenericModel.from_folder(folder, "cpu", "int8")
    with pytest.raises(OptionError, match="does not go to device 'nonsense'"):
        GenericModel.from_folder(folder, "nonsense", "f32")
    (folder / "config.json").write_text("[1, 2]")
    with pytest.raises(ModelError, match="not a JSON object"):
        GenericModel.from_folder(folder, "cpu", "f32")
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        GenericModel.from_folder(folder, "cpu", "f32")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="adapter"):
        GenericModel.from_folder(folder, "cpu", "f32")


def test_pickled_weights_are_never_opened(folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (open, (str(canary), "w"))

    (folder / "model.safetensors").unlink()
    torch.save(Evil(), folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="pickled"):
        GenericModel.from_folder(folder, "cpu", "f32")
    # nor by way of an index that names them beside a decoy
    build("gpt_neox", torch.float32).save_pretrained(folder, max_shard_size="20kB")
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    listed["weight_map"] |= {next(iter(listed["weight_map"])): "pytorch_model.bin"}
    index.write_text(json.dumps(listed))
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin"):
        GenericModel.from_folder(folder, "cpu", "f32")
    listed["weight_map"] |= {next(iter(listed["weight_map"])): "../elsewhere.safetensors"}
    index.write_text(json.dumps(listed))
    with pytest.raises(WeightsError, match="in its folder"):
        GenericModel.from_folder(folder, "cpu", "f32")
    assert not canary.exists()


def test_damaged_and_incomplete_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    with pytest.raises(WeightsError, match="damaged or truncated"):
        GenericModel.from_folder(folder, "cpu", "f32")
    weights.write_bytes(content)
    edit(folder, num_hidden_layers=4)
    with pytest.raises(WeightsError, match=r"lack \d+ tensors of the model, such as gpt_neox\.layers\.3"):
        GenericModel.from_folder(folder, "cpu", "f32")


def test_without_transformers_the_way_out_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    module = build("gpt2")
    monkeypatch.setattr(builtins, "__import__", without)
    for load in (lambda: GenericModel.from_folder(folder, "cpu", "f32"), lambda: GenericModel(module)):
        with pytest.raises(UnsupportedModel, match=r"pip install 'foredraft\[torch\]'"):
            load()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["gpt2", "mistral", "lfm2"])
def test_on_a_gpu_logits_stay_there_and_agree(kind: str) -> None:
    model = GenericModel(build(kind).cuda(), device="cuda")
    on_cpu = GenericModel(build(kind))
    rows = [[chain(0, 0, some(20), 1)], [Rows(0, 19, (4, 5, 6, 7), (-1, 0, 0, 2), 3)], [chain(0, 20, some(5))]]
    for row in rows:
        got = model.forward(row, taps=(0,))
        assert got.logits.is_cuda
        assert got.hidden[0].is_cuda
        same(got.logits.cpu().numpy(), on_cpu.forward(row).logits, 1e-6)

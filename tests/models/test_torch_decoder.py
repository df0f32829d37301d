"""The decoder against transformers' own, family by family, in float32; and its promise about bits in bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from foredraft.errors import OptionError, WeightsError
from foredraft.models.model import Rows
from foredraft.models.torch_decoder import attention
from foredraft.models.torch_decoder.decoder import TorchDecoder
from tests.models.checkpoints import FAMILIES, make_checkpoint
from tests.models.decoders import CASES, TEXT, TREE, broken, chain, open_decoder


@dataclass(frozen=True, slots=True)
class Case:
    reference: Any
    decoder: TorchDecoder

    def expected(self, tokens: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            logits: np.ndarray = self.reference(torch.tensor([tokens])).logits[0].numpy()
        return logits


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, overrides = CASES[request.param]
    folder = make_checkpoint(family, tmp_path_factory.mktemp(family), **overrides)
    theirs = AutoModelForImageTextToText if family == "gemma3" else AutoModelForCausalLM
    reference = theirs.from_pretrained(folder, attn_implementation="eager").eval()
    return Case(reference, open_decoder(folder, dtype="f32"))


def close(ours: Any, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-5)


def test_whole_text_at_once(case: Case) -> None:
    scored = case.decoder.forward([chain(TEXT, 0, len(TEXT))])
    assert scored.logits.dtype == np.float32
    close(scored.logits, case.expected(TEXT))


def test_in_pieces(case: Case) -> None:
    expected = case.expected(TEXT)
    edges = [0, 1, 2, 7, 20, 37, len(TEXT)]
    for start, stop in pairwise(edges):
        wanted = min(3, stop - start)
        scored = case.decoder.forward([chain(TEXT, start, stop, wanted)])
        close(scored.logits, expected[stop - wanted : stop])
    for start in range(30, 36):  # back, and on one by one
        close(case.decoder.forward([chain(TEXT, start, start + 1)]).logits, expected[start : start + 1])
    assert case.decoder.forward([chain(TEXT, 36, 40, 0)]).logits.shape == (0, 97)


def test_tree_is_each_of_its_paths(case: Case) -> None:
    start, guesses = 21, (5, 9, 11, 5, 40, 41)
    case.decoder.forward([chain(TEXT, 0, start, 0)])
    scored = case.decoder.forward([Rows(0, start, guesses, TREE, len(guesses))])
    paths = [(0,), (0, 1), (0, 2), (3,), (0, 1, 4), (0, 2, 5)]
    for row, path in enumerate(paths):
        text = (*TEXT[:start], *(guesses[node] for node in path))
        close(scored.logits[row], case.expected(text)[-1])
    assert case.decoder.compact(0, start, [0, 2, 5]) == 3
    text = (*TEXT[:start], *(guesses[node] for node in paths[5]), 17, 18)
    close(case.decoder.forward([chain(text, start + 3, start + 5)]).logits, case.expected(text)[-2:])


def test_ragged_batch(case: Case) -> None:
    texts = {0: TEXT[:13], 3: TEXT[5:41], 1: TEXT[20:22]}
    for slot, text in texts.items():
        case.decoder.forward([chain(text, 0, len(text) - 1, 0, slot)])
    guesses = {0: ((7, 8), (-1, 0)), 3: ((), ()), 1: ((4, 5, 6), (-1, -1, 1))}
    rows = []
    for slot, text in texts.items():
        tokens, parents = guesses[slot]
        rows.append(Rows(slot, len(text) - 1, (text[-1], *tokens), (-1, *(p + 1 for p in parents)), 1 + len(tokens)))
    scored = case.decoder.forward(rows, taps=(-1, 0))
    assert scored.starts == (0, 3, 4)
    assert {layer: h.shape for layer, h in scored.hidden.items()} == {-1: (8, 32), 0: (8, 32)}
    close(scored.logits[:3], case.expected((*texts[0], 7, 8))[-3:])
    close(scored.logits[3], case.expected(texts[3])[-1])
    close(scored.logits[[4, 5]], case.expected((*texts[1], 4))[-2:])
    close(scored.logits[[6, 7]], case.expected((*texts[1], 5, 6))[-2:])
    case.decoder.release(3)
    close(case.decoder.forward([chain(TEXT, 0, 9, 1, 3)]).logits[0], case.expected(TEXT[:9])[-1])


def test_hidden_states_are_the_layers_outputs(case: Case) -> None:
    with torch.no_grad():
        states = case.reference(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    scored = case.decoder.forward([chain(TEXT, 0, len(TEXT), 4)], taps=(-1, 1))
    for layer in (-1, 1):
        close(scored.hidden[layer], states[layer + 1][0, -4:].numpy())


def test_a_window_counts_positions_not_places_along_a_deep_branch(tmp_path: Path) -> None:
    folder = make_checkpoint("mistral", tmp_path, sliding_window=3)
    decoder = open_decoder(folder, dtype="f32")
    reference = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    decoder.forward([chain(TEXT, 0, 10, 0)])
    parents = (-1, 0, 0, 0, 3, 4, 5)  # two siblings lie between the branch's first row and its second
    scored = decoder.forward([Rows(0, 10, (5, 8, 9, 6, 7, 8, 9), parents, 7)])
    with torch.no_grad():
        expected = reference(torch.tensor([(*TEXT[:10], 5, 6, 7, 8, 9)])).logits[0].numpy()
    close(scored.logits[[0, 3, 4, 5, 6]], expected[-5:])


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_slots_grow_and_windows_hold_far_out(tmp_path: Path, family: str) -> None:
    folder = make_checkpoint(family, tmp_path, max_position_embeddings=2048)
    text = tuple(int(token) for token in np.random.default_rng(1).integers(3, 97, 1300))
    reference = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = reference(torch.tensor([text])).logits[0].numpy()
    decoder = open_decoder(folder, dtype="f32")
    for start in range(0, 1290, 300):
        decoder.forward([chain(text, start, min(start + 300, 1290), 0)])
    close(decoder.forward([chain(text, 1290, 1300)]).logits, expected[1290:])


def test_float64_is_float64(tmp_path: Path) -> None:
    decoder = open_decoder(make_checkpoint("llama", tmp_path), dtype="f64")
    together = decoder.forward([chain(TEXT, 0, 20)]).logits
    assert together.dtype == np.float64
    alone = np.concatenate([decoder.forward([chain(TEXT, i, i + 1)]).logits for i in range(20)])
    np.testing.assert_allclose(alone, together, rtol=0, atol=1e-12)
    with pytest.raises(OptionError, match="dtype"):
        open_decoder(tmp_path, dtype="f16")


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "olmo2"])
def test_bfloat16_is_near_transformers(tmp_path: Path, family: str) -> None:
    folder = make_checkpoint(family, tmp_path)
    exact = open_decoder(folder, dtype="f32").forward([chain(TEXT, 0, 48)]).logits
    ours = open_decoder(folder).forward([chain(TEXT, 0, 48)]).logits
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        theirs = reference(torch.tensor([TEXT])).logits[0].float().numpy()
    assert np.abs(ours - exact).mean() < 1.2 * np.abs(theirs - exact).mean()


WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "max_position_embeddings": 512}


def open_wide(family: str, folder: Path) -> TorchDecoder:
    """Open a decoder in bfloat16 that has read 180 tokens; skip the test where torch's products keep no promise."""
    decoder = open_decoder(make_checkpoint(family, folder, **WIDE))
    products = [
        decoder._head,
        *(p for layer in decoder._layers for p in (layer.qkv, layer.o, layer.gate_up, layer.down)),
    ]
    for weight in (product.weight for product in products):
        x = torch.randn(30, weight.shape[1], dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
        if any(not F.linear(x[:n], weight).equal(F.linear(x, weight)[:n]) for n in range(2, 31)):
            pytest.skip("torch's own product has other bits for other numbers of rows on this machine")
    decoder.forward([chain(TEXT * 5, 0, 180, 0)])
    return decoder


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_a_rows_bits_do_not_hang_on_its_company(tmp_path: Path, family: str) -> None:
    """In bfloat16 on the CPU: alone, in a chain of any length, beside another sequence, after any prefill."""
    decoder, text = open_wide(family, tmp_path), TEXT * 5
    alone = np.concatenate([decoder.forward([chain(text, 180 + i, 181 + i)]).logits for i in range(12)])
    for n in (2, 3, 4, 5, 8, 9, 12):
        np.testing.assert_array_equal(decoder.forward([chain(text, 180, 180 + n)]).logits, alone[:n])
    decoder.forward([chain(text, 0, 50, 0, slot=1)])
    rows = [chain(text, 50, 53, slot=1), chain(text, 180, 187)]
    np.testing.assert_array_equal(decoder.forward(rows).logits[3:], alone[:7])


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_a_rows_bits_do_not_hang_on_keys_that_it_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """A chain that outgrows its last block of keys brings another block to rows that see none of it."""
    decoder, text = open_wide(family, tmp_path), TEXT * 5
    calls: list[tuple[Any, ...]] = []

    def recorded(q: Any, keys: Any, values: Any, bias: Any, scale: float) -> Any:
        calls.append((q, keys.clone(), values.clone(), bias, scale))
        return F.scaled_dot_product_attention(q, keys, values, bias, scale=scale)

    monkeypatch.setattr(attention, "F", SimpleNamespace(scaled_dot_product_attention=recorded, pad=F.pad))
    alone = np.concatenate([decoder.forward([chain(text, 180 + i, 181 + i)]).logits for i in range(30)])
    monkeypatch.undo()
    assert calls
    for q, keys, values, bias, scale in calls:  # the same keys, and so many hidden ones as the chain brings
        before = F.scaled_dot_product_attention(q, keys, values, bias, scale=scale)
        more = 4 * attention.KEYS - keys.shape[2]
        keys, values = (torch.cat([known, known[:, :, :more]], 2) for known in (keys, values))
        bias = F.pad(bias, (0, more), value=attention.NEVER)
        if not F.scaled_dot_product_attention(q, keys, values, bias, scale=scale).equal(before):
            pytest.skip("torch's own attention has other bits beside keys that are hidden from it on this machine")
    for n in (16, 30):
        np.testing.assert_array_equal(decoder.forward([chain(text, 180, 180 + n)]).logits, alone[:n])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"),
        (lambda t: t.pop("lm_head.weight"), r"no lm_head\.weight"),
        (lambda t: t.update({"model.norm.weight": torch.ones(31)}), r"model\.norm\.weight has the shape \[31\]"),
        (lambda t: t.update({"model.layers.3.mlp.up_proj.weight": torch.ones(1)}), r"no use for model\.layers\.3\.mlp"),
        (lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int32)}), r"model\.norm\.weight is I32"),
    ],
)
def test_weights_that_are_not_the_model(tmp_path: Path, change: Any, says: str) -> None:
    folder = broken(make_checkpoint("llama", tmp_path), change)
    with pytest.raises(WeightsError, match=says):
        open_decoder(folder)


def test_tied_head_may_be_stored_or_not_and_old_buffers_are_passed_over(tmp_path: Path) -> None:
    folder = make_checkpoint("llama", tmp_path, tie_word_embeddings=True)
    expected = open_decoder(folder, dtype="f32").forward([chain(TEXT, 0, 9)]).logits

    def as_of_old(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)

    again = open_decoder(broken(folder, as_of_old), dtype="f32").forward([chain(TEXT, 0, 9)]).logits
    np.testing.assert_array_equal(again, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_says_the_same(tmp_path: Path, family: str) -> None:
    folder = make_checkpoint(family, tmp_path)
    ours, theirs = open_decoder(folder, dtype="f32"), open_decoder(folder, dtype="f32", device="cuda")
    passes = [
        [chain(TEXT, 0, 30, 2)],
        [Rows(0, 30, (5, 9, 11, 5, 40, 41), TREE, 6)],
        [chain(TEXT, 30, 31), chain(TEXT, 0, 5, slot=1)],
    ]
    for rows in passes:
        here, there = ours.forward(rows, taps=(0,)), theirs.forward(rows, taps=(0,))
        close(there.logits.cpu().numpy(), here.logits)
        close(there.hidden[0].cpu().numpy(), here.hidden[0])
    for decoder in (ours, theirs):
        decoder.forward([Rows(0, 30, (5, 9, 11, 5, 40, 41), TREE, 0)])
        assert decoder.compact(0, 30, [0, 2, 5]) == 3
    here, there = (decoder.forward([Rows(0, 33, (8,), (-1,), 1)]).logits for decoder in (ours, theirs))
    close(there.cpu().numpy(), here)

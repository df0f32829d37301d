"""The module that is trained gives, row by row and step by step, what the runtime gives, and what the equations say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from foredraft.models.checkpoint import open_weights
from foredraft.models.heads.file import write_heads
from foredraft.models.heads.open import open_heads
from foredraft.models.layout import decoder_prefix
from foredraft.models.rope import Rope
from foredraft.models.spec import DecoderSpec
from foredraft.training.heads.draft_module import Student, chosen_layers, student_shape
from foredraft.training.heads.making import tensors_of
from foredraft.training.heads.module import HeadsShape, MedusaHeads, RecurrentHeads
from tests.models.checkpoints import make_checkpoint
from tests.models.decoders import open_decoder
from tests.models.heads import spec_of_heads
from tests.models.heads_by_hand import Equations
from tests.native.models import spec_of

LENGTH, STEPS = 9, 4
TAPS = (0, 1, 2)


def scrambled(module: Any) -> Any:
    """Random weights that bfloat16 holds exactly, so that the file holds the module."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in module.parameters():
            values = torch.randn(p.shape, generator=draw)
            values = values / p.shape[-1] ** 0.5 if p.ndim == 2 else 1 + 0.2 * values
            p.copy_(values.bfloat16().float())
    return module


@pytest.fixture(scope="module", params=["llama", "gemma2", "granite"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp("target"))


def inputs(folder: Path) -> tuple[Tensor, Tensor, Tensor]:
    """States [1, L, taps, H], tokens [1, L + 1] and their embeddings as the target scales them."""
    spec: DecoderSpec = spec_of(folder)
    rng = np.random.default_rng(5)
    states = torch.from_numpy(rng.normal(size=(1, LENGTH, len(TAPS), spec.hidden)).astype(np.float32))
    tokens = torch.from_numpy(rng.integers(3, spec.vocabulary, (1, LENGTH + 1)))
    weights = open_weights(folder)
    table = torch.from_numpy(np.array(weights.raw(f"{decoder_prefix(weights.names())}embed_tokens.weight")))
    return states, tokens, F.embedding(tokens, table) * spec.embedding_scale


def written(folder: Path, path: Path, module: Any, kind: str) -> Path:
    given = {"kind": kind, "taps": TAPS, "mlp": 40, "heads": 4, "kv_heads": 2, "head_dim": 8, "rope_theta": 50.0}
    spec = spec_of_heads(folder, **(given if kind == "recurrent" else {"kind": kind, "taps": TAPS, "steps": STEPS}))
    write_heads(path, spec, tensors_of(module, np.arange(0, spec.vocabulary, 2, dtype=np.int32)))
    return path


def shape_of(folder: Path) -> HeadsShape:
    return HeadsShape(spec_of(folder).hidden, 40, 4, 2, 8, len(TAPS), 1e-5, Rope(8, 50.0))


def test_each_step_is_the_runtimes(target: Path, tmp_path: Path) -> None:
    """Step j at row r: the true rows up to c = r - j, then j steps over its own states."""
    module = scrambled(RecurrentHeads(shape_of(target)))
    path = written(target, tmp_path / "h.safetensors", module, "recurrent")
    states, tokens, embeddings = inputs(target)
    with torch.no_grad():
        steps = module.unrolled(states, embeddings, STEPS)
    text = tokens[0].tolist()
    runtime = {
        dtype: open_heads(str(path), open_decoder(target, dtype=dtype), target, tmp_path, "tiny")
        for dtype in ("f32", "f64")
    }
    equations = Equations(target, path)
    compared = 0
    for c in range(LENGTH):
        last = min(STEPS, LENGTH - c)
        known = [states[0, : c + 1, tap].numpy() for tap in range(len(TAPS))]
        wanted = equations.chain([s.astype(float) for s in known], text[1 : c + 2], text[c + 2 : c + 1 + last])
        for dtype, heads in runtime.items():
            wide = [s.astype(np.float64 if dtype == "f64" else np.float32) for s in known]
            slot = heads.take()
            state, _ = heads.read(slot, 0, wide, text[1 : c + 2])
            for j in range(last):
                if j:
                    state, _ = heads.step(slot, c + j, state, text[c + j + 1])
                mine = steps[j][0, c + j].numpy()
                np.testing.assert_allclose(mine, state, rtol=0, atol=1e-4)
                np.testing.assert_allclose(mine, wanted[j][0], rtol=0, atol=1e-4)
                compared += 1
            heads.release(slot)
    assert compared == 2 * sum(LENGTH - j for j in range(STEPS))


def test_medusas_rows_are_the_runtimes(target: Path, tmp_path: Path) -> None:
    module = scrambled(MedusaHeads(shape_of(target), STEPS))
    path = written(target, tmp_path / "h.safetensors", module, "medusa")
    states, _, embeddings = inputs(target)
    with torch.no_grad():
        steps = module.unrolled(states, embeddings, STEPS)
    heads = open_heads(str(path), open_decoder(target, dtype="f64"), target, tmp_path, "tiny")
    equations = Equations(target, path)
    for t in range(LENGTH):
        rows = heads.rows([states[0, t : t + 1, tap].double().numpy() for tap in range(len(TAPS))])
        for j in range(min(STEPS, LENGTH - t)):  # head j + 1 at row t foretells token t + 2 + j: row t + j's
            logits = equations.logits(steps[j][0, t + j].double().numpy())
            np.testing.assert_allclose(logits, rows[j], rtol=0, atol=1e-4 * max(1, np.abs(rows[j]).max()))


def test_a_text_does_not_see_what_is_beside_or_behind_it(target: Path) -> None:
    module = scrambled(RecurrentHeads(shape_of(target)))
    states, _, embeddings = inputs(target)
    noise = torch.Generator().manual_seed(9)
    both = torch.cat([states, torch.randn(states.shape, generator=noise)])
    beside = torch.cat([embeddings, torch.randn(embeddings.shape, generator=noise)])
    both[0, 6:], beside[0, 7:] = 7.0, 7.0
    with torch.no_grad():
        alone = module.unrolled(states, embeddings, STEPS)
        together = module.unrolled(both, beside, STEPS)
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(a[0, :6], b[0, :6], rtol=0, atol=1e-5)
        assert not torch.allclose(a[0, 6], b[0, 6], atol=1e-2)


@pytest.mark.parametrize("config", [
    {"attention_bias": False, "mlp_bias": False},
    {},
    {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }},
])  # fmt: skip
def test_a_student_of_all_layers_is_its_target(tmp_path: Path, config: Any) -> None:
    folder = make_checkpoint("llama", tmp_path, **config)
    spec, weights = spec_of(folder), open_weights(folder)
    student = Student(student_shape(spec, "tiny"), spec.layers, (spec.qkv_bias, spec.o_bias, spec.mlp_bias))
    with torch.no_grad():
        for i, block in enumerate(student.blocks):
            for name, part in block.named(f"model.layers.{i}.").items():  # type: ignore[operator]
                part.copy_(torch.from_numpy(np.array(weights.raw(name))))
        student.norm.weight.copy_(torch.from_numpy(np.array(weights.raw("model.norm.weight"))))
        _, tokens, embeddings = inputs(folder)
        (mine,) = student.unrolled(torch.zeros(()), embeddings, 1)
    head = torch.from_numpy(np.array(weights.raw("lm_head.weight")))
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits[:, 1:]
    torch.testing.assert_close(mine @ head.T, wanted, rtol=0, atol=1e-4)


def test_which_layers_a_student_begins_as() -> None:
    assert chosen_layers(30, 4) == (0, 10, 19, 29)
    assert chosen_layers(3, 2) == (0, 2)
    from foredraft.errors import DrafterError

    with pytest.raises(DrafterError, match="a draft of 3 layers is no smaller than a model of 3"):
        chosen_layers(3, 3)


@pytest.mark.parametrize("family", ["gemma2", "granite", "qwen3", "phi3", "olmo2", "smollm3"])
def test_targets_that_are_not_built_like_a_llama(tmp_path: Path, family: str) -> None:
    from foredraft.errors import DrafterError

    with pytest.raises(DrafterError, match="tiny is not built like a Llama"):
        student_shape(spec_of(make_checkpoint(family, tmp_path)), "tiny")

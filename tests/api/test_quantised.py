"""A GGUF file through the API: when it runs from its own blocks, when it is widened, and what is said of it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind

import foredraft
from foredraft.errors import StorageError, WeightsError
from foredraft.measure.bench.peers import find_peers, gguf_of
from foredraft.measure.roofline.roofline import weights_of
from foredraft.models import runner
from foredraft.models.gguf.link import LINK
from foredraft.models.heads.file import write_heads
from foredraft.models.spec import UnsupportedModel
from foredraft.runtime.loaded_model import Machine, open_draft_model, open_model
from tests.models.heads import random_heads, spec_of_heads
from tests.models.quantised_files import quantised_file
from tests.tiny import make_chat_model

WHY = "the native pass was not built"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return quantised_file(folder / "tiny.gguf", Kind.Q4_0, {"attn_v": Kind.Q6_K}, vocabulary=260)


def load(model: Path, cache: Path, **options: Any) -> foredraft.LanguageModel:
    return foredraft.load(model, **{"drafter": "none", "cache": cache, "threads": 1, "device": "cpu", **options})


def test_a_gguf_runs_from_its_own_blocks(path: Path, tmp_path: Path) -> None:
    lm = load(path, tmp_path)
    assert (lm.loaded.dtype, lm.loaded.tier[:7]) == ("file", "native-")
    assert lm.slower_paths == []
    assert lm.loaded.install_note is not None
    assert re.match(r"\d[\d.]* (kB|MB) of packed weights are kept in ", lm.loaded.install_note)
    result = lm.generate("AB", raw=True, max_tokens=20)
    assert result.dtype == "file"
    again = load(path, tmp_path, dtype="file")
    assert (again.loaded.dtype, again.loaded.notice, again.loaded.install_note) == ("file", None, None)
    assert again.loaded.fingerprint == lm.loaded.fingerprint
    assert again.generate("AB", raw=True, max_tokens=20).token_ids == result.token_ids
    assert not list(tmp_path.glob("*/model.safetensors"))


def test_it_is_widened_where_it_is_asked_for_or_must_be(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, dtype in (
        ({"dtype": "bf16"}, "bf16"),
        ({"dtype": "f32"}, "f32"),
        ({"dtype": "f64"}, "f64"),
        ({"native_tier": "off"}, "bf16"),
    ):
        loaded = load(path, tmp_path, **options).loaded
        assert loaded.folder is not None
        assert (loaded.dtype, (loaded.folder.path / "model.safetensors").is_file()) == (dtype, True)
        assert loaded.notice is None
    off = load(path, tmp_path, native_tier="off", dtype="file").loaded
    assert off.dtype == "bf16"
    assert off.notice == (
        "the file's blocks cannot be run as they are, because native_tier off asks for torch; its weights are widened "
        "to bf16, 2 MB"
    )
    monkeypatch.setattr(runner, "why_not_native", lambda: WHY)
    loaded = load(path, tmp_path, dtype="file").loaded
    assert (loaded.dtype, loaded.tier) == ("bf16", "torch")
    assert loaded.notice is not None
    assert loaded.notice.startswith(f"the file's blocks cannot be run as they are, because {WHY}; its weights")
    assert load(path, tmp_path).loaded.dtype == "bf16"


def test_the_folder_of_a_link_is_a_model_too(path: Path, tmp_path: Path) -> None:
    folder = load(path, tmp_path).loaded.folder
    assert folder is not None
    assert load(folder.path, tmp_path).loaded.dtype == "file"
    wide = load(folder.path, tmp_path, dtype="f32").loaded
    assert wide.folder is not None
    assert (wide.dtype, (wide.folder.path / LINK).exists()) == ("f32", False)


def test_other_folders_keep_the_type_they_have(tmp_path: Path) -> None:
    folder = make_chat_model(tmp_path / "tiny")
    assert load(folder, tmp_path / "cache", dtype="file").loaded.dtype == "f32"
    assert load(folder, tmp_path / "cache").loaded.dtype == "bf16"


def test_a_family_of_transformers_own_reads_widened_weights(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*_: object) -> None:
        raise UnsupportedModel("model type llama has no entry", elsewhere=True)

    monkeypatch.setattr("foredraft.models.folder.read_spec", elsewhere)
    loaded = load(path, tmp_path, dtype="file").loaded
    assert (loaded.tier, loaded.dtype) == ("transformers", "bf16")
    assert loaded.notice is not None
    assert "cannot be run as they are, because model type llama has no entry" in loaded.notice


def test_a_cache_that_cannot_be_written_to_costs_time_at_each_start_and_nothing_else(
    path: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "cache"
    lm = load(path, cache)
    assert lm.loaded.dtype == "file"
    assert lm.loaded.notice is not None
    assert lm.loaded.notice.startswith("what the file says of itself is read at each start: cannot write under")
    assert "weights are packed at each start" in lm.loaded.notice
    assert lm.generate("AB", raw=True, max_tokens=5).completion_tokens
    with pytest.raises(StorageError):
        load(path, cache, dtype="bf16")


def test_a_file_that_goes_between_two_loads_is_a_sentence(path: Path, tmp_path: Path) -> None:
    own = Path(shutil.copy(path, tmp_path / "a.gguf"))
    folder = load(own, tmp_path / "cache").loaded.folder
    assert folder is not None
    own.unlink()
    with pytest.raises(WeightsError, match=r"a\.gguf is gone"):
        load(folder.path, tmp_path / "cache")


@pytest.mark.parametrize("drafter", ["suffix", "layers:1", "heads:FILE", "model:FILE", "model:FOLDER"])
def test_whoever_drafts_the_text_is_the_plain_one(drafter: str, path: Path, tmp_path: Path) -> None:
    lm = load(path, tmp_path)
    assert lm.loaded.folder is not None
    spec = spec_of_heads(lm.loaded.folder.path)
    heads = tmp_path / "heads.safetensors"
    write_heads(heads, spec, random_heads(spec, range(60, 160)))
    names = {
        "heads:FILE": f"heads:{heads}",
        "model:FILE": f"model:{path}",
        "model:FOLDER": f"model:{_bf16(path, tmp_path)}",
    }
    options: dict[str, Any] = {"raw": True, "max_tokens": 40, "drafter": names.get(drafter, drafter), "draft_tokens": 4}
    plain = lm.generate("AB AB AB", raw=True, max_tokens=40)
    drafted = lm.generate("AB AB AB", **options)
    assert drafted.token_ids == plain.token_ids
    assert drafted.speculative.drafted
    seeded = [
        lm.generate("AB", **{**options, "seed": 5, "temperature": 1.0, "drafter": d}).token_ids
        for d in (options["drafter"], "none")
    ]
    assert seeded[0] == seeded[1]


def _bf16(path: Path, cache: Path) -> Path:
    folder = open_model(str(path), Machine(dtype="bf16", cache=cache, device="cpu")).folder
    assert folder is not None
    return folder.path


def test_peers_and_the_roofline_know_what_is_run(path: Path, tmp_path: Path) -> None:
    loaded = load(path, tmp_path).loaded
    assert loaded.folder is not None
    assert gguf_of(loaded, "an alias") == path.resolve()
    _, absent = find_peers(loaded, str(path), 1, 64)
    assert "runs from the blocks of its file" in absent["transformers"]
    weights = weights_of(loaded.target.model, loaded.dtype)
    assert weights is not None
    assert weights.bytes < weights.products  # less than a byte a weight
    assert weights.floor_bytes is not None
    assert weights.bytes <= weights.floor_bytes


def test_a_draft_beside_it_is_rounded(path: Path, tmp_path: Path) -> None:
    draft = make_chat_model(tmp_path / "draft")
    target = load(path, tmp_path)
    hosts = {
        name: open_draft_model(str(draft), Machine("cpu", dtype, 1, cache=tmp_path), loaded)
        for name, dtype, loaded in (("auto", "auto", target.loaded), ("asked", "bf16", target.loaded))
    }
    assert (hosts["auto"].dtype, hosts["asked"].dtype) == ("rounded", "bf16")
    wide = load(path, tmp_path, dtype="bf16")
    assert open_draft_model(str(draft), Machine("cpu", threads=1, cache=tmp_path), wide.loaded).dtype == "bf16"
    torch = Machine("cpu", threads=1, cache=tmp_path, native_tier="off")
    assert open_draft_model(str(draft), torch, target.loaded).dtype == "bf16"  # torch knows no such type
    assert open_draft_model(str(path), Machine("cpu", threads=1, cache=tmp_path), target.loaded).dtype == "file"


def test_the_text_is_the_targets_with_such_a_draft(path: Path, tmp_path: Path) -> None:
    draft = load(path, tmp_path, dtype="bf16").loaded.folder  # the same model, rounded another way
    assert draft is not None
    lm = load(path, tmp_path)
    for options in ({}, {"seed": 3, "temperature": 1.0}):
        plain = lm.generate("AB", raw=True, max_tokens=24, **options)
        drafted = lm.generate("AB", raw=True, max_tokens=24, drafter=f"model:{draft.path}", draft_tokens=3, **options)
        assert drafted.token_ids == plain.token_ids
        assert 0 < drafted.speculative.accepted <= drafted.speculative.drafted

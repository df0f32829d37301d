"""``foredraft train layers`` on a tiny model, and ``--drafter layers`` after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foredraft.models.layer_choice import choice_file
from tests.cli.conftest import Ask
from tests.tiny import make_chat_model

KEYS = {
    "model", "identity", "layers", "sub_layers", "draft_tokens", "agreement", "cost", "predicted_speedup",
    "measured_speedup", "plain_tokens_per_s", "predicted_tokens_per_s", "measured_tokens_per_s", "tier", "dtype",
    "machine", "date", "pays", "prediction_error", "tokens_a_round", "identical", "answers", "tried", "complete",
    "seconds", "file",
}  # fmt: skip


@pytest.fixture
def train(ask: Ask, tiny: Path, tmp_path: Path) -> Callable[..., Any]:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": text}) for text in ("abab abab", "hello")))

    def run(*words: object) -> Any:
        options = ("--prompts", prompts, "--tokens", 16, "--minutes", 1, "--dtype", "f32", "--threads", 1)
        return ask("train", "layers", "--model", tiny, *options, *words)

    return run


def test_a_search_and_the_drafter_that_finds_it(
    train: Callable[..., Any], ask: Ask, tiny: Path, tmp_path: Path
) -> None:
    first = train("--json")
    assert first.status == 0, first.err
    document = first.document
    assert set(document) == KEYS
    assert document["identical"] == document["answers"] == 2
    path = choice_file(tmp_path / "cache", document["identity"])
    assert document["file"] == str(path)
    assert path.is_file()
    kept = json.loads(path.read_text())
    assert {key: kept[key] for key in ("sub_layers", "draft_tokens")} == {
        key: document[key] for key in ("sub_layers", "draft_tokens")
    }
    asked = ("generate", "abab", "--model", tiny, "--max-tokens", 20, "--dtype", "f32", "--threads", 1, "--json")
    plain, drafted = ask(*asked, "--drafter", "none").document, ask(*asked, "--drafter", "layers").document
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["drafter"] == "layers"
    told = drafted["speculative"]
    assert 0 < told["drafted"] <= kept["draft_tokens"] * told["rounds"]
    again = train()
    assert "note: going on with a search that has tried" in again.err
    for word in ("tried", "left out", "agreement", "guesses", "predicted", "measured", str(path)):
        assert word in again.out
    assert "2 of 2 texts identical" in again.out


def test_a_file_of_its_own_and_for_another_model(train: Callable[..., Any], ask: Ask, tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    assert train("--out", out).status == 0
    assert not (tmp_path / "cache" / "layers").exists()
    other = make_chat_model(tmp_path / "other", num_hidden_layers=2)
    answer = ask("generate", "x", "--model", other, "--drafter", f"layers:{out}")
    assert answer.status == 2
    assert f"{out} was made for" in answer.err
    assert f"not for {other} (" in answer.err


def test_a_model_that_goes_takes_its_choice_along(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "hub"), raising=False)
    from foredraft.models.identity import folder_identity

    folder = tmp_path / "cache" / "own-bf16"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    source = {"kind": "wheel", "name": "own", "file": "x.gguf"}
    (folder / "foredraft.json").write_text(json.dumps({"source": source}))
    path = choice_file(tmp_path / "cache", folder_identity(folder))
    path.parent.mkdir()
    other = choice_file(tmp_path / "cache", "another")
    for file in (path, path.with_suffix(".search.json"), other):
        file.write_text("{}")
    assert ask("models", "remove", "own").status == 0
    assert list(path.parent.iterdir()) == [other]


def test_words_that_make_no_sense(refused: Callable[..., str], tiny: Path) -> None:
    assert "train what? Say heads, draft or layers" in refused("train")
    assert "must be heads or draft or layers, not 'head'" in refused("train", "head")
    assert "--minutes must be a number above 0, not 0.0" in refused("train", "layers", "--minutes", "0")
    assert "--tokens must be at least 4, not 1" in refused("train", "layers", "--tokens", "1")
    assert "nothing.jsonl cannot be read" in refused("train", "layers", "--prompts", "nothing.jsonl")
    assert "transformers' own module" not in refused("train", "layers", "--model", "/nowhere/at/all")

"""``foredraft train layers`` on a tiny model, and ``--drafter layers`` after it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli.training.layers import _verdict
from foredraft.models.views.layer_choice import choice_file
from tests.cli.asking import Ask
from tests.drafters.layers import CHOICE
from tests.tiny import make_chat_model

KEYS = {
    "model", "identity", "layers", "sub_layers", "draft_tokens", "agreement", "cost", "predicted_speedup",
    "measured_speedup", "measured_from", "measured_to", "measured_tokens", "told", "repeats", "answered", "cut",
    "prompts", "plain_tokens_per_s", "predicted_tokens_per_s", "measured_tokens_per_s", "tier", "dtype",
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
    for word in ("tried", "left out", "agreement", "guesses", "predicted", "measured", "spread", str(path)):
        assert word in again.out
    assert "% off what was measured" in again.out
    assert "60 tokens each way" in again.out
    assert "too little to tell whether it is worth it (under 500 tokens measured)" in again.out
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


def test_a_place_that_cannot_be_written_is_refused_before_the_search(
    refused: Callable[..., str], tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "mine.search.json").mkdir()
    before = sorted(tmp_path.iterdir())
    for out, says in (
        ("folder", "cannot write folder: it is a folder"),
        (".", "it is a folder"),
        ("folder/", "--out must name a file, not 'folder/'"),
        ("", "--out must name a file, not ''"),
        ("file/x.json", "file is not a folder"),
        ("mine.json", "cannot write mine.search.json: it is a folder"),
        ("/dev/null", "it is not a regular file"),
        ("n" * 300, "File name too long"),
    ):
        assert says in refused("train", "layers", "--model", "/nowhere/at/all", "--out", out)
    assert sorted(tmp_path.iterdir()) == before


def test_a_cache_that_cannot_be_written_is_refused_before_the_search(
    refused: Callable[..., str], tiny: Path, tmp_path: Path
) -> None:
    from foredraft.models.folder import ModelFolder

    place = tmp_path / "cache" / "layers"
    (own := choice_file(tmp_path / "cache", ModelFolder(tiny).identity)).mkdir(parents=True)
    found = refused("train", "layers", "--model", tiny, "--dtype", "f32", "--tokens", "16")
    assert f"cannot write {own}: it is a folder" in found
    assert list(place.iterdir()) == [own]
    own.rmdir()
    place.rmdir()
    place.write_text("")
    assert f"{place} is not a folder" in refused("train", "layers", "--model", "/nowhere/at/all")


@pytest.mark.parametrize("when", ["answering", "costs"])
def test_ctrl_c_says_what_is_kept(train: Callable[..., Any], when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            f"foredraft.training.layers.finding.{'greedy_answers' if when == 'answering' else 'measure_costs'}", stop
        )
        stopped = train()
    assert (stopped.status, stopped.out) == (130, "")
    if when == "answering":
        assert "stopped: nothing is kept yet, so the same command begins anew" in stopped.err
    else:
        assert (
            "stopped: the answers and the 0 sets tried are kept, so the same command goes on from there" in stopped.err
        )
        monkeypatch.setattr("foredraft.training.layers.finding.greedy_answers", stop)  # they are not asked for again
        assert train().status == 0


def test_what_was_left_is_said(train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = tmp_path / "many.jsonl"
    many.write_text("\n".join(json.dumps({"prompt": f"question {i}"}) for i in range(70)))
    found = train("--prompts", many, "--minutes", 0.2)
    assert found.status == 0, found.err
    assert re.search(r"^\S+ · .* of \d+ answers measured; \d+ prompts left unanswered, for time or number", found.out)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "worth it here"),
        ({"measured_to": 1.0, "measured_from": 0.9}, "NOT worth it here"),
        ({"measured_from": 1.0}, "too little to tell whether it is worth it (1.03 lies within the spread)"),
        ({"measured_tokens": 16}, "too little to tell whether it is worth it (under 500 tokens measured)"),
    ],
)
def test_verdicts(change: dict[str, Any], says: str) -> None:
    assert _verdict(replace(CHOICE, **change)).startswith(says)


def test_a_note_about_the_default(ask: Ask, tiny: Path) -> None:
    answer = ask("generate", "abab", "--model", tiny, "--max-tokens", 4, "--drafter", "layers", "--dtype", "f32")
    assert answer.status == 0
    assert answer.err.count("which nobody has measured for this model") == 1


def test_a_model_that_goes_takes_its_choice_along(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "hub"), raising=False)
    from foredraft.models.folder import ModelFolder

    folder = tmp_path / "cache" / "own-bf16"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    source = {"kind": "wheel", "name": "own", "file": "x.gguf"}
    (folder / "foredraft.json").write_text(json.dumps({"source": source}))
    path = choice_file(tmp_path / "cache", ModelFolder(folder).identity)
    path.parent.mkdir()
    other = choice_file(tmp_path / "cache", "another")
    for file in (path, path.with_suffix(".search.json"), other):
        file.write_text("{}")
    assert ask("models", "remove", "own").status == 0
    assert list(path.parent.iterdir()) == [other]


def test_words_that_make_no_sense(refused: Callable[..., str], tiny: Path) -> None:
    assert "train what? Say heads, draft or layers" in refused("train")
    assert "must be heads or draft or layers, not 'head'" in refused("train", "head")
    assert "--minutes must be a number above 0 and below 1000000, not 0.0" in refused(
        "train", "layers", "--minutes", "0"
    )
    assert "--tokens must be at least 4, not 1" in refused("train", "layers", "--tokens", "1")
    assert "nothing.jsonl cannot be read" in refused("train", "layers", "--prompts", "nothing.jsonl")
    assert "--tokens must be fewer than the 512 of the context" in refused(
        "train", "layers", "--model", tiny, "--tokens", "512", "--dtype", "f32"
    )
    assert "layers[:N|:FILE]" in refused("generate", "x", "--drafter", "guess")
    assert "transformers' own module" not in refused("train", "layers", "--model", "/nowhere/at/all")

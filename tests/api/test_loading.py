"""What one load reads: each file of a model's folder once, and each fact is found once."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import foredraft
from foredraft.models import folder as folder_module
from foredraft.models.folder import ModelFolder
from foredraft.models.gguf.convert import convert_gguf
from foredraft.models.spec import read_spec
from tests.models.quantised_files import quantised_file
from tests.tiny import make_chat_model, write_tokenizer

_opened: list[str] = []
_listening: list[Path] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    # an audit hook stays for good, so it hears only what lies under a folder that a test named
    if event == "open" and _listening and isinstance(arguments[0], str):
        path = Path(arguments[0])
        if path.is_relative_to(_listening[0]) and isinstance(arguments[2], int):
            _opened.append(path.name)


sys.addaudithook(_hear)


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    def during(work: Any) -> Counter[str]:
        _opened.clear()
        _listening.append(tmp_path)
        try:
            work()
        finally:
            _listening.clear()
        return Counter(_opened)

    return during


def load(path: Path, cache: Path) -> foredraft.LanguageModel:
    return foredraft.load(str(path), device="cpu", threads=1, cache=cache)


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_load_reads_each_file_and_finds_each_fact_once(
    kind: str, tmp_path: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_chat_model(tmp_path / "model") if kind == "folder" else quantised_file(tmp_path / "model.gguf")
    cache = tmp_path / "cache"
    load(model, cache)  # packs, converts, and measures what passes cost
    asked: list[str] = []

    def counting(*arguments: Any) -> Any:
        asked.append("spec")
        return read_spec(*arguments)

    monkeypatch.setattr(folder_module, "read_spec", counting)
    found = opened(lambda: load(model, cache))
    assert asked == ["spec"]
    # a folder's identity is of its files' bytes: these are opened for it once more
    again = ("config.json", "model.safetensors") if kind == "folder" else ()
    texts = {name: count - (name in again) for name, count in found.items() if name.endswith(".json")}
    assert texts.pop("gguf.json", 1) == 1
    assert texts["config.json"] == 1
    assert max(texts.values()) == 1, found


def test_what_was_found_is_kept_and_weights_are_let_go(tmp_path: Path) -> None:
    folder = ModelFolder(make_chat_model(tmp_path))
    assert folder.config is folder.config
    assert folder.spec is folder.spec
    weights = folder.weights
    assert folder.weights is weights
    folder.close()
    assert folder.weights is not weights
    assert ModelFolder.of(folder) is folder
    assert ModelFolder.of(tmp_path).identity == folder.identity


def test_the_folder_of_a_link_knows_its_file(tmp_path: Path) -> None:
    path = quantised_file(tmp_path / "model.gguf")
    linked = ModelFolder(convert_gguf(path, tmp_path / "cache", "file"))
    assert linked.gguf == path.resolve()
    assert linked.weight_bytes == path.stat().st_size
    assert (linked.from_gguf, linked.source) == (True, "")
    bare = tmp_path / "bare"
    bare.mkdir()
    write_tokenizer(bare)
    assert (ModelFolder(bare).gguf, ModelFolder(bare).record, ModelFolder(bare).from_gguf) == (None, {}, False)

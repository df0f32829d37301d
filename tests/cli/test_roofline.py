"""``foredraft roofline`` on a tiny model: its tables, its document, its files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Ask


def test_tables_and_files(ask: Ask, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = ask("roofline", "--model", tiny, "--tokens", "8", "--out", out)
    assert done.status == 0
    assert "A pass by its rows" in done.out
    assert "suffix here: " in done.out
    document = json.loads((out / "roofline.json").read_text())
    assert document["rows"][0] == 1
    assert (out / "roofline.png").exists() or "foredraft[plots]" in done.err


def test_the_document_and_two_drafters(ask: Ask, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "ab ab ab ab"}\n')
    words = ["--drafter", "lookup", "--drafter", f"model:{tiny}", "--drafter", "none"]
    done = ask("roofline", "--model", tiny, "--prompts", path, "--tokens", "12", *words, "--json")
    assert done.status == 0
    lookup, model = done.document["drafters"]
    assert (lookup["name"], model["name"]) == ("lookup", "model")
    assert model["acceptance"] > 0.9  # the target itself
    assert model["guess_ms"] > 0.0


def test_what_is_refused(ask: Ask, tiny: Path) -> None:
    assert ask("roofline", "--model", tiny, "--tokens", "1").status == 2
    assert "unknown drafter" in ask("roofline", "--model", tiny, "--drafter", "fast").err

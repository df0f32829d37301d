"""``foredraft roofline`` on a tiny model: its tables, its document, its files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.asking import OWN, Ask


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


def test_a_drafter_that_breaks_costs_its_own_line_alone(ask: Ask, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "own_roofline.py").write_text(OWN.replace("{guess}", "exit('enough')"))
    words = ["--drafter", "own_roofline:Own", "--drafter", "model:absent", "--drafter", "lookup", "--tokens", "8"]
    done = ask("roofline", "--model", tiny, *words, "--json")
    assert done.status == 1
    assert [each["name"] for each in done.document["drafters"]] == ["lookup"]
    absent, own = done.document["failed"]
    assert (absent["name"], own["name"]) == ("model:absent", "own_roofline:Own")
    assert own["fault"] == "drafter own was dropped: propose failed: SystemExit: enough"
    shown = ask("roofline", "--model", tiny, *words)
    assert shown.status == 1
    assert "model:absent failed: " in shown.out
    assert max(map(len, shown.out.splitlines())) <= 100


def test_a_busy_machine_is_told(ask: Ask, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for least, busy in ((0.0, True), (1e9, False)):
        monkeypatch.setattr("foredraft.measure.roofline.machine_load.BUSY", least)
        done = ask("roofline", "--model", tiny, "--tokens", "8", "--json")
        assert done.document["busy"] is done.document["repeats"]["busy"] is busy
        assert done.err.count("foredraft: this machine was busy: the same pass of ") == busy
        assert done.document["plain_pass_gb_s"] > 0
        assert done.document["read_gb_s"] > 0


def test_nothing_is_measured_for_a_place_that_cannot_be(refused: Any, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "roofline.png").mkdir()
    for name, sentence in {
        "": "--out must name a folder, not ''",
        "-": "--out must name a folder, not '-'",
        "file": "cannot write file/roofline.json: ",
        ".": "cannot write roofline.png: it is a folder",
    }.items():
        assert refused("roofline", "--model", tiny, "--out", name).startswith(sentence)


def test_what_is_refused(ask: Ask, tiny: Path) -> None:
    assert ask("roofline", "--model", tiny, "--tokens", "1").status == 2
    assert "unknown drafter" in ask("roofline", "--model", tiny, "--drafter", "fast").err

"""``foredraft certify`` on tiny models."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.asking import OWN, Ask
from tests.tiny import make_chat_model

pytestmark = pytest.mark.slow

KEYS = [
    "ok", "model", "system_fingerprint", "tier", "dtype", "drafters", "rules", "prompts", "tokens", "samples", "seed",
    "checks",
]  # fmt: skip
TEXT = {
    "name",
    "drafter",
    "ok",
    "answers",
    "identical",
    "ties",
    "faults",
    "mean_tokens_per_pass",
    "divergences",
    "note",
}
LAW = {
    "name", "drafter", "ok", "tokens", "drafted", "accepted", "ks_p", "bins_p", "lag_p", "watch_p", "p_value",
    "threshold", "note",
}  # fmt: skip


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    lines = [{"prompt": "abab abab"}, {"turns": ["hello", "and again"]}]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


@pytest.fixture
def certify(ask: Ask, tiny: Path, questions: Path) -> Callable[..., Any]:
    def run(*words: object) -> Any:
        return ask("certify", "--model", tiny, "--prompts", questions, "--tokens", "16", "--dtype", "f32", *words)

    return run


def test_a_certificate_and_its_document(certify: Any, tiny: Path) -> None:
    answer = certify("--drafter", f"model:{tiny}", "--samples", "80", "--json")
    assert answer.out.count("\n") == 1
    document = answer.document
    assert list(document) == KEYS
    assert (answer.status, document["ok"]) == (0, True), document
    assert (document["model"], document["drafters"]) == (str(tiny), ["none", f"model:{tiny}"])
    assert (document["rules"], document["prompts"], document["samples"]) == (["ratio", "coupled"], 3, 80)
    names = [check["name"] for check in document["checks"]]
    assert names == [
        "greedy text", "seeded text", "greedy text", "seeded text", "ratio law", "ratio law, planted fault",
        "coupled law", "coupled law, planted fault", "ratio law, top-p 0.95",
    ]  # fmt: skip
    for check in document["checks"]:
        assert set(check) == (TEXT if "text" in check["name"] else LAW)
        assert check["ok"] is True
        if "text" in check["name"]:
            assert check["identical"] == check["answers"] == (3 if check["drafter"] == "none" else 18)
    assert answer.err.count("certifying") == 1


def test_the_table(certify: Any) -> None:
    answer = certify("--rule", "coupled", "--samples", "4", "--drafter", "lookup", "--color", "never")
    assert answer.status == 1  # 64 tokens are too few to say anything
    lines = answer.out.splitlines()
    assert "3 prompts" in lines[0]
    assert lines[1].startswith("ok      greedy text                  none ")
    assert lines[3].startswith("ok      greedy text                  lookup ")
    assert "18 of 18 answers identical, " in lines[3]
    assert lines[5].startswith("FAILED  coupled law                  lookup ")
    assert lines[6].strip() == "64 tokens are too few: 200 are needed"
    assert lines[-1] == "NOT certified: 3 of 7 checks failed"
    assert "\x1b" not in answer.out


def test_colours(certify: Any) -> None:
    answer = certify("--rule", "ratio", "--samples", "4", "--drafter", "none", "--color", "always")
    assert answer.status == 0
    assert "\x1b[" in answer.out
    assert "no distribution was tested: nothing drafts" in answer.out
    assert "certified: every check holds (2 checks)" in answer.out


@pytest.mark.parametrize(
    ("guess", "words"),
    [("Draft.chain([999])", "own: guessed token 999"), ("None", "own: propose gave a NoneType"), ("1 / 0", "ZeroDiv")],
)
def test_a_stranger_that_breaks_is_a_finding(certify: Any, tmp_path: Path, guess: str, words: str) -> None:
    name = f"own_{abs(hash(guess))}"
    (tmp_path / f"{name}.py").write_text(OWN.replace("{guess}", guess))
    answer = certify("--drafter", f"{name}:Own", "--samples", "2", "--json")
    assert answer.status == 1
    assert answer.document["ok"] is False
    for check in answer.document["checks"]:
        assert check["ok"] is (check["drafter"] == "none")
        assert check["ok"] or words in check["note"]


def test_what_broke_at_once_has_no_figures(certify: Any, tmp_path: Path) -> None:
    (tmp_path / "own_at_once.py").write_text(OWN.replace("{guess}", "1 / 0"))
    answer = certify("--drafter", "own_at_once:Own", "--samples", "2", "--rule", "ratio")
    assert answer.status == 1
    assert "0 of 0" not in answer.out
    assert answer.out.count("it broke: DrafterError: drafter own: propose failed: ZeroDivisionError") == 4


def test_several_drafters(certify: Any, tiny: Path) -> None:
    words = ("--drafter", "lookup", "--drafter", f"lookup+model:{tiny}", "--drafter", "lookup", "--samples", "1")
    document = certify(*words, "--rule", "ratio", "--draft-tokens", "2", "--json").document
    assert document["drafters"] == ["none", "lookup", f"lookup+model:{tiny}"]
    texts = [check for check in document["checks"] if check["name"] == "greedy text"]
    assert [check["identical"] for check in texts] == [3, 18, 18]


def test_a_model_without_a_chat_template(ask: Ask, tiny: Path, tmp_path: Path, questions: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    words = ("--prompts", questions, "--tokens", "8", "--samples", "1", "--drafter", "none")
    answer = ask("certify", "--model", folder, *words)
    assert answer.status == 0
    assert "note: this model has no chat template" in answer.err


def test_the_built_in_prompts(ask: Ask, tmp_path: Path) -> None:
    folder = make_chat_model(tmp_path / "wide", max_position_embeddings=1024)
    words = ("--tokens", "2", "--samples", "1", "--drafter", "none", "--json")
    document = ask("certify", "--model", folder, *words).document
    assert (document["prompts"], document["ok"]) == (12, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--drafter luck", "unknown drafter 'luck'"),
        ("--drafter model:", "drafter model needs a model"),
        ("--rule block", "--rule must be auto or ratio or coupled, not 'block'"),
        ("--tokens 1", "--tokens must be at least 2, not 1"),
        ("--samples 0", "--samples must be at least 1, not 0"),
        ("--seed -1", "--seed must be between 0 and 4294967295 here, not -1"),
        ("--draft-tokens 0", "--draft-tokens must be at least 1 here, not 0"),
        ("--draft-tokens many", "--draft-tokens must be a whole number or auto, not 'many'"),
        ("--draft-temperature -1", "--draft-temperature must be a number of at least 0, not -1.0"),
        ("--draft-temperature nan", "--draft-temperature must be a number of at least 0, not nan"),
        ("--prompts absent.jsonl", "absent.jsonl cannot be read"),
        ("--prompts broken.jsonl", "broken.jsonl, line 2 is not JSON"),
        ("--prompts empty.jsonl", "empty.jsonl holds no prompts"),
        ("--prompts long.jsonl", "prompt 1: the prompt has "),
        ("--temperature 1", "there is no option --temperature"),
        ("--dtype int4", "dtype must be one of"),
        (
            "something",
            "unexpected word 'something': foredraft certify takes options only, see foredraft certify --help",
        ),
    ],
)
def test_bad_arguments(refused: Any, tiny: Path, tmp_path: Path, words: str, sentence: str) -> None:
    (tmp_path / "broken.jsonl").write_text('{"prompt": "a"}\n{"prompt"\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "x" * 600}))
    assert sentence in refused("certify", "--model", tiny, *words.split())


def test_prompts_from_stdin(ask: Ask, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"prompt": "one"}\n'))
    words = ("--prompts", "-", "--tokens", "2", "--samples", "1", "--drafter", "none", "--json")
    assert ask("certify", "--model", tiny, *words).document["prompts"] == 1

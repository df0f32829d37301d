"""``foredraft explain`` on a tiny model: the lines, the document, the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.asking import Ask
from tests.measure.reading import read

PROMPT = "abab abab </script><b>abab</b>"


@pytest.fixture
def explain(ask: Ask, tiny: Path) -> Any:
    def run(*words: object) -> Any:
        return ask("explain", PROMPT, "--model", tiny, "--max-tokens", "40", "--dtype", "f32", *words)

    return run


DRAWN = ("--temperature", "1", "--raw", "--min-tokens", "40")  # without a seed, so that an end might be drawn at once


@pytest.mark.parametrize("words", [(), ("--temperature", "0.9", "--seed", "3"), DRAWN])
def test_the_document_is_that_of_generate_with_its_rounds(ask: Ask, explain: Any, tiny: Path, words: Any) -> None:
    answer = explain("--drafter", f"suffix+model:{tiny}", "--json", *words)
    assert (answer.status, answer.out.count("\n")) == (0, 1)
    document = answer.document
    rounds = document["rounds"]
    assert [token["token"] for each in rounds for token in each["tokens"]] == document["token_ids"]
    assert "".join(token["shown"] for each in rounds for token in each["tokens"]) == document["text"]
    told = document["speculative"]
    assert len(rounds) - 1 == told["rounds"]
    assert sum(len(each["guesses"]) for each in rounds) == told["drafted"]
    assert sum(each["accepted"] for each in rounds) == told["accepted"] > 0
    if "--raw" not in words:
        plain = ("--model", tiny, "--max-tokens", "40", "--dtype", "f32", "--drafter", "none", "--json", *words)
        assert ask("generate", PROMPT, *plain).document["token_ids"] == document["token_ids"]


def test_the_lines(explain: Any) -> None:
    answer = explain("--drafter", "lookup", "--draft-tokens", "3", "--color", "never")
    document = explain("--drafter", "lookup", "--draft-tokens", "3", "--json").document
    table = answer.out.split("round   at", 1)[1]
    assert answer.out.startswith(document["text"].split("\n")[0][:10])
    (heights,) = re.findall(r"^[▁▂▃▄▅▆▇█]+$", answer.out, re.MULTILINE)
    assert len(heights) == len(document["rounds"])
    legend = next(line for line in answer.out.splitlines() if line.startswith("a block a round"))
    assert "easy" in legend
    numbers = [int(found) for found in re.findall(r"^ {0,4}(\d+) ", table, re.MULTILINE)]
    assert numbers == list(range(len(document["rounds"])))
    assert " prompt " in table
    assert "✗" in table
    assert "\x1b" not in answer.out
    assert "40 tokens" in answer.err


def test_colours_and_width(explain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answer = explain("--drafter", "suffix", "--color", "always")
    assert "\x1b[" in answer.out
    bare = re.sub(r"\x1b\[[\d;]*m", "", answer.out)
    rows = bare.split("round   at", 1)[1].splitlines()
    assert max(map(len, rows)) <= 80
    assert all(line.startswith(" ") for line in rows[1:])


def test_the_file(explain: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    answer = explain("--html", path, "--json")
    html = path.read_text(encoding="utf-8")
    reader = read(html)
    assert "<script" not in html
    assert "abab abab </script><b>abab</b>" in "".join(reader.text)
    rows = [attributes["id"] for tag, attributes in reader.seen if tag == "tr" and "id" in attributes]
    assert len(rows) == len(answer.document["rounds"])
    tokens = [attributes for tag, attributes in reader.seen if tag == "span" and "title" in attributes]
    assert len([each for each in tokens if (each["class"] or "").startswith("t ")]) == len(answer.document["token_ids"])
    assert f"the trace is in {path}" in answer.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--html nowhere/trace.html", "--html: 'nowhere/trace.html' lies in no folder that is there: name a file"),
        ("--html .", "--html: '.' is a folder: name a file"),
        ("--html -", "--html writes a file beside the answer on stdout: name one, not '-'"),
        ("--html=", "--html writes a file beside the answer on stdout: name one, not ''"),
        ("--html /dev/null", "--html: '/dev/null' is not a regular file: name one"),
        (f"--html {'a' * 300}", "cannot be written: File name too long"),
        ("--html a.html --html b.html", "--html is there twice: give one"),
        ("--drafter luck", "unknown drafter 'luck'"),
        ("--max-tokens 0", "--max-tokens must be a whole number of at least 1, not 0"),
        ("-n 2", "there is no option -n"),
        ("--raw --system x", "a raw prompt has no system turn: leave system out"),
        ("--cache-share", "--cache-share reads what scopes remember"),
    ],
)
def test_bad_arguments(refused: Any, tiny: Path, words: str, sentence: str) -> None:
    assert sentence in refused("explain", "x", "--model", tiny, *words.split())


def test_a_prompt_is_needed(refused: Any, tiny: Path) -> None:
    assert "a prompt is missing" in refused("explain", "--model", tiny)


def test_what_ends_an_answer_is_one_sentence(refused: Any, tiny: Path) -> None:
    assert "no token" in refused(
        "explain", "x", "--model", tiny, "--regex", "z", "--bad-words", "z", "--max-tokens", "4"
    )


def test_the_planners_reasons_are_told(explain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.planning.planner import AutoPlanner

    monkeypatch.setattr(AutoPlanner, "reasons", lambda self, sequence: f"told at {len(sequence)}")
    answer = explain("--color", "never")
    rounds = re.findall(r"^ {0,4}\d+ ", answer.out.split("round   at", 1)[1], re.MULTILINE)  # how many, time tells
    assert answer.out.count("because told at ") == len(rounds) > 1


def test_a_reason_is_told_when_it_changes(explain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.planning.planner import AutoPlanner

    monkeypatch.setattr(AutoPlanner, "reasons", lambda self, sequence: "late" if len(sequence) > 60 else "early")
    lines = explain("--color", "never", "--drafter", "lookup").out.splitlines()
    told = [line.strip() for line in lines if "because" in line]
    assert told == ["because early", "because late"]
    rounds = explain("--drafter", "lookup", "--json").document["rounds"]
    assert {each["reason"] for each in rounds} == {"early", "late"}
    assert all(each["reason"] for each in rounds)  # the document says it of every round

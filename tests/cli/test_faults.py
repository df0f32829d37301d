"""What fails for one answer, one line or one drafter, and Ctrl-C: what is kept, what is said, and the exit status."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from foredraft.api import Running
from tests.cli.asking import Ask

# "a" is too short for min_tokens, "bcd" is not: some answers end with a fault
DEAD_END = ["--regex", "a|bcd", "--min-tokens", "3", "--temperature", "1", "--seed", "1", "--max-tokens", "9"]
RULED_OUT = "no token is left at token 2 of the answer: --regex and --min-tokens rule every one out"


def write_lines(path: Path, *prompts: str) -> Path:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


def test_faults_of_several_answers(ask: Ask, tiny: Path) -> None:
    done = ask("generate", "hello", "--model", tiny, "-n", "16", *DEAD_END, "--json")
    assert done.status == 2
    failed = [choice["index"] for choice in done.document["choices"] if "error" in choice]
    assert 0 < len(failed) < len(done.document["choices"]) == 16
    said = [line for line in done.err.splitlines() if "no token" in line]
    assert said == [f"foredraft: answer {index + 1}: {RULED_OUT}" for index in failed]
    assert f"16 answers, {done.document['completion_tokens']} tokens ({len(failed)} with an error)" in done.err
    text = ask("generate", "hello", "--model", tiny, "-n", "16", *DEAD_END)
    assert text.status == 2
    assert text.out.count("bcd\n") == 16 - len(failed)
    assert text.err.count(RULED_OUT) == len(failed)


def test_faults_of_several_answers_to_many_prompts(ask: Ask, tiny: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "many.jsonl", "hello", "x" * 600, "more")
    done = ask("generate", "--prompts", path, "--model", tiny, "-n", "16", *DEAD_END, "--json")
    assert done.status == 2
    first, second, third = done.document["results"]
    assert set(second) == {"line", "turn", "error"}
    for entry in (first, third):
        for choice in entry["choices"]:
            where = f"line {entry['line']}, answer {choice['index'] + 1}: "
            assert ("error" in choice) == (f"{where}{RULED_OUT}\n" in done.err)


def test_a_line_that_fails_on_the_way_leaves_the_others(ask: Ask, tiny: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "many.jsonl", *[f"prompt {i}" for i in range(12)])
    done = ask("generate", "--prompts", path, "--model", tiny, *DEAD_END, "--json")
    assert done.status == 2
    entries = done.document["results"]
    assert [entry["line"] for entry in entries] == list(range(1, 13))
    failed = [entry for entry in entries if "error" in entry]
    assert 0 < len(failed) < 12
    for entry in failed:
        assert (entry["finish_reason"], entry["text"]) == ("error", "a")
        assert f"foredraft: line {entry['line']}: {RULED_OUT}\n" in done.err
    assert done.err.count(RULED_OUT) == len(failed)
    assert f"12 answers ({len(failed)} with an error) · " in done.err
    text = ask("generate", "--prompts", path, "--model", tiny, *DEAD_END)
    assert (text.status, text.out.count("bcd\n\n")) == (2, 12 - len(failed))


def test_a_turn_that_fails_ends_its_own_conversation(ask: Ask, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text('{"turns": ["one", "' + "x" * 600 + '", "three"]}\n{"prompt": "hello"}\n')
    done = ask("generate", "--prompts", path, "--model", tiny, "--max-tokens", "5", "--json")
    assert done.status == 2
    where = [(entry["line"], entry["turn"], "error" in entry) for entry in done.document["results"]]
    assert where == [(1, 0, False), (1, 1, True), (2, 0, False)]


def test_what_is_wrong_of_every_line_is_said_once(ask: Ask, tiny: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "many.jsonl", "one", "two")
    done = ask("generate", "--prompts", path, "--model", tiny, "--stop-token-ids", "999", "--json")
    assert (done.status, done.document["results"]) == (2, [])
    assert done.err == "foredraft: line 1: stop token 999 is not in the vocabulary of 260\n"


def test_one_answer_that_fails(ask: Ask, tiny: Path) -> None:
    done = ask("generate", "hello", "--model", tiny, *DEAD_END, "--regex", "a")
    assert (done.status, done.out) == (2, "a\n")
    assert done.err.startswith("1 token (error) · ")
    assert done.err.endswith(f"foredraft: {RULED_OUT}\n")


def test_a_chat_names_options_as_generate_does(ask: Ask, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    done = ask("chat", "--model", tiny, *DEAD_END, "--regex", "a")
    assert done.status == 2
    assert done.err.endswith(f"foredraft: {RULED_OUT}\n")


def interrupt_after(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C once, in place of the next round."""
    calls, whole = iter(range(10_000)), Running.__next__

    def next_round(running: Running) -> None:
        if next(calls) == rounds:
            raise KeyboardInterrupt
        whole(running)

    monkeypatch.setattr(Running, "__next__", next_round)


def test_ctrl_c_keeps_several_answers(ask: Ask, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = ("--temperature", "1", "--seed", "1", "--min-tokens", "30")  # no answer ends before it is interrupted
    words = ("--model", tiny, "-n", "4", *drawn, "--drafter", "none", "--max-tokens", "30")
    interrupt_after(5, monkeypatch)
    done = ask("generate", "hello", *words, "--json")
    assert done.status == 130
    assert [choice["finish_reason"] for choice in done.document["choices"]] == ["cancelled"] * 4
    assert done.document["completion_tokens"] == 20
    assert "4 answers, 20 tokens" in done.err
    interrupt_after(5, monkeypatch)
    text = ask("generate", "hello", *words)
    assert (text.status, text.out.count("of 4]")) == (130, 4)


def test_ctrl_c_keeps_several_answers_to_many_prompts(
    ask: Ask, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "many.jsonl", "one", "two", "three")
    interrupt_after(8 + 1 + 5, monkeypatch)  # the first is eight rounds, and one more look that there are none left
    words = ("--model", tiny, "-n", "2", "--temperature", "1", "--seed", "1", "--drafter", "none", "--max-tokens", "8")
    done = ask("generate", "--prompts", path, *words, "--json")
    assert done.status == 130
    entries = [(e["line"], e["finish_reason"], e["completion_tokens"]) for e in done.document["results"]]
    assert entries == [(1, "length", 16), (2, "cancelled", 10)]
    assert done.document["completion_tokens"] == 26


def test_a_users_drafter_that_breaks(ask: Ask, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_faults.py").write_text(
        "class Own:\n"
        "    name, taps = 'own', ()\n"
        "    def begin(self, sequence): pass\n"
        "    def propose(self, sequences, quotes, noises): return {}['x']\n"
        "    def observe(self, sequences, outcomes, scored): pass\n"
        "    def end(self, sequence): pass\n"
    )
    words = ["generate", "hello", "--model", tiny, "--max-tokens", "60", "--drafter", "my_faults:Own"]
    done = ask(*words, "--draft-tokens", "4")
    assert done.status == 2
    assert done.err.endswith("foredraft: drafter own: propose failed: KeyError: 'x'\n")
    planned = ask(*words)  # where a planner decides it decides against it, and says so
    assert planned.status == 0
    assert "foredraft: drafter own was dropped: propose failed: KeyError: 'x'\n" in planned.err
    sys.modules.pop("my_faults", None)


def test_options_without_effect(ask: Ask, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--model", tiny, "--top-p", "0.9", "--drafter", "none", "--draft-tokens", "3", "--max-tokens", "3")
    done = ask("generate", "hello", *words)
    said = (
        "foredraft: --top-p had no effect: temperature 0 takes the likeliest token\n"
        "foredraft: --draft-tokens had no effect: nothing is drafted\n"
    )
    assert done.err.startswith(said)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nand now\n"))
    assert ask("chat", *words).err.startswith(said)


def test_one_answer_is_one_answer(ask: Ask, tiny: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "many.jsonl", "hello")
    assert "1 answer · 3 tokens · " in ask("generate", "--prompts", path, "--model", tiny, "--max-tokens", "3").err


def test_json_keys_that_are_there_twice(refused: Any) -> None:
    config = '{"method": "ngram", "method": "suffix"}'
    assert "the key 'method' is there twice" in refused("generate", "x", "--speculative-config", config)


BY_RATIO = "foredraft: under rule ratio a seed's text also depends on the drafter, its lengths and what the cache held"


@pytest.mark.parametrize("words", ["generate hello", "explain hello", "generate --prompts many.jsonl", "chat"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_seed_that_fixes_no_text_is_told_once(
    ask: Ask, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, as_json: bool
) -> None:
    write_lines(tmp_path / "many.jsonl", "one", "two")
    drawn = ["--model", tiny, "--max-tokens", "5", "--seed", "1", "--temperature", "1"]
    for rule, drafter, told in (("ratio", "lookup", 1), ("coupled", "lookup", 0), ("ratio", "none", 0)):
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nagain\n"))
        done = ask(*words.split(), *drawn, "--rule", rule, "--drafter", drafter, *["--json"] * as_json)
        assert done.status == 0
        assert done.err.count(BY_RATIO) == told

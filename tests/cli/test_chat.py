"""``foredraft chat``: turns, commands, interrupts."""

from __future__ import annotations

import builtins
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli.main import main
from tests.cli.asking import Answer, Ask, Keyboard, interrupt_after

SHORT = ("--max-tokens", "12")


@pytest.fixture
def piped(ask: Ask, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(lines: str, *words: object) -> Answer:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return ask("chat", "--model", tiny, *SHORT, *words)

    return run


@pytest.fixture
def typed(ask: Ask, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Chat from a keyboard; a line that is an exception is a key pressed."""

    def run(*lines: str | BaseException, words: tuple[object, ...] = ()) -> Answer:
        keys: Iterator[str | BaseException] = iter(lines)

        def readline() -> str:
            key = next(keys, "")
            if isinstance(key, BaseException):
                raise key
            return key

        keyboard = Keyboard()
        monkeypatch.setattr(keyboard, "readline", readline)
        monkeypatch.setattr(sys, "stdin", keyboard)
        return ask("chat", "--model", tiny, *SHORT, *words)

    return run


def test_each_line_is_a_turn_and_feeds_only_what_is_new(piped: Any) -> None:
    done = piped("hello\n\nand more\n", "--json", "--system", "Be brief")
    assert done.status == 0
    assert done.out.count("\n") == 1
    first, second = done.document["turns"]
    assert (first["prompt"], second["prompt"]) == ("hello", "and more")
    assert first["cached_tokens"] == 0
    # all that was said and answered is still there, less the last token, which no pass has read
    assert second["cached_tokens"] >= first["prompt_tokens"] + first["completion_tokens"] - 1
    fed = second["prompt_tokens"] - second["cached_tokens"]
    assert f"{fed} of {second['prompt_tokens']} prompt tokens read" in done.err


def test_answers_alone_go_to_stdout(piped: Any) -> None:
    turns = piped("hello\nagain\n", "--json").document["turns"]
    done = piped("hello\nagain\n")
    assert done.out == "".join(turn["text"] + "\n" * (not turn["text"].endswith("\n")) for turn in turns)


def test_commands(piped: Any) -> None:
    done = piped("/help\n/system\n/system Be brief\n/system\n/resett\nhello\n/reset\nhello\n/exit\nnever\n", "--json")
    first, second = done.document["turns"]
    assert first["token_ids"] == second["token_ids"]
    assert first["prompt_tokens"] == second["prompt_tokens"]
    plain = piped("hello\n", "--json").document["turns"][0]
    assert first["prompt_tokens"] > plain["prompt_tokens"]
    for words in ("there is no system turn", "under: Be brief", "the system turn: Be brief", "did you mean /reset?"):
        assert words in done.err
    assert "/system TEXT" in done.err


def test_a_turn_too_long_ends_a_pipe_and_not_a_conversation(piped: Any, typed: Any) -> None:
    long = "x" * 600
    done = piped(f"hello\n{long}\nnever\n", "--json")
    assert done.status == 2
    assert [turn["prompt"] for turn in done.document["turns"]] == ["hello"]
    assert done.err.splitlines()[-1].startswith("foredraft: the conversation has ")
    done = typed("hello\n", long + "\n", "again\n", words=("--json",))
    assert done.status == 0
    assert [turn["prompt"] for turn in done.document["turns"]] == ["hello", "again"]
    assert "foredraft: the conversation has " in done.err


def test_a_keyboard_is_greeted_and_ctrl_d_leaves(typed: Any) -> None:
    done = typed("hello\n")
    assert done.status == 0
    assert "/help for help" in done.err
    assert done.err.count("> ") == 2
    assert ">" not in done.out.split("\n")[-1]


def test_ctrl_c_at_the_prompt_leaves_nothing(typed: Any) -> None:
    done = typed(KeyboardInterrupt(), "hello\n", words=("--json",))
    assert done.status == 0
    assert "Ctrl-D leaves" in done.err
    assert len(done.document["turns"]) == 1


def test_ctrl_c_stops_one_answer_only(typed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(4, monkeypatch)
    done = typed("hello\n", "again\n", words=("--json", "--drafter", "none"))
    assert done.status == 0
    first, second = done.document["turns"]
    assert 4 <= first["completion_tokens"] < 12
    assert second["prompt_tokens"] > first["prompt_tokens"] + first["completion_tokens"]
    assert "(stopped)" in done.err


def test_ctrl_c_ends_a_pipe(tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nagain\n"))
    interrupt_after(4, monkeypatch)
    assert main(["chat", "--model", str(tiny), *SHORT, "--json", "--drafter", "none"]) == 130
    assert len(json.loads(capsys.readouterr().out)["turns"]) == 1


def test_lines_are_edited_where_both_ends_are_terminals(typed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def read(prompt: str) -> str:
        asked.append(prompt)
        raise EOFError

    monkeypatch.setattr(builtins, "input", read)
    monkeypatch.setattr("foredraft.cli.terminal.console.Console.coloured", lambda *_: True)
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True, raising=False)
    assert typed().status == 0
    assert [re.sub(r"\x01.*?\x02", "", prompt) for prompt in asked] == ["> "]

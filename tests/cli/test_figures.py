"""The statistics of answers in words: how fast, and what a planner decided and why."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from foredraft.cli.terminal.console import Console
from foredraft.cli.terminal.statistics import parts_of, parts_total
from foredraft.cli.terminal.text_width import columns
from foredraft.result import Choice, Result, Speculative, Timings
from tests.cli.asking import Screen

ON = "on: 2.3 guesses a pass, verifying a guess costs 4 % of a token here, heads acceptance 0.55, suffix acceptance 0.3"
OFF = "off: verifying a guess costs 38 % of a token here, suffix acceptance 0.31"


def result(reason: str | None, drafted: int = 120, speedup: float | None = 1.86, seconds: float = 2.0) -> Result:
    accepted = drafted // 2
    told = Speculative(60, drafted, accepted, 2.1, 0.5, [accepted], reason, {})
    times = Timings(0.1, 0.1, seconds, 63.5, 0.1, 1.0, None if speedup is None else 63.5 / speedup, speedup)
    choice = Choice(0, "x", list(range(128)), "length", None, ["plain"] * 128)
    return Result(
        model="m", system_fingerprint="fd", tier="native-avx512", dtype="bf16", drafter="suffix+heads", rule="ratio",
        seed=None, prompt_tokens=9, cached_tokens=4, completion_tokens=128, speculative=told, timings=times,
        choices=[choice], notices=[],
    )  # fmt: skip


def line(*words: Any, **more: Any) -> str:
    return " · ".join(parts_of(result(*words, **more)))


def test_a_planned_answer_says_how_much_faster_and_at_what_price() -> None:
    assert line(ON) == (
        "128 tokens (limit) · 63.5 tokens/s · 1.9x plain · 2.12 a pass · suffix+heads 60 of 120 accepted (50%)"
        " · verifying a guess costs 4 % of a token · native-avx512 bf16"
    )


def test_an_answer_without_guesses_says_why() -> None:
    assert line(OFF, 0, 0.981) == f"128 tokens (limit) · 63.5 tokens/s · 0.98x plain · {OFF} · native-avx512 bf16"
    assert "suffix and heads had no guess to make" in line("on: suffix and heads had no guess to make", 0)
    assert "120 accepted (50%)" in line("off: from here on", 120)  # there were guesses, and they are told


@pytest.mark.parametrize(("speedup", "words"), [(12.34, "12.3x"), (1.0, "1.0x"), (0.9951, "1.0x"), (0.994, "0.99x")])
def test_a_loss_is_seen(speedup: float, words: str) -> None:
    assert f" · {words} plain · " in line(ON, speedup=speedup)


def test_what_was_never_measured_is_not_told() -> None:
    words = line(None, speedup=None)
    assert "plain" not in words
    assert words.endswith("(50%) · native-avx512 bf16")


def test_a_few_tokens_say_nothing_of_speed() -> None:
    few = replace(result(ON), completion_tokens=16)
    assert "x plain" not in " ".join(parts_of(few))
    assert "x plain" in " ".join(parts_of(replace(few, completion_tokens=17)))
    assert "x plain" in " ".join(parts_total([replace(few, completion_tokens=9)] * 2))


def test_many_answers_have_the_speed_up_of_their_totals() -> None:
    # 3 s that plain decoding would have spent 1 * 3 + 2 * 1.5 s on
    both = parts_total([result(ON, speedup=3.0, seconds=1.0), result(ON, speedup=1.5)])
    assert both[2:4] == [f"{254 / 3:.1f} tokens/s", "2.0x plain"]
    assert "plain" not in " ".join(parts_total([result(ON), result(None, speedup=None)]))
    idle = replace(result(ON), timings=Timings(0.1, 0.1, 0.0, None, 0.0, 0.0))
    assert "1.9x plain" in parts_total([result(ON), idle])


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("given", [result(ON), result(OFF, 0), result(None, speedup=None)])
def test_it_fits_a_terminal_and_is_one_line_elsewhere(
    given: Result, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    screen, file = Screen(), io.StringIO()
    for stream in (screen, file):
        Console(io.StringIO(), io.StringIO(), stream, {"NO_COLOR": "1"}).remark_parts(parts_of(given))
    lines = screen.getvalue().splitlines()
    assert len(lines) <= (3 if width == 80 else 2)
    assert max(map(columns, lines)) <= width
    assert file.getvalue().splitlines() == [" · ".join(lines)] == [" · ".join(parts_of(given))]

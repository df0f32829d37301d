"""Colours, control characters, progress."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import pytest

from foredraft.cli.arguments.option_names import as_options
from foredraft.cli.terminal.colour import Ink, Pen
from foredraft.cli.terminal.console import Console, harmless
from foredraft.cli.terminal.progress import Progress, size_of
from tests.cli.asking import Screen


def console(out: io.StringIO, colour: str = "auto", **environment: str) -> Console:
    made = Console(io.StringIO(), out, io.StringIO(), {"TERM": "xterm-256color", **environment})
    made.choose_colour(colour)
    return made


@pytest.mark.parametrize(
    ("stream", "asked", "environment", "coloured"),
    [
        (Screen, "auto", {}, True),
        (io.StringIO, "auto", {}, False),
        (io.StringIO, "always", {}, True),
        (Screen, "never", {}, False),
        (Screen, "auto", {"NO_COLOR": "1"}, False),
        (Screen, "auto", {"NO_COLOR": ""}, True),
        (io.StringIO, "auto", {"FORCE_COLOR": "1"}, True),
        (io.StringIO, "auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (io.StringIO, "auto", {"FORCE_COLOR": "0"}, False),
        (io.StringIO, "always", {"NO_COLOR": "1"}, True),
        (Screen, "never", {"FORCE_COLOR": "1"}, False),
        (Screen, "auto", {"TERM": "dumb"}, False),
    ],
)
def test_when_there_is_colour(stream: Any, asked: str, environment: dict[str, str], coloured: bool) -> None:
    out = stream()
    assert console(out, asked, **environment).coloured(out) is coloured


@pytest.mark.parametrize("many", [True, False])
def test_every_writer_has_a_colour_of_his_own(many: bool) -> None:
    ink = Ink(many)
    writers = ["suffix", "lookup", "model", "correction", "bonus", "mine", "yours"]
    painted = [ink.paint("x", writer) for writer in writers]
    assert len(set(painted)) == len(writers)
    assert painted == [ink.paint("x", writer) for writer in writers]
    assert all(re.fullmatch(r"\x1b\[[\d;]+mx\x1b\[0m", text) for text in painted)
    assert ink.paint("x", "plain") == "x"


def test_the_legend_shows_what_was_seen() -> None:
    ink = Ink(many=True)
    for writer in ("plain", "lookup", "bonus"):
        ink.paint("x", writer)
    legend = ink.legend()
    assert re.sub(r"\x1b\[[\d;]+m", "", legend) == "guessed by lookup, accepted · bonus · plain"
    assert ink.paint("bonus", "bonus") in legend


@pytest.mark.parametrize("colour", ["auto", "never"])
def test_a_terminal_is_not_steered_by_an_answer(colour: str) -> None:
    screen = Screen()
    pen = Pen(console(screen, colour), screen)
    for text in ("a\x1b]0;title\x07", "b\x9b2J\r", "c\td\x7f\x00"):
        pen.write(text, "plain")
    pen.end()
    assert screen.getvalue() == "a␛]0;title␇b\\x9b2J␍c\td␡␀\n"


def test_a_pipe_gets_the_very_text() -> None:
    out = io.StringIO()
    pen = Pen(console(out), out)
    pen.write("a\x1b[1m\r\n", "lookup")
    pen.end()
    assert out.getvalue() == "a\x1b[1m\r\n"


def test_harmless_leaves_lines_tabs_and_every_script() -> None:
    text = "naïve\n\tΣ — שלום 日本 👩‍👩‍👧\u200f"
    assert harmless(text) == text


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("max_tokens must be a whole number", "--max-tokens must be a whole number"),
        ("temperature must be at least 0", "--temperature must be at least 0"),
        ("n is not in this version yet", "-n is not in this version yet"),
        ("top_p and 'top_p' and my_model and dir/top_p", "--top-p and 'top_p' and my_model and dir/top_p"),
        ("temperature of the room", "temperature of the room"),
    ],
)
def test_options_are_named_as_they_were_typed(python: str, shell: str) -> None:
    assert as_options(python) == shell


def test_progress_on_a_pipe_is_a_line_a_stage() -> None:
    out = io.StringIO()
    progress = Progress(out)
    progress.status("loading")
    for done in (0, 5, 10, 10):
        progress(done, 10_000_000, "fetching x")
    progress(1, 0, "converting")
    progress.close()
    assert out.getvalue() == "foredraft: fetching x (10.0 MB)\nforedraft: converting\n"


def test_progress_on_a_terminal_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.cli.terminal.progress._MOMENT", 1e9)
    screen = Screen()
    progress = Progress(screen)
    progress.status("loading …")
    for done in (1, 2, 3, 3):
        progress(done, 3, "fetching")
    progress.close()
    erase = "\r\x1b[K"  # and no bar: it was over in a moment
    assert screen.getvalue() == f"{erase}\x1b[2mloading …\x1b[0m{erase}{erase}\x1b[2mfetching …\x1b[0m{erase}"


def test_a_note_stands_behind_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.cli.terminal.progress._MOMENT", 0.0)
    screen = Screen()
    progress = Progress(screen)
    progress.count(1, 30, "searching", "best 1.1x")
    time.sleep(0.12)  # a bar is drawn ten times a second
    progress.count(2, 30, "searching", "best 1.2x")
    progress.close()
    assert "best 1.2x" in screen.getvalue()


@pytest.mark.parametrize(("count", "words"), [(0, "0 B"), (999, "999 B"), (1500, "2 kB"), (92_871_040, "92.9 MB")])
def test_sizes_in_words(count: int, words: str) -> None:
    assert size_of(count) == words
    assert size_of(2.5e12) == "2.5 TB"

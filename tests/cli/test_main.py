"""The dispatcher: verbs, help, exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from foredraft._version import __version__
from foredraft.cli import generate
from foredraft.cli.main import VERBS
from tests.cli.asking import Ask

HEAVY = ("torch", "transformers", "numpy", "tokenizers", "safetensors", "gguf", "huggingface_hub", "jinja2", "tqdm")


@pytest.mark.parametrize("verb", [None, *VERBS])
def test_help_imports_nothing_heavy(verb: str | None) -> None:
    words = ["--help"] if verb is None else [verb, "--help"]
    code = (
        "import sys; from foredraft.cli.main import main; status = main(sys.argv[1:]);"
        f"sys.exit(status or ','.join(name for name in {HEAVY} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: foredraft")


def test_version_and_bare_command(ask: Ask) -> None:
    assert ask("--version").out == f"foredraft {__version__}\n"
    bare = ask()
    assert bare.status == 0
    assert all(verb in bare.out for verb in VERBS)


def test_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "foredraft", "generate"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "a prompt is missing" in done.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("generat", "x"), "did you mean generate?"),
        (("generate", "x", "--temprature=1"), "no option --temprature; did you mean --temperature?"),
        (("generate", "x", "--drafters", "none"), "did you mean --drafter?"),
        (("--json", "generate"), "no option --json"),
        (("generate", "why", "is", "the"), "a prompt of several words goes in quotes"),
        (("generate", "x", "--seed"), "--seed needs a value"),
        (("models", "fetsh", "x"), "must be list or fetch or remove, not 'fetsh'"),
    ],
)
def test_slips_are_named(refused: Any, words: tuple[str, ...], hint: str) -> None:
    assert hint in refused(*words)


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(args: object, console: object) -> NoReturn:
        raise error

    monkeypatch.setattr(generate, "run", run)


def test_the_unexpected_is_one_sentence_and_exit_1(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError("a\nb \x1b[31mc"))
    answer = ask("generate", "x")
    assert answer.status == 1
    assert answer.err == "foredraft: unexpected ZeroDivisionError: a b ␛[31mc (--traceback shows where)\n"
    assert "Traceback (most recent call last)" in ask("generate", "x", "--traceback").err


def test_interrupt_is_130_and_quiet(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    answer = ask("generate", "x")
    assert (answer.status, answer.out, answer.err) == (130, "", "")


def test_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """``foredraft models | true``: stdout is a pipe nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "FOREDRAFT_CACHE": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "foredraft", "models", "--json"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_from_a_shell_to_a_document(tiny: Path) -> None:
    """The whole way once, in a process of its own: nothing but the answer on stdout, nothing but a line on stderr."""
    words = ["generate", "-", "--model", str(tiny), "--max-tokens", "8", "--json", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "foredraft", *words], input="hello\n", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["completion_tokens"] == 8
    assert done.stdout.count("\n") == done.stderr.count("\n") == 1

"""Tiny models to ask, and a command line to ask them by."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foredraft.cli.main import main
from tests.cli.asking import Answer, Ask
from tests.tiny import make_chat_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of the user's: his cache, his colours, his folder. What a command imports from there is gone after it."""
    for name in ("NO_COLOR", "FORCE_COLOR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: object) -> Answer:
        capsys.readouterr()  # what the test itself wrote before
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return run


@pytest.fixture
def refused(ask: Ask) -> Callable[..., str]:
    """Ask for something that is refused; return the one sentence."""

    def run(*words: object) -> str:
        answer = ask(*words)
        assert (answer.status, answer.out) == (2, "")
        assert answer.err.count("\n") == 1
        assert answer.err.startswith("foredraft: ")
        return answer.err.removeprefix("foredraft: ").rstrip("\n")

    return run

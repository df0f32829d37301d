"""``foredraft serve``: every option is checked before anything is loaded."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from foredraft.cli.main import main
from foredraft.errors import OptionError

pytest.importorskip("uvicorn", reason="the server needs the serve extra")
from foredraft.server.run import listen


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FOREDRAFT_API_KEY", raising=False)

    def run(*words: object) -> str:
        status = main(["serve", *map(str, words)])
        captured = capsys.readouterr()
        assert (status, captured.out) == (2, "")
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("foredraft: ")
        return captured.err.removeprefix("foredraft: ").rstrip("\n")

    return run


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--port", "99999"], "--port must be between 0 and 65535, not 99999"),
        (["--port", "x"], "--port must be a whole number"),
        (["--slots", "0"], "--slots must be between 1 and 256, not 0"),
        (["--queue", "-1"], "--queue must be between"),
        (["--drain-seconds", "nan"], "--drain-seconds must be between"),
        (["--max-body", "0"], "--max-body must be between"),
        (["--per-key", "0"], "--per-key must be between"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0 lets others in: give --api-key, or --insecure"),
        (["--host", "::"], "--host :: lets others in"),
        (["--host", "not a host", "--insecure"], "there is no address not a host"),
        (["--api-key", "short"], "an API key has at least 8"),
        (["--api-key", "with space in it"], "an API key has at least 8"),
        (["--api-key-file", "/none/here"], "--api-key-file: '/none/here' cannot be read"),
        (["--cors-origin", "example.org"], "--cors-origin is like https://example.org"),
        (["--metrics-compat", "other"], "--metrics-compat must be vllm"),
        (["--rule", "mine"], "--rule must be auto or ratio or coupled"),
        (["a.gguf", "--model", "b"], "a model and --model are both there"),
        (["a", "b"], "unexpected word 'b'"),
        (["--slot", "1"], "there is no option --slot; did you mean --slots?"),
        (["/no/such/model", "--offline", "--port", "0"], "/no/such/model"),
        (["--drafter", "wizard", "--port", "0"], "unknown drafter 'wizard'"),
    ],
)
def test_what_is_refused(refused: Callable[..., str], words: list[str], why: str) -> None:
    assert why in refused(*words)


def test_a_port_in_use_is_one_sentence(refused: Callable[..., str], tiny: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert refused(tiny, "--port", port) == f"port {port} of 127.0.0.1 is in use: give another with --port"


def test_a_missing_extra_is_named(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith(("foredraft.server", "fastapi"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert refused() == "serve needs fastapi, which is not installed: pip install 'foredraft[serve]'"


def test_keys_of_a_file(tmp_path: Path) -> None:
    from foredraft.cli.arguments.files import read_keys

    path = tmp_path / "keys"
    path.write_text("# mine\nsk-first-key\n\n  sk-second-key \n")
    assert read_keys(str(path)) == ["sk-first-key", "sk-second-key"]
    path.write_text("# none\n")
    with pytest.raises(OptionError, match="holds no key"):
        read_keys(str(path))


@pytest.mark.parametrize("as_json", [False, True])
def test_it_says_where_it_is_and_how_to_ask_it(
    tiny: Path, cache: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(cache))
    monkeypatch.setenv("FOREDRAFT_API_KEY", "sk-of-the-environment")
    said: list[str] = []

    def stop() -> None:
        while not said:
            said.extend(capfd.readouterr().out.splitlines())
            time.sleep(0.02)
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    words = ["serve", str(tiny), "--port", "0", "--dtype", "f64", "--offline", "--slots", "3", "--insecure"]
    assert main([*words, *(["--json"] if as_json else [])]) == 0
    (line,) = said
    if as_json:
        facts = json.loads(line)
        assert (facts["model"], facts["slots"], facts["context"], facts["dtype"]) == ("tiny", 3, 512, "f64")
    else:
        assert line.startswith("serving tiny · ")
        assert " f64 · suffix · 3 slots at http://127.0.0.1:" in line
        assert "curl http://127.0.0.1:" in line
        assert "Authorization: Bearer KEY" in line
        assert "sk-of-the-environment" not in line

"""Which pass runs a model: native on the CPU, torch where it is asked for or all there is; and what is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import foredraft
from foredraft.errors import ModelError, OptionError, UnsupportedModel
from foredraft.models import runner
from foredraft.system.machine import cores
from tests.tiny import make_chat_model

WHY = "the native pass was not built"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("target") / "tiny")


def load(folder: Path, cache: Path, **options: object) -> foredraft.LanguageModel:
    return foredraft.load(folder, drafter="none", cache=cache, **options)  # type: ignore[arg-type]


def test_native_is_the_default_and_torch_the_other(tiny: Path, tmp_path: Path) -> None:
    native, torch = load(tiny, tmp_path), load(tiny, tmp_path, native_tier="off")
    best = runner.native_facts()["tiers"][0]
    assert (native.loaded.tier, native.loaded.dtype, native.loaded.device) == (f"native-{best}", "bf16", "cpu")
    assert torch.loaded.tier == "torch"
    assert load(tiny, tmp_path, dtype="f64").loaded.tier == "torch"
    assert native.generate("abc", max_tokens=3).tier == f"native-{best}"


def test_a_tier_can_be_forced(tiny: Path, tmp_path: Path) -> None:
    here = runner.native_facts()["tiers"]
    hosts = [load(tiny, tmp_path, native_tier=tier).loaded for tier in here]
    assert [loaded.tier for loaded in hosts] == [f"native-{tier}" for tier in here]
    assert len({loaded.fingerprint for loaded in hosts}) == len(here)
    for tier in set(runner.TIERS) - set(here):
        with pytest.raises(OptionError, match=tier):
            load(tiny, tmp_path, native_tier=tier)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (
            {"native_tier": "sse"},
            f"native_tier must be one of auto, {', '.join(runner.TIERS)}, off, not 'sse'",
        ),
        ({"native_tier": "portable", "dtype": "f64"}, "leave out dtype f64"),
        ({"native_tier": "portable", "device": "cuda"}, "leave out device cuda"),
        ({"device": "abacus"}, "device must be one of"),
    ],
)
def test_what_cannot_be_is_refused(tiny: Path, tmp_path: Path, options: dict[str, str], hint: str) -> None:
    with pytest.raises(OptionError, match=hint):
        load(tiny, tmp_path, **options)


def test_without_the_library_torch_runs_and_it_is_said(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "why_not_native", lambda: WHY)
    loaded = load(tiny, tmp_path).loaded
    assert loaded.tier == "torch"
    assert loaded.notice is not None
    assert WHY in loaded.notice
    with pytest.raises(OptionError, match=WHY):
        load(tiny, tmp_path, native_tier="portable")
    monkeypatch.setattr(runner, "torch_installed", lambda: False)
    with pytest.raises(ModelError, match=f"{WHY}.*{runner.INSTALL[:12]}"):
        load(tiny, tmp_path)


def test_without_torch_what_needs_it_says_so(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "torch_installed", lambda: False)
    for options in ({"device": "cuda"}, {"dtype": "f64"}, {"native_tier": "off"}):
        with pytest.raises(OptionError, match=r"needs torch.*foredraft\[torch\]"):
            load(tiny, tmp_path, **options)
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UnsupportedModel, match=r"foredraft\[torch\]"):
        load(tmp_path / "gpt", tmp_path)
    monkeypatch.setattr(runner, "gpu_possible", lambda: True)
    loaded = load(tiny, tmp_path).loaded
    assert loaded.tier.startswith("native-")
    assert loaded.notice is not None
    assert "GPU" in loaded.notice


def test_the_native_pass_never_imports_torch(tiny: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; import foredraft;"
        f"lm = foredraft.load({str(tiny)!r}, cache={str(tmp_path)!r}, device='cpu', drafter='lookup+model:{tiny}');"
        "print(lm.generate('abc abc abc', max_tokens=20).completion_tokens, lm.loaded.tier)"
    )
    done = subprocess.run([sys.executable, "-Pc", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1].startswith("native-")


def test_greedy_text_is_plain_text_in_every_tier(tiny: Path, tmp_path: Path) -> None:
    for tier in runner.native_facts()["tiers"]:
        lm = load(tiny, tmp_path, native_tier=tier)
        plain = lm.generate(["abc abc", "the cat sat, the cat", "x"], max_tokens=60)
        for drafter in ("lookup", f"lookup+model:{tiny}"):
            drafted = lm.generate(
                ["abc abc", "the cat sat, the cat", "x"], max_tokens=60, drafter=drafter, draft_tokens=6
            )
            assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]


def test_where_nothing_can_run_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "why_not_native", lambda: WHY)
    monkeypatch.setattr(runner, "torch_installed", lambda: False)
    with pytest.raises(ModelError, match=WHY):
        foredraft.load("smollm2-135m", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_more_threads_than_cores_are_said_to_be_slower(tiny: Path, tmp_path: Path) -> None:
    loaded = load(tiny, tmp_path, threads=cores() + 1).loaded
    assert loaded.notice is not None
    assert "which is slower" in loaded.notice
    assert load(tiny, tmp_path, threads=1).loaded.notice is None

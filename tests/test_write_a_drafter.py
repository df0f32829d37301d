"""The tutorial is run as written: its one file drafts, and nothing else was touched."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

import foredraft
from foredraft.cli.main import main
from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedPlanner
from tests.core.toys import Table, ToyDrafter, ToyTarget, generate, nothing
from tests.tiny import make_chat_model

PAGE = Path(__file__).parent.parent / "docs" / "write-a-drafter.md"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tutorial's file, saved where it says, in a folder of its own; the drafter that samples follows in it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "bigram.py").write_text(blocks[0] + blocks[2], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "bigram", raising=False)
    return make_chat_model(tmp_path / "tiny")


def test_as_an_object(written: Path) -> None:
    drafter = importlib.import_module("bigram").Bigram()
    lm = foredraft.load(written, dtype="f64", drafter=drafter)
    drafted = lm.generate("ab ab ab ab", max_tokens=40, draft_tokens=4)
    assert drafted.token_ids == lm.generate("ab ab ab ab", max_tokens=40, drafter="none").token_ids
    assert drafted.speculative.by_drafter["bigram"]["accepted"] > 0


def test_by_name_from_the_command_line(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "ab ab", "--model", str(written), "--max-tokens", "20", "--json"]
    assert main([*words, "--drafter", "bigram:Bigram", "--draft-tokens", "4"]) == 0
    drafted = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main([*words, "--drafter", "none"]) == 0
    plain = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["speculative"]["by_drafter"]["bigram"]["drafted"] > 0


def test_the_drafter_that_samples(written: Path) -> None:
    """Under ``coupled`` its seeded texts are the plain ones; under ``ratio`` its guesses are tested, some accepted."""
    module, table = importlib.import_module("bigram"), Table.random(3, 4, states=7)
    accepted = {}
    for coupled in (True, False):

        def texts(coupled: bool = coupled) -> list[TokenSequence]:
            noises = [Noise(5, i, coupled=coupled) for i in range(4)]
            return [TokenSequence([1, 2, 1], 60, SamplingParams(0.7), noise) for noise in noises]

        drafted, plain, drafter = texts(), texts(), module.SampledBigram()
        for sequence in drafted:
            drafter.begin(sequence)
        history = generate(drafted, ToyTarget(table), drafter, FixedPlanner(3))
        generate(plain, ToyTarget(table), ToyDrafter(nothing), FixedPlanner(0))
        assert ([t.tokens for t in drafted] == [t.tokens for t in plain]) is coupled
        assert {o.draft.source for outcomes in history for o in outcomes} == {"none", "sampled-bigram"}
        accepted[coupled] = sum(o.accepted for outcomes in history for o in outcomes)
    assert min(accepted.values()) > 20

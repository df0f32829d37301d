"""The planner as a user meets it: reasons, notices, speeds, what is kept where; no text changes for it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import foredraft
from foredraft import Draft, LanguageModel
from foredraft.drafters.first import FirstOf
from foredraft.drafters.lookup import Lookup
from foredraft.options import parse_options
from foredraft.planning.choose import Chooser
from foredraft.planning.costs import Costs, PassTable
from foredraft.planning.planner import AutoPlanner
from foredraft.runtime.planner import Planning
from tests.tiny import make_chat_model

FLAT = PassTable((1, 64), (1.0, 1.001), 0.0, 0.0)
STEEP = PassTable((1, 64), (1e-6, 1.0), 0.0, 0.0)
PROMPT = "abc abc abc abc abc"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="module")
def lm(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return foredraft.load(tiny, dtype="f32", cache=tmp_path_factory.mktemp("cache"), threads=1)


def told(lm: LanguageModel, table: PassTable) -> None:
    """Let the planner believe a table, and that it has never met a text."""
    lm.runtime.planning._auto = AutoPlanner(Costs(table), clock=lambda: 0.0)
    lm.runtime.drafters._made.clear()


def test_where_rows_are_free_there_are_guesses(lm: LanguageModel) -> None:
    told(lm, FLAT)
    result = lm.generate(PROMPT, max_tokens=40, drafter="suffix")
    assert result.speculative.drafted > 0
    words = r"on: [\d.]+ guesses a pass, verifying a guess costs 0 % of a token here, suffix acceptance [01]\.\d\d"
    assert re.fullmatch(words, result.speculative.reason or "")
    assert result.timings.plain_tokens_per_s is not None
    assert result.timings.speedup is not None


def test_where_rows_cost_what_tokens_cost_there_are_none_and_it_is_said(lm: LanguageModel) -> None:
    told(lm, STEEP)
    result = lm.generate(PROMPT, max_tokens=40, drafter="suffix")
    assert result.speculative.drafted == 0
    assert re.match(r"off: verifying a guess costs \d+ % of a token here", result.speculative.reason or "")


def test_a_drafter_without_a_guess_is_no_reason_to_be_off(lm: LanguageModel) -> None:
    told(lm, FLAT)
    result = lm.generate("xyz", max_tokens=2, drafter="suffix", regex="pq")
    if not result.speculative.drafted and result.speculative.rounds:
        assert result.speculative.reason == "on: suffix had no guess to make"
    assert lm.generate(PROMPT, max_tokens=5, draft_tokens=3).speculative.reason is None
    assert lm.generate(PROMPT, max_tokens=5, drafter="none").speculative.reason == "off: drafter none was asked for"


def test_the_reason_is_seen_through_a_prediction(lm: LanguageModel) -> None:
    told(lm, FLAT)
    result = lm.generate(PROMPT, max_tokens=20, prediction="abc abc", cache_scope="mine")
    assert (result.speculative.reason or "").startswith("on: ")


@pytest.mark.parametrize("table", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "seeded"])
def test_no_text_changes_for_what_is_planned(lm: LanguageModel, table: PassTable, options: Any) -> None:
    prompts = [PROMPT, "one two one two", "z", "hello hello"]
    plain = [lm.generate(p, max_tokens=24, drafter="none", **options).token_ids for p in prompts]
    told(lm, table)
    for drafter in ("suffix", "lookup+suffix"):
        for _ in range(2):  # the second time with what the first has taught
            alone = [lm.generate(p, max_tokens=24, drafter=drafter, **options).token_ids for p in prompts]
            batch = [r.token_ids for r in lm.generate(prompts, max_tokens=24, drafter=drafter, **options)]
            assert alone == batch == plain


def test_a_seed_under_ratio_has_fixed_lengths(lm: LanguageModel) -> None:
    """What a planner learns and the clock are no seed's: the text could not be had again, nor would it be exact."""
    named = parse_options({"seed": 1, "rule": "ratio", "temperature": 1.0, "drafter": "lookup+suffix"})
    assert isinstance(lm.runtime.drafters.of(named), FirstOf)
    assert lm.runtime.drafters.length(named, lm.runtime.drafters.of(named)) == 15
    texts = {tuple(lm.generate(PROMPT, seed=1, rule="ratio", temperature=1.0, max_tokens=30).token_ids) for _ in "abc"}
    assert len(texts) == 1
    for free in ({"seed": 1, "temperature": 1.0}, {"rule": "ratio", "temperature": 1.0}, {"seed": 1, "rule": "ratio"}):
        options = parse_options(free)  # type: ignore[arg-type]
        assert isinstance(lm.runtime.drafters.of(options), Chooser)
        assert lm.runtime.drafters.length(options, lm.runtime.drafters.of(options)) is None


class Own:
    """A user's drafter."""

    name = "own"
    taps: tuple[int, ...] = ()

    def begin(self, sequence: Any) -> None: ...

    def propose(self, sequences: Sequence[Any], quotes: Any, noises: Any) -> list[Draft]:
        return [Draft.chain([7]) for _ in sequences]

    def observe(self, sequences: Any, outcomes: Any, scored: Any) -> None: ...

    def end(self, sequence: Any) -> None: ...


def test_a_users_drafter_keeps_its_record(lm: LanguageModel) -> None:
    own = Own()
    first, again = (lm.runtime.drafters.of(parse_options({"drafter": own})) for _ in range(2))
    assert first is again
    assert isinstance(first, Chooser)
    assert not isinstance(lm.runtime.drafters.of(parse_options({"drafter": own, "draft_tokens": 3})), Chooser)
    joined = lm.runtime.drafters.of(parse_options({"drafter": FirstOf([Lookup(), own])}))
    assert isinstance(joined, Chooser)
    assert [d.name for d in joined.drafters] == ["lookup", "own"]
    for _ in range(20):
        lm.runtime.drafters.of(parse_options({"drafter": Own()}))
    assert len(lm.runtime.drafters._objects) <= 8


def test_costs_are_kept_for_this_model_and_machine(tiny: Path, tmp_path: Path) -> None:
    lm = foredraft.load(tiny, dtype="f32", cache=tmp_path, threads=1)
    first = lm.generate(PROMPT, max_tokens=3)
    (path,) = (tmp_path / "costs").iterdir()
    kept = json.loads(path.read_text())
    assert kept["table"]["rows"][0] == 1
    assert kept["version"] == foredraft.__version__
    kept["table"]["seconds"] = [5.0] * len(kept["table"]["rows"])
    path.write_text(json.dumps(kept))
    again = foredraft.load(tiny, dtype="f32", cache=tmp_path, threads=1)
    assert again.generate(PROMPT, max_tokens=3).text == first.text
    assert again.runtime.planning.auto().costs.table.seconds[0] == 5.0  # read, not measured
    path.write_text(json.dumps({**kept, "machine": "64 x another"}))
    moved = foredraft.load(tiny, dtype="f32", cache=tmp_path, threads=1)
    assert moved.generate(PROMPT, max_tokens=3).text == first.text
    assert moved.runtime.planning.auto().costs.table.seconds[0] < 5.0


def test_nothing_is_timed_where_nothing_is_planned(tiny: Path, tmp_path: Path) -> None:
    lm = foredraft.load(tiny, dtype="f32", cache=tmp_path, threads=1, draft_tokens=4)
    result = lm.generate(PROMPT, max_tokens=3)
    assert not (tmp_path / "costs").exists()
    assert (result.timings.plain_tokens_per_s, result.timings.speedup) == (None, None)
    assert isinstance(lm.runtime.planning, Planning)


def test_two_planners_in_two_threads_do_not_meet(tiny: Path, tmp_path: Path) -> None:
    """One model serves one thread; models of their own share no planner and no record."""
    models = [foredraft.load(tiny, dtype="f32", cache=tmp_path, threads=1) for _ in range(2)]
    plain = models[0].generate(PROMPT, max_tokens=20, drafter="none").token_ids
    found: list[list[int]] = []
    threads = [
        Thread(target=lambda m=m: found.extend(m.generate(PROMPT, max_tokens=20).token_ids for _ in range(3)))
        for m in models
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [plain] * 6
    assert models[0].runtime.planning.auto() is not models[1].runtime.planning.auto()

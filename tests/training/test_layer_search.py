"""The search for sub-layers: windows say what drafting does, planted redundancy is found, a stop loses nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foredraft.core.noise import Noise
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedQuote
from foredraft.errors import DrafterError, OptionError, PromptError
from foredraft.models.target import CachedTarget
from foredraft.models.views.layer_choice import read_choice
from foredraft.runtime.loaded_model import LoadedModel, Machine, open_model
from foredraft.training.layers import finding as finding
from foredraft.training.layers import search as layer_search
from foredraft.training.layers.answers import Answer, greedy_answers
from foredraft.training.layers.costs import Costs, measure_costs
from foredraft.training.layers.finding import LayerPlan, LayerTrainer, save
from foredraft.training.layers.race import Race
from foredraft.training.layers.search import Candidate, LayerSearch
from foredraft.training.layers.state import State, open_state, state_key
from foredraft.training.layers.trial import _interval, best_trial, drafter_of, measure, walk
from foredraft.training.layers.windows import WIDTH, Runs, Windows
from tests.core.toys import Table
from tests.measure.toys import TableModel
from tests.models.decoders import broken
from tests.tiny import make_chat_model

FAINT = (2, 3, 5, 8, 9)  # of ten sub-layers
COSTS = Costs(tuple(1.0 + 0.02 * k for k in range(WIDTH + 1)), 0.05, 0.04, 0.15)
PLAN = LayerPlan(minutes=1.0, tokens=20, windows=12, leaders=2, repeats=1)
Tell = Any


def quiet(done: int, total: int, label: str = "", note: str = "") -> bool:
    return True


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A model, half of whose sub-layers add next to nothing."""
    folder = make_chat_model(tmp_path_factory.mktemp("planted") / "tiny", num_hidden_layers=5)

    def plant(tensors: dict[str, Any]) -> None:
        for part in range(10):
            kinds = ("mlp.down_proj",) if part % 2 else ("self_attn.o_proj",)
            for name in tensors:
                if f"layers.{part // 2}.{kinds[0]}" in name:
                    tensors[name] *= 1e-4 if part in FAINT else 3.0

    broken(folder, plant)
    return open_model(folder, Machine(dtype="f32", threads=1, cache=tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def answers(loaded: LoadedModel) -> list[Answer]:
    heard: list[tuple[int, int]] = []
    prompts = [list(b"hello"), list(b"what is this"), [7]]
    found = greedy_answers(loaded, prompts, 24, lambda done, of: heard.append((done, of)))
    assert heard == [(0, 3), (3, 3)]
    return found


@pytest.fixture
def windows(loaded: LoadedModel, answers: list[Answer]) -> Iterator[Windows]:
    made = Windows(loaded.target.model, answers, quiet, count=12)  # type: ignore[arg-type]
    yield made
    made.close()


def search_of(windows: Windows, path: Path, over: Any = lambda: False, costs: Costs = COSTS) -> LayerSearch:
    return LayerSearch(windows, costs, open_state(path / "state.json", "k"), over, lambda phase, best: None)


@pytest.mark.parametrize("sub_layers", [(0, 1, 4, 6, 7), (0, 1, 2, 3), (1, 7), tuple(range(10))])
def test_a_window_says_what_a_round_would_accept(
    loaded: LoadedModel, answers: list[Answer], windows: Windows, sub_layers: tuple[int, ...]
) -> None:
    """Draft from each window's place over the target's own cache: the leading right guesses are the same."""
    drafter = drafter_of(loaded, sub_layers)
    accepted = []
    for window in windows._windows:
        start = window.rows.start
        answer = next(a for a in answers if a.tokens[start : start + len(window.rows.tokens)] == window.rows.tokens)
        sequence = TokenSequence(list(answer.tokens[: start + 1]), limit=500)
        loaded.target.begin(sequence)
        loaded.target.score([sequence], [drafter.propose([sequence], [FixedQuote(0)], [Noise(0)])[0]])
        loaded.target.rewind(sequence, start)
        guesses = drafter.propose([sequence], [FixedQuote(len(window.targets))], [Noise(0)])[0].tokens
        right = [a == b for a, b in zip(guesses, window.targets, strict=True)]
        accepted.append(([*right, False]).index(False))
        loaded.target.end(sequence)
    runs = windows.runs(sub_layers)
    assert sum(runs.survived) == sum(accepted)
    assert runs.survived[0] == sum(count > 0 for count in accepted)
    assert windows.runs(sub_layers) == runs  # nothing is left behind
    assert runs.right >= sum(accepted)


def test_exits_in_one_pass_are_exits_one_by_one(windows: Windows) -> None:
    found = windows.exits()
    assert found == [windows.runs(range(2 * depth)) for depth in range(1, 5)]
    assert len({runs.right for runs in found}) > 1


def test_what_a_round_yields() -> None:
    sure = Runs((9,) * WIDTH, (9,) * WIDTH, 72, 72)
    assert [round(sure.expected(k), 9) for k in (0, 1, 4)] == [1, 2, 5]
    never = Runs((9, *[0] * 7), (0,) * WIDTH, 0, 72)
    assert never.expected(8) == 1
    half = Runs((16000, 8000, *[0] * 6), (8000, 4000, *[0] * 6), 1, 2)
    assert half.expected(2) == pytest.approx(1.75, abs=1e-3)
    assert half.expected(8) == pytest.approx(2, abs=0.01)  # where nothing is known, as everywhere


def test_costs_weigh_a_set() -> None:
    assert COSTS.step((0, 1, 3)) == pytest.approx(0.05 + 0.04 + 2 * 0.15)
    assert COSTS.speedup(2.0, 1, 0.39) == pytest.approx(2.0 / (1.02 + 0.39))
    sure = Runs((9,) * WIDTH, (9,) * WIDTH, 72, 72)
    speedup, length = COSTS.best(sure, (0,))
    assert (speedup, length) == (pytest.approx(9 / (1.16 + 8 * 0.09)), 8)
    never = Runs((9, *[0] * 7), (0,) * WIDTH, 0, 72)
    assert COSTS.best(never, (0,))[1] == 1


def test_measured_costs_are_of_this_model(loaded: LoadedModel, answers: list[Answer]) -> None:
    costs = measure_costs(loaded, answers, 5, turns=2)
    assert len(costs.rounds) == WIDTH + 1
    assert list(costs.rounds) == sorted(costs.rounds)
    assert min(costs.rounds) > 0
    assert min(costs.base, costs.attention, costs.mlp) >= 0
    assert costs.step(range(10)) > 0
    assert loaded.target.slots.free == len(loaded.target.slots)


def test_planted_redundancy_is_found(windows: Windows, tmp_path: Path) -> None:
    search = search_of(windows, tmp_path)
    search.run()
    assert search.complete
    assert search.best is not None
    assert set(FAINT) <= set(range(10)) - set(search.best.sub_layers)
    assert search.best.speedup > 1.4
    assert search.leaders(3)[0] == search.best
    assert all(len(sub_layers) < 10 for sub_layers in search.candidates)


def test_without_redundancy_nothing_is_gained(windows: Windows, tmp_path: Path) -> None:
    dear = replace(COSTS, base=1.0)
    search = search_of(windows, tmp_path, costs=dear)
    search.run()
    assert search.best is not None
    assert search.best.speedup < 1.0


@pytest.mark.parametrize("how", ["over", "ctrl-c"])
def test_a_search_stopped_half_way_resumes(
    windows: Windows, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Windows.runs
    judged: list[tuple[int, ...]] = []

    def runs(self: Windows, sub_layers: Any) -> Runs:
        if how == "ctrl-c" and len(judged) == 12:
            raise KeyboardInterrupt
        judged.append(tuple(sub_layers))
        return judge(self, sub_layers)

    monkeypatch.setattr(Windows, "runs", runs)
    stopped = search_of(windows, tmp_path, over=lambda: how == "over" and len(judged) >= 12)
    stopped.run()
    assert not stopped.complete
    assert stopped.best is not None
    assert len(judged) == 12
    how = "go on"
    resumed = search_of(windows, tmp_path)
    assert len(resumed.state.tried) == 12 + 4  # the exits came in one pass
    resumed.run()
    assert len(set(judged)) == len(judged)  # nothing twice
    fresh = search_of(windows, tmp_path / "fresh")
    fresh.run()
    assert resumed.best == fresh.best
    assert resumed.complete


def test_a_state_of_something_else_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    runs = Runs((1,) * WIDTH, (1,) * WIDTH, 8, 8)
    State(path, "k", [Answer((1, 2, 3), 1)], {(0, 1): runs}).write()
    assert open_state(path, "k").tried == {(0, 1): runs}
    assert open_state(path, "k").answers == [Answer((1, 2, 3), 1)]
    assert open_state(path, "other").tried == {}
    assert open_state(tmp_path / "absent.json", "k").answers == []
    path.write_text(path.read_text()[:-9])
    assert open_state(path, "k").tried == {}
    for torn in ("[]", "null", "{}", "[" * 200_000):
        path.write_text(torn)
        assert open_state(path, "k").tried == {}
    assert state_key({"tier": "a"}, [[1]]) != state_key({"tier": "b"}, [[1]])
    assert state_key({"tier": "a"}, [[1]]) != state_key({"tier": "a"}, [[2]])


@pytest.mark.parametrize(
    ("sound", "damaged"),
    [
        ("[1, 2, 3]", "[1, 2, 999]"),
        ("[1, 2, 3]", "[1, 2]"),
        ("[0, 1]", "[0, 77]"),
        ("8, 8]", "9, 8]"),
        ("8, 8]", "0, 0]"),
    ],
)
def test_a_damaged_state_that_parses_counts_as_none(tmp_path: Path, sound: str, damaged: str) -> None:
    path = tmp_path / "state.json"
    State(path, "k", [Answer((1, 2, 3), 1)], {(0, 1): Runs((1,) * WIDTH, (1,) * WIDTH, 8, 8)}).write()
    text = path.read_text()
    assert sound in text
    path.write_text(text.replace(sound, damaged))
    assert open_state(path, "k") == State(path, "k")


def test_answers_end_with_their_time(loaded: LoadedModel) -> None:
    """After one round for the first eight prompts, of twenty: each has said one token."""
    found = greedy_answers(loaded, [[7]] * 20, 24, lambda done, of: None, lambda: True)
    assert [(len(answer.tokens), answer.prompt) for answer in found] == [(2, 1)] * 8


def test_a_search_bounds_its_answers(loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[*b"hello", part] for part in range(30)]
    found = LayerTrainer(loaded, prompts, tmp_path / "s.json", PLAN, quiet).train("here")
    assert (found.answered, found.prompts) == (PLAN.windows, 30)  # no more answers than windows
    monkeypatch.setattr(LayerTrainer, "_used", lambda self: 2.0)
    late = LayerTrainer(loaded, prompts[:2], tmp_path / "t.json", PLAN, quiet)
    with pytest.raises(PromptError, match="too short to draft in"):
        late.train("here")
    assert not (tmp_path / "t.json").exists()  # what is of no use blocks no later search
    late.state.answers = [Answer((*b"hello", *range(20)), 5)]
    tight = late.train("here")
    assert tight.trial.tokens < 2 * PLAN.tokens
    assert (tight.answered, tight.cut) == (1, 0)
    late.state.answers = [Answer((*b"hello", *range(19)), 5)]
    assert late.train("here").cut == 1


def test_long_answers_have_few_windows(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.training.layers.windows.ROOM", 100)
    many = [Answer(tuple(range(40)), 2) for _ in range(20)]
    made = Windows(loaded.target.model, many, quiet, count=12)  # type: ignore[arg-type]
    assert len(made._windows) == 8
    made.close()


def test_a_spread_is_that_of_answers_and_repeats() -> None:
    def race(plain: float, drafted: float) -> Race:
        return Race([plain], [drafted], [], [])

    assert _interval([race(2, 1), race(3, 1)], 2) == (0.0, 5.0)  # one answer
    same = _interval([race(2, 1)] * 4, 2)
    assert same == (2.0, 2.0)
    low, high = _interval([race(2, 1), race(2, 2)], 1)
    reach = 12.71 * math.sqrt(2 * ((2 - 4 / 3) ** 2 + (2 - 8 / 3) ** 2)) / 3
    assert (low, high) == (0.0, pytest.approx(4 / 3 + reach))
    low, high = _interval([race(3, 1), race(1, 1)] * 20, 2)  # the repeats differ, the answers do not
    assert (low, high) == (1.0, 3.0)


def test_rounds_walked_through(loaded: LoadedModel, answers: list[Answer]) -> None:
    whole = tuple(range(10))
    yields = walk(loaded, answers, whole, 3)
    assert yields == sorted(yields)
    assert yields[0] > 1.8  # the last round of an answer may have no room for a guess
    known = Candidate(whole, Runs((1,) * WIDTH, (1,) * WIDTH, 8, 8), 1.0, 3)
    other = Candidate((0, 1), known.runs, 2.0, 2)
    assert best_trial(loaded, answers, lambda tokens, k, leader: tokens * k, [other, known]) == (known, 5)
    assert best_trial(loaded, answers, lambda tokens, k, leader: -k - len(leader.sub_layers), [known, other]) == (
        other,
        1,
    )


def test_a_trial_ends_when_it_is_told_to(loaded: LoadedModel, answers: list[Answer]) -> None:
    candidate = Candidate((0, 1, 4, 6, 7), Runs((1,) * WIDTH, (1,) * WIDTH, 8, 8), 1.0, 3)
    trial = measure(loaded, answers, candidate, 2, 1, lambda done, of: False)
    assert (trial.answers, trial.identical) == (1, 1)
    assert 1 <= trial.tokens < len(answers[0].tokens) - answers[0].prompt - 1  # in the midst of the answer
    assert min(trial.predicted, trial.measured, trial.cost) > 0
    assert 1 <= trial.tokens_a_round <= 3


def test_from_prompts_to_a_file(loaded: LoadedModel, tmp_path: Path) -> None:
    labels: list[str] = []

    def tell(done: int, total: int, label: str, note: str = "") -> None:
        assert 0 <= done <= total
        labels.append(label)
        if note:
            assert note.split(";")[0] in layer_search.PHASES
            assert note.count("left out") <= 1
            assert "1 guesses" not in note

    prompts = [list(b"hello"), list(b"what is this")]
    trainer = LayerTrainer(loaded, prompts, tmp_path / "s.json", PLAN, tell)
    found = trainer.train("here, 2 cores")
    said = list(dict.fromkeys(labels))
    assert said[:3] + said[4:] == ["answering", "preparing", "measuring costs", "measuring"]
    assert re.fullmatch(r"searching for \d+ s at most", said[3])  # which is what its numbers count
    save(found, tmp_path / "choice.json")
    choice = read_choice(tmp_path / "choice.json")
    assert choice == found.choice
    assert (choice.model, choice.identity, choice.machine) == (loaded.name, loaded.identity, "here, 2 cores")
    assert choice.prediction_error == abs(choice.predicted_tokens_per_s / choice.measured_tokens_per_s - 1)
    assert (found.trial.identical, found.trial.answers) == (2, 2)
    assert found.known == 0
    assert (found.answered, found.cut, found.prompts) == (2, 0, 2)
    assert (choice.measured_from, choice.measured_to) == found.trial.interval
    assert choice.measured_from <= min(found.trial.repeats) <= max(found.trial.repeats) <= choice.measured_to
    assert choice.measured_tokens == found.trial.tokens == 2 * (PLAN.tokens - 1)
    assert not choice.conclusive  # 38 tokens say nothing
    again = LayerTrainer(loaded, prompts, tmp_path / "s.json", PLAN, tell)
    assert len(again.state.tried) >= 10
    labels.clear()
    assert again.train("here").known == len(trainer.state.tried)
    assert "answering" not in labels
    other = LayerTrainer(loaded, prompts[:1], tmp_path / "s.json", PLAN, tell)
    assert other.state.tried == {}


def test_what_cannot_be_searched(loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ({"minutes": 0}, {"minutes": float("nan")}, {"tokens": 3}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} must be"):
            LayerPlan(**wrong)
    with pytest.raises(OptionError, match=f"tokens must be fewer than the {loaded.context} of the context, not 512"):
        LayerTrainer(loaded, [[7]], tmp_path / "s.json", replace(PLAN, tokens=512), quiet)
    short = LayerTrainer(loaded, [[7]], tmp_path / "s.json", PLAN, quiet)
    short.state.answers = [Answer((7, 1, 2), 1)]
    with pytest.raises(PromptError, match="too short to draft in"):
        short.train("here")
    generic = replace(loaded, target=CachedTarget(TableModel(Table.random(3, 12, scale=1.0))))  # type: ignore[arg-type]
    with pytest.raises(DrafterError, match="layers is not available for a model that runs through transformers"):
        LayerTrainer(generic, [[7]], tmp_path / "u.json", PLAN, quiet)
    stopped = LayerTrainer(loaded, [[7]], tmp_path / "t.json", PLAN, quiet)
    monkeypatch.setattr(finding.LayerSearch, "run", lambda self: None)
    with pytest.raises(DrafterError, match="stopped before it had tried anything"):
        stopped.train("here")

"""What goes wrong, and what is said of it: options of the wrong kind, drafters that break, answers that fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import foredraft
from foredraft import Draft, LanguageModel
from foredraft.api import Running
from foredraft.drafters.first import FirstOf
from foredraft.drafters.lookup import Lookup
from foredraft.errors import DrafterError, NoTokenLeft, OptionError, PromptError
from foredraft.planning.costs import Costs, PassTable
from foredraft.planning.planner import AutoPlanner
from tests.tiny import make_chat_model

# "a" is too short for min_tokens, "bcd" is not: some answers end with a fault
DEAD_END: Any = {"regex": "a|bcd", "min_tokens": 3, "temperature": 1.0, "seed": 1, "max_tokens": 9}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="module")
def lm(tiny: Path) -> LanguageModel:
    return foredraft.load(tiny, dtype="f32", drafter="none")


def test_a_fault_of_one_of_several_answers_is_in_it_and_not_raised(lm: LanguageModel) -> None:
    result = lm.generate("hello", n=16, **DEAD_END)
    failed = [choice for choice in result.choices if choice.fault is not None]
    assert 0 < len(failed) < 16
    for choice in result.choices:
        assert (choice.fault is None) == (choice.text == "bcd") == (choice.finish_reason == "stop")
    words = "no token is left at token 2 of the answer: regex and min_tokens rule every one out"
    assert {str(choice.fault) for choice in failed} == {words}
    assert all(isinstance(choice.fault, NoTokenLeft) for choice in failed)
    assert failed[0].to_dict()["error"] == words


def test_one_answer_raises_its_fault(lm: LanguageModel) -> None:
    options = {**DEAD_END, "regex": "a"}
    with pytest.raises(NoTokenLeft):
        lm.generate("hello", **options)
    assert lm.generate("hello", n=2, **options).fault is not None
    assert [result.finish_reason for result in lm.generate(["hello", "x"], **options)] == ["error", "error"]


def test_answers_that_are_interrupted_are_kept(lm: LanguageModel) -> None:
    running = lm.start("hello", n=10, max_tokens=30, min_tokens=30, temperature=1.0, drafter="none")
    assert running.results == []
    for _ in range(5):
        next(running)
    running.close()
    (result,) = running.results
    assert [choice.finish_reason for choice in result.choices] == ["cancelled"] * 10
    assert [len(choice.token_ids) for choice in result.choices] == [5] * 8 + [0] * 2  # eight run at a time
    assert lm.loaded.target.slots.free == len(lm.loaded.target.slots)


def test_ctrl_c_keeps_the_answers(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, calls = Running.__next__, iter(range(100))

    def next_round(running: Running) -> None:
        if next(calls) == 4:
            raise KeyboardInterrupt
        whole(running)

    monkeypatch.setattr(Running, "__next__", next_round)
    running = lm.start(["hello", "x"], max_tokens=30)
    with pytest.raises(KeyboardInterrupt):
        running.finish()
    assert [(r.finish_reason, r.completion_tokens) for r in running.results] == [("cancelled", 4)] * 2


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        (["a", ""], r"^prompts\[1\]: the prompt is empty"),
        ([[1], [2], [-1]], r"^prompts\[2\]: prompt token -1 is not in the vocabulary"),
        (["a" * 600, "b"], r"^prompts\[0\]: the prompt has \d+ tokens"),
        ([[]], r"^prompts\[0\]: the list is empty"),
        ([], "^the list is empty"),
    ],
)
def test_a_list_says_which_prompt(lm: LanguageModel, prompts: Any, sentence: str) -> None:
    with pytest.raises(PromptError, match=sentence):
        lm.generate(prompts)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"system": 5}, "system must be text, not 5"),
        ({"raw": "no"}, "raw must be True or False, not 'no'"),
        ({"raw": 1}, "raw must be True or False, not 1"),
        ({"do_sample": "no"}, "do_sample must be True or False, not 'no'"),
        ({"draft_temperature": "warm"}, "draft_temperature must be a number"),
        ({"n": True}, "n must be a whole number"),
        ({"system": "\udcff"}, "system is not UTF-8 text"),
        ({"stop": ["x", "\udcff"]}, "stop is not UTF-8 text"),
        ({"bad_words": "\udcff"}, "bad_words is not UTF-8 text"),
        ({"regex": "\udcff"}, "regex is not UTF-8 text"),
        ({"json_schema": {"const": "\udcff"}}, "json_schema is not UTF-8 text"),
        ({"prediction": "\udcff"}, "prediction is not UTF-8 text"),
        ({"cache_scope": "\udcff"}, "cache_scope is not UTF-8 text"),
        ({"rule": []}, "rule must be auto, ratio or coupled"),
    ],
)
def test_options_of_the_wrong_kind(lm: LanguageModel, options: Any, sentence: str) -> None:
    with pytest.raises(OptionError, match=f"^{sentence}"):
        lm.generate("x", **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"watch": "yes"}, "watch must be True or False, not 'yes'"),
        ({"share_cache": 1}, "share_cache must be True or False, not 1"),
        ({"offline": "no"}, "offline must be True or False, not 'no'"),
        ({"cache": 5}, "cache must be the path of a folder, not 5"),
        ({"threads": "4"}, "threads must be a whole number between 1 and 1024, not '4'"),
        ({"context": 9.5}, "context must be a whole number of at least 1, not 9.5"),
        ({"device": 0}, "device must be text, not 0"),
        ({"dtype": 16}, "dtype must be one of"),
        ({"native_tier": 2}, "native_tier must be one of"),
        ({"draft_tokens": "some"}, "draft_tokens must be a whole number"),
        ({"draft_temperature": "warm"}, "draft_temperature must be a number"),
        ({"draft_temperature": -1}, "draft_temperature must be at least 0"),
        ({"cache_tokens": "many"}, "cache_tokens must be a whole number"),
    ],
)
def test_load_options_of_the_wrong_kind(tiny: Path, options: Any, sentence: str) -> None:
    with pytest.raises(OptionError, match=f"^{sentence}"):
        foredraft.load(tiny, **options)


def test_turns_and_texts_of_the_wrong_kind(lm: LanguageModel) -> None:
    with pytest.raises(OptionError, match=r"^system must be text, not 5"):
        foredraft.Conversation(lm, system=5)  # type: ignore[arg-type]
    talk = foredraft.Conversation(lm)
    for words in (5, "\udcff"):
        with pytest.raises(PromptError, match=r"^a turn is UTF-8 text, not "):
            talk.send(words)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"^what is remembered is text or token ids, not 5"):
        lm.remember(5, "mine")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"^the text to remember is not UTF-8 text"):
        lm.remember("\udcff", "mine")
    with pytest.raises(PromptError, match="not UTF-8"):
        lm.generate([{"role": "\udcff", "content": "x"}])


BY_RATIO = (
    "under rule ratio a seed's text also depends on the drafter, its lengths and what the cache held; "
    "under coupled it does not"
)


class Own:
    """A drafter that breaks where it is told to."""

    name = "own"
    taps: tuple[int, ...] = ()

    def __init__(self, breaks: tuple[str, ...] = (), error: BaseException | None = None) -> None:
        self.breaks = breaks
        self.error = error or RuntimeError("two\nlines")
        self.ended = 0

    def _reach(self, method: str) -> None:
        if method in self.breaks:
            raise self.error

    def begin(self, sequence: Any) -> None:
        self._reach("begin")

    def propose(self, sequences: Sequence[Any], quotes: Any, noises: Any) -> list[Draft]:
        self._reach("propose")
        return [Draft.chain([7]) for _ in sequences]

    def observe(self, sequences: Any, outcomes: Any, scored: Any) -> None:
        self._reach("observe")

    def end(self, sequence: Any) -> None:
        self.ended += 1
        self._reach("end")


@pytest.mark.parametrize("method", ["begin", "propose", "observe", "end"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_drafter_that_breaks_is_named(lm: LanguageModel, method: str, joined: bool) -> None:
    own = Own((method,))
    drafter: Any = FirstOf([Lookup(), own]) if joined else own
    with pytest.raises(DrafterError, match=rf"^drafter own: {method} failed: RuntimeError: two lines$") as caught:
        lm.generate(["abab", "cdcd"], max_tokens=9, drafter=drafter, draft_tokens=4)
    assert caught.value.__cause__ is own.error
    assert own.ended == (1 if method == "begin" else 2)  # every sequence it had met
    assert lm.loaded.target.slots.free == len(lm.loaded.target.slots)
    assert lm.generate("abab", max_tokens=9, drafter=Own()).drafter == "own"


def test_what_broke_first_is_what_is_said(lm: LanguageModel) -> None:
    for method in ("begin", "propose", "observe"):
        with pytest.raises(DrafterError, match=f"^drafter own: {method} failed: ValueError$"):
            lm.generate("abab", max_tokens=9, drafter=Own((method, "end"), ValueError()), draft_tokens=4)
    with pytest.raises(DrafterError, match=r"^its own words$"):
        lm.generate("abab", max_tokens=9, drafter=Own(("propose",), DrafterError("its own words")), draft_tokens=4)


@pytest.mark.parametrize("method", ["begin", "propose", "observe", "end"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_drafter_that_breaks_under_a_planner_is_dropped_and_the_answer_goes_on(
    lm: LanguageModel, method: str, joined: bool
) -> None:
    lm.runtime.planning._auto = AutoPlanner(Costs(PassTable((1, 64), (1.0, 1.001), 0.0, 0.0)))  # by which guesses pay
    own = Own((method,))
    drafter: Any = FirstOf([Lookup(), own]) if joined else own
    plain = lm.generate(["abab", "cdcd"], max_tokens=9, drafter="none")
    results = lm.generate(["abab", "cdcd"], max_tokens=9, drafter=drafter)
    assert [result.text for result in results] == [result.text for result in plain]
    for result in results:
        (notice,) = result.notices
        assert notice.startswith("drafter own was dropped")
        assert notice.endswith(f"{method} failed: RuntimeError: two lines")
    assert lm.loaded.target.slots.free == len(lm.loaded.target.slots)
    own.breaks = ()
    assert lm.generate("abab", max_tokens=9, drafter=drafter).notices == []


@pytest.mark.parametrize("method", ["begin", "propose", "observe", "end"])
def test_a_drafter_that_exits_ends_no_program(lm: LanguageModel, method: str) -> None:
    own = Own((method,), SystemExit(3))
    with pytest.raises(DrafterError, match=rf"^drafter own: {method} failed: SystemExit: 3$"):
        lm.generate("abab", max_tokens=9, drafter=own, draft_tokens=4)
    lm.runtime.planning._auto = AutoPlanner(Costs(PassTable((1, 64), (1.0, 1.001), 0.0, 0.0)))  # by which guesses pay
    result = lm.generate("abab", max_tokens=9, drafter=own)
    assert result.text == lm.generate("abab", max_tokens=9, drafter="none").text
    assert result.notices == [f"drafter own was dropped: {method} failed: SystemExit: 3"]
    assert lm.loaded.target.slots.free == len(lm.loaded.target.slots)


@pytest.mark.parametrize("method", ["begin", "propose", "observe", "end"])
@pytest.mark.parametrize("planned", [False, True])
def test_ctrl_c_in_a_drafter_passes(lm: LanguageModel, method: str, planned: bool) -> None:
    lm.runtime.planning._auto = AutoPlanner(Costs(PassTable((1, 64), (1.0, 1.001), 0.0, 0.0)))
    length: Any = {} if planned else {"draft_tokens": 4}
    with pytest.raises(KeyboardInterrupt):
        lm.generate("abab", max_tokens=9, drafter=Own((method,), KeyboardInterrupt()), **length)
    assert lm.generate("abab", max_tokens=9, drafter="lookup").notices == []
    assert lm.loaded.target.slots.free == len(lm.loaded.target.slots)


class Copier(Own):
    """A drafter of a user that copies from a prediction as well."""

    def prepare(self, sequence: Any, prediction: Sequence[int] = (), scope: str | None = None) -> None:
        self._reach("prepare")

    def counts(self, sequence: Any) -> Any:
        raise KeyError("prediction")


def test_a_users_drafter_may_copy(lm: LanguageModel) -> None:
    with pytest.raises(DrafterError, match=r"^drafter own: prepare failed: RuntimeError"):
        lm.generate("x", max_tokens=3, drafter=Copier(("prepare",)), prediction="y")
    with pytest.raises(DrafterError, match=r"^drafter own: counts failed: KeyError: 'prediction'"):
        lm.generate("x", max_tokens=3, drafter=Copier(), prediction="y")
    with pytest.raises(OptionError, match="prediction cannot be used by drafter own"):
        lm.generate("x", drafter=Own(), prediction="y")


class Unnamed(Own):
    name = 5  # type: ignore[assignment]


class Deep(Own):
    taps = ("last",)  # type: ignore[assignment]


class Mute(Own):
    propose = None  # type: ignore[assignment]


class Brittle(Own):
    @property
    def name(self) -> str:  # type: ignore[override]
        raise SystemExit("no name")


class Fragile(Own):
    @property
    def taps(self) -> tuple[int, ...]:  # type: ignore[override]
        raise ValueError


@pytest.mark.parametrize(
    ("drafter", "sentence"),
    [
        (Brittle(), "^Brittle is not a drafter: looking at it failed: SystemExit: no name$"),
        (Fragile(), "^Fragile is not a drafter: looking at it failed: ValueError$"),
        (Own, r"^drafter must be an object, not the class Own: give Own\(\)$"),
        (Unnamed(), "^Unnamed is not a drafter: its name must be text, not 5$"),
        (Deep(), "^Deep is not a drafter: its taps must be numbers of layers"),
        (Mute(), "^Mute is not a drafter: propose cannot be called$"),
        (5, "^int is not a drafter: it has no name, taps, begin"),
    ],
)
def test_what_is_no_drafter(lm: LanguageModel, tiny: Path, drafter: Any, sentence: str) -> None:
    with pytest.raises(DrafterError, match=sentence):
        lm.generate("x", drafter=drafter)
    with pytest.raises(DrafterError, match=sentence):
        foredraft.load(tiny, drafter=drafter)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize(
    ("name", "source", "sentence"),
    [
        ("needy", "class Own:\n    def __init__(self, x): pass\n", r"Own\(\) failed: TypeError: .*argument"),
        ("failing", "class Own:\n    def __init__(self): 1 / 0\n", r"Own\(\) failed: ZeroDivisionError: division"),
        ("broken", "class Own\n", "importing broken failed: SyntaxError: "),
        ("leaving", "import sys\nsys.exit('done')\n", "importing leaving failed: SystemExit: done$"),
        ("exiting", "class Own:\n    def __init__(self): exit()\n", r"Own\(\) failed: SystemExit"),
        ("number", "Own = 5\n", r"Own\(\) failed: TypeError: 'int' object is not callable"),
    ],
)
def test_a_class_that_cannot_be_made(lm: LanguageModel, modules: Path, name: str, source: str, sentence: str) -> None:
    (modules / f"{name}.py").write_text(source)
    with pytest.raises(DrafterError, match=f"^drafter {name}:Own: {sentence}") as caught:
        lm.generate("x", drafter=f"{name}:Own")
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("options", "notices"),
    [
        ({}, []),
        ({"seed": 1}, []),
        ({"top_p": 0.9, "temperature": 1.0}, []),
        ({"top_p": 0.9}, ["top_p had no effect: temperature 0 takes the likeliest token"]),
        (
            {"top_k": 5, "min_p": 0.1, "seed": 1},
            ["top_k, min_p and seed had no effect: temperature 0 takes the likeliest token"],
        ),
        ({"n": 2}, ["2 answers at temperature 0 are all the same"]),
        ({"n": 2, "temperature": 1.0}, []),
        ({"draft_tokens": 3}, ["draft_tokens had no effect: nothing is drafted"]),
        (
            {"draft_tokens": 3, "draft_temperature": 1.0},
            ["draft_tokens and draft_temperature had no effect: nothing is drafted"],
        ),
        ({"drafter": "lookup", "draft_tokens": 3}, []),
        ({"drafter": "lookup", "seed": 1, "rule": "ratio", "temperature": 1.0}, [BY_RATIO]),
        ({"drafter": "lookup", "seed": 1, "rule": "ratio", "temperature": 0.0}, []),
        ({"drafter": "lookup", "seed": 1, "temperature": 1.0}, []),
        ({"drafter": "lookup", "rule": "ratio", "temperature": 1.0}, []),
        ({"seed": 1, "rule": "ratio", "temperature": 1.0}, []),  # nothing is drafted, so nothing depends on it
        (
            {"drafter": "lookup", "draft_temperature": 0.5},
            ["draft_temperature had no effect: drafter lookup does not draw by it"],
        ),
        (
            {"drafter": "suffix", "draft_temperature": 0.5, "prediction": "xyz", "draft_tokens": 4},
            ["draft_temperature had no effect: drafter suffix does not draw by it"],
        ),
    ],
)
def test_options_without_effect_are_noticed(lm: LanguageModel, options: Any, notices: list[str]) -> None:
    assert lm.generate("hello", max_tokens=3, **options).notices == notices


def test_load_options_without_effect_are_noticed(tiny: Path) -> None:
    idle = foredraft.load(tiny, dtype="f32", drafter="none", draft_tokens=3)
    assert idle.generate("x", max_tokens=2).notices == ["draft_tokens had no effect: nothing is drafted"]
    warm = foredraft.load(tiny, dtype="f32", drafter=f"lookup+model:{tiny}", draft_temperature=0.5)
    assert warm.generate("x", max_tokens=2).notices == []
    assert warm.generate("x", max_tokens=2, drafter="none").notices == []  # it was meant for the model's own drafter


def test_special_tokens_have_their_names_beside_their_probabilities(lm: LanguageModel) -> None:
    result = lm.generate("hello", regex="a", logprobs=20, max_tokens=5)
    assert result.logprobs is not None
    assert [each.token for each in result.logprobs] == ["a", "<|im_end|>"]
    names = {256: "<s>", 257: "</s>", 258: "<|im_start|>", 259: "<|im_end|>"}
    told = [each for place in result.logprobs for each in place.top_logprobs]
    assert all(each.token == names[each.token_id] for each in told if each.token_id in names)


def test_a_notice_that_breaks_is_the_drafters_fault(tiny: Path) -> None:
    class Talking(Own):
        @property
        def notice(self) -> str:
            raise KeyError("words")

    with pytest.raises(DrafterError, match=r"^drafter own: notice failed: KeyError: 'words'$"):
        foredraft.load(tiny, dtype="f32", drafter=Talking(), draft_tokens=2).slower_paths  # noqa: B018 - asked as the command line does

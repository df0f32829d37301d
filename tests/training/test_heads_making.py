"""From a tiny target to heads and to a draft model that serve it, killed and resumed on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foredraft
from foredraft.errors import DrafterError, OptionError, PromptError, StorageError
from foredraft.models.heads.file import read_heads
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.training.data.plans import DraftPlan, HeadsPlan, parse_plan
from foredraft.training.heads.draft import DraftMaker
from foredraft.training.heads.making import HeadsMaker
from foredraft.training.heads.target import default_taps
from foredraft.training.heads.work import Made
from foredraft.training.interrupt import deferred
from foredraft.training.lock import held
from tests.tiny import make_chat_model
from tests.training.making import FEW, host_of

pytestmark = pytest.mark.slow

NAMED = {"tokens": 1000, "longest": 8, "epochs": 1.0, "vocabulary": 64}
PROMPTS = [[65 + i, 66, 67] for i in range(60)]


@pytest.fixture(autouse=True)
def ctrl_c_as_ever() -> Iterator[None]:
    """Whoever starts the tests in the background may have them ignore Ctrl-C, which they would inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ignore(*_: Any) -> None:
    """Hear nothing."""


@dataclass(frozen=True)
class Shop:
    """A target, a folder whose answers all tests share, and what the first training made."""

    target: Path
    folder: Path
    loaded: LoadedModel
    made: Made
    kept: Path


@pytest.fixture(scope="module", autouse=True)
def small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foredraft.training.data.collect.QUICK", FEW)
        yield


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    root = tmp_path_factory.mktemp("shop")
    target = make_chat_model(root / "target")
    loaded = host_of(target, root / "cache")
    kept = root / "cache" / "kept.safetensors"
    made = HeadsMaker(loaded, root / "work", NAMED, ignore).make(PROMPTS, ["foredraft", "train"], kept)
    return Shop(target, root / "work", loaded, made, kept)


def same_text(shop: Shop, drafter: str, **options: Any) -> Any:
    """Greedy and seeded text is the same with a drafter as without."""
    here: Any = {"cache": shop.folder / "cache", "dtype": "f32", "threads": 1, **options}
    plain = foredraft.load(str(shop.target), drafter="none", **here)
    drafting = foredraft.load(str(shop.target), drafter=drafter, **here)
    for settings in ({}, {"temperature": 0.8, "seed": 3}):
        asked: Any = {"max_tokens": 40, "raw": True, "draft_tokens": 3, **settings}
        assert drafting.generate("abcabc", **asked).token_ids == plain.generate("abcabc", **asked).token_ids
    return drafting.generate("abcabc", max_tokens=40, raw=True, draft_tokens=3).speculative


def test_heads_that_were_made_draft_and_change_nothing(shop: Shop) -> None:
    made = shop.made
    assert made.complete
    assert made.path == shop.kept
    assert shop.kept.read_bytes() == (shop.folder / "heads.safetensors").read_bytes()
    spec, weights = read_heads(shop.kept)
    assert (spec.kind, spec.steps, spec.taps, spec.feeds) == ("recurrent", 3, default_taps(3), "normed")
    assert weights.shape("vocabulary") == (64,)
    for drafter in (f"heads:{shop.kept}", f"heads:{shop.folder}"):  # a file, and a folder of a training
        told = same_text(shop, drafter)
        assert told.drafted > 0
    assert same_text(shop, f"heads:{shop.kept}", native_tier="off").drafted > 0


def test_how_they_came_about_is_written_down(shop: Shop) -> None:
    spec, _ = read_heads(shop.kept)
    facts = spec.provenance
    assert facts["foredraft"] == foredraft.__version__
    assert facts["argv"] == ["foredraft", "train"]
    assert facts["plan"]["tokens"] == 1000
    assert len(facts["data"]) == 16
    assert facts["tokens"] >= 1000
    assert facts["visits"] > 0
    assert facts["losses"][-1] == [facts["visits"], facts["loss"]]
    assert facts["tokens_a_pass"] == shop.made.judgement.greedy.tokens_a_pass
    history = json.loads((shop.folder / "log.json").read_text())["history"]
    assert history[-1]["loss"] == facts["loss"]
    states = list((shop.folder / "states").iterdir())
    assert sum(path.stat().st_size for path in states) <= HeadsMaker(shop.loaded, shop.folder, {}, ignore).work.bound(
        []
    )


def test_going_on_with_what_is_complete_makes_the_same(shop: Shop, tmp_path: Path) -> None:
    folder = shutil.copytree(shop.folder, tmp_path / "work")
    before = read_heads(folder / "heads.safetensors")[1]
    maker = HeadsMaker(shop.loaded, folder, {}, ignore)  # what was named before is known
    assert maker.begun
    assert (maker.plan.tokens, maker.plan.vocabulary) == (1000, 64)
    maker.make(PROMPTS, [])
    after = read_heads(folder / "heads.safetensors")[1]
    assert all(np.array_equal(before.raw(name), after.raw(name)) for name in before.names())


def copied(shop: Shop, folder: Path) -> Path:
    """Return a folder that has the answers, and nothing trained."""
    (folder / "states").mkdir(parents=True)
    for path in (shop.folder / "states").iterdir():
        os.link(path, folder / "states" / path.name)
    return folder


def test_medusa_heads(shop: Shop, tmp_path: Path) -> None:
    folder = copied(shop, tmp_path / "work")
    made = HeadsMaker(shop.loaded, folder, {**NAMED, "kind": "medusa"}, ignore).make(PROMPTS, [])
    spec, _ = read_heads(made.path)
    assert (spec.kind, spec.steps) == ("medusa", 4)
    assert len(made.judgement.greedy.conditional) == 4
    assert same_text(shop, f"heads:{made.path}").drafted > 0


def stopping_after(steps: int) -> Callable[..., None]:
    """Press Ctrl-C once in the training, as a terminal does."""
    seen = 0

    def tell(done: int, total: int, label: str, note: str = "") -> None:
        nonlocal seen
        seen += label == "training"
        if seen == steps and label == "training":
            os.kill(os.getpid(), signal.SIGINT)

    return tell


def test_ctrl_c_writes_what_there_is_and_the_rest_follows(shop: Shop, tmp_path: Path) -> None:
    named = {**NAMED, "epochs": 2.0}
    whole, parted = (copied(shop, tmp_path / name) for name in ("whole", "parted"))
    HeadsMaker(shop.loaded, whole, named, ignore).make(PROMPTS, [])
    kept = tmp_path / "kept.safetensors"
    stopped = HeadsMaker(shop.loaded, parted, named, stopping_after(3)).make(PROMPTS, [], kept)
    assert not stopped.complete
    assert stopped.path == parted / "heads.safetensors"
    assert not kept.exists()  # nothing finds half-trained heads by itself
    assert (
        read_heads(stopped.path)[0].provenance["visits"]
        < read_heads(whole / "heads.safetensors")[0].provenance["visits"]
    )
    done = HeadsMaker(shop.loaded, parted, {}, ignore).make(PROMPTS, [], kept)
    assert done.complete
    assert done.path == kept
    a, b = (read_heads(path)[1] for path in (whole / "heads.safetensors", kept))
    assert all(np.array_equal(a.raw(name), b.raw(name)) for name in a.names())


def test_ctrl_c_waits_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with deferred() as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    found = []

    def elsewhere() -> None:
        with deferred() as stopped:
            found.append(stopped())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [False]


def test_two_trainings_in_one_folder(shop: Shop, tmp_path: Path) -> None:
    partial = shop.folder / "states" / "states-00099.partial"
    with held(shop.folder):
        partial.write_bytes(b"of the one that is going on")
        try:
            with pytest.raises(StorageError, match=f"another training is going on in {shop.folder}: name another"):
                HeadsMaker(shop.loaded, shop.folder, {}, ignore).make(PROMPTS, [])
            assert partial.exists()
        finally:
            partial.unlink()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write under"):
        HeadsMaker(shop.loaded, tmp_path / "file" / "below", NAMED, ignore).make(PROMPTS, [])


def test_plans(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for named, said in (
        ({"tokens": 10}, "tokens must be at least 1000, not 10"), ({"epochs": float("nan")}, "epochs must be a number"),
        ({"gigabytes": 0}, "gigabytes must be a number above 0 and below 1000000, not 0"),
        ({"epochs": 1e9}, "epochs must be a number above 0 and below 1000000, not 1000000000.0"),
        ({"kind": "x"}, "kind must be one of"),
        ({"vocabulary": 3}, "vocabulary must be at least 16"), ({"longest": 1}, "longest must be at least 4, not 1"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=said):
            parse_plan(HeadsPlan, path, named)
    for layers in (1, 7):
        with pytest.raises(OptionError, match=f"layers must be from 2 to 6, not {layers}"):
            DraftPlan(layers=layers)
    path.write_text(json.dumps({"vocabulary": 100, "epochs": 3, "kind": "medusa"}))
    plan = parse_plan(HeadsPlan, path, {"epochs": 4.0})
    assert (plan.vocabulary, plan.epochs, plan.kind) == (100, 4.0, "medusa")
    with pytest.raises(OptionError, match=f"kind is medusa in the training under {tmp_path}: name another folder"):
        parse_plan(HeadsPlan, path, {"kind": "recurrent"})
    for text in ("[]", "{", '{"other": 1}'):
        path.write_text(text)
        with pytest.raises(StorageError, match=r"plan.json cannot be read: .*; delete it"):
            parse_plan(HeadsPlan, path, {})


def test_more_answers_keep_the_vocabulary(shop: Shop, tmp_path: Path) -> None:
    folder = copied(shop, tmp_path / "work")
    HeadsMaker(shop.loaded, folder, {**NAMED, "epochs": 0.2}, ignore).make(PROMPTS, [])
    before = read_heads(folder / "heads.safetensors")[1].raw("vocabulary").tolist()
    made = HeadsMaker(shop.loaded, folder, {"tokens": 1500, "epochs": 0.3}, ignore).make(PROMPTS, [])
    assert made.tokens > 1300
    assert read_heads(made.path)[1].raw("vocabulary").tolist() == before


def test_answers_that_are_there_are_taken_as_they_are(shop: Shop, tmp_path: Path) -> None:
    """By whichever training comes second, unless it names a number; what it took is then its own plan."""
    rest = {name: value for name, value in NAMED.items() if name != "tokens"}
    for kind, folder in ((HeadsMaker, copied(shop, tmp_path / "a")), (DraftMaker, copied(shop, tmp_path / "b"))):
        files = sorted((folder / "states").iterdir())
        named = {**rest, "epochs": 0.2, **({"layers": 2} if kind is DraftMaker else {})}
        maker: Any = kind(shop.loaded, folder, named, ignore)
        assert not maker.begun
        assert 1000 <= maker.work.taken == maker.plan.tokens == maker.work.plan.tokens < 1010
        maker.make([], [])
        assert sorted((folder / "states").iterdir()) == files
        again: Any = kind(shop.loaded, folder, {"layers": 2} if kind is DraftMaker else {}, ignore)
        assert again.begun
        assert (again.plan.tokens, again.work.taken) == (maker.plan.tokens, 0)
        more: Any = kind(shop.loaded, folder, {**named, "tokens": 1200}, ignore)
        assert (more.plan.tokens, more.work.taken) == (1200, 0)
    empty: Any = HeadsMaker(shop.loaded, tmp_path / "c", rest, ignore)
    assert (empty.plan.tokens, empty.work.taken) == (HeadsPlan().tokens, 0)


def test_what_is_refused_leaves_the_plan(shop: Shop, tmp_path: Path) -> None:
    folder = copied(shop, tmp_path / "work")
    (folder / "prompts").write_text("of others")
    (folder / "plan.json").write_text(json.dumps(NAMED))
    before = {path: path.read_bytes() for path in folder.glob("*.json")}
    with pytest.raises(OptionError, match="were begun with other prompts"):
        HeadsMaker(shop.loaded, folder, {"tokens": 50_000}, ignore).make(PROMPTS, [])
    assert {path: path.read_bytes() for path in folder.glob("*.json")} == before
    bare = replace(shop.loaded, tokenizer=None)
    with pytest.raises(PromptError, match="there are no prompts"):
        HeadsMaker(bare, tmp_path / "new", NAMED, ignore).make([], [])
    assert not HeadsMaker(shop.loaded, tmp_path / "new", {}, ignore).begun


def test_too_little_to_learn_from(shop: Shop, tmp_path: Path) -> None:
    maker = HeadsMaker(shop.loaded, tmp_path, {**NAMED, "gigabytes": 4e-6}, ignore)
    with pytest.raises(PromptError, match=r"answers to (1 text|[02-9] texts) are too few to train on and to judge by"):
        maker.make(PROMPTS, [])
    assert sum(path.stat().st_size for path in (tmp_path / "states").glob("*")) <= 4000


def test_models_that_nothing_is_trained_for(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match="runs through transformers' own module, for which nothing can be trained"):
        HeadsMaker(replace(shop.loaded, folder=None), tmp_path, NAMED, ignore)


def test_a_draft_model_is_made_of_the_same_answers(shop: Shop, tmp_path: Path) -> None:
    folder = shutil.copytree(shop.folder, tmp_path / "work")
    files = sorted((folder / "states").iterdir())
    maker = DraftMaker(shop.loaded, folder, {**NAMED, "layers": 2}, ignore)
    assert not maker.begun
    made = maker.make(PROMPTS, ["argv"])
    assert sorted((folder / "states").iterdir()) == files
    assert made.path == folder / "draft-2"
    described = json.loads((made.path / "draft_vocabulary.json").read_text())
    assert described["target"]["digest"] == maker.work.digest
    assert len(described["vocabulary"]) == 64
    assert described["provenance"]["argv"] == ["argv"]
    assert json.loads((made.path / "config.json").read_text())["num_hidden_layers"] == 2
    for options in ({}, {"native_tier": "off"}):
        told = same_text(shop, f"model:{made.path}", **options)
        assert told.drafted > 0
    again = DraftMaker(shop.loaded, folder, {"layers": 2}, ignore)
    assert again.begun
    before = (made.path / "model.safetensors").read_bytes()
    assert again.make(PROMPTS, []).path == made.path
    assert (made.path / "model.safetensors").read_bytes() == before
    with pytest.raises(DrafterError, match="a draft of 3 layers is no smaller than a model of 3"):
        DraftMaker(shop.loaded, folder, {**NAMED, "layers": 3}, ignore)


def test_other_prompts_in_the_middle_are_refused(shop: Shop, tmp_path: Path) -> None:
    folder = copied(shop, tmp_path / "work")
    (folder / "prompts").write_text("of others")
    with pytest.raises(OptionError, match="were begun with other prompts: name the same file, or another folder"):
        HeadsMaker(shop.loaded, folder, {"tokens": 50_000, "epochs": 0.3}, ignore).make(PROMPTS, [])

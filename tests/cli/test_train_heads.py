"""``foredraft train heads`` and ``train draft`` on a tiny model, what finds their results, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from foredraft.models.heads.file import heads_file, read_heads
from foredraft.training.data.plans import DraftPlan, HeadsPlan
from foredraft.training.layers.finding import LayerPlan
from tests.cli.asking import Answer, Ask
from tests.models.quantised_files import quantised_file
from tests.tiny import make_chat_model
from tests.training.making import FEW

pytestmark = pytest.mark.slow

KEYS = {
    "file", "digest", "tokens", "tokens_a_pass", "tokens_a_pass_drawn", "conditional", "acceptance", "agreement",
    "collected_s", "trained_s", "complete",
}  # fmt: skip
MACHINE = ("--dtype", "f32", "--threads", 1)
COMMON = ("tokens", "epochs", "vocabulary", "longest", "gigabytes")
SMALL = ("--tokens", 1000, "--longest", 8, "--epochs", 0.5, "--vocabulary", 64)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.training.data.collect.QUICK", FEW)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    turns = [{"turns": ["ab" * (i + 1), f"hello {i}"]} for i in range(8)]
    path.write_text("\n".join(json.dumps(line) for line in turns))
    return path


def generated(ask: Ask, model: Path, *words: object) -> Any:
    asked = ("generate", "abab", "--model", model, "--max-tokens", 20, *MACHINE, "--draft-tokens", 3, "--json")
    return ask(*asked, *words).document


def test_heads_are_found_where_they_are_put(ask: Ask, tiny: Path, prompts: Path, tmp_path: Path) -> None:
    answer: Answer = ask("train", "heads", "--model", tiny, "--prompts", prompts, *SMALL, *MACHINE, "--json")
    assert answer.status == 0, answer.err
    document = answer.document
    assert set(document) == KEYS
    assert document["complete"]
    folder = tmp_path / "cache" / "heads" / document["digest"]
    assert f"note: states take up to 9.5 MB under {folder / 'states'}" in answer.err
    assert answer.err.index("states take up to") < answer.err.index("answering") < answer.err.index("training")
    path = heads_file(tmp_path / "cache", document["digest"])
    assert document["file"] == str(path)
    argv = read_heads(path)[0].provenance["argv"]
    assert argv[:3] == ["foredraft", "train", "heads"]
    assert argv[argv.index("--prompts") + 1] == str(prompts)
    plain, drafted = generated(ask, tiny, "--drafter", "none"), generated(ask, tiny, "--drafter", "heads")
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["speculative"]["drafted"] > 0

    again = ask("train", "heads", "--model", tiny, *SMALL, *MACHINE)
    assert again.status == 2
    assert again.err.count("\n") == 1
    assert f"{folder} holds a training that was begun: go on with --resume, or name another --out" in again.err
    other = ask("train", "heads", "--model", tiny, "--resume", "--vocabulary", 32, *MACHINE)
    assert other.status == 2
    assert f"--vocabulary is 64 in the training under {folder}: name another folder" in other.err
    going = ask("train", "heads", "--model", tiny, "--prompts", prompts, "--resume", *MACHINE)
    assert going.status == 0, going.err
    assert "nothing was begun" not in going.err
    for word in (
        "tokens of answers",
        "trained",
        "tokens a pass greedily",
        "guess by guess",
        "--drafter heads",
        str(path),
    ):
        assert word in going.out

    files = sorted((folder / "states").iterdir())
    learning = ("--longest", 8, "--epochs", 0.5, "--vocabulary", 64)
    draft = ask("train", "draft", "--model", tiny, "--layers", 2, *learning, *MACHINE)  # on the same answers
    assert draft.status == 0, draft.err
    assert "answering" not in draft.err
    assert f"tokens of answers under {folder / 'states'} are taken as they are; --tokens asks for more" in draft.err
    assert sorted((folder / "states").iterdir()) == files
    named = ("--tokens", 1200, "--prompts", prompts, *learning)
    more = ask("train", "draft", "--model", tiny, "--layers", 2, "--resume", *named, *MACHINE)
    assert more.status == 0, more.err
    assert "answering" in more.err
    assert "taken as they are" not in more.err
    assert len(list((folder / "states").iterdir())) > len(files)
    assert f"--drafter model:{folder / 'draft-2'}" in draft.out
    served = generated(ask, tiny, "--drafter", f"model:{folder / 'draft-2'}")
    assert served["token_ids"] == plain["token_ids"]
    assert served["speculative"]["drafted"] > 0
    begun = ask("train", "draft", "--model", tiny, "--layers", 2, *MACHINE)
    assert begun.status == 2
    assert "holds a training that was begun" in begun.err


@pytest.mark.parametrize("what", ["heads", "draft"])
def test_a_gguf_teaches_by_its_widened_weights_or_by_its_blocks(
    ask: Ask, what: str, prompts: Path, tmp_path: Path
) -> None:
    path = quantised_file(tmp_path / "own.gguf", vocabulary=260, layers=3, hidden=64, mlp=128, heads=2, kv_heads=1)
    digests = set()
    for dtype in ("auto", "file"):
        out = tmp_path / dtype
        words = ("--model", path, "--prompts", prompts, *SMALL, "--threads", 1, "--out", out, "--dtype", dtype)
        words += ("--layers", 2) if what == "draft" else ()
        answer = ask("train", what, *words, "--json")
        assert answer.status == 0, answer.err
        digests.add(answer.document["digest"])
        kinds = {folder.name.split("-")[1] for folder in (tmp_path / "cache").glob("own-*")}
        assert kinds == ({"bf16"} if dtype == "auto" else {"bf16", "file"})
        drafter = f"heads:{out}" if what == "heads" else f"model:{answer.document['file']}"
        named = ("--model", path, "--max-tokens", 8, "--raw", "--drafter", drafter, "--draft-tokens", 2, "--threads", 1)
        drafted = ask("generate", "AB", *named, "--json")
        assert drafted.status == 0, drafted.err
        assert drafted.document["dtype"] == "file"
        assert drafted.document["speculative"]["drafted"]
    assert len(digests) == 1


def test_a_folder_of_its_own_without_prompts(ask: Ask, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    words = ("train", "heads", "--model", tiny, "--out", out, "--kind", "medusa", "--resume", *SMALL, *MACHINE)
    answer = ask(*words)
    assert answer.status == 0, answer.err
    assert f"note: nothing was begun under {out}, so it begins now" in answer.err
    assert f"--drafter heads:{out / 'heads.safetensors'}" in answer.out
    assert not (tmp_path / "cache" / "heads").exists()
    assert read_heads(out / "heads.safetensors")[0].kind == "medusa"
    other = make_chat_model(tmp_path / "other", num_hidden_layers=2)
    refused = ask("generate", "x", "--model", other, "--drafter", f"heads:{out}")
    digest = read_heads(out / "heads.safetensors")[0].digest
    assert refused.status == 2
    assert f"was trained for {tiny} ({digest}), not for {other} (" in refused.err


def test_prompts_that_are_too_long(ask: Ask, refused: Callable[..., str], tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    lines = [{"prompt": "short"}, {"prompt": "x" * 90}, {"turns": ["fine", "y" * 9000]}]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    words = ("train", "heads", "--model", tiny, "--context", 100, "--out", tmp_path / "out", *SMALL, *MACHINE)
    answer = ask(*words, "--prompts", path)
    assert answer.status == 0, answer.err
    assert "note: 2 prompts are longer than the context of 100 tokens and left out, first line 3" in answer.err
    path.write_text(json.dumps({"prompt": "x" * 90}))
    assert "the only prompt is longer than the context of 100 tokens" in ask(*words, "--resume", "--prompts", path).err
    path.write_text(json.dumps({"turns": ["x" * 90, "y" * 90]}))
    assert "all 2 prompts are longer than the context of 100 tokens" in ask(*words, "--resume", "--prompts", path).err


def test_prompt_files_that_are_none(refused: Callable[..., str], tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    for text, said in (
        ("", f"{path} holds no prompts"),
        ('{"prompt": "a"}\n{"prompt": 3}', f"{path}, line 2: a prompt is text"),
        ('{"prompt": "a"}\n\nnot json', f"{path}, line 3 is not JSON"),
    ):
        path.write_text(text)
        assert said in refused("train", "heads", "--model", tiny, "--prompts", path)


def test_a_model_without_a_template_needs_prompts(ask: Ask, prompts: Path, tmp_path: Path) -> None:
    folder = make_chat_model(tmp_path / "bare")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    answer = ask("train", "heads", "--model", folder, *SMALL, *MACHINE)
    assert answer.status == 2
    assert "there are no prompts, and without a chat template the model cannot write any: give some" in answer.err
    again = ask("train", "heads", "--model", folder, "--prompts", prompts, *SMALL, *MACHINE)  # nothing was begun
    assert again.status == 0, again.err
    draft = ask("train", "draft", "--model", folder, "--layers", 2, *SMALL[4:], *MACHINE)  # which needs no prompts
    assert draft.status == 0, draft.err


def test_options_of_another_training(refused: Callable[..., str]) -> None:
    assert "--epochs is an option of train heads and train draft, not of train layers" in refused(
        "train", "layers", "--epochs", 3
    )
    assert "--resume is an option of train heads and train draft" in refused("train", "layers", "--resume")
    assert "--minutes is an option of train layers, not of train heads" in refused("train", "heads", "--minutes", 3)
    assert "--layers is an option of train draft, not of train heads" in refused("train", "heads", "--layers", 3)
    assert "--kind is an option of train heads, not of train draft" in refused("train", "draft", "--kind", "medusa")


def test_numbers_that_cannot_be(refused: Callable[..., str]) -> None:
    assert "--tokens must be at least 1000, not 5" in refused("train", "heads", "--tokens", 5)
    for what, epochs in (("heads", "nan"), ("draft", "0.0"), ("heads", "1000000000.0")):
        says = f"--epochs must be a number above 0 and below 1000000, not {epochs}"
        assert says in refused("train", what, "--epochs", epochs)
    assert "--vocabulary must be at least 16, not 2" in refused("train", "draft", "--vocabulary", 2)
    assert "--layers must be from 2 to 6, not 7" in refused("train", "draft", "--layers", 7)
    assert "--kind must be recurrent or medusa" in refused("train", "heads", "--kind", "x")


def test_without_torch(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.models.runner.torch_installed", lambda: False)
    for what in ("heads", "draft"):
        assert refused("train", what) == f"train {what} needs torch: pip install 'foredraft[torch]'"


def test_ctrl_c_while_answering(ask: Ask, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.training.data.collect import Collector

    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Collector, "batch", pressed)
        answer = ask("train", "heads", "--model", tiny, "--out", tmp_path / "out", *SMALL, *MACHINE)
    assert answer.status == 130
    assert "note: stopped; the same command with --resume goes on after the last answers on disk" in answer.err
    again = ask("train", "heads", "--model", tiny, "--out", tmp_path / "out", *SMALL, *MACHINE)
    assert again.status == 2
    assert "holds a training that was begun: go on with --resume, or name another --out" in again.err
    # the options that were named hold, and it is not said that there was nothing
    going = ask("train", "heads", "--model", tiny, "--out", tmp_path / "out", "--resume", "--json", *MACHINE)
    assert going.status == 0, going.err
    assert "nothing was begun" not in going.err
    assert going.document["tokens"] < 1100


@pytest.mark.parametrize("what", ["heads", "draft"])
def test_a_folder_of_the_users_own_is_no_cache(ask: Ask, tiny: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("")
    more = ("--layers", 2) if what == "draft" else ()
    found = ask("train", what, "--model", tiny, "--out", tmp_path / "file" / "below", *more, *SMALL, *MACHINE)
    assert found.status == 2
    assert f"cannot write under {tmp_path / 'file' / 'below'}: not a directory; choose another folder\n" in found.err


DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "heads": {name: getattr(HeadsPlan(), name) for name in (*COMMON, "kind")},
        "draft": {name: getattr(DraftPlan(), name) for name in (*COMMON, "layers")},
        "layers": {"tokens": LayerPlan().tokens, "minutes": LayerPlan().minutes},
    }
)


@pytest.mark.parametrize("what", DEFAULTS)
@pytest.mark.parametrize("words", [("--help",), ("--threads", "1", "-h")])
def test_each_tells_its_own_options_and_defaults(ask: Ask, what: str, words: tuple[str, ...]) -> None:
    shown = ask("train", what, *words)
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.startswith(f"usage: foredraft train {what} ")
    told = set(re.findall(r"^  --([a-z]+)", shown.out, re.MULTILINE))
    text = " ".join(shown.out.split())
    for name, value in DEFAULTS[what].items():
        assert name in told
        number = value if isinstance(value, str) else f"{value:g}" if value < 1e6 else str(value)
        found = re.search(rf"--{name} [A-Z]+ (.*?)(?= --| machine:)", text)
        assert found is not None
        assert re.search(rf"\(default {number}\b|\b{number} \(default\)", found[1]), name
    others = {name for options in DEFAULTS.values() for name in options} - set(DEFAULTS[what])
    assert not others & told
    assert ("resume" in text) == (what != "layers")
    assert ("recurrent (default) or medusa" in text) == (what == "heads")


def test_help_without_a_what_tells_what_there_is(ask: Ask) -> None:
    shown = ask("train", "--help")
    assert shown.status == 0
    assert "foredraft train heads --help" in shown.out
    assert all(f"  {what} " in shown.out for what in DEFAULTS)

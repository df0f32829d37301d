"""``foredraft models`` and ``foredraft doctor``."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from foredraft.cli.arguments.loading import cache_folder
from foredraft.cli.stored.installed import Kept, size_on_disk
from foredraft.models import runner
from foredraft.models.gguf.link import LINK
from foredraft.models.hub.registry import ALIASES, PAIRS
from foredraft.system import machine
from foredraft.system.sizes import size_of
from tests.cli.asking import Ask
from tests.models.quantised_files import quantised_file

NOTHING = {"tiers": [], "all": list(runner.TIERS), "notice": "the native pass was not built"}


@pytest.fixture(autouse=True)
def no_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "hub"), raising=False)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A model in the cache, as a conversion leaves it."""
    folder = tmp_path / "cache" / "smollm2-135m-bf16-0123"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x" * 5_000_000)
    source = {"kind": "wheel", "name": "smollm2-135m", "file": "x.gguf"}
    (folder / "foredraft.json").write_text(json.dumps({"source": source}))
    return folder


def test_where_models_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder({"FOREDRAFT_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"FOREDRAFT_CACHE": "", "XDG_CACHE_HOME": "/b"}) == Path("/b/foredraft")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder({}) == tmp_path / ".cache/foredraft"


def test_list(ask: Ask, kept: Path) -> None:
    said = ask("models")
    assert said.status == 0
    assert "smollm2-135m" in said.out.split("Known")[0]
    assert "5.0 MB" in said.out
    assert "(default, here)" in said.out
    assert all(name in said.out for name in ALIASES)
    assert said.out.count(PAIRS[0].why) == 1
    document = ask("models", "--json").document
    (entry,) = document["here"]
    assert (entry["name"], entry["folder"], entry["source"]["kind"]) == ("smollm2-135m", str(kept), "wheel")
    assert len(document["known"]) == len(ALIASES)
    assert document["pairs"][0]["draft"] == PAIRS[0].draft


def test_nothing_is_here_yet(ask: Ask) -> None:
    assert "nothing yet" in ask("models", "list").out


def test_fetch_tells_where_it_is(ask: Ask, kept: Path, tiny: Path) -> None:
    assert ask("models", "fetch", tiny).out.startswith(f"{tiny} is here: ")
    assert ask("models", "fetch", "--json", tiny).document["folder"] == str(tiny)


def test_remove(ask: Ask, kept: Path) -> None:
    done = ask("models", "remove", "smollm2-135m")
    assert done.out == "smollm2-135m is removed: 5.0 MB freed\n"
    assert not kept.exists()
    assert kept.parent.exists()


def test_remove_takes_the_file_that_was_kept_as_it_came(ask: Ask, kept: Path) -> None:
    came = kept.parent / "smollm2-135m-gguf-0"
    came.mkdir()
    (came / "foredraft.json").write_text((kept / "foredraft.json").read_text())
    (came / "some.gguf").write_bytes(bytes(1_000_000))
    assert ask("models", "remove", "smollm2-135m").out == "smollm2-135m is removed: 6.0 MB freed\n"
    assert (kept.exists(), came.exists()) == (False, False)


def test_a_gguf_is_fetched_as_it_is_listed_and_removed(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "gpu_possible", lambda: False)
    path = quantised_file(tmp_path / "own.gguf", vocabulary=260)
    document = ask("models", "fetch", path, "--json").document
    folder = Path(document["folder"])
    assert "-file-" in folder.name
    assert document["bytes"] < 100_000  # of which weights are none
    wide = Path(ask("models", "fetch", path, "--dtype", "bf16", "--json").document["folder"])
    assert (wide / "model.safetensors").is_file()
    assert ask("models", "fetch", path, "--dtype", "file", "--json").document["folder"] == str(folder)
    names = [(entry["name"], entry["source"]["kind"]) for entry in ask("models", "--json").document["here"]]
    assert names == [("own.gguf", "gguf")] * 2
    words = ("generate", "AB", "--raw", "--model", path, "--max-tokens", 3, "--drafter", "none", "--threads", 1)
    answer = ask(*words, "--json")
    assert answer.document["dtype"] == "file"
    assert "of packed weights are kept in" in answer.err
    again = ask(*words)
    assert " file" in again.err
    assert "packed" not in again.err
    packed = list((tmp_path / "cache" / "packed").iterdir())
    assert len(packed) == 1
    path.unlink()
    assert "is gone" in ask("generate", "AB", "--model", folder, "--raw").err
    assert ask("models", "remove", "own.gguf").status == 0
    assert not any(place.exists() for place in (folder, wide, *packed))


def test_sizes_count_packed_weights_and_what_two_share_goes_with_the_last(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "gpu_possible", lambda: False)
    cache = tmp_path / "cache"
    path = quantised_file(tmp_path / "own.gguf", vocabulary=260)
    (tmp_path / "other").mkdir()
    twin = Path(shutil.copy(path, tmp_path / "other" / "own.gguf"))
    os.utime(twin, (1, 1))
    folders = [Path(ask("models", "fetch", each, "--json").document["folder"]) for each in (path, twin)]
    small = size_on_disk(folders[0])
    assert ask("models", "fetch", path).out.startswith(f"{path} is here: {size_of(small)} in ")
    words = ("generate", "AB", "--raw", "--max-tokens", 1, "--drafter", "none", "--threads", 1, "--model")
    assert ask(*words, path).status == 0
    packed = size_on_disk(cache / "packed")
    assert packed > 10 * small
    assert ask("models", "fetch", path).out.endswith(f", and {size_of(packed)} of packed weights\n")
    assert ask("models", "fetch", path, "--json").document["bytes"] == small + packed
    for entry in ask("models", "--json").document["here"]:
        assert entry["bytes"] - entry["packed"] == size_on_disk(Path(entry["folder"]))
        assert entry["packed"] == packed  # both run from the same one
    assert ask("models").out.count(size_of(small + packed)) == 2
    layers = cache / "layers" / f"{next((cache / 'packed').iterdir()).name.partition('-')[0]}.json"
    layers.parent.mkdir(exist_ok=True)
    layers.write_bytes(bytes(1000))
    assert ask("models", "remove", twin, "--json").document["bytes"] == pytest.approx(small, abs=200)
    assert (folders[0].exists(), folders[1].exists(), size_on_disk(cache / "packed")) == (True, False, packed)
    before = size_on_disk(cache)
    assert ask("models", "remove", path, "--json").document["bytes"] == before == small + packed + 1000
    assert size_on_disk(cache) == 0


def test_packed_weights_belong_to_the_folder_that_runs_from_them(tmp_path: Path) -> None:
    for name in ("x-file-5", "x-bf16-5", "x-rounded-5", "xy-bf16-5"):
        (tmp_path / "packed" / name).mkdir(parents=True)
    wide = Kept("a", tmp_path / "a", 0, {}, None, "x", linked=False)
    assert [path.name for path in wide.cache_files(tmp_path)] == ["x-bf16-5", "x-rounded-5"]
    assert [path.name for path in replace(wide, linked=True).cache_files(tmp_path)] == ["x-file-5"]
    assert replace(wide, identity=None).cache_files(tmp_path) == []


def test_a_gguf_is_removed_by_its_path_and_by_a_name_that_is_its_own(ask: Ask, refused: Any, tmp_path: Path) -> None:
    folders, paths = [], []
    for number in (1, 2):
        (tmp_path / f"rep{number}").mkdir()
        paths.append(quantised_file(tmp_path / f"rep{number}" / "m.gguf", vocabulary=259 + number % 2))
        fetched = ask("models", "fetch", paths[-1], "--dtype", "file", "--json")
        folders.append(Path(fetched.document["folder"]))
    said = refused("models", "remove", "m.gguf")
    assert said == f"'m.gguf' fits the models of {paths[0]}, {paths[1]}: give the path of one"
    assert all(folder.exists() for folder in folders)
    assert "no model called 'rep3/m.gguf' is here" in refused("models", "remove", "rep3/m.gguf")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "rep2")
    assert ask("models", "remove", "elsewhere/m.gguf").status == 0  # relative, and through a link
    assert [folder.exists() for folder in folders] == [True, False]
    assert ask("models", "remove", "m.gguf").status == 0
    assert not folders[0].exists()


@pytest.mark.parametrize("name", ["link.gguf", "target.gguf", "./link.gguf", "sub/target.gguf"])
def test_a_symlink_is_listed_as_it_was_named_and_answers_to_both_names(ask: Ask, tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    target = quantised_file(tmp_path / "sub" / "target.gguf", vocabulary=260)
    (tmp_path / "link.gguf").symlink_to(target)
    folder = Path(ask("models", "fetch", "link.gguf", "--dtype", "file", "--json").document["folder"])
    assert [entry["name"] for entry in ask("models", "--json").document["here"]] == ["link.gguf"]
    assert ask("models", "remove", name).status == 0
    assert not folder.exists()


def test_a_damaged_link_can_be_removed(ask: Ask, tmp_path: Path) -> None:
    path = quantised_file(tmp_path / "own.gguf", vocabulary=260)
    folder = Path(ask("models", "fetch", path, "--dtype", "file", "--json").document["folder"])
    (folder / LINK).write_text("{")
    assert ask("models", "remove", "own.gguf").status == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("remove smollm2-135", "did you mean smollm2-135m?"),
        ("remove ..", "no model called '..' is here"),
        ("remove", "remove which model?"),
        ("fetch", "fetch which model?"),
        ("fetch no-such-model", "no-such-model"),
        ("fetch a/b --offline", "--offline"),
        ("fetch a/b --dtype f64", "f64 runs from what f32 fetches"),
        ("fetch a/b --dtype f16", "must be auto or bf16 or f32 or file"),
        ("list x", "list takes no name"),
        ("fetch a b", "unexpected word 'b'"),
    ],
)
def test_refusals(refused: Any, kept: Path, words: str, hint: str) -> None:
    assert hint in refused("models", *words.split())
    assert kept.exists()


def test_doctor_says_what_is_used(ask: Ask, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "gpu_possible", lambda: False)
    facts = ask("doctor", "--json").document
    tiers = runner.native_facts()["tiers"]
    assert (facts["device"], facts["dtype"], facts["tier"]) == ("cpu", "bf16", f"native-{tiers[0]}")
    assert facts["dtype_gguf"] == "file"
    assert facts["native"]["tiers"] == tiers
    assert facts["packages"]["torch"]
    assert facts["cache"]["models"] == ["smollm2-135m"]
    assert facts["default_model"]["here"]
    assert facts["network"] is None
    said = ask("doctor").out
    assert f"tier native-{tiers[0]}, bf16, on cpu; GGUF files run from their own blocks" in said
    assert f"{', '.join(tiers)} can run" in said
    assert "smollm2-135m is here" in said
    assert "foredraft.load does not read FOREDRAFT_CACHE, and takes cache=" in said


def test_doctor_knows_devices(ask: Ask, refused: Any) -> None:
    assert ask("doctor", "--device", "cpu", "--json").document["device"] == "cpu"
    assert "device must be one of" in refused("doctor", "--device", "abacus")


def test_doctor_without_the_native_pass(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "native_facts", lambda: NOTHING)
    facts = ask("doctor", "--json").document
    assert facts["tier"] == "torch"
    assert "the native pass was not built" in facts["warnings"]
    found = machine.packages()
    monkeypatch.setattr(machine, "packages", lambda: {**found, "torch": None})
    assert "there is neither the native pass nor torch" in ask("doctor").out


def test_doctor_warns(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> NoReturn:
        raise OSError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    found = machine.packages()
    monkeypatch.setattr(machine, "packages", lambda: {**found, "tokenizers": None, "transformers": None})
    monkeypatch.setattr(machine, "free_bytes", lambda folder: 1000)
    monkeypatch.setattr(machine, "writable", lambda folder: False)
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(1 << 33, 1 << 32, 1 << 20))
    monkeypatch.setattr(machine, "processor", lambda: machine.Processor("x", (), 8, 8, 1.5))
    monkeypatch.setattr(runner, "native_facts", lambda: NOTHING)
    said = ask("doctor", "--network").out
    for words in (
        "tokenizers is not installed",
        "models beyond the decoder table need foredraft[torch]",
        "1.5 of 8 cores: give --threads 1",
        "cannot be written to: set FOREDRAFT_CACHE (in Python, cache= of load) to a folder that can",
        "only 1 kB are free",
        "set FOREDRAFT_CACHE (in Python, cache= of load) to one on a larger disk",
        "only 1.0 MB of memory",
        "does not answer (no route to host)",
    ):
        assert words in said
    assert len(ask("doctor", "--json", "--network").document["warnings"]) == 7


def test_the_machine_is_read_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/cpuinfo").write_text("model name\t: A CPU\nflags\t: fpu avx2 amx_bf16\n\nmodel name\t: A CPU\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:  8000 kB\nMemAvailable:  4000 kB\n")
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("150000 100000\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1000000\n")
    cpu = machine.processor(tmp_path)
    assert (cpu.name, cpu.flags, cpu.quota) == ("A CPU", ("avx2", "amx_bf16"), 1.5)
    assert machine.memory(tmp_path) == machine.Memory(8_192_000, 4_096_000, 1_000_000)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert machine.processor(tmp_path).quota is None
    assert machine.memory(tmp_path).limit is None
    assert machine.memory(tmp_path / "absent") == machine.Memory(None, None, None)


def test_space_is_that_of_the_nearest_folder(tmp_path: Path) -> None:
    assert machine.free_bytes(tmp_path / "a" / "b") == pytest.approx(machine.free_bytes(tmp_path), rel=0.1)
    assert machine.writable(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    assert not machine.writable(tmp_path / "file" / "b")
    if os.geteuid() != 0:
        assert not machine.writable(Path("/proc/nowhere"))

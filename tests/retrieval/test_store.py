"""Recent text on disk: whole or not there, added to by many and taken from by none."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import OptionError, StorageError
from foredraft.retrieval import cache_file
from foredraft.retrieval.cache_file import Document, split
from foredraft.retrieval.documents import bounded, distinct, size
from foredraft.retrieval.folder import check_scope, clear, entries, look, unfinished
from foredraft.retrieval.index import END
from foredraft.retrieval.store import Store

LIMIT = 1000


def documents(*texts: list[int]) -> list[Document]:
    return [np.array(text, dtype=np.int32) for text in texts]


def lists(found: list[Document]) -> list[list[int]]:
    return [document.tolist() for document in found]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "recent", "abcd", vocabulary=100)


def saved(store: Store, scope: str = "mine") -> list[list[int]]:
    return lists(store.load(scope)[0])


def dropped(store: Store, texts: list[Document], limit: int) -> int:
    done = store.save("mine", texts, limit)
    assert done is not None
    assert (done.documents, done.tokens) == (len(saved(store)), size(store.load("mine")[0]))  # what can be read back
    return done.dropped


def files(store: Store) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def test_what_is_saved_is_loaded_by_scope(store: Store) -> None:
    assert store.load("mine") == ([], None)
    assert dropped(store, documents([1, 2, 3], [4]), LIMIT) == 0
    store.save("yours", documents([9, 9]), LIMIT)
    assert saved(store) == [[1, 2, 3], [4]]
    assert saved(store, "yours") == [[9, 9]]
    assert store.scopes() == ["mine", "yours"]
    assert files(store) == [".lock", "abcd-mine.recent", "abcd-yours.recent"]
    store.remove("mine")
    store.remove("absent")
    assert (saved(store), store.scopes()) == ([], ["yours"])


def test_nothing_to_save_writes_nothing(store: Store) -> None:
    assert store.save("mine", [], LIMIT) is None
    assert not store.folder.exists()


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX'")
def test_what_a_user_said_is_for_him_alone(store: Store) -> None:
    store.save("mine", documents([1]), LIMIT)
    assert store.path("mine").stat().st_mode & 0o077 == 0
    assert store.folder.stat().st_mode & 0o077 == 0


def test_other_tokenizers_have_other_files(store: Store) -> None:
    other = Store(store.folder, "ef01", vocabulary=100)
    store.save("mine", documents([1]), LIMIT)
    other.save("mine", documents([2]), LIMIT)
    assert (saved(store), saved(other)) == ([[1]], [[2]])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "not empty"), (None, "must be text"), (3, "must be text"), ("a/b", "path separator"),
        ("a\\b", "path separator"), ("..", "dot"), (".x", "dot"), ("a\0", "cannot be seen"), ("a\n", "cannot be seen"),
        (" a", "cannot be seen"), ("\ud800", "not UTF-8 text"), ("x" * 65, "longer than 64 bytes"),
        ("é" * 33, "longer than 64 bytes"),
    ],
)  # fmt: skip
def test_names_that_are_no_scopes(name: object, why: str) -> None:
    with pytest.raises(OptionError, match=f"^cache_scope .*{why}"):
        check_scope(name)


def test_names_that_differ_lie_apart_also_where_case_does_not_count(store: Store) -> None:
    names = ["a", "A", "%41", "%61", "ä", "Ä", "a b", "con", "a.", "x" * 64, "ü" * 32, "a:b*c?"]
    paths = [store.path(name) for name in names]
    assert len({path.name.casefold() for path in paths}) == len(names)
    assert all(path.parent == store.folder and len(path.name) <= 255 and path.name.isascii() for path in paths)
    assert all(sign not in path.name for path in paths for sign in '<>:"/\\|?*')


@given(texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=9))
def test_a_document_that_another_begins_or_ends_with_is_kept_once(texts: list[list[int]]) -> None:
    kept = lists(distinct(documents(*texts)))
    for text in texts:  # nothing is lost
        assert any(text == other[i : i + len(text)] for other in kept for i in range(len(other)))
    for text in kept:
        others = [other for other in kept if other is not text]
        assert not any(other[: len(text)] == text or other[-len(text) :] == text for other in others)
    places = [len(texts) - 1 - texts[::-1].index(text) for text in kept]  # what is said again is no longer old
    assert places == sorted(places)


def test_a_conversation_that_has_grown_takes_the_place_of_its_beginning(store: Store) -> None:
    store.save("mine", documents([1, 2], [5]), LIMIT)
    store.save("mine", documents([1, 2, 3], [5]), LIMIT)
    assert saved(store) == [[1, 2, 3], [5]]


def test_the_oldest_goes_where_the_bound_is_reached_and_of_one_that_does_not_fit_its_end_stays(store: Store) -> None:
    assert dropped(store, documents([0, 1, 2, 3], [4] * 4, [5] * 4, [6] * 4), 18) == 1
    assert saved(store) == [[1, 2, 3], [4] * 4, [5] * 4, [6] * 4]
    assert dropped(store, documents([7] * 4, [8]), 18) == 3 + 3
    assert saved(store) == [[4], [5] * 4, [6] * 4, [7] * 4, [8]]


def test_a_document_is_cut_to_the_last_quarter_of_the_bound(store: Store) -> None:
    assert dropped(store, documents(list(range(40)), [1]), 20) == 35
    assert saved(store) == [[35, 36, 37, 38, 39], [1]]


def test_a_document_whose_end_was_held_before_is_not_lost(store: Store) -> None:
    long = list(range(60))
    assert dropped(store, documents(long[-25:], [7] * 25, [8] * 25, long), 100) == 35  # it holds its end, once
    assert saved(store) == [[7] * 25, [8] * 25, long[-25:]]


@given(texts=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=30), max_size=12), bound=st.integers(4, 80))
def test_a_bound_is_used_up_by_the_latest(texts: list[list[int]], bound: int) -> None:
    kept, gone = bounded(documents(*texts), bound)
    assert size(kept) <= bound
    assert gone == sum(map(len, texts)) - sum(map(len, kept))
    ends = [text[-(bound // 4) :] for text in texts]
    count = len(kept)
    assert lists(kept)[1:] == ends[len(ends) - count + 1 :]
    if kept:  # the oldest that is there may lack its beginning, and only where the bound is reached
        oldest = kept[0].tolist()
        assert ends[-count][-len(oldest) :] == oldest
    if count < len(texts) or (kept and len(kept[0]) < len(ends[-count])):
        assert size(kept) >= bound - 1


def test_a_smaller_bound_takes_nothing_from_others(store: Store) -> None:
    many = documents(*([i] * 20 for i in range(1, 6)))
    store.save("mine", many, LIMIT)
    store.save("mine", documents([99] * 4), 4)
    store.save("mine", documents([98] * 50), 20)
    assert saved(store) == [*lists(many), [99] * 4, [98] * 50]
    assert store.bound("mine", 4) == store.bound("mine", LIMIT) == LIMIT
    assert store.bound("absent", 4) == 4
    store.save("mine", documents([5]), 2 * LIMIT)
    assert store.bound("mine", 4) == 2 * LIMIT


def test_an_epoch_is_a_files_own(store: Store) -> None:
    store.save("mine", documents([1]), LIMIT)
    first = store.load("mine")[1]
    store.save("mine", documents([2]), LIMIT)
    assert store.load("mine")[1] == first is not None
    store.remove("mine")
    store.save("mine", documents([2]), LIMIT)
    assert store.load("mine")[1] not in (first, None)


# --- faults ---


def good(store: Store) -> bytes:
    store.save("mine", documents([1, 2, 3], [4, 5]), LIMIT)
    return store.path("mine").read_bytes()


def other_version(data: bytes) -> bytes:
    return data[:8] + struct.pack("<I", 1) + data[12:]


BROKEN: dict[str, Any] = {
    "was written by another version of Foredraft (format 1, here 2)": other_version,
    "was written with another tokenizer": lambda _: cache_file.write("mine", "ef01", documents([1]), 9, "e"),
    "holds another scope, 'yours'": lambda _: cache_file.write("yours", "abcd", documents([1]), 9, "e"),
    "holds tokens that the vocabulary of 100 lacks": lambda _: cache_file.write(
        "mine", "abcd", documents([100]), 9, "e"
    ),
    "is truncated": lambda data: data[:-1],
    "is damaged": lambda data: data[:-1] + b"\x01",
    "is no file of recent text": lambda _: b"\x7fELF and more",
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_file_that_cannot_be_used_is_set_aside_whole(store: Store, why: str) -> None:
    broken = BROKEN[why](good(store))
    store.path("mine").write_bytes(broken)
    with pytest.raises(StorageError) as error:
        store.load("mine")
    assert str(error.value) == f"{store.path('mine')} {why}: it is set aside as abcd-mine.bad"
    assert (store.folder / "abcd-mine.bad").read_bytes() == broken
    assert saved(store) == []
    store.path("mine").write_bytes(broken)
    header, _ = look(store.path("mine"))
    epoch = None if header is None else header.epoch
    done = store.save("mine", documents([7]), LIMIT, documents([6]), epoch)
    assert done is not None
    assert done.fault == f"{store.path('mine')} {why}: it is set aside as abcd-mine.bad2"
    assert saved(store) == [[6], [7]]
    assert files(store) == [".lock", "abcd-mine.bad", "abcd-mine.bad2", "abcd-mine.recent"]


def test_what_is_known_of_a_cleared_file_is_not_written_where_the_next_is_damaged(store: Store) -> None:
    store.path("mine").write_bytes(good(store)[:-1])
    store.save("mine", documents([7]), LIMIT, documents([6]), "an earlier one")
    assert saved(store) == [[7]]


def test_no_beginning_and_no_flipped_bit_of_a_file_passes(store: Store) -> None:
    data = good(store)
    for length in range(len(data)):
        with pytest.raises(cache_file.Unusable):
            cache_file.read(data[:length], "mine", "abcd", 100)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 4
        with pytest.raises(cache_file.Unusable):
            cache_file.read(bytes(flipped), "mine", "abcd", 100)
    with pytest.raises(cache_file.Unusable):
        cache_file.read(data + b"\0\0\0\0", "mine", "abcd", 100)
    assert lists(cache_file.read(data, "mine", "abcd", 100)) == [[1, 2, 3], [4, 5]]


def test_ends_of_documents_are_none_themselves() -> None:
    assert lists(split(np.array([END, 1, END, END, 2, 3, END], dtype=np.int32))) == [[1], [2, 3]]
    assert split(np.array([], dtype=np.int32)) == []


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the disk refuse to create or change anything; permissions would not stop a test that root runs."""
    whole = Path.open

    def refuse(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if mode not in ("r", "rb"):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return whole(path, mode, *rest, **more)

    return lambda: monkeypatch.setattr(Path, "open", refuse)


def test_a_read_only_folder_is_read_and_never_written(store: Store, read_only: Any) -> None:
    data = good(store)
    read_only()
    assert saved(store) == [[1, 2, 3], [4, 5]]
    with pytest.raises(StorageError, match=r"^cannot write under .*recent: read-only file system; choose another"):
        store.save("mine", documents([7]), LIMIT)
    assert store.path("mine").read_bytes() == data


def test_a_bad_file_in_a_read_only_folder_stays(store: Store, read_only: Any) -> None:
    store.path("mine").write_bytes(good(store)[:-3])
    read_only()
    with pytest.raises(StorageError, match=r"is truncated, and cannot be set aside: .*read-only file system"):
        store.load("mine")
    assert files(store) == [".lock", "abcd-mine.recent"]


def test_a_full_disk_leaves_the_old_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    data = good(store)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="no space left on device; free some space"):
        store.save("mine", documents([7]), LIMIT)
    assert store.path("mine").read_bytes() == data
    assert files(store) == [".lock", "abcd-mine.recent"]


def test_what_a_killed_process_left_is_swept(store: Store) -> None:
    good(store)
    (store.folder / ".partial-dead").write_bytes(b"half")
    store.save("mine", documents([7]), LIMIT)
    assert files(store) == [".lock", "abcd-mine.recent"]


def test_two_processes_that_save_one_scope_lose_nothing(store: Store) -> None:
    code = (
        "import sys, numpy as np; from pathlib import Path; from foredraft.retrieval.store import Store\n"
        "store, first = Store(Path(sys.argv[1]), 'abcd', 100), int(sys.argv[2])\n"
        "sys.stdin.readline()\n"
        "for i in range(25): store.save('mine', [np.array([first, i], dtype=np.int32)], 1000)\n"
    )
    words = [sys.executable, "-c", code, str(store.folder)]
    writers = [subprocess.Popen([*words, first], stdin=subprocess.PIPE, text=True) for first in ("1", "2")]
    for writer in writers:  # both have started before either begins
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.close()
    assert [writer.wait() for writer in writers] == [0, 0]
    held = saved(store)
    assert sorted(held) == [[first, i] for first in (1, 2) for i in range(25)]
    for first in (1, 2):  # each in its own order
        assert [text for text in held if text[0] == first] == [[first, i] for i in range(25)]


# --- looking and clearing ---


def test_entries_tell_what_is_there_and_clear_takes_it(store: Store) -> None:
    assert (entries(store.folder), clear(store.folder, None)) == ([], ([], []))
    good(store)
    store.save("yours", documents([1]), LIMIT)
    Store(store.folder, "ef01", 100).save("mine", documents([1]), LIMIT)
    store.path("old").write_bytes(other_version(good(store)))
    (store.folder / "abcd-x.bad3").write_bytes(b"x")
    (store.folder / "notes.txt").write_bytes(b"a stranger's")
    found = entries(store.folder)
    told = [
        (e.path.name, None if e.header is None else (e.header.scope, e.header.documents, e.header.tokens))
        for e in found
    ]
    assert told == [
        ("abcd-mine.recent", ("mine", 2, 6)), ("abcd-old.recent", None), ("abcd-x.bad3", None),
        ("abcd-yours.recent", ("yours", 1, 1)), ("ef01-mine.recent", ("mine", 1, 1)),
    ]  # fmt: skip
    assert [e.fault for e in found if e.header is None] == [
        "was written by another version of Foredraft (format 1, here 2)",
        "was set aside",
    ]
    (store.folder / "abcd-mine.bad").write_bytes(b"x")
    assert cleared(store, "mine") == ["abcd-mine.bad", "abcd-mine.recent", "ef01-mine.recent"]
    assert len(cleared(store, None)) == 3
    assert files(store) == [".lock", "notes.txt"]


def cleared(store: Store, scope: str | None) -> list[str]:
    gone, left = clear(store.folder, scope)
    assert left == []
    return [entry.path.name for entry in gone]


def test_one_bad_entry_hides_no_other(store: Store) -> None:
    good(store)
    (store.folder / "abcd-dir.recent").mkdir()
    (store.folder / "abcd-link.recent").symlink_to(store.folder / "absent")
    faults = {e.path.name: e.fault for e in entries(store.folder)}
    assert faults == {
        "abcd-dir.recent": "is no regular file",
        "abcd-link.recent": "cannot be read: No such file or directory",
        "abcd-mine.recent": None,
    }
    assert store.scopes() == ["mine"]
    with pytest.raises(StorageError, match=r"abcd-dir\.recent cannot be read: Is a directory"):
        store.load("dir")
    gone, left = clear(store.folder, None)
    assert [e.path.name for e in gone] == ["abcd-link.recent", "abcd-mine.recent"]
    assert [(e.path.name, (e.fault or "")[:18]) for e in left] == [("abcd-dir.recent", "cannot be deleted:")]


def test_a_file_that_cannot_be_read_is_bad_and_no_other_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    good(store)
    store.save("yours", documents([1]), LIMIT)
    whole = Path.open

    def refuse(path: Path, *rest: Any, **more: Any) -> Any:
        if path.name == "abcd-yours.recent":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return whole(path, *rest, **more)

    monkeypatch.setattr(Path, "open", refuse)
    assert [e.fault for e in entries(store.folder)] == [None, "cannot be read: Permission denied"]
    assert store.scopes() == ["mine"]
    assert cleared(store, "yours") == ["abcd-yours.recent"]  # its name says whose it is


def test_what_is_no_folder_is_said(store: Store) -> None:
    store.folder.write_text("a file")
    with pytest.raises(StorageError, match="recent cannot be read: not a directory"):
        entries(store.folder)
    with pytest.raises(StorageError, match="recent is no folder: move it away"):
        store.save("mine", documents([1]), LIMIT)
    with pytest.raises(StorageError, match="cannot be read: Not a directory"):
        store.load("mine")


def test_nothing_of_a_scope_that_was_dropped_is_left(store: Store) -> None:
    for drop in (lambda: store.remove("mine"), lambda: clear(store.folder, "mine"), lambda: clear(store.folder, None)):
        good(store)
        (store.folder / "abcd-mine.bad").write_bytes(b"x")
        (store.folder / "abcd-mine.bad7").write_bytes(b"x")
        (store.folder / ".partial-0123").write_bytes(b"half")
        assert [e.bytes for e in unfinished(store.folder)] == [4]
        drop()
        assert files(store) == [".lock"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pipes with names")
def test_a_pipe_in_the_place_of_a_file_is_not_opened(store: Store) -> None:
    store.save("mine", documents([1, 2]), LIMIT)
    path = store.path("mine")
    path.unlink()
    os.mkfifo(path)  # nobody writes to it: whoever opened it would wait for ever
    assert look(path) == (None, "is no regular file")
    assert store.bound("mine", 7) == 7
    with pytest.raises(StorageError, match="cannot be read: it is not a regular file"):
        store.load("mine")
    with pytest.raises(StorageError, match="cannot be read: it is not a regular file"):
        store.save("mine", documents([3]), LIMIT)
    assert [entry.fault for entry in entries(store.folder)] == ["is no regular file"]

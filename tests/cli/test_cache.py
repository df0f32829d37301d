"""``foredraft cache``, and ``--cache-scope`` and ``--prediction`` of the other verbs."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli.main import main
from foredraft.cli.stored import import_files as import_files
from foredraft.errors import ModelError, StorageError
from foredraft.retrieval.backend import retrieval
from foredraft.retrieval.store import Store
from tests.cli.asking import Ask, Keyboard, interrupt_after, write_lines
from tests.tiny import write_tokenizer

SHORT = ("--max-tokens", "40")


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A tokenizer, and nothing else of a model."""
    folder = tmp_path / "words"
    folder.mkdir()
    write_tokenizer(folder)
    return folder


@pytest.fixture
def generate(ask: Ask, tiny: Path) -> Any:
    def run(*options: object, status: int = 0) -> Any:
        done = ask("generate", "hello", "--model", tiny, *SHORT, "--json", "--draft-tokens", "12", *options)
        assert done.status == status, done.err
        return done

    return run


def recent(tmp_path: Path) -> list[str]:
    folder = tmp_path / "cache" / "recent"
    return sorted(path.name.partition("-")[2] or path.name for path in folder.iterdir()) if folder.is_dir() else []


def rounds(done: Any) -> int:
    count: int = done.document["speculative"]["rounds"]
    return count


# --- scopes ---


def test_a_scopes_requests_grow_faster_and_no_others(generate: Any, tmp_path: Path) -> None:
    plain = generate()
    first = generate("--cache-scope", "mine")
    again, yours, unnamed = generate("--cache-scope", "mine"), generate("--cache-scope", "yours"), generate()
    for done in (first, again, yours, unnamed):
        assert done.document["token_ids"] == plain.document["token_ids"]
        assert done.err.count("\n") == 1
    assert rounds(again) <= 5 < rounds(plain) == rounds(first) == rounds(yours) == rounds(unnamed)
    assert recent(tmp_path) == [".lock", "mine.recent", "yours.recent"]


def test_several_answers_and_many_prompts_are_remembered_too(
    generate: Any, ask: Ask, tiny: Path, tmp_path: Path
) -> None:
    assert generate("-n", "2", "--temperature", "1.5", "--seed", "1", "--cache-scope", "mine").document["choices"]
    path = write_lines(tmp_path / "many.jsonl", {"turns": ["hello", "and"]}, {"prompt": "well"})
    done = ask(
        "generate",
        "--model",
        tiny,
        *SHORT,
        "--draft-tokens",
        "15",
        "--prompts",
        path,
        "--cache-scope",
        "many",
        "--json",
    )
    assert done.status == 0
    listed = ask("cache", "--json").document["files"]
    assert [(file["scope"], file["documents"]) for file in listed] == [("many", 2), ("mine", 2)]


def test_what_was_written_before_ctrl_c_is_remembered(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(5, monkeypatch)
    assert main(["generate", "hello", "--model", str(tiny), "--cache-scope", "mine", "--json"]) == 130
    assert recent(tmp_path) == [".lock", "mine.recent"]


@pytest.mark.parametrize("leave", ["", KeyboardInterrupt])
def test_a_chat_is_remembered(ask: Ask, tiny: Path, monkeypatch: pytest.MonkeyPatch, leave: Any) -> None:
    def chat() -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nwell\n"))
        return ask("chat", "--model", tiny, "--cache-scope", "talk", *SHORT, "--draft-tokens", "15", "--json")

    if leave:
        keyboard, keys = Keyboard(), iter(["hello\n", "well\n", "/exit\n"])
        monkeypatch.setattr(keyboard, "readline", lambda: next(keys))
        monkeypatch.setattr(sys, "stdin", keyboard)
        assert ask("chat", "--model", tiny, "--cache-scope", "talk", *SHORT, "--draft-tokens", "15").status == 0
    else:
        assert chat().status == 0
    assert ask("cache", "--json").document["files"][0]["documents"] == 1
    first, second = chat().document["turns"]
    assert first["speculative"]["rounds"] <= 8
    assert second["speculative"]["rounds"] <= 8


def test_sharing_is_asked_for(generate: Any) -> None:
    first = generate("--cache-scope", "mine")
    assert rounds(generate("--cache-scope", "yours", "--cache-share")) <= 5 < rounds(first)


@pytest.mark.parametrize("fault", ["version", "tokenizer", "truncated"])
def test_a_file_that_cannot_be_used_ends_nothing(generate: Any, tmp_path: Path, fault: str) -> None:
    first = generate("--cache-scope", "mine")
    path = next((tmp_path / "cache" / "recent").glob("*mine.recent"))
    data = path.read_bytes()
    broken = {
        "version": data[:8] + b"\x09" + data[9:],
        "tokenizer": _of_another_tokenizer(),
        "truncated": data[:-7],
    }[fault]
    path.write_bytes(broken)
    done = generate("--cache-scope", "mine")
    assert done.document["token_ids"] == first.document["token_ids"]
    note, statistics = done.err.splitlines()
    assert note.startswith("foredraft: note: the cache of recent text was not loaded: ")
    assert note.endswith(f"it is set aside as {path.stem}.bad")
    assert "a pass" in statistics
    assert path.with_suffix(".bad").read_bytes() == broken
    assert rounds(generate("--cache-scope", "mine")) <= 5  # what was said since is there


def _of_another_tokenizer() -> bytes:
    import numpy as np

    from foredraft.retrieval.cache_file import write

    return write("mine", "ef01", [np.array([1, 2], dtype=np.int32)], 9, "e")


def test_a_read_only_cache_ends_nothing(generate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise StorageError("cannot write under /x: read-only file system; choose another cache folder")

    monkeypatch.setattr(Store, "save", refuse)
    done = generate("--cache-scope", "mine")
    assert done.document["completion_tokens"] == 40
    assert "foredraft: note: the cache of recent text: cannot write under /x: read-only file system" in done.err


# --- a prediction ---


def test_a_prediction_from_a_file(generate: Any, tmp_path: Path) -> None:
    plain = generate("--temperature", "1.5", "--seed", "1")
    words = plain.document["token_ids"]
    (tmp_path / "answer.txt").write_text(plain.document["text"], encoding="utf-8")
    done = generate("--temperature", "1.5", "--seed", "1", "--prediction", "answer.txt")
    assert done.document["token_ids"] == words
    used = done.document["prediction"]
    assert set(used) == {"accepted", "rejected"}
    assert used["accepted"] > 0
    assert f"prediction {used['accepted']} of {used['accepted'] + used['rejected']} accepted" in done.err
    assert "prediction" not in plain.document
    none = generate("--prediction", "answer.txt", "--drafter", "none")
    assert none.err.startswith("foredraft: --prediction had no use: nothing was drafted\n")


def test_predictions_that_are_none(refused: Any, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "long.txt").write_text("x" * 600)
    words = ("generate", "x", "--model", tiny, "--prediction")
    assert refused(*words, "empty.txt") == "--prediction: 'empty.txt' is empty"
    assert refused(*words, "bytes.txt") == "--prediction: 'bytes.txt' is not UTF-8 text"
    assert refused(*words, ".").startswith("--prediction: '.' cannot be read: ")
    assert refused(*words, "long.txt").startswith("--prediction has 600 tokens, and a context of 512")
    (tmp_path / "short.txt").write_text("x")
    assert refused(*words, "short.txt", "--drafter", "lookup").startswith(
        "--prediction cannot be used by drafter lookup"
    )
    assert refused("chat", "--prediction", "short.txt").startswith("there is no option --prediction")


def test_lines_have_their_own_predictions(ask: Ask, generate: Any, tiny: Path, tmp_path: Path) -> None:
    hot = ("--temperature", "1.5", "--seed", "1", "--draft-tokens", "12")
    plain = generate("--temperature", "1.5", "--seed", "1").document
    lines = write_lines(tmp_path / "many.jsonl", {"prompt": "hello", "prediction": plain["text"]}, {"prompt": "hello"})
    done = ask("generate", "--model", tiny, *SHORT, *hot, "--prompts", lines, "--json")
    first, second = done.document["results"]
    assert first["token_ids"] == second["token_ids"] == plain["token_ids"]
    assert first["speculative"]["rounds"] < second["speculative"]["rounds"]
    assert done.document["prediction"] == first["prediction"]
    assert "prediction" not in second
    assert f"prediction {first['prediction']['accepted']} of " in done.err
    none = ask("generate", "--model", tiny, *SHORT, *hot, "--prompts", lines, "--json", "--drafter", "none")
    assert "prediction had no use: nothing was drafted" in none.document["notices"]
    assert "foredraft: --prediction had no use: nothing was drafted\n" in none.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"prompt": "x", "max_tokens": 4}, "has 'max_tokens', which is not an option of a line"),
        ({"prompt": "x", "prediction": ""}, "a prediction is text that is not empty"),
        ({"prompt": "x", "prediction": [1]}, "a prediction is text that is not empty"),
        ({"turns": ["x", "y"], "prediction": "z"}, "a prediction is of one answer, and there are 2 turns"),
    ],
)
def test_lines_that_ask_for_what_there_is_not(refused: Any, tmp_path: Path, line: Any, said: str) -> None:
    assert said in refused("generate", "--prompts", write_lines(tmp_path / "many.jsonl", line))


def test_certify_has_no_predictions(refused: Any, tiny: Path, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "many.jsonl", {"prompt": "x", "prediction": "y"})
    assert "has 'prediction', which is not an option of a line" in refused(
        "certify", "--model", tiny, "--prompts", lines
    )


def test_one_answer_is_one(ask: Ask, tiny: Path, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "one.jsonl", {"prompt": "hello"})
    assert "1 answer · " in ask("generate", "--model", tiny, *SHORT, "--prompts", lines).err


# --- the slower path ---


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Any:
    def absent() -> Any:
        raise ModelError("the native library was not built")

    monkeypatch.setattr("foredraft.retrieval.native.functions", absent)
    retrieval.cache_clear()
    yield
    retrieval.cache_clear()


def test_retrieval_in_python_is_reported_and_drafts_the_same(
    ask: Ask, generate: Any, tiny: Path, request: pytest.FixtureRequest
) -> None:
    native = generate("--cache-scope", "mine")
    request.getfixturevalue("no_library")
    why = "retrieval runs in Python, slower: the native library was not built"
    done = generate("--cache-scope", "yours")
    assert done.err.startswith(f"foredraft: note: {why}\n")
    for name in ("token_ids", "speculative"):
        assert done.document[name] == native.document[name]
    assert why not in generate("--drafter", "lookup").err
    facts = ask("doctor", "--json").document
    assert (facts["retrieval"], why in facts["warnings"]) == ("python", True)
    certified = ask("certify", "--model", tiny, "--tokens", "4", "--samples", "1", "--rule", "coupled")
    assert f"note: {why}" in certified.err


# --- the verb ---


def test_an_empty_cache(ask: Ask) -> None:
    assert "nothing is remembered" in ask("cache").out
    assert ask("cache", "--json").document["files"] == []
    assert ask("cache", "clear", "--all").out == "0 files removed: 0 B freed\n"


def code(folder: Path) -> None:
    """Write a folder of code, with what does not belong among it."""
    for name, data in {
        "a.py": b"def a(): pass\n", "deep/er/b.py": "ü = 1\n".encode(), "blob.bin": b"\x00\x01" * 9,
        "latin.txt": b"\xff\xe9", "empty.txt": b" \n", "big.txt": b"x" * (import_files.LARGEST + 1),
        ".hidden": b"x", ".git/config": b"x",
        "node_modules/m.js": b"x", "same.py": b"def a(): pass\n",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "round").symlink_to(folder)
    (folder / "link.py").symlink_to(folder / "a.py")
    os.mkfifo(folder / "pipe")


LEFT_OUT = {
    ".git": "hidden", ".hidden": "hidden", "big.txt": "larger than 4 MiB", "blob.bin": "binary", "empty.txt": "empty",
    "latin.txt": "not UTF-8 text", "link.py": "a link", "node_modules": "vendored", "pipe": "no regular file",
    "round": "a link",
}  # fmt: skip


def test_import_of_a_folder(ask: Ask, words: Path, tmp_path: Path) -> None:
    code(tmp_path / "src")
    done = ask("cache", "import", "src", "src/a.py", "--scope", "proj", "--model", words, "--json")
    assert done.status == 0, done.err
    document = done.document
    assert {Path(each["path"]).name: each["reason"] for each in document["skipped"]} == LEFT_OUT
    assert (document["documents"], document["tokens"], document["dropped"]) == (3, 14 + 7 + 14, 0)
    listed = ask("cache", "--json").document["files"]
    assert [(file["scope"], file["documents"], file["tokens"]) for file in listed] == [("proj", 2, 14 + 1 + 7)]
    shown = ask("cache", "import", "src", "--scope", "proj", "--model", words)
    assert shown.out == "3 files imported into proj: 35 tokens; it holds 2 texts of 22 tokens\n"
    assert shown.err.count("left out: src/") == 10
    table = ask("cache").out.splitlines()
    assert table[0].split() == ["Scope", "tokens", "texts", "size", "saved", "tokenizer"]
    assert table[1].split()[:3] == ["proj", "22", "2"]


def test_many_that_are_left_out_are_counted(ask: Ask, words: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    for i in range(13):
        (tmp_path / f"b{i:02}").write_bytes(b"\0")
    done = ask(
        "cache",
        "import",
        *sorted(tmp_path.glob("*.txt")),
        *sorted(tmp_path.glob("b??")),
        "--scope",
        "x",
        "--model",
        words,
    )
    assert done.err.count(": binary") == 10
    assert "left out: 3 more (--json names them)" in done.err


def test_imported_text_is_copied_from(generate: Any, ask: Ask, tiny: Path, tmp_path: Path) -> None:
    plain = generate()
    ids = plain.document["token_ids"]
    text = ask("generate", "hello", "--model", tiny, *SHORT, "--json").document["text"]
    (tmp_path / "said.txt").write_text(text, encoding="utf-8")
    assert ask("cache", "import", "said.txt", "--scope", "mine", "--model", tiny).status == 0
    done = generate("--cache-scope", "mine")
    assert done.document["token_ids"] == ids
    assert ask("cache", "--json").document["files"][0]["documents"] == 2


def imported(ask: Ask, words: Path, *paths: object, status: int = 0) -> Any:
    done = ask("cache", "import", *paths, "--scope", "mine", "--model", words)
    assert done.status == status, done.err
    return done


def texts(words: Path) -> list[str]:
    """What the scope "mine" holds, as text."""
    from foredraft.tokenizer.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(words)
    store = Store(Path.cwd() / "cache" / "recent", tokenizer.fingerprint(), tokenizer.vocabulary)
    return [tokenizer.decode(document.tolist()) for document in store.load("mine")[0]]


def test_a_full_scope_says_what_is_gone(ask: Ask, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.retrieval.memory.LIMIT", 40)
    for name in "abcde":
        (tmp_path / f"{name}.txt").write_text(name * 9)
    imported(ask, words, "a.txt", "b.txt", "c.txt", "d.txt")
    done = imported(ask, words, "e.txt")
    assert "note: the scope mine is full: its 9 oldest tokens are gone" in done.err
    assert done.out == "1 file imported into mine: 9 tokens; it holds 4 texts of 39 tokens\n"
    assert texts(words) == ["b" * 9, "c" * 9, "d" * 9, "e" * 9]


def test_what_is_longer_than_a_generation_is_cut_and_named(
    ask: Ask, generate: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was imported is there after an answer, too."""
    monkeypatch.setattr("foredraft.retrieval.memory.LIMIT", 400)
    (tmp_path / "big.txt").write_text("".join(chr(97 + i % 26) for i in range(950)))
    done = imported(ask, tiny, "big.txt")
    assert "note: big.txt has 950 tokens: it was cut to its last 100 tokens" in done.err
    assert done.out == "1 file imported into mine: 100 tokens; it holds 1 text of 100 tokens\n"
    before = texts(tiny)
    done = generate("--cache-scope", "mine")
    assert "gone" not in done.err
    assert texts(tiny)[:1] == before
    file = ask("cache", "--json").document["files"][0]
    assert (file["documents"], file["tokens"] > 101) == (2, True)


def test_what_a_run_drops_is_said(generate: Any, ask: Ask, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.api import LanguageModel

    monkeypatch.setattr(LanguageModel, "save_cache", lambda *_: 7)
    assert (
        "foredraft: note: the scope mine is full: its 7 oldest tokens are gone\n"
        in generate("--cache-scope", "mine").err
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    done = ask("chat", "--model", tiny, "--cache-scope", "mine", *SHORT)
    assert "the scope mine is full: its 7 oldest tokens are gone" in done.err


def test_files_are_taken_in_order_until_the_bound(
    ask: Ask, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foredraft.retrieval.memory.LIMIT", 40)
    (tmp_path / "src").mkdir()
    for i in range(8):
        (tmp_path / "src" / f"{i}.txt").write_text(str(i) * (9 if i != 3 else 900))
    done = imported(ask, words, "src")
    assert "note: src/3.txt has 900 tokens: it was cut to its last 10 tokens" in done.err
    assert "note: a scope holds 40 tokens: 4 files were left out: src/4.txt, src/5.txt, src/6.txt, ...\n" in done.err
    assert done.out == "4 files imported into mine: 37 tokens; it holds 4 texts of 40 tokens\n"
    assert texts(words) == ["0" * 9, "1" * 9, "2" * 9, "3" * 10]
    document = ask("cache", "import", "src", "--scope", "mine", "--model", words, "--json").document
    assert document["held"] == {"documents": 4, "tokens": 40}
    assert document["cut"] == [{"path": "src/3.txt", "tokens": 900, "kept": 10}]
    assert [each["path"] for each in document["skipped"]] == [f"src/{i}.txt" for i in range(4, 8)]
    assert document["skipped"][0]["reason"] == "no room: a scope holds 40 tokens"


def test_a_file_with_a_larger_bound_keeps_it(
    ask: Ask, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("a" * 30)
    (tmp_path / "b.txt").write_text("b" * 30)
    imported(ask, words, "a.txt")
    monkeypatch.setattr("foredraft.retrieval.memory.LIMIT", 20)
    assert "note" not in imported(ask, words, "b.txt").err
    assert texts(words) == ["a" * 30, "b" * 30]


def test_import_onto_a_damaged_file_sets_it_aside(ask: Ask, words: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 9)
    imported(ask, words, "a.txt")
    path = next((tmp_path / "cache" / "recent").glob("*mine.recent"))
    path.write_bytes(path.read_bytes()[:-2])
    (tmp_path / "b.txt").write_text("b" * 9)
    done = imported(ask, words, "b.txt")
    assert f"{path} is truncated: it is set aside as {path.stem}.bad; the new text was saved" in done.err
    assert done.out.startswith("1 file imported into mine: 9 tokens")
    assert texts(words) == ["b" * 9]
    path.write_bytes(b"?")
    done = ask("cache", "import", "b.txt", "--scope", "mine", "--model", words, "--json")
    assert (done.status, done.document["documents"]) == (0, 1)
    assert done.document["fault"].endswith(f"is no file of recent text: it is set aside as {path.stem}.bad2")


def test_paths_that_cannot_be_read(refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(path: str) -> str:
        sentence: str = refused("cache", "import", path, "--scope", "x")
        return sentence

    assert ask("") == "there is no file or folder ''"
    assert ask("a\0b") == "'a\\x00b' cannot be read: embedded null byte"
    assert ask("x" * 5000).endswith("cannot be read: File name too long")
    (tmp_path / "file").write_text("x")
    assert ask("file/below").startswith("there is no file or folder 'file/below'")

    def refuse(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("foredraft.cli.stored.import_files.os.stat", refuse)
    assert ask("secret/a.txt") == "'secret/a.txt' cannot be read: Permission denied"


def test_clear(ask: Ask, refused: Any, words: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    for scope in ("one", "two"):
        ask("cache", "import", "a.txt", "--scope", scope, "--model", words)
    assert refused("cache", "clear", "--scope", "onne") == "no scope called 'onne' is here; did you mean one?"
    assert ask("cache", "clear", "--scope", "one").out.startswith("1 file removed: ")
    assert recent(tmp_path) == [".lock", "two.recent"]
    (tmp_path / "cache" / "recent" / "x.bad").write_bytes(b"123")
    assert "x.bad (3 B) cannot be used: it was set aside" in ask("cache").out
    assert len(ask("cache", "clear", "--all", "--json").document["removed"]) == 2
    assert recent(tmp_path) == [".lock"]


def test_clear_takes_what_was_set_aside_and_half_written_and_show_counts_it(
    ask: Ask, words: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("text")
    imported(ask, words, "a.txt")
    folder = tmp_path / "cache" / "recent"
    path = next(folder.glob("*mine.recent"))
    path.with_suffix(".bad").write_bytes(b"12")
    (folder / ".partial-00ff").write_bytes(b"123")
    shown = ask("cache").out
    assert "1 file was left half written (3 B): the next save or clear deletes what is left" in shown
    assert ask("cache", "--json").document["unfinished"] == {"files": 1, "bytes": 3}
    done = ask("cache", "clear", "--scope", "mine")
    assert done.out.startswith("3 files removed (1 of them had been set aside): ")
    assert recent(tmp_path) == [".lock"]
    (folder / ".partial-00ff").write_bytes(b"123")
    assert ask("cache", "clear", "--all").out == "1 file removed: 3 B freed\n"


def test_one_bad_entry_disables_nothing_else(ask: Ask, generate: Any, tiny: Path, tmp_path: Path) -> None:
    generate("--cache-scope", "mine")
    folder = tmp_path / "cache" / "recent"
    (folder / "x-bad.recent").mkdir()
    (folder / "x-gone.recent").symlink_to(folder / "absent")
    done = generate("--cache-scope", "mine")
    assert (rounds(done) <= 5, done.err.count("\n")) == (True, 1)
    shown = ask("cache")
    assert shown.status == 0
    assert "x-bad.recent (0 B) cannot be used: it is no regular file" in shown.out
    assert "x-gone.recent (0 B) cannot be used: it cannot be read: No such file or directory" in shown.out
    assert "\nmine " in shown.out
    assert ask("cache", "clear", "--scope", "mine").status == 0
    done = ask("cache", "clear", "--all")
    assert (done.status, done.out) == (2, "1 file removed: 0 B freed\n")
    assert "x-bad.recent cannot be deleted: " in done.err


def test_the_folder_of_recent_text_is_a_file(refused: Any, generate: Any, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "recent").write_text("x")
    assert refused("cache") == f"{tmp_path}/cache/recent cannot be read: not a directory"
    assert refused("cache", "clear", "--all").startswith(f"{tmp_path}/cache/recent is no folder: move it away")
    done = generate("--cache-scope", "mine")
    assert "recent is no folder: move it away, or choose another cache folder" in done.err


def test_wide_names_stand_in_columns(ask: Ask, words: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    for scope in ("\u6f22\u5b57\u6f22\u5b57", "plain"):
        ask("cache", "import", "a.txt", "--scope", scope, "--model", words)
    rows = ask("cache").out.splitlines()[1:]
    assert {row.partition(" ")[0]: row.index("4") for row in rows} == {"plain": 18, "\u6f22\u5b57\u6f22\u5b57": 14}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cache shwo", "ACTION must be show or clear or import, not 'shwo'"),
        ("cache show x", "unexpected word 'x': show takes no paths"),
        ("cache show --scope x", "--scope is for import and clear: show lists every scope"),
        ("cache --all", "--all is for clear: leave it out"),
        ("cache clear", "clear needs either --scope NAME or --all"),
        ("cache clear --all --scope x", "clear needs either --scope NAME or --all"),
        ("cache import", "import needs --scope NAME: nothing is remembered without one"),
        ("cache import --scope x", "import needs files or folders, as in"),
        ("cache show --model x", "--model is for import: leave it out"),
        ("cache --offline", "--offline is for import: leave it out"),
        ("cache clear --all --model x", "--model is for import: leave it out"),
        ("cache clear --scope x --scope y", "--scope is there twice: give one"),
        ("generate x --cache-scope a --cache-scope b", "--cache-scope is there twice: give one"),
        ("generate x --prediction a --prediction b", "--prediction is there twice: give one"),
        ("chat --cache-scope a --cache-scope b", "--cache-scope is there twice: give one"),
        ("cache import absent --scope x", "there is no file or folder 'absent'"),
        ("cache import . --scope a/b", "--scope 'a/b' has a path separator"),
        ("cache import . --scope ..", "--scope '..' begins with a dot"),
        ("cache clear --scope ../x", "--scope '../x' has a path separator"),
    ],
)
def test_refusals(refused: Any, line: str, said: str) -> None:
    assert refused(*line.split()).startswith(said)


def test_nothing_to_import(ask: Ask, words: Path, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0")
    (tmp_path / "b.txt").write_text(" ")
    done = imported(ask, words, "a.bin", status=2)
    assert done.out == ""
    assert "left out: a.bin: binary" in done.err
    assert "there is nothing to import: a.bin was left out: binary\n" in done.err
    done = ask("cache", "import", "a.bin", "b.txt", "--scope", "x", "--model", words, "--json")
    assert done.status == 2
    assert {each["path"]: each["reason"] for each in done.document["skipped"]} == {"a.bin": "binary", "b.txt": "empty"}
    assert (done.document["documents"], done.document["held"]) == (0, None)
    assert done.err.endswith("foredraft: there is nothing to import: all that was found was left out: binary, empty\n")
    (tmp_path / "none").mkdir()
    assert "there is nothing to import: no file was found" in imported(ask, words, "none", status=2).err
    assert recent(tmp_path) == []


def test_the_document_of_an_import_is_json(ask: Ask, words: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    done = ask("cache", "import", "a.txt", "--scope", "x", "--model", words, "--json")
    assert set(json.loads(done.out)) == {
        "scope", "documents", "tokens", "held", "dropped", "cut", "skipped", "path",
    }  # fmt: skip

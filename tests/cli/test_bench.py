"""``foredraft bench`` on tiny models: what it counts, says and refuses. No figure of time is tested."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from foredraft.cli.terminal.text_width import columns
from foredraft.measure.bench import peers
from tests.cli.asking import OWN, Ask
from tests.tiny import make_chat_model

KEYS = [
    "model", "system_fingerprint", "tier", "dtype", "prompts", "max_tokens", "temperature", "seed", "plain", "drafters",
    "oracle", "round_costs", "peers",
]  # fmt: skip
PART = {
    "prompts", "plain_tokens_per_s", "tokens_per_s", "speedup", "mean_tokens_per_pass", "acceptance_rate",
    "oracle_speedup", "percent_of_oracle", "best_fixed", "percent_of_best_fixed",
}  # fmt: skip
DRAFTER = PART | {
    "drafter", "identical", "answers", "interval", "spread", "worst_task", "lengths", "tasks", "fault",
}  # fmt: skip


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    lines = [
        {"prompt": "abab abab abab", "category": "copy"},
        {"turns": ["hello", "never asked"], "category": "talk"},
        {"prompt": "abc abc", "category": "copy"},
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


@pytest.fixture
def bench(ask: Ask, tiny: Path, questions: Path) -> Callable[..., Any]:
    def run(*words: object) -> Any:
        return ask("bench", "--model", tiny, "--prompts", questions, "--max-tokens", "24", "--dtype", "f32", *words)

    return run


@pytest.mark.parametrize("drawn", [(), ("--temperature", "0.9"), ("--temperature", "0.9", "--seed", "4")])
def test_the_document(bench: Any, tiny: Path, drawn: tuple[str, ...]) -> None:
    answer = bench("--drafters", f"lookup,none,suffix+model:{tiny}", "--lengths", "2,1,2", "--json", *drawn)
    assert (answer.status, answer.out.count("\n")) == (0, 1)
    document = answer.document
    assert list(document) == KEYS
    assert (document["model"], document["prompts"], document["max_tokens"]) == (str(tiny), 3, 24)
    assert (document["temperature"], document["seed"]) == ((0.9, 4 if "4" in drawn else 0) if drawn else (0.0, None))
    assert [each["drafter"] for each in document["drafters"]] == ["lookup", "none", f"suffix+model:{tiny}"]
    for each in document["drafters"]:
        assert set(each) == DRAFTER
        assert (each["identical"], each["answers"], each["prompts"], each["fault"]) == (6, 6, 3, None)
        assert [row["draft_tokens"] for row in each["lengths"]] == [0, 1, 2]
        assert [(row["task"], row["prompts"]) for row in each["tasks"]] == [("copy", 2), ("talk", 1)]
        assert all(set(row) == PART | {"task"} for row in each["tasks"])
        assert each["worst_task"] in ("copy", "talk")
    _, none, both = document["drafters"]
    assert (none["mean_tokens_per_pass"], none["acceptance_rate"]) == (1.0, 0.0)
    assert both["mean_tokens_per_pass"] >= 1  # planned: whether it pays on so small a model is the clock's to say
    assert both["lengths"][2]["mean_tokens_per_pass"] > 1.2
    assert (document["oracle"]["identical"], document["oracle"]["answers"]) == (3, 3)
    assert document["plain"]["tokens"] % 2 == 0  # every prompt was answered twice
    rows = [each["rows"] for each in document["round_costs"]]
    assert rows == sorted(set(rows))
    assert rows[0] == 1
    assert document["peers"] == []
    assert answer.err.count("benchmarking") == 1


def test_layers_are_run_where_they_cannot_be_replayed(bench: Any) -> None:
    document = bench("--drafters", "layers:1", "--lengths", "2", "--json").document
    (each,) = document["drafters"]
    assert each["identical"] == 6
    assert each["lengths"][1]["mean_tokens_per_pass"] >= 1


def test_the_table_fits_80_columns(bench: Any, tiny: Path) -> None:
    answer = bench("--drafters", "auto,lookup", "--color", "never")
    lines = answer.out.splitlines()
    assert answer.status == 0
    assert "3 prompts · 24 tokens · greedy" in lines[0]
    assert lines[1].startswith("plain decoding ")
    assert lines[3] == "auto · texts identical to plain 6/6"
    assert [line.split()[0] for line in lines[4:8]] == ["task", "copy", "talk", "all"]
    assert [line.split()[0] for line in lines[8:12]] == ["speed-up", "of", "worst", "fixed,"]
    assert lines[13] == "lookup · texts identical to plain 6/6"
    assert max(map(len, lines[1:])) <= 80
    assert "\x1b" not in answer.out
    assert "oracle: percent of" in answer.err


def test_one_prompt_a_task(bench: Any) -> None:
    document = bench("--per-task", "1", "--json").document
    assert document["prompts"] == 2
    assert [row["prompts"] for row in document["drafters"][0]["tasks"]] == [1, 1]


def test_the_built_in_prompts(ask: Ask, tmp_path: Path) -> None:
    folder = make_chat_model(tmp_path / "wide", max_position_embeddings=1024)
    words = ("--max-tokens", "3", "--lengths", "1", "--json")
    document = ask("bench", "--model", folder, *words).document
    assert document["prompts"] == 12
    assert len(document["drafters"][0]["tasks"]) == 11


def test_texts_that_differ_are_shown(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.cli import bench as verb

    answer = verb.Subject.answer

    def other(self: Any, prompt: int, drafter: Any, draft_tokens: int | None = None) -> Any:
        found = answer(self, prompt, drafter, draft_tokens)
        return found if drafter == "none" else type(found)((*found.tokens[:-1], 0), found.rounds)

    monkeypatch.setattr(verb.Subject, "answer", other)
    shown = bench("--color", "always")
    assert "\x1b[1;" in shown.out
    assert "texts identical to plain 0/6" in shown.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--drafters luck", "unknown drafter 'luck'"),
        ("--drafters auto,,lookup", "unknown drafter ''"),
        ("--drafters ,", "--drafters names nobody: give drafters with commas between them, not ','"),
        ("--drafters=", "--drafters names nobody: give drafters with commas between them, not ''"),
        ("--lengths=", "--lengths must be a whole number, not ''"),
        ("--drafters auto --drafters lookup", "--drafters is there twice: give one"),
        ("--lengths 0", "--lengths must be at least 1, not 0"),
        ("--lengths many", "--lengths must be a whole number, not 'many'"),
        ("--max-tokens 1", "--max-tokens must be at least 2 here, not 1"),
        ("--max-tokens 0", "--max-tokens must be a whole number of at least 1, not 0"),
        ("--per-task 0", "--per-task must be at least 1, not 0"),
        ("--temperature -1", "--temperature must be a number of at least 0, not -1.0"),
        ("--seed 1", "--seed has nothing to seed"),
        ("--temperature 1 --peers", "--peers compares greedy decoding"),
        ("--prompts absent.jsonl", "absent.jsonl cannot be read"),
        ("--prompts empty.jsonl", "empty.jsonl holds no prompts"),
        ("--prompts broken.jsonl", "broken.jsonl, line 1 is not JSON"),
        ("--prompts long.jsonl", "prompt 1: the prompt has "),
        ("something", "unexpected word 'something': foredraft bench takes options only"),
    ],
)
def test_bad_arguments(refused: Any, tiny: Path, tmp_path: Path, words: str, sentence: str) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text("{")
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "x" * 600}))
    assert sentence in refused("bench", "--model", tiny, *words.split())


@pytest.mark.parametrize(
    ("guess", "sentence"),
    [
        ("1 / 0", "propose failed: ZeroDivisionError: division by zero"),
        ("exit(3)", "propose failed: SystemExit: 3"),
        ("Draft.chain([10**6])", "guessed token 1000000, outside the vocabulary of 260"),
        ("None", "propose"),
    ],
)
def test_a_drafter_that_breaks_costs_its_own_row_alone(bench: Any, tmp_path: Path, guess: str, sentence: str) -> None:
    (tmp_path / "own_bench.py").write_text(OWN.replace("{guess}", guess))
    answer = bench("--drafters", "own_bench:Own,lookup", "--lengths", "1", "--json")
    assert answer.status == 1
    own, lookup = answer.document["drafters"]
    assert set(own) == set(lookup) == DRAFTER
    assert sentence in own["fault"]
    assert "\n" not in own["fault"]
    assert (own["answers"], own["speedup"], own["tasks"]) == (0, None, [])
    assert (lookup["answers"], lookup["identical"], lookup["fault"]) == (6, 6, None)
    assert answer.document["oracle"]["identical"] == 3
    shown = bench("--drafters", "own_bench:Own,lookup", "--lengths", "1")
    assert shown.status == 1
    assert "own_bench:Own · failed\n" in shown.out
    assert "lookup · texts identical to plain 6/6" in shown.out
    assert max(map(len, shown.out.splitlines()[1:])) <= 80


@pytest.mark.parametrize("name", ["heads", "model:absent", "absent_module:Own", "layers:absent.json"])
def test_a_drafter_that_cannot_be_loaded_is_a_row(bench: Any, name: str) -> None:
    answer = bench("--drafters", f"{name},lookup", "--lengths", "1", "--json")
    assert answer.status == 1
    absent, lookup = answer.document["drafters"]
    assert absent["fault"]
    assert lookup["identical"] == 6


def test_where_nobody_is_left_plain_decoding_is_not_timed_alone(bench: Any) -> None:
    answer = bench("--drafters", "absent_module:Own", "--json")
    assert (answer.status, answer.out.count("\n")) == (1, 1)
    document = answer.document
    assert list(document) == KEYS
    assert "absent_module" in document["drafters"][0]["fault"]
    assert (document["plain"]["tokens"], document["round_costs"]) == (0, [])
    assert "plain decoding - tokens/s" in bench("--drafters", "absent_module:Own").out


def test_ctrl_c_is_no_fault_of_a_drafter(bench: Any, tmp_path: Path) -> None:
    source = OWN.replace(
        "        return [{guess} for s, q in zip(sequences, quotes)]", "        raise KeyboardInterrupt"
    )
    (tmp_path / "own_bench.py").write_text(source)
    assert bench("--drafters", "own_bench:Own,lookup").status == 130


def test_ctrl_c_keeps_the_prompts_that_were_measured(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.cli import bench as verb

    whole = verb.Subject.answer

    def answer(self: Any, prompt: int, drafter: Any, draft_tokens: int | None = None) -> Any:
        if prompt == 2:
            raise KeyboardInterrupt
        return whole(self, prompt, drafter, draft_tokens)

    monkeypatch.setattr(verb.Subject, "answer", answer)
    done = bench("--drafters", "lookup", "--lengths", "1", "--json")
    assert (done.status, done.out.count("\n")) == (130, 1)
    assert (done.document["prompts"], done.document["drafters"][0]["answers"]) == (2, 4)
    assert "2 prompts · " in bench("--drafters", "lookup", "--lengths", "1").out


def test_wide_names_stand_in_columns(bench: Any, questions: Path) -> None:
    lines = [
        {"prompt": "abab abab", "category": name} for name in ("書き換え", "翻訳の課題と長い名前", "😀 fun", "a\nb\x1b")
    ]
    questions.write_text("\n".join(json.dumps(line) for line in lines))
    out = bench("--drafters", "lookup", "--lengths", "1", "--color", "never").out.splitlines()
    rows = out[4:10]
    assert rows[1].startswith("書き換え       ")
    assert rows[2].startswith("翻訳の課題と… ")
    assert rows[4].startswith("a b␛ ")
    assert {columns(row) for row in rows} == {80}


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(peers, "_installed", lambda name: name not in names)


def test_no_peer_is_installed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "transformers", "llama_cpp")
    document = bench("--peers", "--lengths", "1", "--json").document
    assert [(each["peer"], each["fault"], each["answers"]) for each in document["peers"]] == [
        ("transformers", "not installed", 0),
        ("llama-cpp-python", "not installed", 0),
    ]
    out = bench("--peers", "--lengths", "1").out.splitlines()
    assert [line.split()[-2:] for line in out[-2:]] == [["not", "installed"]] * 2


def test_transformers_gives_the_same_greedy_text(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "llama_cpp")
    monkeypatch.setattr("foredraft.measure.bench.bench._CALM_S", 0.0)
    document = bench("--peers", "--lengths", "1", "--json", "--threads", "1").document
    plain, lookup, absent = document["peers"]
    assert (plain["peer"], lookup["peer"]) == ("transformers", "transformers, prompt lookup 10")
    for each in (plain, lookup):
        assert (each["identical"], each["answers"], each["fault"]) == (3, 3, None)
        assert each["tokens_per_s"] > 0
        assert list(each["over_drafters"]) == ["auto"]
    assert absent["fault"] == "not installed"


class Llama:
    """As much of llama-cpp-python as is used: it answers with the tokens that the tiny model's file is told of."""

    made: dict[str, Any]

    def __init__(self, **words: Any) -> None:
        Llama.made = words

    def generate(self, prompt: list[int], **words: Any) -> Iterator[int]:
        assert words == {"temp": 0.0, "repeat_penalty": 1.0, "reset": True}
        yield from range(1000)


def test_llama_cpp_is_asked_for_tokens(bench: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("llama_cpp")
    module.Llama = Llama  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    hide(monkeypatch, "transformers")
    monkeypatch.setattr("foredraft.measure.bench.bench._CALM_S", 0.0)
    words = ("--peers", "--lengths", "1", "--json")
    assert [each["fault"] for each in bench(*words).document["peers"]] == ["not installed", "no GGUF of this model"]
    beside = tiny / "tiny.gguf"
    beside.write_bytes(b"GGUF")
    try:
        llama, transformers = bench(*words, "--threads", "3").document["peers"]
    finally:
        beside.unlink()
    assert transformers["fault"] == "not installed"
    assert (llama["peer"], llama["answers"], llama["identical"], llama["fault"]) == ("llama-cpp-python", 3, 0, None)
    assert Llama.made["model_path"] == str(beside)
    assert (Llama.made["n_threads"], Llama.made["verbose"]) == (3, False)
    assert Llama.made["n_ctx"] > 24


def test_a_peer_that_cannot_load_is_one_line(bench: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("no such\nmagic")

    monkeypatch.setattr(peers, "_transformers", broken)
    hide(monkeypatch, "llama_cpp")
    out = bench("--peers", "--lengths", "1").out.splitlines()
    assert out[-2].split(maxsplit=1) == ["transformers", "ValueError: no such magic"]
    assert out[-1].endswith("not installed")

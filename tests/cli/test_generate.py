"""``foredraft generate`` on a tiny model."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli.main import main
from tests.cli.asking import Ask, interrupt_after, write_lines

KEYS = {
    "model", "system_fingerprint", "tier", "dtype", "drafter", "rule", "seed", "text", "token_ids", "prompt_tokens",
    "cached_tokens", "completion_tokens", "finish_reason", "speculative", "timings",
}  # fmt: skip
SPECULATIVE = {
    "rounds", "drafted", "accepted", "mean_tokens_per_pass", "acceptance_rate", "accepted_per_position", "reason",
    "by_drafter",
}  # fmt: skip
TIMINGS = {
    "load_s", "prefill_s", "decode_s", "tokens_per_s", "draft_s", "verify_s", "plain_tokens_per_s", "speedup",
}  # fmt: skip
SHORT = ("--max-tokens", "24")
FIXED = ("--draft-tokens", "4")  # whether a planner drafts at all hangs on how long passes take here


@pytest.fixture
def answer_of(ask: Ask, tiny: Path) -> Any:
    """Return the document of a generation with these words added."""

    def run(*words: object) -> dict[str, Any]:
        done = ask("generate", "--model", tiny, *SHORT, "--json", *words)
        assert done.status == 0, done.err
        assert done.out.count("\n") == 1
        return done.document

    return run


def test_the_document_has_exactly_these_keys(answer_of: Any, tiny: Path) -> None:
    document = answer_of("hello", "--drafter", "lookup")
    assert set(document) == KEYS
    assert set(document["speculative"]) == SPECULATIVE
    assert set(document["timings"]) == TIMINGS
    assert (document["model"], document["drafter"], document["seed"]) == (str(tiny), "lookup", None)
    assert (document["finish_reason"], document["completion_tokens"]) == ("length", 24)


@pytest.mark.parametrize("drafter", ["lookup", "auto", "lookup+suffix"])
def test_a_drafter_changes_no_token(answer_of: Any, drafter: str) -> None:
    plain = answer_of("ababab", "--dtype", "f64", "--drafter", "none", "--max-tokens", "64")
    drafted = answer_of("ababab", "--dtype", "f64", "--drafter", drafter, "--max-tokens", "64", *FIXED)
    assert plain["token_ids"] == drafted["token_ids"]
    assert plain["speculative"]["reason"] == "off: drafter none was asked for"
    assert drafted["speculative"]["drafted"] > 0


def test_text_is_streamed_whole_and_alone(ask: Ask, answer_of: Any, tiny: Path) -> None:
    document = answer_of("hello")
    done = ask("generate", "hello", "--model", tiny, *SHORT, *FIXED)
    assert done.out == document["text"] + ("" if document["text"].endswith("\n") else "\n")
    assert done.err.startswith("24 tokens (limit) · ")
    assert re.search(r" a pass · suffix \d+ of \d+ accepted", done.err)
    assert "\x1b" not in done.err


def test_colour_changes_no_character(ask: Ask, answer_of: Any, tiny: Path) -> None:
    done = ask("generate", "hello", "--model", tiny, *SHORT, *FIXED, "--color", "always")
    assert "\x1b[38;5;" in done.out or "\x1b[3" in done.out
    shown = re.sub(r"\x1b\[[\d;]*m", "", done.out)
    plain = answer_of("hello")["text"]
    assert re.sub(r"[␀-␡]|\\x..", "", shown.rstrip("\n")) == re.sub(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", plain.rstrip("\n")
    )
    assert "correction" in done.err or "bonus" in done.err


def test_where_a_prompt_comes_from(answer_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "question.txt").write_text("naïve?\n", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO("naïve?\n"))
    from_argument = answer_of("naïve?")
    assert answer_of("@question.txt")["token_ids"] == from_argument["token_ids"]
    assert answer_of("-")["token_ids"] == from_argument["token_ids"]


def test_sampling_follows_the_seed(answer_of: Any) -> None:
    hot = ("hello", "--temperature", "1.5", "--top-k", "50", "--top-p", "0.99", "--min-p", "0.001", "--seed")
    assert answer_of(*hot, "7")["token_ids"] == answer_of(*hot, "7")["token_ids"]
    assert answer_of(*hot, "7")["token_ids"] != answer_of(*hot, "8")["token_ids"]
    assert answer_of(*hot, "7")["seed"] == 7


def test_stops(answer_of: Any) -> None:
    plain = answer_of("hello")
    token = plain["token_ids"][5]
    stopped = answer_of("hello", "--stop-token-ids", f"257,{token}")
    assert stopped["finish_reason"] == "stop"
    assert stopped["token_ids"] == plain["token_ids"][: plain["token_ids"].index(token) + 1]
    piece = plain["text"][3]
    cut = answer_of("hello", "--stop", "never to be seen", "--stop", piece)
    assert cut["text"] == plain["text"][: plain["text"].index(piece)]


def test_raw_and_system_reach_the_prompt(answer_of: Any) -> None:
    assert answer_of("hello", "--raw")["prompt_tokens"] == 5
    templated = answer_of("hello")["prompt_tokens"]
    assert answer_of("hello", "--system", "Be brief")["prompt_tokens"] > templated > 5


def test_neutral_values_ask_for_nothing(answer_of: Any) -> None:
    words = "--rule auto --repetition-penalty 1 --presence-penalty 0 --frequency-penalty 0 -n 1 --min-tokens 0"
    assert answer_of("hello", *words.split())["token_ids"] == answer_of("hello")["token_ids"]


def test_ctrl_c_keeps_what_was_written(
    capsys: pytest.CaptureFixture[str], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(5, monkeypatch)
    assert main(["generate", "hello", "--model", str(tiny), "--drafter", "none", "--json"]) == 130
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert 5 <= document["completion_tokens"] < 512
    assert document["finish_reason"] != "length"
    assert "(stopped)" in captured.err
    assert "Traceback" not in captured.err


def test_many_prompts_in_one_document(ask: Ask, answer_of: Any, tiny: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "many.jsonl", {"prompt": "hello"}, "", {"turns": ["one", "two"], "category": "x"})
    document = answer_of("--prompts", path)
    assert [(entry["line"], entry["turn"]) for entry in document["results"]] == [(1, 0), (3, 0), (3, 1)]
    assert document["results"][0]["token_ids"] == answer_of("hello")["token_ids"]
    assert document["completion_tokens"] == 3 * 24
    assert document["results"][2]["prompt_tokens"] > document["results"][1]["prompt_tokens"] + 24
    rounds = sum(entry["speculative"]["rounds"] for entry in document["results"])
    assert document["speculative"]["rounds"] == rounds
    assert document["speculative"]["mean_tokens_per_pass"] == (3 * 24 - 3) / rounds
    done = ask("generate", "--model", tiny, *SHORT, "--prompts", path)
    assert done.out.startswith(document["results"][0]["text"])
    assert "3 answers · 72 tokens" in done.err


def test_a_prompt_that_fails_loses_none_before_it(ask: Ask, tiny: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "many.jsonl", {"prompt": "hello"}, {"prompt": "x" * 600}, {"prompt": "hello"})
    done = ask("generate", "--model", tiny, *SHORT, "--json", "--prompts", path)
    assert done.status == 2
    first, second, third = done.document["results"]
    assert [entry["line"] for entry in (first, second, third)] == [1, 2, 3]
    assert set(second) == {"line", "turn", "error"}
    assert second["error"] in done.err
    assert "foredraft: line 2: the prompt has " in done.err
    assert first["token_ids"] == third["token_ids"]
    assert "2 answers · 48 tokens" in done.err


@pytest.mark.parametrize(
    ("config", "same_as"),
    [
        ({"temperature": 1.3, "top_k": 9, "do_sample": True}, ("--temperature", "1.3", "--top-k", "9")),
        ({"do_sample": True}, ("--temperature", "1")),
        ({"temperature": 1.3, "do_sample": False}, ()),
        ({}, ()),
    ],
)
def test_generation_config_fills_what_is_left_open(
    answer_of: Any, tiny: Path, config: dict[str, Any], same_as: tuple[str, ...]
) -> None:
    with generation_config(tiny, config):
        filled = answer_of("hello", "--seed", "3", "--generation-config")
        assert filled["token_ids"] == answer_of("hello", "--seed", "3", *same_as)["token_ids"]
        named = answer_of("hello", "--seed", "3", "--generation-config", "--temperature", "0")
        assert named["token_ids"] == answer_of("hello")["token_ids"]


def test_generation_config_that_asks_too_much_is_refused(refused: Any, tiny: Path) -> None:
    with generation_config(tiny, {"temperature": 0.7, "repetition_penalty": 0.0}):
        said = refused("generate", "hello", "--model", tiny, "--generation-config")
    assert "--repetition-penalty must be a number between 0.01 and 100, not 0.0" in said


class generation_config:  # noqa: N801 - reads as the statement it is
    """The tiny model with another generation_config.json for a while."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.path = folder / "generation_config.json"
        self.before = self.path.read_text()
        self.config = config

    def __enter__(self) -> None:
        self.path.write_text(json.dumps({**json.loads(self.before), **self.config}))

    def __exit__(self, *_: object) -> None:
        self.path.write_text(self.before)


def test_a_strangers_drafter_from_the_current_folder(answer_of: Any, tmp_path: Path) -> None:
    (tmp_path / "my_drafter.py").write_text(
        "from foredraft import Draft\n"
        "class Stutter:\n"
        "    name, taps = 'stutter', ()\n"
        "    def begin(self, sequence): pass\n"
        "    def propose(self, sequences, quotes, noises):\n"
        "        return [Draft.chain([s.tokens[-1]] * 2, source=self.name) for s in sequences]\n"
        "    def observe(self, sequences, outcomes, scored): pass\n"
        "    def end(self, sequence): pass\n"
    )
    document = answer_of("hello", "--drafter", "my_drafter:Stutter", *FIXED)
    assert document["drafter"] == "stutter"
    assert document["speculative"]["by_drafter"]["stutter"]["drafted"] > 0


def test_a_draft_model_by_option_and_by_vllms_words(answer_of: Any, tiny: Path) -> None:
    ours = answer_of("hello", "--drafter", f"model:{tiny}", "--draft-tokens", "3")
    config = json.dumps({"method": "draft_model", "model": str(tiny), "num_speculative_tokens": 3})
    theirs = answer_of("hello", "--speculative-config", config)
    assert ours["speculative"]["by_drafter"] == theirs["speculative"]["by_drafter"]
    assert len(theirs["speculative"]["accepted_per_position"]) <= 3
    assert theirs["speculative"]["acceptance_rate"] > 0.9  # the draft is the target itself

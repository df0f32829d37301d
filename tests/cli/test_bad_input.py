"""What bad input gets: exit 2 and one sentence."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli.arguments.prompts import read_lines
from foredraft.cli.arguments.speculative_config import read
from foredraft.drafters.lookup import Lookup
from tests.models.checkpoints import make_checkpoint
from tests.tiny import make_chat_model, write_tokenizer


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--max-tokens 0", "--max-tokens must be a whole number of at least 1, not 0"),
        ("--max-tokens many", "--max-tokens must be a whole number, not 'many'"),
        ("--temperature -1", "--temperature "),
        ("--temperature nan", "--temperature must be a number, not nan"),
        ("--temperature inf", "--temperature must be a number, not inf"),
        ("--top-p 0", "--top-p "),
        ("--top-p 2", "--top-p "),
        ("--min-p -0.1", "--min-p "),
        ("--top-k -1", "--top-k "),
        ("--seed -1", "--seed must be a whole number "),
        ("--seed 1.5", "--seed must be a whole number, not '1.5'"),
        ("--draft-tokens -1", "--draft-tokens "),
        ("--draft-tokens some", "--draft-tokens must be a whole number or auto, not 'some'"),
        ("--draft-temperature -1", "--draft-temperature "),
        ("--stop-token-ids 1,x", "--stop-token-ids must be a whole number, not 'x'"),
        ("--rule block", "--rule must be auto or ratio or coupled, not 'block'"),
        ("--min-tokens -1", "--min-tokens must be a whole number of at least 0, not -1"),
        ("--min-tokens 9 --max-tokens 8", "--min-tokens 9 is more than --max-tokens 8"),
        ("--repetition-penalty 0", "--repetition-penalty must be a number between 0.01 and 100, not 0"),
        ("--repetition-penalty much", "--repetition-penalty must be a number, not 'much'"),
        ("--presence-penalty 3", "--presence-penalty must be a number between -2 and 2, not 3"),
        ("--frequency-penalty -3", "--frequency-penalty must be a number between -2 and 2, not -3"),
        ("--logit-bias 5", "--logit-bias must map token ids to numbers"),
        ("--logit-bias 5:101", "--logit-bias of token 5 must be a number between -100 and 100, not 101"),
        ("--logit-bias x:1", "--logit-bias names its tokens by their ids, and 'x' is none"),
        ('--logit-bias {"5":1,"5":2}', "--logit-bias names token 5 twice"),
        ("--logit-bias=-1:1", "--logit-bias names its tokens by their ids, and '-1' is none"),
        (
            "--logit-bias -1:1",
            "--logit-bias needs a value; one that begins with a dash is joined to it: --logit-bias=-1:1",
        ),
        ("--logit-bias --raw", "--logit-bias needs a value\n"),
        ("--zork", "there is no option --zork\n"),
        ("--temprature 1", "there is no option --temprature; did you mean --temperature?\n"),
        ("--raw --system s", "a raw prompt has no system turn: leave system out"),
        ("--logprobs 21", "--logprobs must be a whole number between 0 and 20, not 21"),
        ("-n 0", "-n must be a whole number between 1 and 128, not 0"),
        ("-n 1000000000", "-n must be a whole number between 1 and 128, not 1000000000"),
        (
            "--json-schema absent.json",
            "--json-schema must be a JSON object or a file, and there is no file 'absent.json'",
        ),
        ("--json-schema @absent.json", "--json-schema must be a JSON object or a file"),
        ("--json-schema .", "--json-schema: '.' cannot be read: "),
        ("--json-schema {", "--json-schema is not JSON: "),
        (
            '--json-schema {"type":"string","type":"integer"}',
            "--json-schema is not JSON: the key 'type' is there twice",
        ),
        ("--json-schema {} --regex a", "--regex is there beside --json-schema, and both say "),
        (
            "--native-tier sse",
            "--native-tier must be one of auto, amx, avx512, avx512-vnni, avx-vnni, avx2, portable, ",
        ),
        ("--dtype int4", "--dtype must be one of"),
        ("--threads 0", "--threads must be a whole number between 1 and 1024, not 0"),
        ("--context 0", "--context must be a whole number of at least 1, not 0"),
        ("--prediction absent.txt", "--prediction: 'absent.txt' cannot be read: No such file or directory"),
        ("--cache-scope a/b", "--cache-scope 'a/b' has a path separator: a scope is a name, not a path"),
        ("--cache-scope ..", "--cache-scope '..' begins with a dot: give it another name"),
        ("--cache-scope x --drafter lookup", "--cache-scope cannot be used by drafter lookup: use suffix"),
        ("--cache-share", "--cache-share reads what scopes remember, and none is named: give --cache-scope"),
        ("--color blue", "--color must be auto or always or never, not 'blue'"),
    ],
)
def test_values_out_of_range(refused: Any, tiny: Path, words: str, sentence: str) -> None:
    assert (refused("generate", "x", "--model", tiny, *words.split()) + "\n").startswith(sentence)


def test_words_that_are_none(refused: Any) -> None:
    assert refused("generate", "x", "--bad-words", " ") == "a bad word must be text that is not blank, not ' '"
    assert refused("generate", "x", "--json-schema", "") == "--json-schema is empty"
    assert refused("generate", "x", "--regex", "") == "--regex must be text that is not empty, not ''"


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--regex", "--regex"), ("--stop", "stop"), ("--bad-words", "--bad-words"), ("--system", "--system"),
        ("--cache-scope", "--cache-scope"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_text(refused: Any, option: str, name: str) -> None:
    assert refused("generate", "x", option, "a\udcff") == f"{name} is not UTF-8 text"


def test_a_schema_of_bytes_that_are_no_text(refused: Any) -> None:
    for schema in ('{"const": "\udcff"}', '{"const": "\\ud800"}', '{"\udcff": 1}'):
        assert refused("generate", "x", "--json-schema", schema) == "--json-schema is not UTF-8 text"


def test_a_schema_file_that_is_none(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_bytes(b"\xff{}")
    assert refused("generate", "x", "--json-schema", "schema.json") == "--json-schema: schema.json is not UTF-8 text"
    (tmp_path / "schema.json").write_text('{"a": "' + "x" * 70_000 + '"}')
    assert "schema.json has more than 65536 bytes" in refused("generate", "x", "--json-schema", "schema.json")
    (tmp_path / "schema.json").write_text("[1]")
    assert "must be a JSON object" in refused("generate", "x", "--json-schema", "schema.json")


@pytest.mark.parametrize("option", ["-n", "--logprobs"])
def test_a_chat_has_one_answer_and_tells_no_probabilities(refused: Any, option: str) -> None:
    assert refused("chat", option, "2").startswith(f"there is no option {option}")


def test_an_empty_stop_string(refused: Any) -> None:
    assert "stop string" in refused("generate", "x", "--stop", "")


@pytest.mark.parametrize("word", ["", "  ", "-", "@empty.txt", "@absent.txt", "@", "@bytes.txt", "\udcff"])
def test_prompts_that_are_none(refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert any(
        hint in refused("generate", word) for hint in ("is empty", "cannot be read", "not UTF-8", "the name of a file")
    )


def test_a_missing_prompt(refused: Any) -> None:
    assert "a prompt is missing" in refused("generate")


def test_a_prompt_that_fills_the_context(refused: Any, tiny: Path) -> None:
    said = refused("generate", "x" * 600, "--model", tiny)
    assert "512" in said
    assert "64" in refused("generate", "x" * 80, "--model", tiny, "--context", "64")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "must be an object with either prompt or turns"),
        ('{"text": "x"}', "must be an object with either prompt or turns"),
        ('{"prompt": "x", "turns": ["y"]}', "must be an object with either prompt or turns"),
        ('{"prompt": ""}', "a prompt is text"),
        ('{"prompt": 3}', "a prompt is text"),
        ('{"turns": []}', "turns a list of texts"),
        ('{"turns": "x"}', "turns a list of texts"),
    ],
)
def test_a_bad_line_is_named_before_anything_runs(refused: Any, tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "many.jsonl").write_text('{"prompt": "fine"}\n\n' + line + "\n")
    said = refused("generate", "--prompts", "many.jsonl")
    assert said.startswith("many.jsonl, line 3")
    assert complaint in said


def test_files_of_prompts_that_are_none(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "many.jsonl").write_text("\n")
    assert "holds no prompts" in refused("generate", "--prompts", "many.jsonl")
    assert "cannot be read" in refused("generate", "--prompts", "absent.jsonl")
    (tmp_path / "many.jsonl").write_text('{"turns": ["a", "b"]}\n')
    assert "give one" in refused("generate", "x", "--prompts", "many.jsonl")
    assert "--raw has no turns" in refused("generate", "--raw", "--prompts", "many.jsonl")


DEEP = "[" * 200_000


def test_json_that_is_nested_too_deeply(refused: Any, ask: Any, tiny: Path, tmp_path: Path) -> None:
    """Wherever somebody else's JSON is read."""
    (tmp_path / "deep.jsonl").write_text(f"{DEEP}\n")
    says = "is not JSON: it is nested too deeply"
    assert f"deep.jsonl, line 1 {says}" in refused("generate", "--model", tiny, "--prompts", "deep.jsonl")
    assert f"deep.jsonl, line 1 {says}" in refused("train", "layers", "--prompts", "deep.jsonl")
    assert f"deep.jsonl, line 1 {says}" in refused("certify", "--prompts", "deep.jsonl")
    for text in (DEEP, '{"method": %s}' % ("[" * 300 + "]" * 300)):
        assert "--speculative-config is not JSON: it is nested" in refused(
            "generate", "x", "--model", tiny, "--speculative-config", text
        )
    assert "--logit-bias must map token ids" in refused("generate", "x", "--logit-bias", '{"5":' + DEEP)
    folder = shutil.copytree(tiny, tmp_path / "deep")
    for name, options in (("generation_config.json", ("--generation-config",)), ("config.json", ())):
        (folder / name).write_text(DEEP)
        assert "it is nested too deeply" in refused("generate", "x", "--model", folder, *options)
    (own := tmp_path / "cache" / "own-bf16").mkdir(parents=True)
    (own / "foredraft.json").write_text(DEEP)
    (own / "config.json").write_text("{}")
    assert ask("models").status == 0


@pytest.mark.parametrize(
    ("drafter", "hint"),
    [
        ("guess", "unknown drafter 'guess'"),
        ("lookup+guess", "unknown drafter 'guess'"),
        ("", "unknown drafter"),
        ("heads:absent.safetensors", "there is no file absent.safetensors"),
        ("heads", "there are no heads for"),
        ("layers:absent.json", "there is no file absent.json"),
        ("layers:999", "an exit after layer 999"),
        ("layers:3", "an exit after layer 3 of 3 is the whole model"),
        ("layers:-1", "layers:-1 is neither: N is a whole number of layers, as in layers:8, or a FILE"),
        ("layers:+3", "layers: needs N, a whole number of layers, as in layers:8, or a FILE"),
        ("layers:deep.json", "deep.json is not JSON, so it is no choice of layers: it is nested too deeply"),
        ("model:", "model:PATH"),
        ("model:absent-folder", "absent-folder"),
        ("absent_module:Drafter", "absent_module"),
        ("json:Drafter", "json has no Drafter"),
        ("json:JSONDecoder", "is not a drafter"),
    ],
)
def test_drafters_that_are_none(refused: Any, tiny: Path, tmp_path: Path, drafter: str, hint: str) -> None:
    (tmp_path / "deep.json").write_text(DEEP)
    assert hint in refused("generate", "x", "--model", tiny, "--drafter", drafter)


def test_a_draft_of_another_vocabulary(refused: Any, tiny: Path, tmp_path: Path) -> None:
    other = make_checkpoint("llama", tmp_path / "other", vocab_size=261)
    write_tokenizer(other, extra=("<zzz>",))
    config = json.loads((other / "tokenizer.json").read_text())
    words = config["model"]["vocab"]
    first, second = (next(w for w, i in words.items() if i == n) for n in (40, 41))
    words[first], words[second] = 41, 40
    (other / "tokenizer.json").write_text(json.dumps(config))
    said = refused("generate", "x", "--model", tiny, "--drafter", f"model:{other}")
    assert all(part in said for part in ("261", "260", "first at token 40"))


def broken(tmp_path: Path, tiny: Path, kind: str) -> str:
    """Return the name of a model that is broken in this way."""
    folder = tmp_path / "broken"
    if kind == "absent":
        return str(tmp_path / "absent")
    shutil.copytree(tiny, folder)
    weights = folder / "model.safetensors"
    if kind == "no config":
        (folder / "config.json").unlink()
    elif kind == "pickle":
        weights.rename(folder / "pytorch_model.bin")
    elif kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif kind == "lying":
        weights.write_bytes((1 << 60).to_bytes(8, "little") + weights.read_bytes()[8:])
    elif kind == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    elif kind == "config":
        (folder / "config.json").write_text("{")
    elif kind == "gguf":
        path = tmp_path / "x.gguf"
        path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + (1 << 60).to_bytes(8, "little") * 2)
        return str(path)
    elif kind == "quantised":
        change_config(folder, quantization_config={"quant_method": "fp8"})
    return str(folder)


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    "kind",
    ["absent", "no config", "config", "pickle", "truncated", "lying", "no tokenizer", "gguf", "quantised"],
)
def test_models_that_are_none(refused: Any, tiny: Path, tmp_path: Path, kind: str) -> None:
    name = broken(tmp_path, tiny, kind)
    said = refused("generate", "x", "--model", name)
    assert "unexpected" not in said
    assert refused("generate", "x", "--model", tiny, "--drafter", f"model:{name}")


@pytest.mark.parametrize("role", ["target", "draft"])
def test_code_in_a_model_folder_is_never_run(refused: Any, tiny: Path, tmp_path: Path, role: str) -> None:
    folder = make_chat_model(tmp_path / "canary")
    canary = tmp_path / "sang"
    (folder / "modeling_canary.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
    auto_map = {"AutoModelForCausalLM": "modeling_canary.Model", "AutoConfig": "modeling_canary.Config"}
    change_config(folder, auto_map=auto_map, model_type="canary")
    words = ("--model", folder) if role == "target" else ("--model", tiny, "--drafter", f"model:{folder}")
    refused("generate", "x", *words)
    assert not canary.exists()


def test_no_network_is_needed_to_say_so(refused: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert "--offline" in refused("generate", "x", "--offline")
    assert "--offline" in refused("generate", "x", "--offline", "--model", "someone/something")


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"metod": "ngram"}', "no key 'metod'; did you mean method?"),
        ('{"method": "eagle", "model": "x"}', "method eagle is not in this version yet"),
        ('{"method": "magic"}', "no method 'magic'"),
        ('{"method": "draft_model"}', "needs a model"),
        ('{"method": "suffix", "model": "x"}', "method suffix copies and has no model"),
        ('{"method": "suffix", "prompt_lookup_max": 3}', "prompt_lookup_max belongs to method ngram, not suffix"),
        ('{"method": "suffix", "suffix_decoding_max_tree_depth": 9}', "no key 'suffix_decoding_max_tree_depth'"),
        ('{"method": "draft_model", "model": 3}', "model must be a name"),
        ('{"model": "x", "prompt_lookup_max": 3}', "belongs to method ngram"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "must be a whole number of at least 1"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "must be a whole number of at least 1"),
        ('{"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3}', "is above"),
    ],
)
def test_speculative_configs_that_are_none(refused: Any, config: str, hint: str) -> None:
    said = refused("generate", "x", "--speculative-config", config)
    assert said.startswith("--speculative-config")
    assert hint in said


def test_speculative_config_against_other_options(refused: Any) -> None:
    config = ("generate", "x", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
    assert "give one" in refused(*config, "--drafter", "none")
    assert "give one" in refused(*config, "--draft-tokens", "5")


@pytest.mark.parametrize(
    ("config", "bounds"),
    [
        ('{"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}', (2, 4)),
        ('{"prompt_lookup_max": 3}', (3, 3)),
        ('{"model": "[ngram]", "prompt_lookup_min": 2}', (2, 2)),
    ],
)
def test_speculative_config_of_lookup(config: str, bounds: tuple[int, int]) -> None:
    drafter, length = read(config, None, None)
    assert isinstance(drafter, Lookup)
    assert (drafter.min_ngram, drafter.max_ngram, length) == (*bounds, None)
    assert read('{"method": "ngram", "num_speculative_tokens": 4}', None, 4) == ("lookup", 4)


def test_speculative_config_of_suffix() -> None:
    assert read('{"method": "suffix", "num_speculative_tokens": 9}', None, None) == ("suffix", 9)
    assert read('{"model": "suffix"}', None, None) == ("suffix", None)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe that nobody writes to: whoever opened it would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize(
    "words",
    [
        "generate @{}", "generate --prompts {}", "explain @{}", "bench --prompts {}", "roofline --prompts {}",
        "certify --prompts {}", "generate x --prediction {}", "generate x --json-schema {}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", [False, True])
def test_what_is_no_file_is_not_opened(refused: Any, pipe: Path, words: str, device: bool) -> None:
    name = "/dev/zero" if device else "pipe"
    said = refused(*words.format(name).split())
    assert name in said
    assert "is not a regular file" in said
    assert said.endswith(": give a pipe as /dev/stdin") is not device


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="this system hands pipes in by other names")
@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_a_pipe_that_the_shell_hands_in_is_read(name: str) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b'{"prompt": "hello"}\n')
        os.close(writing)
        (line,) = read_lines(name.format(reading), io.StringIO())
    finally:
        os.close(reading)
    assert line.turns == ("hello",)


def test_files_without_a_name(refused: Any) -> None:
    assert refused("generate", "--prompts", "") == "the file of prompts has no name"
    assert refused("generate", "x", "--prediction", "") == "--prediction: '' has no name"


def test_what_comes_through_stdin_is_called_so(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, said in (("", "stdin holds no prompts"), ("{", "stdin, line 1 is not JSON")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert refused("generate", "--prompts", "-").startswith(said)

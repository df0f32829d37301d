"""The Python calls on tiny real checkpoints, in float64: every way of drafting gives the plain text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import foredraft
from foredraft import Draft, LanguageModel
from foredraft.errors import DrafterError, OptionError, PromptError, TokenizerError, VocabularyMismatch
from foredraft.result import Result
from tests.tiny import make_chat_model

PROMPTS = ("abab abab ab", "the cat sat on the mat, the cat", "x")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model: fewer layers, rows of padding in its vocabulary, a short context."""
    folder = tmp_path_factory.mktemp("draft") / "other"
    return make_chat_model(folder, num_hidden_layers=1, vocab_size=272, max_position_embeddings=64)


@pytest.fixture(scope="module")
def lm(tiny: Path) -> LanguageModel:
    return foredraft.load(tiny, dtype="f64", drafter="none")


def drafters(tiny: Path, other: Path) -> list[str]:
    return ["lookup", "suffix", f"suffix+model:{other}", f"model:{tiny}", f"model:{other}", f"lookup+model:{other}"]


@pytest.fixture(scope="module")
def greedy(lm: LanguageModel) -> list[Result]:
    """The plain text of every prompt."""
    return [lm.generate(prompt, max_tokens=40) for prompt in PROMPTS]


@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("length", [0, 1, 5, 12])
def test_greedy_text_is_plain_text(
    lm: LanguageModel, greedy: list[Result], tiny: Path, other: Path, which: int, length: int
) -> None:
    drafter = drafters(tiny, other)[which]
    for prompt, plain in zip(PROMPTS, greedy, strict=True):
        drafted = lm.generate(prompt, max_tokens=40, drafter=drafter, draft_tokens=length)
        assert drafted.token_ids == plain.token_ids
        assert drafted.text == plain.text
        assert drafted.finish_reason == plain.finish_reason
        assert (drafted.speculative.drafted > 0) == (length > 0)


def test_a_batch_is_its_prompts_one_by_one(lm: LanguageModel, other: Path) -> None:
    prompts = [f"{prompt}{i}" for i in range(4) for prompt in PROMPTS]
    alone = [lm.generate(prompt, max_tokens=24, drafter="none") for prompt in prompts]
    for drafter in ("none", f"lookup+model:{other}"):
        together = lm.generate(prompts, max_tokens=24, drafter=drafter)
        assert [r.token_ids for r in together] == [r.token_ids for r in alone]
        assert lm.loaded.target.slots.free == len(lm.loaded.target.slots)


def test_plain_text_is_transformers_text(lm: LanguageModel, tiny: Path) -> None:
    module = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)
    ids = [5, 9, 2, 5, 9]
    theirs = module.generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False, use_cache=True)
    assert lm.generate(ids, max_tokens=30).token_ids == theirs[0, len(ids) :].tolist()


def test_a_perfect_draft_model_is_always_believed(lm: LanguageModel, tiny: Path) -> None:
    result = lm.generate("abc", max_tokens=31, drafter=f"model:{tiny}", draft_tokens=4)
    if result.finish_reason == "length":
        assert result.speculative.acceptance_rate == 1
        assert result.speculative.rounds == 6  # the prompt's pass gives one token, then five a pass
        assert result.speculative.mean_tokens_per_pass == 5
        assert result.speculative.accepted_per_position == [6, 6, 6, 6]
        assert result.speculative.by_drafter == {"model": {"rounds": 6, "drafted": 24, "accepted": 24}}
        assert result.origins[1:6] == ["model"] * 4 + ["bonus"]
    assert result.finish_reason == "length", "the seed of the tiny model no longer fits this test"


def test_a_draft_model_at_its_own_temperature_changes_no_greedy_text(lm: LanguageModel, other: Path) -> None:
    plain = lm.generate(PROMPTS[1], max_tokens=30)
    for temperature in (0.0, 0.7, 3.0):
        drafted = lm.generate(PROMPTS[1], max_tokens=30, drafter=f"model:{other}", draft_temperature=temperature)
        assert drafted.token_ids == plain.token_ids


def test_a_seed_gives_one_text_and_another_seed_another(lm: LanguageModel) -> None:
    texts = [lm.generate("abc", max_tokens=20, temperature=1.0, seed=seed).token_ids for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]
    drawn: Any = {"max_tokens": 20, "min_tokens": 20, "temperature": 1.0}  # two of that length are hardly ever the same
    unseeded = lm.generate("abc", **drawn)
    assert unseeded.seed is None
    assert unseeded.token_ids != lm.generate("abc", **drawn).token_ids


def test_a_stream_says_what_generate_says(lm: LanguageModel) -> None:
    whole = lm.generate(PROMPTS[0], max_tokens=30, drafter="lookup", draft_tokens=4)
    stream = lm.stream(PROMPTS[0], max_tokens=30, drafter="lookup", draft_tokens=4)
    assert stream.result is None
    pieces = list(stream)
    assert stream.result is not None
    assert "".join(p.text for p in pieces) == whole.text == stream.result.text
    assert [p.token for p in pieces] == whole.token_ids
    assert [p.origin for p in pieces] == whole.origins
    assert {"plain", "lookup"} <= {p.origin for p in pieces}


def test_a_stream_left_early_gives_its_slot_back(lm: LanguageModel) -> None:
    with lm.stream("abc", max_tokens=30) as stream:
        next(stream)
    assert lm.loaded.target.slots.free == len(lm.loaded.target.slots)
    assert stream.result is not None
    assert stream.result.finish_reason == "cancelled"


def test_stop_strings_and_stop_ids_end_in_mid_draft(lm: LanguageModel, tiny: Path) -> None:
    plain = lm.generate("abc", max_tokens=30, raw=True)
    assert plain.completion_tokens == 30
    for drafter in ("none", f"model:{tiny}"):
        options: Any = {"max_tokens": 30, "raw": True, "drafter": drafter, "draft_tokens": 8}
        by_id = lm.generate("abc", stop_token_ids=[plain.token_ids[9]], **options)
        assert by_id.token_ids == plain.token_ids[: plain.token_ids.index(plain.token_ids[9]) + 1]
        assert by_id.finish_reason == "stop"
        marker = plain.text[11:14]
        by_text = lm.generate("abc", stop=marker, **options)
        assert by_text.text == plain.text[: plain.text.index(marker)]
        assert by_text.finish_reason == "stop"


def test_the_context_ends_an_answer(tiny: Path) -> None:
    small = foredraft.load(tiny, dtype="f64", context=40, drafter="lookup", draft_tokens=8)
    result = small.generate("abababab", max_tokens=500, raw=True)
    assert result.finish_reason in ("length", "stop")
    assert result.prompt_tokens + result.completion_tokens <= 40
    with pytest.raises(PromptError, match="the context of 40 leaves no room"):
        small.generate("a" * 40, raw=True)
    with pytest.raises(PromptError, match=r"cannot hold them|leaves no room"):
        small.generate("a" * 10_000_000, raw=True)


def test_a_transformers_object_runs_as_it_is(lm: LanguageModel, tiny: Path) -> None:
    module = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)
    handed = foredraft.load(module, tokenizer=tiny)
    assert handed.loaded.tier == "transformers"
    for drafter in ("none", "lookup"):
        answer = handed.generate("abab ab", max_tokens=20, drafter=drafter)
        assert answer.text == lm.generate("abab ab", max_tokens=20).text
    wordless = foredraft.load(module)
    assert wordless.generate([1, 2, 3], max_tokens=5).token_ids == lm.generate([1, 2, 3], max_tokens=5).token_ids
    with pytest.raises(PromptError, match="without a tokenizer"):
        wordless.generate("abc")
    with pytest.raises(OptionError, match="need a tokenizer"):
        wordless.generate([1, 2], stop="x")
    with pytest.raises(TokenizerError, match="needs a tokenizer"):
        foredraft.Conversation(wordless)
    with pytest.raises(OptionError, match="keeps the device and dtype it has"):
        foredraft.load(module, dtype="f32")


def test_an_assistant_model_object_drafts(lm: LanguageModel, tiny: Path) -> None:
    module = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)
    result = lm.generate("abc", max_new_tokens=20, assistant_model=module, num_assistant_tokens=3)
    assert result.token_ids == lm.generate("abc", max_tokens=20).token_ids
    assert result.speculative.acceptance_rate > 0.9


class Parrot:
    """A drafter of a stranger: says the same token for ever."""

    name = "parrot"
    taps: tuple[int, ...] = ()

    def __init__(self, drafts: Draft | None = None) -> None:
        self.ended = 0
        self.draft = drafts

    def begin(self, sequence: Any) -> None: ...

    def propose(self, sequences: Sequence[Any], quotes: Sequence[Any], noises: Sequence[Any]) -> list[Draft]:
        return [self.draft or Draft.chain([7] * 50, source=self.name) for _ in sequences]

    def observe(self, sequences: Any, outcomes: Any, scored: Any) -> None: ...

    def end(self, sequence: Any) -> None:
        self.ended += 1


def test_a_strangers_drafter_is_an_object(tiny: Path, lm: LanguageModel) -> None:
    parrot = Parrot()
    own = foredraft.load(tiny, dtype="f64", drafter=parrot, draft_tokens=3)
    result = own.generate("abc", max_tokens=20)
    assert result.token_ids == lm.generate("abc", max_tokens=20).token_ids
    assert result.drafter == "parrot"
    assert 0 < result.speculative.drafted <= 3 * result.speculative.rounds
    assert parrot.ended == 1
    tree = Parrot(Draft((7, 9, 11, 7), (-1, -1, 0, 1), source="tree"))
    branching = own.generate("abc", max_tokens=20, drafter=tree)
    assert branching.token_ids == result.token_ids
    with pytest.raises(DrafterError, match="token 9999"):
        own.generate("abc", drafter=Parrot(Draft.chain([9999])))
    assert own.generate("abc", max_tokens=20).token_ids == result.token_ids  # nothing was lost
    with pytest.raises(DrafterError, match="it has no name, taps"):
        own.generate("abc", drafter=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("drafter", "sentence"),
    [
        ("nonsense", "unknown drafter 'nonsense'"),
        ("model", "needs a model"),
        ("model:/nowhere/at/all", "."),
        ("heads:x", "there is no file x: foredraft train heads"),
        ("lookup+", "unknown drafter ''"),
        ("none+lookup", "cannot be joined with others"),
        ("lookup+suffix+lookup", "drafter 'lookup' is named twice"),
        ("no.such.module:Class", "No module named 'no'"),
        ("foredraft.errors:Nothing", "has no Nothing"),
    ],
)
def test_a_drafter_nobody_knows(lm: LanguageModel, drafter: str, sentence: str) -> None:
    with pytest.raises(foredraft.ForedraftError, match=sentence):
        lm.generate("abc", drafter=drafter)


def test_a_draft_of_another_vocabulary_is_refused(lm: LanguageModel, tmp_path: Path) -> None:
    strange = make_chat_model(tmp_path / "strange")
    tokenizer = json.loads((strange / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    (first, a), (second, b) = list(vocabulary.items())[10:12]
    vocabulary[first], vocabulary[second] = b, a
    (strange / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(VocabularyMismatch, match=r"260 and 260 tokens differ, first at token 10 \("):
        lm.generate("abc", drafter=f"model:{strange}")


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("", "the prompt is empty"),
        ([], "the list is empty: it holds no prompts"),
        ([-1], "prompt token -1 is not in the vocabulary"),
        ([260], "prompt token 260"),
        ([1, True], "prompt token True"),
        ([{"role": "user"}], "a message needs a role and a content"),
        (7, "a prompt is text"),
    ],
)
def test_prompts_that_are_none(lm: LanguageModel, prompt: Any, sentence: str) -> None:
    with pytest.raises(PromptError, match=sentence):
        lm.generate(prompt)


def test_white_space_is_a_prompt_and_a_batch_has_no_empty_ones(lm: LanguageModel) -> None:
    assert lm.generate(" \n", max_tokens=3).completion_tokens > 0
    with pytest.raises(PromptError, match="empty"):
        lm.generate(["a", ""])
    with pytest.raises(PromptError, match="stream answers one prompt"):
        lm.stream(["a", "b"])  # type: ignore[arg-type]


def test_messages_are_a_prompt(lm: LanguageModel) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "abc"}]
    assert lm.generate(messages, max_tokens=9).token_ids == lm.generate("abc", system="s", max_tokens=9).token_ids
    with pytest.raises(PromptError, match="raw"):
        lm.generate(messages, raw=True)
    with pytest.raises(PromptError, match="system"):
        lm.generate("abc", raw=True, system="s")


def test_the_document_has_the_names_of_the_interface(lm: LanguageModel) -> None:
    document = lm.generate("abc", max_tokens=3).to_dict()
    assert json.loads(json.dumps(document)) == document
    assert {"model", "system_fingerprint", "tier", "dtype", "drafter", "rule", "seed", "text"} <= set(document)
    assert {"token_ids", "prompt_tokens", "completion_tokens", "finish_reason"} <= set(document)
    assert set(document["speculative"]) == {
        "rounds",
        "drafted",
        "accepted",
        "mean_tokens_per_pass",
        "acceptance_rate",
        "accepted_per_position",
        "reason",
        "by_drafter",
    }
    assert set(document["timings"]) == {
        "load_s",
        "prefill_s",
        "decode_s",
        "tokens_per_s",
        "draft_s",
        "verify_s",
        "plain_tokens_per_s",
        "speedup",
    }
    assert document["speculative"]["reason"] == "off: drafter none was asked for"

"""Every pair of options with every kind of drafter: under ``coupled`` the answer is plain decoding's, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

import foredraft
from foredraft import Draft, LanguageModel
from foredraft.errors import OptionError
from foredraft.options import Options
from tests.tiny import make_chat_model

pytestmark = pytest.mark.slow

PROMPT = "abab abab ab"
OPTIONS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.4},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 12},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": -1.5},
    "logit_bias": {"logit_bias": {97: 3.5, 98: 3.0, 259: 1.0}},
    "bad_words": {"bad_words": ["a", "bb"]},
    "min_tokens": {"min_tokens": 8},
    "stop": {"stop": ["b", "zz"]},
    "stop_token_ids": {"stop_token_ids": [98, 99, 100]},
    "n": {"n": 3},
    "logprobs": {"logprobs": 2},
    "json_schema": {"json_schema": {"type": "array", "items": {"enum": ["a", "b", 1]}, "minItems": 1}},
    "regex": {"regex": "(ab|ba|c[ab]){2,6}"},
    "draft_temperature": {"draft_temperature": 0.5},
    "prediction": {"prediction": "abab ab(ab"},
    "cache_scope": {"cache_scope": "mine"},
}
PAIRS = [pair for pair in itertools.combinations(OPTIONS, 2) if set(pair) != {"json_schema", "regex"}]


class Bushes:
    """Guesses trees, some of them right: every token of the text so far may come next, three to a node."""

    name = "bushes"
    taps: tuple[int, ...] = ()

    def begin(self, sequence: Any) -> None: ...

    def propose(self, sequences: Sequence[Any], quotes: Sequence[Any], noises: Sequence[Any]) -> list[Draft]:
        return [self._tree(s.tokens[-9:]) for s in sequences]

    def observe(self, sequences: Sequence[Any], outcomes: Sequence[Any], scored: Any) -> None: ...

    def end(self, sequence: Any) -> None: ...

    def _tree(self, recent: list[int]) -> Draft:
        likely = [97, 98, 34, *dict.fromkeys(recent)][:6]
        return Draft((*likely, *likely[:3]), (*([-1] * len(likely)), 0, 0, 1))


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return foredraft.load(make_chat_model(tmp_path_factory.mktemp("matrix") / "tiny"), dtype="f64", drafter="none")


@pytest.fixture(scope="module")
def drafters(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("matrix") / "other"
    make_chat_model(folder, num_hidden_layers=1, vocab_size=272, max_position_embeddings=64)
    return ["lookup", "suffix", f"model:{lm.loaded.folder.path}", f"suffix+model:{folder}", Bushes()]


def test_the_table_names_every_option() -> None:
    """Those not in it say where text comes from, not what it is."""
    plumbing = {"max_tokens", "seed", "system", "raw", "drafter", "draft_tokens", "rule", "max_new_tokens", "do_sample"}
    plumbing |= {"assistant_model", "prompt_lookup_num_tokens", "num_assistant_tokens", "assistant_early_exit"}
    assert set(Options.__annotations__) - plumbing == set(OPTIONS) - {"greedy"}


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_a_pair_of_options(lm: LanguageModel, drafters: list[Any], pair: tuple[str, str]) -> None:
    asked: dict[str, Any] = {"temperature": 1.0, "seed": PAIRS.index(pair), "max_tokens": 10, "draft_tokens": 5}
    for name in pair:
        asked |= OPTIONS[name]
    plain = lm.generate(PROMPT, **asked, drafter="none")
    assert plain.rule == "coupled"
    assert plain.speculative.drafted == 0
    for drafter in drafters:
        if {"prediction", "cache_scope"} & set(pair) and "suffix" not in str(drafter):
            with pytest.raises(OptionError, match=r"cannot be used by drafter \w+: use suffix"):
                lm.generate(PROMPT, **asked, drafter=drafter)
            continue
        drafted = lm.generate(PROMPT, **asked, drafter=drafter)
        assert drafted.speculative.drafted > 0 or drafter in ("lookup", "suffix") or plain.speculative.rounds == 0
        for choice, ours in zip(drafted.choices, plain.choices, strict=True):
            assert choice.token_ids == ours.token_ids
            assert choice.text == ours.text
            assert choice.finish_reason == ours.finish_reason
            assert _near(choice.logprobs, ours.logprobs)


def _near(found: Any, wanted: Any) -> bool:
    """Passes of different widths differ in the last bits of a float64, and log-probabilities with them."""
    if wanted is None:
        return found is None
    return all(
        a.token_id == b.token_id and abs(a.logprob - b.logprob) < 1e-9 and _near(a.top_logprobs, b.top_logprobs)
        for a, b in zip(found, wanted, strict=True)
    )

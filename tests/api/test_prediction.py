"""A predicted answer: copied from first, counted, and nobody else's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import foredraft
from foredraft import Draft, LanguageModel
from foredraft.drafters.suffix import Suffix
from foredraft.errors import OptionError
from tests.tiny import make_chat_model

PROMPT = "abc abd"
LONG = 120


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("prediction") / "tiny")


@pytest.fixture(scope="module")
def lm(tiny: Path) -> LanguageModel:
    return foredraft.load(tiny, dtype="f64", draft_tokens=15)


@pytest.fixture(scope="module")
def hot() -> dict[str, Any]:
    """Options whose answer does not repeat itself, so that only a prediction can guess it."""
    return {"temperature": 1.5, "seed": 4, "max_tokens": LONG}


@pytest.fixture(scope="module")
def answer(lm: LanguageModel, hot: dict[str, Any]) -> list[int]:
    ids: list[int] = lm.generate(PROMPT, **hot, drafter="none").token_ids
    assert len(ids) == LONG
    return ids


@pytest.mark.parametrize("drafter", ["auto", "suffix", "suffix+model", "model+suffix"])
def test_a_right_prediction_is_all_accepted(
    lm: LanguageModel, tiny: Path, answer: list[int], hot: dict[str, Any], drafter: str
) -> None:
    drafter = drafter.replace("model", f"model:{tiny}")
    result = lm.generate(PROMPT, **hot, prediction=answer, drafter=drafter)
    assert result.token_ids == answer
    used = result.prediction
    assert used is not None
    if drafter.startswith("model"):  # the target itself drafts first, and is always right
        assert (used.accepted, used.rejected) == (0, 0)
        assert result.notices == ["prediction had no use: no guess was copied from it"]
    else:
        assert (used.accepted >= LONG * 7 // 8, used.rejected <= 40) == (True, True)
        assert result.speculative.rounds <= LONG // 10
        assert result.notices == []
    assert result.to_dict()["prediction"] == {"accepted": used.accepted, "rejected": used.rejected}


@pytest.mark.parametrize("edit", ["substituted", "inserted", "deleted"])
def test_a_small_edit_costs_little(lm: LanguageModel, answer: list[int], hot: dict[str, Any], edit: str) -> None:
    prediction, rng = list(answer), random.Random(1)
    for place in (90, 60, 30):
        new = [rng.randrange(250)] if edit != "deleted" else []
        prediction[place : place + (edit != "inserted")] = new
    result = lm.generate(PROMPT, **hot, prediction=prediction)
    assert result.token_ids == answer
    assert result.prediction is not None
    assert result.prediction.accepted >= LONG * 3 // 4
    assert result.speculative.rounds <= LONG // 5


def test_a_prediction_that_matches_nothing_is_given_up(
    lm: LanguageModel, answer: list[int], hot: dict[str, Any]
) -> None:
    absent = next(token for token in range(256) if token not in answer)
    plain = lm.generate(PROMPT, **hot)
    result = lm.generate(PROMPT, **hot, prediction=[absent] * 200)
    assert result.token_ids == answer
    assert result.prediction is not None
    assert result.prediction.accepted == 0
    assert result.prediction.rejected > 0
    assert result.speculative.drafted <= plain.speculative.drafted + result.prediction.rejected
    lost = lm.generate(PROMPT, **{**hot, "max_tokens": 60}, prediction=[absent] * 200)
    assert lost.prediction == result.prediction  # after a while it costs nothing any more


def test_text_is_a_prediction_as_it_is_and_tokens_are(lm: LanguageModel) -> None:
    plain = lm.generate(PROMPT, max_tokens=24)
    tokenizer = lm.loaded.tokenizer
    assert tokenizer is not None
    assert lm.runtime.requests.prediction(_settings(prediction="ab c")) == tuple(
        tokenizer.encode("ab c", special=False)
    )
    by_ids = lm.generate(PROMPT, max_tokens=24, prediction=plain.token_ids)
    assert by_ids.token_ids == plain.token_ids


def _settings(**options: Any) -> Any:
    from foredraft.options import parse_options

    return parse_options(options)  # type: ignore[arg-type]


def test_it_is_counted_only_where_it_was_given_and_over_all_answers(
    lm: LanguageModel, answer: list[int], hot: dict[str, Any]
) -> None:
    assert "prediction" not in lm.generate(PROMPT, **hot).to_dict()
    one = lm.generate(PROMPT, **hot, prediction=answer)
    three = lm.generate(PROMPT, **hot, prediction=answer, n=3)
    assert three.token_ids == answer
    assert one.prediction is not None
    assert three.prediction is not None
    assert three.prediction.accepted >= one.prediction.accepted
    assert three.prediction.rejected > one.prediction.rejected  # the other two say something else
    batch = lm.generate([PROMPT, "zz"], **hot, prediction=answer)
    assert batch[0].prediction == one.prediction
    stream = lm.stream(PROMPT, **hot, prediction=answer)
    assert "".join(piece.text for piece in stream) == one.text
    assert stream.result is not None
    assert stream.result.prediction == one.prediction


def test_a_stream_that_is_left_is_counted_as_far_as_it_came(
    lm: LanguageModel, answer: list[int], hot: dict[str, Any]
) -> None:
    with lm.stream(PROMPT, **hot, prediction=answer) as stream:
        for _ in range(20):
            next(stream)
    assert stream.result is not None
    assert stream.result.prediction is not None
    assert 0 < stream.result.prediction.accepted < LONG


def test_nobody_elses_prediction_is_proposed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither beside it, in another stream of the same model, nor after it, nor from a scope it had."""
    seen: list[Draft] = []
    whole = Suffix.propose

    def propose(drafter: Suffix, *rest: Any) -> list[Draft]:
        seen[:] = whole(drafter, *rest)
        return seen

    monkeypatch.setattr(Suffix, "propose", propose)
    lm = foredraft.load(tiny, dtype="f64", draft_tokens=15)
    secret = range(200, 216)
    prediction = [token for byte in range(64, 80) for token in (byte, *secret)]
    mine = lm.stream(PROMPT, max_tokens=30, prediction=prediction, cache_scope="mine", temperature=1.0, seed=1)
    leaked, met = False, False
    yours = lm.stream(PROMPT, max_tokens=30, cache_scope="mine", temperature=1.0, seed=1)
    for _ in range(12):
        next(mine)
        met |= any(token in secret for draft in seen for token in draft.tokens)
        next(yours)
        leaked |= any(token in secret for draft in seen for token in draft.tokens)
    mine.close()
    for _ in yours:
        leaked |= any(token in secret for draft in seen for token in draft.tokens)
    assert (met, leaked) == (True, False)


@pytest.mark.parametrize("drafter", ["lookup", "model", "lookup+model"])
def test_drafters_that_cannot_use_it_refuse_it(lm: LanguageModel, tiny: Path, drafter: str) -> None:
    drafter = drafter.replace("model", f"model:{tiny}")
    for ask in (lm.generate, lm.stream):
        with pytest.raises(OptionError, match=r"^prediction cannot be used by drafter [\w+]+: use suffix"):
            ask(PROMPT, drafter=drafter, prediction="x", max_tokens=4)


def test_behind_lookup_it_reaches_suffix_where_lookup_has_nothing_to_say(
    lm: LanguageModel, answer: list[int], hot: dict[str, Any]
) -> None:
    result = lm.generate(PROMPT, **hot, prediction=answer, drafter="lookup+suffix")
    assert result.token_ids == answer
    assert result.prediction is not None
    assert (result.prediction.accepted > 0, result.notices) == (True, [])


@pytest.mark.parametrize("off", [{"drafter": "none"}, {"draft_tokens": 0}])
def test_where_nothing_is_drafted_a_notice_says_so(lm: LanguageModel, off: dict[str, Any]) -> None:
    result = lm.generate(PROMPT, max_tokens=4, prediction="x", **off)
    assert result.notices == ["prediction had no use: nothing was drafted"]
    assert result.to_dict()["prediction"] == {"accepted": 0, "rejected": 0}


@pytest.mark.parametrize(
    ("prediction", "why"),
    [
        ("", "must be text or token ids, and not empty"),
        ([], "must be text or token ids, and not empty"),
        (b"x", "must be text or token ids"),
        (3, "must be text or token ids"),
        ([1, "x"], "^a token of a prediction must be a whole number"),
        ([-1], "^a token of a prediction must be a whole number of at least 0, not -1"),
        ([260], "prediction holds token 260, which is not in the vocabulary of 260"),
        ([1] * 513, "prediction has 513 tokens, and a context of 512 cannot hold them"),
        ("x" * 513, "prediction has 513 tokens, and a context of 512 cannot hold them"),
        ("x" * 10_000_000, "prediction has 10000000 characters, and a context of 512 tokens cannot hold them"),
        ("\ud800", "prediction is not UTF-8 text"),
    ],
)
def test_predictions_that_are_none(lm: LanguageModel, prediction: Any, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        lm.generate(PROMPT, prediction=prediction)

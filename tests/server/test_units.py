"""Small parts on their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs the serve extra")
from foredraft.core.draft import Draft
from foredraft.engine.watches.tally import Count, Tally
from foredraft.errors import Draining, GrammarLimit, OptionError, Overloaded, PromptTooLong
from foredraft.server.errors import ApiError, encoded, error_object, named, refusal
from foredraft.server.limits import PerKey, strict_json
from foredraft.server.wire.request_fields import template
from foredraft.tokenizer.tokenizer import Tokenizer
from tests.tiny import write_tokenizer


@pytest.mark.parametrize(
    ("message", "fields", "param"),
    [
        ("min_tokens 3 is more than max_tokens 2", ["max_tokens", "min_tokens"], "min_tokens"),
        ("max_tokens must be a number", ["max_completion_tokens"], "max_completion_tokens"),
        ("json_schema does not compile", ["response_format"], "response_format"),
        ("stop token 5 is not in the vocabulary", ["stop", "stop_token_ids"], "stop_token_ids"),
        ("the bad word 'x' has no tokens", ["bad_words"], "bad_words"),
        ("prediction cannot be used by drafter lookup", ["prediction", "speculative"], "prediction"),
        ("nothing of all this", ["prompt"], None),
    ],
)
def test_which_field_a_sentence_names(message: str, fields: list[str], param: str | None) -> None:
    assert named(message, fields) == param


def test_what_an_error_of_the_library_means() -> None:
    full = refusal(Overloaded("full", 7.2))
    assert full is not None
    assert (full.status_code, full.code, full.headers) == (503, "queue_full", {"Retry-After": "8"})
    cases: list[tuple[Exception, int, str | None]] = [
        (Draining("ending"), 503, "draining"),
        (PromptTooLong("too long"), 400, "context_length_exceeded"),
        (OptionError("n must be"), 400, None),
        (GrammarLimit("too complex"), 400, None),
    ]
    for error, status, code in cases:
        found = refusal(error, ["prompt", "n"])
        assert found is not None
        assert (found.status_code, found.code) == (status, code)
    assert refusal(RuntimeError("ours")) is None
    assert refusal(own := ApiError(404, "x")) is own


def test_every_text_can_be_written() -> None:
    assert encoded({"a": "\ud800ü"}) == b'{"a":"\\ud800\xc3\xbc"}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        encoded({"a": float("nan")})
    assert len(error_object(400, "x" * 10_000)["error"]["message"]) < 300


def test_json_as_it_is_defined() -> None:
    assert strict_json(b'{"a": [1, 2.5, "\\u00fc", null]}') == {"a": [1, 2.5, "ü", None]}
    assert strict_json(b'"\\ud83d\\ude00"') == "😀"
    for wrong in (b"NaN", b"[Infinity]", b"-Infinity", b"1e400", b'"\\ud83d"', b"\xff", b"{", b""):
        with pytest.raises(ApiError):
            strict_json(wrong)
    with pytest.raises(ApiError, match="not JSON: a number in it has 5000 digits"):
        strict_json(b"9" * 5000)


def test_answers_of_a_key() -> None:
    per_key = PerKey(3)
    per_key.enter("a", 2)
    per_key.enter("b", 3)
    with pytest.raises(ApiError, match="3 answers"):
        per_key.enter("a", 2)
    per_key.leave("a", 2)
    per_key.enter("a", 3)
    per_key.leave("a", 3)
    per_key.leave("b", 3)
    per_key.leave("b", 3)
    assert per_key._under_way == {}
    PerKey(None).enter("a", 10**6)


def test_switches_of_a_template(tmp_path: Path) -> None:
    """They reach the template, and nothing else does."""
    write_tokenizer(tmp_path)
    source = "{{ bos_token }}{% if enable_thinking is false %}quick{% else %}slow{% endif %}{{ messages|length }}"
    (tmp_path / "chat_template.jinja").write_text(source)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.render([{"role": "user", "content": "x"}]) == "<s>slow1"
    assert tokenizer.render([], variables=template({"enable_thinking": False})) == "<s>quick0"
    assert tokenizer.render([], variables={"bos_token": "mine"}) == "<s>slow0"  # the tokenizer's own names win
    for wrong in (
        {"bos_token": "x"},
        {"enable_thinking": 1},
        {"reasoning_effort": "x" * 10},
        {"add_generation_prompt": 0},
    ):
        with pytest.raises(ApiError, match="chat_template_kwargs"):
            template(wrong)


def test_a_prompt_is_its_own_draft() -> None:
    from foredraft.core.sequence import TokenSequence
    from foredraft.engine.fixed_planner import FixedQuote
    from foredraft.serving.scoring import PromptDrafter

    drafter = PromptDrafter([1, 2, 3, 4, 5])
    sequences = [TokenSequence([1], 5), TokenSequence([1, 2, 3, 4], 5), TokenSequence([1, 2, 3, 4, 5], 6)]
    drafts = drafter.propose(sequences, [FixedQuote(2)] * 3, [])
    assert [draft.tokens for draft in drafts] == [(2, 3), (5,), ()]
    assert drafts[0] == Draft.chain([2, 3], None, "prompt")


def test_tallies_together() -> None:
    from foredraft.engine.watches.tally import summed

    one = Tally(answers=1, tokens=5, passes=3, total=Count(2, 4, 2, [1, 1]), by_drafter={"a": Count(2, 4, 2, [1, 1])})
    two = Tally(answers=1, tokens=9, passes=3, total=Count(3, 9, 5, [3]), by_drafter={"b": Count(3, 9, 5, [3])})
    whole = summed([one, two])
    assert (whole.answers, whole.tokens, whole.passes) == (2, 14, 6)
    assert whole.total == Count(5, 13, 7, [4, 1])
    assert whole.by_drafter == {"a": Count(2, 4, 2, [1, 1]), "b": Count(3, 9, 5, [3])}
    assert one.total == Count(2, 4, 2, [1, 1])


@pytest.mark.parametrize(
    ("model", "name"),
    [("smollm2-135m", "smollm2-135m"), ("org/model", "org/model"), ("/secret/place/model", "model"), ("x/y.gguf", "y")],
)
def test_a_served_name_is_no_path(model: str, name: str) -> None:
    from foredraft.serving.model import served_name

    assert served_name(model) == name


def test_rounds_of_the_last_seconds_only() -> None:
    from foredraft.core.draft import Outcome, Scored
    from foredraft.core.protocols import Round
    from foredraft.core.sequence import TokenSequence
    from foredraft.serving.recent_rounds import RecentRounds

    now = [100.0]

    class Plans:
        def plain_seconds(self, texts: int, context: int) -> float:
            return 0.1 * texts

    rounds = RecentRounds(Plans(), 10.0, lambda: now[0])  # type: ignore[arg-type]
    sequence = TokenSequence([1, 2, 3, 4, 5, 6], 99, prompt_length=1)

    def see(guesses: int, accepted: int, source: str = "suffix") -> None:
        draft = Draft.chain([1] * guesses, None, source)
        outcome = Outcome(draft, (1,) * (accepted + 1), accepted, (), ("plain",) * (accepted + 1), None)
        began = now[0] - 0.1
        rounds.see(Round((sequence,), (outcome,), Scored(None, (0,), {}), (), began, began, began))

    see(4, 3)
    see(0, 0)
    see(9, 3, "prompt")
    figures: Any = rounds.figures()
    assert (figures.draft_length, figures.acceptance, figures.tokens_per_pass) == (2.0, 0.75, 2.5)
    assert figures.tokens_per_s == pytest.approx(25)
    assert figures.plain_tokens_per_s == pytest.approx(10)
    assert figures.speedup == pytest.approx(2.5)
    assert figures.decisions == {"draft": 1, "plain": 1}
    now[0] += 11
    assert rounds.figures().draft_length is None
    assert rounds.figures().decisions == {"draft": 1, "plain": 1}

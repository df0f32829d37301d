"""Traces of toys: nothing is left out or counted twice; the HTML file is well formed, and safe with any text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pytest

from foredraft.core.draft import Draft
from foredraft.core.law import Point
from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.suffix import Suffix
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.loop import run
from foredraft.engine.watches.logprobs import logprobs
from foredraft.measure.trace.html import odds, page
from foredraft.measure.trace.trace import ACCEPTED, REJECTED, UNTESTED, Guess, Trace, Traced, Written
from tests.measure.reading import read
from tests.measure.toys import PROMPTS, certain, drafter, host, sampled

EVIL: Final = '</script><script>alert("1")</script>\x1b[31m\u202e&amp; <!-- ]]> \'"'


def traced(
    guesser: Any, temperature: float, *, coupled: bool = False, planner: Any = None
) -> tuple[TokenSequence, Trace]:
    planner = planner or FixedPlanner(4)
    trace = Trace(planner, logprobs, None)
    sequence = TokenSequence(list(PROMPTS[0]), 43, SamplingParams(temperature), Noise(3, coupled=coupled))
    list(run([sequence], host().target, guesser, planner, [trace]))
    trace.finish()
    return sequence, trace


def tree(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
    """Guess two tokens side by side, and one after each."""
    return Draft((1, 7, 7, 1), (-1, -1, 0, 1)).first(quote.limit)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("guesser", [drafter(certain, "c"), drafter(sampled, "s"), drafter(tree, "t"), Suffix(0, 2)])
def test_every_token_and_every_guess_has_its_place(guesser: Any, temperature: float, coupled: bool) -> None:
    sequence, trace = traced(guesser, temperature, coupled=coupled)
    assert [token.token for each in trace.rounds for token in each.tokens] == sequence.answer
    position = 0
    for i, each in enumerate(trace.rounds):
        assert (each.position, each.prompt) == (position, i == 0)
        assert each.equality == (temperature == 0 or coupled)
        position += len(each.tokens)
        fates = [guess.fate for guess in each.guesses]
        assert fates.count(ACCEPTED) == each.accepted
        assert all((guess.p is None) == (guess.fate == UNTESTED) for guess in each.guesses)
        kept = [guess.token for guess in each.guesses if guess.fate == ACCEPTED]
        assert kept == [token.token for token in each.tokens[: each.accepted]]
        for token in each.tokens:
            assert 0 < token.p <= 1
            assert [p for _, p in token.likeliest] == sorted((p for _, p in token.likeliest), reverse=True)
        origins = [token.origin for token in each.tokens]
        assert origins[: each.accepted] == [each.source] * each.accepted
        assert set(origins[each.accepted :]) <= {"plain", "correction", "bonus"}
        assert (each.draft_ms >= 0, each.verify_ms > 0, each.rest_ms > 0, each.reason) == (True, True, True, "")
    refused = [guess for each in trace.rounds for guess in each.guesses if guess.fate == REJECTED]
    assert refused


def test_greedy_chances_are_the_models_own() -> None:
    _, trace = traced(drafter(certain, "c"), 0.0)
    for each in trace.rounds:
        for guess, token in zip(each.guesses, each.tokens, strict=False):
            if guess.fate == ACCEPTED:
                assert guess.p == token.p == token.likeliest[0][1]
            if guess.fate == REJECTED:
                assert guess.p is not None
                assert guess.p < token.p
            assert guess.q is None


def test_drawn_guesses_have_a_law_of_their_own() -> None:
    _, trace = traced(drafter(sampled, "s"), 1.0)
    guesses = [guess for each in trace.rounds for guess in each.guesses]
    assert guesses
    assert all(guess.q is not None and 0 < guess.q <= 1 for guess in guesses)


def test_a_certain_law_is_shown_as_equality() -> None:
    def point(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        return Draft.chain([3], [Point(3)]) if quote.limit else Draft()

    _, trace = traced(drafter(point, "p"), 1.0)
    assert {guess.q for each in trace.rounds for guess in each.guesses} == {None}


def test_a_planner_may_give_its_reasons() -> None:
    class Reasoning(FixedPlanner):
        def reasons(self, sequence: TokenSequence) -> str:
            return f"told after {len(sequence)} tokens"

    sequence, trace = traced(drafter(certain, "c"), 0.0, planner=Reasoning(2))
    assert trace.rounds[-1].reason == f"told after {len(sequence)} tokens"
    assert trace.rounds[0].reason == f"told after {sequence.prompt_length + 1} tokens"
    told = page("t", "p", [], trace.rounds)
    assert f"told after {len(sequence)} tokens" in told
    assert 'class="untold"' not in told


def test_a_faulty_round_leaves_a_trace() -> None:
    trace = Trace(FixedPlanner(0), logprobs, None)
    sequence = TokenSequence([1], 9, SamplingParams(1.0), law=lambda row, params: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(run([sequence], host().target, drafter(certain, "c"), FixedPlanner(0), [trace]))
    assert trace.rounds == []


def evil_rounds() -> list[Traced]:
    def written(text: str, origin: str) -> Written:
        return Written(1, text, text, origin, 0.25, ((EVIL, 0.5), ("b", 0.2)))

    guesses = (
        Guess(1, EVIL, -1, ACCEPTED, 0.9, 0.5),
        Guess(2, "<b>", 0, REJECTED, 0.0, None),
        Guess(3, "\n", 1, UNTESTED, None, None),
    )
    tokens = (written(EVIL, "<i>drafter</i>"), written("\n", "correction"))
    first = Traced(0, True, "none", True, (), 0, (written("x", "plain"),), 0.0, 9.0, 1.0, "")
    return [first, Traced(1, False, "<i>drafter</i>", False, guesses, 1, tokens, 0.5, 9.0, 1.0, EVIL)]


def test_nothing_in_a_text_is_markup() -> None:
    html = page(EVIL, EVIL, [EVIL], evil_rounds())
    reader = read(html)
    tags = {tag for tag, _ in reader.seen}
    assert "script" not in tags
    assert not tags & {"b", "img", "iframe", "link"}
    assert all(not name.startswith("on") for _, attributes in reader.seen for name in attributes)
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert (
        "".join(reader.text).count('</script><script>alert("1")</script>') == 7
    )  # title twice, fact, prompt, token, guess, reason
    assert "default-src 'none'" in html


def test_nothing_is_fetched() -> None:
    reader = read(page("t", "p", ["f"], evil_rounds()))
    for _, attributes in reader.seen:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in page("t", "p", [], evil_rounds())
    assert "@import" not in page("t", "p", [], evil_rounds())


def test_the_page_holds_every_token_and_every_guess() -> None:
    _, trace = traced(drafter(certain, "c"), 1.0)
    reader = read(page("t", "p", [], trace.rounds))
    css = [attributes.get("class") or "" for _, attributes in reader.seen]
    tokens = [each for each in css if re.fullmatch(r"t c-\w+( special)?", each)]
    legend = 5 + len({token.origin for each in trace.rounds for token in each.tokens})
    assert len(tokens) - legend == sum(len(each.tokens) for each in trace.rounds)
    ids = [attributes["id"] for tag, attributes in reader.seen if tag == "tr" and "id" in attributes]
    assert ids == [f"r{i}" for i in range(len(trace.rounds))]
    chips = [each for each in css if each.startswith("g ")]
    followed = sum(len(each.tokens) - each.accepted for each in trace.rounds)
    assert len(chips) - followed == sum(len(each.guesses) for each in trace.rounds)
    assert sum(each.endswith(" accepted") for each in css) == sum(each.accepted for each in trace.rounds)
    bars = [attributes for tag, attributes in reader.seen if tag == "rect" and attributes["class"] != "vain"]
    assert len(bars) == sum(len(each.tokens) for each in trace.rounds)
    assert 'class="untold"' in page("t", "p", [], trace.rounds)


def test_no_rounds_at_all() -> None:
    read(page("t", "p", [], []))


@pytest.mark.parametrize(
    ("p", "q", "words"),
    [(0.934, None, ".93="), (1.0, None, "1="), (0.001, 0.5, "0/.50"), (0.5, 1.0, ".50/1"), (0.1, 0.05, ".10/.05")],
)
def test_odds(p: float, q: float | None, words: str) -> None:
    assert odds(Guess(1, "x", -1, ACCEPTED, p, q)) == words


def test_held_back_text_is_given_to_the_last_token() -> None:
    class Words:
        def stream(self) -> Any:
            return self

        def push(self, token: int) -> str:
            return "" if token % 2 else "x"

        def finish(self) -> str:
            return "rest"

        def token_text(self, token: int) -> str:
            return str(token)

    trace = Trace(FixedPlanner(2), logprobs, Words())  # type: ignore[arg-type]
    sequence = TokenSequence(list(PROMPTS[0]), 20)
    list(run([sequence], host().target, drafter(certain, "c"), FixedPlanner(2), [trace]))
    before = shown(trace.rounds)
    trace.finish()
    assert shown(trace.rounds) == f"{before}rest"


def shown(rounds: Sequence[Traced]) -> str:
    return "".join(token.shown for each in rounds for token in each.tokens)

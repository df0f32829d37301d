"""Text as it grows: pieces joined are the whole, and nothing of a stop string is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.engine.text import AnswerText


class Letters:
    """A stream whose token n is the text ``table[n]``; None holds the character back until the next token."""

    def __init__(self, table: list[str | None]) -> None:
        self.table = table
        self.held = ""

    def push(self, token: int) -> str:
        text = self.table[token]
        if text is None:
            self.held += "?"
            return ""
        held, self.held = self.held, ""
        return held + text

    def finish(self) -> str:
        held, self.held = self.held, ""
        return held


def play(table: list[str | None], stop: tuple[str, ...], chunks: list[int]) -> tuple[str, str, list[int], bool]:
    """Push token after token, releasing after each chunk as rounds do; stop where a sequence would."""
    answer = AnswerText(Letters(table), stop)
    tokens: list[int] = []
    shown = ""
    shown_tokens: list[int] = []
    stopped = False
    feed = iter(range(len(table)))
    for chunk in [*chunks, len(table)]:
        for _ in range(chunk):
            token = next(feed, None)
            if token is None or stopped:
                break
            tokens.append(token)
            stopped = answer.push(token)
        if stopped or len(tokens) == len(table):
            answer.finish()
        for piece in answer.release(tokens, ["plain"] * len(tokens)):
            shown += piece.text
            shown_tokens.append(piece.token)
        if not stopped:
            assert not any(shown.endswith(s) for s in stop)
    return answer.text, shown, shown_tokens, stopped


@given(
    st.lists(st.one_of(st.none(), st.text("ab", max_size=3)), min_size=1, max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=2),
    st.lists(st.integers(1, 4), max_size=8),
)
def test_pieces_joined_are_the_text_cut_at_the_first_stop_string(
    table: list[str | None], stop: list[str], chunks: list[int]
) -> None:
    text, shown, tokens, stopped = play(table, tuple(stop), chunks)
    assert shown == text
    assert not any(s in text for s in stop)
    assert tokens == list(range(len(tokens)))
    if not stopped:
        assert len(tokens) == len(table)
        whole = "".join("?" if t is None else t for t in table)
        assert text == whole or any(s in whole for s in stop)


def test_a_stop_string_across_two_rounds_is_never_shown() -> None:
    answer = AnswerText(Letters(["one ", "<st", "op>", "never"]), ("<stop>",))
    assert not answer.push(0)
    assert not answer.push(1)
    assert [p.text for p in answer.release([0, 1], ["a", "b"])] == ["one "]
    assert answer.push(2)
    answer.finish()
    pieces = answer.release([0, 1, 2], ["a", "b", "c"])
    assert [(p.text, p.token, p.origin) for p in pieces] == [("", 1, "b"), ("", 2, "c")]
    assert answer.text == "one "


def test_what_only_looked_like_a_stop_string_is_shown_later() -> None:
    answer = AnswerText(Letters(["<st", "ay>"]), ("<stop>",))
    answer.push(0)
    assert answer.release([0], ["x"]) == []
    answer.push(1)
    assert "".join(p.text for p in answer.release([0, 1], ["x", "x"])) == "<stay>"


def test_the_earliest_of_several_stop_strings_cuts() -> None:
    answer = AnswerText(Letters(["abcdef"]), ("ef", "bc", "cd"))
    assert answer.push(0)
    assert answer.text == "a"


def test_a_character_in_parts_belongs_to_the_token_that_completes_it() -> None:
    answer = AnswerText(Letters([None, "!"]))
    answer.push(0)
    assert [p.text for p in answer.release([0], ["x"])] == [""]
    answer.push(1)
    assert [p.text for p in answer.release([0, 1], ["x", "x"])] == ["?!"]


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_a_character_left_in_parts_is_shown_at_the_end(stop: tuple[str, ...]) -> None:
    answer = AnswerText(Letters(["a", None]), stop)
    answer.push(0)
    answer.push(1)
    answer.finish()
    assert answer.text == "a?"
    assert [p.text for p in answer.release([0, 1], ["x", "x"])] == ["a", "?"]


def test_a_stop_string_before_min_tokens_is_text() -> None:
    answer = AnswerText(Letters(["a", "END", "b", "E", "ND", "c"]), ("END",), min_tokens=3)
    assert [answer.push(i) for i in range(5)] == [False, False, False, False, True]
    assert answer.text == "aENDb"


def test_a_stop_string_that_is_complete_with_the_last_of_min_tokens_ends_the_answer() -> None:
    answer = AnswerText(Letters(["a", "E", "ND"]), ("END",), min_tokens=3)
    assert [answer.push(i) for i in range(3)] == [False, False, True]
    assert answer.text == "a"


def test_a_stop_string_may_begin_before_min_tokens_and_overlap_one_that_did_not_count() -> None:
    answer = AnswerText(Letters(["aa", "a"]), ("aa",), min_tokens=2)
    assert not answer.push(0)
    shown = "".join(piece.text for piece in answer.release([0], ["x"]))
    assert answer.push(1)
    assert answer.text == "a"
    assert "a".startswith(shown)


def test_min_tokens_that_are_never_reached_leave_the_text_whole() -> None:
    answer = AnswerText(Letters(["END", None]), ("END", "?"), min_tokens=5)
    assert not answer.push(0)
    assert not answer.push(1)
    answer.finish()
    assert answer.text == "END?"
    assert "".join(piece.text for piece in answer.release([0, 1], ["x", "x"])) == "END?"

"""A conversation feeds only what is new, to the target and to a draft model."""

from __future__ import annotations

from pathlib import Path

import pytest

import foredraft
from foredraft.errors import OptionError, PromptError
from tests.tiny import make_chat_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("chat") / "tiny")


def test_every_turn_feeds_only_what_is_new(tiny: Path) -> None:
    lm = foredraft.load(tiny, dtype="f64", drafter=f"lookup+model:{tiny}", draft_tokens=3)
    fresh = foredraft.load(tiny, dtype="f64", drafter="none")
    talk = foredraft.Conversation(lm, system="Be brief.")
    said = 0
    for turn, text in enumerate(("hello", "and now?", "well")):
        stream = talk.send(text, max_tokens=12)
        assert "".join(piece.text for piece in stream) == stream.result.text  # type: ignore[union-attr]
        result = stream.result
        assert result is not None
        # all of the last turn but its last token, which no pass has read yet
        assert result.cached_tokens == (said - 1 if turn else 0)
        said = result.prompt_tokens + result.completion_tokens
        again = fresh.generate(talk._ids, max_tokens=12)
        assert again.token_ids == result.token_ids
    drafts = lm.runtime.drafters._hosts[str(tiny)].target
    assert drafts.slots.free == len(drafts.slots) == 1


def test_a_turn_without_an_answer_leaves_no_trace(tiny: Path) -> None:
    talk = foredraft.Conversation(foredraft.load(tiny, dtype="f64"))
    talk.send("never read")
    talk.send("read", max_tokens=4).close()
    stream = talk.send("again", max_tokens=4)
    list(stream)
    assert [m["content"] for m in talk.messages] == ["again"]


def test_a_turn_left_early_keeps_what_was_said(tiny: Path) -> None:
    talk = foredraft.Conversation(foredraft.load(tiny, dtype="f64"))
    stream = talk.send("abc", max_tokens=20)
    part = next(stream).text + next(stream).text
    talk.send("more", max_tokens=4)
    assert talk.messages[1]["role"] == "assistant"
    assert talk.messages[1]["content"].startswith(part)
    assert stream.result is not None
    assert stream.result.finish_reason == "cancelled"


def test_what_a_conversation_refuses_changes_nothing(tiny: Path) -> None:
    talk = foredraft.Conversation(foredraft.load(tiny, dtype="f64"))
    list(talk.send("abc", max_tokens=4))
    with pytest.raises(OptionError, match="chat template"):
        talk.send("abc", raw=True)
    with pytest.raises(PromptError):
        talk.send("x" * 5000)
    list(talk.send("def", max_tokens=4))
    assert [m["role"] for m in talk.messages] == ["user", "assistant", "user"]

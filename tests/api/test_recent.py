"""Recent text through the whole stack: copied from in its scope alone, bounded, kept on request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import foredraft
from foredraft import Draft, LanguageModel
from foredraft.drafters.suffix import Suffix
from foredraft.errors import OptionError, StorageError
from foredraft.result import Result
from tests.tiny import make_chat_model

PROMPT = "abc abd"
SECRET = range(224, 240)  # bytes that the model itself does not write here: test_the_secret_is_one


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("recent") / "tiny")


@pytest.fixture
def load(tiny: Path, tmp_path: Path) -> Any:
    def fresh(**options: Any) -> LanguageModel:
        return foredraft.load(tiny, dtype="f64", cache=tmp_path / "cache", draft_tokens=12, **options)

    return fresh


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> list[Draft]:
    """Every draft that was proposed to a target."""
    seen: list[Draft] = []
    whole = Suffix.propose

    def propose(drafter: Suffix, *rest: Any) -> list[Draft]:
        drafts = whole(drafter, *rest)
        seen.extend(drafts)
        return drafts

    monkeypatch.setattr(Suffix, "propose", propose)
    return seen


def leading_to(secret: Sequence[int]) -> list[int]:
    """Return a text in which the secret follows each byte that a model may write."""
    return [token for byte in range(256) if byte not in secret for token in (byte, *secret)]


def tokens(drafts: Sequence[Draft]) -> set[int]:
    return {token for draft in drafts for token in draft.tokens}


def ask(lm: LanguageModel, scope: str | None = None, **options: Any) -> Result:
    result = lm.generate(PROMPT, max_tokens=40, cache_scope=scope, **options)
    assert isinstance(result, Result)
    return result


def test_the_secret_is_one(load: Any, proposed: list[Draft]) -> None:
    assert not {*SECRET} & {*ask(load()).token_ids, *tokens(proposed)}


def test_similar_requests_grow_faster_in_their_scope_and_nowhere_else(load: Any) -> None:
    lm = load()
    first = ask(lm, "mine")
    again, yours, unnamed = ask(lm, "mine"), ask(lm, "yours"), ask(lm)
    assert first.token_ids == again.token_ids == yours.token_ids == unnamed.token_ids
    assert again.speculative.rounds <= 5 < first.speculative.rounds
    # to the guess: the others draft as if nothing had been said before
    fresh = load()
    for result in (yours, unnamed):
        alone = ask(fresh)
        assert result.speculative.rounds > 5
        assert result.speculative.drafted <= alone.speculative.drafted + 40


def test_another_scopes_text_is_never_proposed(load: Any, proposed: list[Draft]) -> None:
    lm = load()
    lm.remember(leading_to(SECRET), "mine")
    ask(lm, "mine")
    assert tokens(proposed) >= {224, 225, 226}  # what leaks would be seen
    for scope in ("yours", "Mine", None):
        proposed.clear()
        ask(lm, scope)
        assert proposed
        assert not tokens(proposed) & set(SECRET)
    lm.forget("mine")
    proposed.clear()
    ask(lm, "mine")
    assert not tokens(proposed) & set(SECRET)


def test_sharing_is_asked_for(load: Any, proposed: list[Draft]) -> None:
    lm = load(share_cache=True)
    lm.remember(leading_to(SECRET), "mine")
    ask(lm)
    assert not tokens(proposed) & set(SECRET)  # a request without a scope still reads none
    ask(lm, "yours")
    assert tokens(proposed) & set(SECRET)


def test_a_draft_never_crosses_from_one_document_to_another(load: Any, proposed: list[Draft]) -> None:
    lm = load()
    for _ in range(2):  # the ends of each document stand before the beginning of the next
        lm.remember(leading_to([224, 225, 226]), "mine")
        lm.remember([227, 228, 229], "mine")
        lm.save_cache("mine")
        lm.load_cache("mine")
    ask(lm, "mine")
    pairs = {
        (draft.tokens[parent], token)
        for draft in proposed
        for token, parent in zip(draft.tokens, draft.parents, strict=True)
        if parent >= 0
    }
    assert {(224, 225), (225, 226)} <= pairs
    assert not {227, 228, 229} & tokens(proposed)


def test_recent_text_is_kept_on_request_and_goes_on_in_another_process(load: Any) -> None:
    lm = load()
    first = ask(lm, "mine")
    other = load()
    other.load_cache("mine")  # nothing was saved
    assert ask(other, "other").speculative.rounds > 5
    assert lm.save_cache("mine") == 0
    later = load()
    later.load_cache("mine")
    again = ask(later, "mine")
    assert (again.token_ids, again.speculative.rounds <= 5) == (first.token_ids, True)
    later.save_cache("mine")
    later.load_cache("mine")
    before = later.runtime.recent_text.memory.tokens
    later.load_cache("mine")  # what is held already is not held twice
    assert later.runtime.recent_text.memory.tokens == before
    later.forget("mine")
    gone = load()
    gone.load_cache("mine")
    assert ask(gone, "mine").speculative.rounds > 5


def test_what_a_process_holds_is_kept_where_a_file_is_added(load: Any) -> None:
    one, two = load(), load()
    one.remember([1, 2, 3], "mine")
    one.save_cache("mine")
    two.remember([4, 5, 6], "mine")
    two.load_cache("mine")
    two.save_cache("mine")
    one.load_cache("mine")
    assert sorted(document.tolist() for document in one.runtime.recent_text._documents("mine")) == [
        [1, 2, 3],
        [4, 5, 6],
    ]


def test_where_scopes_are_shared_the_files_of_all_are_read(load: Any, proposed: list[Draft]) -> None:
    lm = load()
    lm.remember(leading_to(SECRET), "mine")
    lm.save_cache("mine")
    for share in (True, False):
        proposed.clear()
        other = load(share_cache=share)
        yours = f"yours {share}"
        other.load_cache(yours)
        assert set(other.runtime.recent_text.memory.scopes) == ({"mine"} if share else set())
        ask(other, yours)
        assert bool(tokens(proposed) & set(SECRET)) == share
        other.save_cache(yours)
        saved, _ = other.runtime.recent_text._store().load(
            yours
        )  # what was read of another's is not saved as one's own
        assert len(saved) == 1
        assert not set(saved[0].tolist()) & set(SECRET)
    assert sorted(load().runtime.recent_text._store().scopes()) == ["mine", "yours False", "yours True"]


def test_a_cache_full_to_its_bound_in_the_middle_of_a_request(load: Any) -> None:
    lm = load(cache_tokens=200)
    memory = lm.runtime.recent_text.memory
    lm.remember(range(100, 140), "mine")
    stream = lm.stream(PROMPT, max_tokens=40, cache_scope="mine")
    text = next(stream).text
    for i in range(12):
        lm.remember([i] * 45, "yours")
        assert memory.tokens <= 200
        text += "".join(piece.text for piece in [next(stream, None)] if piece is not None)
    text += "".join(piece.text for piece in stream)
    assert memory.tokens <= 200
    assert text == ask(lm, drafter="none").text


def test_a_conversation_and_several_answers_are_remembered_without_repeats(load: Any) -> None:
    lm = load()
    talk = foredraft.Conversation(lm)
    for text in ("hello", "and"):
        for _ in talk.send(text, max_tokens=8, cache_scope="talk"):
            pass
        held = lm.runtime.recent_text._documents("talk")
    talk._settle()
    assert len(held) == 1
    results = lm.generate([5] * 300, max_tokens=4, n=8, temperature=1.0, seed=1, cache_scope="many")
    assert isinstance(results, Result)
    assert lm.runtime.recent_text.memory.scopes["many"] <= 300 + 8 * (64 + 4 + 1)


def test_a_prompt_of_one_repeated_token(load: Any) -> None:
    lm = load()
    for scope in (None, "mine", "mine"):
        result = lm.generate([97] * 400, max_tokens=30, cache_scope=scope, prediction=[97] * 100)
        assert result.token_ids == lm.generate([97] * 400, max_tokens=30, drafter="none").token_ids


def test_a_stream_that_is_left_is_remembered_as_far_as_it_came(load: Any) -> None:
    lm = load()
    with lm.stream(PROMPT, max_tokens=40, cache_scope="mine") as stream:
        next(stream)
    assert stream.result is not None
    assert lm.runtime.recent_text._documents("mine")[0].tolist()[-1] == stream.result.token_ids[-1]


def test_drafters_that_cannot_copy_from_recent_text(load: Any) -> None:
    lm = load(drafter="lookup")
    with pytest.raises(OptionError, match="cache_scope cannot be used by drafter lookup: use suffix"):
        ask(lm, "mine")
    with pytest.raises(OptionError, match="it was made without a memory"):
        ask(lm, "mine", drafter=Suffix())
    none = ask(lm, "mine", drafter="none")
    assert none.notices == ["cache_scope had no use: nothing was drafted"]
    assert lm.runtime.recent_text.memory.tokens == 0
    assert ask(lm, "mine", drafter="lookup+suffix").notices == []
    assert set(lm.runtime.recent_text.memory.scopes) == {"mine"}


def test_refusals(load: Any, tiny: Path) -> None:
    with pytest.raises(OptionError, match="cache_tokens must be a whole number between 4 and 2147483647, not 3"):
        load(cache_tokens=3)
    wrong: list[tuple[Any, Any]] = [
        ("x", False),
        (None, False),
        (1.5, False),
        (True, False),
        (9, "no"),
        (9, 1),
        (9, None),
    ]
    for tokens_, share in wrong:
        with pytest.raises(OptionError, match=r"^(cache_tokens|share_cache) must be "):
            foredraft.load("no model is looked for", cache_tokens=tokens_, share_cache=share)
    lm = load()
    for call in (
        lm.load_cache,
        lm.save_cache,
        lm.forget,
        lambda name: lm.remember("x", name),
        lambda name: ask(lm, name),
    ):
        with pytest.raises(OptionError, match="path separator"):
            call("../secrets")
    for text in (None, 5, b"abc", bytearray(b"a"), {1, 2}, "\ud800"):
        with pytest.raises(OptionError, match="remember"):
            lm.remember(text, "mine")
    with pytest.raises(OptionError, match="token 260 is not in the vocabulary of 260"):
        lm.remember([260], "mine")
    with pytest.raises(OptionError, match="token True is not"):
        lm.remember([True], "mine")


def test_a_file_that_cannot_be_used_is_a_storage_error_and_nothing_else_is_lost(load: Any) -> None:
    lm = load()
    ask(lm, "mine")
    lm.save_cache("mine")
    path = lm.runtime.recent_text._store().path("mine")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StorageError, match=r"is truncated: it is set aside as .*mine\.bad"):
        lm.load_cache("mine")
    assert ask(lm, "mine").speculative.rounds <= 5
    lm.save_cache("mine")
    assert path.exists()


def test_a_text_is_read_as_it_would_be_written(load: Any) -> None:
    lm = load()
    lm.remember("ab", "mine")
    assert lm.runtime.recent_text._documents("mine")[0].tolist() == lm.loaded.tokenizer.encode("ab", special=False)


# --- what was cleared stays so ---


def held(lm: LanguageModel, scope: str = "mine") -> list[list[int]]:
    return [document.tolist() for document in lm.runtime.recent_text._documents(scope)]


def on_disk(lm: LanguageModel, scope: str = "mine") -> list[list[int]]:
    return [document.tolist() for document in lm.runtime.recent_text._store().load(scope)[0]]


@pytest.mark.parametrize("how", ["loaded", "saved"])
@pytest.mark.parametrize("again", [False, True])
def test_what_was_cleared_is_not_written_back(load: Any, how: str, again: bool) -> None:
    first, lm = load(), load()
    (first if how == "loaded" else lm).remember([1, 2, 3], "mine")
    (first if how == "loaded" else lm).save_cache("mine")
    if how == "loaded":
        lm.load_cache("mine")
    lm.remember([4, 5], "mine")
    load().forget("mine")
    if again:  # a new file under the old name is not the one that was loaded
        first.remember([7], "mine")
        first.save_cache("mine")
    lm.save_cache("mine")
    assert on_disk(lm) == [[7]] * again + [[4, 5]]
    assert [1, 2, 3] not in held(lm)
    lm.remember([6], "mine")
    lm.save_cache("mine")
    assert [1, 2, 3] not in on_disk(lm)
    assert on_disk(lm)[-2:] == [[4, 5], [6]]


def test_what_is_said_again_after_a_clear_is_remembered(load: Any) -> None:
    lm = load()
    lm.remember([1, 2, 3], "mine")
    lm.save_cache("mine")
    load().forget("mine")
    lm.remember([1, 2, 3], "mine")
    lm.save_cache("mine")
    assert on_disk(lm) == [[1, 2, 3]]
    lm.remember([1, 2, 3, 4], "mine")
    load().forget("mine")
    lm.save_cache("mine")
    assert on_disk(lm) == [[1, 2, 3, 4]]  # a conversation that went on is said as a whole


def test_nothing_is_written_twice(load: Any) -> None:
    lm = load()
    for i in range(5):
        lm.remember([i] * 3, "mine")
        lm.save_cache("mine")
    assert on_disk(lm) == held(lm) == [[i] * 3 for i in range(5)]


def test_what_is_said_while_a_scope_is_saved_is_saved_the_next_time(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.retrieval.store import Store

    lm, whole = load(), Store.save

    def save(*words: Any) -> Any:
        lm.remember([9, 9], "mine")
        return whole(*words)

    lm.remember([1], "mine")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", save)
        lm.save_cache("mine")
    assert on_disk(lm) == [[1]]
    lm.save_cache("mine")
    assert on_disk(lm) == [[1], [9, 9]]


def test_a_smaller_bound_takes_nothing_from_a_file(load: Any) -> None:
    lm, small = load(cache_tokens=400), load(cache_tokens=40)
    for i in range(8):
        lm.remember([i] * 30, "mine")
    lm.save_cache("mine")
    small.load_cache("mine")
    small.remember([99] * 30, "mine")
    assert small.save_cache("mine") == 0
    assert on_disk(small) == [[i] * 30 for i in range(8)] + [[99] * 10]


def test_what_a_save_drops_is_told_and_all_that_is_saved_is_read_back(load: Any) -> None:
    lm, other = load(cache_tokens=100), load(cache_tokens=100)
    lm.remember(range(60), "mine")  # cut to its end, in memory as on disk
    lm.remember([200] * 25, "mine")
    assert held(lm) == [list(range(35, 60)), [200] * 25]
    assert lm.save_cache("mine") == 0
    other.remember([201] * 25, "mine")
    other.remember([202] * 25, "mine")
    assert other.save_cache("mine") == 3  # the ends between four documents
    lm.load_cache("mine")
    assert held(lm) == on_disk(lm) == [list(range(38, 60)), [200] * 25, [201] * 25, [202] * 25]


def test_a_bad_entry_of_another_disables_no_scope(load: Any) -> None:
    lm = load()
    for scope in ("mine", "yours"):
        lm.remember([1, 2], scope)
        lm.save_cache(scope)
    folder = lm.runtime.recent_text._store().folder
    lm.runtime.recent_text._store().path("bad").mkdir()
    (folder / "x.recent").symlink_to(folder / "absent")
    alone, sharing = load(), load(share_cache=True)
    alone.load_cache("mine")
    assert set(alone.runtime.recent_text.memory.scopes) == {"mine"}
    path = lm.runtime.recent_text._store().path("yours")
    path.write_bytes(path.read_bytes()[:-1])
    lm.remember([3], "third")
    lm.save_cache("third")
    with pytest.raises(StorageError, match=r"^[^;]*yours\.recent is truncated: it is set aside as .*yours\.bad$"):
        sharing.load_cache("mine")
    assert set(sharing.runtime.recent_text.memory.scopes) == {"mine", "third"}
    with pytest.raises(StorageError, match=r"bad\.recent cannot be read"):
        sharing.load_cache("bad")  # one's own is bad, and the others are loaded still
    assert set(sharing.runtime.recent_text.memory.scopes) == {"mine", "third"}


def test_of_all_scopes_ones_own_is_the_last_to_make_room(load: Any) -> None:
    lm = load()
    for scope in ("a", "mine", "z"):
        lm.remember([ord(scope[0])] * 20, scope)
        lm.save_cache(scope)
    small = load(cache_tokens=80, share_cache=True)
    small.load_cache("mine")
    small.remember([5] * 20, "mine")
    small.remember([6] * 20, "mine")
    assert set(small.runtime.recent_text.memory.scopes) == {"mine", "z"}

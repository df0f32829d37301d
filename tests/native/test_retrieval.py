"""The retrieval index: against every occurrence spelled out, and the native one against Python's to the bit."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.errors import DrafterError
from foredraft.retrieval import native, portable
from foredraft.retrieval.calibration import prior
from foredraft.retrieval.index import BUCKETS, END, MAX_GUESSES, MEMORY, PREDICTION, TEXT, Guesses

ENGINES = {
    "native": (native.NativeIndex, native.NativeSearch),
    "python": (portable.PortableIndex, portable.PortableSearch),
}
TABLE = array("d", prior())
texts = st.lists(st.integers(0, 3), max_size=60)
documents = st.lists(st.sampled_from([END, 0, 1, 2, 3]), max_size=80)


def search(engine: str, text: Sequence[int], others: Sequence[tuple[Sequence[int], int]] = (), **asked: Any) -> Guesses:
    make, propose = ENGINES[engine]
    indexes = []
    for tokens, kind in others:
        indexes.append((make(), kind))
        indexes[-1][0].extend(tokens)
    return propose(make(), TABLE).propose(text, indexes, **asked)  # type: ignore[arg-type]


def tokens(found: Guesses) -> list[int]:
    return [row[0] for row in found.rows]


def occurrences(text: Sequence[int]) -> dict[int, int]:
    """Each place where the text could be copied from, and how long the match before it is: the definition."""
    found = {}
    for place in range(1, len(text)):
        matched = 0
        while matched < min(64, place) and text[place - 1 - matched] == text[len(text) - 1 - matched]:
            matched += 1
        if matched:
            found[place] = matched
    return found


@pytest.mark.parametrize("engine", ENGINES)
@given(text=st.lists(st.integers(0, 2), max_size=22))
def test_a_first_guess_has_the_longest_match_of_all_that_agree_with_it(engine: str, text: list[int]) -> None:
    found = search(engine, text, limit=1)
    matches = occurrences(text)  # fewer places than links are followed
    assert bool(found.rows) == bool(matches)
    if matches:
        token, parent, bucket, source, place = found.rows[0]
        agree = {p: m for p, m in matches.items() if text[p] == token}
        assert (parent, source) == (-1, 0)
        assert agree[place] == max(agree.values())
        kind, length, _, supporters, share = np.unravel_index(bucket, (3, 8, 3, 3, 3))
        assert kind == TEXT
        assert length == next(i for i, top in enumerate((0, 1, 2, 3, 5, 8, 16, 99)) if agree[place] <= top)
        assert supporters == min(3, len(agree)) - 1
        assert (share == 2) == (len(agree) == len(matches))
        assert found.paths == [TABLE[bucket]]


@settings(max_examples=300, deadline=None)
@given(
    chunks=st.lists(texts, min_size=1, max_size=4),
    others=st.lists(st.tuples(documents, st.sampled_from([PREDICTION, MEMORY])), max_size=3),
    hints=st.lists(st.tuples(st.integers(-1, 4), st.integers(-2, 90)), max_size=6),
    limit=st.integers(0, 20),
    branches=st.integers(0, 3),
    floor=st.sampled_from([0.0, 0.05, 0.3]),
)
def test_both_engines_answer_the_same_to_the_bit(
    chunks: list[list[int]],
    others: list[tuple[list[int], int]],
    hints: list[tuple[int, int]],
    limit: int,
    branches: int,
    floor: float,
) -> None:
    answers = []
    for make, propose in ENGINES.values():
        indexes = []
        for document, kind in others:
            index: Any = make()
            for start in range(0, len(document), 7):  # an index that grows in steps is the same index
                index.extend(document[start : start + 7])
            indexes.append((index, kind))
        one: Any = propose(make(), TABLE)  # type: ignore[arg-type]
        answers.append(
            [one.propose(c, indexes, hints=hints, limit=limit, branches=branches, floor=floor) for c in chunks]
        )
        assert [index.tokens().tolist() for index, _ in indexes] == [document for document, _ in others]
    assert answers[0] == answers[1]


@given(text=texts, branches=st.integers(0, 3), limit=st.integers(1, 12))
def test_a_draft_is_a_tree_of_different_siblings_whose_paths_only_fall(
    text: list[int], branches: int, limit: int
) -> None:
    found = search("native", text, limit=limit, branches=branches)
    siblings: dict[int, list[int]] = {}
    for i, (row, path) in enumerate(zip(found.rows, found.paths, strict=True)):
        assert -1 <= row[1] < i
        assert path == TABLE[row[2]] * (found.paths[row[1]] if row[1] >= 0 else 1.0)
        siblings.setdefault(row[1], []).append(row[0])
    for family in siblings.values():
        assert len(set(family)) == len(family) <= branches + 1
    if branches == 0:
        assert [row[1] for row in found.rows] == list(range(-1, len(found.rows) - 1))


@pytest.mark.parametrize("engine", ENGINES)
def test_alternatives_where_candidates_disagree(engine: str) -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 4, 9, 1, 2]
    assert [row[:2] for row in search(engine, text, limit=2).rows] == [[4, -1], [9, 0]]
    memory = [1, 2, 3, 5, END, 1, 2, 4, 6, END, 1, 2, 4, 6]
    tree = search(engine, [1, 2], [(memory, MEMORY)], limit=9, branches=1)
    assert sorted(row[:2] for row in tree.rows) == [
        [3, -1],
        [4, -1],
        [5, tokens(tree).index(3)],
        [6, tokens(tree).index(4)],
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_more_and_longer_and_later_matches_weigh_more(engine: str) -> None:
    assert tokens(search(engine, [1, 2, 3, 7, 2, 8, 1, 2], limit=1)) == [3]  # longer, though older
    assert tokens(search(engine, [3, 5, 0, 3, 6, 0, 3], limit=1)) == [6]  # later
    assert tokens(search(engine, [3, 5, 0, 3, 5, 1, 3, 6, 9, 3], limit=1)) == [5]  # more often, though older


@pytest.mark.parametrize("engine", ENGINES)
def test_a_match_beyond_one_edited_token_decides(engine: str) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 30, 6, 31, 1, 2, 3, 4, 9, 6]
    assert tokens(search(engine, text, limit=1)) == [7]  # 5 became 9: the older place of two after a 6
    assert tokens(search(engine, [1, 2, 3, 4, 6, 7, 30, 6, 31, 1, 2, 3, 4, 5, 6], limit=1)) == [7]  # a 5 came in
    assert tokens(search(engine, [1, 2, 3, 4, 5, 6, 7, 30, 6, 31, 1, 2, 3, 4, 6], limit=1)) == [7]  # the 5 is left out


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loop_goes_on_in_the_guesses(engine: str) -> None:
    assert tokens(search(engine, [1, 2, 3, 1, 2, 3, 1], limit=7)) == [2, 3, 1, 2, 3, 1, 2]
    assert tokens(search(engine, [4, 4], limit=3)) == [4, 4, 4]


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_matches(engine: str) -> None:
    assert search(engine, []).rows == []
    assert search(engine, [1]).rows == []
    assert search(engine, [1, 2, 3]).rows == []
    assert search(engine, [1, 2, 3], [([7, 8], PREDICTION), ([9, END], MEMORY), ([], MEMORY)]).rows == []


@pytest.mark.parametrize("engine", ENGINES)
@given(first=st.lists(st.integers(0, 1), max_size=12), second=st.lists(st.integers(2, 3), max_size=12), text=texts)
def test_a_draft_never_crosses_from_one_document_to_another(
    engine: str, first: list[int], second: list[int], text: list[int]
) -> None:
    found = search(engine, text, [([*first, END, *second], MEMORY)], limit=30, branches=2)
    for row in found.rows:
        assert row[0] >= 0
        if row[1] >= 0 and row[3] == 1 == found.rows[row[1]][3] and row[4] == found.rows[row[1]][4] + 1:
            assert (row[4] <= len(first)) == (found.rows[row[1]][4] <= len(first))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_match_ends_where_its_document_begins(engine: str) -> None:
    whole, cut = (
        search(engine, [7, 8, 1, 2], [(memory, MEMORY)], limit=1).rows[0]
        for memory in ([7, 8, 1, 2, 5], [7, 8, END, 1, 2, 5])
    )
    lengths = [int(np.unravel_index(row[2], (3, 8, 3, 3, 3))[1]) for row in (whole, cut)]
    assert (whole[0], cut[0], lengths) == (5, 5, [4, 2])


@pytest.mark.parametrize("engine", ENGINES)
def test_when_a_document_ends_the_guesses_are_looked_up_again(engine: str) -> None:
    memory = [5, 6, 7, END, 6, 7, 8, 9]
    assert tokens(search(engine, [1, 5], [(memory, MEMORY)], limit=5)) == [6, 7, 8, 9]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("count", [100, 1000, 10_000])
def test_one_repeated_token_costs_no_more_than_any_other_text(engine: str, count: int) -> None:
    found = search(engine, [5] * count, [([5] * count, MEMORY)], limit=15)
    assert tokens(found) == [5] * 15
    assert found.steps <= 3 * (25 + 6)  # links followed, whatever the length


@pytest.mark.parametrize("engine", ENGINES)
def test_a_match_counts_to_a_depth_and_no_deeper(engine: str) -> None:
    text = [*range(100, 300), 1, *range(100, 300)]
    deep = [*range(100, 300), 2, *range(250, 300)]
    answers = [search(engine, text, [(memory, MEMORY)], limit=1) for memory in (text, deep)]
    assert [tokens(answer) for answer in answers] == [[1], [1]]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_hint_is_copied_where_nothing_matches_and_yields_to_what_does(engine: str) -> None:
    assert tokens(search(engine, [4, 5, 6, 1], hints=[(0, 1)], limit=2)) == [5, 6]
    assert tokens(search(engine, [4, 5, 1, 6, 1], hints=[(0, 1)], limit=1)) == [6]
    assert search(engine, [4, 5, 6], hints=[(0, 3), (0, -1), (7, 0), (-1, 0), (0, 99)]).rows == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_predicted_place_comes_before_the_text(engine: str) -> None:
    found = search(engine, [4, 5, 9, 4], [([1, 2, 3], PREDICTION)], hints=[(1, 1)], limit=2)
    assert [(row[0], row[3]) for row in found.rows] == [(2, 1), (3, 1)]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_floor_and_the_limit_end_a_draft(engine: str) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    free = search(engine, text, limit=5)
    assert len(free.rows) == 5
    floored = search(engine, text, limit=5, floor=free.paths[2])
    assert floored.rows == free.rows[:3]
    assert len(search(engine, [1, 1], limit=10**6).rows) == MAX_GUESSES


def test_memory_of_an_index_is_what_was_promised() -> None:
    rng = np.random.default_rng(0)
    for count in (70_000, 100_000, 131_073):
        index = native.NativeIndex()
        index.extend(rng.integers(0, 50_000, count, dtype=np.int32))
        assert len(index) == count
        assert index.bytes <= 48 * count


def test_the_table_has_a_chance_for_every_bucket() -> None:
    assert len(TABLE) == BUCKETS
    assert all(0 < chance < 1 for chance in TABLE)


def test_memory_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        @staticmethod
        def fd_index_extend(*_: object) -> int:
            return -1

    index = native.NativeIndex()
    monkeypatch.setattr(index, "_lib", Full)
    with pytest.raises(DrafterError, match="not enough memory to index 3 tokens"):
        index.extend([1, 2, 3])
    monkeypatch.undo()

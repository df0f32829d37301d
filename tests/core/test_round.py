"""A round's parts: what is proposed, what is committed, when it ends, who wrote it, what is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foredraft.core.draft import ROOT, Draft, Kept, Outcome
from foredraft.core.law import Dense, Point, Sparse
from foredraft.core.noise import Noise
from foredraft.core.round import commit, drafts_of, propose, run_round
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedPlanner, FixedQuote
from foredraft.engine.watches.tally import Tally
from foredraft.errors import DrafterError, OptionError

from .toys import EagerPlanner, Table, ToyDrafter, ToyTarget, generate, nothing

TREE = Draft((5, 6, 7, 8), (-1, 0, 0, -1), None, "tree")


def committed(draft: Draft, path: tuple[int, ...], last: int, **text: Any) -> tuple[TokenSequence, Outcome]:
    sequence = TokenSequence([1, 2], **({"limit": 99} | text))
    return sequence, commit(sequence, draft, Kept(path, Point(last)), Noise(0))


# --- draft


def test_a_tree() -> None:
    assert len(TREE) == 4
    assert TREE.children(ROOT) == (0, 3)
    assert TREE.children(0) == (1, 2)
    assert TREE.children(3) == ()
    assert TREE.path(2) == (0, 2)
    assert TREE.path(ROOT) == ()
    assert TREE.depths() == (1, 2, 2, 1)
    assert TREE.first(2) == Draft((5, 6), (-1, 0), None, "tree")
    assert TREE.first(4) is TREE


def test_a_chain_is_a_tree() -> None:
    laws = [Point(4), Point(5), Point(6)]
    chain = Draft.chain(np.array([4, 5, 6]), laws, "me")  # type: ignore[arg-type]
    assert chain == Draft((4, 5, 6), (-1, 0, 1), tuple(laws), "me")
    assert all(type(token) is int for token in chain.tokens)
    assert chain.first(1) == Draft((4,), (-1,), (Point(4),), "me")
    assert Draft.chain([]) == Draft()


@pytest.mark.parametrize(
    ("tokens", "parents", "laws", "words"),
    [
        ((1, 2), (-1,), None, "a draft of 2 tokens has 1 parents and none laws"),
        ((1, 2), (-1, 0), (Point(1),), "a draft of 2 tokens has 2 parents and 1 laws"),
        ((1,), (0,), None, "node 0 of a draft names parent 0"),
        ((1, 2), (-1, 5), None, "node 1 of a draft names parent 5"),
        ((1,), (-2,), None, "node 0 of a draft names parent -2"),
    ],
)
def test_a_draft_that_is_no_tree(tokens: Any, parents: Any, laws: Any, words: str) -> None:
    with pytest.raises(DrafterError, match=f"mine: {words}"):
        Draft(tokens, parents, laws, "mine")


# --- propose

NO_LAW = r"not a distribution over the vocabulary of 5: numbers that sum to 1"


def test_drafts_are_asked_only_where_there_is_room() -> None:
    """And with the quote and the noise of their own sequence."""
    asked: list[Any] = []

    def guess(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        asked.append((sequence, quote, noise))
        return Draft.chain([3])

    sequences = [TokenSequence([i], 9) for i in range(3)]
    quotes = [FixedQuote(0), FixedQuote(2), FixedQuote(0)]
    noises = [Noise(i) for i in range(3)]
    drafts = propose(sequences, ToyDrafter(guess), quotes, noises, 5)
    assert [len(d) for d in drafts] == [0, 1, 0]
    assert asked == [(sequences[1], quotes[1], noises[1])]


def test_nobody_is_asked_where_there_is_no_room() -> None:
    def fatal(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        raise AssertionError

    assert propose([TokenSequence([1], 9)], ToyDrafter(fatal), [FixedQuote(0)], [Noise(0)], 5) == [Draft()]


def test_what_is_over_the_quote_is_cut() -> None:
    """Before it is looked at: a fault beyond the cut is nobody's business."""
    for last in (4, 99):
        drafter = ToyDrafter(lambda s, q, n, last=last: Draft.chain([1, 2, 3, last]))  # type: ignore[misc]
        assert propose([TokenSequence([1], 9)], drafter, [FixedQuote(2)], [Noise(0)], 5) == [
            Draft.chain([1, 2], source="toy")
        ]


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (Draft.chain([1, 5]), "guessed token 5, outside the vocabulary of 5"),
        (Draft.chain([-1]), "guessed token -1, outside"),
        (Draft.chain([1], [Dense(np.ones(4) / 4)]), NO_LAW),
        (Draft.chain([1], [Dense(np.ones((1, 5)) / 5)]), NO_LAW),
        (Draft.chain([1], [Sparse(np.ones(2) / 2, np.array([1, 5]))]), NO_LAW),
        (Draft.chain([1], [Sparse(np.ones(2) / 2, np.array([-1, 1]))]), NO_LAW),
        (Draft.chain([1], [Sparse(np.ones(0), np.ones(0, int))]), NO_LAW),
        (
            Draft.chain([1], [Sparse(np.ones(2) / 2, np.array([0, 4]))]),
            "guessed token 1, which its distribution rules out",
        ),
        (Draft.chain([1], [Point(5)]), NO_LAW),
        (Draft.chain([1], [np.ones(5) / 5]), "a distribution is a Point, a Dense or a Sparse, not a ndarray"),
        (Draft.chain([1], [Dense(np.full(5, np.nan))]), NO_LAW),
        (Draft.chain([1], [Dense(np.ones(5) / 4)]), NO_LAW),
        (Draft.chain([1], [Dense(np.ones(5))]), NO_LAW),
        (Draft.chain([1], [Dense(np.array([-0.5, 1.5, 0, 0, 0]))]), NO_LAW),
        (Draft.chain([1], [Sparse(np.ones(2) / 4, np.array([0, 1]))]), NO_LAW),
        (Draft.chain([1], [Sparse(np.ones(3) / 3, np.array([0, 1]))]), NO_LAW),
        (Draft.chain([1], [Sparse(np.ones(2) / 2, np.array([1, 0]))]), NO_LAW),
        (Draft.chain([1], [Point(2)]), "guessed token 1, which its distribution rules out"),
        ([1, 2], "propose gave a list where a Draft belongs"),
    ],
)
def test_a_drafter_that_breaks_the_protocol(draft: Any, words: str) -> None:
    with pytest.raises(DrafterError, match=f"toy: {words}"):
        propose([TokenSequence([1], 9)], ToyDrafter(lambda s, q, n: draft), [FixedQuote(9)], [Noise(0)], 5)


def test_a_drafter_that_answers_for_too_few() -> None:
    class Lazy(ToyDrafter):
        def propose(self, *args: Any) -> list[Draft]:
            return []

    with pytest.raises(DrafterError, match="lazy: propose gave 0 drafts for 1 sequences"):
        propose([TokenSequence([1], 9)], Lazy(nothing, "lazy"), [FixedQuote(1)], [Noise(0)], 5)


def test_a_drafter_that_answers_nothing() -> None:
    class Silent(ToyDrafter):
        def propose(self, *args: Any) -> Any:
            return None

    with pytest.raises(DrafterError, match="silent: propose gave a NoneType for 1 sequences"):
        propose([TokenSequence([1], 9)], Silent(nothing, "silent"), [FixedQuote(1)], [Noise(0)], 5)


def test_a_drafter_that_writes_where_it_may_only_read() -> None:
    def scribble(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        sequence.tokens.append(3)
        return Draft()

    with pytest.raises(DrafterError, match="toy: propose changed a sequence"):
        propose([TokenSequence([1], 9)], ToyDrafter(scribble), [FixedQuote(1)], [Noise(0)], 5)


def test_a_trusted_drafter_is_asked_for_nothing_but_a_draft_each() -> None:
    odd = [Draft.chain([99, 98]), Draft(source="none")]
    assert drafts_of(tuple(odd), "ours", [1, 1], None) == odd  # neither cut nor named, and no token looked at
    with pytest.raises(DrafterError, match=r"^ours: propose gave 2 drafts for 1 sequences$"):
        drafts_of(odd, "ours", [1], None)
    with pytest.raises(DrafterError, match=r"^propose gave a str for 1 sequences$"):
        drafts_of("ab", "ours", [1], None, lead="")
    with pytest.raises(DrafterError, match=r"^propose gave a NoneType where a Draft belongs$"):
        drafts_of([Draft(), None], "ours", [1, 1], None, lead="")
    with pytest.raises(DrafterError, match=r"^mine: propose gave a NoneType where a Draft belongs$"):
        drafts_of([Draft(), None], "mine", [1, 1], 5, lead="")


def test_laws_that_fit_are_let_through() -> None:
    sparse = Sparse(np.ones(2) / 2, np.array([0, 4]))
    draft = Draft.chain([1, 2, 4], [Dense(np.ones(5) / 5), Point(2), sparse], "mine")
    assert propose([TokenSequence([1], 9)], ToyDrafter(lambda s, q, n: draft), [FixedQuote(9)], [Noise(0)], 5) == [
        draft
    ]


def test_a_draft_is_plain_numbers_whatever_it_was_made_of() -> None:
    made = Draft([np.int64(7), 8], [-1, 0], [Point(7), Point(8)])  # type: ignore[list-item, arg-type]
    assert made == Draft((7, 8), (-1, 0), (Point(7), Point(8)))
    assert [type(token) for token in made.tokens] == [int, int]
    for tokens in (["seven"], [1.5]):
        with pytest.raises(DrafterError, match="whole numbers"):
            Draft(tokens, [-1])  # type: ignore[arg-type]


# --- commit and origins


@pytest.mark.parametrize(
    ("draft", "path", "origins"),
    [
        (Draft(), (), ["plain"]),
        (Draft.chain([5, 6], None, "me"), (), ["correction"]),
        (Draft.chain([5, 6], None, "me"), (0,), ["me", "correction"]),
        (Draft.chain([5, 6], None, "me"), (0, 1), ["me", "me", "bonus"]),
        (TREE, (), ["correction"]),
        (TREE, (0,), ["tree", "correction"]),
        (TREE, (0, 2), ["tree", "tree", "bonus"]),
        (TREE, (3,), ["tree", "bonus"]),
    ],
)
def test_who_wrote_what(draft: Draft, path: tuple[int, ...], origins: list[str]) -> None:
    sequence, outcome = committed(draft, path, 9)
    assert sequence.answer == [draft.tokens[n] for n in path] + [9] == list(outcome.tokens)
    assert list(outcome.origins) == origins
    assert outcome.kept == path
    assert outcome.accepted == len(path)
    assert outcome.finish_reason is None


def test_end_of_text_inside_a_draft() -> None:
    sequence, outcome = committed(Draft.chain([5, 6, 7], None, "me"), (0, 1, 2), 9, stop_ids=frozenset({6, 8}))
    assert sequence.answer == [5, 6]
    assert outcome == Outcome(outcome.draft, (5, 6), 2, (0,), ("me", "me"), "stop")


def test_end_of_text_as_the_last_token() -> None:
    _, outcome = committed(Draft.chain([5], None, "me"), (0,), 9, stop_ids=frozenset({9}))
    assert outcome == Outcome(outcome.draft, (5, 9), 1, (0,), ("me", "bonus"), "stop")


def test_budget_inside_a_draft() -> None:
    sequence, outcome = committed(Draft.chain([5, 6, 7], None, "me"), (0, 1, 2), 9, limit=4)
    assert sequence.answer == [5, 6]
    assert sequence.room == 0
    assert outcome == Outcome(outcome.draft, (5, 6), 2, (0,), ("me", "me"), "length")


def test_end_of_text_on_the_last_of_the_budget_is_a_stop() -> None:
    _, outcome = committed(Draft.chain([5, 6]), (0, 1), 9, limit=4, stop_ids=frozenset({6}))
    assert outcome.finish_reason == "stop"


def test_a_stop_string_inside_a_draft_is_told_every_token_once() -> None:
    told: list[int] = []

    def ends(token: int) -> bool:
        told.append(token)
        return told[-2:] == [5, 6]

    sequence, outcome = committed(Draft.chain([5, 6, 7]), (0, 1, 2), 9, ends=ends, stop_ids=frozenset({5_000}))
    assert told == sequence.answer == [5, 6]
    assert outcome.finish_reason == "stop"


def test_each_token_follows_a_node() -> None:
    for draft, path, options, nodes in (
        (Draft(), (), {}, (ROOT,)),
        (Draft.chain([5, 6]), (), {}, (ROOT,)),
        (Draft.chain([5, 6]), (0, 1), {}, (ROOT, 0, 1)),
        (TREE, (0, 2), {}, (ROOT, 0, 2)),
        (Draft.chain([5, 6, 7]), (0, 1, 2), {"stop_ids": frozenset({6})}, (ROOT, 0)),
        (Draft.chain([5, 6, 7]), (0, 1, 2), {"stop_ids": frozenset({5})}, (ROOT,)),
    ):
        _, outcome = committed(draft, path, 9, **options)  # type: ignore[arg-type]
        assert outcome.nodes == nodes
        assert len(outcome.nodes) == len(outcome.tokens)
    assert Outcome(TREE, (), 0, (), (), "error").nodes == ()


def test_planner_and_watches_see_the_same_round_after_the_drafter() -> None:
    heard: list[Any] = []

    class Listener(ToyDrafter):
        def observe(self, sequences: Any, outcomes: Any, scored: Any) -> None:
            heard.append(("drafter", [len(s) for s in sequences], scored))

    class Learner(EagerPlanner):
        def record(self, done: Any) -> None:
            heard.append(("planner", [len(s) for s in done.sequences], done))

    class Watcher:
        def see(self, done: Any) -> None:
            heard.append(("watch", [len(s) for s in done.sequences], done))

    sequences = [TokenSequence([2], 9), TokenSequence([2, 1], 9)]
    drafter = Listener(lambda s, q, n: Draft.chain([0] * (3 - len(s))))
    run_round(sequences, ToyTarget(Table(np.eye(3)[None, 0])), drafter, Learner(2), [Watcher(), Watcher()])
    assert [(who, lengths) for who, lengths, _ in heard] == [
        (who, [4, 4]) for who in ("drafter", "planner", "watch", "watch")
    ]
    done = heard[1][2]
    assert done is heard[2][2] is heard[3][2]
    assert done.scored is heard[0][2]
    assert done.sequences == tuple(sequences)
    assert [o.tokens for o in done.outcomes] == [(0, 0, 0), (0, 0)]
    assert [[p(node) for node in o.nodes] for p, o in zip(done.laws, done.outcomes, strict=True)] == [
        [Point(0)] * 3,
        [Point(0)] * 2,
    ]


def test_a_cancelled_sequence_stays_cancelled() -> None:
    sequence = TokenSequence([1], 9)
    sequence.cancel()
    assert sequence.finish_reason == "cancelled"
    done = TokenSequence([1], 2)
    assert not done.append(4)
    done.cancel()
    assert done.finish_reason == "length"


# --- planner


def test_fixed_planner() -> None:
    planner = FixedPlanner(4)
    fresh, early, late, last = (TokenSequence([1, 2, *range(n)], 12, prompt_length=2) for n in (0, 1, 7, 9))
    assert [q.limit for q in planner.quote([fresh, early, late, last])] == [0, 4, 2, 0]
    quote = FixedQuote(2)
    assert [quote.worth(0.1, rows) for rows in range(4)] == [True, True, False, False]
    with pytest.raises(OptionError, match="draft_tokens must be at least 0, not -1"):
        FixedPlanner(-1)


# --- tally


def test_tally() -> None:
    """Two texts; the first pass of each reads its prompt and is counted apart."""
    table = Table(np.eye(3)[None, 0] * 5)  # always token 0
    drafts = iter(
        [Draft.chain([0, 0, 1], None, "a"), Draft.chain([1], None, "b"), Draft(), Draft.chain([0], None, "a")]
    )
    tally = Tally()
    sequences = [TokenSequence([2], 9), TokenSequence([2], 3)]
    assert (tally.mean_tokens_per_pass, tally.acceptance_rate) == (1.0, 0.0)
    history = generate(sequences, ToyTarget(table), ToyDrafter(lambda s, q, n: next(drafts)), FixedPlanner(3), [tally])
    assert [[o.accepted for o in outcomes] for outcomes in history] == [[0, 2, 0, 0, 1], [0, 0]]
    assert (tally.answers, tally.tokens, tally.passes) == (2, 10, 5)
    assert tally.mean_tokens_per_pass == 8 / 5
    assert tally.total.rounds == 3
    assert (tally.total.drafted, tally.total.accepted) == (5, 3)
    assert tally.total.accepted_per_position == [2, 1]
    assert tally.by_drafter["a"].accepted_per_position == [2, 1]
    assert (tally.by_drafter["b"].rounds, tally.by_drafter["b"].accepted_per_position) == (1, [])
    assert tally.acceptance_rate == 3 / 5
    assert tally.prefill_s > 0
    assert tally.decode_s >= tally.draft_s + tally.verify_s > 0


def test_eager_planner_of_the_toys_keeps_its_word() -> None:
    assert [q.limit for q in EagerPlanner(3).quote([TokenSequence([1], 1)])] == [3]

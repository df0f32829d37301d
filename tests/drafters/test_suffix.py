"""The suffix drafter: what it copies from, what it learns, and that it never changes a text."""

import random
from threading import Thread
from typing import Any

import numpy as np
import pytest

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.none import NoDrafter
from foredraft.drafters.suffix import Suffix
from foredraft.engine.fixed_planner import FixedPlanner, FixedQuote
from foredraft.errors import ModelError, OptionError
from foredraft.retrieval import backend as retrieval_backend
from foredraft.retrieval import native
from foredraft.retrieval.backend import Retrieval, retrieval
from foredraft.retrieval.calibration import STRENGTH, Calibration, prior
from foredraft.retrieval.copier import Copier
from foredraft.retrieval.index import BUCKETS, END, MEMORY
from foredraft.retrieval.memory import GENERATIONS, Memory
from foredraft.retrieval.portable import PortableIndex, PortableSearch
from foredraft.retrieval.prediction import LOST, Cursor
from tests.core.toys import Table, ToyTarget, generate

UNSCORED: Any = Scored(None, (), {})
PYTHON = Retrieval("python", PortableIndex, PortableSearch, "slower")


def write(drafter: Suffix, sequence: TokenSequence, answer: list[int], limit: int = 15) -> int:
    """Let the sequence say ``answer``; return the passes it took."""
    drafter.begin(sequence)
    said = passes = 0
    while said < len(answer):
        draft = drafter.propose([sequence], [FixedQuote(limit)], [Noise(0)])[0]
        node, path = -1, list[int]()
        while len(path) < len(answer) - said - 1:
            hit = [i for i in draft.children(node) if draft.tokens[i] == answer[said + len(path)]]
            if not hit:
                break
            node = hit[0]
            path.append(node)
        tokens = tuple(answer[said : said + len(path) + 1])
        sequence.tokens += tokens
        said, passes = said + len(tokens), passes + 1
        drafter.observe([sequence], [Outcome(draft, tokens, len(path), tuple(path), (), None)], UNSCORED)
    return passes


def edited(tokens: list[int], at: int, kind: str) -> list[int]:
    middle = {"substitution": [9999], "insertion": [9999, tokens[at]], "deletion": []}[kind]
    return tokens[:at] + middle + tokens[at + 1 :]


@pytest.fixture(params=["native", "python"])
def engine(request: pytest.FixtureRequest) -> Retrieval:
    return retrieval() if request.param == "native" else PYTHON


def test_the_native_retrieval_runs_here() -> None:
    assert retrieval().name == "native"
    assert Suffix().notice is None


def test_python_steps_in_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Any:
        raise ModelError("it was not built")

    monkeypatch.setattr(native, "functions", absent)
    drafter = Suffix(engine=retrieval_backend.retrieval.__wrapped__())
    assert drafter.engine.name == "python"
    assert drafter.notice == "retrieval runs in Python, slower: it was not built"


# --- the text ---


def test_it_copies_its_own_text_and_claims_no_law(engine: Retrieval) -> None:
    drafter, sequence = Suffix(engine=engine), TokenSequence([1, 2, 3, 4, 5, 1, 2], limit=99)
    drafter.begin(sequence)
    draft = drafter.propose([sequence], [FixedQuote(3)], [Noise(0)])[0]
    assert (draft.tokens, draft.parents, draft.laws, draft.source) == ((3, 4, 5), (-1, 0, 1), None, "suffix")


def test_each_sequence_of_a_batch_has_its_own_text(engine: Retrieval) -> None:
    drafter = Suffix(engine=engine)
    sequences = [TokenSequence([1, 7, 1], limit=10), TokenSequence([4], limit=10), TokenSequence([1, 8, 1], limit=10)]
    for sequence in sequences:
        drafter.begin(sequence)
    drafts = drafter.propose(sequences, [FixedQuote(1)] * 3, [Noise(0)] * 3)
    assert [draft.tokens for draft in drafts] == [(7,), (), (8,)]
    drafter.end(sequences[0])
    with pytest.raises(KeyError):
        drafter.propose(sequences, [FixedQuote(1)] * 3, [Noise(0)] * 3)


def test_the_quote_is_asked_by_what_a_guess_builds_on() -> None:
    class Asked:
        limit = 15

        def __init__(self) -> None:
            self.paths: list[float] = []

        def worth(self, path_probability: float, rows: int) -> bool:
            assert rows == len(self.paths)
            self.paths.append(path_probability)
            return rows < 3

    drafter, sequence, quote = Suffix(), TokenSequence([1, 2, 3, 4, 5, 6, 1, 2], limit=99), Asked()
    drafter.begin(sequence)
    assert drafter.propose([sequence], [quote], [Noise(0)])[0].tokens == (3, 4, 5)
    assert quote.paths[0] == 1.0
    assert 1.0 > quote.paths[1] > quote.paths[2] > quote.paths[3] > 0.0


def test_a_copy_that_was_refused_goes_on_behind_the_changed_token(engine: Retrieval) -> None:
    drafter, passage = Suffix(engine=engine), list(range(100, 160))
    sequence = TokenSequence([*passage, 1, 100, 101], limit=999)
    # 110 and 130 become tokens that nobody has seen: only the place where the copy was refused can go on
    answer = [*range(102, 110), 7, *range(111, 130), 8, *range(131, 150)]
    assert write(drafter, sequence, answer) <= 6


# --- a prediction ---


@pytest.mark.parametrize("kind", ["substitution", "insertion", "deletion"])
def test_a_prediction_is_found_again_after_an_edit(engine: Retrieval, kind: str) -> None:
    answer = list(range(100, 148))
    prediction = edited(edited(answer, 12, kind), 30, kind)
    drafter, sequence = Suffix(engine=engine), TokenSequence([1, 2, 3], limit=999)
    drafter.prepare(sequence, prediction)
    passes = write(drafter, sequence, answer)
    assert passes <= 6  # three stretches of at most 16, and a pass an edit that is guessed wrong
    assert drafter.counts(sequence)["prediction"].accepted >= len(answer) - passes - 2


def test_several_tokens_may_be_missing_or_new() -> None:
    answer = list(range(100, 160))
    for prediction in (answer[:20] + answer[24:], [*answer[:20], 1, 2, 3, 4, *answer[20:]]):
        drafter, sequence = Suffix(), TokenSequence([5], limit=999)
        drafter.prepare(sequence, prediction)
        assert write(drafter, sequence, answer) <= 11


def test_a_prediction_that_matches_nothing_is_given_up() -> None:
    drafter, sequence = Suffix(), TokenSequence([5], limit=999)
    drafter.prepare(sequence, list(range(500, 600)))
    answer = list(range(100, 160))
    assert write(drafter, sequence, answer) == len(answer)
    counts = drafter.counts(sequence)["prediction"]
    assert counts.accepted == 0
    assert counts.rejected == counts.drafted > 0
    assert drafter.propose([sequence], [FixedQuote(15)], [Noise(0)])[0].tokens == ()


@pytest.mark.parametrize("branches", [0, 2])
@pytest.mark.parametrize("start", [0, 7, 30])
@pytest.mark.parametrize("useless", ["other", "shuffled", "one token", "short"])
def test_a_useless_prediction_does_not_silence_the_text(
    engine: Retrieval, branches: int, start: int, useless: str
) -> None:
    """The copy task: the answer repeats a passage of the prompt, and the prediction has nothing to do with it."""
    passage = list(range(100, 180))
    answer = [*range(900, 900 + start), *passage[2:]]
    prediction = {
        "other": list(range(500, 600)),
        "shuffled": random.Random(3).sample(passage, len(passage)),
        "one token": [500] * 100,
        "short": [500, 501],
    }[useless]
    taken = []
    for expected in ((), prediction):
        drafter, sequence = Suffix(0.03, branches, engine=engine), TokenSequence([*passage, 1, 100, 101], limit=999)
        drafter.prepare(sequence, expected)
        taken.append(write(drafter, sequence, answer))
    plain, misled = taken
    assert plain <= start + 10
    assert misled <= plain + 1


def test_where_a_useless_prediction_gives_way_the_text_is_guessed_and_counted(engine: Retrieval) -> None:
    memory, text = Memory(400, engine=engine), [7, 1, 2, 3, 4, 5, 1, 2]
    memory.remember([8, 9, 1, 2, 3, 4, 5, 6], "mine")
    for scope in (None, "mine"):
        drafter, sequence = Suffix(0.03, memory=memory, engine=engine), TokenSequence(list(text), limit=999)
        drafter.prepare(sequence, range(500, 540), scope)
        drafter.begin(sequence)
        draft = drafter.propose([sequence], [FixedQuote(15)], [Noise(0)])[0]
        assert draft.tokens[:3] == (3, 4, 5)
        sequence.tokens += [3, 4, 77]
        drafter.observe([sequence], [Outcome(draft, (3, 4, 77), 2, (0, 1), (), None)], UNSCORED)
        counts = drafter.counts(sequence)
        assert counts["prediction"].drafted == 0
        assert counts["text"].drafted + counts["memory"].drafted == len(draft.tokens)
        assert counts["text"].accepted + counts["memory"].accepted == 2


def test_what_follows_the_end_of_a_prediction_does_not_count_against_it(engine: Retrieval) -> None:
    prediction = [100, 101, 102, 103, 100, 101]  # its end is also its beginning, so there is more to copy
    drafter, sequence = Suffix(engine=engine), TokenSequence([5], limit=999)
    drafter.prepare(sequence, prediction)
    drafter.begin(sequence)
    draft = drafter.propose([sequence], [FixedQuote(15)], [Noise(0)])[0]
    assert draft.tokens[:8] == (100, 101, 102, 103, 100, 101, 102, 103)
    said = (*prediction, 77)
    sequence.tokens += said
    drafter.observe([sequence], [Outcome(draft, said, 6, tuple(range(6)), (), None)], UNSCORED)
    counts = drafter.counts(sequence)["prediction"]
    assert (counts.drafted, counts.accepted, counts.rejected) == (6, 6, 0)
    assert write(drafter, sequence, [100, 78, 79, 101, 80]) <= 5  # nor does the answer that goes on
    assert drafter.counts(sequence)["prediction"].rejected == 0


def test_a_prediction_that_was_lost_is_found_by_its_own_words() -> None:
    drafter, sequence = Suffix(), TokenSequence([5], limit=999)
    drafter.prepare(sequence, list(range(100, 160)))
    assert write(drafter, sequence, [*range(500, 530), *range(110, 150)]) <= 30 + 5


def test_a_cursor_knows_its_hypotheses() -> None:
    cursor = Cursor([1, 2, 3, 4, 5, 6])
    cursor.advance(1)
    assert cursor.places == [1]
    cursor.advance(9)
    assert cursor.places == [2, 1]  # instead of the 2, or before it
    cursor.advance(2)
    assert cursor.places == [2]  # it was before it
    cursor.advance(5)
    assert cursor.places == [5, 3, 2]  # the 3 and the 4 left out, or one of the others
    cursor.advance(6)
    assert cursor.places == [6]
    for _ in range(LOST + 1):
        cursor.advance(7)
    assert cursor.places == []
    assert Cursor(()).places == []


# --- calibration ---


def test_a_bucket_moves_from_its_prior_to_what_is_seen() -> None:
    calibration, before = Calibration(), prior()
    calibration.learn([3], [True])
    assert calibration.table[3] == pytest.approx((1 + STRENGTH * before[3]) / (1 + STRENGTH))
    calibration.learn([3] * 3000, [i % 4 == 0 for i in range(3000)])
    assert calibration.table[3] == pytest.approx(0.25, abs=0.02)
    assert [i for i in range(BUCKETS) if calibration.table[i] != before[i]] == [3]


def test_guesses_behind_a_refusal_teach_nothing() -> None:
    class Spy(Calibration):
        def learn(self, buckets: Any, accepted: Any) -> None:
            seen.append(list(accepted))

    seen: list[list[bool]] = []
    copier = Copier(retrieval(), Spy())
    copier.read([1, 2, 3, 4, 5, 6, 1])
    for tokens, tested in (((2, 3, 9), [True, True, False]), ((9,), [False]), ((2,), [True]), ((), [])):
        found = copier.propose([1, 2, 3, 4, 5, 6, 1], (), 4, 0, 0.0)
        copier.observe(Draft.chain([row[0] for row in found.rows], source="suffix"), tokens)
        assert seen[-1] == tested
    assert (copier.counts["text"].drafted, copier.counts["text"].accepted) == (16, 3)


def test_every_sibling_of_a_tested_guess_was_tested() -> None:
    learnt: list[tuple[list[int], list[bool]]] = []
    copier = Copier(retrieval(), Calibration())
    text = [1, 2, 9, 1, 3, 8, 1]
    copier.read(text)
    found = copier.propose(text, (), 30, 1, 0.0)
    copier._calibration.learn = lambda buckets, accepted: learnt.append((list(buckets), list(accepted)))  # type: ignore[method-assign]
    draft = Draft(tuple(r[0] for r in found.rows), tuple(r[1] for r in found.rows), None, "suffix")
    roots = draft.children(-1)
    assert len(roots) == 2
    copier.observe(draft, (draft.tokens[roots[1]], 77))
    hits = learnt[0][1]
    assert hits[:2] == [False, True]
    assert not any(hits[2:])
    assert len(hits) == 2 + len(draft.children(roots[1]))


def test_another_drafters_guesses_are_not_ours() -> None:
    drafter, sequence = Suffix(), TokenSequence([1, 2, 3, 1], limit=99)
    drafter.begin(sequence)
    drafter.propose([sequence], [FixedQuote(3)], [Noise(0)])
    drafter.observe([sequence], [Outcome(Draft.chain([2], source="model"), (2, 3), 1, (0,), (), None)], UNSCORED)
    assert list(drafter.calibration.table) == prior()
    assert drafter.counts(sequence)["text"].drafted == 0


# --- memory ---


def test_what_was_said_is_remembered_in_its_scope_alone(engine: Retrieval) -> None:
    memory = Memory(1000, engine=engine)
    drafter = Suffix(memory=memory, engine=engine)
    answer = list(range(100, 140))
    first, again, other = (TokenSequence([7, 8], limit=99) for _ in range(3))
    drafter.prepare(first, scope="a")
    assert write(drafter, first, answer) == 40
    drafter.end(first)
    drafter.prepare(other, scope="b")
    assert write(drafter, other, answer) == 40
    drafter.prepare(again, scope="a")
    assert write(drafter, again, answer) <= 4
    assert drafter.counts(again)["memory"].accepted >= 36
    assert memory.scopes == {"a": 42}


def test_sharing_is_an_explicit_option() -> None:
    for shared in (False, True):
        memory = Memory(1000, shared=shared)
        memory.remember([1, 2, 3], "a")
        assert len(memory.recall("b")) == int(shared)


def test_a_memory_never_exceeds_its_bound_and_drops_the_oldest_whole(engine: Retrieval) -> None:
    memory, rng = Memory(200, engine=engine), random.Random(1)
    for step in range(300):
        scope = rng.choice("abc")
        text = [step] * rng.choice((1, 7, 30, 49, 50, 51, 400))
        memory.remember(text, scope)
        held = memory.dump()
        assert memory.tokens == sum(len(tokens) for _, tokens in held) <= 200
        assert all(len(tokens) <= 200 // GENERATIONS for _, tokens in held)
        assert any(step in tokens for _, tokens in held)


def test_the_oldest_scope_makes_room_even_while_it_is_the_one_that_grows() -> None:
    memory = Memory(100)
    memory.remember([1] * 9, "a")
    for scope in "bcde":
        memory.remember([2] * 22, scope)
    memory.remember([3] * 14, "a")
    assert memory.tokens <= 100
    assert memory.scopes["a"] == 10 + 14
    assert "b" not in memory.scopes


def test_a_conversation_is_remembered_once() -> None:
    memory = Memory(1000)
    memory.remember([1, 2, 3])
    memory.remember([1, 2, 3, 4, 5])
    memory.remember([1, 2, 3, 4, 5])
    assert memory.dump()[0][1].tolist() == [1, 2, 3, 4, 5]
    memory.remember([2, 3])
    memory.remember([])
    assert memory.dump()[0][1].tolist() == [1, 2, 3, 4, 5, END, 2, 3]


def test_a_memory_is_arrays_and_back() -> None:
    memory, other = Memory(400), Memory(100)
    for i in range(6):
        memory.remember([i] * 40, "ab"[i % 2])
    other.restore(memory.dump())
    assert other.tokens <= 100
    twin = Memory(400)
    twin.restore(memory.dump())
    assert [(s, t.tolist()) for s, t in twin.dump()] == [(s, t.tolist()) for s, t in memory.dump()]
    assert twin.scopes == memory.scopes
    twin.forget("a")
    assert set(twin.scopes) == {"b"}
    twin.forget()
    assert (twin.tokens, twin.recall("b")) == (0, ())


def test_a_limit_that_holds_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match="at least 4 tokens"):
        Memory(3)


def test_a_memory_full_to_its_bound_in_the_middle_of_a_request() -> None:
    memory = Memory(80)
    drafter, sequence = Suffix(memory=memory), TokenSequence([1], limit=999)
    memory.remember(range(100, 110), "mine")
    drafter.prepare(sequence, scope="mine")
    drafter.begin(sequence)
    sequence.tokens.append(104)
    assert drafter.propose([sequence], [FixedQuote(3)], [Noise(0)])[0].tokens == (105, 106, 107)
    for i in range(9):
        memory.remember([i] * 19, "mine")
    assert memory.tokens <= 80
    assert drafter.propose([sequence], [FixedQuote(3)], [Noise(0)])[0].tokens == ()


def test_threads_share_a_memory() -> None:
    memory, faults = Memory(2000), list[Exception]()

    def work(number: int) -> None:
        try:
            drafter = Suffix(memory=memory)
            for i in range(30):
                sequence = TokenSequence([number, i % 3], limit=999)
                drafter.prepare(sequence, scope="all")
                write(drafter, sequence, [(number + j * j + i) % 50 for j in range(40)])
                drafter.end(sequence)
        except Exception as error:  # a thread's fault is the test's
            faults.append(error)

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert memory.tokens <= 2000


# --- the text is the target's ---


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)])
@pytest.mark.parametrize("branches", [0, 2])
def test_the_text_is_the_plain_one(params: SamplingParams, branches: int) -> None:
    memory = Memory(500)
    answers: list[list[list[int]]] = []
    accepted: list[int] = []
    for drafter in (NoDrafter(), Suffix(branches=branches, memory=memory), Suffix(branches=branches, memory=memory)):
        sequences = [TokenSequence([1, 2, i], 60, params, Noise(i, coupled=True)) for i in range(3)]
        for sequence in sequences:
            if isinstance(drafter, Suffix):
                drafter.prepare(sequence, scope="mine")
            drafter.begin(sequence)
        history = generate(sequences, ToyTarget(Table.random(3, 5, states=7)), drafter, FixedPlanner(6))
        for sequence in sequences:
            drafter.end(sequence)
        answers.append([s.tokens for s in sequences])
        accepted.append(sum(outcome.accepted for outcomes in history for outcome in outcomes))
    assert answers[0] == answers[1] == answers[2]
    assert accepted[0] == 0 < accepted[1]


def test_a_memory_recalled_is_the_same_object_until_it_changes() -> None:
    memory = Memory(400)
    memory.remember([1, 2])
    before = memory.recall()
    assert memory.recall() is before
    assert [kind for _, kind in before] == [MEMORY]
    memory.remember(np.arange(99))
    assert memory.recall() is not before

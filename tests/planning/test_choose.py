"""Who is asked in a round, whose draft is taken, and what becomes of drafters that break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.law import Dense
from foredraft.core.noise import Noise
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedQuote
from foredraft.planning import choose
from foredraft.planning.choose import Chooser, Look
from foredraft.planning.costs import Costs, PassTable
from foredraft.planning.planner import AutoPlanner
from tests.core.exact import law
from tests.planning.simulate import Clock

FLAT = PassTable((1, 8, 16, 64), (5e-3, 5.5e-3, 8e-3, 20e-3), 0.0, 0.0)
EVEN = Dense(law(1, 1))


@dataclass
class Scripted:
    """A drafter that guesses what it is told to, in made time."""

    name: str
    clock: Clock
    guess: Callable[[TokenSequence], Draft] = lambda sequence: Draft.chain([1, 1, 1], None, "")
    cost: float = 0.0
    free: bool = False
    taps: tuple[int, ...] = ()
    breaks: str = ""
    asked: list[list[Any]] = field(default_factory=list)
    quotes: list[Any] = field(default_factory=list)
    observed: list[tuple[list[TokenSequence], Scored]] = field(default_factory=list)
    begun: list[TokenSequence] = field(default_factory=list)
    ended: list[TokenSequence] = field(default_factory=list)

    def _reach(self, method: str) -> None:
        if method in self.breaks.split():
            raise ValueError(f"no\n{method}")

    def begin(self, sequence: TokenSequence) -> None:
        self.begun.append(sequence)
        self._reach("begin")

    def propose(self, sequences: Any, quotes: Any, noises: Any) -> Any:
        self.asked.append(list(sequences))
        self.quotes.append(list(quotes))
        self.clock.now += self.cost
        self._reach("propose")
        if "short" in self.breaks:
            return []
        if "list" in self.breaks:
            return [[1, 2]] * len(sequences)
        return [self.guess(s).first(q.limit) for s, q in zip(sequences, quotes, strict=True)]

    def observe(self, sequences: Any, outcomes: Any, scored: Any) -> None:
        self.observed.append((list(sequences), scored))
        self._reach("observe")

    def end(self, sequence: TokenSequence) -> None:
        self.ended.append(sequence)
        self._reach("end")


class Table:
    """A chooser at work: texts, a planner, and rounds whose outcome is told."""

    def __init__(self, clock: Clock, *drafters: Scripted, count: int = 1, coupled: bool = False) -> None:
        self.chooser = Chooser(drafters, clock)
        self.planner = AutoPlanner(Costs(FLAT), clock=clock)
        self.clock = clock
        self.coupled = coupled
        self.sequences = [self.text() for _ in range(count)]

    def text(self) -> TokenSequence:
        made = TokenSequence([0] * 30, limit=100_000, prompt_length=3)
        self.chooser.begin(made)
        return made

    def propose(self) -> list[Draft]:
        noises = [Noise(i, coupled=self.coupled) for i, _ in enumerate(self.sequences)]
        return self.chooser.propose(self.sequences, self.planner.quote(self.sequences), noises)

    def round(self, accepted: int = 0) -> list[Draft]:
        drafts = self.propose()
        outcomes = []
        for sequence, draft in zip(self.sequences, drafts, strict=True):
            kept = 0
            while kept < min(accepted, len(draft)) and draft.tokens[kept] == 1:
                kept += 1
            made = (*draft.tokens[:kept], 1 if accepted else 0)
            sequence.tokens += made
            outcomes.append(Outcome(draft, made, kept, tuple(range(kept)), ("x",) * len(made), None))
        scored = Scored("logits", tuple(range(len(self.sequences))), {}, tuple({} for _ in self.sequences))
        self.chooser.observe(self.sequences, outcomes, scored)
        return drafts


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_names_and_taps_are_joined(clock: Clock) -> None:
    chooser = Chooser([Scripted("a", clock, taps=(3, 1)), Scripted("b", clock, taps=(1, 2))])
    assert (chooser.name, chooser.taps, chooser.notice) == ("a+b", (1, 2, 3), None)


def test_free_drafters_are_asked_in_every_round_and_scored_whether_taken_or_not(clock: Clock) -> None:
    right = Scripted("right", clock, lambda s: Draft.chain([1, 1], None, "right"), free=True)
    wrong = Scripted("wrong", clock, lambda s: Draft.chain([7, 7], None, "wrong"), free=True)
    table = Table(clock, wrong, right)
    taken = [table.round(accepted=2)[0].source for _ in range(30)]
    assert taken[0] == "wrong"  # the first of equals
    assert taken[-1] == "right"
    assert len(wrong.asked) == len(right.asked) == 30
    first, second = table.chooser.sources
    assert first.acceptance.tested == 30  # its first guess, in each round
    assert second.acceptance.chance(0) > 0.8 > first.acceptance.chance(0)


def test_what_costs_something_is_asked_where_it_pays_and_now_and_then_otherwise(clock: Clock) -> None:
    dear = Scripted("dear", clock, cost=4e-3)
    table = Table(clock, dear)
    for _ in range(400):
        table.round(accepted=0)
    assert 2 <= len(dear.asked) < 20
    assert all(isinstance(quotes[0], Look) for quotes in dear.quotes[-2:])
    dear.cost = 0.6e-3
    for _ in range(3000):
        table.round(accepted=3)
    assert not isinstance(dear.quotes[-1][0], Look)
    asked = len(dear.asked)
    table.round(accepted=3)
    assert len(dear.asked) == asked + 1


def test_looks_keep_within_their_budget(clock: Clock) -> None:
    dear = Scripted("dear", clock, lambda s: Draft.chain([1, 1], None, "dear"), cost=7e-3)
    table = Table(clock, dear)
    for _ in range(100):
        table.round()
    asked = len(dear.asked)
    for _ in range(4000):
        table.round()
    spent = (len(dear.asked) - asked) * (dear.cost + 1e-3)
    assert spent < 2.5 * choose.BUDGET * 4000 * 5e-3


def test_one_that_pays_less_is_looked_at_too(clock: Clock) -> None:
    better = Scripted("better", clock, cost=1.2e-3)
    lesser = Scripted("lesser", clock, lambda s: Draft.chain([1, 7, 7], None, "lesser"), cost=1.2e-3)
    table = Table(clock, better, lesser)
    for _ in range(600):
        table.round(accepted=3)
    assert len(better.asked) > 400
    assert 3 <= len(lesser.asked) < 150
    better.guess = lambda s: Draft.chain([7, 7, 7], None, "better")
    for _ in range(100):
        table.round(accepted=3)
    asked = len(better.asked)
    for _ in range(20):
        table.round(accepted=3)
    assert len(better.asked) <= asked + 2


def test_a_good_free_draft_spares_the_dear_one(clock: Clock) -> None:
    free = Scripted("free", clock, lambda s: Draft.chain([1] * 6, None, "free"), free=True)
    dear = Scripted("dear", clock, cost=2e-3)
    table = Table(clock, free, dear)
    for _ in range(200):
        table.round(accepted=6)
    asked = len(dear.asked)
    assert asked < 20
    free.guess = lambda s: Draft()
    assert table.round(accepted=2)[0].source == ""
    assert len(dear.asked) == asked + 1


def test_in_one_round_nobody_is_asked_twice(clock: Clock) -> None:
    free = Scripted("free", clock, lambda s: Draft(), free=True)
    table = Table(clock, free, count=3)
    for _ in range(5):
        table.round()
    assert [len(asked) for asked in free.asked] == [3] * 5


def drawn(sequence: TokenSequence) -> Draft:
    return Draft((1, 1), (-1, 0), (EVEN, EVEN), "drawn", (0.01, 0.001))


def test_guesses_that_were_drawn_are_taken_whatever_they_are_under_ratio(clock: Clock) -> None:
    """And what is drawn is asked only where it was worth it beforehand: never beside another draft."""
    free = Scripted("free", clock, lambda s: Draft.chain([1] * 6, None, "free"), free=True)
    cheap = Scripted("cheap", clock, drawn, free=True)
    table = Table(clock, free, cheap)
    assert table.round(accepted=0)[0].source == "drawn"
    for _ in range(50):
        before = len(cheap.asked)
        draft = table.round(accepted=0)[0]
        assert draft.source == ("drawn" if len(cheap.asked) > before else draft.source)
        if draft.source == "drawn":
            assert len(cheap.asked) == before + 1
    assert table.chooser.sources[1].draws


def test_drawn_guesses_are_chosen_among_under_coupled(clock: Clock) -> None:
    free = Scripted("free", clock, lambda s: Draft.chain([1] * 6, None, "free"), free=True)
    cheap = Scripted("cheap", clock, drawn, free=True)
    table = Table(clock, free, cheap, coupled=True)
    assert table.round(accepted=6)[0].source == "free"
    assert not table.chooser.sources[1].draws


def test_a_drafter_that_is_asked_by_many_is_asked_once(clock: Clock) -> None:
    """Model drafters batch their passes: all texts of a round come in one call."""
    model = Scripted("model", clock, cost=0.5e-3)
    table = Table(clock, model, count=4)
    for size in (4, 1, 3, 2, 4):
        sequences = table.sequences
        table.sequences = sequences[:size]
        table.round(accepted=3)
        assert len(model.asked[-1]) == size
        table.sequences = sequences
    assert len(model.asked) == 5


def test_under_fixed_lengths_the_longest_expected_draft_is_taken(clock: Clock) -> None:
    short = Scripted("short", clock, lambda s: Draft.chain([1], None, "short"), free=True)
    long = Scripted("long", clock, lambda s: Draft.chain([1] * 4, None, "long"), free=True)
    model = Scripted("model", clock, cost=9.0)
    chooser = Chooser([short, long, model], clock)
    sequence = TokenSequence([0] * 9, limit=99)
    chooser.begin(sequence)
    (draft,) = chooser.propose([sequence], [FixedQuote(5)], [Noise(0)])
    assert draft.source in ("long", "")
    (none,) = chooser.propose([sequence], [FixedQuote(0)], [Noise(0)])
    assert len(none) == 0


@pytest.mark.parametrize("breaks", ["begin", "propose", "observe", "short", "list"])
def test_a_drafter_that_breaks_is_dropped_for_the_request(clock: Clock, breaks: str) -> None:
    broken = Scripted("broken", clock, free=True, breaks=f"{breaks} end")
    good = Scripted("good", clock, lambda s: Draft.chain([1], None, "good"), free=True)
    table = Table(clock, broken, good, count=2)
    drafts = [table.round(accepted=1) for _ in range(5)]
    assert {draft.source for draft in drafts[-1]} == {"good"}
    assert len(broken.asked) <= 1
    assert table.chooser.sources[0].faults == 2
    assert table.chooser.notice is not None
    assert table.chooser.notice.startswith("drafter broken was dropped for 2 texts: ")
    assert "\n" not in table.chooser.notice
    for sequence in table.sequences:
        table.chooser.end(sequence)
    assert broken.ended == good.ended == table.sequences
    assert table.chooser.sources[0].faults == 2  # what it raises at the end is no news
    broken.breaks = ""
    table.sequences = [table.text()]
    assert table.chooser.notice is None
    table.round()
    assert len(broken.asked) >= 1


def test_one_that_breaks_at_the_end_only_is_said(clock: Clock) -> None:
    broken = Scripted("broken", clock, breaks="end")
    table = Table(clock, broken)
    table.chooser.end(table.sequences[0])
    assert table.chooser.notice == "drafter broken was dropped: no end"
    assert table.chooser.sources[0].faults == 1
    table.chooser.end(table.sequences[0])  # a text that is no longer known
    assert table.chooser.sources[0].faults == 2


def test_a_fault_without_words_has_its_name(clock: Clock) -> None:
    broken = Scripted("broken", clock, free=True)
    table = Table(clock, broken)
    table.chooser._say(0, KeyError())
    assert table.chooser.notice == "drafter broken was dropped: KeyError"


def test_a_drafter_that_hangs_is_dropped_once_it_is_back(clock: Clock) -> None:
    slow = Scripted("slow", clock, cost=1e-3)
    table = Table(clock, slow, count=2)
    table.round(accepted=3)
    slow.cost = 30.0
    drafts = table.round(accepted=3)
    assert [len(draft) for draft in drafts] == [3, 3]  # what it has made is taken: it may have been drawn
    for _ in range(3000):
        table.round()
    assert len(slow.asked) == 2
    assert table.chooser.notice == "drafter slow was dropped for 2 texts: a draft took 30.0 s"
    assert table.chooser.sources[0].unit is not None
    assert table.chooser.sources[0].unit < 0.01


def test_a_long_prompt_may_be_read_for_a_while(clock: Clock) -> None:
    """The first draft for a text includes reading it: no sign of a fault, and not what a guess costs."""
    model = Scripted("model", clock, cost=8.0)
    table = Table(clock, model)
    table.sequences[0].tokens += [0] * 4000
    table.round(accepted=3)
    assert table.chooser.notice is None
    assert table.chooser.sources[0].unit is None
    model.cost = 1e-3
    for _ in range(5):
        table.round(accepted=3)
    assert len(model.asked) == 6
    unit = table.chooser.sources[0].unit
    assert unit is not None
    assert unit < 1e-3


def test_a_drafter_dropped_for_one_text_still_sees_the_others(clock: Clock) -> None:
    class Once(Scripted):
        def begin(self, sequence: TokenSequence) -> None:
            super().begin(sequence)
            if len(self.begun) == 1:
                raise ValueError("not this one")

    some = Once("some", clock, lambda s: Draft.chain([1], None, "some"), free=True)
    table = Table(clock, some, count=3)
    drafts = table.round(accepted=1)
    assert [len(draft) for draft in drafts] == [0, 1, 1]
    sequences, scored = some.observed[0]
    assert sequences == table.sequences[1:]
    assert (scored.starts, len(scored.earlier), scored.logits) == ((1, 2), 2, "logits")
    some.breaks = "observe"
    table.round(accepted=1)
    assert [len(draft) for draft in table.round()] == [0, 0, 0]
    assert len(some.observed) == 2


def test_a_round_that_was_left_is_forgotten(clock: Clock) -> None:
    free = Scripted("free", clock, free=True)
    table = Table(clock, free)
    table.propose()
    sequence = table.sequences[0]
    failed = Outcome(Draft(), (), 0, (), (), "error")
    table.chooser.observe([sequence], [failed], Scored(None, (0,), {}))
    assert table.chooser.sources[0].acceptance.tested == 0
    table.propose()
    table.chooser.end(sequence)
    assert not table.chooser._rounds
    assert not table.chooser._texts


def test_a_look_is_a_number_of_guesses() -> None:
    look: Any = Look(2)
    assert [look.worth(1e-9, rows) for rows in range(4)] == [True, True, False, False]


def test_a_drafter_that_answers_nothing_costs_its_asking(clock: Clock) -> None:
    """It would be worth a lot if it had something to say: after a while it is only looked at."""
    mute = Scripted("mute", clock, lambda s: Draft(), cost=1e-3)
    table = Table(clock, mute)
    for _ in range(1000):
        table.round()
    asked = len(mute.asked)
    for _ in range(200):
        table.round()
    assert len(mute.asked) - asked < 60

"""The price of a guess: against brute force, in a batch, at the ends of a text, as the machine and the text change."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.protocols import Round
from foredraft.core.sequence import TokenSequence
from foredraft.planning.costs import Costs, PassTable
from foredraft.planning.planner import AutoPlanner, AutoQuote, unpriced
from foredraft.planning.source import Source
from tests.planning.simulate import Clock

FLAT = PassTable((1, 8, 16, 64), (5e-3, 5.5e-3, 8e-3, 20e-3), 0.0, 0.0)
STEEP = PassTable((1, 16), (5e-3, 30e-3), 0.0, 0.0)


def text(length: int = 100, prompt: int = 10, room: int = 500) -> TokenSequence:
    return TokenSequence([0] * length, limit=length + room, prompt_length=prompt)


def planner(table: PassTable = FLAT, most: int = 15) -> AutoPlanner:
    return AutoPlanner(Costs(table), most, Clock())


def known(chance: float, unit: float | None = None, name: str = "a") -> Source:
    source = Source(name, chance)
    source.unit = unit
    return source


@pytest.mark.parametrize("table", [FLAT, STEEP])
@pytest.mark.parametrize("chance", [0.05, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("unit", [0.0, 1e-4, 1e-3, 4e-3])
def test_the_best_length_is_that_of_brute_force(table: PassTable, chance: float, unit: float) -> None:
    """At the rate of plain decoding, the number of guesses with the greatest net of tokens and time."""
    quote = planner(table).quote([text()])[0]
    worth, length = quote.by(known(chance, unit)).best()
    nets = [0.0]
    for k in range(1, 16):
        tokens = sum(chance**i for i in range(1, k + 1))
        seconds = table.bare(k + 1) - table.bare(1) + (k + 1) * unit
        nets.append(tokens - seconds / 5e-3)
    assert worth == pytest.approx(max(nets), abs=0.05)
    assert nets[length] == pytest.approx(max(nets), abs=0.05)
    floors = quote.by(known(chance, unit))
    asked = 0
    while asked < 15 and floors.worth(chance**asked, asked):  # a drafter that knows how sure it may be
        asked += 1
    if length:
        assert abs(asked - length) <= 3


def test_a_guess_that_costs_something_is_dearer_than_one_that_does_not() -> None:
    quote = planner(STEEP).quote([text()])[0]
    cheap, dear = quote.by(known(0.6, 0.0)), quote.by(known(0.6, 2e-3))
    sure = [i / 100 for i in range(1, 100)]
    assert sum(cheap.worth(s, 1) for s in sure) > sum(dear.worth(s, 1) for s in sure)
    assert [dear.pays(s, 1) for s in sure] == [cheap.pays(s, 1) for s in sure]  # it is there already
    assert not cheap.worth(1.0, 15)
    assert not cheap.pays(1.0, 15)
    assert cheap.floors(15) == sorted(cheap.floors(15))
    assert len(dear.floors(15)) <= len(cheap.floors(15)) <= 15
    assert len(cheap.floors(2)) <= 2
    assert quote.by(known(0.01)).floors(15) == []


def test_what_has_to_be_read_first_is_charged_over_the_rounds_that_it_serves() -> None:
    source = known(0.8, 1e-4)
    quote = planner().quote([text()])[0].by(source)
    here = quote.best()
    assert quote.best(behind=1000, rounds=10) == here  # nothing is known of what reading costs
    source.read = 1e-3
    soon, late = quote.best(behind=1000, rounds=1), quote.best(behind=1000, rounds=1000)
    assert soon == (0.0, 0)
    assert 0.0 < late[0] < here[0]
    source.answers = 0.5  # and one that has nothing to say every other time is worth half
    assert quote.best()[0] == pytest.approx(here[0] / 2, rel=0.1)


def test_an_unknown_drafter_is_asked_by_its_own_word() -> None:
    quote = planner(STEEP).quote([text()])[0]
    assert quote.worth(1.0, 0)
    assert not quote.worth(0.1, 0)
    assert not quote.worth(1.0, 15)
    assert quote.net(2.0, 0) == 2.0
    assert quote.net(2.0, 3) == pytest.approx(2.0 - 3 * (25 / 15) / 5)


def test_without_prices_every_guess_pays_up_to_the_limit() -> None:
    quote = unpriced(3)
    source = known(0.01, 5.0)
    assert [quote.by(source).worth(1e-9, i) for i in range(5)] == [True, True, True, False, False]
    assert quote.by(source).best()[1] >= 1
    assert unpriced(20).by(known(0.9)).best()[1] == 20


@pytest.mark.parametrize(
    ("one", "limit"),
    [
        (text(10, 10), 0),  # its prompt is yet to be read
        (text(11, 10), 15),
        (text(room=5), 4),  # one token comes in any case
        (text(room=1), 0),
        (text(room=0), 0),
    ],
)
def test_a_quote_knows_its_room(one: TokenSequence, limit: int) -> None:
    assert planner().quote([one])[0].limit == limit
    assert planner(most=3).quote([one])[0].limit == min(3, limit)
    assert planner(most=0).quote([one])[0].limit == 0
    assert not planner().quote([text(10, 10)])[0].worth(1.0, 0)


def done(texts: list[Any], guesses: list[int], accepted: list[int], seconds: float, began: float = 1.0) -> Round:
    outcomes = []
    for one, n, kept in zip(texts, guesses, accepted, strict=True):
        draft = Draft.chain([1] * n, None, "a")
        made = (1,) * (kept + 1)
        one.tokens += made
        outcomes.append(Outcome(draft, made, kept, tuple(range(kept)), ("a",) * (kept + 1), None))
    return Round(tuple(texts), tuple(outcomes), Scored(None, (), {}), (), began, began, began + seconds)


def rounds(plans: AutoPlanner, texts: list[Any], guesses: int, accepted: int, seconds: float, count: int = 100) -> None:
    assert isinstance(plans._clock, Clock)
    for _ in range(count):
        now = plans._clock.now
        record = done(texts, [guesses] * len(texts), [accepted] * len(texts), seconds, now)
        plans._clock.now += seconds
        plans.record(record)


def test_a_batch_shares_one_price() -> None:
    plans = planner()
    sequences = [text(100), text(110), text(101), text(5000), text(90, room=3)]
    quotes = plans.quote(sequences)
    assert len({quote.rate for quote in quotes}) == 1
    assert quotes[0] is quotes[1] is quotes[2]
    assert [len(quote.steps) for quote in quotes] == [15, 15, 15, 15, 2]
    assert plans.quote([]) == []


def test_rows_that_others_have_taken_are_dear() -> None:
    """The table bends at 8 rows: alone there are 7 cheap guesses, beside 7 others there is none."""
    plans = planner()
    alone, crowded = plans.quote([text()])[0], plans.quote([text()] * 8)[0]
    assert crowded.steps[0] > 3 * alone.steps[0]
    lengths = [plans.quote([text()] * n)[0].by(known(0.6, 1e-5)).best()[1] for n in (1, 2, 4, 8, 16)]
    assert lengths[0] >= 5
    assert lengths == sorted(lengths, reverse=True)
    busy = planner()
    rounds(busy, [text(), text()], 7, 2, FLAT.bare(16))
    assert busy.quote([text(), text()])[0].steps[0] > plans.quote([text(), text()])[0].steps[0]


def test_the_rate_is_what_rounds_bring_and_never_less_than_plain_decoding() -> None:
    plans = planner()
    plain = plans.quote([text()])[0].rate
    assert plain == pytest.approx(1 / 5e-3)
    rounds(plans, [text()], 3, 2, FLAT.bare(4))
    assert plans.quote([text()])[0].rate == pytest.approx(3 / FLAT.bare(4), rel=0.02)
    rounds(plans, [text()], 15, 0, FLAT.bare(16), 300)
    assert plans.quote([text()])[0].rate == pytest.approx(plain)


def test_a_round_that_reads_a_prompt_teaches_nothing() -> None:
    plans = planner()
    fresh = text(50, 50)
    plans.record(done([text(), fresh], [3, 0], [3, 0], 9.0))
    assert (plans.means.tokens, plans.means.rows, plans.costs.pace) == (1.0, 1.0, 1.0)
    plans.record(Round((), (), Scored(None, (), {}), (), 1.0, 1.0, 2.0))
    assert plans.means.tokens == 1.0


@pytest.mark.parametrize("jump", [-1e9, 1e9, math.nan])
def test_a_clock_that_jumps_changes_nothing(jump: float) -> None:
    plans = planner()
    rounds(plans, [text()], 3, 2, FLAT.bare(4))
    before = plans.means.drafting, plans.means.overhead, plans.costs.pace, plans.costs.bend
    record = done([text()], [3], [2], 5e-3)
    plans.record(Round(record.sequences, record.outcomes, record.scored, (), 1.0, 1.0 + jump, 1.0 + 2 * jump))
    assert (plans.means.drafting, plans.costs.pace, plans.costs.bend) == (before[0], before[2], before[3])
    assert 0.0 <= plans.means.overhead < 2e-3
    assert 0.0 < plans.quote([text()])[0].rate < 1e4


def test_a_machine_that_becomes_busy_in_mid_answer() -> None:
    """Rows become ten times as dear, the rest does not: there are fewer guesses, and as many as before afterwards."""
    plans, table = planner(), FLAT
    lengths = lambda: plans.quote([text()])[0].by(known(0.8, 1e-5)).best()[1]  # noqa: E731
    idle = lengths()
    for i in range(600):
        rows = 1 + i % 9
        rounds(plans, [text()], rows - 1, 0, table.bare(1) + 10 * (table.bare(rows) - table.bare(1)), 1)
    busy = lengths()
    for i in range(1500):
        rounds(plans, [text()], i % 9, 0, table.bare(1 + i % 9), 1)
    assert idle >= 7
    assert busy <= idle - 3
    assert lengths() >= idle - 1


def test_a_context_that_grows_a_hundredfold() -> None:
    """Each row looks back on the whole text: at length its price is all that it looks back on."""
    table = PassTable(FLAT.rows, FLAT.seconds, 1e-7, 2e-7)
    plans = planner(table)
    lengths = [plans.quote([text(n)])[0].by(known(0.7, 0.0)).best()[1] for n in (100, 1000, 10_000, 100_000)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] >= 5
    short, long = plans.quote([text(100), text(10_000)])
    assert long.steps[0] == pytest.approx(short.steps[0] + 9900 * 2e-7)
    assert plans.price(10_000).steps[0] == pytest.approx(long.steps[0])
    assert plans.quote([text(10_000)])[0].rate < plans.quote([text(100)])[0].rate


def test_batches_that_change_size_every_round() -> None:
    plans, draw = planner(), random.Random(2)
    for _ in range(150):
        sequences = [text(draw.randint(20, 9000), room=draw.randint(0, 40)) for _ in range(draw.randint(1, 24))]
        quotes = plans.quote(sequences)
        assert len(quotes) == len(sequences)
        for one, quote in zip(sequences, quotes, strict=True):
            assert 0 <= quote.limit <= max(0, one.room - 1)
            assert len(quote.steps) == quote.limit
            assert all(step >= 0.0 for step in quote.steps)
            assert math.isfinite(quote.rate)
        guesses = [draw.randint(0, quote.limit) for quote in quotes]
        rows = len(sequences) + sum(guesses)
        plans.record(done(sequences, guesses, [draw.randint(0, n) for n in guesses], FLAT.bare(rows)))
    assert plans.costs.pace == pytest.approx(1.0, abs=0.01)
    assert plans.costs.bend == pytest.approx(1.0, abs=0.01)


def test_a_sequence_that_failed_is_recorded_like_any_other() -> None:
    plans = planner()
    failed = text()
    plans.record(
        Round((failed,), (Outcome(Draft(), (), 0, (), (), "error"),), Scored(None, (), {}), (), 1.0, 1.0, 1.005)
    )
    assert 0.9 < plans.means.tokens < 1.0


def test_the_planners_own_time_is_counted() -> None:
    ticks = iter(range(1000))
    plans = AutoPlanner(Costs(FLAT), clock=lambda: float(next(ticks)))
    plans.quote([text()])
    plans.record(done([text()], [1], [1], 5e-3))
    assert plans.spent == 2.0
    assert isinstance(plans.quote([text()])[0], AutoQuote)

"""Benchmarks of toys: the figures add up, the oracle is what it says, replays are what runs are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Round
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.first import FirstOf
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.suffix import Suffix
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.loop import run
from foredraft.errors import DrafterError, OptionError
from foredraft.measure.bench.bench import Answered, Bench, PeerAnswer
from foredraft.measure.bench.oracle import LENGTH, KnownAnswer, followed, replay, replayable
from foredraft.measure.bench.report import BenchReport
from foredraft.measure.bench.rounds import RowCosts, Spent, Stopwatch
from tests.measure.toys import PROMPTS, V, certain, drafter, host, sampled

ANSWERS = (tuple(range(33)), tuple(range(100, 117)), (7,))  # 32, 16 and 0 tokens after the first
PASS_S, ROW_S, DRAFT_S = 0.010, 0.001, 0.002


@dataclass
class Toy:
    """A model whose clock is arithmetic: a pass costs 10 ms and 1 ms a row, a draft 2 ms."""

    takes: dict[str, int] = field(default_factory=lambda: {"good": 3, "bad": 0})  # guesses that survive, of four
    wrong: str = ""
    asked: list[tuple[int, str]] = field(default_factory=list)

    def answer(self, prompt: int, drafter: Any, draft_tokens: int | None = None) -> Answered:
        name = drafter if isinstance(drafter, str) else drafter.name
        self.asked.append((prompt, name))
        tokens = ANSWERS[prompt]
        if name == "none":
            return Answered(tokens, self._rounds(len(tokens) - 1, 0, 0))
        if name == "oracle":
            assert draft_tokens == LENGTH
            return Answered(tokens, self._rounds(len(tokens) - 1, LENGTH, LENGTH, 0.0))
        if name == self.wrong:
            tokens = (*tokens[:-1], 999)
        return Answered(tokens, self._rounds(len(tokens) - 1, 4, self.takes[name]))

    def replay(self, prompt: int, drafter: str, draft_tokens: int, answer: Sequence[int]) -> Sequence[Spent]:
        assert tuple(answer) == ANSWERS[prompt]
        rounds = self._rounds(len(answer) - 1, draft_tokens, min(draft_tokens, self.takes[drafter]))
        return [Spent(each.drafted, each.accepted, each.tokens, each.draft_s, 0.0) for each in rounds]

    def _rounds(self, tokens: int, drafted: int, accepted: int, draft_s: float = DRAFT_S) -> tuple[Spent, ...]:
        rounds = []
        while tokens:
            took = min(tokens, accepted + 1)
            cost = PASS_S + ROW_S * (drafted + 1)
            rounds.append(Spent(drafted, took - 1, took, draft_s if drafted else 0.0, cost))
            tokens -= took
        return tuple(rounds)


def bench_of(toy: Toy, **words: Any) -> Bench:
    steps: list[tuple[int, int]] = []
    bench = Bench(
        toy, [[1]] * 3, ["even", "short", "short"], ("good", "bad"), (1, 4), 40,
        step=lambda done, total: steps.append((done, total)), calm=lambda seconds: None, **words,
    )  # fmt: skip
    bench.run()
    assert steps == [(i + 1, len(steps)) for i in range(len(steps))]
    return bench


def test_runs_are_a_palindrome_and_everybody_was_warm() -> None:
    toy = Toy()
    bench_of(toy)
    assert toy.asked[:3] == [(0, "none"), (0, "good"), (0, "bad")]
    each = ["none", "good", "bad", "oracle", "bad", "good", "none"]
    assert toy.asked[3:] == [(prompt, name) for prompt in range(3) for name in each]


def test_the_figures_of_a_toy() -> None:
    document = BenchReport(bench_of(Toy())).to_dict()
    assert document["plain"] == {
        "tokens": 96, "decode_s": pytest.approx(96 * 0.011), "tokens_per_s": pytest.approx(1 / 0.011),
    }  # fmt: skip
    good, bad = document["drafters"]
    # four tokens in 15 ms of pass and 2 ms of drafting, against 44 ms
    assert good["speedup"] == pytest.approx(44 / 17)
    assert (good["mean_tokens_per_pass"], good["acceptance_rate"]) == (4.0, 0.75)
    assert (good["identical"], good["answers"], good["prompts"]) == (6, 6, 3)
    assert bad["speedup"] == pytest.approx(11 / 17)
    assert bad["interval"] == pytest.approx([11 / 17, 11 / 17])
    # the oracle: 16 tokens in one pass of 16 rows
    assert document["oracle"]["speedup"] == pytest.approx(16 * 11 / 26)
    assert (document["oracle"]["identical"], document["oracle"]["answers"]) == (3, 3)
    assert good["percent_of_oracle"] == pytest.approx(100 * (44 / 17) / (16 * 11 / 26))
    assert [task["task"] for task in good["tasks"]] == ["even", "short"]
    assert good["worst_task"] in ("even", "short")
    assert good["spread"]["least"] == pytest.approx(good["spread"]["most"])


def test_the_best_fixed_length_in_hindsight() -> None:
    good, bad = BenchReport(bench_of(Toy())).to_dict()["drafters"]
    # length 1 is priced between the measured passes of 1 and 5 rows: two tokens in 12 + 2 ms, against 22
    assert [row["draft_tokens"] for row in good["lengths"]] == [0, 1, 4]
    assert [row["speedup"] for row in good["lengths"]] == pytest.approx([1.0, 22 / 14, 44 / 17])
    assert [row["mean_tokens_per_pass"] for row in good["lengths"]] == [1.0, 2.0, 4.0]
    assert good["best_fixed"] == {"draft_tokens": 4, "speedup": pytest.approx(44 / 17)}
    assert good["percent_of_best_fixed"] == pytest.approx(100)
    # for the bad one nothing beats no guesses at all
    assert bad["best_fixed"] == {"draft_tokens": 0, "speedup": pytest.approx(1.0)}
    assert bad["percent_of_best_fixed"] == pytest.approx(100 * 11 / 17)


def test_another_text_is_counted() -> None:
    good, bad = BenchReport(bench_of(Toy(wrong="bad"))).to_dict()["drafters"]
    assert (good["identical"], bad["identical"]) == (6, 0)


def test_one_task_needs_no_table_of_tasks() -> None:
    bench = Bench(Toy(), [[1], [1]], ["x", "x"], ("good",), (2,), 40)
    bench.run()
    (good,) = BenchReport(bench).to_dict()["drafters"]
    assert (good["tasks"], good["worst_task"]) == ([], None)


@dataclass
class Fragile(Toy):
    """One of whose drafters breaks when it is asked for the so manyth time, or when it is replayed."""

    breaks: str = "bad"
    at: int = 1
    replayed: bool = False
    error: Exception = field(default_factory=lambda: RuntimeError("two\nlines"))

    def answer(self, prompt: int, drafter: Any, draft_tokens: int | None = None) -> Answered:
        found = Toy.answer(self, prompt, drafter, draft_tokens)
        if drafter == self.breaks and not self.replayed and sum(n == self.breaks for _, n in self.asked) == self.at:
            raise self.error
        return found

    def replay(self, prompt: int, drafter: str, draft_tokens: int, answer: Sequence[int]) -> Sequence[Spent]:
        if drafter == self.breaks and self.replayed and (prompt, draft_tokens) == (1, 4):
            raise self.error
        return Toy.replay(self, prompt, drafter, draft_tokens, answer)


@pytest.mark.parametrize("toy", [*(Fragile(at=at) for at in (1, 2, 3, 4)), Fragile(replayed=True)])
def test_a_drafter_that_breaks_leaves_the_others_their_figures(toy: Fragile) -> None:
    whole, _ = BenchReport(bench_of(Toy())).to_dict()["drafters"]
    document = BenchReport(bench_of(toy, peers=[Other("whole")])).to_dict()
    good, bad = document["drafters"]
    assert {name: good[name] for name in ("drafter", "answers", "identical", "fault")} == {
        "drafter": "good", "answers": 6, "identical": 6, "fault": None,
    }  # fmt: skip
    assert (good["speedup"], good["percent_of_oracle"]) == pytest.approx((whole["speedup"], whole["percent_of_oracle"]))
    assert [row["speedup"] for row in good["lengths"]] == pytest.approx([row["speedup"] for row in whole["lengths"]])
    assert set(bad) == set(good)
    assert (bad["fault"], bad["speedup"], bad["answers"]) == ("RuntimeError: two lines", None, 0)
    assert document["peers"][0]["over_drafters"] == {"good": pytest.approx(0.5 / (44 / 17)), "bad": None}
    asked = [name for _, name in toy.asked].count("bad")
    assert asked == (7 if toy.replayed else toy.at) - 2 * toy.replayed  # not once more after it broke


def test_our_own_sentence_is_not_named_twice() -> None:
    toy = Fragile(error=DrafterError("drafter bad: it broke"))
    assert BenchReport(bench_of(toy)).to_dict()["drafters"][1]["fault"] == "drafter bad: it broke"


def test_what_breaks_plain_decoding_is_raised() -> None:
    with pytest.raises(RuntimeError, match="two"):
        bench_of(Fragile(breaks="none", at=3))


@pytest.mark.parametrize("at", [4, 5])
def test_what_ends_it_leaves_whole_prompts(at: int) -> None:
    toy, peers = Fragile(breaks="good", at=at), [Other("whole")]
    toy.error = KeyboardInterrupt()  # type: ignore[assignment] - Ctrl-C in the second prompt
    bench = Bench(toy, [[1]] * 3, ["even", "short", "short"], ("good",), (1,), 40, peers, calm=lambda seconds: None)
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert bench.timed
    document = BenchReport(bench).to_dict()
    (good,) = document["drafters"]
    assert (good["prompts"], good["answers"], good["fault"]) == (1, 2, None)
    assert good["speedup"] == pytest.approx(44 / 17)
    assert document["peers"][0]["answers"] == 1


def test_it_ends_where_nobody_is_left() -> None:
    toy = Fragile(at=3)
    bench = Bench(toy, [[1]] * 3, ["x"] * 3, ("bad",), (1,), 40)
    bench.run()
    document = BenchReport(bench).to_dict()
    assert document["plain"]["tokens"] == 64  # the first prompt's, twice
    assert document["drafters"][0]["fault"] == "RuntimeError: two lines"
    assert [prompt for prompt, _ in toy.asked] == [0] * 7


@dataclass
class Other:
    name: str
    breaks_after: int = 99
    asked: int = 0

    def answer(self, prompt: Sequence[int], max_tokens: int) -> PeerAnswer:
        self.asked += 1
        if self.asked > self.breaks_after:
            raise RuntimeError("out of\nmemory")
        return PeerAnswer(ANSWERS[0], 32, 32 * 0.022)


def test_peers_and_one_that_breaks() -> None:
    peers = [Other("whole"), Other("breaks", breaks_after=2), Other("never", breaks_after=0)]
    whole, breaks, never = BenchReport(bench_of(Toy(), peers=peers)).to_dict()["peers"]
    assert (whole["answers"], whole["identical"], whole["fault"]) == (3, 1, None)
    assert whole["over_plain"] == pytest.approx(0.5)
    assert whole["over_drafters"]["good"] == pytest.approx(0.5 / (44 / 17))
    assert (breaks["answers"], breaks["fault"]) == (1, "RuntimeError: out of memory")
    assert breaks["over_plain"] == pytest.approx(0.5)
    assert (never["tokens_per_s"], never["over_plain"], never["fault"]) == (None, None, "RuntimeError: out of memory")
    assert peers[1].asked == 3


def test_nothing_to_time() -> None:
    class Brief(Toy):
        def answer(self, prompt: int, drafter: Any, draft_tokens: int | None = None) -> Answered:
            return Answered((7,), ())

        def replay(self, *_: Any) -> Sequence[Spent]:
            return []

    with pytest.raises(OptionError, match="nothing to time"):
        Bench(Brief(), [[1]], ["x"], ("good",), (2,), 40).run()


@pytest.mark.parametrize(("lengths", "tokens", "words"), [((0,), 9, "lengths must be"), ((1,), 1, "max_tokens must")])
def test_bad_plans(lengths: tuple[int, ...], tokens: int, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Bench(Toy(), [[1]], ["x"], ("good",), lengths, tokens)


def test_costs_rise_with_the_rows() -> None:
    rounds = [Spent(0, 0, 1, 9.0, 2.0), Spent(0, 0, 1, 0.0, 4.0), Spent(2, 0, 1, 0.0, 2.0), Spent(4, 0, 1, 0.0, 8.0)]
    costs = RowCosts(rounds)
    assert costs.counts == {1: 2, 3: 1, 5: 1}
    pooled = (2 + 4 + 2) / 3  # three rows were cheaper than one, which can only be noise
    assert [costs(rows) for rows in (1, 2, 3, 4, 5, 99)] == pytest.approx(
        [pooled, pooled, pooled, (pooled + 8) / 2, 8, 8]
    )
    with pytest.raises(ValueError, match="no round"):
        RowCosts([])


def test_a_stopwatch_leaves_the_prompt_out() -> None:
    watch = Stopwatch(clock=lambda: 10.0)
    sequence, scored = TokenSequence([1, 2, 3], 9, prompt_length=2), Scored(None, (0,), {})
    first = Outcome(Draft(), (3,), 0, (), ("plain",), None)
    watch.see(Round((sequence,), (first,), scored, (), 1.0, 2.0, 3.0))
    assert watch.rounds == []
    sequence.tokens += [4, 5]
    second = Outcome(Draft.chain([4, 9]), (4, 5), 1, (0,), ("x", "correction"), None)
    watch.see(Round((sequence,), (second,), scored, (), 6.0, 6.5, 9.0))
    assert watch.rounds == [Spent(2, 1, 2, 0.5, 3.5)]
    assert (watch.rounds[0].rows, watch.rounds[0].seconds) == (3, 4.0)
    failed = Outcome(Draft(), (), 0, (), (), "error")
    watch.see(Round((sequence,), (failed,), scored, (), 6.0, 6.5, 9.0))
    assert len(watch.rounds) == 1


def text_of(prompt: Sequence[int], temperature: float) -> TokenSequence:
    return TokenSequence(list(prompt), len(prompt) + 40, SamplingParams(temperature), Noise(5, coupled=temperature > 0))


def rounds_of(guesser: Any, prompt: Sequence[int], temperature: float, length: int) -> tuple[list[int], list[Spent]]:
    watch, sequence = Stopwatch(), text_of(prompt, temperature)
    list(run([sequence], host().target, guesser, FixedPlanner(length), [watch]))
    return sequence.answer, watch.rounds


def counted(rounds: Sequence[Spent]) -> list[tuple[int, int, int]]:
    return [(each.drafted, each.accepted, each.tokens) for each in rounds]


@pytest.mark.parametrize("length", [1, 3, 15])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("make", [lambda: drafter(certain, "c"), lambda: drafter(sampled, "s"), lambda: Suffix(0, 2)])
def test_a_replay_is_the_run_without_the_target(make: Any, temperature: float, length: int) -> None:
    for prompt in PROMPTS:
        answer, plain = rounds_of(drafter(lambda *_: Draft(), "n"), prompt, temperature, 0)
        assert len(plain) == len(answer) - 1 == 39
        same, real = rounds_of(make(), prompt, temperature, length)
        assert same == answer
        replayed = replay(make(), text_of(prompt, temperature), answer, length, V, clock=iter(range(10**6)).__next__)
        assert counted(replayed) == counted(real)
        assert {each.draft_s for each in replayed} == {1}
        assert sum(each.tokens for each in replayed) == 39


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_oracle_is_always_right(temperature: float) -> None:
    for prompt in PROMPTS:
        answer, _ = rounds_of(drafter(lambda *_: Draft(), "n"), prompt, temperature, 0)
        same, rounds = rounds_of(KnownAnswer(answer), prompt, temperature, LENGTH)
        assert same == answer
        assert [(each.accepted, each.tokens) for each in rounds] == [(15, 16), (15, 16), (6, 7)]


def test_an_answer_that_is_not_the_known_one_ends_all_the_same() -> None:
    answer, _ = rounds_of(drafter(lambda *_: Draft(), "n"), PROMPTS[0], 0.0, 0)
    assert rounds_of(KnownAnswer([0] * 3), PROMPTS[0], 0.0, LENGTH)[0] == answer


def test_a_drafter_that_breaks_in_a_replay_is_ended() -> None:
    broken = drafter(lambda *_: Draft.chain([V]), "broken")
    ended: list[TokenSequence] = []
    broken.end = ended.append
    sequence = text_of(PROMPTS[0], 0.0)
    with pytest.raises(DrafterError, match="outside the vocabulary"):
        replay(broken, sequence, [1, 2, 3], 4, V)
    assert ended == [sequence]


def test_followed_and_replayable() -> None:
    tree = Draft((5, 6, 7, 8), (-1, -1, 1, 2))
    assert followed(tree, (6, 7, 9)) == (1, 2)
    assert followed(tree, (4,)) == ()
    tapping = drafter(certain, "taps")
    tapping.taps = (1,)
    target = host().target
    view: Any = type("View", (), {})()
    assert replayable(FirstOf([Suffix(), ModelDrafter(target, V)]))
    assert not replayable(FirstOf([Suffix(), tapping]))
    assert not replayable(ModelDrafter(view, V))

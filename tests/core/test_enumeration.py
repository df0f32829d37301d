"""The law of the text is the target's: every way the noise can fall, in rational numbers, total variation exactly 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from foredraft.core import round as rounds
from foredraft.core.accept import accept, residual
from foredraft.core.draft import Draft
from foredraft.core.law import Dense, Point
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import Sequence as Text
from foredraft.engine.planner import FixedPlanner

from .exact import (
    PROMPT,
    filtered_by_hand,
    law,
    mean_accepted_chain,
    mean_accepted_siblings,
    q_of,
    random_table,
    text_law,
)
from .fork import ForkNoise, branches
from .toys import (
    EagerPlanner,
    Table,
    ToyDrafter,
    ToyTarget,
    generate,
    nothing,
    onehot_tree,
    sampled_chain,
    sampled_tree,
)


def as_laws(logits: Any, drafts: Sequence[Draft], params: Any) -> list[Callable[[int], Dense]]:
    """Stand in for ``distribution``: the toy target's rows are the laws themselves."""
    starts = np.cumsum([0] + [len(d) + 1 for d in drafts])
    return [lambda node, start=start: Dense(logits[start + 1 + node]) for start in starts[:-1]]


def drafted_law(
    table: Table, guess: Any, length: int, limit: int, stop: frozenset[int] = frozenset(), finish: bool = True
) -> tuple[dict[Any, Fraction], Fraction]:
    """Return the law of the text that rounds with drafts give, and the mean number accepted in the first round.

    Without ``finish`` only the first round is enumerated; the target itself goes on from there.
    """
    result: Counter[tuple[int, ...]] = Counter()
    mean = Fraction(0)

    def run(fork: Any) -> tuple[tuple[int, ...], int]:
        sequence = Text(list(PROMPT), limit=len(PROMPT) + length, stop_ids=stop, noise=ForkNoise(fork=fork))
        target, planner, drafter = ToyTarget(table), EagerPlanner(limit), ToyDrafter(guess)
        if finish:
            first = generate([sequence], target, drafter, planner)[0][0]
        else:
            first = rounds.run_round([sequence], target, drafter, planner)[0]
        return tuple(sequence.answer), first.accepted

    with patch.object(rounds, "distribution", as_laws):
        for weight, (text, accepted) in branches(run):
            mean += weight * accepted
            ended = len(text) >= length or text[-1] in stop
            rest = {(): Fraction(1)} if ended else text_law(table, length - len(text), stop, (*PROMPT, *text))
            for more, probability in rest.items():
                result[text + more] += weight * probability
    return {text: weight for text, weight in result.items() if weight}, mean


def test_the_forking_source_is_fair() -> None:
    drawn: Counter[int] = Counter()
    probabilities = law(0, 2, 0, 3, 1, 0)
    for weight, token in branches(lambda fork: Dense(probabilities).draw(ForkNoise(fork=fork).last())):
        drawn[token] += weight
    assert [drawn[i] for i in range(6)] == list(probabilities)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("holes", [False, True])
def test_chain(k: int, holes: bool) -> None:
    p, q = random_table(k, 3, holes), random_table(100 + k, 3, holes)
    drafted, mean = drafted_law(p, sampled_chain(q_of(q)), k + 1, k, finish=False)
    assert drafted == text_law(p, k + 1)
    assert mean == mean_accepted_chain(p, q, k)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whole_text_over_several_rounds(seed: int) -> None:
    p, q = random_table(seed, 3, seed == 3), random_table(50 + seed, 3, seed == 2)
    assert drafted_law(p, sampled_chain(q_of(q)), 3, 2)[0] == text_law(p, 3)


def test_stop_inside_a_draft() -> None:
    p, q = random_table(7, 3), random_table(8, 3)
    stop = frozenset({2})
    assert drafted_law(p, sampled_chain(q_of(q)), 4, 3, stop, finish=False)[0] == text_law(p, 4, stop)


def test_budget_inside_a_draft() -> None:
    p, q = random_table(7, 2), random_table(8, 2)
    assert drafted_law(p, sampled_chain(q_of(q)), 2, 4)[0] == text_law(p, 2)


def test_plain_decoding_is_a_round_without_guesses() -> None:
    p = random_table(4, 4, holes=True)
    assert drafted_law(p, nothing, 3, 3) == (text_law(p, 3), 0)


PAIRS = {
    "equal": (law(1, 2, 3), law(1, 2, 3)),
    "disjoint": (law(0, 1, 1, 0), law(1, 0, 0, 1)),
    "p one-hot": (law(0, 1, 0), law(1, 1, 2)),
    "q one-hot": (law(1, 1, 2), law(0, 1, 0)),
    "both one-hot, same": (law(0, 1, 0), law(0, 1, 0)),
    "both one-hot, different": (law(0, 1, 0), law(1, 0, 0)),
    "ties": (law(1, 1, 1, 1), law(1, 1, 2, 2)),
    "q padded": (law(3, 2, 1, 4), law(1, 2, 3, 0)),
    "p padded": (law(3, 2, 1, 0, 0), law(1, 2, 3, 1, 1)),
    "tiny": (law(1, 10**30, 10**15), law(10**30, 1, 0)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pair(name: str) -> None:
    p, q = (Table(np.stack([row])) for row in PAIRS[name])
    for k in (1, 2):
        drafted, mean = drafted_law(p, sampled_chain(q_of(q)), k + 1, k, finish=False)
        assert drafted == text_law(p, k + 1)
        beta = sum(np.minimum(p.rows[0], q.rows[0]))
        assert mean == sum(beta**i for i in range(1, k + 1))


TREES = {
    "two": ((), ()),
    "three": ((), (), ()),
    "deep": (((), ()), ((),)),
    "late": ((), (((),),)),
}


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("holes", [False, True])
def test_tree_of_certain_guesses(shape: str, holes: bool) -> None:
    p, q = random_table(11, 4, holes), random_table(12, 4)
    order = lambda path: sorted(range(4), key=lambda x: (-q(path)[x], x))  # noqa: E731
    drafted, mean = drafted_law(p, onehot_tree(order, TREES[shape]), 4, 9, finish=False)
    assert drafted == text_law(p, 4)

    def covered(path: tuple[int, ...], below: Any) -> Fraction:  # a path of guesses is accepted as often as p takes it
        pairs = zip(order(path), below, strict=False)
        return sum((p(path)[x] * (1 + covered((*path, x), child)) for x, child in pairs), Fraction(0))

    assert mean == covered(PROMPT, TREES[shape])


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("holes", [False, True])
def test_tree_of_sampled_siblings(shape: str, replacement: bool, holes: bool) -> None:
    p, q = random_table(21, 3, holes), random_table(22, 3, holes)
    drafted, mean = drafted_law(p, sampled_tree(q_of(q), TREES[shape], replacement), 3, 9, finish=False)
    assert drafted == text_law(p, 3)
    if not any(TREES[shape]):  # one level deep
        assert mean == mean_accepted_siblings(p(PROMPT), q(PROMPT), len(TREES[shape]), replacement)


def test_ragged_batch() -> None:
    """Two neighbours with drafts of different lengths: each has its own law, independent of the other's."""
    p, q = random_table(31, 2), random_table(32, 2)
    prompts = ((0, 1), (1,))
    joint: Counter[Any] = Counter()

    def run(fork: Any) -> Any:
        texts = [Text(list(prompt), limit=9, noise=ForkNoise(fork=fork)) for prompt in prompts]
        guess = lambda s, quote, noise: sampled_chain(q_of(q), 2 if len(s.tokens) == 2 else 1)(s, quote, noise)  # noqa: E731
        rounds.run_round(texts, ToyTarget(p), ToyDrafter(guess), EagerPlanner(5))
        return tuple(tuple(t.answer) for t in texts)

    with patch.object(rounds, "distribution", as_laws):
        for weight, answers in branches(run):
            rests = [text_law(p, 3 - len(a), prompt=(*pr, *a)) for pr, a in zip(prompts, answers, strict=True)]
            for more, a in rests[0].items():
                for others, b in rests[1].items():
                    joint[answers[0] + more, answers[1] + others] += weight * a * b
    laws = [text_law(p, 3, prompt=prompt) for prompt in prompts]
    assert joint == {(a, b): laws[0][a] * laws[1][b] for a in laws[0] for b in laws[1]}


FILTERS = {
    "temperature": SamplingParams(temperature=0.7),
    "top-k": SamplingParams(temperature=1.3, top_k=2),
    "top-p": SamplingParams(temperature=1.0, top_p=0.7),
    "min-p": SamplingParams(temperature=1.0, min_p=0.3),
    "all": SamplingParams(temperature=0.9, top_k=3, top_p=0.9, min_p=0.1),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_through_the_real_distribution(name: str) -> None:
    """The real logits-to-law function, its laws taken as rationals, beside a draft at another temperature."""
    params = FILTERS[name]
    table, other = Table.random(5, 3), Table.random(6, 3)
    real = rounds.distribution

    def exact(logits: Any, drafts: Any, params: Any) -> Any:
        def rational(of_node: Any) -> Any:
            return lambda node: Dense(np.array([Fraction(x) for x in of_node(node).probabilities]))

        return [rational(of_node) for of_node in real(logits, drafts, params)]

    def q(path: Sequence[int]) -> Dense:
        return Dense(law(*filtered_by_hand(other(path), SamplingParams(temperature=1.6))))

    found: Counter[Any] = Counter()

    def run(fork: Any) -> Any:
        sequence = Text(list(PROMPT), limit=len(PROMPT) + 3, noise=ForkNoise(fork=fork), params=params, prompt_length=1)
        generate([sequence], ToyTarget(table), ToyDrafter(sampled_chain(q)), FixedPlanner(2))
        return tuple(sequence.answer[1:])

    with patch.object(rounds, "distribution", exact):
        for weight, text in branches(run):
            found[text] += weight
    wanted = text_law(Table([filtered_by_hand(row, params) for row in table.rows]), 3)  # type: ignore[arg-type]
    assert sum(abs(float(found[t]) - float(wanted.get(t, 0))) for t in set(found) | set(wanted)) / 2 < 1e-12


def test_a_token_that_the_target_rules_out_is_never_accepted() -> None:
    """Noise of exactly zero, a token that p gives nothing and q much, little or nothing."""

    class Zero:
        def test(self, node: int) -> float:
            return 0.0

    p = Dense(np.array([0.0, 1.0]))
    for share in (1.0, 0.5, 1e-300, 0.0):
        draft = Draft.chain([0], [Dense(np.array([share, 1 - share]))])
        assert accept(draft, lambda node: p, Zero()).path == ()  # type: ignore[arg-type]


def test_an_empty_residual_is_the_target() -> None:
    p = Dense(np.array([0.25, 0.75]))
    assert residual(p, p) is p
    assert residual(Point(1), Dense(np.array([0.0, 1.0]))) == Point(1)
    assert residual(Dense(np.array([0.0, 1.0])), Point(1)).probabilities.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("token", range(3))
def test_a_point_is_its_dense_twin(token: int) -> None:
    """As the draft's law and as the target's, a ``Point`` does what the one-hot ``Dense`` does."""
    onehot = law(*(int(i == token) for i in range(3)))
    for other in (law(1, 2, 3), law(0, 1, 1), law(0, 0, 1), onehot):
        p_point, p_dense = residual(Point(token), Dense(other)), residual(Dense(onehot), Dense(other))
        assert [p_point[i] for i in range(3)] == [p_dense[i] for i in range(3)]
        q_point, q_dense = residual(Dense(other), Point(token)), residual(Dense(other), Dense(onehot))
        assert [q_point[i] for i in range(3)] == [q_dense[i] for i in range(3)]
        for p_pair in ((Dense(other), Dense(other)), (Point(token), Dense(onehot))):
            results = []
            for p, q in zip(p_pair, (None, (Dense(onehot), Dense(onehot))), strict=True):
                draft = Draft.chain([token, token], q)
                found: Counter[Any] = Counter()
                for weight, kept in branches(lambda fork, d=draft, p=p: accept(d, lambda n: p, ForkNoise(fork=fork))):  # type: ignore[misc]
                    found[kept.path, tuple(Fraction(kept.law[i]) for i in range(3))] += weight
                results.append(found)
            assert results[0] == results[1]

"""The law of the text is the target's: every way the noise can fall, in rational numbers, total variation exactly 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from foredraft.core.accept import accept, residual
from foredraft.core.draft import Draft
from foredraft.core.law import Dense, Point, Sparse
from foredraft.core.round import run_round
from foredraft.core.sampling import SamplingParams, law_of
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedPlanner

from .drafted import RULES, certain_chain, drafted_law, q_of, text_of
from .exact import (
    PROMPT,
    Shaped,
    filtered_by_hand,
    law,
    matches,
    mean_accepted_chain,
    mean_accepted_siblings,
    mean_matched_chain,
    mean_matched_siblings,
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

MEAN = {"ratio": mean_accepted_chain, "coupled": mean_matched_chain}
BOTH = pytest.mark.parametrize("rule", RULES)
HOLES = pytest.mark.parametrize("holes", [False, True])


def test_the_forking_source_is_fair() -> None:
    drawn: Counter[int] = Counter()
    probabilities = law(0, 2, 0, 3, 1, 0)
    for weight, token in branches(lambda fork: Dense(probabilities).draw(ForkNoise(fork=fork).last())):
        drawn[token] += weight
    assert [drawn[i] for i in range(6)] == list(probabilities)


def test_laws_asked_of_one_place_share_its_number() -> None:
    """Each is drawn from truly, whichever refines the number first, and two of them agree as by inversion."""
    laws = [law(1, 2, 3), law(3, 2, 1), law(0, 5, 1)]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)):
        joint: Counter[Any] = Counter()

        def run(fork: Any, order: Any = order) -> Any:
            noise = ForkNoise(fork=fork, coupled=True)
            near, far = noise.at(3), noise.at(1)
            drawn = {i: far.guess(Dense(laws[i]), 7, 2) if i else near.race(Dense(laws[i]), 0) for i in order}
            assert drawn[0] == far.race(Dense(laws[0]), 2)  # the same place, from wherever it is seen
            return tuple(drawn[i] for i in range(3))

        for weight, drawn in branches(run):
            joint[drawn] += weight
        for i, q in enumerate(laws):
            assert [sum(w for drawn, w in joint.items() if drawn[i] == x) for x in range(3)] == list(q)
            for j in range(i):
                agreed = [sum(w for drawn, w in joint.items() if drawn[i] == drawn[j] == x) for x in range(3)]
                assert agreed == matches(laws[j], q)


def test_places_and_streams_of_a_fork_are_independent() -> None:
    half = Dense(law(1, 1))
    joint: Counter[Any] = Counter()

    def run(fork: Any) -> Any:
        noise = ForkNoise(fork=fork, coupled=True)
        alone = ForkNoise(fork=fork, known=noise.known)
        return (
            *(noise.race(half, depth) for depth in (0, 1)),
            *(alone.guess(half, node, 0) for node in (0, 1)),
            half.draw(noise.last()),
        )

    for weight, drawn in branches(run):
        joint[drawn] += weight
    assert list(joint.values()) == [Fraction(1, 32)] * 32


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@HOLES
@BOTH
def test_chain(k: int, holes: bool, rule: str) -> None:
    p, q = random_table(k, 3, holes), random_table(100 + k, 3, holes)
    drafted, mean = drafted_law(p, sampled_chain(q_of(q)), k + 1, k, rule=rule, finish=False)
    assert drafted == text_law(p, k + 1)
    assert mean == MEAN[rule](p, q, k)


def thin_table(seed: int) -> Table:
    """Return laws over four of five tokens each, which four being told by the seed and the row."""
    full = random_table(seed, 5).rows
    return Table(
        np.stack([law(*(w if x != (seed + i) % 5 else 0 for x, w in enumerate(r))) for i, r in enumerate(full)])
    )


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize(("kind", "draft_kind"), [("sparse", "dense"), ("dense", "sparse"), ("sparse", "sparse")])
@BOTH
def test_chain_of_sparse_laws(k: int, kind: str, draft_kind: str, rule: str) -> None:
    p, q = thin_table(k), thin_table(11 + k)
    drafted, mean = drafted_law(p, sampled_chain(q_of(q, draft_kind)), k + 1, k, rule=rule, finish=False, kind=kind)
    assert drafted == text_law(p, k + 1)
    assert mean == MEAN[rule](p, q, k)


@pytest.mark.parametrize("known", [(0, 2), (1,), (3,), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("holes", [False, True])
@BOTH
def test_a_draft_model_that_knows_only_some_tokens(known: tuple[int, ...], holes: bool, rule: str) -> None:
    """Its law is ``Sparse`` over target ids, the edges of the vocabulary among them or not."""
    p, full = random_table(41, 4, holes), random_table(42, 4)
    q = Table(np.stack([law(*(w if x in known else 0 for x, w in enumerate(row))) for row in full.rows]))
    reduced = lambda path: Sparse(q(path)[list(known)], np.array(known))  # noqa: E731
    drafted, mean = drafted_law(p, sampled_chain(reduced), 3, 2, rule=rule, finish=False)
    assert drafted == text_law(p, 3)
    assert mean == MEAN[rule](p, q, 2)
    shape = ((), ((),))
    assert drafted_law(p, sampled_tree(reduced, shape, False), 3, 9, rule=rule, finish=False)[0] == text_law(p, 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@BOTH
def test_whole_text_over_several_rounds(seed: int, rule: str) -> None:
    p, q = random_table(seed, 3, seed == 3), random_table(50 + seed, 3, seed == 2)
    assert drafted_law(p, sampled_chain(q_of(q)), 3, 2, rule=rule)[0] == text_law(p, 3)


@BOTH
def test_whole_text_by_trees(rule: str) -> None:
    p, q = random_table(5, 2), random_table(55, 2)
    shape = (((),), ())
    assert drafted_law(p, sampled_tree(q_of(q), shape, False), 3, 9, rule=rule)[0] == text_law(p, 3)


@BOTH
def test_stop_inside_a_draft(rule: str) -> None:
    p, q = random_table(7, 3), random_table(8, 3)
    stop = frozenset({2})
    drafted, _ = drafted_law(p, sampled_chain(q_of(q)), 4, 3, stop, rule=rule, finish=False)
    assert drafted == text_law(p, 4, stop)


@BOTH
def test_budget_inside_a_draft(rule: str) -> None:
    p, q = random_table(7, 2), random_table(8, 2)
    assert drafted_law(p, sampled_chain(q_of(q)), 2, 4, rule=rule)[0] == text_law(p, 2)


@BOTH
def test_plain_decoding_is_a_round_without_guesses(rule: str) -> None:
    p = random_table(4, 4, holes=True)
    assert drafted_law(p, nothing, 3, 3, rule=rule) == (text_law(p, 3), 0)


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
@BOTH
def test_pair(name: str, rule: str) -> None:
    p, q = (Table(np.stack([row])) for row in PAIRS[name])
    for k in (1, 2):
        drafted, mean = drafted_law(p, sampled_chain(q_of(q)), k + 1, k, rule=rule, finish=False)
        assert drafted == text_law(p, k + 1)
        beta = sum(np.minimum(p.rows[0], q.rows[0]) if rule == "ratio" else matches(p.rows[0], q.rows[0]))
        assert mean == sum(beta**i for i in range(1, k + 1))


TREES = {
    "two": ((), ()),
    "three": ((), (), ()),
    "deep": (((), ()), ((),)),
    "late": ((), (((),),)),
    "forked": (((), ((),)),),
}


@pytest.mark.parametrize("shape", TREES)
@HOLES
@BOTH
def test_tree_of_certain_guesses(shape: str, holes: bool, rule: str) -> None:
    p, q = random_table(11, 4, holes), random_table(12, 4)
    order = lambda path: sorted(range(4), key=lambda x: (-q(path)[x], x))  # noqa: E731
    drafted, mean = drafted_law(p, onehot_tree(order, TREES[shape]), 4, 9, rule=rule, finish=False)
    assert drafted == text_law(p, 4)

    def covered(path: tuple[int, ...], below: Any) -> Fraction:  # a path of guesses is accepted as often as p takes it
        pairs = zip(order(path), below, strict=False)
        return sum((p(path)[x] * (1 + covered((*path, x), child)) for x, child in pairs), Fraction(0))

    assert mean == covered(PROMPT, TREES[shape])


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("replacement", [False, True])
@HOLES
@BOTH
def test_tree_of_sampled_siblings(shape: str, replacement: bool, holes: bool, rule: str) -> None:
    p, q = random_table(21, 3, holes), random_table(22, 3, holes)
    drafted, mean = drafted_law(p, sampled_tree(q_of(q), TREES[shape], replacement), 3, 9, rule=rule, finish=False)
    assert drafted == text_law(p, 3)
    if not any(TREES[shape]):  # one level deep
        count = len(TREES[shape])
        if rule == "ratio":
            assert mean == mean_accepted_siblings(p(PROMPT), q(PROMPT), count, replacement)
        else:  # with replacement one number draws the same sibling again and again
            assert mean == mean_matched_siblings(p(PROMPT), q(PROMPT), 1 if replacement else count)


def penalised(row: Any, sequence: TokenSequence, path: tuple[int, ...]) -> Any:
    """Shape as ``Shaped`` does: each occurrence in the text or on the path counts, the token before is forbidden."""
    text = [*sequence.tokens, *path]
    return np.array([0 * w if x == text[-1] else w / (1 + text.count(x)) for x, w in enumerate(row)], dtype=object)


@pytest.mark.parametrize("draft", ["shaped alike", "not shaped", "certain"])
@pytest.mark.parametrize("tree", [False, True])
@BOTH
def test_shaping_counts_the_drafted_prefix(draft: str, tree: bool, rule: str) -> None:
    """Position by position: the law of shaped text, whether or not the draft's laws are shaped as the target's are."""
    p, other = random_table(61, 3), random_table(62, 3)
    wanted = Shaped(p)
    q = Shaped(other) if draft == "shaped alike" else other
    if draft == "certain":
        order = lambda path: sorted(range(3), key=lambda x: -other(path)[x])  # noqa: E731
        guess = onehot_tree(order, (((),), ())) if tree else certain_chain(order, 2)
    else:
        guess = sampled_tree(q_of(q), (((),), ()), False) if tree else sampled_chain(q_of(q))
    options: dict[str, Any] = {"rule": rule, "shaping": penalised, "plain": wanted}
    drafted, mean = drafted_law(p, guess, 4, 2 + tree, finish=False, **options)
    assert drafted == text_law(wanted, 4)
    if draft != "certain" and not tree:
        assert mean == MEAN[rule](wanted, q, 2)  # type: ignore[arg-type]
    assert drafted_law(p, guess, 3 - tree, 2 + tree, **options)[0] == text_law(wanted, 3 - tree)


@BOTH
def test_ragged_batch(rule: str) -> None:
    """Two neighbours with drafts of different lengths: each has its own law, independent of the other's."""
    p, q = random_table(31, 2), random_table(32, 2)
    prompts = ((0, 1), (1,))
    joint: Counter[Any] = Counter()

    def run(fork: Any) -> Any:
        sequences = [text_of(ForkNoise(fork=fork, coupled=RULES[rule]), 7, prompt) for prompt in prompts]
        guess = lambda s, quote, noise: sampled_chain(q_of(q), 2 if len(s.tokens) == 2 else 1)(s, quote, noise)  # noqa: E731
        run_round(sequences, ToyTarget(p), ToyDrafter(guess), EagerPlanner(5))
        return tuple(tuple(t.answer) for t in sequences)

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
@BOTH
def test_filters_through_the_real_distribution(name: str, rule: str) -> None:
    """The real logits-to-law function, its laws taken as rationals, beside a draft at another temperature."""
    params = FILTERS[name]
    table, other = Table.random(5, 3), Table.random(6, 3)

    def rational(row: Any, params: SamplingParams) -> Dense:
        exact = law_of(row, params)
        assert isinstance(exact, Dense)
        return Dense(np.array([Fraction(x) for x in exact.probabilities]))

    def q(path: Sequence[int]) -> Dense:
        return Dense(law(*filtered_by_hand(other(path), SamplingParams(temperature=1.6))))

    found: Counter[Any] = Counter()

    def run(fork: Any) -> Any:
        noise = ForkNoise(fork=fork, coupled=RULES[rule])
        sequence = TokenSequence(list(PROMPT), len(PROMPT) + 3, params, noise, law=rational, prompt_length=1)
        generate([sequence], ToyTarget(table), ToyDrafter(sampled_chain(q)), FixedPlanner(2))
        return tuple(sequence.answer[1:])

    for weight, text in branches(run):
        found[text] += weight
    wanted = text_law(Table([filtered_by_hand(row, params) for row in table.rows]), 3)
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

"""Certificates of toys: given to the good, refused to each fault, with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from foredraft.core.draft import Draft
from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.errors import NumericalError, OptionError
from foredraft.measure.certificate.certificate import NOTHING, Certifier
from foredraft.measure.certificate.divergence import FAULT, TIE, divergence
from foredraft.measure.certificate.plan import RULES, THRESHOLD, Check, Plan
from foredraft.runtime.loaded_model import LoadedModel
from tests.core.toys import ToyDrafter, nothing
from tests.measure.toys import PROMPTS, V, certain, drafter, host, lying, sampled, target_table

pytestmark = pytest.mark.slow

QUICK = Plan(tokens=24, samples=60)
FEW = Plan(tokens=8, samples=4)
EQUALITY = ("greedy text", "seeded text")
LAWS = ("ratio law", "ratio law, planted fault", "coupled law", "coupled law, planted fault", "ratio law, top-p 0.95")


def certify(guess: Any, where: LoadedModel | None = None, plan: Plan = QUICK) -> dict[tuple[str, str], Check]:
    """Return the checks by drafter and name."""
    steps: list[tuple[int, int]] = []
    certifier = Certifier(
        where or host(), ["mine"], lambda name, length: drafter(guess, name), PROMPTS, plan,
        lambda done, total: steps.append((done, total)),
    )  # fmt: skip
    checks = {(check.drafter, check.name): check for check in certifier.checks()}
    assert steps == sorted(steps)
    assert steps[-1] == (certifier.total, certifier.total)
    return checks


def failed(checks: dict[tuple[str, str], Check]) -> set[tuple[str, str]]:
    return {place for place, check in checks.items() if not check.ok}


@pytest.mark.parametrize("guess", [certain, sampled])
def test_the_good_are_certified(guess: Any) -> None:
    checks = certify(guess)
    assert list(checks) == [(who, name) for who in ("none", "mine") for name in EQUALITY] + [
        ("mine", name) for name in LAWS
    ]
    assert failed(checks) == set()
    for name in EQUALITY:
        figures = checks["mine", name].figures
        assert (figures["answers"], figures["identical"], figures["ties"]) == (24, 24, 0)
        assert figures["mean_tokens_per_pass"] > 1
        assert checks["none", name].figures["answers"] == 4
    for name in LAWS:
        figures = checks["mine", name].figures
        assert figures["tokens"] == 60 * 24
        assert (figures["p_value"] < THRESHOLD) == ("planted" in name)


@pytest.mark.parametrize("rule", RULES)
def test_one_rule_alone(rule: str) -> None:
    checks = certify(sampled, plan=Plan(rules=(rule,), draft_tokens=2, tokens=24, samples=60))
    assert failed(checks) == set()
    names = {name for _, name in checks}
    assert ("seeded text" in names) == (rule == "coupled")
    assert names - set(EQUALITY) == {f"{rule} law{rest}" for rest in ("", ", planted fault", ", top-p 0.95")}
    assert checks["mine", "greedy text"].figures["answers"] == 24  # 1, 4 and 2


def test_the_same_plan_finds_the_same() -> None:
    first = certify(sampled, plan=FEW)
    assert certify(sampled, plan=FEW) == first
    other = certify(sampled, plan=Plan(tokens=8, samples=4, seed=9))
    assert other["mine", "ratio law"].figures != first["mine", "ratio law"].figures


def test_a_drafter_that_lies_about_its_law() -> None:
    """Its greedy and coupled text is the model's all the same: only ``ratio`` takes its word."""
    checks = certify(lying)
    assert failed(checks) == {("mine", "ratio law"), ("mine", "ratio law, top-p 0.95")}
    assert checks["mine", "ratio law"].note == "the text does not have the model's distribution"


def by_rows(size: float) -> Callable[[int], Any]:
    """Return logits that depend on how many rows ride along, by up to ``size``."""
    return lambda rows: np.random.default_rng(rows).normal(0, size, V)


def test_logits_that_depend_on_the_rows_are_a_fault_of_logic() -> None:
    checks = certify(certain, host(by_rows(0.5)), FEW)
    assert {("mine", "greedy text"), ("mine", "seeded text")} <= failed(checks)
    check = checks["mine", "greedy text"]
    assert check.figures["faults"] > 0
    first = next(d for d in check.divergences if d.verdict == FAULT)
    assert first.gap > 1e-3
    assert first.gap >= first.top2_margin >= 0
    assert "alone" in first.arm or "mixed" in first.arm


def with_twins(margin: float, tier: str, dtype: str) -> LoadedModel:
    """Return a toy whose token 0 is always ahead of token 1 by ``margin``, and behind in a pass of several rows."""
    shift = np.zeros(V)
    shift[1] = 2 * margin
    made = host(lambda rows: shift, tier=tier, dtype=dtype)
    model: Any = made.target.model
    model.table.rows[:, 1] = model.table.rows.max() + 1
    model.table.rows[:, 0] = model.table.rows[:, 1] + margin
    return made


@pytest.mark.parametrize(
    ("tier", "dtype", "margin", "ok"),
    [
        ("torch", "f32", 1e-5, True),
        ("torch", "f32", 1e-2, False),
        ("torch", "bf16", 1e-2, True),
        ("torch", "bf16", 0.5, False),
        ("native-avx2", "f32", 1e-5, False),
    ],
)
def test_a_tie_is_forgiven_where_rounding_may_differ(tier: str, dtype: str, margin: float, ok: bool) -> None:
    check = certify(certain, with_twins(margin, tier, dtype), FEW)["mine", "greedy text"]
    assert check.ok is ok
    assert len(check.divergences) > 0
    assert {d.verdict for d in check.divergences} == {TIE if margin < 1e-3 or ok else FAULT}
    assert {round(d.top2_margin, 9) for d in check.divergences} == {margin}
    assert check.to_dict()["divergences"][0]["gap"] == pytest.approx(margin, abs=1e-9)
    assert check.figures["answers"] - check.figures["identical"] == len(check.divergences)


@pytest.mark.parametrize(
    ("guess", "words"),
    [
        (lambda *_: Draft.chain([V + 3]), "outside the vocabulary"),
        (lambda *_: [1, 2], "DrafterError: mine: propose gave a list where a Draft belongs"),
        (lambda *_: Draft((1, 2), (1, 0)), "which is not before it"),
        (lambda *_: 1 / 0, "it broke: ZeroDivisionError: division by zero"),
    ],
)
def test_a_drafter_that_breaks_the_protocol(guess: Any, words: str) -> None:
    checks = certify(guess, plan=FEW)
    assert failed(checks) == {place for place in checks if place[0] == "mine"}
    assert all(words in str(check.note) for place, check in checks.items() if place[0] == "mine")


def test_a_drafter_that_changes_the_sequence() -> None:
    def grows(text: Any, quote: Any, noise: Any) -> Draft:
        text.tokens.append(1)
        return Draft()

    checks = certify(grows, plan=FEW)
    assert "propose changed a sequence" in str(checks["mine", "greedy text"].note)


def test_a_drafter_that_never_guesses_proves_nothing() -> None:
    checks = certify(nothing, plan=FEW)
    assert failed(checks) == {place for place in checks if place[0] == "mine"}
    assert {check.note for place, check in checks.items() if place[0] == "mine"} == {NOTHING}


def test_too_few_tokens_to_say_anything() -> None:
    checks = certify(certain, plan=Plan(tokens=8, samples=2))
    assert checks["mine", "ratio law"].note == "16 tokens are too few: 200 are needed"
    assert ("mine", "ratio law") in failed(checks)


def test_a_test_without_power_is_no_certificate() -> None:
    """A guess that the target rules out can be favoured for ever: nothing changes, and nothing can be found."""

    def hopeless(text: Any, quote: Any, noise: Any) -> Draft:
        return Draft.chain([int(np.argmin(target_table()(text.tokens)))])

    made = host()
    model: Any = made.target.model
    model.table.rows[:] = np.where(model.table.rows == model.table.rows.min(1, keepdims=True), -1e4, model.table.rows)
    checks = certify(hopeless, made)
    assert failed(checks) == {("mine", "ratio law, planted fault"), ("mine", "coupled law, planted fault")}
    assert "no power" in str(checks["mine", "ratio law, planted fault"].note)


def test_a_model_that_cannot_speculate_says_so() -> None:
    checks = certify(certain, host(why_not="its state cannot be rewound"), FEW)
    assert list(checks) == [("none", "greedy text"), ("none", "seeded text"), ("none", "speculation")]
    assert failed(checks) == set()
    assert (
        checks["none", "speculation"].note
        == "off for this model, no distribution was tested: its state cannot be rewound"
    )


def test_a_model_that_breaks_is_no_finding() -> None:
    made = host()
    model: Any = made.target.model
    model.table.rows[:] = np.nan
    with pytest.raises(NumericalError):
        certify(certain, made)


def test_every_drafter_is_named() -> None:
    certifier = Certifier(
        host(), ["none", "auto", "mine"], lambda name, length: ToyDrafter(certain, "lookup"), PROMPTS, QUICK,
        lambda done, total: None,
    )  # fmt: skip
    assert certifier.drafters == ("none", "lookup", "mine")


@pytest.mark.parametrize("wrong", [{"tokens": 1}, {"samples": 0}, {"draft_tokens": 0}, {"seed": -1}, {"seed": 1 << 32}])
def test_plans_that_are_none(wrong: Any) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Plan(**wrong)


def test_no_seed_is_used_twice() -> None:
    plan = Plan(tokens=4, samples=3)
    seeds: list[tuple[int, bool]] = []

    class Spy(ToyDrafter):
        def begin(self, sequence: TokenSequence) -> None:
            if sequence.params.temperature == 1:
                seeds.append((sequence.noise.seed, sequence.noise.coupled))

    certifier = Certifier(host(), ["a", "b"], lambda name, _: Spy(certain, name), PROMPTS, plan, lambda *_: None)
    list(certifier.checks())
    assert len(seeds) == len(set(seeds)) == 2 * 5 * 3


def parted(params: SamplingParams, want: int, got: int, seed: int = 0) -> Any:
    """Return the divergence of two one-token answers."""
    noise = Noise(seed, coupled=True)
    plain, other = (TokenSequence([1, 2, 3, token], 4, params, noise, prompt_length=3) for token in (want, got))
    made = host()
    return divergence(made.target, "f32", 7, "an arm", plain, other)


def test_a_greedy_margin_is_the_logits() -> None:
    row = target_table()([1, 2, 3])
    first, second, third = np.argsort(-row)[:3].tolist()
    found = parted(SamplingParams(), first, third)
    assert (found.prompt, found.arm, found.position) == (7, "an arm", 0)
    assert found.top2_margin == pytest.approx(row[first] - row[second])
    assert found.gap == pytest.approx(row[first] - row[third])
    assert found.verdict == FAULT
    assert parted(SamplingParams(), first, first) is None


@pytest.mark.parametrize("seed", range(8))
def test_a_race_margin_includes_the_noise(seed: int) -> None:
    """Moving the loser's logit by the gap, and no less, makes it win."""
    params = SamplingParams(temperature=0.8)
    row = target_table()([1, 2, 3])
    noise = Noise(seed, coupled=True).at(3)
    winner = noise.race(TokenSequence([1], 2).law(row, params), 0)
    loser = (winner + 1 + seed) % V
    if loser == winner:
        loser = (winner + 1) % V
    found = parted(params, winner, loser, seed)
    others = [token for token in range(V) if token not in (winner, loser)]
    for share, wins in ((0.999, winner), (1.001, loser)):
        moved = row.copy()
        moved[others] = -1e3
        moved[loser] += share * found.gap
        assert noise.race(TokenSequence([1], 2).law(moved, params), 0) == wins
    assert 0 <= found.top2_margin <= found.gap + 1e-12


def test_a_nucleus_edge_is_a_margin_too() -> None:
    """A token outside the nucleus that would win the race is as far away as the edge is, not as the race is."""
    row = target_table()([1, 2, 3])
    law = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
    order = np.argsort(-law)
    before = law[order[:3]].sum()  # the mass of those likelier than the fourth
    inside = SamplingParams(temperature=1.0, top_p=float(before) - 1e-7)  # the fourth is just outside
    outsider = int(order[3])
    seed = next(
        s for s in range(500)
        if Noise(s, coupled=True).at(3).race(
            TokenSequence([1], 2).law(row, SamplingParams(temperature=1.0)), 0
        ) == outsider
    )  # fmt: skip
    winner = Noise(seed, coupled=True).at(3).race(TokenSequence([1], 2).law(row, inside), 0)
    found = parted(inside, winner, outsider, seed)
    assert found.gap < 1e-5
    assert found.verdict == TIE
    far = SamplingParams(temperature=1.0, top_p=float(law[order[:2]].sum()) + 1e-7)
    winner = Noise(seed, coupled=True).at(3).race(TokenSequence([1], 2).law(row, far), 0)
    if winner in order[:3]:
        assert parted(far, winner, outsider, seed).verdict == FAULT


def test_a_text_that_merely_ends_sooner_is_a_fault() -> None:
    plain, short = TokenSequence([1, 2, 3, 4, 5], 5, prompt_length=3), TokenSequence([1, 2, 3, 4], 5, prompt_length=3)
    found = divergence(host().target, "f32", 0, "an arm", plain, short)
    assert found is not None
    assert (found.position, found.verdict, found.to_dict()["gap"]) == (1, FAULT, None)

"""With a chooser and a planner that decide everything, the law of the text is the target's: by enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from foredraft.core.draft import Draft
from foredraft.core.noise import Noise
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.planning.choose import Chooser
from foredraft.planning.costs import Costs, PassTable
from foredraft.planning.planner import AutoPlanner
from tests.core.drafted import RULES, q_of, text_of
from tests.core.exact import PROMPT, random_table, text_law
from tests.core.fork import ForkNoise, branches
from tests.core.toys import Table, ToyDrafter, ToyTarget, generate, nothing
from tests.planning.simulate import Clock

TABLE = PassTable((1, 4, 16), (5e-3, 6e-3, 20e-3), 0.0, 0.0)
BOTH = pytest.mark.parametrize("rule", RULES)


class Drawing(ToyDrafter):
    """Draws a chain as a draft model does: it goes on while what it has drawn is likely enough to survive."""

    def __init__(self, q: Table, most: int = 2, name: str = "drawing") -> None:
        super().__init__(self._guess, name)
        self.q = q_of(q)
        self.most = most

    def _guess(self, sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        tokens: list[int] = []
        laws: list[Any] = []
        sure: list[float] = []
        path = 1.0
        while len(tokens) < self.most and quote.worth(path, len(tokens)):
            law = self.q([*sequence.tokens, *tokens])
            tokens.append(noise.guess(law, len(tokens), len(tokens)))
            laws.append(law)
            path *= float(law[tokens[-1]])
            sure.append(path)
        return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(laws), self.name, tuple(sure))


class Certain(ToyDrafter):
    """Guesses one chain for a text, and prunes what does not pay as retrieval does."""

    free = True

    def __init__(self, q: Table) -> None:
        super().__init__(self._guess, "certain")
        self.q = q

    def _guess(self, sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        tokens: list[int] = []
        sure: list[float] = []
        for _ in range(2):
            row = [float(x) for x in self.q([*sequence.tokens, *tokens])]
            path = (sure[-1] if sure else 1.0) * max(row)
            if not quote.worth(path, len(tokens)):
                break
            tokens.append(row.index(max(row)))
            sure.append(path)
        return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)), None, self.name, tuple(sure))


def parts(seed: int, dear: float) -> tuple[Chooser, AutoPlanner]:
    """Return a chooser and a planner that know something already, so that all that they may decide is near at hand."""
    q = random_table(seed + 50, 2)
    clock = Clock()
    drafters = [Certain(random_table(seed + 90, 2)), Drawing(q), Drawing(random_table(seed, 2), 1, "other")]
    chooser = Chooser(drafters, clock)
    planner = AutoPlanner(Costs(TABLE), clock=clock)
    for source, chances, unit in zip(chooser.sources, ((1, 0), (1, 1, 0), (1,)), (0.0, dear, dear), strict=True):
        source.acceptance.learn([bool(c) for c in chances])
        source.unit = unit
        source.gap = 1  # a look whenever it does not pay
    return chooser, planner


def laws_of(p: Table, length: int, rule: str, make: Any) -> tuple[dict[Any, Fraction], Counter[str]]:
    """Return the law of the text over every way that the noise can fall, and who drafted in how many of them."""
    found: Counter[Any] = Counter()
    sources: Counter[str] = Counter()

    def run(fork: Any) -> Any:
        noise = ForkNoise(fork=fork, coupled=RULES[rule])
        sequence = text_of(noise, length, prompt_length=1)
        chooser, planner = make()
        chooser.begin(sequence)
        history = generate([sequence], ToyTarget(p), chooser, planner)
        sources.update({outcome.draft.source for outcome in history[0]})
        if noise.coupled:
            plain = text_of(noise, length, prompt_length=1)
            generate([plain], ToyTarget(p), ToyDrafter(nothing), planner)
            assert plain.tokens == sequence.tokens
        return tuple(sequence.tokens[len(PROMPT) :])

    for weight, text in branches(run):
        found[text] += weight
    return {text: weight for text, weight in found.items() if weight}, sources


@pytest.mark.parametrize(("seed", "dear"), [(0, 1e-4), (1, 1e-3), (2, 3e-3), (3, 1e-3)])
@BOTH
def test_the_law_is_the_targets(rule: str, seed: int, dear: float) -> None:
    p = random_table(seed, 2)
    found, sources = laws_of(p, 3, rule, lambda: parts(seed, dear))
    assert found == text_law(p, 3)
    assert len(sources) > 1


class Vain(Chooser):
    """The trap: it looks at what was drawn, and drops what seems unlikely."""

    def propose(self, sequences: Sequence[TokenSequence], quotes: Any, noises: Any) -> list[Draft]:
        drafts = super().propose(sequences, quotes, noises)
        return [Draft() if d.laws is not None and d.confidences and d.confidences[0] < 0.5 else d for d in drafts]


def test_to_drop_what_was_drawn_for_what_it_is_would_be_seen() -> None:
    """The harness is not blind, and only the ratio rule forbids it."""
    p, q = random_table(3, 2), random_table(8, 2)

    def make() -> tuple[Chooser, AutoPlanner]:
        clock = Clock()
        return Vain([Drawing(q)], clock), AutoPlanner(Costs(TABLE), clock=clock)

    assert laws_of(p, 3, "ratio", make)[0] != text_law(p, 3)
    assert laws_of(p, 3, "coupled", make)[0] == text_law(p, 3)


@BOTH
def test_two_texts_that_share_a_planner_are_independent(rule: str) -> None:
    p = random_table(31, 2)
    prompts = ((0, 1), (1, 1))
    joint: Counter[Any] = Counter()

    def run(fork: Any) -> Any:
        sequences = [text_of(ForkNoise(fork=fork, coupled=RULES[rule]), 2, pr, prompt_length=1) for pr in prompts]
        chooser, planner = parts(7, 1e-4)
        for sequence in sequences:
            chooser.begin(sequence)
        generate(sequences, ToyTarget(p), chooser, planner)
        return tuple(tuple(sequence.tokens[2:]) for sequence in sequences)

    for weight, answers in branches(run):
        joint[answers] += weight
    laws = [text_law(p, 2, prompt=prompt) for prompt in prompts]
    assert joint == {(a, b): laws[0][a] * laws[1][b] for a in laws[0] for b in laws[1]}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_planner_has_learnt_changes_no_seeded_text(temperature: float) -> None:
    """One chooser and one planner serve texts of all kinds; each text is what plain decoding makes of its seed."""
    p, clock = Table.random(5, 6), Clock()
    q = Table.random(6, 6)

    def guess(sequence: TokenSequence, quote: Any, noise: Any) -> Draft:
        tokens: list[int] = []
        while quote.worth(0.9 ** len(tokens), len(tokens)):
            row = (p if len(tokens) < 3 else q)([*sequence.tokens, *tokens])
            tokens.append(int(row.argmax()))
        return Draft.chain(tokens, None, "toy")

    chooser, planner = Chooser([ToyDrafter(guess)], clock), AutoPlanner(Costs(TABLE), clock=clock)
    drafted = 0
    for seed in range(8):
        noise, params = Noise(seed, coupled=True), SamplingParams(temperature=temperature)
        plain, sequence = (TokenSequence([seed % 6], 40, params, noise, prompt_length=1) for _ in range(2))
        generate([plain], ToyTarget(p), ToyDrafter(nothing), planner)
        chooser.begin(sequence)
        history = generate([sequence], ToyTarget(p), chooser, planner)
        chooser.end(sequence)
        drafted += sum(len(outcome.draft) for outcome in history[0])
        assert sequence.tokens == plain.tokens
    assert drafted > 0

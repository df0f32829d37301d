"""Drafting with heads: the text stays the target's own, each guess has the law it was drawn from, faults are said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foredraft
from foredraft import LanguageModel
from foredraft.core.draft import Draft
from foredraft.core.law import Sparse
from foredraft.core.noise import Noise
from foredraft.core.round import checked, run_round
from foredraft.core.sampling import SamplingParams, law_of
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.first import FirstOf
from foredraft.drafters.heads import HeadsDrafter, _floors, _Known
from foredraft.drafters.none import NoDrafter
from foredraft.drafters.suffix import Suffix
from foredraft.engine.fixed_planner import FixedPlanner, FixedQuote
from foredraft.engine.shaping import ShapingOptions, shaper
from foredraft.errors import DamagedHeads, DrafterError, WeightsError
from foredraft.models.heads import file as heads_file_module
from foredraft.models.heads.file import heads_file
from foredraft.models.heads.modules import RecurrentHeads
from foredraft.models.heads.native import NativeHeads
from foredraft.models.heads.open import open_heads
from foredraft.models.model import Rows
from foredraft.models.native.sampling import NativeNoise, native_law
from foredraft.models.target import CachedTarget
from foredraft.models.torch_decoder.decoder import TorchDecoder
from foredraft.planning.choose import Chooser
from foredraft.runtime.drafters import parts_of
from tests.drafters.layers import Bushes
from tests.models.decoders import open_decoder
from tests.models.heads import Tensors, bf16, make_heads, spec_of_heads
from tests.native.models import open_native
from tests.tiny import make_chat_model

PROMPTS = ["abab abab ab", "x", "a longer prompt, so that the batch is ragged"]
TAPS = (0, 2)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("heads") / "tiny")


@pytest.fixture(scope="module")
def recurrent(tiny: Path) -> Path:
    return make_heads(tiny, tiny / "heads" / "recurrent.safetensors", tokens=range(0, 260, 2))


@pytest.fixture(scope="module")
def medusa(tiny: Path) -> Path:
    return make_heads(tiny, tiny / "medusa" / "medusa.safetensors", kind="medusa", steps=4)


MACHINES: Sequence[Any] = (
    pytest.param({"dtype": "bf16"}, id="native bf16"),
    pytest.param({"dtype": "f32"}, id="native f32"),
    pytest.param({"dtype": "f64", "native_tier": "off"}, id="torch f64", marks=pytest.mark.slow),
)


@pytest.fixture(scope="module", params=MACHINES)
def lm(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return foredraft.load(tiny, drafter="none", threads=1, cache=tmp_path_factory.mktemp("cache"), **request.param)


def heads_of(lm: LanguageModel, path: Path) -> Any:
    return open_heads(str(path), lm.loaded.target.model, lm.loaded.folder, lm.loaded.cache, "tiny")


OPTIONS: Sequence[Any] = (
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 1.3, "seed": 1, "n": 2, "top_p": 0.9},
    {"temperature": 1.0, "seed": 3, "draft_temperature": 0.4, "repetition_penalty": 1.3},
    {"presence_penalty": 0.5, "min_tokens": 5, "logit_bias": {98: 2.0}},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_text_is_the_targets(lm: LanguageModel, recurrent: Path, medusa: Path, options: Any) -> None:
    plain_options = {name: value for name, value in options.items() if name != "draft_temperature"}
    length = 12 if lm.loaded.dtype == "f64" else 24  # a pass of torch costs as much as a dozen
    plain = [lm.generate(prompt, max_tokens=length, **plain_options) for prompt in PROMPTS]
    joined = FirstOf([Bushes(), HeadsDrafter(heads_of(lm, recurrent))])
    own = {name: value for name, value in options.items() if name != "draft_temperature"}
    for drafter in (f"heads:{recurrent}", f"heads:{medusa.parent}", f"suffix+heads:{recurrent}", joined):
        asked = {"max_tokens": length, "drafter": drafter, **(options if isinstance(drafter, str) else own)}
        for draft_tokens in (1, 6):
            asked["draft_tokens"] = draft_tokens
            alone = [lm.generate(prompt, **asked) for prompt in PROMPTS]
            for found in (alone, lm.generate(PROMPTS, **asked)):
                for ours, theirs in zip(found, plain, strict=True):
                    assert [c.token_ids for c in ours.choices] == [c.token_ids for c in theirs.choices]
                    assert "heads" in ours.speculative.by_drafter
                    assert not any("no effect" in said or "NaN" in said for said in ours.notices)


@pytest.mark.parametrize("machine", MACHINES)
def test_of_a_draft_that_suffix_leaves_empty_heads_make_one(
    tiny: Path, recurrent: Path, tmp_path: Path, machine: dict[str, Any]
) -> None:
    lm = foredraft.load(tiny, drafter=f"suffix+heads:{recurrent}", threads=1, cache=tmp_path, **machine)
    result = lm.generate(PROMPTS[0], draft_tokens=4, max_tokens=40)  # suffix has learnt nothing from other texts
    by = result.speculative.by_drafter
    assert by["suffix"]["rounds"] > 0
    assert 4 * by["heads"]["rounds"] >= by["heads"]["drafted"] > 3 * by["heads"]["rounds"]


class Knowing(Bushes):
    """Guesses, every other round, a tree in which the texts that it knows go on between wrong guesses."""

    name = "knowing"

    def __init__(self, texts: Sequence[list[int]]) -> None:
        self.texts = texts

    def propose(self, sequences: Sequence[Any], quotes: Sequence[Any], noises: Sequence[Any]) -> list[Draft]:
        drafts = []
        for s in sequences:
            a, b = next(text[len(s) : len(s) + 2] for text in self.texts if text[: len(s)] == s.tokens)
            tree = Draft(((a + 1) % 260, a, (b + 1) % 260, b), (-1, -1, 1, 1), source=self.name)
            drafts.append(Draft() if len(s) % 2 else tree)
        return drafts


@dataclass
class Spied:
    """Heads that note what they are told, by position of the slot."""

    heads: RecurrentHeads

    def __post_init__(self) -> None:
        self.seen: list[tuple[int, int, list[Any], list[int]]] = []
        read = self.heads.read

        def spy(slot: int, start: int, states: Any, tokens: Any) -> Any:
            self.seen.append((slot, start, [state.copy() for state in states], list(tokens)))
            return read(slot, start, states, tokens)

        self.heads.read = spy  # type: ignore[method-assign]


def spied(folder: Path, path: Path) -> tuple[CachedTarget, Spied]:
    target = CachedTarget(open_decoder(folder, dtype="f64"))
    heads = open_heads(str(path), target.model, folder, folder, "tiny")
    assert isinstance(heads, RecurrentHeads)
    return target, Spied(heads)


def held_alike(target: CachedTarget, sequence: TokenSequence, spied: Spied, base: int = 0) -> int:
    """Assert that what the heads read last are the target's own rows, and return up to where."""
    _, start, states, tokens = spied.seen[-1]
    first, count = base + start, len(tokens)
    assert tokens == sequence.tokens[first + 1 : first + count + 1]
    whole = sequence.tokens[: first + count]
    fresh = target.model.forward([Rows(99, 0, tuple(whole), tuple(range(-1, len(whole) - 1)), count)], TAPS)
    for tap, state in zip(TAPS, states, strict=True):
        np.testing.assert_allclose(state, fresh.hidden[tap], rtol=0, atol=1e-10)
    return first + count


def test_heads_read_what_the_target_said_of_each_token(tiny: Path, recurrent: Path) -> None:
    """Of a prompt, of kept guesses in a tree, of a batch; each once, in order, whoever drafted."""
    target, spy = spied(tiny, recurrent)
    drafter = HeadsDrafter(spy.heads)
    known = [TokenSequence([*prompt], limit=80) for prompt in (b"hello hello", b"ab")]
    for sequence in known:
        target.begin(sequence)
        while sequence.finish_reason is None:
            run_round([sequence], target, NoDrafter(), FixedPlanner(0))
    target = CachedTarget(target.model)
    joined = FirstOf([Knowing([sequence.tokens for sequence in known]), drafter])
    sequences = [TokenSequence(sequence.tokens[: sequence.prompt_length], limit=80) for sequence in known]
    for sequence in sequences:
        target.begin(sequence)
        joined.begin(sequence)
    run_round(sequences, target, joined, FixedPlanner(0))
    kept = 0
    for _ in range(12):
        read = len(spy.seen)
        before = {drafter._texts[sequence].slot: (sequence, list(sequence.tokens)) for sequence in sequences}
        outcomes = run_round(sequences, target, joined, FixedPlanner(4))
        kept += sum(len(o.kept) for o in outcomes if o.draft.source == "knowing")
        for seen in spy.seen[read:]:
            sequence = TokenSequence(before[seen[0]][1], limit=99)
            last = Spied.__new__(Spied)
            last.seen = [seen]
            assert held_alike(target, sequence, last) == len(sequence) - 1
    assert kept >= 20
    assert [sequence.tokens for sequence in sequences] == [
        sequence.tokens[: len(ours)] for sequence, ours in zip(known, sequences, strict=True)
    ]
    for slot in {seen[0] for seen in spy.seen}:
        ends = [0]
        for _, start, _, tokens in (seen for seen in spy.seen if seen[0] == slot):
            assert start == ends[-1]
            ends.append(start + len(tokens))
    for sequence in sequences:
        joined.end(sequence)
    assert drafter._texts == {}
    assert spy.heads._taken == set()
    assert spy.heads.layer._slots == {}  # type: ignore[attr-defined]


def test_a_prompt_in_the_targets_cache_is_drafted_for_from_what_was_fed(tiny: Path, recurrent: Path) -> None:
    target, spy = spied(tiny, recurrent)
    drafter = HeadsDrafter(spy.heads)
    for again in range(2):
        sequence = TokenSequence([*b"hello again, hello"], limit=60)
        target.begin(sequence)
        base = target.reused(sequence)
        assert (base > 0) == bool(again)
        drafter.begin(sequence)
        assert drafter.propose([sequence], [FixedQuote(3)], [Noise(0)]) == [Draft()]
        run_round([sequence], target, drafter, FixedPlanner(0))
        assert len(drafter.propose([sequence], [FixedQuote(3)], [Noise(0)])[0]) == 3
        assert held_alike(target, sequence, spy, base) == len(sequence) - 1
        assert spy.seen[-1][1] == 0
        drafter.end(sequence)
        target.end(sequence)


def test_of_a_long_prompt_the_last_positions_are_read(tiny: Path, recurrent: Path) -> None:
    target, spy = spied(tiny, recurrent)
    drafter = HeadsDrafter(spy.heads, window=8)
    sequence = TokenSequence([*b"a prompt of more than eight tokens"], limit=90)
    target.begin(sequence)
    drafter.begin(sequence)
    run_round([sequence], target, drafter, FixedPlanner(0))
    for _ in range(3):
        drafter.propose([sequence], [FixedQuote(2)], [Noise(0)])
        held_alike(target, sequence, spy, len(sequence) - 1 - len(spy.seen[-1][3]) - spy.seen[-1][1])
        run_round([sequence], target, drafter, FixedPlanner(2))
    assert len(spy.seen[0][3]) == 8
    for _ in range(10):  # nothing is worth a guess for so long that the window closes over it
        run_round([sequence], target, drafter, FixedPlanner(0))
    drafter.propose([sequence], [FixedQuote(2)], [Noise(0)])
    assert (spy.seen[-1][1], len(spy.seen[-1][3])) == (0, 8)
    assert held_alike(target, sequence, spy, len(sequence) - 9) == len(sequence) - 1


def test_what_is_told_twice_or_not_at_all() -> None:
    """Positions that are known already are passed over; after some that nobody spoke of the heads start over."""
    known = _Known(0)

    def told(begin: int, end: int) -> list[float]:
        known.add(end, [np.arange(begin, end, dtype=np.float32)[:, None]], 100)
        assert known.end == end
        return known.states()[0][:, 0].tolist()

    assert told(0, 3) == [0, 1, 2]
    assert told(1, 5) == [0, 1, 2, 3, 4]
    known.asked = True
    assert told(3, 6) == [5]
    assert (known.base, known.read) == (0, 5)
    assert told(8, 10) == [8, 9]
    assert (known.base, known.read) == (8, 0)


class Priced:
    """A quote for whom a guess pays if what it builds on is likely enough, the deeper the likelier."""

    limit = 9

    def worth(self, path_probability: float, rows: int) -> bool:
        return rows == 0 or path_probability >= 0.002 * rows


def test_the_price_of_each_guess() -> None:
    assert _floors(FixedQuote(3), 9) == [0.0, 0.0, 0.0]
    assert _floors(FixedQuote(3), 2) == [0.0, 0.0]
    assert _floors(FixedQuote(0), 2) == []
    floors = _floors(Priced(), 5)
    np.testing.assert_allclose(floors, [0.0, 0.002, 0.004, 0.006, 0.008], atol=1e-6)
    assert all(Priced().worth(floor, depth) for depth, floor in enumerate(floors))


@pytest.mark.parametrize("quote", [FixedQuote(6), Priced()], ids=["fixed", "priced"])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(1.0), SamplingParams(0.8, top_p=0.95)], ids=str)
@pytest.mark.parametrize("coupled", [True, False], ids=["coupled", "ratio"])
def test_the_librarys_chain_is_pythons(
    tiny: Path, recurrent: Path, quote: Any, params: SamplingParams, coupled: bool
) -> None:
    """The same guesses of the same laws whether the library makes all of them in one call or Python one at a time."""
    model = open_native(tiny, "bf16", threads=1)
    target = CachedTarget(model)
    heads = open_heads(str(recurrent), model, tiny, tiny, "tiny")
    assert isinstance(heads, NativeHeads)
    drafter = HeadsDrafter(heads)
    calls: list[int] = []
    chain = heads.chain
    heads.chain = lambda *given: (calls.append(1), chain(*given))[1]  # type: ignore[method-assign]
    lengths = set()
    for seed in range(6):
        noise = NativeNoise(seed, coupled=coupled)
        sequence = TokenSequence([*b"hello", seed], 60, params, noise, law=native_law)
        target.begin(sequence)
        drafter.begin(sequence)
        run_round([sequence], target, drafter, FixedPlanner(0))
        noise = noise.at(len(sequence))
        ours = drafter.propose([sequence], [quote], [noise])[0]
        assert len(calls) == seed + 1
        sequence.shaping = lambda row, *_: row
        theirs = drafter.propose([sequence], [quote], [noise])[0]
        assert len(calls) == seed + 1
        assert (ours.tokens, ours.parents, ours.source) == (theirs.tokens, theirs.parents, "heads")
        np.testing.assert_allclose(ours.confidences, theirs.confidences, rtol=1e-5)
        if params.greedy:
            assert ours.laws is theirs.laws is None
        else:
            assert ours.laws is not None
            assert theirs.laws is not None
            for mine, other, token in zip(ours.laws, theirs.laws, ours.tokens, strict=True):
                assert isinstance(mine, Sparse)
                assert isinstance(other, Sparse)
                np.testing.assert_array_equal(mine.ids, other.ids)
                np.testing.assert_allclose(mine.probabilities, other.probabilities, rtol=1e-12)
                assert mine[token] == mine.probabilities[list(mine.ids).index(token)] > 0
        lengths.add(len(ours))
        drafter.end(sequence)
        target.end(sequence)
    assert lengths == {6} if isinstance(quote, FixedQuote) else max(lengths) < 9
    assert not heads._taken


@dataclass(frozen=True)
class Paying(FixedQuote):
    """A quote by which runners-up pay that are as likely as ``least``."""

    least: float = 0.0

    def pays(self, path_probability: float, rows: int) -> bool:
        return rows < self.limit and path_probability >= self.least


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(1.0)], ids=str)
@pytest.mark.parametrize("limit", [1, 2, 5, 9])
def test_runners_up_stand_beside_the_chain(tiny: Path, recurrent: Path, params: SamplingParams, limit: int) -> None:
    """The two that are likeliest, or ring first, in each place: worked out anew here. The chain comes first."""
    model = open_native(tiny, "f32", threads=1)
    target = CachedTarget(model)
    heads: Any = open_heads(str(recurrent), model, tiny, tiny, "tiny")
    drafter, noise = HeadsDrafter(heads, draft_tokens=3), NativeNoise(3, coupled=True)
    sequence = TokenSequence([*b"hello"], 60, params, noise, law=native_law)
    target.begin(sequence)
    drafter.begin(sequence)
    run_round([sequence], target, drafter, FixedPlanner(0))
    noise = noise.at(len(sequence))
    chain = drafter.propose([sequence], [FixedQuote(limit)], [noise])[0]
    draft = drafter.propose([sequence], [Paying(limit)], [noise])[0]
    checked(draft, "heads", limit, heads.width)
    assert len(draft) == min(limit, 6)
    assert draft.confidences is not None
    main = [min(draft.children(node)) for node in (-1, *range(len(draft))) if draft.children(node)]
    assert tuple(draft.tokens[node] for node in main) == chain.tokens
    read = [heads.read(1, 0, drafter._texts[sequence].states(), drafter._texts[sequence].following(sequence))]
    for depth, token in enumerate(chain.tokens):
        state, logits = read[-1]
        if params.greedy:
            speeds = np.exp(logits.astype(float) - logits.max())
        else:
            law = law_of(drafter._row(logits), drafter._params(params, noise)).probabilities[heads.vocabulary]
            speeds = law / noise.clocks(heads.vocabulary, noise.position + depth)
        best = np.argsort(-speeds)[:2]
        there = draft.children(main[depth - 1] if depth else -1)
        assert [draft.tokens[node] for node in there] == heads.vocabulary[best[: len(there)]].tolist()
        before = 1.0 if depth == 0 else draft.confidences[main[depth - 1]]
        for node, each in zip(there, best, strict=False):
            np.testing.assert_allclose(draft.confidences[node], before * speeds[each] / speeds.sum(), rtol=1e-4)
        read.append(heads.step(1, len(sequence) - 1 + depth, state, token))
    assert len(drafter.propose([sequence], [Paying(9, 2.0)], [noise])[0]) == 3  # none pays
    drawn = replace(noise, coupled=False)
    # of drawn ones there are none
    assert params.greedy or len(drafter.propose([sequence], [Paying(9)], [drawn])[0]) == 3


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 4}], ids=["greedy", "seeded"])
def test_text_with_runners_up_is_plain_text(tiny: Path, recurrent: Path, sampling: dict[str, Any]) -> None:
    lm = foredraft.load(tiny, drafter="none", threads=1, dtype="f32", cache=tiny / "cache")
    drafter, leaves = HeadsDrafter(heads_of(lm, recurrent), draft_tokens=3), 0
    heads: Any = drafter.heads
    chain = heads.chain

    class Combs(FixedPlanner):
        def quote(self, sequences: Sequence[TokenSequence]) -> list[Any]:
            return [Paying(min(6, quote.limit)) for quote in super().quote(sequences)]

        def record(self, done: Any) -> None:
            nonlocal leaves
            leaves += sum(o.kept[:1] == (1,) and o.draft.parents[1] == -1 for o in done.outcomes)

    for prompt in PROMPTS:
        plain = lm.generate(prompt, max_tokens=60, **sampling)

        def knowing(*given: Any, plain: Any = plain) -> Any:
            """Return the heads' chain, the right token its first runner-up: random heads would hardly ever meet it."""
            made, at = chain(*given), given[-1].position - plain.prompt_tokens
            right = plain.token_ids[at]
            return made if made.tokens[0] == right else replace(made, second=[right, *made.second[1:]])

        heads.chain = knowing
        lm.runtime.planning.planner = lambda _: Combs(6)  # type: ignore[method-assign]
        drafted = lm.generate(prompt, max_tokens=60, drafter=drafter, **sampling)
        del lm.runtime.planning.planner
        assert drafted.token_ids == plain.token_ids
        assert drafted.text == plain.text
    assert leaves > 20


@pytest.mark.parametrize("temperature", [None, 0.5])
@pytest.mark.parametrize("kind", ["recurrent", "medusa"])
def test_each_guess_has_the_law_it_was_drawn_from(tiny: Path, kind: str, temperature: float | None) -> None:
    """Under the ratio rule that is what makes the text exact. Worked out anew here, shaping included."""
    path = make_heads(tiny, tiny / "laws" / f"{kind}.safetensors", kind=kind, tokens=range(1, 250, 3))
    target = CachedTarget(open_decoder(tiny, dtype="f64"))
    heads: Any = open_heads(str(path), target.model, tiny, tiny, "tiny")
    drafter = HeadsDrafter(heads, temperature)
    shaping = shaper(ShapingOptions(repetition_penalty=1.5, presence_penalty=0.3, bad_words=((7,),)))
    sequence = TokenSequence([*b"hello hello"], 60, SamplingParams(1.0, top_k=40), Noise(3), shaping)
    target.begin(sequence)
    drafter.begin(sequence)
    run_round([sequence], target, drafter, FixedPlanner(0))
    warm = SamplingParams(temperature or 1.0, top_k=40)
    states = [state.copy() for state in drafter._texts[sequence].states()]
    draft = drafter.propose([sequence], [FixedQuote(3)], [Noise(3, position=len(sequence))])[0]
    assert len(draft) == 3
    assert draft.laws is not None
    logits: list[Any] = [*heads.rows([s[-1:] for s in states])] if kind == "medusa" else []
    if kind == "recurrent":
        state, first = heads.read(7, 0, states, sequence.tokens[1:])
        logits.append(first)
        for i, token in enumerate(draft.tokens):
            state, after = heads.step(7, len(sequence) - 1 + i, state, token)
            logits.append(after)
    for depth, (token, law) in enumerate(zip(draft.tokens, draft.laws, strict=True)):
        row = np.full(260, -np.inf)
        row[heads.vocabulary] = logits[depth]
        assert shaping is not None
        wanted: Any = law_of(shaping(row, sequence, draft.tokens[:depth]), warm)
        np.testing.assert_allclose(law.probabilities, wanted.probabilities, rtol=1e-12)  # type: ignore[attr-defined]
        assert token % 3 == 1
        assert token == wanted.draw(Noise(3, position=len(sequence))._uniform(1, depth))


@pytest.mark.parametrize("kind", ["recurrent", "medusa"])
def test_states_that_are_tensors(tiny: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pass on a GPU gives them: the guesses are those of arrays, and the laws tensors too."""
    path = make_heads(tiny, tiny / "tensors" / f"{kind}.safetensors", kind=kind)
    drafts: list[Any] = []
    for give in (TorchDecoder._give, lambda self, x: x):
        monkeypatch.setattr(TorchDecoder, "_give", give)
        target = CachedTarget(open_decoder(tiny, dtype="f64"))
        drafter = HeadsDrafter(open_heads(str(path), target.model, tiny, tiny, "tiny"))
        for params in (SamplingParams(), SamplingParams(1.0)):
            sequence = TokenSequence([*b"hello hello"], 60, params, Noise(3))
            target.begin(sequence)
            drafter.begin(sequence)
            for _ in range(4):
                run_round([sequence], target, drafter, FixedPlanner(3))
            draft = drafter.propose([sequence], [FixedQuote(3)], [Noise(3, position=len(sequence))])[0]
            drafts.append((draft.tokens, sequence.tokens))
            drafter.end(sequence)
    assert drafts[:2] == drafts[2:]
    assert len(drafts[0][0]) == 3


def infinite(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = bf16(np.full(32, 3e38))


@pytest.mark.parametrize("machine", [{}, {"dtype": "f32", "native_tier": "off"}], ids=["native bf16", "torch f32"])
@pytest.mark.parametrize("kind", ["recurrent", "medusa"])
def test_heads_that_answer_with_no_numbers_are_reported(
    tiny: Path, tmp_path: Path, kind: str, machine: dict[str, Any]
) -> None:
    lm = foredraft.load(tiny, drafter="none", threads=1, cache=tmp_path, **machine)
    path = make_heads(tiny, tiny / "broken" / f"{kind}.safetensors", infinite, kind=kind)
    for options in ({}, {"temperature": 1.0, "seed": 2}, {"repetition_penalty": 1.2}):
        plain = lm.generate("hello", max_tokens=9, **options)
        drafted = lm.generate("hello", max_tokens=9, drafter=f"heads:{path}", draft_tokens=3, **options)
        assert drafted.choices[0].token_ids == plain.choices[0].token_ids
        assert drafted.speculative.drafted == 0
        assert any("the heads answered with NaN or infinite logits" in said for said in drafted.notices)
    good = make_heads(tiny, tiny / "broken" / f"good-{kind}.safetensors", kind=kind)
    drafted = lm.generate("hello", max_tokens=9, drafter=f"heads:{good}", draft_tokens=3)
    assert drafted.speculative.drafted > 0
    assert drafted.notices == []


def test_one_broken_text_does_not_stop_the_others(tiny: Path, recurrent: Path) -> None:
    target, spy = spied(tiny, recurrent)
    drafter = HeadsDrafter(spy.heads)
    sequences = [TokenSequence([*b"hello"], limit=60), TokenSequence([*b"other"], limit=60)]
    for sequence in sequences:
        target.begin(sequence)
        drafter.begin(sequence)
    run_round(sequences, target, drafter, FixedPlanner(0))
    drafter._texts[sequences[0]].fresh[0][0][:] = np.nan
    drafts = drafter.propose(sequences, [FixedQuote(2)] * 2, [Noise(0)] * 2)
    assert [len(draft) for draft in drafts] == [0, 2]
    assert drafter.notice is not None
    run_round(sequences, target, drafter, FixedPlanner(2))
    drafts = drafter.propose(sequences, [FixedQuote(2)] * 2, [Noise(0)] * 2)
    assert [len(draft) for draft in drafts] == [0, 2]
    assert drafter._broken == 1


def test_heads_by_name(tiny: Path, recurrent: Path, tmp_path: Path) -> None:
    """Without a path they are those kept for these weights; ones for other weights are refused when loading."""
    with pytest.raises(DrafterError, match=f"there are no heads for {tiny}: foredraft train heads makes them"):
        foredraft.load(tiny, drafter="heads", cache=tmp_path, threads=1)
    kept = heads_file(tmp_path, spec_of_heads(tiny).digest)
    kept.parent.mkdir()
    kept.write_bytes(recurrent.read_bytes())
    for options in ({}, {"dtype": "f32"}, {"native_tier": "off"}):
        lm = foredraft.load(tiny, drafter="suffix+heads", cache=tmp_path, threads=1, **options)
        assert isinstance(lm.drafter, Chooser)
        assert [type(part) for part in lm.drafter.drafters] == [Suffix, HeadsDrafter]
        assert lm.drafter.taps == TAPS
    other = make_heads(tiny, tmp_path / "other.safetensors", digest="1" * 16)
    with pytest.raises(DrafterError, match=r"trained for tiny \(1{16}\), not for"):
        foredraft.load(tiny, drafter=f"heads:{other}", cache=tmp_path, threads=1)


def test_heads_are_opened_once_for_all_lengths(tiny: Path, recurrent: Path, tmp_path: Path) -> None:
    lm = foredraft.load(tiny, drafter=f"heads:{recurrent}", cache=tmp_path, threads=1)
    asked: list[Any] = [{"draft_tokens": 2}, {"draft_temperature": 0.5}, {}]
    drafters = [next(parts_of(lm.runtime.drafter_for(foredraft.options.parse_options(options)))) for options in asked]
    assert all(isinstance(drafter, HeadsDrafter) for drafter in drafters)
    assert [drafter.draft_tokens for drafter in drafters] == [None, None, None]  # type: ignore[attr-defined]
    assert len({id(drafter.heads) for drafter in drafters}) == 1  # type: ignore[attr-defined]
    streams = [lm.stream("hello", max_tokens=12, **options) for options in asked[:2]]
    plain = lm.generate("hello", max_tokens=12, drafter="none").choices[0].token_ids
    for _ in zip(*streams, strict=False):  # two at a time over the same heads
        pass
    for stream in streams:
        for _ in stream:
            pass
        assert stream.result is not None
        assert stream.result.choices[0].token_ids == plain


def damage(path: Path, how: str) -> Path:
    """Put a file of heads at ``path`` that cannot be used, made of the sound one that is there."""
    whole = path.read_bytes()
    if how == "torn":
        path.write_bytes(whole[:-10])
    elif how == "short":
        path.write_bytes(b"{")
    elif how == "header":
        path.write_bytes(whole[:8] + b"?" + whole[9:])
    else:  # its description lies: the width is another
        path.write_bytes(whole.replace(b'\\"mlp\\": 40', b'\\"mlp\\": 41'))
    assert path.read_bytes() != whole
    return path


@pytest.mark.parametrize("how", ["torn", "short", "header", "lying"])
@pytest.mark.parametrize("length", [None, 3])
def test_damaged_heads_make_way_for_those_that_came_with_it(
    tiny: Path, recurrent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, length: int | None
) -> None:
    """Under auto with a word of it, planned or not; those that were asked for by name are refused."""
    monkeypatch.setattr(heads_file_module, "PACKAGED", tmp_path / "packaged")
    kept = heads_file(tmp_path, spec_of_heads(tiny).digest)
    for path in (kept, tmp_path / "packaged" / "tiny.safetensors"):
        path.parent.mkdir()
        path.write_bytes(recurrent.read_bytes())
    damage(kept, how)
    here: Any = {"cache": tmp_path, "threads": 1, "dtype": "f32"}
    lm = foredraft.load(tiny, drafter="auto", draft_tokens=length, **here)
    plain = foredraft.load(tiny, drafter="none", **here).generate("hello", max_tokens=12)
    assert [type(part) for part in parts_of(lm.drafter)] == [Suffix, HeadsDrafter]
    found = lm.generate("hello", max_tokens=12, **({} if length is None else {"draft_tokens": length}))
    assert found.choices[0].token_ids == plain.choices[0].token_ids
    [said] = [notice for notice in found.notices if "heads" in notice]
    assert said.startswith(f"the heads that came with foredraft are used, because {kept}")
    with pytest.raises(DamagedHeads) as raised:
        foredraft.load(tiny, drafter="heads", **here)
    assert str(raised.value).startswith(str(kept))
    assert str(raised.value).endswith("; delete it, and the heads that came with foredraft are used")
    for says in (said, str(raised.value)):
        assert "fetch the model" not in says
        assert ("train the heads or copy the file again" in says) == (how != "lying")
    kept.unlink()
    assert foredraft.load(tiny, drafter="auto", **here).generate("hello", max_tokens=12).notices == []


def test_damaged_heads_without_others(
    tiny: Path, recurrent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = tmp_path / "packaged"
    monkeypatch.setattr(heads_file_module, "PACKAGED", packaged)
    kept = heads_file(tmp_path, spec_of_heads(tiny).digest)
    for path in (kept, packaged / "tiny.safetensors"):
        path.parent.mkdir()
        path.write_bytes(recurrent.read_bytes())
        damage(path, "torn")
    for length in (None, 3):
        lm = foredraft.load(tiny, drafter="auto", draft_tokens=length, cache=tmp_path, threads=1)
        assert [type(part) for part in parts_of(lm.drafter)] == [Suffix]
        notices = lm.generate("hello", max_tokens=3).notices
        [said] = [notice for notice in notices if notice.startswith("drafter heads is left out: ")]
        for path in (kept, packaged / "tiny.safetensors"):
            assert str(path) in said
        assert "install foredraft again" in said
    (packaged / "tiny.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"train the heads or copy the file again$"):
        foredraft.load(tiny, drafter="heads", cache=tmp_path, threads=1)
    lm = foredraft.load(tiny, drafter="auto", cache=tmp_path, threads=1)
    assert f"drafter heads is left out: {kept} is truncated" in str(lm.generate("hello", max_tokens=3).notices)

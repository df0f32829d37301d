"""Jobs through a service over real passes: the texts are those of each alone, whatever happens beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foredraft
from foredraft import LanguageModel
from foredraft.core.draft import Draft
from foredraft.core.protocols import Drafter
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.none import NoDrafter
from foredraft.engine import scheduler
from foredraft.engine.chunks import Chunks
from foredraft.engine.service import Service
from foredraft.engine.watches.logprobs import LogprobRecorder
from foredraft.models.target import CachedTarget
from foredraft.options import parse_options
from foredraft.runtime.copy_sources import informed, predicted
from tests.engine.serving import Listener, Plans, serve
from tests.models.heads import make_heads
from tests.tiny import make_chat_model

PROMPT = "say: abc abc abcd abc abc " * 4
OPTIONS: list[dict[str, Any]] = [
    {"drafter": "none"},
    {"drafter": "suffix", "draft_tokens": 3},
    {"drafter": "suffix+heads"},
    {"drafter": "suffix+heads", "temperature": 1.0, "seed": 7, "n": 2},
    {"drafter": "heads", "draft_tokens": 4, "temperature": 1.3, "seed": 8, "top_p": 0.9},
    {"drafter": "model", "temperature": 1.0, "seed": 9, "repetition_penalty": 1.2},
    {"drafter": "layers", "draft_tokens": 2, "temperature": 0.7, "seed": 10, "stop": ["b"]},
    {"drafter": "suffix", "regex": "[abc ]{20,40}", "temperature": 1.0, "seed": 11},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(
    scope="module", params=[{"dtype": "f32"}, {"dtype": "f64", "native_tier": "off"}], ids=["native", "torch"]
)
def lm(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return foredraft.load(tiny, drafter="none", threads=1, cache=tmp_path_factory.mktemp("cache"), **request.param)


@pytest.fixture(scope="module")
def names(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    heads = f"heads:{make_heads(tiny, tmp_path_factory.mktemp('heads') / 'heads.safetensors')}"
    return {"heads": heads, "suffix+heads": f"suffix+{heads}", "model": f"model:{tiny}"}


class Case:
    """One request: its options, what it answers alone, and new jobs of it."""

    def __init__(self, lm: LanguageModel, given: dict[str, Any], names: dict[str, str], prompt: str) -> None:
        self.lm, self.prompt = lm, prompt
        options = {"max_tokens": 30, **given, "drafter": names.get(given["drafter"], given["drafter"])}
        self.settings = parse_options(options)
        alone = lm.generate(prompt, **{**options, "drafter": "none", "draft_tokens": None})
        self.wanted = [choice.token_ids for choice in alone.choices]

    def jobs(self, owner: str = "") -> list[Listener]:
        drafter = self.lm.runtime.drafters.of(self.settings)
        length = self.lm.runtime.drafters.length(self.settings, drafter)
        return [
            Listener(request.sequence, drafter=drafter, draft_tokens="auto" if length is None else length, owner=owner)
            for request in self.lm.runtime.requests.make(self.prompt, self.settings)
        ]


@pytest.fixture(scope="module")
def cases(lm: LanguageModel, names: dict[str, str]) -> list[Case]:
    """Return requests, of which the others share a beginning with the first."""
    return [Case(lm, given, names, PROMPT + "x" * i) for i, given in enumerate(OPTIONS)]


@pytest.fixture
def engine(lm: LanguageModel) -> Iterator[Service]:
    service = Service(lm.loaded.target, lm.drafter, Plans(), thread=False)
    yield service
    assert service.snapshot().free_slots == service.snapshot().slots
    service.close()


def check(case: Case, jobs: list[Listener]) -> None:
    assert [job.told for job in jobs] == [job.job.sequence.answer for job in jobs] == case.wanted
    assert all(job.reason in ("stop", "length") and job.job.drafting_fault is None for job in jobs)


def test_alone_and_among_strangers(cases: list[Case], engine: Service) -> None:
    for case in cases:
        serve(engine, *(jobs := case.jobs()))
        check(case, jobs)
    together = [(case, case.jobs(owner=f"{i % 3}")) for i, case in enumerate(cases)]
    serve(engine, *(job for _, jobs in together for job in jobs))
    for case, jobs in together:
        check(case, jobs)
    by = engine.snapshot().drafts
    assert {"suffix", "heads", "model", "layers"} <= set(by)
    assert engine.snapshot().faults == {}


def test_while_neighbours_are_cancelled_or_leave(cases: list[Case], engine: Service) -> None:
    staying = [(case, case.jobs()) for case in cases[::2]]
    leaving = [job for case in cases[1::2] for job in case.jobs()]
    for pair in (staying, [(None, leaving)]):
        engine.submit([job.job for _, jobs in pair for job in jobs])
    steps = 0
    while not engine.idle:
        engine.step()
        steps += 1
        if steps % 3 == 0 and leaving:
            gone = leaving.pop()
            if steps % 2:
                engine.cancel(gone.job)
            else:
                gone.left = True
    assert not leaving
    for case, jobs in staying:
        check(case, jobs)


@pytest.mark.parametrize("rows", [1, 2, 7, 50])
def test_whatever_the_chunks(cases: list[Case], engine: Service, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chunks, "rows", rows)
    monkeypatch.setattr(scheduler, "MIN_ROWS", 1)
    monkeypatch.setattr(scheduler, "MAX_ROWS", rows)
    first = cases[4].jobs("ann")
    engine.submit([first[0].job])
    engine.step()
    more = [(case, case.jobs(f"{rows}")) for case in (cases[3], cases[5])]
    engine.submit([job.job for _, jobs in more for job in jobs])
    while not engine.idle:
        engine.step()
    for case, jobs in [(cases[4], first), *more]:
        check(case, jobs)


def test_a_prefix_serves_its_owner_alone(cases: list[Case], engine: Service) -> None:
    ann = cases[3].jobs("ann")
    serve(engine, *ann)
    others, again = cases[5].jobs("eve"), cases[5].jobs("ann")
    serve(engine, *others)
    serve(engine, *again)
    assert others[0].job.cached_tokens == 0
    assert again[0].job.cached_tokens > 100
    for jobs in (others, again):
        check(cases[5], jobs)


def test_the_draft_cache_serves_its_owner_alone(cases: list[Case], engine: Service) -> None:
    case = cases[5]
    model: Any = case.lm.runtime.drafters.of(case.settings).drafters[0].model  # type: ignore[attr-defined]
    for owner, reused in (("pat", False), ("sue", False), ("pat", True)):
        (job,) = case.jobs(owner)
        engine.submit([job.job])
        while not job.job.first:
            engine.step()
        assert (model.reused(job.job.sequence) > 100) == reused
        while not engine.idle:
            engine.step()
        check(case, [job])


def test_the_next_turn_reads_only_what_is_new(lm: LanguageModel, engine: Service) -> None:
    """Another conversation with the same beginning in between does not take the slot."""
    options = parse_options({"max_tokens": 8, "drafter": "none", "raw": True})
    prompt, other = list(range(3, 120)), [*range(3, 20), *range(120, 130)]

    def ask(prompt: list[int]) -> Listener:
        job = Listener(lm.runtime.requests.make(prompt, options)[0].sequence)
        serve(engine, job)
        return job

    first = ask(prompt)
    assert ask(other).job.cached_tokens == 0
    second = ask([*prompt, *first.told, 5, 6])
    assert second.job.cached_tokens == len(prompt) + len(first.told) - 1


def test_heads_know_a_prompt_that_was_read_in_chunks(
    cases: list[Case], engine: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chunks, "rows", 16)
    monkeypatch.setattr(scheduler, "MAX_ROWS", 16)
    case = cases[4]
    drafter: Any = case.lm.runtime.drafters.of(case.settings)
    (job,) = case.jobs("whole")
    engine.submit([job.job])
    while not job.told:
        assert engine.snapshot().reading or not engine.snapshot().rounds
        engine.step()
    known = drafter._texts[job.job.sequence]
    assert (known.base, known.end) == (0, job.job.sequence.prompt_length)
    while not engine.idle:
        engine.step()
    check(case, [job])


def test_predictions_of_several_jobs_are_asked_for_together(cases: list[Case], engine: Service) -> None:
    case = cases[1]
    inner = case.lm.runtime.drafters.of(case.settings)
    asked: list[int] = []

    class Asked:
        name, taps = inner.name, ()
        prepare, counts, begin, observe, end = inner.prepare, inner.counts, inner.begin, inner.observe, inner.end  # type: ignore[attr-defined]

        def propose(self, sequences: Any, quotes: Any, noises: Any) -> Any:
            asked.append(len(sequences))
            return inner.propose(sequences, quotes, noises)

    shared: Any = Asked()
    jobs = [job for _ in range(3) for job in case.jobs()]
    told: list[Drafter] = []
    for job in jobs:
        job.job.drafter = informed(shared, case.wanted[0], None)
        told.append(job.job.drafter)
    serve(engine, *jobs)
    assert set(asked) == {3}
    for job, drafter in zip(jobs, told, strict=True):
        check(case, [job])
        assert predicted(drafter, [job.job.sequence]).accepted > 0


def test_logprobs_are_those_of_each_alone(lm: LanguageModel, cases: list[Case]) -> None:
    recorder = LogprobRecorder(lm.loaded.sampler.logprobs)
    engine = Service(lm.loaded.target, NoDrafter(), Plans(), watches=[recorder], thread=False)
    alone = lm.generate(PROMPT, max_tokens=20, logprobs=2).choices[0].logprobs
    job, *beside = [
        Listener(lm.runtime.requests.make(PROMPT, parse_options({"max_tokens": 20}))[0].sequence) for _ in range(3)
    ]
    record = recorder.want(job.job.sequence, 2)
    recorder.want(beside[0].job.sequence, 0)
    engine.submit([j.job for j in (job, *beside)])
    engine.step()
    engine.cancel(beside[0].job)
    while not engine.idle:
        engine.step()
    assert alone is not None
    assert [one.token for one in record] == [one.token_id for one in alone]
    assert [one.logprob for one in record] == pytest.approx([one.logprob for one in alone], abs=1e-9)
    assert not recorder._kept


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_no_bit_depends_on_chunks_neighbours_or_re_use(tiny: Path, tmp_path: Path, dtype: str) -> None:
    """What the native pass says after a prompt, however the prompt came to be in the slot."""
    loaded = foredraft.load(tiny, dtype=dtype, drafter="none", threads=1, cache=tmp_path).loaded
    assert loaded.tier.startswith("native")
    tokens, drafts = [3 + i * i % 250 for i in range(70)], [Draft.chain((5, 6, 7)), Draft()]
    sequences = [TokenSequence(tokens, 200), TokenSequence([*tokens[:50], 9, 8], 200)]
    wanted = CachedTarget(loaded.target.model).score(sequences, drafts, (0, 1))
    for chunk in (*range(1, 20), 33, 64, 69):
        target = CachedTarget(loaded.target.model, slots=4)
        used = TokenSequence([*tokens[: chunk % 7 * 10], 200, 201], 200)
        target.begin(used)
        target.score([used], [Draft.chain((8, 9))])
        target.end(used)
        for sequence in sequences:
            target.begin(sequence)
            while target.feed(sequence, chunk, (0, 1) if chunk % 7 == 0 else ()):
                pass
        again = target.score(sequences, drafts, (0, 1))
        assert np.array_equal(again.logits, wanted.logits)
        assert all(np.array_equal(again.hidden[tap], wanted.hidden[tap]) for tap in (0, 1))
        if chunk % 7 == 0:
            for ours, theirs in zip(again.earlier, wanted.earlier, strict=True):
                assert all(np.array_equal(ours[tap], theirs[tap]) for tap in (0, 1))

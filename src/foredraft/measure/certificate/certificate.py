"""A certificate: the model that was loaded, with the drafters that were named, checked against plain decoding.

Every check runs the code that answers requests. What each shows, and its power, is in docs/exactness.md.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from foredraft.core.protocols import Drafter, Watch
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.none import NoDrafter
from foredraft.engine.watches.tally import Tally
from foredraft.measure.certificate.answers import Asker, Counting, Kind
from foredraft.measure.certificate.divergence import TIE, Divergence, divergence
from foredraft.measure.certificate.law_test import NOTHING, law_check
from foredraft.measure.certificate.plan import Check, Plan
from foredraft.measure.certificate.planted_faults import FavouringNoise
from foredraft.runtime.drafters import DRAFT_TOKENS
from foredraft.runtime.loaded_model import LoadedModel

LENGTH: Final = 4  # guesses a round when the law is tested
GREEDY: Final = SamplingParams()
SEEDED: Final = SamplingParams(temperature=0.8, top_p=0.95)
WHOLE: Final = SamplingParams(temperature=1.0)
NUCLEUS: Final = SamplingParams(temperature=1.0, top_p=0.95)
Step = Callable[[int, int], None]  # answers done, answers in all


@dataclass(slots=True)
class _Equal:
    """One equality check while it runs."""

    name: str
    kind: Kind
    plain: list[TokenSequence]
    answers: int = 0
    tally: Tally = field(default_factory=Tally)
    divergences: list[Divergence] = field(default_factory=list)


class Certifier:
    """The checks of one model. ``make(name, draft_tokens)`` returns a drafter; ``prompts`` are token ids.

    Raises whatever ``make`` does.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        drafters: Sequence[str],
        make: Callable[[str, int | None], Drafter],
        prompts: Sequence[Sequence[int]],
        plan: Plan,
        step: Step,
    ) -> None:
        self.loaded = loaded
        self.plan = plan
        lengths = {*plan.lengths, self._length}
        names = [] if loaded.no_speculation_reason is not None else [name for name in drafters if name != "none"]
        made = [(name, {length: make(name, length) for length in lengths}) for name in names]
        self._drafters = {name if name != "auto" else of[self._length].name: of for name, of in made}
        self._asker = Asker(loaded, prompts, plan.tokens, self._stepped)
        self._step = step
        self._done = 0
        self._seeds = plan.seed << 32

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names of the drafters that are checked, the plain reference first."""
        return ("none", *self._drafters)

    def checks(self) -> Generator[Check, None, None]:
        """Run every check and yield what it found. Raises only what breaks plain decoding itself."""
        equal = self._plain()
        yield from self._equality("none", {None: NoDrafter()}, equal)
        if self.loaded.no_speculation_reason is not None:
            yield Check(
                "speculation",
                "none",
                ok=True,
                note=f"off for this model, no distribution was tested: {self.loaded.no_speculation_reason}",
            )
        elif not self._drafters:
            yield Check("law", "none", ok=True, note="no distribution was tested: nothing drafts")
        for name, of in self._drafters.items():
            yield from self._equality(name, {length: of[length] for length in self.plan.lengths}, equal)
            for rule in self.plan.rules:
                yield self._law(f"{rule} law", name, of, Kind(WHOLE, rule == "coupled", self._fresh()))
                planted = Kind(WHOLE, rule == "coupled", self._fresh(), FavouringNoise)
                yield self._law(f"{rule} law, planted fault", name, of, planted)
            first = self.plan.rules[0]
            yield self._law(f"{first} law, top-p 0.95", name, of, Kind(NUCLEUS, first == "coupled", self._fresh()))

    @property
    def total(self) -> int:
        """How many answers the checks will take."""
        prompts, kinds, rules = len(self._asker.prompts), 1 + ("coupled" in self.plan.rules), len(self.plan.rules)
        each = len(self.plan.lengths) * prompts * (kinds + 2) + (2 * rules + 1) * self.plan.sampled
        return prompts * (kinds + 2) + len(self._drafters) * each

    @property
    def _length(self) -> int:
        return LENGTH if self.plan.draft_tokens is None else self.plan.draft_tokens

    def _plain(self) -> list[_Equal]:
        """Answer every prompt plainly and alone: what everything else is compared with."""
        coupled = "coupled" in self.plan.rules
        kinds = {"greedy text": Kind(GREEDY), "seeded text": Kind(SEEDED, coupled=True, seeds=self._fresh())}
        equal = [_Equal(name, kind, self._asker.sequences(kind)) for name, kind in kinds.items()][: 1 + coupled]
        for each in equal:
            self._asker.answer(each.plain, NoDrafter(), 0, 1)
        return equal

    def _equality(self, name: str, of: Mapping[int | None, Drafter], plain: Sequence[_Equal]) -> list[Check]:
        """Compare a drafter's answers with the plain ones: every length, alone and in a mixed batch."""
        begun = self._done
        equal = [_Equal(each.name, each.kind, each.plain) for each in plain]
        note = None
        try:
            for length, drafter in of.items():
                if name != "none":
                    self._alone(equal, drafter, length)
                self._mixed(equal, drafter, length)
        except Exception as error:  # a stranger's drafter may break in any way: that is a finding
            note = _words(error)
        batches = len(of) * (2 * len(self._asker.prompts))
        self._jump(begun + batches + (name != "none") * len(of) * len(equal) * len(self._asker.prompts))
        return [self._compared(name, each, note) for each in equal]

    def _alone(self, equal: Sequence[_Equal], drafter: Drafter, length: int | None) -> None:
        for each in equal:
            sequences = self._asker.sequences(each.kind)
            self._answer(sequences, drafter, length, 1, [Counting(each.tally, frozenset(sequences))])
            self._compare(each, sequences, f"{_guesses(length)}, alone")

    def _mixed(self, equal: Sequence[_Equal], drafter: Drafter, length: int | None) -> None:
        """Answer greedy and sampled prompts in one batch, whether the sampled ones are compared or only neighbours."""
        kinds = [each.kind for each in equal]
        if len(kinds) == 1:
            kinds.append(Kind(SEEDED, seeds=self._fresh()))
        sequences = [self._asker.sequences(kind) for kind in kinds]
        counting = [Counting(each.tally, frozenset(own)) for each, own in zip(equal, sequences, strict=False)]
        mixed = [text for pair in zip(*sequences, strict=True) for text in pair]
        self._answer(mixed, drafter, length, self.plan.width, counting)
        for each, own in zip(equal, sequences, strict=False):
            self._compare(each, own, f"{_guesses(length)}, mixed batch")

    def _answer(
        self,
        sequences: Sequence[TokenSequence],
        drafter: Drafter,
        length: int | None,
        width: int,
        watches: Sequence[Watch],
    ) -> None:
        self._asker.answer(sequences, drafter, DRAFT_TOKENS if length is None else length, width, watches)

    def _compare(self, equal: _Equal, sequences: Sequence[TokenSequence], arm: str) -> None:
        equal.answers += len(sequences)
        for i, (plain, other) in enumerate(zip(equal.plain, sequences, strict=True)):
            if (found := divergence(self.loaded.target, self.loaded.dtype, i, arm, plain, other)) is not None:
                equal.divergences.append(found)

    def _compared(self, name: str, equal: _Equal, note: str | None) -> Check:
        if note is None and name != "none" and not equal.tally.total.drafted:
            note = NOTHING
        ties = sum(d.verdict == TIE for d in equal.divergences)
        faults = len(equal.divergences) - ties
        allowed = 0 if self.loaded.tier.startswith("native") else ties
        figures = {
            "answers": equal.answers,
            "identical": equal.answers - ties - faults,
            "ties": ties,
            "faults": faults,
            "mean_tokens_per_pass": equal.tally.mean_tokens_per_pass,
        }
        ok = note is None and faults == 0 and ties == allowed
        return Check(equal.name, name, ok, figures, tuple(equal.divergences), note)

    def _law(self, check: str, name: str, of: Mapping[int | None, Drafter], kind: Kind) -> Check:
        """Test sampled tokens against the target's own law; a planted fault has to be found."""
        planted = kind.noise is FavouringNoise
        length, begun = 1 if planted else self._length, self._done
        try:
            return law_check(check, name, self._asker, of[self._length], kind, self.plan.batch(length))
        except Exception as error:  # as above
            self._jump(begun + self.plan.sampled)
            return Check(check, name, ok=False, note=_words(error))

    def _fresh(self) -> int:
        """Return the first of a million seeds that nobody else has."""
        self._seeds += 1 << 20
        return self._seeds

    def _stepped(self) -> None:
        self._jump(self._done + 1)

    def _jump(self, done: int) -> None:
        self._done = done
        self._step(done, self.total)


def _guesses(length: int | None) -> str:
    return "default length" if length is None else f"length {length}"


def _words(error: Exception) -> str:
    return f"it broke: {type(error).__name__}: {error}"

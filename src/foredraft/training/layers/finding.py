"""``foredraft train layers``: from a model and prompts to the sub-layers it drafts best with, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from time import monotonic
from typing import Final

from foredraft.errors import DrafterError, OptionError, PromptError
from foredraft.models.views.layer_choice import LayerChoice, write_choice
from foredraft.models.views.sub_layers import layered
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.training.data.plans import Tell
from foredraft.training.layers.answers import Answer, greedy_answers, greedy_text
from foredraft.training.layers.costs import Costs, measure_costs
from foredraft.training.layers.search import Candidate, LayerSearch
from foredraft.training.layers.state import State, open_state, state_key
from foredraft.training.layers.trial import Trial, best_trial, measure
from foredraft.training.layers.windows import COUNT, WIDTH, Windows

MINUTES: Final = 10.0
TOKENS: Final = 96
_LATE: Final = 1.2  # times the minutes, after which no further answer is measured
_ANSWERING: Final = 0.15  # of the time, at most
_SHARE: Final = 0.3  # of the time that the search has at least, however long the measuring will take


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """How long and how thoroughly to search. Raises OptionError for a number that cannot be."""

    minutes: float = MINUTES
    tokens: int = TOKENS  # longest answer
    windows: int = COUNT
    leaders: int = 3  # sets whose rounds are walked through
    repeats: int = 2  # of the measured generation

    def __post_init__(self) -> None:
        if not 0 < self.minutes < 1e6:
            raise OptionError(f"minutes must be a number above 0 and below 1000000, not {self.minutes}")
        if self.tokens < 4:
            raise OptionError(f"tokens must be at least 4, not {self.tokens}")


@dataclass(frozen=True, slots=True)
class Found:
    """A choice, and how it was come by."""

    choice: LayerChoice
    trial: Trial
    tried: int  # sets
    known: int  # of them from an earlier search
    complete: bool  # nothing better is near; False: the time was up, or it was stopped
    seconds: float
    answered: int  # prompts, of so many given
    cut: int  # of those answers, by the time
    prompts: int


class LayerTrainer:
    """Searches a model's sub-layers on prompts [texts of token ids]; see ``train``.

    ``state`` is the file that a stopped search leaves and a resumed one reads. Raises DrafterError for a model whose
    layers cannot be left out, OptionError for answers longer than its context.
    """

    def __init__(
        self, loaded: LoadedModel, prompts: Sequence[Sequence[int]], state: Path, plan: LayerPlan, tell: Tell
    ) -> None:
        self.loaded = loaded
        self.prompts = prompts
        self.plan = plan
        self.model = layered(loaded.target)
        if plan.tokens >= loaded.context:
            raise OptionError(f"tokens must be fewer than the {loaded.context} of the context, not {plan.tokens}")
        self._tell = tell
        self._began = monotonic()
        facts = {"identity": loaded.identity, "tier": loaded.tier, "dtype": loaded.dtype, "width": WIDTH}
        self.state: State = open_state(state, state_key({**facts, "tokens": plan.tokens, "of": plan.windows}, prompts))

    def train(self, machine: str) -> Found:
        """Search, measure and return what was found; ``machine`` names this one.

        Ctrl-C while it searches ends the search and measures the best so far; at any other time ``kept`` says what it
        leaves. Raises PromptError where the answers are too short to draft in.
        """
        known = len(self.state.tried)
        answers = self._answers()
        windows = Windows(self.model, answers, lambda done, of: self._tell(done, of, "preparing"), self.plan.windows)
        try:
            self._tell(0, 1, "measuring costs")
            costs = measure_costs(self.loaded, answers, self.model.layers)
            search = self._search(windows, costs, sum(answer.length for answer in answers))
        finally:
            windows.close()
        leaders = search.leaders(self.plan.leaders)
        if not leaders:
            raise DrafterError("the search was stopped before it had tried anything")

        def speedup(tokens: float, length: int, leader: Candidate) -> float:
            return costs.speedup(tokens, length, costs.step(leader.sub_layers))

        self._tell(0, len(answers), "measuring")
        best, length = best_trial(self.loaded, answers, speedup, leaders, lambda: self._used() > 1.0)

        def go_on(done: int, of: int) -> bool:
            self._tell(done, of, "measuring")
            return self._used() < _LATE

        trial = measure(self.loaded, answers, best, length, self.plan.repeats, go_on)
        self._tell(1, 1, "measuring")
        choice = self._choice(trial, machine)
        return Found(
            choice=choice,
            trial=trial,
            tried=len(search.candidates),
            known=known,
            complete=search.complete,
            seconds=monotonic() - self._began,
            answered=len(self.state.answers),
            cut=sum(self._is_cut(answer) for answer in self.state.answers),
            prompts=len(self.prompts),
        )

    @property
    def kept(self) -> str:
        """What the same command goes on with after a stop, in words."""
        if not self.state.answers:
            return "nothing is kept yet, so the same command begins anew"
        tried = len(self.state.tried)
        sets = "1 set" if tried == 1 else f"{tried} sets"
        return f"the answers and the {sets} tried are kept, so the same command goes on from there"

    def _used(self) -> float:
        """Return the share of the time that is gone."""
        return (monotonic() - self._began) / (60.0 * self.plan.minutes)

    def _is_cut(self, answer: Answer) -> bool:
        """Say whether an answer ended before its length and without saying so."""
        whole = greedy_text(self.loaded, answer.tokens[: answer.prompt], self.plan.tokens)
        return len(answer.tokens) < whole.limit and answer.tokens[-1] not in whole.stop_ids

    def _answers(self) -> list[Answer]:
        """Return the answers that are long enough: those that are known, or new ones, to no more prompts than windows.

        They take a bounded share of the time.
        """
        known = self.state.answers or greedy_answers(
            self.loaded,
            self.prompts[: self.plan.windows],
            self.plan.tokens,
            lambda done, of: self._tell(done, of, "answering"),
            lambda: self._used() > _ANSWERING,
        )
        answers = [answer for answer in known if answer.length >= 3]
        if not answers:
            raise PromptError("the model's answers are too short to draft in: give other prompts, or more --minutes")
        if not self.state.answers:
            self.state.answers = known
            self.state.write()
        return answers

    def _search(self, windows: Windows, costs: Costs, tokens: int) -> LayerSearch:
        """Search for as long as the plan allows, less what measuring will take."""
        allowed, spent = 60.0 * self.plan.minutes, monotonic() - self._began
        reserve = (2.5 * self.plan.repeats + 1.5 * self.plan.leaders) * tokens * costs.rounds[0]
        limit = max(allowed - reserve - spent, _SHARE * allowed)
        began, most = monotonic(), int(limit) + 1
        label = f"searching for {most} s at most"

        def tell(phase: str, best: Candidate | None) -> None:
            note = phase
            if best is not None:
                parts = 2 * self.model.layers
                guesses = "1 guess" if best.length == 1 else f"{best.length} guesses"
                runs = f"runs {len(best.sub_layers)} of {parts} sub-layers, {guesses} a round"
                note = f"{phase}; the best is predicted at {best.speedup:.3f}x, {runs}"
            self._tell(min(int(monotonic() - began), most - 1), most, label, note)

        search = LayerSearch(windows, costs, self.state, lambda: monotonic() - began > limit, tell)
        search.run()
        return search

    def _choice(self, trial: Trial, machine: str) -> LayerChoice:
        loaded, candidate, plain = self.loaded, trial.candidate, trial.plain_tokens_per_s
        return LayerChoice(
            model=loaded.name,
            identity=loaded.identity,
            layers=self.model.layers,
            sub_layers=candidate.sub_layers,
            draft_tokens=trial.length,
            agreement=candidate.runs.agreement,
            cost=trial.cost,
            predicted_speedup=trial.predicted,
            measured_speedup=trial.measured,
            measured_from=trial.interval[0],
            measured_to=trial.interval[1],
            measured_tokens=trial.tokens,
            plain_tokens_per_s=plain,
            predicted_tokens_per_s=plain * trial.predicted,
            measured_tokens_per_s=plain * trial.measured,
            tier=loaded.tier,
            dtype=loaded.dtype,
            machine=machine,
            date=date.today().isoformat(),
        )


def save(found: Found, path: Path) -> None:
    """Write a choice for ``--drafter layers`` to find. Raises StorageError."""
    write_choice(path, found.choice)

"""What every training on a target's answers does: collect them, train, save, and say how it all came about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from foredraft._version import __version__
from foredraft.errors import OptionError, PromptError, StorageError
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.system.files import require_space, write_whole
from foredraft.training.data.collect import Collector, CollectPlan
from foredraft.training.data.plans import MIN_TOKENS, Plan, Tell
from foredraft.training.data.recorder import TOP
from foredraft.training.data.shards import Example, Shards, bytes_a_token
from foredraft.training.heads.data import draft_vocabulary, held_out
from foredraft.training.heads.judge import Judgement
from foredraft.training.heads.state import begun_vocabulary
from foredraft.training.heads.target import TargetTensors
from foredraft.training.heads.trainer import HeadsTrainer, every
from foredraft.training.interrupt import deferred

_SAVE_S: Final = 120.0  # between two saves, and two judgements
_PROMPT: Final = 80  # tokens of a prompt, about, where the target writes its own
_LOSSES: Final = 32  # that provenance keeps

P = TypeVar("P", bound=Plan)


@dataclass(frozen=True, slots=True)
class Made:
    """What was trained, and how it was come by."""

    path: Path
    judgement: Judgement
    tokens: int  # of answers that it was trained on
    collected_s: float
    trained_s: float
    complete: bool  # False: stopped before the plan was carried out


class Work(TargetTensors):
    """The answers of one target in one folder, and trainings on them.

    Raises DrafterError for a model whose weights are not to be had from a folder, or whose layers cannot be tapped.
    """

    def __init__(self, loaded: LoadedModel, folder: Path, plan: Plan, tell: Tell) -> None:
        super().__init__(loaded)
        self.folder = folder
        self.plan = plan
        self.tell = tell
        self.taken = 0  # tokens of answers that are taken as they are
        self.collected_s = 0.0
        key = json.dumps([self.digest, self.taps, loaded.dtype])
        self.shards = Shards(folder / "states", key, round(plan.gigabytes * 1e9))

    def bound(self, prompts: Sequence[Sequence[int]]) -> int:
        """Return the bytes that states will take on disk at most, which no collection exceeds from now on."""
        mean = max(_PROMPT, sum(map(len, prompts)) / max(1, len(prompts)))
        rows = self.plan.tokens * (1 + 2 * mean / self.plan.longest)  # answers are about half as long as they may be
        each = bytes_a_token(len(self.taps), self.spec.hidden, TOP)
        self.shards.limit = min(round(self.plan.gigabytes * 1e9), round(rows * each))
        return self.shards.limit

    def take_answers(self, plan: P) -> P:
        """Return a plan that asks for no more answers than there are, and go by it; the same where there are none.

        Raises StorageError for answers that cannot be read.
        """
        self.taken = sum(len(example.top) for example in self.shards.examples())
        if self.taken:
            plan = replace(plan, tokens=max(MIN_TOKENS, self.taken))
            self.plan = plan
        return plan

    def collector(self, prompts: Sequence[Sequence[int]]) -> Collector:
        """Return what collects the answers that are lacking. Nothing is kept of what it refuses.

        Raises PromptError where there is nothing to ask, OptionError for other prompts than those that the answers on
        disk were begun with, StorageError.
        """
        self.shards.sweep()
        self.bound(prompts)
        plan = CollectPlan(self.plan.tokens, self.plan.longest, seed=self.plan.seed)
        collector = Collector(self.loaded, prompts, self.taps, self.shards, plan)
        begun = self.folder / "prompts"
        if (
            not collector.done
            and self.shards.paths
            and begun.exists()
            and begun.read_text("utf-8", "replace") != _hash(prompts)
        ):
            raise OptionError(
                f"the answers in {self.folder} were begun with other prompts: name the same file, or another folder"
            )
        return collector

    def texts(self, collector: Collector) -> tuple[list[Example], list[Example]]:
        """Collect what is lacking and return texts to train on and to judge by. Raises PromptError, StorageError."""
        notes = self.folder / "collected.json"
        self.collected_s = _seconds(notes)
        if not collector.done:
            write_whole(self.folder / "prompts", _hash(collector.prompts))
            require_space(self.folder, max(0, self.shards.limit - self.shards.bytes), "folder")
        while not collector.done:
            began = perf_counter()
            collector.batch(lambda done, of: self.tell(min(done, of), of, "answering"))
            self.collected_s += perf_counter() - began
            write_whole(notes, json.dumps(self.collected_s))
        trained, judged = held_out(list(self.shards.examples()))
        if not trained or not judged:
            few = len(trained) + len(judged)
            texts = "1 text" if few == 1 else f"{few} texts"
            raise PromptError(f"answers to {texts} are too few to train on and to judge by: ask for more tokens")
        return trained, judged

    def vocabulary(self, state: Path, texts: Sequence[Example]) -> NDArray[np.int32]:
        """Return the draft vocabulary [Vd]: what a training that was begun has, or the commonest tokens of texts."""
        begun = begun_vocabulary(state)
        if begun is not None:
            return begun
        return draft_vocabulary(texts, self.spec.vocabulary, min(self.plan.vocabulary, self.spec.vocabulary))

    def train(self, trainer: HeadsTrainer, state: Path) -> bool:
        """Train to the end of the plan, or to Ctrl-C, saving now and then; say whether it came to the end."""
        due, note = every(_SAVE_S), "first steps"
        trainer.resume(state)
        with deferred() as stopped:
            for progress in trainer.steps():
                self.tell(min(progress.visits, trainer.total), trainer.total, "training", note)
                if stopped():
                    break
                if due():
                    note = words(trainer.judge())
                    trainer.save(state)
        return trainer.done

    def provenance(self, trainer: HeadsTrainer, judgement: Judgement, argv: Sequence[str]) -> dict[str, Any]:
        """Return how a module came about: software, command, data, losses and what it is worth."""
        data, tokens = hashlib.sha256(), 0
        for example in self.shards.examples():
            data.update(example.tokens.tobytes())
            tokens += len(example.tokens) - example.prompt
        progress = trainer.progress
        losses = [[each["visits"], each["loss"]] for each in progress.history]
        return {
            "foredraft": __version__,
            "argv": list(argv),
            "data": data.hexdigest()[:16],
            "tokens": tokens,
            "plan": asdict(self.plan),
            "visits": progress.visits,
            "losses": losses[:: max(1, -(-len(losses) // _LOSSES))],
            "loss": progress.loss,
            "tokens_a_pass": judgement.greedy.tokens_a_pass,
            "tokens_a_pass_drawn": judgement.drawn,
            "conditional": list(judgement.greedy.conditional),
            "collected_s": round(self.collected_s),
            "trained_s": round(progress.seconds),
        }

    def log(self, path: Path, trainer: HeadsTrainer) -> None:
        """Write all judgements for whoever wants to draw them. Raises StorageError."""
        document = {"collected_s": self.collected_s, "history": trainer.progress.history}
        write_whole(path, json.dumps(document, indent=1))


def words(judgement: Judgement) -> str:
    """Return a judgement in words."""
    chances = " ".join(f"{chance:.2f}" for chance in judgement.greedy.conditional)
    return f"{judgement.greedy.tokens_a_pass:.2f} tokens a pass held out (acceptance {chances})"


def _hash(prompts: Sequence[Sequence[int]]) -> str:
    return hashlib.sha256(repr([list(prompt) for prompt in prompts]).encode()).hexdigest()


def _seconds(notes: Path) -> float:
    """Return the seconds that earlier collections noted. Raises StorageError for a note that is none."""
    try:
        return float(json.loads(notes.read_text(encoding="utf-8"))) if notes.exists() else 0.0
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(f"{notes} cannot be read: {error}; delete it") from error

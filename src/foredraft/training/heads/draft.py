"""``foredraft train draft``: from a model and prompts to a smaller one that drafts for it.

It begins as some of the target's own layers and is trained by the same loop as heads, on the same answers (DistillSpec,
arXiv 2310.08461). Its embedding and head are the target's, frozen; of the head only the draft vocabulary is ever read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import StorageError
from foredraft.models.layout import by_part, layer_prefix, outer_tensors, output_head
from foredraft.models.views.narrow import describe_vocabulary
from foredraft.models.weights.floats import narrowed as to_bf16
from foredraft.models.weights.write import write_tensors
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.system.files import building, refused
from foredraft.training.data.plans import DraftPlan, Tell, keep_plan, parse_plan
from foredraft.training.data.shards import narrowed
from foredraft.training.heads.draft_module import Student, chosen_layers, student_shape, taught
from foredraft.training.heads.trainer import HeadsTrainer, TrainPlan
from foredraft.training.heads.work import Made, Work
from foredraft.training.lock import held

_WORDS: Final = ("tokenizer*.json", "special_tokens_map.json", "generation_config.json", "chat_template.*")
_RATE: Final = 0.25  # times that of heads, which begin from nothing


class DraftMaker:
    """Makes a draft model in ``folder``, which holds all that going on takes; see ``make``.

    ``named`` are the fields of the plan that were asked for. Raises DrafterError for a model that is not built like a
    Llama or is too shallow, OptionError for a plan that cannot be, or is not that of what was begun here.
    """

    def __init__(self, loaded: LoadedModel, folder: Path, named: Mapping[str, Any], tell: Tell) -> None:
        self.folder = folder
        layers = DraftPlan(**named).layers
        self._plan = folder / f"draft-{layers}.json"
        self._state = folder / f"draft-{layers}.safetensors"
        self.path = folder / f"draft-{layers}"
        self.plan = parse_plan(DraftPlan, self._plan, {**named, "layers": layers})
        self.work = Work(loaded, folder, self.plan, tell)
        if "tokens" not in named and not self._plan.exists():
            self.plan = self.work.take_answers(self.plan)
        student_shape(self.work.spec, loaded.name)
        self.layers = chosen_layers(self.work.spec.layers, layers)

    @property
    def begun(self) -> bool:
        """Whether the folder holds part of this training; answers alone, which others may have left, are none."""
        return self._plan.exists() or self._state.exists()

    def make(self, prompts: Sequence[Sequence[int]], argv: Sequence[str]) -> Made:
        """Collect, train and write the model.

        Ctrl-C while training ends it and writes what there is. Raises PromptError, StorageError.
        """
        with held(self.folder):
            collector = self.work.collector(prompts)
            keep_plan(self._plan, self.plan)
            texts = self.work.texts(collector)
            ids = self.work.vocabulary(self._state, texts[0])
            student = taught(self.work, self.layers)
            train = TrainPlan(epochs=self.plan.epochs, unrolled=1, seed=self.plan.seed, rate=_RATE)
            trainer = HeadsTrainer(student, self.work.ends(ids), ids, texts, train)
            complete = self.work.train(trainer, self._state)
            judgement = trainer.judge()
            trainer.save(self._state)
            self.work.log(self.folder / f"draft-{self.plan.layers}.log.json", trainer)
            self._write(student, ids, self.work.provenance(trainer, judgement, argv))
            tokens = sum(len(e.top) for e in texts[0])
            return Made(self.path, judgement, tokens, self.work.collected_s, trainer.progress.seconds, complete)

    def _write(self, student: Student, ids: NDArray[np.int32], provenance: Mapping[str, Any]) -> None:
        """Write the student as a checkpoint of its own, in the place of an earlier one. Raises StorageError."""
        source = self.work.weights.folder
        target = {"name": self.work.loaded.name, "digest": self.work.digest, "vocabulary": self.work.spec.vocabulary}
        try:
            config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StorageError(f"{source / 'config.json'} cannot be read: {error}") from error
        config |= {"num_hidden_layers": len(self.layers), "dtype": "bfloat16"}
        for name in ("torch_dtype", "layer_types"):
            config.pop(name, None)
        with building(self.path, "folder") as folder:
            try:
                (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
                for pattern in _WORDS:
                    for file in source.glob(pattern):
                        shutil.copyfile(file, folder / file.name)
            except OSError as error:
                raise refused(self.folder, error, "folder") from error
            write_tensors(folder / "model.safetensors", self._tensors(student), {"format": "pt"})
            describe_vocabulary(folder, ids, target, provenance)
            if self.path.exists():  # only now: the disk may have refused the new one
                try:
                    shutil.rmtree(self.path)
                except OSError as error:
                    raise refused(self.folder, error, "folder") from error

    def _tensors(self, student: Student) -> dict[str, NDArray[Any]]:
        work = self.work
        outer = by_part(outer_tensors(work.spec, work.prefix, output_head(work.weights, work.spec)))
        names = [slot.name for part in ("embedding", "head") for slot in outer.get(part, ())]
        made = {n: to_bf16(work.weights.raw(n), work.weights.dtype(n), n) for n in names}
        trained = {outer["norm"][0].name: student.norm.weight}
        for i, block in enumerate(student.blocks):
            trained |= block.named(layer_prefix(work.prefix, i))  # type: ignore[operator]
        return made | {name: narrowed(value.detach().float().numpy()) for name, value in trained.items()}

"""``foredraft train heads``: from a model and prompts to heads that draft for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foredraft.models.heads.file import FILE, LAST_NORM, HeadsSpec, write_heads
from foredraft.models.layout import PREFIX, layer_prefix
from foredraft.models.rope import Rope
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.training.data.plans import HeadsPlan, Tell, keep_plan, parse_plan
from foredraft.training.data.shards import Example, narrowed
from foredraft.training.heads.module import HeadsShape, MedusaHeads, RecurrentHeads
from foredraft.training.heads.trainer import HeadsTrainer, TrainPlan, begin
from foredraft.training.heads.work import Made, Work
from foredraft.training.lock import held

_STATE: Final = "training.safetensors"
_PLAN: Final = "plan.json"
_LOG: Final = "log.json"
_UNROLLED: Final = 3  # steps that a recurrent module is trained over


class HeadsMaker:
    """Makes heads for a model in ``folder``, which holds all that going on takes; see ``make``.

    ``named`` are the fields of the plan that were asked for. Raises DrafterError for a model whose weights are not to
    be had from a folder, OptionError for a plan that cannot be, or is not that of what was begun here.
    """

    def __init__(self, loaded: LoadedModel, folder: Path, named: Mapping[str, Any], tell: Tell) -> None:
        self.folder = folder
        self.plan = parse_plan(HeadsPlan, folder / _PLAN, named)
        self.work = Work(loaded, folder, self.plan, tell)
        if "tokens" not in named and not (folder / _PLAN).exists():  # answers that the training of a draft left
            self.plan = self.work.take_answers(self.plan)
        spec, plan = self.work.spec, self.plan
        rope = next((rope for rope in spec.ropes if rope is not None), None)
        theta = 10_000.0 if rope is None else rope.theta
        taps = len(self.work.taps)
        self._shape = HeadsShape(
            spec.hidden, spec.mlp, spec.heads, spec.kv_heads, spec.head_dim, taps, spec.eps, Rope(spec.head_dim, theta)
        )
        self._steps = _UNROLLED if plan.kind == "recurrent" else plan.medusa

    @property
    def begun(self) -> bool:
        """Whether the folder holds part of this training; answers alone, which others may have left, are none."""
        return (self.folder / _PLAN).exists() or (self.folder / _STATE).exists()

    def make(self, prompts: Sequence[Sequence[int]], argv: Sequence[str], kept: Path | None = None) -> Made:
        """Collect, train and write the heads; once complete, where ``kept`` says as well.

        Ctrl-C while training ends it and writes what there is. Raises PromptError, StorageError.
        """
        with held(self.folder):
            collector = self.work.collector(prompts)
            keep_plan(self.folder / _PLAN, self.plan)
            texts = self.work.texts(collector)
            trainer, ids = self._trainer(texts)
            complete = self.work.train(trainer, self.folder / _STATE)
            judgement = trainer.judge()
            trainer.save(self.folder / _STATE)
            self.work.log(self.folder / _LOG, trainer)
            spec = self._described(self.work.provenance(trainer, judgement, argv))
            paths = [self.folder / FILE, *([kept] if kept is not None and complete else [])]
            for path in paths:
                write_heads(path, spec, tensors_of(trainer.module, ids))
            tokens = sum(len(e.top) for e in texts[0])
            return Made(paths[-1], judgement, tokens, self.work.collected_s, trainer.progress.seconds, complete)

    def _trainer(self, texts: tuple[list[Example], list[Example]]) -> tuple[HeadsTrainer, NDArray[np.int32]]:
        plan, shape = self.plan, self._shape
        module = RecurrentHeads(shape) if plan.kind == "recurrent" else MedusaHeads(shape, plan.medusa)
        ids = self.work.vocabulary(self.folder / _STATE, texts[0])
        ends = self.work.ends(ids)
        begin(module, self.work.last_norm(), ends, plan.seed)
        train = TrainPlan(epochs=plan.epochs, unrolled=self._steps, seed=plan.seed)
        return HeadsTrainer(module, ends, ids, texts, train), ids

    def _described(self, provenance: Mapping[str, Any]) -> HeadsSpec:
        work, shape = self.work, self._shape
        facts: dict[str, Any] = {
            "kind": self.plan.kind, "taps": work.taps, "hidden": shape.hidden, "eps": shape.eps, "steps": self._steps,
            "target": work.loaded.name, "digest": work.digest, "vocabulary": work.spec.vocabulary,
            "provenance": provenance,
        }  # fmt: skip
        if self.plan.kind == "recurrent":
            facts |= {
                "mlp": shape.mlp, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
                "rope_theta": shape.rope.theta,
            }  # fmt: skip
        return HeadsSpec(**facts)


def tensors_of(module: Any, ids: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Return heads as ``write_heads`` takes them: matrices as the bits of bfloat16, norms in float32."""
    made: dict[str, Tensor] = {"fuse.weight": module.fuse.weight, LAST_NORM: module.norm.weight}
    if isinstance(module, MedusaHeads):
        made |= {f"medusa.{i}.weight": cast("Tensor", head.weight) for i, head in enumerate(module.heads, 1)}
    else:
        made |= {
            "enter.embedding_norm": module.embedding_norm.weight, "enter.hidden_norm": module.hidden_norm.weight,
            "enter.weight": module.enter.weight, **module.block.named(layer_prefix(PREFIX, 0)),
        }  # fmt: skip
    norms = [cast("Tensor", norm.weight).detach().float().numpy() for norm in module.fuse_norms]
    out: dict[str, NDArray[Any]] = {"vocabulary": ids, "fuse.norms": np.stack(norms)}
    for name, tensor in made.items():
        values = tensor.detach().float().numpy()
        out[name] = values if "norm" in name else narrowed(values)
    return out

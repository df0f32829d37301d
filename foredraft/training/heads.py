"""``foredraft train heads``: from a model and prompts to heads that draft for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft._version import __version__
from foredraft.compose import Host
from foredraft.errors import DrafterError, OptionError, PromptError
from foredraft.models.heads_file import HeadsSpec, write_heads
from foredraft.models.identity import weights_digest
from foredraft.models.spec import DecoderSpec
from foredraft.models.store import require_space, write_whole
from foredraft.models.weights import Weights, open_weights
from foredraft.training.collect import Collector, CollectPlan
from foredraft.training.heads_data import draft_vocabulary, held_out
from foredraft.training.heads_module import Heads, HeadsShape, MedusaHeads, RecurrentHeads
from foredraft.training.heads_trainer import HeadsTrainer, Judgement, TrainPlan, begin, every
from foredraft.training.layers import Tell
from foredraft.training.lock import held
from foredraft.training.recorder import TOP
from foredraft.training.shards import Shards, bytes_a_token, narrowed

KINDS: Final = ("recurrent", "medusa")
_STATE: Final = "training.safetensors"
_HEADS: Final = "heads.safetensors"
_LOG: Final = "log.json"
_SAVE_S: Final = 120.0  # between two saves, and two judgements
_PROMPT_SHARE: Final = 2.0  # states kept a token of an answer, prompts included: about, and at most


@dataclass(frozen=True, slots=True)
class HeadsPlan:
    """What to make and how much to spend on it. Raises OptionError for a number that cannot be."""

    tokens: int = 1_500_000  # of the target's answers
    epochs: float = 8.0
    vocabulary: int = 8192  # tokens that may be guessed
    kind: str = "recurrent"
    gigabytes: float = 12.0  # that states may take on disk
    longest: int = 160  # tokens of an answer
    medusa: int = 4  # heads of that kind
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1000), ("vocabulary", 16), ("longest", 4)):
            if getattr(self, name) < least:
                raise OptionError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not (0 < self.epochs < 1e6 and 0 < self.gigabytes < 1e6):
            raise OptionError("epochs and gigabytes must be numbers above 0")
        if self.kind not in KINDS:
            raise OptionError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")


@dataclass(frozen=True, slots=True)
class Made:
    """Heads, and how they were come by."""

    path: Path
    judgement: Judgement
    tokens: int  # of answers that they were trained on
    collected_s: float
    trained_s: float
    complete: bool  # False: stopped before the plan was carried out


class HeadsMaker:
    """Makes heads for a model in ``folder``, which holds all that going on takes; see ``make``.

    Raises DrafterError for a model whose weights are not to be had from a folder, or whose layers cannot be tapped.
    """

    def __init__(self, host: Host, folder: Path, plan: HeadsPlan, tell: Tell) -> None:
        self.host = host
        self.folder = folder
        self.plan = plan
        self._tell = tell
        spec = getattr(host.target.model, "spec", None)
        if host.folder is None or not isinstance(spec, DecoderSpec):
            raise DrafterError(f"{host.name} runs through transformers' own module, for which no heads are trained")
        self.spec = spec
        self.weights = open_weights(host.folder)
        self.digest = weights_digest(self.weights, spec)
        self.taps = default_taps(spec.layers)
        key = json.dumps([self.digest, self.taps, host.dtype])
        self.shards = Shards(folder / "states", key, round(plan.gigabytes * 1e9))

    @property
    def begun(self) -> bool:
        """Whether the folder holds part of a training."""
        return bool(self.shards.paths) or (self.folder / _STATE).exists()

    @property
    def bytes(self) -> int:
        """Return what the states will take on disk, at most."""
        each = bytes_a_token(len(self.taps), self.spec.hidden, TOP)
        return min(self.shards.limit, round(self.plan.tokens * _PROMPT_SHARE * each))

    def make(self, prompts: Sequence[Sequence[int]], argv: Sequence[str]) -> Made:
        """Collect, train and write the heads.

        Ctrl-C while training ends it and writes the best so far. Raises PromptError, StorageError.
        """
        with held(self.folder):
            require_space(self.folder, max(0, self.bytes - self.shards.bytes))
            collected_s = self._collect(prompts)
            texts = held_out(list(self.shards.examples()))
            if not texts[1]:
                raise PromptError(
                    f"{len(texts[0])} answers are too few to train on and to judge by: ask for more tokens"
                )
            trainer, ids = self._trainer(texts)
            trainer.resume(self.folder / _STATE)
            complete = self._train(trainer)
            judgement = trainer.judge()
            trainer.save(self.folder / _STATE)
            path = self.folder / _HEADS
            log = {"collected_s": collected_s, "history": trainer.progress.history}
            write_whole(self.folder / _LOG, json.dumps(log, indent=1))
            tokens = sum(len(e.top) for e in texts[0])
            provenance = self._provenance(trainer, judgement, tokens, collected_s, argv)
            write_heads(path, self._described(provenance), self._tensors(trainer, ids))
            return Made(path, judgement, tokens, collected_s, trainer.progress.seconds, complete)

    def _collect(self, prompts: Sequence[Sequence[int]]) -> float:
        """Collect what is lacking; return the seconds it has taken in all runs."""
        notes = self.folder / "collected.json"
        seconds = float(json.loads(notes.read_text())) if notes.exists() else 0.0
        plan = CollectPlan(self.plan.tokens, self.plan.longest, seed=self.plan.seed)
        collector = Collector(self.host, prompts, self.taps, self.shards, plan)
        while not collector.done:
            began = perf_counter()
            collector.batch(lambda done, of: self._tell(min(done, of), of, "answering"))
            seconds += perf_counter() - began
            write_whole(notes, json.dumps(seconds))
        return seconds

    def _trainer(self, texts: Any) -> tuple[HeadsTrainer, NDArray[np.int32]]:
        spec, plan = self.spec, self.plan
        rope = next((rope for rope in spec.ropes if rope is not None), None)
        shape = HeadsShape(
            spec.hidden, spec.mlp, spec.heads, spec.kv_heads, spec.head_dim, len(self.taps), spec.eps,
            10_000.0 if rope is None else rope.theta,
        )  # fmt: skip
        self.shape = shape
        module: Heads = RecurrentHeads(shape) if plan.kind == "recurrent" else MedusaHeads(shape, plan.medusa)
        ids = draft_vocabulary(texts[0], spec.vocabulary, min(plan.vocabulary, spec.vocabulary))
        embedding, head, norm = self._frozen(ids)
        begin(module, norm, head, plan.seed)
        steps = 3 if plan.kind == "recurrent" else plan.medusa
        train = TrainPlan(epochs=plan.epochs, unrolled=steps, seed=plan.seed)
        return HeadsTrainer(module, embedding, head, ids, texts, train), ids

    def _frozen(self, ids: NDArray[np.int32]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the target's embedding [V, H], the head's rows of ``ids`` [Vd, H] and the last norm [H]."""
        names = self.weights.names()
        table = next(name for name in names if name.endswith("embed_tokens.weight"))
        rows = table if self.spec.tied else next(name for name in names if name.endswith("lm_head.weight"))
        embedding = _tensor(self.weights, table)
        head = embedding if rows == table else _tensor(self.weights, rows)
        head = head[torch.from_numpy(ids.astype(np.int64))] / self.spec.logits_divisor
        norm = _tensor(self.weights, table.replace("embed_tokens", "norm")).float() + (self.spec.norm == "unit")
        return embedding.bfloat16(), head.bfloat16().contiguous(), norm

    def _train(self, trainer: HeadsTrainer) -> bool:
        due, note = every(_SAVE_S), "first steps"
        try:
            for progress in trainer.steps():
                self._tell(min(progress.visits, trainer.total), trainer.total, "training", note)
                if due():
                    note = _note(trainer.judge())
                    trainer.save(self.folder / _STATE)
        except KeyboardInterrupt:
            return False
        return True

    def _provenance(
        self, trainer: HeadsTrainer, judgement: Judgement, tokens: int, collected_s: float, argv: Sequence[str]
    ) -> dict[str, Any]:
        data = hashlib.sha256()
        for example in self.shards.examples():
            data.update(example.tokens.tobytes())
        return {
            "foredraft": __version__,
            "argv": list(argv),
            "data": data.hexdigest()[:16],
            "tokens": tokens,
            "plan": asdict(self.plan),
            "visits": trainer.progress.visits,
            "loss": trainer.progress.loss,
            "tokens_a_pass": judgement.greedy.tokens_a_pass,
            "tokens_a_pass_drawn": judgement.drawn,
            "conditional": list(judgement.greedy.conditional),
            "collected_s": round(collected_s),
            "trained_s": round(trainer.progress.seconds),
        }

    def _described(self, provenance: Mapping[str, Any]) -> HeadsSpec:
        spec, shape, plan = self.spec, self.shape, self.plan
        facts: dict[str, Any] = {
            "kind": plan.kind, "taps": self.taps, "hidden": shape.hidden, "eps": shape.eps,
            "steps": 3 if plan.kind == "recurrent" else plan.medusa, "target": self.host.name, "digest": self.digest,
            "vocabulary": spec.vocabulary, "provenance": provenance,
        }  # fmt: skip
        if plan.kind == "recurrent":
            facts |= {
                "mlp": shape.mlp, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
                "rope_theta": shape.theta,
            }  # fmt: skip
        return HeadsSpec(**facts)

    def _tensors(self, trainer: HeadsTrainer, ids: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        module = trainer.module
        made: dict[str, Tensor] = {
            "fuse.norms": torch.stack([cast("Tensor", norm.weight) for norm in module.fuse_norms]),
            "fuse.weight": module.fuse.weight,
            "model.norm.weight": module.norm.weight,
        }  # fmt: skip
        if isinstance(module, MedusaHeads):
            made |= {f"medusa.{i}.weight": cast("Tensor", head.weight) for i, head in enumerate(module.heads, 1)}
        elif isinstance(module, RecurrentHeads):
            made |= _block_tensors(module)
        out: dict[str, NDArray[Any]] = {"vocabulary": ids}
        for name, tensor in made.items():
            values = tensor.detach().float().numpy()
            out[name] = values if "norm" in name else narrowed(values)
        return out


def default_taps(layers: int) -> tuple[int, ...]:
    """Return a low, a middle and the last layer of so many."""
    return tuple(sorted({max(0, layers // 3 - 1), max(0, 2 * layers // 3 - 1), layers - 1}))


def _block_tensors(module: RecurrentHeads) -> dict[str, Tensor]:
    block, shape, at = module.block, module.shape, "model.layers.0."
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    made = dict(zip(names, torch.split(block.qkv.weight, [q, kv, kv]), strict=True))
    made |= dict(zip(("mlp.gate_proj", "mlp.up_proj"), block.gate_up.weight.chunk(2), strict=True))
    made |= {"self_attn.o_proj": block.o.weight, "mlp.down_proj": block.down.weight}
    made |= {"input_layernorm": block.before_attention.weight, "post_attention_layernorm": block.before_gated.weight}
    return {
        "enter.embedding_norm": module.embedding_norm.weight, "enter.hidden_norm": module.hidden_norm.weight,
        "enter.weight": module.enter.weight, **{f"{at}{name}.weight": value for name, value in made.items()},
    }  # fmt: skip


def _tensor(weights: Weights, name: str) -> Tensor:
    raw = np.array(weights.raw(name))
    return (
        torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16) if raw.dtype == np.uint16 else torch.from_numpy(raw)
    )


def _note(judgement: Judgement) -> str:
    chances = " ".join(f"{chance:.2f}" for chance in judgement.greedy.conditional)
    return f"{judgement.greedy.tokens_a_pass:.2f} tokens a pass held out (acceptance {chances})"

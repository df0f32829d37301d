"""A smaller model made of some of the target's layers, as a torch module, for training."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from foredraft.errors import DrafterError
from foredraft.models.layout import layer_prefix
from foredraft.models.spec import DecoderSpec
from foredraft.training.heads.module import Biases, Block, HeadsShape, Norm, attend, turns
from foredraft.training.heads.work import Work


class Student(nn.Module):
    """A Llama of few layers over the target's embedding, whose last norm the target's head reads."""

    reads = False
    steps: int | None = 1

    def __init__(self, shape: HeadsShape, layers: int, biases: Biases = (False, False, False)) -> None:
        super().__init__()
        self.shape = shape
        self.blocks = nn.ModuleList(Block(shape, biases) for _ in range(layers))
        self.norm = Norm(shape.hidden, shape.eps)

    def unrolled(self, states: Tensor, embeddings: Tensor, steps: int) -> list[Tensor]:  # noqa: ARG002 - tokens alone
        """Return what the head reads; see ``Guesser``. ``states`` are not looked at, and there is one step."""
        x = embeddings.float()
        cos, sin = turns(x.shape[1], self.shape.rope)
        for block in cast("list[Block]", list(self.blocks)):
            q, k, v = block.project(x, cos, sin)
            x = block.finish(x, attend(q, (k, v)))
        return [cast("Tensor", self.norm(x))[:, 1:]]


def student_shape(spec: DecoderSpec, name: str) -> HeadsShape:
    """Return the sizes of a student of a target. Raises DrafterError for a target that is not built like a Llama."""
    rope = spec.ropes[0]
    plain = spec.family in ("llama", "mistral", "qwen2") and spec.activation == "silu" and not any(spec.windows)
    if not plain or rope is None or rope.dim != spec.head_dim:
        raise DrafterError(f"{name} is not built like a Llama, and drafts are made of the layers of those: train heads")
    return HeadsShape(spec.hidden, spec.mlp, spec.heads, spec.kv_heads, spec.head_dim, 0, spec.eps, rope)


def chosen_layers(layers: int, count: int) -> tuple[int, ...]:
    """Return which of a target's layers a student begins as: evenly spread, the first and the last among them.

    Raises DrafterError for a target that has no more layers than that.
    """
    if count >= layers:
        raise DrafterError(f"a draft of {count} layers is no smaller than a model of {layers}: name fewer layers")
    return tuple(round(i * (layers - 1) / (count - 1)) for i in range(count))


def taught(work: Work, layers: tuple[int, ...]) -> Student:
    """Return a student that begins as some of the target's layers."""
    spec = work.spec
    biases = (spec.qkv_bias, spec.o_bias, spec.mlp_bias)
    student = Student(student_shape(spec, work.loaded.name), len(layers), biases)
    with torch.no_grad():
        for block, layer in zip(cast("list[Block]", list(student.blocks)), layers, strict=True):
            for name, value in block.named(layer_prefix(work.prefix, layer)).items():
                # views of the module's own weights, so that fused ones are filled part by part
                value.copy_(work.tensor(name))
        student.norm.weight.copy_(work.last_norm())
    return student

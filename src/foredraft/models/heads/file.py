"""Trained heads as one safetensors file, bound to the weights of the target that they were trained for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import DrafterError, NoHeads, VocabularyMismatch, WeightsError
from foredraft.models import layout
from foredraft.models.checkpoint import open_file
from foredraft.models.layout import PREFIX, layer_tensors, matrices
from foredraft.models.rope import Rope
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights, held_weights
from foredraft.models.weights.write import write_tensors

FORMAT: Final = 1
KINDS: Final = ("recurrent", "medusa")
FEEDS: Final = ("normed", "residual")
ACTIVATIONS: Final = ("silu", "gelu_tanh")
SUFFIX: Final = ".safetensors"
FILE: Final = f"heads{SUFFIX}"  # in the folder of a training
# what a file names as a decoder's checkpoint does, the block being a model of its own
EMBEDDING: Final = f"{PREFIX}{layout.EMBEDDING}.weight"
LAST_NORM: Final = f"{PREFIX}{layout.LAST_NORM}.weight"
HEAD: Final = f"{layout.HEAD}.weight"
PACKAGED: Final = Path(__file__).parents[2] / "heads"
_MADE: Final = "foredraft train heads makes them"
_AGAIN: Final = "train the heads or copy the file again"


@dataclass(frozen=True, slots=True)
class HeadsSpec:
    """What heads are made of, and whose they are. Lengths are in features; what only a layer has is 0 of "medusa".

    ``taps`` are the target's layers whose output they read, ``steps`` the guesses they were trained for (of "medusa":
    how many heads there are), ``feeds`` whether a step goes on from the layer's output after its last norm ("normed")
    or before it ("residual"). ``digest`` is ``weights_digest`` of the target, ``vocabulary`` its V.
    """

    kind: str
    taps: tuple[int, ...]
    hidden: int
    eps: float
    steps: int
    target: str
    digest: str
    vocabulary: int
    mlp: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 0.0
    activation: str = "silu"
    feeds: str = "normed"
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def recurrent(self) -> bool:
        """Whether it is a layer that reads its own guesses."""
        return self.kind == "recurrent"

    def shapes(self, tokens: int, fused: bool, head: bool) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor, by name.

        ``tokens`` is how many may be guessed (Vd), ``fused`` whether taps are joined, ``head`` whether the heads have
        output rows of their own.
        """
        wide = self.hidden
        shapes: dict[str, tuple[int, ...]] = {"vocabulary": (tokens,), LAST_NORM: (wide,)}
        if fused:
            shapes |= {"fuse.norms": (len(self.taps), wide), "fuse.weight": (wide, len(self.taps) * wide)}
        if head:
            shapes[HEAD] = (tokens, wide)
        if not self.recurrent:
            return shapes | {f"medusa.{i}.weight": (wide, wide) for i in range(1, self.steps + 1)}
        shapes |= {"enter.embedding_norm": (wide,), "enter.hidden_norm": (wide,), "enter.weight": (wide, 2 * wide)}
        slots = list(layer_tensors(self.block(tokens), 0, PREFIX))
        layer = [*(slot for slot in slots if slot.norm), *matrices(slots)]
        return shapes | {slot.name: slot.shape for slot in layer}

    def block(self, tokens: int) -> DecoderSpec:
        """Return the block as a decoder of one layer with so many tokens; what its target gives is left neutral."""
        return DecoderSpec(
            family="llama", vocabulary=tokens, hidden=self.hidden, layers=1, heads=self.heads, kv_heads=self.kv_heads,
            head_dim=self.head_dim, mlp=self.mlp, context=0, eps=self.eps, norm="rms", norm_position="pre",
            qk_norm="none", qkv_bias=False, o_bias=False, mlp_bias=False, fused=False,
            ropes=(Rope(self.head_dim, self.rope_theta),), windows=(0,),
            attention_scale=self.head_dim**-0.5, attention_cap=0.0, logits_cap=0.0,
            activation=self.activation, embedding_scale=1.0, embedding_rounded=False, residual_scale=1.0,
            logits_divisor=1.0, tied=True, composite=False, eos=(),
        )  # fmt: skip


def read_heads(path: Path) -> tuple[HeadsSpec, Weights]:
    """Return what a file of heads holds; matrices are bfloat16, norms bfloat16 or float32, ``vocabulary`` int32.

    Raises DrafterError for a file that is not there, or of another kind or format; WeightsError for one that is
    truncated, or whose tensors are not those its description implies.
    """
    if not path.is_file():
        raise DrafterError(f"there is no file {path}: {_MADE}")
    weights = _opened(path)
    spec = _spec_of(weights)
    _check(spec, weights)
    return spec, weights


def _opened(path: Path) -> Weights:
    return open_file(path, "install foredraft again" if path.parent == PACKAGED else _AGAIN)


def write_heads(path: Path, spec: HeadsSpec, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write a file of heads, whole or not at all; arrays of uint16 are bfloat16, others float32 or int32.

    Raises WeightsError as ``read_heads`` does for what it would refuse, StorageError where the disk does.
    """
    _check(spec, held_weights(path, tensors))
    write_tensors(path, tensors, {"foredraft": json.dumps(_described(spec))})


def heads_file(cache: Path, digest: str) -> Path:
    """Return where the heads of a target are kept."""
    return cache / "heads" / f"{digest}{SUFFIX}"


def find_heads(which: str, cache: Path, digest: str, name: str) -> Path:
    """Return the file of heads for the target ``name``.

    ``which`` is a file, or a folder that holds one; empty, it is what was trained here, or what came with Foredraft.
    Raises DrafterError where there is none.
    """
    if which:
        path = Path(which)
        if not path.is_dir():
            return path
        if (path / FILE).is_file():
            return path / FILE
        found = sorted(path.glob(f"*{SUFFIX}"))
        if len(found) != 1:
            raise DrafterError(f"{path} holds {len(found) or 'no'} files of heads: name the file")
        return found[0]
    kept = heads_file(cache, digest)
    if kept.is_file():
        return kept
    packaged = packaged_heads(digest)
    if packaged is None:
        raise NoHeads(f"there are no heads for {name}: {_MADE}")
    return packaged


def packaged_heads(digest: str) -> Path | None:
    """Return the file of heads for a target that came with Foredraft; None without one."""
    paths = sorted(PACKAGED.glob(f"*{SUFFIX}"))
    return next((path for path in paths if _spec_of(_opened(path)).digest == digest), None)


def check_target(
    path: Path, spec: HeadsSpec, name: str, digest: str, vocabulary: int, hidden: int, layers: int
) -> None:
    """Raise VocabularyMismatch or DrafterError unless heads were trained for the target ``name``."""
    if spec.vocabulary != vocabulary:
        raise VocabularyMismatch(
            f"{path} was trained for {spec.target} with {spec.vocabulary} tokens, and {name} has {vocabulary}: {_MADE}"
        )
    if spec.digest != digest:
        raise DrafterError(f"{path} was trained for {spec.target} ({spec.digest}), not for {name} ({digest}): {_MADE}")
    if spec.hidden != hidden or spec.taps[-1] >= layers:
        raise DrafterError(f"{path} reads {spec.hidden} features of layer {spec.taps[-1]}, which {name} has not")


def _described(spec: HeadsSpec) -> dict[str, Any]:
    layer = ("mlp", "heads", "kv_heads", "head_dim", "rope_theta", "activation", "feeds") if spec.recurrent else ()
    plain = ("kind", "hidden", "eps", "steps", *layer)
    return {
        "format": FORMAT,
        **{name: getattr(spec, name) for name in plain},
        "taps": list(spec.taps),
        "target": {"name": spec.target, "digest": spec.digest, "vocabulary": spec.vocabulary},
        "provenance": dict(spec.provenance),
    }


def _spec_of(weights: Weights) -> HeadsSpec:
    """Return the description of a file. Raises DrafterError for one that is not of this format."""
    path = weights.folder
    try:
        found = json.loads(weights.metadata.get("foredraft", "null"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT or type(found["format"]) is not int:
        raise DrafterError(f"{path} holds no heads of format {FORMAT}: {_MADE}")
    if found.get("kind") not in KINDS:
        raise DrafterError(f"{path} holds heads of an unknown kind, {found.get('kind')!s:.40}: use {', '.join(KINDS)}")
    target, taps = found.get("target"), found.get("taps")
    target = target if isinstance(target, dict) else {}
    given = {**found, "target": target.get("name"), "digest": target.get("digest")}
    given["vocabulary"] = target.get("vocabulary")
    given["taps"] = tuple(taps) if isinstance(taps, list) else None
    names = ["target", "digest", "vocabulary", "taps", "hidden", "eps", "steps"]
    if found["kind"] == "recurrent":
        names += ["mlp", "heads", "kv_heads", "head_dim", "rope_theta", "activation", "feeds"]
    wrong = next((name for name in names if not _fits(name, given.get(name))), None)
    if wrong is not None:
        raise DrafterError(f"{path} does not describe its heads: {wrong} is missing or of another kind")
    provenance = found.get("provenance")
    values = {name: given[name] for name in names}
    spec = HeadsSpec(found["kind"], provenance=provenance if isinstance(provenance, dict) else {}, **values)
    if spec.recurrent and (spec.heads % spec.kv_heads or spec.head_dim % 2):
        raise DrafterError(
            f"{path}: {spec.heads} attention heads of {spec.head_dim} cannot share {spec.kv_heads} key-value heads"
        )
    return spec


def _fits(name: str, value: Any) -> bool:
    if name == "taps":
        natural = bool(value) and all(type(tap) is int and tap >= 0 for tap in value)
        return natural and all(a < b for a, b in pairwise(value))
    if name in ("eps", "rope_theta"):
        return type(value) in (int, float) and math.isfinite(value) and value > 0
    if name in ("target", "digest"):
        return isinstance(value, str)
    if name in ("activation", "feeds"):
        return value in (ACTIVATIONS if name == "activation" else FEEDS)
    return type(value) is int and 0 < value < 1 << 24


def _check(spec: HeadsSpec, weights: Weights) -> None:
    """Raise WeightsError unless the tensors are those that the description implies, and numbers."""
    path = weights.folder
    tokens = math.prod(weights.shape("vocabulary"))
    fused = "fuse.weight" in weights or len(spec.taps) > 1
    shapes = spec.shapes(tokens, fused, HEAD in weights)
    for name in weights.names():
        if name not in shapes:
            raise WeightsError(f"{path}: {spec.kind} heads have no use for {name:.80}")
    for name, shape in shapes.items():
        if weights.shape(name) != shape:
            raise WeightsError(
                f"{path}: {name} has the shape {list(weights.shape(name))} where its description implies {list(shape)}"
            )
        norm = len(shape) == 1 or name == "fuse.norms"
        kinds = ("I32",) if name == "vocabulary" else ("BF16", "F32") if norm else ("BF16",)
        if weights.dtype(name) not in kinds:
            raise WeightsError(f"{path}: {name} is {weights.dtype(name)} where {' or '.join(kinds)} is read")
        raw = weights.raw(name)
        if name != "vocabulary" and not bool(_finite(raw)):
            raise WeightsError(f"{path}: {name} holds NaN or infinite numbers")
    ids = weights.raw("vocabulary")
    if not tokens or ids[0] < 0 or ids[-1] >= spec.vocabulary or not bool(np.all(np.diff(ids.astype(np.int64)) > 0)):
        raise WeightsError(f"{path}: its vocabulary is not a list of increasing tokens below {spec.vocabulary}")


def _finite(raw: NDArray[Any]) -> bool:
    if raw.dtype == np.uint16:
        return not bool(np.any(raw & np.uint16(0x7F80) == 0x7F80))
    return bool(np.all(np.isfinite(raw)))

"""Heads that others trained, in the terms of ours: the module for multi-token prediction (MTP) inside a checkpoint.

Its equations (DeepSeek-V3, arXiv 2412.19437, 21 to 23): of position t it reads the model's h_t and the embedding of the
token after it, each normed, joined by one matrix with the embedding first; then come a layer of the model's family, a
norm, and the output head. EAGLE-3 checkpoints are read by ``heads_eagle``.

The report does not say whether h_t has been through the model's final norm. It has, and what a step hands to the next
has been through the module's: so do vLLM (deepseek_mtp.py since pull 45895, glm since 47448; qwen3_next_mtp.py) and
SGLang (deepseek_nextn.py). A choice here can cost acceptance, never exactness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import DamagedHeads, DrafterError, UnsupportedModel, WeightsError
from foredraft.models import layout
from foredraft.models.checkpoint import open_weights
from foredraft.models.folder import ModelFolder
from foredraft.models.heads.file import EMBEDDING, HEAD, LAST_NORM, HeadsSpec, packaged_heads
from foredraft.models.identity import weights_digest
from foredraft.models.layout import PREFIX, decoder_prefix, layer_prefix, mtp_prefixes, output_head, require
from foredraft.models.spec import DecoderSpec, read_spec
from foredraft.models.weights.base import Weights, held_weights
from foredraft.models.weights.floats import widened
from foredraft.system.json_text import parse_json

CONFIG: Final = "config.json"
LAYER: Final = layer_prefix(PREFIX, 0)  # what begins the names of the layer as a model of its own
# our name of a part -> its name in the module; those in OWN may be missing, and are then the model's
NUMBERED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "enter.embedding_norm": "enorm", "enter.hidden_norm": "hnorm", "enter.weight": "eh_proj",
        LAST_NORM: "shared_head.norm", HEAD: "shared_head.head", "enter.embedding": layout.EMBEDDING,
    }
)  # fmt: skip
NAMED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "enter.embedding_norm": "pre_fc_norm_embedding", "enter.hidden_norm": "pre_fc_norm_hidden",
        "enter.weight": "fc", LAST_NORM: "norm", HEAD: "shared_head.head", "enter.embedding": layout.EMBEDDING,
    }
)  # fmt: skip
OWN: Final = (HEAD, "enter.embedding")


@dataclass(frozen=True, slots=True)
class ForeignHeads:
    """Heads of another's making.

    ``weights`` are named as in our files, and hold what is read before and after the layer; ``tensors`` are the layer
    as a model of its own, described by ``layer_spec``, whose checkpoint begins their names with ``layer_prefix``.
    ``wide`` says that the layer reads embedding and features side by side and norms them itself (EAGLE-3),
    ``normed_residual`` that its residual is the normed features. ``note`` is what a user may not expect.
    """

    spec: HeadsSpec
    weights: Weights
    layer_spec: DecoderSpec
    tensors: Weights
    layer_prefix: str
    wide: bool = False
    normed_residual: bool = False
    note: str | None = None


def read_config(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's ``config.json``. Raises DrafterError for one that cannot be read."""
    try:
        config = parse_json((folder / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DrafterError(f"{folder / CONFIG} cannot be read: {error!s:.100}") from error
    if not isinstance(config, dict):
        raise DrafterError(f"{folder / CONFIG} does not hold an object")
    return config


def take(weights: Weights, name: str, *shape: int) -> NDArray[Any]:
    """Return a tensor of floats. Raises WeightsError for one that is missing, of another shape or no float."""
    require(weights, name, shape)
    return weights.raw(name)


def take_norm(weights: Weights, name: str, width: int, dtype: str = "rms") -> NDArray[np.float32]:
    """Return what a norm of a DecoderSpec's ``dtype`` multiplies by [width]; raises WeightsError as ``take``."""
    weight = widened(take(weights, name, width), weights.dtype(name))
    return weight + np.float32(dtype == "unit")


def read_mtp(weights: Weights, target: DecoderSpec, name: str, digest: str) -> ForeignHeads | None:
    """Return the MTP module of the checkpoint ``weights`` of the model ``name``; None where it holds none.

    Raises WeightsError naming a tensor that is missing, unexpected, of the wrong shape or no float.
    """
    prefix = decoder_prefix(weights.names())
    modules = mtp_prefixes(weights, target, prefix)
    if not modules:
        return None
    module, parts, layer = modules[0], NUMBERED, modules[0]
    if module == "mtp.":
        parts, layer = NAMED, "mtp.layers.0."
    held = _parts(weights, module, parts, target)
    if "enter.embedding" in held and _same(held["enter.embedding"], weights.raw(f"{prefix}{layout.EMBEDDING}.weight")):
        del held["enter.embedding"]
    held["fuse.norms"] = take_norm(weights, f"{prefix}{layout.LAST_NORM}.weight", target.hidden, target.norm)[None, :]
    held["vocabulary"] = np.arange(target.vocabulary, dtype=np.int32)
    head = held.pop(HEAD, None)
    tensors = {
        EMBEDDING: weights.raw(output_head(weights, target)) if head is None else head,
        LAST_NORM: weights.raw(f"{module}{parts[LAST_NORM]}.weight"),
    }
    known, depth = {f"{module}{part}.weight" for part in parts.values()}, _depth(weights, modules)
    for own in weights.names():
        if own.startswith(layer) and own not in known:
            tensors[LAYER + own.removeprefix(layer)] = weights.raw(own)
        elif own.startswith(module) and own not in known and not own.startswith("mtp.layers."):
            raise WeightsError(f"{weights.folder}: an MTP module has no use for {own}")
    spec = HeadsSpec(
        kind="recurrent", taps=(target.layers - 1,), hidden=target.hidden, eps=target.eps, steps=depth, target=name,
        digest=digest, vocabulary=target.vocabulary, provenance={"checkpoint": str(weights.folder), "module": module},
    )  # fmt: skip
    # neither layout says which kind of layer its module is where a model has several: the last layer's is taken
    layer_spec = replace(
        target, layers=1, ropes=target.ropes[-1:], windows=target.windows[-1:], tied=True, composite=False
    )
    note = f"{weights.folder} holds {depth} MTP modules, and the first of them makes every guess" if depth > 1 else None
    where = weights.folder
    return ForeignHeads(spec, held_weights(where, held), layer_spec, held_weights(where, tensors), layer, note=note)


def read_mtp_folder(folder: Path, config: Mapping[str, Any], own: DecoderSpec, name: str, digest: str) -> ForeignHeads:
    """Return the MTP module of another copy of the target ``name``, whose spec and digest are ``own`` and ``digest``.

    Raises DrafterError for a folder without one, of a family that is not in the table, or of another model;
    WeightsError as ``read_mtp`` does.
    """
    try:
        spec = read_spec(config)
    except UnsupportedModel as error:
        raise DrafterError(f"{folder} cannot draft, because {error}") from error
    weights = open_weights(folder)
    theirs = weights_digest(weights, spec)
    found = read_mtp(weights, spec, name, digest)
    if found is None:
        raise DrafterError(f"{folder} holds neither an MTP module nor EAGLE-3 heads")
    if theirs != digest or spec.vocabulary != own.vocabulary or spec.hidden != own.hidden:
        raise DrafterError(f"{folder} holds the MTP module of another model ({theirs}), not of {name} ({digest})")
    return found


def foreign_module(folder: ModelFolder) -> str | None:
    """Say why the MTP module of a model outside the decoder table is not read; None where there is none."""
    names = folder.weights.names()
    if not any(name.endswith(".eh_proj.weight") or name == "mtp.fc.weight" for name in names):
        return None
    kind = read_config(folder.path).get("model_type")
    why = f"model type {kind!s:.40} has no entry in the decoder table"
    return f"the MTP module of {folder.path} is not read, because {why}"


def damaged(why: str, weights: Weights, target: DecoderSpec, digest: str) -> WeightsError:
    """Return what to raise where the heads that were trained here for the target of ``weights`` cannot be used.

    ``why`` says what is wrong with them; it is DamagedHeads where there are others.
    """
    try:
        packaged = packaged_heads(digest)
    except (DrafterError, WeightsError) as error:
        return WeightsError(f"{why}, and {error}")
    if packaged is not None:
        return DamagedHeads(why, "the heads that came with foredraft", str(packaged))
    if mtp_prefixes(weights, target, decoder_prefix(weights.names())):
        return DamagedHeads(why, "the heads in the model's own checkpoint", str(weights.folder))
    return WeightsError(why)


def _parts(weights: Weights, module: str, parts: Mapping[str, str], target: DecoderSpec) -> dict[str, NDArray[Any]]:
    """Return what a module reads before and after its layer, by our names."""
    wide, held = target.hidden, dict[str, NDArray[Any]]()
    for ours, part in parts.items():
        name = f"{module}{part}.weight"
        if ours in OWN:
            if name in weights:
                held[ours] = take(weights, name, target.vocabulary, wide)
        elif ours == "enter.weight":
            held[ours] = take(weights, name, wide, 2 * wide)
        else:
            held[ours] = take_norm(weights, name, wide, target.norm)
    return held


def _depth(weights: Weights, modules: tuple[str, ...]) -> int:
    """Return how many modules follow each other."""
    if modules[0] != "mtp.":
        return len(modules)
    return len({name.split(".")[2] for name in weights.names() if name.startswith("mtp.layers.")})


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and bool(np.array_equal(a, b))

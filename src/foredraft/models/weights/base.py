"""A checkpoint's tensors, straight from its safetensors files: checked, mapped, never copied.

Format: https://huggingface.co/docs/safetensors (eight bytes of header length, a JSON header, then the data). Nothing
here trusts the header: offsets, shapes and types must agree with each other and with the file before a tensor is seen.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import ModelNotFound, WeightsError
from foredraft.models.gguf.link import read_link
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.safetensors import TYPES, Tensor, metadata_of, opened, short

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
PICKLED: Final = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_FLOATS: Final = ("BF16", "F16", "F32", "F64")
DRAFTED: Final = "draft_vocabulary.json"  # lies in the folder of a draft model, which was trained and not fetched


class Weights:
    """The tensors of one checkpoint, by name. Arrays are views of the files; writing to one changes no file."""

    def __init__(
        self,
        folder: Path,
        files: list[NDArray[np.uint8]],
        tensors: dict[str, Tensor],
        metadata: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self.metadata = metadata
        self._files = files
        self._tensors = tensors

    def names(self) -> tuple[str, ...]:
        """Return every tensor's name."""
        return tuple(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape. Raises WeightsError if there is none of that name."""
        return self._find(name).shape

    def dtype(self, name: str) -> str:
        """Return a tensor's type as safetensors spells it ("BF16", "F32"). Raises WeightsError as above."""
        return self._find(name).dtype

    def called(self, name: str) -> str:
        """Return what its file calls a tensor. Raises WeightsError as above."""
        self._find(name)
        return name

    def raw(self, name: str) -> NDArray[Any]:
        """Return a tensor without copying it: [shape], bfloat16 as uint16.

        Raises WeightsError as above, and for a vector of floats that holds what is no number: one spoils every answer.
        """
        tensor = self._find(name)
        file = self._files[tensor.file]
        values: NDArray[Any] = np.ndarray(tensor.shape, TYPES[tensor.dtype], file.data, tensor.offset)
        if len(tensor.shape) == 1 and tensor.dtype in _FLOATS:
            with np.errstate(all="ignore"):
                if not np.isfinite(widened(values, tensor.dtype) if tensor.dtype == "BF16" else values).all():
                    raise not_finite(getattr(file, "filename", None) or self.folder, name)
        return values

    def sample(self, name: str, most: int) -> NDArray[Any]:
        """Return up to ``most`` values [n] of a tensor, a fixed step apart, as ``raw`` gives them."""
        values = self.raw(name).reshape(-1)
        return values[:: max(1, -(-len(values) // most))]

    def rows(self, name: str, ids: NDArray[Any]) -> NDArray[Any]:
        """Return some rows [ids, columns] of a matrix, as ``raw`` gives them."""
        found: NDArray[Any] = self.raw(name)[ids]
        return found

    def refuse_unused(self, used: Collection[str], spec: DecoderSpec, prefix: str) -> None:
        """Raise WeightsError for a tensor that a decoder would ignore: then it is not the model it claims to be.

        ``prefix`` begins the names of the decoder's own tensors; other towers of a composite model may lie beside it.
        """
        modules = mtp_prefixes(self, spec, prefix)
        for name in self.names():
            if name not in used and not ignored(name, spec, prefix, modules):
                raise WeightsError(f"{self.folder}: a {spec.family} decoder has no use for {name}")

    def _find(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise WeightsError(f"{self.folder} has no tensor {name}: the checkpoint is not complete") from None


def open_weights(folder: str | Path, again: str | None = None) -> Weights:
    """Open the ``model.safetensors`` of a folder, or the shards its index names, or the GGUF that it links to.

    ``again`` is the way out where they are damaged; None is to fetch the model, or to train the draft, again.
    Raises ModelNotFound without such a folder, WeightsError for pickled, missing, truncated or lying weights.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelNotFound(f"there is no folder {folder}")
    if (link := read_link(folder)) is not None:
        from foredraft.models.gguf.weights import open_gguf  # which is one of these itself

        return open_gguf(folder, link)
    if again is None:
        again = "train the draft again" if (folder / DRAFTED).is_file() else "fetch the model again"
    index = _read_index(folder, again) if (folder / INDEX).is_file() and not (folder / SINGLE).is_file() else None
    if index is None and not (folder / SINGLE).is_file():
        _refuse_pickled(folder)
        raise WeightsError(f"{folder} holds no weights: a {SINGLE} is needed")
    shards = [SINGLE] if index is None else sorted(set(index.values()))
    files: list[NDArray[np.uint8]] = []
    tensors: dict[str, Tensor] = {}
    for number, shard in enumerate(shards):
        path = folder / shard
        if not path.is_file():
            raise WeightsError(f"{folder} lacks the shard {shard} that its index names: {again}")
        mapped, found = opened(path, number, again)
        files.append(mapped)
        for name, tensor in found:
            if index is not None and index.get(name) != shard:
                raise WeightsError(f"{path} holds {name}, which the index does not place there: {again}")
            tensors[name] = tensor
    for name in index or ():
        if name not in tensors:
            raise WeightsError(f"{folder} has no tensor {name}, although its index names it: {again}")
    return Weights(folder, files, tensors)


def open_file(path: Path, again: str) -> Weights:
    """Open one safetensors file, its ``metadata`` included. Raises WeightsError as ``open_weights`` does.

    ``again`` is the way out where it is damaged; empty leaves that to the caller.
    """
    mapped, found = opened(path, 0, again)
    return Weights(path, [mapped], dict(found), metadata_of(mapped))


def held_weights(where: Path, tensors: Mapping[str, NDArray[Any]]) -> Weights:
    """Return arrays as the tensors of a checkpoint, uint16 as bfloat16; ``where`` is what faults name."""
    kinds = {np.dtype(code): kind for kind, code in TYPES.items() if not kind.startswith(("F8", "U"))}
    files, entries = [], {}
    for number, (name, array) in enumerate(tensors.items()):
        flat = np.ascontiguousarray(array)
        files.append(flat.reshape(-1).view(np.uint8))
        entries[name] = Tensor(number, kinds[flat.dtype], array.shape, 0)
    return Weights(where, files, entries)


def ignored(name: str, spec: DecoderSpec, prefix: str, modules: tuple[str, ...]) -> bool:
    """Say whether a decoder has no need of a tensor: an old buffer, a tied head's twin, another tower's.

    Nor has it any of ``modules``, what begins the names of MTP modules (``mtp_prefixes``).
    """
    twin = spec.tied and name.endswith("lm_head.weight")
    tower = spec.composite and not name.startswith(prefix)
    return twin or tower or name.startswith(modules) or name.endswith((".rotary_emb.inv_freq", ".masked_bias"))


def mtp_prefixes(weights: Weights, spec: DecoderSpec, prefix: str) -> tuple[str, ...]:
    """Return what begins the names of each module for multi-token prediction (MTP) beside a decoder, in order.

    DeepSeek-V3's are numbered after the decoder's own layers (README_WEIGHTS of that release); of Qwen3-Next's, "mtp."
    """
    found: list[str] = []
    while f"{prefix}layers.{spec.layers + len(found)}.eh_proj.weight" in weights:
        found.append(f"{prefix}layers.{spec.layers + len(found)}.")
    return (*found, "mtp.") if "mtp.fc.weight" in weights else tuple(found)


def decoder_prefix(names: Collection[str]) -> str:
    """Return what begins the names of a decoder's own tensors. An MTP module may bring an embedding of its own."""
    tail = "embed_tokens.weight"
    found = (name.removesuffix(tail) for name in names if name.endswith(tail) and not name.startswith("mtp."))
    return min(found, key=len, default="model.")


def widened(raw: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Return what ``raw`` gave as float32, any shape; ``dtype`` is a 16, 32 or 64 bit float's name in safetensors."""
    if dtype == "BF16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.astype(np.float32)


def narrowed(raw: NDArray[Any], dtype: str, where: str) -> NDArray[np.uint16]:
    """Return what ``raw`` gave as bfloat16, rounded to the nearest and even. Raises WeightsError for no float."""
    if dtype == "BF16":
        return raw
    if dtype not in ("F16", "F32", "F64"):
        raise WeightsError(f"{where} is {dtype}, and only 16, 32 and 64 bit floats are read")
    wide = widened(raw, dtype).view(np.uint32)
    return ((wide + np.uint32(0x7FFF) + (wide >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def not_finite(where: str | Path, name: str, *, blocks: bool = False) -> WeightsError:
    """Return what is to be said of a tensor ``name`` of the file ``where`` that holds what is no number."""
    what = "has a block whose scale is not finite" if blocks else "holds NaN or infinite numbers"
    return WeightsError(f"{where}: {name} {what}, so the file is damaged: fetch or make it again")


def _refuse_pickled(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.suffix in PICKLED:
            raise WeightsError(
                f"{path} is pickled, and opening it could run any code: use a checkpoint saved as safetensors"
            )


def _read_index(folder: Path, again: str) -> dict[str, str]:
    """Return which shard holds each tensor. Raises WeightsError unless every shard is a plain name in the folder."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not a readable index: {again}") from error
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not places:
        raise WeightsError(f"{path} has no weight_map: {again}")
    for name, shard in places.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or set(shard) & set("/\\:\0"):
            raise WeightsError(f"{path} places {short(name)} in {short(shard)}, which is no shard of this folder")
    return places

"""Trained heads over a target: a block of one layer that goes on from what the target's own layers put out.

``H`` are the target's features, ``Vd`` the tokens that heads may guess, ``f`` the features of a position: the outputs
of the tapped layers, each normed, joined by one matrix; or the output of the only one. Position t of the block reads f
of position t and the token after it, and its logits are of the token after that; so a chain goes on with its own output
in the place of f (EAGLE-3, arXiv 2503.01840; the order of the halves is DeepSeek-V3's, arXiv 2412.19437). Medusa heads
(arXiv 2401.10774) are a residual layer each, and read f alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from foredraft.core.draft import Array
from foredraft.errors import DrafterError, NoHeads, WeightsError
from foredraft.models.heads.eagle import is_eagle, read_eagle3
from foredraft.models.heads.file import HeadsSpec, check_target, find_heads, heads_file, packaged_heads, read_heads
from foredraft.models.heads.mtp import (
    CONFIG,
    LAYER,
    Found,
    damaged,
    foreign_module,
    output_head,
    read_config,
    read_mtp,
    read_mtp_folder,
)
from foredraft.models.identity import weights_digest
from foredraft.models.model import Layered, Model, Rows
from foredraft.models.rope import Rope
from foredraft.models.runner import INSTALL, torch_installed
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights, held_weights, open_weights, widened

BLOCK: Final = 512  # rows of a pass that catches up


class Heads:
    """What every kind of heads has: the features of a position, and the tokens that may be guessed.

    ``vocabulary`` are the target's tokens [Vd], increasing; ``width`` is the target's V; ``said`` is what a user may
    not expect of them.
    """

    said: str | None = None

    def __init__(self, spec: HeadsSpec, weights: Weights) -> None:
        self.spec = spec
        self.width = spec.vocabulary
        self.vocabulary: NDArray[np.int32] = np.array(weights.raw("vocabulary"))
        self._weights = weights
        self._held: dict[str, Array] = {}

    def _fused(self, states: Sequence[Array]) -> Array:
        """Return f [n, H] of the tapped layers' outputs [n, H]: normed, and joined, where the file has what does it."""
        if "fuse.norms" in self._weights:
            norms = self._tensor("fuse.norms", states[0])
            states = [self._norm(state, norms[i, :]) for i, state in enumerate(states)]
        if "fuse.weight" not in self._weights:
            return states[0]
        joined = array_namespace(states[0]).concat(list(states), axis=1)
        if "fuse.norm" in self._weights:
            joined = self._norm(joined, self._tensor("fuse.norm", joined))
        return joined @ self._tensor("fuse.weight", joined).T

    def _norm(self, x: Array, weight: Array) -> Array:
        """Root mean square norm of each row [n, H]."""
        xp = array_namespace(x)
        return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + self.spec.eps) * weight

    def _tensor(self, name: str, like: Array) -> Array:
        """Return a tensor of the file as an array of the kind, type and place of another."""
        if name not in self._held:
            wide = widened(self._weights.raw(name), self._weights.dtype(name))
            self._held[name] = array_namespace(like).asarray(wide, dtype=like.dtype, device=like.device)
        return self._held[name]


class RecurrentHeads(Heads):
    """A block with a cache of slots, over any model whose sub-layers can be run apart.

    ``block`` is the layer as a model of its own with Vd tokens (``block_weights``). Norms and the two products before
    it are in the type of the states, float32 or wider.
    """

    def __init__(self, spec: HeadsSpec, weights: Weights, target: Layered, block: Layered) -> None:
        super().__init__(spec, weights)
        self.target = target
        self.block = block
        self.context = block.context
        self._taken: set[int] = set()

    def take(self) -> int:
        """Return a slot that nobody uses."""
        slot = next(slot for slot in range(len(self._taken) + 1) if slot not in self._taken)
        self._taken.add(slot)
        return slot

    def read(self, slot: int, start: int, states: Sequence[Array], tokens: Sequence[int]) -> tuple[Array, Array]:
        """Read positions that follow the slot's first ``start``; return what a step goes on from [H] and logits [Vd].

        ``states`` [n, H] are the tapped layers' outputs at these positions, ``tokens`` [n] the token after each.
        """
        for at in range(0, len(tokens), BLOCK):
            features = self._fused([state[at : at + BLOCK, :] for state in states])
            found = self._run(slot, start + at, features, tokens[at : at + BLOCK])
        return found

    def step(self, slot: int, start: int, state: Array, token: int) -> tuple[Array, Array]:
        """Read one position more, from the ``state`` [H] of the one before and the token after it; as ``read``."""
        return self._run(slot, start, state[None, :], (token,))

    def release(self, slot: int) -> None:
        """Take a slot back and free its memory."""
        self._taken.discard(slot)
        self.block.release(slot)

    def _run(self, slot: int, start: int, features: Array, tokens: Sequence[int]) -> tuple[Array, Array]:
        chain = tuple(range(-1, len(tokens) - 1))
        entering = self._entering(self._embedded(tokens, features), features)
        scored = self.block.run([Rows(slot, start, tuple(tokens), chain, 1)], (0,), hidden=entering)
        state = scored.hidden[0]
        if self.spec.feeds == "normed":
            state = self._norm(state, self._tensor("model.norm.weight", features))
        return state[0, :], scored.logits[0, :]

    def _embedded(self, tokens: Sequence[int], like: Array) -> Array:
        """Return the embeddings [n, H] of tokens: the heads' own, or the target's."""
        if "enter.embedding" in self._weights:
            raw = self._weights.raw("enter.embedding")[list(tokens)]
            embedding: Array = widened(raw, self._weights.dtype("enter.embedding"))
        else:  # no sub-layer runs, so nothing of the target's slot changes
            rows = Rows(0, 0, tuple(tokens), tuple(range(-1, len(tokens) - 1)), len(tokens))
            embedding = self.target.run([rows], (-1,), sub_layers=(), logits=False).hidden[-1]
        return array_namespace(like).asarray(embedding, dtype=like.dtype, device=like.device)

    def _entering(self, embedding: Array, features: Array) -> Array:
        """Return what enters the block, of embeddings and features [n, H]."""
        normed = [
            self._norm(embedding, self._tensor("enter.embedding_norm", features)),
            self._norm(features, self._tensor("enter.hidden_norm", features)),
        ]
        return array_namespace(features).concat(normed, axis=1) @ self._tensor("enter.weight", features).T


class EagleHeads(RecurrentHeads):
    """EAGLE-3: a block that reads embeddings and features side by side, and norms them itself."""

    def _entering(self, embedding: Array, features: Array) -> Array:
        return array_namespace(features).concat([embedding, features], axis=1)


class MedusaHeads(Heads):
    """Independent heads: each guesses one place further from the same position. Nothing is kept between calls.

    ``head`` is the output head's rows [Vd, H] of the tokens that may be guessed, in float32.
    """

    def __init__(self, spec: HeadsSpec, weights: Weights, target: DecoderSpec, head: NDArray[np.float32]) -> None:
        super().__init__(spec, weights)
        self._target = target
        self._head = head

    def rows(self, states: Sequence[Array]) -> Array:
        """Return the logits [K, Vd] of the K places after the next token, from the outputs [1, H] at one position."""
        f = self._fused(states)
        xp = array_namespace(f)
        rows = []
        for i in range(1, self.spec.steps + 1):
            z = f @ self._tensor(f"medusa.{i}.weight", f).T
            rows.append(z / (1 + xp.exp(-z)) + f)
        if "head" not in self._held:
            self._held["head"] = xp.asarray(self._head, dtype=f.dtype, device=f.device)
        normed = self._norm(xp.concat(rows, axis=0), self._tensor("model.norm.weight", f))
        logits = normed @ self._held["head"].T / self._target.logits_divisor
        cap = self._target.logits_cap
        return xp.tanh(logits / cap) * cap if cap else logits


def open_heads(which: str, model: Model, folder: Path | None, cache: Path, name: str) -> RecurrentHeads | MedusaHeads:
    """Return the heads for the target ``name``, loaded from ``folder``.

    ``which`` is a file of heads, a folder that holds one, an EAGLE-3 folder, or a copy of the target whose checkpoint
    holds an MTP module. Empty, it is what was trained here or came with Foredraft, else the target's own MTP module.
    Raises DrafterError where there are none, or they are another target's; WeightsError for a file that is damaged, and
    DamagedHeads where that is what was trained here, and what comes next would serve.
    """
    if folder is None or not hasattr(model, "run"):
        why = None if folder is None else foreign_module(folder)
        raise NoHeads(why or "drafter heads is not available for a model that runs through transformers' own module")
    own: DecoderSpec = cast("Any", model).spec
    theirs = open_weights(folder)
    digest = weights_digest(theirs, own)
    if which and (Path(which) / CONFIG).is_file():
        config = read_config(Path(which))
        if is_eagle(config):
            return _opened(read_eagle3(Path(which), config, own, theirs, name, digest), model)
        return _opened(read_mtp_folder(Path(which), config, own, name, digest), model)
    kept = heads_file(cache, digest)
    if not (which or kept.is_file() or packaged_heads(digest)) and (module := read_mtp(theirs, own, name, digest)):
        return _opened(module, model)
    path = find_heads(which, cache, digest, name)
    try:
        spec, weights = read_heads(path)
        check_target(path, spec, name, digest, own.vocabulary, own.hidden, own.layers)
    except (DrafterError, WeightsError) as fault:
        if which or path != kept:
            raise
        raise damaged(str(fault), theirs, own, digest) from fault
    head, dtype = head_rows(weights, theirs, own)
    if not spec.recurrent:
        return MedusaHeads(spec, weights, own, widened(head, dtype))
    return _opened(Found(spec, weights, block_spec(spec, own, len(head)), block_weights(weights, head), LAYER), model)


def _opened(found: Found, model: Model) -> RecurrentHeads:
    """Return heads that run beside a model. Raises WeightsError for a layer whose tensors are not its family's."""
    try:
        heads = _run_by(found, cast("Any", model))
    except WeightsError as fault:  # it was told our names of the layer's tensors
        raise WeightsError(str(fault).replace(LAYER, found.layer)) from fault
    heads.said = "; ".join(said for said in (found.said, heads.said) if said) or None
    return heads


def _run_by(found: Found, model: Any) -> RecurrentHeads:
    from foredraft.models.native.model import NativeModel

    spec, weights, block, tensors = found.spec, found.weights, found.block, found.tensors
    native = isinstance(model, NativeModel)
    if native and not found.wide:
        beside = NativeModel(block, tensors, "rounded" if model.dtype == "file" else model.dtype, beside=model)
        if "enter.embedding" in weights:  # the library's chain reads the target's
            return RecurrentHeads(spec, weights, model, beside)
        from foredraft.models.heads.native import NativeHeads

        return NativeHeads(spec, weights, model, beside)
    if native and not torch_installed():
        raise DrafterError(f"EAGLE-3 heads run in torch alone, which is not here: {INSTALL}")
    from foredraft.models.torch_decoder.decoder import DTYPES, TorchDecoder

    device = "cpu" if native else str(model.device)
    kind = _beside(model) if native else next(kind for kind, dtype in DTYPES.items() if dtype is model.dtype)
    if not found.wide:
        return RecurrentHeads(spec, weights, model, TorchDecoder(block, tensors, device, kind))
    from foredraft.models.torch_decoder.eagle import EagleDecoder

    eagle = EagleHeads(spec, weights, model, EagleDecoder(block, tensors, device, kind, found.normed_residual))
    if native:
        from foredraft.models.torch_decoder import runtime as torch_runtime

        torch_runtime.set_threads(model.threads)
        eagle.said = "EAGLE-3 heads run in torch, which is slower than the native pass beside them"
    return eagle


def _beside(model: Any) -> str:
    """Return the type of a block beside a native model: bf16 where the model runs the blocks of a file."""
    return "bf16" if model.dtype == "file" else str(model.dtype)


def head_rows(weights: Weights, target: Weights, spec: DecoderSpec) -> tuple[NDArray[Any], str]:
    """Return the output head's rows [Vd, H] of the heads' vocabulary, and their type: their own, or the target's."""
    if "lm_head.weight" in weights:
        return weights.raw("lm_head.weight"), weights.dtype("lm_head.weight")
    name = output_head(target, spec)
    return target.rows(name, weights.raw("vocabulary")), target.dtype(name)


def block_spec(spec: HeadsSpec, target: DecoderSpec, tokens: int) -> DecoderSpec:
    """Return the block as a decoder of one layer with so many tokens, whose logits are scaled as the target's are."""
    return DecoderSpec(
        family="llama", vocabulary=tokens, hidden=spec.hidden, layers=1, heads=spec.heads, kv_heads=spec.kv_heads,
        head_dim=spec.head_dim, mlp=spec.mlp, context=target.context, eps=spec.eps, norm="rms", places="pre",
        qk_norm="none", qkv_bias=False, o_bias=False, mlp_bias=False, fused=False,
        ropes=(Rope(spec.head_dim, spec.rope_theta),), windows=(0,), attention_scale=spec.head_dim**-0.5,
        attention_cap=0.0, logits_cap=target.logits_cap, activation=spec.activation, embedding_scale=1.0,
        embedding_rounded=False, residual_scale=1.0, logits_divisor=target.logits_divisor, tied=True, composite=False,
        eos=(),
    )  # fmt: skip


def block_weights(weights: Weights, head: NDArray[Any]) -> Weights:
    """Return the tensors of ``block_spec``. Its embedding is never read, so the head's rows stand for both."""
    tensors = {name: weights.raw(name) for name in weights.names() if name.startswith("model.")}
    return held_weights(weights.folder, {"model.embed_tokens.weight": head, **tensors})

"""Any causal model without an entry in the decoder table, run through transformers' own module.

One slot is one transformers cache and the tokens it has read; sequences run one after another, a tree path by path. The
cache's own flags say whether it can be rewound:

    keys and values of every token     cropped exactly, to any length
    a sliding window, a convolution    cropped exactly as far back as what a pass pushes out is recorded, the last pass
                                       at least; further back, the tokens that stay are read again (``read_again``)
    a recurrent state                  not at all: a slot is continued one token at a time, or started over
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from foredraft.core.draft import Scored
from foredraft.core.law import Array
from foredraft.errors import ModelError, UnsupportedModel
from foredraft.models.hf import load as hf_load
from foredraft.models.model import Rows

POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
SHORT = {dtype: name for name, dtype in hf_load.DTYPES.items()}
UNBOUNDED = 1 << 20  # positions of a model whose config names no limit
RECORDED = 64  # tokens recorded past a window before they are let go; a drafter takes them back after several passes

Answer = tuple[torch.Tensor, dict[int, torch.Tensor]]  # logits [N, V], layer -> hidden states [N, H]


@dataclass(slots=True)
class _Slot:
    """A cache, the tokens it has read, the rows of the last pass that it ends with, and how far back it can be cut."""

    state: Any = None
    tokens: list[int] = field(default_factory=list)
    base: int = 0  # tokens held before the last pass
    path: tuple[int, ...] = ()  # the rows of that pass that follow them
    floor: int = 0  # lengths below this cannot be cut to any more
    recording: bool = False  # whether windows keep what passes push out of them


class GenericModel:
    """A forward pass over slots (the ``Model`` protocol) by a transformers causal language model, never copied.

    ``module`` is used where it lies and its training flags and parameters are left alone: it must be in eval mode.
    ``device``, if named, must be where it lies. ``why_not_rewindable`` is one clause, empty for a rewindable model;
    ``read_again`` counts tokens that were read a second time because a window had moved on.

    Raises UnsupportedModel for a module that is no causal language model or keeps no state between passes, OptionError
    for one in training mode or on another device.
    """

    def __init__(self, module: Any, *, device: str | None = None) -> None:
        self.module = module
        self.name = type(module).__name__
        self.read_again = 0
        self._slots: dict[int, _Slot] = {}
        hf_load.check_module(module, device)
        self._accepted = frozenset(inspect.signature(module.forward).parameters)
        self._state_name = next(name for name in hf_load.STATES if name in self._accepted)
        config = module.config.get_text_config(decoder=True)
        head = getattr(module.get_output_embeddings(), "weight", None)
        self.vocabulary = int(config.vocab_size if head is None else head.shape[0])
        named = (getattr(config, name, None) for name in POSITIONS)
        self.context = next((n for n in named if isinstance(n, int) and n > 0), UNBOUNDED)
        self.layers = int(config.num_hidden_layers)
        self._config = config
        self._device = module.get_input_embeddings().weight.device
        self.device = str(self._device.type)
        self.dtype = SHORT.get(module.dtype, str(module.dtype).removeprefix("torch."))
        self._records = False
        # some hybrids count positions from 0 in every pass unless told; decoders made of encoders (their config has an
        # is_decoder) count on their own, from their padding index
        self._positions = "position_ids" in self._accepted and not hasattr(module.config, "is_decoder")
        if getattr(module.config, "is_decoder", True) is False:  # says nothing (GPT-NeoX), or that it reads both ways
            hf_load.check_causal(self.name, lambda ids: self._ask(ids.to(self._device), {"use_cache": False}).logits)
        self.why_not_rewindable = self._why_not_rewindable()
        self.rewindable = not self.why_not_rewindable

    @classmethod
    def from_folder(cls, folder: Path, device: str = "cpu", dtype: str = "bf16") -> GenericModel:
        """Load a folder's safetensors weights in ``dtype`` ("bf16", "f32" or "f64") onto ``device``.

        Opens no pickle, runs no code from the folder and asks no network. Raises ModelNotFound, UnsupportedModel (and
        why), WeightsError, or OptionError for an unknown dtype.
        """
        return cls(hf_load.load_module(folder, device, dtype))

    def forward(self, rows: Sequence[Rows], taps: tuple[int, ...] = (), *, logits: bool = True) -> Scored:
        """Run each slot's rows, one slot after another; see ``Model.forward``.

        Logits are float32 or wider. ``hidden[layer]`` is what the layer itself puts out, before any final norm, in the
        same float type. Raises ModelError where a slot cannot be continued as asked or the module fails; the slot is
        then forgotten.
        """
        if self.module.training:
            raise ModelError(f"{self.name} was put into training mode, where dropout changes its text: call .eval()")
        for layer in taps:
            if not -1 <= layer < self.layers:
                raise ModelError(f"{self.name} has no layer {layer} to tap, only -1 (embedding) to {self.layers - 1}")
        found = [self._run(row, taps) for row in rows]
        starts = (0, *accumulate(row.wanted for row in rows[:-1]))
        scores = _out(torch.cat([scores for scores, _ in found]))
        hidden = {tap: _out(torch.cat([hidden[tap] for _, hidden in found])) for tap in taps}
        return Scored(scores if logits else scores[:0], starts, hidden)

    def compact(self, slot: int, start: int, rows: Sequence[int]) -> int:
        """Say how many of ``rows`` the slot's cache holds in this order after ``start``; see ``Model.compact``.

        A tree leaves only the path run last in the cache. Nothing is cut yet: the next pass cuts to where it starts.
        """
        held = self._slots.get(slot, _Slot())
        return _shared(held.path[start - held.base :], tuple(rows)) if start >= held.base else 0

    def release(self, slot: int) -> None:
        """Forget a slot and free its cache."""
        self._slots.pop(slot, None)

    def identity(self) -> str:
        """Return a digest of the module's config and a sample of its weights."""
        return hf_load.weights_identity(self.module)

    def _run(self, row: Rows, taps: tuple[int, ...]) -> Answer:
        """Run one slot's rows; return logits [wanted, V] and hidden states [wanted, H], in the order of the rows."""
        slot = self._slots.setdefault(row.slot, _Slot())
        paths = list(_paths(row.parents))
        if len(paths) > 1 and not self.rewindable:
            raise ModelError(f"{self.why_not_rewindable}, so it cannot score a tree of guesses")
        first = len(row.tokens) - row.wanted
        place: dict[int, int] = {}
        parts: list[Answer] = []
        total = 0
        path: tuple[int, ...] = ()
        for following in paths:
            # where windows move on, a path can be cut back only to the place where the pass began
            common = 0 if self._records else _shared(path, following)
            # a prompt's pass is not rolled back, so a window need not hold all of it
            self._rewind(slot, row.start + common, record=row.wanted > 1 or len(paths) > 1)
            path = following
            fresh = path[common:]
            keep = len([i for i in fresh if i >= first])
            parts.append(self._feed(slot, [row.tokens[i] for i in fresh], keep, taps))
            place.update((i, total + j) for j, i in enumerate(fresh[len(fresh) - keep :]))
            total += keep
        slot.base, slot.path = row.start, path
        if len(parts) == 1:
            return parts[0]
        order = torch.tensor([place[i] for i in range(first, len(row.tokens))], dtype=torch.long)
        hidden = {tap: torch.cat([part[tap] for _, part in parts])[order] for tap in taps}
        return torch.cat([logits for logits, _ in parts])[order], hidden

    def _rewind(self, slot: _Slot, start: int, *, record: bool) -> None:
        """Cut a slot to its first ``start`` tokens; ``record`` what the next pass pushes out of a window."""
        held = len(slot.tokens)
        if start > held:
            raise ModelError(f"{self.name} was asked to go on after {start} tokens of a slot that holds {held}")
        if start == 0 or start < slot.floor:
            if start and not self.rewindable:
                raise ModelError(f"{self.why_not_rewindable}: its slot holds {held} tokens, not {start}")
            kept = slot.tokens[:start]
            slot.state, slot.tokens, slot.floor, slot.recording = self._fresh(), [], 0, False
            if record and not kept:
                self._record(slot)
            if kept:
                self._feed(slot, kept, 0, ())
                self.read_again += len(kept)
        elif start < held or (self._records and start - slot.floor > RECORDED):
            slot.state.crop(start - held)  # by 0 it lets go of what was recorded
            del slot.tokens[start:]
            slot.floor = start if self._records else 0

    def _record(self, slot: _Slot) -> None:
        """Have a slot's windows keep what passes push out; what they lost so far is lost."""
        if self._records and not slot.recording:
            slot.state.activate_past_recording()
            slot.recording, slot.floor = True, len(slot.tokens)

    def _feed(self, slot: _Slot, tokens: list[int], keep: int, taps: tuple[int, ...]) -> Answer:
        """Append tokens to a slot; return logits [keep, V] and hidden states [keep, H] of the last ``keep``."""
        # given a state and several tokens, recurrent modules may take the tokens for a prompt and drop the state
        step = 1 if slot.tokens and not self.rewindable else len(tokens)
        parts = []
        for at in range(0, len(tokens), step):
            wanted = max(0, min(step, keep - (len(tokens) - at - step)))
            parts.append(self._call(slot, tokens[at : at + step], wanted, taps))
            slot.tokens.extend(tokens[at : at + step])
            self._record(slot)
            if not self.rewindable:
                slot.floor = len(slot.tokens)
        if len(parts) == 1:
            return parts[0]
        return torch.cat([x for x, _ in parts]), {tap: torch.cat([hidden[tap] for _, hidden in parts]) for tap in taps}

    def _call(self, slot: _Slot, tokens: list[int], keep: int, taps: tuple[int, ...]) -> Answer:
        options: dict[str, Any] = {"use_cache": True}
        if "logits_to_keep" in self._accepted:
            options["logits_to_keep"] = max(keep, 1)  # 0 would mean all
        if taps:
            options["output_hidden_states"] = True
        if slot.state is not None:
            options[self._state_name] = slot.state
        if self._positions:
            start = len(slot.tokens)
            options["position_ids"] = torch.arange(start, start + len(tokens), device=self._device)[None]  # [1, N]
        last: list[torch.Tensor] = []
        hook = (
            hf_load.last_layer(self.module, self.layers).register_forward_hook(_catch(last))
            if self.layers - 1 in taps
            else None
        )
        try:
            answer = self._ask(torch.tensor([tokens], device=self._device), options)
        except ModelError:
            slot.state, slot.tokens, slot.path, slot.floor = None, [], (), 0  # nobody knows how far it came
            raise
        finally:
            if hook is not None:
                hook.remove()
        slot.state = next((answer[name] for name in hf_load.STATES if answer.get(name) is not None), None)
        if slot.state is None:
            raise UnsupportedModel(f"{self.name} keeps its state within itself, where several texts would share it")
        hidden = {}
        for tap in taps:
            # the last entry of hidden_states has been through the final norm, so the last layer is caught by a hook
            whole = last[-1] if tap == self.layers - 1 else answer.hidden_states[tap + 1]
            if whole.ndim != 3 or whole.shape[1] != len(tokens) or len(answer.hidden_states) != self.layers + 1:
                raise ModelError(f"{self.name} does not give its hidden states a row a token, so it cannot be tapped")
            hidden[tap] = whole[0, len(tokens) - keep :]
        return answer.logits[0, answer.logits.shape[1] - keep :], hidden

    def _ask(self, ids: torch.Tensor, options: dict[str, Any]) -> Any:
        """Call the module without gradients; whatever a stranger's module raises, one sentence leaves here."""
        try:
            # not inference_mode: buffers that a module makes on the way would be unusable in its owner's training
            with torch.no_grad():
                return self.module(input_ids=ids, return_dict=True, **options)
        except Exception as error:
            raise ModelError(f"{self.name} failed in its forward pass: {hf_load.first_line(error)}") from error

    def _fresh(self) -> Any:
        """Return an empty cache of the kinds of layers the config names, or None where the module makes its own."""
        from transformers import DynamicCache

        default = self.module._supports_default_dynamic_cache()  # noqa: SLF001 - it has no public name there
        return DynamicCache(config=self._config) if default else None

    def _why_not_rewindable(self) -> str:
        """Ask the module's and its cache's flags; note whether the cache has to record what it pushes out."""
        cache = self._fresh()
        recurrent = cache is None or self.module._is_stateful  # noqa: SLF001 - as above
        # layers that hold a convolution, and perhaps more, know it after one token; and a state must come back at all
        if recurrent or not cache.is_croppable:
            probe = _Slot(cache)
            self._call(probe, [0], 1, ())
            cache = probe.state
        if recurrent:
            return f"{self.name} keeps a recurrent state that cannot be rewound"
        if not cache.is_croppable:
            kinds = sorted({type(layer).__name__ for layer in cache.layers if not layer.is_croppable})
            return f"{self.name} keeps a state that cannot be rewound ({', '.join(kinds)})"
        self._records = any(hasattr(layer, "activate_past_recording") for layer in cache.layers)
        return hf_load.records_wrongly(self.name) if self._records else ""


def _paths(parents: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield every path from the root to a leaf, the likeliest (the first guesses) last: it stays in the cache."""
    inner = set(parents)
    for leaf in reversed([i for i in range(len(parents)) if i not in inner]):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        yield tuple(reversed(path))


def _shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Return how many rows two paths have in common before they part."""
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def _catch(into: list[torch.Tensor]) -> Any:
    return lambda _module, _args, answer: into.append(answer if isinstance(answer, torch.Tensor) else answer[0])


def _out(x: torch.Tensor) -> Array:
    """Return a tensor in float32 or wider: numpy from the CPU, a tensor where it lies otherwise."""
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    return x.numpy() if x.device.type == "cpu" else x

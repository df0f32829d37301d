"""From names to things: a model ready to be asked, and the drafters that guess for it."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foredraft._version import __version__
from foredraft.core.draft import Drafter
from foredraft.core.noise import Noise
from foredraft.core.sampling import LawOf
from foredraft.drafters.first import FirstOf
from foredraft.drafters.lookup import Lookup
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.none import NoDrafter
from foredraft.drafters.suffix import Suffix
from foredraft.engine.logprobs import Logprobs, logprobs
from foredraft.errors import DrafterError, ModelError, OptionError, VocabularyMismatch
from foredraft.models.fetch import resolve
from foredraft.models.identity import fingerprint, folder_identity
from foredraft.models.layer_choice import layers_view
from foredraft.models.native_sampling import native_logprobs, sampler
from foredraft.models.runner import (
    CHOICES,
    INSTALL,
    Runner,
    Wish,
    open_runner,
    require_something,
    torch_engine,
    torch_installed,
)
from foredraft.models.store import Progress
from foredraft.models.target import CachedTarget
from foredraft.models.tokenizer import Tokenizer

DTYPES: Final = ("auto", "bf16", "f32", "f64", "file")
AUTO: Final = "lookup"
LOOKUP_TOKENS: Final = 15
MAX_THREADS: Final = 1024
PER_MATCH: Final = 4  # measured, docs/log.md
FLOOR: Final = 0.03  # measured, docs/log.md; so is the next
BRANCHES: Final = 2
MODEL_TOKENS: Final = 5
_LATER: Final = ("heads",)
_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a model runs and how: the options that target and draft share."""

    device: str | None = None
    dtype: str = "auto"
    threads: int | None = None
    context: int | None = None
    offline: bool = False
    cache: Path | None = None
    native_tier: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.native_tier not in (None, *CHOICES):
            raise OptionError(f"native_tier must be one of {', '.join(CHOICES)}, not {self.native_tier!r}")
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise OptionError(f"threads must be between 1 and {MAX_THREADS}, not {self.threads}")
        if self.context is not None and self.context < 1:
            raise OptionError(f"context must be at least 1, not {self.context}")

    @property
    def cache_folder(self) -> Path:
        """Where models are kept."""
        return self.cache if self.cache is not None else Path.home() / ".cache" / "foredraft"


@dataclass(frozen=True, slots=True)
class Sampler:
    """Who turns logits into laws, draws and log-probabilities: the native library, or Python and why."""

    law: LawOf
    noise: type[Noise]
    logprobs: Logprobs
    name: str  # "native" or "python"
    why: str | None


def find_sampler() -> Sampler:
    """Return the native sampler, or the Python one where the library is not there."""
    law, noise, name, why = sampler()
    return Sampler(law, noise, native_logprobs if name == "native" else logprobs, name, why)


@dataclass(frozen=True, slots=True)
class Host:
    """A model ready to be asked."""

    name: str
    target: CachedTarget
    tokenizer: Tokenizer | None
    tier: str
    device: str
    dtype: str
    fingerprint: str
    context: int
    off: str | None  # why speculation is refused, where it is
    notice: str | None  # a slower path that was taken, and why
    folder: Path | None  # where it was loaded from; None for an object handed in
    sampler: Sampler
    identity: str = ""  # of its weights
    cache: Path = Path()  # where models are kept, and what was found out about them


def load_host(model: Any, machine: Machine, tokenizer: Any = None, progress: Progress | None = None) -> Host:
    """Return a model by alias, folder, hub id or GGUF file, or around a transformers model object.

    Raises ModelError, FetchError or StorageError.
    """
    if not isinstance(model, str | Path):
        return _host_of_module(model, machine, tokenizer)
    name = str(model)
    require_something(machine.device)
    dtype = "f32" if machine.dtype in ("f32", "f64") else machine.dtype
    folder = resolve(name, machine.cache_folder, offline=machine.offline, dtype=dtype, progress=progress)
    config = _read_config(folder)
    dtype = {"auto": "bf16", "file": _file_dtype(config)}.get(machine.dtype, machine.dtype)
    identity = folder_identity(folder)
    wish = Wish(dtype, machine.cache_folder, machine.device, machine.threads, machine.native_tier, progress)
    runner = open_runner(folder, config, identity, wish)
    words = tokenizer_of(tokenizer) if tokenizer is not None else Tokenizer.from_folder(folder)
    return _host(name, runner, words, machine, dtype, identity, folder)


def _host_of_module(module: Any, machine: Machine, tokenizer: Any) -> Host:
    if machine.device is not None or machine.dtype != "auto" or machine.native_tier not in (None, "auto"):
        raise OptionError("a model object keeps the device and dtype it has: leave device, dtype and native_tier out")
    if not torch_installed():
        raise OptionError(f"a model is named by a string or a path, not by {type(module).__name__}, or needs {INSTALL}")
    from foredraft.models.generic import GenericModel

    model = GenericModel(module)
    words = tokenizer_of(tokenizer) if tokenizer is not None else None
    name = str(getattr(module.config, "_name_or_path", "")) or type(module).__name__
    runner = Runner(model, "transformers", model.device, torch_engine("transformers", model.device))
    return _host(name, runner, words, machine, model.dtype, model.identity(), None)


def _host(
    name: str,
    runner: Runner,
    words: Tokenizer | None,
    machine: Machine,
    dtype: str,
    identity: str,
    folder: Path | None,
) -> Host:
    model = runner.model
    context = machine.context or model.context
    if context > model.context:
        raise OptionError(f"context {context} is more than the {model.context} tokens that {name} was made for")
    chosen = find_sampler()
    return Host(
        name=name,
        target=CachedTarget(model),
        tokenizer=words,
        tier=runner.tier,
        device=runner.device,
        dtype=dtype,
        # the two samplers may differ in the last bit of a probability, and then in a token
        fingerprint=fingerprint(__version__, identity, f"{runner.engine} {chosen.name}", dtype),
        context=context,
        off=model.why_not_rewindable or None,
        notice=runner.notice,
        folder=folder,
        sampler=chosen,
        identity=identity,
        cache=machine.cache_folder,
    )


def tokenizer_of(given: Any) -> Tokenizer:
    """Return our tokenizer, whichever of ours, transformers' or a folder's was handed in."""
    if isinstance(given, Tokenizer):
        return given
    if isinstance(given, str | Path):
        return Tokenizer.from_folder(Path(given))
    return Tokenizer.from_transformers(given)


def check_names(names: str) -> None:
    """Refuse a drafter that nobody knows, before anything is loaded for it. Raises DrafterError."""
    for name in (part.strip() for part in names.split("+")):
        kind, _, rest = name.partition(":")
        if kind == "model" and not rest:
            raise DrafterError("drafter model needs a model: model:PATH, an alias, a folder, a hub id or a .gguf file")
        if kind in _LATER:
            raise DrafterError(f"drafter {kind} is not in this version yet: use suffix or model:PATH")
        simple = name in ("auto", "none", "lookup", "suffix") or kind in ("model", "layers")
        if not simple and not _CLASS.fullmatch(name):
            known = "auto, none, lookup, suffix, model:PATH, layers or package.module:Class"
            raise DrafterError(f"unknown drafter {name!r}: use {known}")


def make_drafter(
    names: str, host: Host, load_draft: Callable[[Any], Host], draft_tokens: int | None, temperature: float | None
) -> Drafter:
    """Return the drafter that ``names`` says; several joined by ``+`` are asked in order.

    ``load_draft`` loads a draft model by name. Raises DrafterError for a name nobody knows.
    """
    check_names(names)
    parts = [part.strip() for part in names.split("+")]
    drafters = [_one_drafter(part, host, load_draft, draft_tokens, temperature) for part in parts]
    return drafters[0] if len(drafters) == 1 else FirstOf(drafters)


def _one_drafter(
    name: str, host: Host, load_draft: Callable[[Any], Host], draft_tokens: int | None, temperature: float | None
) -> Drafter:
    kind, _, rest = (AUTO if name == "auto" else name).partition(":")
    if kind == "none":
        return NoDrafter()
    if kind == "lookup":
        return Lookup(per_match=PER_MATCH if draft_tokens is None else None)
    if kind == "suffix":
        branches = 0 if host.tier == "transformers" else BRANCHES  # which runs a tree path by path
        return Suffix(FLOOR if draft_tokens is None else 0.0, branches)
    if kind == "model":
        return draft_model(load_draft(rest), host, draft_tokens, temperature)
    if kind == "layers":
        view, length = layers_view(host.target, rest, host.cache, host.name, host.identity)
        return ModelDrafter(view, view.vocabulary, temperature, length if draft_tokens is None else None, kind)
    return _stranger(name)


def draft_model(draft: Host, host: Host, draft_tokens: int | None, temperature: float | None) -> ModelDrafter:
    """Return a drafter around a second model. Raises VocabularyMismatch or DrafterError if it cannot draft."""
    if draft.off is not None:
        raise DrafterError(f"{draft.name} cannot draft: {draft.off}")
    theirs, ours = draft.target.vocabulary, host.target.vocabulary
    if draft.tokenizer is not None and host.tokenizer is not None:
        difference = host.tokenizer.first_difference(draft.tokenizer)
        if difference is not None:
            token, mine, other = difference
            raise VocabularyMismatch(
                f"{draft.name} cannot draft for {host.name}: vocabularies of {theirs} and {ours} tokens differ,"
                f" first at token {token} ({other!r} against {mine!r})"
            )
    elif theirs != ours:
        raise VocabularyMismatch(
            f"{draft.name} cannot draft for {host.name}: {theirs} and {ours} tokens, and no tokenizers to compare"
        )
    length = MODEL_TOKENS if draft_tokens is None else None
    return ModelDrafter(draft.target, ours, temperature, length)


def _stranger(name: str) -> Drafter:
    """Import a user's own drafter class and make one."""
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as fault:
        raise DrafterError(f"drafter {name}: {fault}") from fault
    made = getattr(module, class_name, None)
    if made is None:
        raise DrafterError(f"drafter {name}: {module_name} has no {class_name}")
    return check_drafter(made())


def check_drafter(drafter: Any) -> Drafter:
    """Return the object if it speaks the protocol. Raises DrafterError naming what it lacks."""
    parts = ("name", "taps", "begin", "propose", "observe", "end")
    missing = [part for part in parts if not hasattr(drafter, part)]
    if missing:
        raise DrafterError(
            f"{type(drafter).__name__} is not a drafter: it has no {', '.join(missing)}"
            " (a model drafts as model:PATH, or as assistant_model=)"
        )
    checked: Drafter = drafter
    return checked


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {fault}") from fault
    if not isinstance(config, dict):
        raise ModelError(f"{folder / 'config.json'} does not hold an object")
    return config


def _file_dtype(config: dict[str, Any]) -> str:
    kind = config.get("dtype") or config.get("torch_dtype")
    return "bf16" if kind == "bfloat16" else "f32"  # f16 fits into f32 whole, not into bf16

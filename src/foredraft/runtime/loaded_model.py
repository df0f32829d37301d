"""From names to things: a model ready to be asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from foredraft._version import __version__
from foredraft.checks import switch, text, whole
from foredraft.core.noise import Noise
from foredraft.core.sampling import LawOf
from foredraft.engine.watches.logprobs import Logprobs, logprobs
from foredraft.errors import OptionError
from foredraft.models.capabilities import WithInstallNote
from foredraft.models.folder import ModelFolder
from foredraft.models.identity import fingerprint
from foredraft.models.native.sampling import native_logprobs, sampler
from foredraft.models.runner import (
    CHOICES,
    INSTALL,
    Runner,
    RunnerOptions,
    open_runner,
    require_something,
    torch_engine,
    torch_installed,
    why_not_blocks,
)
from foredraft.models.target import CachedTarget
from foredraft.models.views.narrow import NarrowModel, narrow_vocabulary
from foredraft.runtime.model_folder import ModelQuery, find_folder
from foredraft.system.files import Progress
from foredraft.tokenizer.tokenizer import Tokenizer

DTYPES: Final = ("auto", "bf16", "f32", "f64", "file")
MAX_THREADS: Final = 1024


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
        if self.device is not None:
            text("device", self.device)
        if self.threads is not None:
            whole("threads", self.threads, minimum=1, maximum=MAX_THREADS)
        if self.context is not None:
            whole("context", self.context, minimum=1)
        switch("offline", self.offline)

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
class LoadedModel:
    """A model ready to be asked."""

    name: str
    target: CachedTarget
    tokenizer: Tokenizer | None
    tier: str
    device: str
    dtype: str
    fingerprint: str
    context: int
    no_speculation_reason: str | None  # why speculation is refused, where it is
    notice: str | None  # a slower path that was taken, and why
    folder: ModelFolder | None  # where it was loaded from; None for an object handed in
    sampler: Sampler
    identity: str = ""  # of its weights
    cache: Path = Path()  # where models are kept, and what was found out about them
    install_note: str | None = None  # what loading it has left in the cache, which is no slower path


def open_draft_model(name: str, machine: Machine, target: LoadedModel, progress: Progress | None = None) -> LoadedModel:
    """Return a draft model under its target's machine options; its context is its own. Raises as ``open_model`` does.

    Beside a target that runs a file's blocks its weights are coded in 5 bits, where no type was asked for: in 16 bits
    it would read several times as much for each of its parameters, and what is rounded is a guess.
    """
    rounded = machine.dtype == "auto" and target.dtype == "file"
    return open_model(name, replace(machine, context=None), progress=progress, rounded=rounded)


def open_model(
    model: Any,
    machine: Machine,
    tokenizer: Any = None,
    progress: Progress | None = None,
    *,
    rounded: bool = False,
) -> LoadedModel:
    """Return a model by alias, folder, hub id or GGUF file, or around a transformers model object.

    ``rounded`` codes a folder's weights in 5 bits where the native pass runs them, which only a draft may ask for.
    Raises ModelError, FetchError or StorageError.
    """
    if not isinstance(model, str | Path):
        return _model_of_module(model, machine, tokenizer)
    name = str(model)
    require_something(machine.device)
    device, tier, cache = machine.device, machine.native_tier, machine.cache_folder
    found = find_folder(ModelQuery(name, machine.dtype, device, tier, cache, machine.offline, progress))
    folder, dtype = found.folder, found.dtype
    if rounded and dtype == "bf16" and not (why_not_blocks(device, tier) or folder.why_not_in_table):
        dtype = "rounded"
    runner = open_runner(folder, RunnerOptions(dtype, cache, device, machine.threads, tier, progress))
    install_note = runner.model.install_note if isinstance(runner.model, WithInstallNote) else None
    runner = replace(runner, notice="; ".join(note for note in (found.notice, runner.notice) if note) or None)
    if (ids := narrow_vocabulary(folder.path, runner.model.vocabulary)) is not None:
        runner = replace(runner, model=NarrowModel(runner.model, ids))
    own = Tokenizer.from_folder(folder.path, folder.config) if tokenizer is None else tokenizer_of(tokenizer)
    loaded = _loaded_model(name, runner, own, machine, dtype, folder.identity, folder)
    return replace(loaded, install_note=install_note)


def _model_of_module(module: Any, machine: Machine, tokenizer: Any) -> LoadedModel:
    if machine.device is not None or machine.dtype != "auto" or machine.native_tier not in (None, "auto"):
        raise OptionError("a model object keeps the device and dtype it has: leave device, dtype and native_tier out")
    if not torch_installed():
        raise OptionError(f"a model is named by a string or a path, not by {type(module).__name__}, or needs {INSTALL}")
    from foredraft.models.hf.module import GenericModel

    model = GenericModel(module)
    own = None if tokenizer is None else tokenizer_of(tokenizer)
    name = str(getattr(module.config, "_name_or_path", "")) or type(module).__name__
    runner = Runner(model, "transformers", model.device, torch_engine("transformers", model.device))
    return _loaded_model(name, runner, own, machine, model.dtype, model.identity(), None)


def _loaded_model(
    name: str,
    runner: Runner,
    tokenizer: Tokenizer | None,
    machine: Machine,
    dtype: str,
    identity: str,
    folder: ModelFolder | None,
) -> LoadedModel:
    model = runner.model
    context = machine.context or model.context
    if context > model.context:
        raise OptionError(f"context {context} is more than the {model.context} tokens that {name} was made for")
    chosen = find_sampler()
    return LoadedModel(
        name=name,
        target=CachedTarget(model),
        tokenizer=tokenizer,
        tier=runner.tier,
        device=runner.device,
        dtype=dtype,
        # the two samplers may differ in the last bit of a probability, and then in a token
        fingerprint=fingerprint(__version__, identity, f"{runner.engine} {chosen.name}", dtype),
        context=context,
        no_speculation_reason=model.why_not_rewindable or None,
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

"""Which forward pass runs a model, and where: the native one on CPUs, torch's elsewhere, transformers' for the rest.

Nothing here imports torch before it is known to be needed; what is slower than it could be is said in ``notice``.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foredraft.errors import ModelError, OptionError, UnsupportedModel
from foredraft.models.folder import ModelFolder
from foredraft.models.model import Model
from foredraft.models.spec import DecoderSpec
from foredraft.system.files import Progress

DEVICES: Final = ("cpu", "cuda", "mps")
TIERS: Final = ("amx", "avx512", "avx512-vnni", "avx-vnni", "avx2", "portable")
CHOICES: Final = ("auto", *TIERS, "off")
_MOMENT: Final = 1 << 30  # bytes that are packed in about two seconds
INSTALL: Final = "pip install 'foredraft[torch]'"


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """What was asked for. None: the best device, as many threads as there are cores, the best native tier."""

    dtype: str
    cache: Path  # where packed weights are kept
    device: str | None = None
    threads: int | None = None
    tier: str | None = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Runner:
    """A forward pass, ready: what runs it, what its bits depend on, and why nothing faster does."""

    model: Model
    tier: str  # "native-amx", ..., "torch", "transformers"
    device: str
    engine: str
    notice: str | None = None


def open_runner(folder: ModelFolder, options: RunnerOptions) -> Runner:
    """Return the forward pass for a folder.

    Raises ModelError for a model that nothing here can run, OptionError for a device or tier that is not there.
    """
    try:
        spec = folder.spec
    except UnsupportedModel as error:
        if not error.elsewhere:
            raise
        return _generic(folder.path, error, options)
    if options.tier in TIERS:
        _check_forced(options)
        return _native(folder, spec, options, None)
    device, notice = pick_device(options.device)
    if device != "cpu" or options.dtype == "f64" or options.tier == "off":
        return _torch(folder, spec, device, notice, options)
    if why := why_not_native():
        return _torch(folder, spec, device, f"{why}; torch does the work, which is slower", options)
    return _native(folder, spec, options, notice)


def pick_device(asked: str | None) -> tuple[str, str | None]:
    """Return the device asked for or the best there is, and what is missing for a better one.

    Torch is imported only for a device other than the CPU. Raises OptionError for a device that is not there.
    """
    if asked is not None and asked not in DEVICES:
        raise OptionError(f"device must be one of {', '.join(DEVICES)}, not {asked!r}")
    if asked == "cpu" or (asked is None and not gpu_possible()):
        return "cpu", None
    if not torch_installed():
        if asked is None:
            return "cpu", f"there seems to be a GPU here, and torch is needed to use it: {INSTALL}"
        raise OptionError(f"device {asked} needs torch: {INSTALL}")
    from foredraft.models.torch_decoder import runtime as torch_runtime

    return torch_runtime.pick_device(asked), None


def gpu_possible() -> bool:
    """Say whether it is worth asking torch for a GPU: asking costs seconds."""
    return shutil.which("nvidia-smi") is not None or any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/kfd"))


def torch_installed() -> bool:
    """Say whether torch is there, without importing it."""
    return importlib.util.find_spec("torch") is not None


def why_not_native() -> str | None:
    """Return why this install has no native pass, or None."""
    from foredraft.models.native import model as native_model

    return native_model.why_not()


def why_not_blocks(device: str | None, tier: str | None) -> str | None:
    """Return why a GGUF would not run from its own blocks on a device and tier, or None. Raises as ``pick_device``."""
    if tier == "off":
        return "native_tier off asks for torch"
    if tier not in TIERS and (chosen := pick_device(device)[0]) != "cpu":
        return f"device {chosen} runs it in torch"
    return why_not_native()


def native_facts() -> dict[str, Any]:
    """Return the native tiers that run here, best first, the names of all, and what there is to say."""
    facts: dict[str, Any] = {"tiers": [], "all": list(TIERS), "notice": why_not_native()}
    if facts["notice"] is None:
        from foredraft.native.library import choose_tier, tiers

        best, facts["notice"] = choose_tier(None)
        facts["tiers"] = list(tiers()[tiers().index(best) :])
    return facts


def require_something(wish_device: str | None) -> None:
    """Raise ModelError where nothing could run any model, before one is fetched for it."""
    if not torch_installed() and wish_device in (None, "cpu") and (why := why_not_native()):
        raise ModelError(f"{why}, and torch, which could do the work, is missing: {INSTALL}")


def _check_forced(options: RunnerOptions) -> None:
    if options.device not in (None, "cpu"):
        raise OptionError(f"native_tier {options.tier} is for the CPU: leave out device {options.device}")
    if options.dtype == "f64":
        raise OptionError(f"native_tier {options.tier} computes in bf16, f32 or a file's blocks: leave out dtype f64")
    if why := why_not_native():
        raise OptionError(f"native_tier {options.tier} cannot be had: {why}")


def _native(folder: ModelFolder, spec: DecoderSpec, options: RunnerOptions, notice: str | None) -> Runner:
    from foredraft.models.native import model as native_model

    forced = options.tier if options.tier in TIERS else None
    model = native_model.NativeModel(
        spec,
        folder.weights,
        options.dtype,
        threads=options.threads,
        tier=forced,
        cache=options.cache,
        identity=folder.identity,
        source=folder.source,
        progress=_packing(folder, options.progress),
    )
    tier = f"native-{model.tier}"
    note = "; ".join(part for part in (notice, model.notice) if part)
    return Runner(model, tier, "cpu", tier, note or None)


def _packing(folder: ModelFolder, progress: Progress | None) -> Progress | None:
    """Return who is told of layers packed, in bytes; nobody where it takes a moment."""
    size = folder.weight_bytes
    if progress is None or size < _MOMENT:
        return None

    def tell(done: int, total: int, label: str) -> None:
        progress(size * done // total, size, label)

    return tell


def _torch(folder: ModelFolder, spec: DecoderSpec, device: str, notice: str | None, options: RunnerOptions) -> Runner:
    if not torch_installed():
        if notice is not None:
            raise ModelError(f"{notice.partition(';')[0]}, or {INSTALL} for a slower pass")
        what = "dtype f64" if options.dtype == "f64" else "native_tier off"
        raise OptionError(f"{what} needs torch: leave it out, or {INSTALL}")
    from foredraft.models.torch_decoder import runtime as torch_runtime
    from foredraft.models.torch_decoder.decoder import TorchDecoder

    torch_runtime.set_threads(options.threads)
    model = TorchDecoder(spec, folder.weights, device, options.dtype)
    return Runner(model, "torch", device, torch_engine("torch", device), notice)


def _generic(folder: Path, error: UnsupportedModel, options: RunnerOptions) -> Runner:
    if options.tier in TIERS:
        raise OptionError(f"native_tier {options.tier} cannot run this model: {error}") from error
    if not torch_installed():
        raise UnsupportedModel(f"{error}; to run it through transformers' own module, {INSTALL}") from error
    from foredraft.models.hf.module import GenericModel
    from foredraft.models.torch_decoder import runtime as torch_runtime

    device = torch_runtime.pick_device(options.device)
    torch_runtime.set_threads(options.threads)
    notice = f"{error}; it runs through transformers' own module, which is slower"
    model = GenericModel.from_folder(folder, device, options.dtype)
    return Runner(model, "transformers", device, torch_engine("transformers", device), notice)


def torch_engine(tier: str, device: str) -> str:
    """Return what the bits of a pass in torch depend on, beside the weights and their type."""
    from foredraft.models.torch_decoder import runtime as torch_runtime

    return f"{tier} {torch_runtime.version()} {torch_runtime.describe(device)}"

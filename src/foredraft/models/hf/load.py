"""What a transformers module is made of and whether it may run; how a folder becomes one.

A folder gives safetensors only: no pickle is opened, no code from it run, no network asked.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from foredraft.errors import ModelError, ModelNotFound, OptionError, UnsupportedModel, WeightsError
from foredraft.system.json_text import parse_json

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
NO_TRANSFORMERS = "running this model needs the transformers library: pip install 'foredraft[torch]'"

# the argument that hands a state from pass to pass, the newest name first; the answer carries it under one of these too
STATES = ("cache", "past_key_values", "cache_params", "state")


def check_module(module: Any, device: str | None) -> None:
    """Refuse a module that is no causal language model, or is not ready to be run; see ``GenericModel``."""
    name = type(module).__name__
    try:
        from transformers import PreTrainedModel
    except ImportError as error:
        raise UnsupportedModel(NO_TRANSFORMERS) from error
    if not isinstance(module, PreTrainedModel):
        raise UnsupportedModel(f"{name} is not a transformers model, the one kind of object that can be handed in")
    made: Any = module
    if getattr(made.config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{name} is an encoder-decoder model; only decoder-only language models can be run")
    if not made.can_generate() or made.get_output_embeddings() is None:
        raise UnsupportedModel(f"{name} is not a causal language model: load it with AutoModelForCausalLM")
    accepted = inspect.signature(made.forward).parameters
    if not any(state in accepted for state in STATES):
        raise UnsupportedModel(f"{name} keeps no cache from pass to pass, so it cannot be continued")
    if any(part.training for part in made.modules()):
        raise OptionError(f"{name} is in training mode, where dropout changes its text: call .eval() on it first")
    where = made.get_input_embeddings().weight.device
    if where.type == "meta":
        raise OptionError(f"{name} has no weights yet (it lies on the meta device): load them first")
    if device is not None and torch.device(device).type != where.type:
        raise OptionError(f"{name} lies on {where}, not on {device}: move it there with .to({device!r}) first")


def check_causal(name: str, ask: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Refuse a module whose first row changes with the tokens after it; ``ask`` maps ids [1, N] to logits [1, N, V]."""
    ids = torch.arange(8)[None]
    alone, among = (ask(x)[0, 0] for x in (ids[:, :1], ids))
    rounding = 0.05 if alone.dtype.itemsize < 4 else 1e-4
    if float((alone - among).abs().max()) > rounding * float(alone.abs().max()):
        raise UnsupportedModel(f"{name} reads in both directions (is_decoder is off), so it cannot generate")


def last_layer(module: torch.nn.Module, layers: int) -> torch.nn.Module:
    """Return a module's last decoder layer: the end of its first list of ``layers`` parts. Raises ModelError."""
    for part in module.modules():
        if isinstance(part, torch.nn.ModuleList) and len(part) == layers:
            return part[-1]
    raise ModelError(f"the layers of {type(module).__name__} could not be found, so its last one cannot be tapped")


def records_wrongly(name: str) -> str:
    """Return why a window that records what leaves it cannot be trusted: transformers 5.17 returns too many keys."""
    import transformers

    if tuple(int(part) for part in transformers.__version__.split(".")[:2]) >= (5, 18):
        return ""
    return f"{name} keeps a sliding window, which transformers {transformers.__version__} cannot rewind (5.18 can)"


def weights_identity(module: Any) -> str:
    """Return a digest of a module's config and of 64 places in each of its tensors."""
    digest = hashlib.sha256(f"{type(module).__name__}\n{module.config.to_json_string()}".encode())
    for name, tensor in module.state_dict().items():
        flat = tensor.reshape(-1)
        sample = flat[:: max(1, flat.numel() // 64)].double().cpu().numpy()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode() + sample.tobytes())
    return digest.hexdigest()[:16]


def load_module(folder: Path, device: str, dtype: str) -> Any:
    """Return the folder's causal language model in eval mode; see ``GenericModel.from_folder`` for what is refused."""
    if dtype not in DTYPES:
        raise OptionError(f"a model run through transformers takes dtype {', '.join(DTYPES)}, not {dtype!r}")
    try:
        import transformers
    except ImportError as error:
        raise UnsupportedModel(NO_TRANSFORMERS) from error
    _check_config(folder)
    _check_weights(folder)
    with quiet(transformers):
        try:
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder),
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                dtype=DTYPES[dtype],
                output_loading_info=True,
            )
        except SafetensorError as error:
            raise WeightsError(f"the weights in {folder} are damaged or truncated: {first_line(error)}") from error
        except Exception as error:  # transformers raises what it likes; one sentence leaves here
            raise UnsupportedModel(f"transformers cannot load {folder}: {first_line(error)}") from error
    module, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise WeightsError(f"the weights in {folder} lack {len(missing)} tensors of the model, such as {missing[0]}")
    if dtype == "f64" and module._can_set_experts_implementation():  # noqa: SLF001 - it has no public name there
        module.set_experts_implementation("eager")  # torch's grouped product stops at float32
    try:
        return module.eval().to(device)
    except Exception as error:  # no such device, or no room on it
        raise OptionError(f"the model does not go to device {device!r}: {first_line(error)}") from error


def _check_config(folder: Path) -> None:
    """Refuse, before any library reads it, a config that asks for what is never done here."""
    if not folder.is_dir():
        raise ModelNotFound(f"there is no folder {folder}")
    if (folder / "adapter_config.json").exists():
        raise UnsupportedModel(f"{folder} holds an adapter: merge it into its base model first")
    try:
        config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelNotFound(f"{folder} has no config.json, so it is not a model folder") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {first_line(error)}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder / 'config.json'} is not a JSON object")
    for key, value in _entries(config):
        code = key in ("auto_map", "custom_pipelines", "trust_remote_code", "use_kernels", "kernel_config")
        # an implementation named like a hub repository is code to be fetched
        if (code and value) or (key.endswith("_implementation") and "/" in str(value)):
            raise UnsupportedModel(f"{folder} asks for remote code ({key}), which is never run")
        if key == "quantization_config" and value:
            method = value.get("quant_method") if isinstance(value, dict) else None
            raise UnsupportedModel(
                f"{folder} is quantised ({method or 'method unnamed'}): use a bf16 checkpoint or a .gguf file of it"
            )
    if config.get("is_encoder_decoder"):
        raise UnsupportedModel(f"{folder} is an encoder-decoder model; only decoder-only language models can be run")


def _check_weights(folder: Path) -> None:
    """Refuse a folder whose weights are not all safetensors files lying in it."""
    if not any(folder.glob("*.safetensors")):
        raise WeightsError(f"{folder} has no .safetensors weights; pickled ones (.bin, .pt) are never opened")
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{index} cannot be read: {first_line(error)}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise WeightsError(f"{index} names {name!r}, which is not a .safetensors file in its folder")


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a JSON value and of all it holds."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield str(key), inner
        yield from _entries(inner)


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keep transformers' log lines and bars off the terminal: what matters in them becomes an error here."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its kind where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

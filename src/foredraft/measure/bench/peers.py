"""Other libraries with the same weights in the same process: those that can be asked, and why the others cannot.

What is compared is decoding alone: each library's tokens after the first, by the clock around them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from foredraft.measure.bench.bench import Peer, PeerAnswer
from foredraft.runtime.loaded_model import LoadedModel

LOOKUP: Final = 10
TRANSFORMERS: Final = "transformers"
PROMPT_LOOKUP: Final = f"transformers, prompt lookup {LOOKUP}"
LLAMA_CPP: Final = "llama-cpp-python"


@dataclass(frozen=True, slots=True)
class Transformers:
    """transformers' ``generate``, plain or with its prompt lookup."""

    name: str
    model: Any  # TransformersPeer
    lookup: int = 0

    def answer(self, prompt: Sequence[int], max_tokens: int) -> PeerAnswer:
        """Answer a prompt of token ids."""
        tokens, decoded, seconds = self.model.answer(prompt, max_tokens, self.lookup)
        return PeerAnswer(tuple(tokens), decoded, seconds)


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """llama.cpp through llama-cpp-python, plain and greedy."""

    model: Any  # llama_cpp.Llama
    stop_ids: frozenset[int]
    clock: Callable[[], float] = perf_counter
    name: str = LLAMA_CPP

    def answer(self, prompt: Sequence[int], max_tokens: int) -> PeerAnswer:
        """Answer a prompt of token ids."""
        tokens: list[int] = []
        times: list[float] = []
        for token in self.model.generate(list(prompt), temp=0.0, repeat_penalty=1.0, reset=True):
            tokens.append(int(token))
            times.append(self.clock())
            if len(tokens) >= max_tokens or token in self.stop_ids:
                break
        return PeerAnswer(tuple(tokens), len(tokens) - 1, times[-1] - times[0])


def find_peers(loaded: LoadedModel, model: str, threads: int | None, longest: int) -> tuple[list[Peer], dict[str, str]]:
    """Return the peers that can be asked, and of the others why not, by name.

    ``model`` is what the user named, ``longest`` the tokens of the longest prompt and its answer. Raises nothing: a
    library that breaks while it loads is told of like one that is not there.
    """
    peers: list[Peer] = []
    absent: dict[str, str] = {}
    for name, load in ((TRANSFORMERS, _transformers), (LLAMA_CPP, _llama_cpp)):
        try:
            found = load(loaded, model, threads, longest)
        except (Exception, SystemExit) as error:  # another library may break in any way
            found = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if isinstance(found, str):
            absent[name] = found
        else:
            peers += found
    return peers, absent


def gguf_of(loaded: LoadedModel, model: str) -> Path | None:
    """Return the GGUF file of a model: the one that was named or is run, or the only one in its folder."""
    named = Path(model)
    if named.suffix == ".gguf" and named.is_file():
        return named
    if loaded.folder is None:
        return None
    if loaded.folder.gguf is not None:
        return loaded.folder.gguf
    beside = sorted(loaded.folder.path.glob("*.gguf"))
    return beside[0] if len(beside) == 1 else None


def _stop_ids(loaded: LoadedModel) -> frozenset[int]:
    return frozenset(() if loaded.tokenizer is None else loaded.tokenizer.stop_ids)


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _transformers(loaded_model: LoadedModel, model: str, threads: int | None, longest: int) -> list[Peer] | str:  # noqa: ARG001 - one form for all
    if not (_installed("torch") and _installed("transformers")):
        return "not installed"
    if loaded_model.folder is None:
        return "this model came from no folder"
    if loaded_model.dtype == "file":
        return "this model runs from the blocks of its file, which transformers does not: --dtype bf16 compares the two"
    from foredraft.models.hf.peer import TransformersPeer

    loaded = TransformersPeer(
        loaded_model.folder.path, loaded_model.dtype, loaded_model.device, sorted(_stop_ids(loaded_model)), threads
    )
    return [Transformers(TRANSFORMERS, loaded), Transformers(PROMPT_LOOKUP, loaded, LOOKUP)]


def _llama_cpp(loaded_model: LoadedModel, model: str, threads: int | None, longest: int) -> list[Peer] | str:
    if not _installed("llama_cpp"):
        return "not installed"
    path = gguf_of(loaded_model, model)
    if path is None:
        return "no GGUF of this model"
    library: Any = importlib.import_module("llama_cpp")
    cores = threads or _cores()  # its own default is half of them
    loaded = library.Llama(model_path=str(path), n_ctx=longest, n_threads=cores, n_threads_batch=cores, verbose=False)
    return [LlamaCpp(loaded, _stop_ids(loaded_model))]

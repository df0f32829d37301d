"""The peer of quantised.py: llama.cpp, in a process of its own, through the library that a Python wheel brings.

``serve`` runs under a Python that has xllamacpp or llama_cpp and needs nothing else, hence by the path of this file;
``Peer`` starts it and asks it. It answers in lines of JSON: the logits after each token of a text, or how long a token
of plain decoding takes. Between questions it waits for input, with no thread awake.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOM = 512  # tokens of a context as llama.cpp makes it by default, and of a pass
WHEELS = {"xllamacpp": "xllamacpp", "llama_cpp": "llama-cpp-python"}  # modules, and what installs them


class Peer:
    """llama.cpp with one file open."""

    def __init__(self, python: Path, file: Path, threads: int) -> None:
        words = [str(python), __file__, str(file), str(threads)]
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as this is
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )
        self.name = self._read()["name"]

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._said.close()

    def logits(self, tokens: Sequence[int], first: int, into: Path) -> None:
        """Write the logits [tokens - first, V] after the tokens from number ``first`` on, as float32, into a file."""
        self._ask({"tokens": list(tokens), "first": first, "into": str(into)})

    def decode(self, tokens: Sequence[int], count: int) -> float:
        """Return the seconds of a token in greedy decoding, ``count`` of them after a prompt, which is not timed."""
        return float(self._ask({"tokens": list(tokens), "count": count})["seconds"])

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            last = (self._said.read().splitlines() or ["no reason given"])[-1]
            raise SystemExit(f"the peer ended before it answered: {last}")
        return json.loads(line)


class Opaque(ctypes.Structure):
    """Parameters as the library makes and takes them, by value on the stack: only their first field is set here."""

    _fields_ = (("context", ctypes.c_uint32), ("rest", ctypes.c_uint8 * 1020))  # more than any version has


class Batch(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p),
        ("seq_id", ctypes.c_void_p),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


def library() -> tuple[str, Any]:
    """Return the name of the wheel that is installed, and its library with the functions used here declared."""
    for wheel in WHEELS:
        if importlib.util.find_spec(wheel) is None:
            continue
        module = importlib.import_module(f"{wheel}.{wheel}")
        lib = getattr(module, "_lib", None) or ctypes.CDLL(module.__file__)
        pointer, number = ctypes.c_void_p, ctypes.c_int32
        takes = {
            "llama_model_default_params": (Opaque, []),
            "llama_context_default_params": (Opaque, []),
            "llama_model_load_from_file": (pointer, [ctypes.c_char_p, Opaque]),
            "llama_init_from_model": (pointer, [pointer, Opaque]),
            "llama_set_n_threads": (None, [pointer, number, number]),
            "llama_model_get_vocab": (pointer, [pointer]),
            "llama_vocab_n_tokens": (number, [pointer]),
            "llama_decode": (number, [pointer, Batch]),
            "llama_get_logits": (pointer, [pointer]),
            "llama_get_memory": (pointer, [pointer]),
            "llama_memory_clear": (None, [pointer, ctypes.c_bool]),
            "llama_sampler_init_greedy": (pointer, []),
            "llama_sampler_sample": (number, [pointer, pointer, number]),
        }
        for function, (result, arguments) in takes.items():
            getattr(lib, function).restype = result
            getattr(lib, function).argtypes = arguments
        return f"{wheel} {importlib.metadata.version(WHEELS[wheel])}", lib
    raise SystemExit(f"{sys.executable} has neither xllamacpp nor llama_cpp")


class LlamaCpp:
    """A file open in llama.cpp, with its parameters as they come but for the threads."""

    def __init__(self, file: str, threads: int) -> None:
        self.name, self.lib = library()
        self.lib.llama_backend_init()
        model = self.lib.llama_model_load_from_file(file.encode(), self.lib.llama_model_default_params())
        parameters = self.lib.llama_context_default_params()
        parameters.context = ROOM
        self.context = self.lib.llama_init_from_model(model, parameters) if model else None
        if self.context is None:
            raise SystemExit(f"llama.cpp cannot open {file}")
        self.lib.llama_set_n_threads(self.context, threads, threads)
        self.vocabulary = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(model))
        self.sampler = self.lib.llama_sampler_init_greedy()

    def run(self, tokens: Sequence[int], wanted: Sequence[bool]) -> None:
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        flags = (ctypes.c_int8 * len(tokens))(*wanted)
        if self.lib.llama_decode(self.context, Batch(len(tokens), ids, None, None, None, None, flags)):
            raise SystemExit("llama.cpp refused a pass")

    def forget(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def logits(self, tokens: Sequence[int], first: int, into: str) -> dict[str, Any]:
        self.forget()
        if first:
            self.run(tokens[:first], [False] * first)
        with Path(into).open("wb") as out:
            for token in tokens[first:]:  # one at a time, as in decoding
                self.run([token], [True])
                out.write(ctypes.string_at(self.lib.llama_get_logits(self.context), 4 * self.vocabulary))
        return {}

    def decode(self, tokens: Sequence[int], count: int) -> dict[str, Any]:
        self.forget()
        self.run(tokens, [place == len(tokens) - 1 for place in range(len(tokens))])
        token = self.lib.llama_sampler_sample(self.sampler, self.context, -1)
        began = time.perf_counter()
        for _ in range(count):
            self.run([token], [True])
            token = self.lib.llama_sampler_sample(self.sampler, self.context, -1)
        return {"seconds": (time.perf_counter() - began) / count}


def serve(file: str, threads: int) -> None:
    """Answer lines of JSON on standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not an answer
    peer = LlamaCpp(file, threads)
    print(json.dumps({"name": peer.name}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer = peer.logits(**question) if "into" in question else peer.decode(**question)
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # without the library's own ending, which may wait for its threads


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))

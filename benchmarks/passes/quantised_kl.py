"""How far quantised engines are from the arithmetic they stand for: mean KL divergence on teacher-forced texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.passes.probes import chain
from benchmarks.passes.quantised_peer import Peer
from benchmarks.shared.script import read_prompts, spread
from foredraft.tokenizer.tokenizer import Tokenizer

PLACES: Final = 32  # the last ones of a text, which have the most before them
LONGEST: Final = 256  # tokens of a text
Text = tuple[list[int], int]  # tokens, and the first of those after which the next is predicted and compared
Logits = Callable[[Text], Any]


def texts(prompts: Path | None, tokenizer: Tokenizer, per_task: int) -> tuple[list[Text], str]:
    """Return texts, evenly from every task of a file of prompts, and the hash of the file's prompts."""
    rows, digest = read_prompts(prompts)
    found = []
    for row in spread(rows, per_task):
        ask = [{"role": "user", "content": row["prompt"]}]
        tokens = (tokenizer.chat(ask) if tokenizer.has_chat_template else tokenizer.encode(row["prompt"]))[:LONGEST]
        found.append((tokens, max(0, len(tokens) - PLACES)))
    return found, digest


def of_model(model: Any) -> Logits:
    """Return what gives a model's logits [places, V] of a text."""

    def logits(text: Text) -> Any:
        model.release(0)
        return model.forward([chain(0, 0, text[0], len(text[0]) - text[1])]).logits

    return logits


def of_peer(peer: Peer, place: Path) -> Logits:
    """Return what gives llama.cpp's logits [places, V] of a text; they pass through a file."""

    def logits(text: Text) -> Any:
        peer.logits(*text, place / "logits")
        return np.fromfile(place / "logits", np.float32).reshape(len(text[0]) - text[1], -1)

    return logits


def divergences(given: Sequence[Text], reference: Logits, engines: dict[str, Logits]) -> dict[str, dict[str, float]]:
    """Return for each engine the mean of KL(reference || engine) in nats over all places, and what stands around it."""
    all_of: dict[str, list[Any]] = {name: [] for name in engines}
    agreed = dict.fromkeys(engines, 0)
    for text in given:
        want = log_softmax(reference(text))
        for name, engine in engines.items():
            got = log_softmax(engine(text))
            all_of[name].append((np.exp(want) * (want - got)).sum(-1))
            agreed[name] += int((want.argmax(-1) == got.argmax(-1)).sum())
    return {name: _summed(np.concatenate(values), agreed[name]) for name, values in all_of.items()}


def _summed(values: Any, agreed: int) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        "error": float(values.std() / len(values) ** 0.5),
        "median": float(np.median(values)),
        "p99": float(np.quantile(values, 0.99)),
        "agreed": agreed / len(values),
        "places": len(values),
    }


def log_softmax(logits: Any) -> Any:
    """Return log-probabilities in float64, row by row."""
    rows = np.asarray(logits, np.float64)
    rows = rows - rows.max(-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def show(found: dict[str, dict[str, float]]) -> None:
    """Print a line for each engine."""
    print(f"\n{'KL, nats':>14}{'mean':>11}{'+-':>10}{'median':>11}{'p99':>11}{'same first':>12}{'places':>8}")
    for name, row in found.items():
        print(
            f"{name:>14}{row['mean']:>11.2e}{row['error']:>10.1e}{row['median']:>11.2e}{row['p99']:>11.2e}"
            f"{row['agreed']:>12.4f}{row['places']:>8.0f}"
        )

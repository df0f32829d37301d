"""What a target answers at temperature 1, with its law at every place: the material a draft model is trained on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

import foredraft
from foredraft.models.model import Rows

TOP = 128
SLOTS = 32  # answers written side by side; more of them cost as much a token
BLOCK = 512  # rows of a pass over prompts


@dataclass(frozen=True)
class Answer:
    """A prompt and its answer of A tokens, with the target's law at each of these."""

    tokens: Any  # int32 [prompt + A]
    first: int  # where the answer begins
    top: Any  # int32 [A, TOP] the likeliest tokens
    log_p: Any  # float32 [A, TOP] their log-probabilities


def in_turn(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the prompts of a file, one of each source in turn, so that no source crowds out another."""
    sources: dict[str, list[str]] = {}
    for row in rows:
        prompt = row["prompt"] if "prompt" in row else row["turns"][0]
        sources.setdefault(str(row.get("source", row.get("category"))), []).append(prompt)
    return [prompt for turn in zip_longest(*sources.values()) for prompt in turn if prompt is not None]


def own_questions(
    target: foredraft.LanguageModel, count: int, seed: int, folder: Path, tell: Callable[[str], None]
) -> list[str]:
    """Return questions that the target writes itself, given nothing but the opening of a user's turn."""
    tokenizer = target.loaded.tokenizer
    assert tokenizer is not None
    a, b = (tokenizer.chat([{"role": "user", "content": letter}]) for letter in "ab")
    opening = a[: next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)]
    path = folder / "questions.json"
    texts: list[str] = json.loads(path.read_text()) if path.exists() else []
    while len(texts) < count:
        tell(f"questions {len(texts)}/{count}")
        some = write(target, [opening] * SLOTS, 64, seed - len(texts) - 1 & 0xFFFFFFFF)
        texts += [tokenizer.decode(answer.tokens[answer.first :].tolist()) for answer in some]
        path.write_text(json.dumps(texts))
    return texts[:count]


def kept_answers(
    target: foredraft.LanguageModel,
    prompts: Sequence[list[int]],
    most: int,
    seed: int,
    folder: Path,
    tell: Callable[[str], None],
) -> tuple[list[Answer], float]:
    """Return an answer to each prompt, and the seconds it took to write them.

    Those already in ``folder`` are read, the others written and kept there.
    """
    answers: list[Answer] = []
    seconds = 0.0
    for start in range(0, len(prompts), SLOTS):
        path = folder / f"answers-{start:05}.npz"
        if not path.exists():
            began = time.perf_counter()
            some = write(target, prompts[start : start + SLOTS], most, seed + start)
            _keep(path, some, time.perf_counter() - began)
        some, took = _read(path)
        answers, seconds = answers + some, seconds + took
        tell(f"answers {len(answers)}/{len(prompts)}, {sum(len(a.top) for a in answers)} tokens, {seconds:.0f} s")
    return answers, seconds


def write(target: foredraft.LanguageModel, prompts: Sequence[list[int]], most: int, seed: int) -> list[Answer]:
    """Answer up to SLOTS prompts side by side. An answer depends on its prompt, its place in the list and the seed."""
    tokenizer, model = target.loaded.tokenizer, target.loaded.target.model
    stops = tokenizer.stop_ids if tokenizer is not None else frozenset()
    draws = [np.random.default_rng((seed, place)) for place in range(len(prompts))]
    texts = [list(prompt) for prompt in prompts]
    laws: list[list[tuple[Any, Any]]] = [[] for _ in prompts]
    fed = [0] * len(prompts)
    going = list(range(len(prompts)))
    while going:
        logits = _pass(model, texts, fed, going)
        top, log_p = likeliest(logits)
        for place, row, ids, logs in zip(going, logits, top, log_p, strict=True):
            laws[place].append((ids, logs))
            texts[place].append(_drawn(draws[place].random(), row, ids, logs))
        going = [p for p in going if texts[p][-1] not in stops and len(laws[p]) < most]
    for slot in range(len(prompts)):
        model.release(slot)
    return [
        Answer(np.array(text, np.int32), len(prompt), *map(np.stack, zip(*law, strict=True)))
        for text, prompt, law in zip(texts, prompts, laws, strict=True)
    ]


def likeliest(logits: Any) -> tuple[Any, Any]:
    """Return the TOP likeliest tokens of each row, likeliest first, and their log-probabilities, exact."""
    import torch

    rows = torch.from_numpy(logits)
    best, ids = torch.topk(rows, TOP)
    whole = torch.logsumexp(rows, -1, keepdim=True)
    return ids.to(torch.int32).numpy(), (best - whole).numpy()


def _pass(model: Any, texts: list[list[int]], fed: list[int], going: list[int]) -> Any:
    """Feed what each slot lacks of its text; return the logits after each."""
    parts, waiting, rows = [], [], 0
    for place in going:
        lacking = tuple(texts[place][fed[place] :])
        waiting.append(Rows(place, fed[place], lacking, tuple(range(-1, len(lacking) - 1)), 1))
        rows += len(lacking)
        fed[place] = len(texts[place])
        if rows >= BLOCK or place == going[-1]:
            parts.append(model.forward(waiting).logits)
            waiting, rows = [], 0
    return np.concatenate(parts)


def _drawn(u: float, row: Any, ids: Any, logs: Any) -> int:
    """Return the token at ``u`` of a law laid out with its likeliest tokens first."""
    ends = np.cumsum(np.exp(logs, dtype=np.float64))
    if u < ends[-1]:
        return int(ids[np.searchsorted(ends, u, side="right")])
    tail = np.exp(row.astype(np.float64) - row.max())
    tail[ids] = 0.0
    ends = np.cumsum(tail) * (1.0 - ends[-1]) / tail.sum() + ends[-1]
    return int(min(np.searchsorted(ends, u, side="right"), len(row) - 1))


def _keep(path: Path, answers: Sequence[Answer], seconds: float) -> None:
    whole: dict[str, Any] = {
        "seconds": np.array(seconds),
        "tokens": np.concatenate([a.tokens for a in answers]),
        "lengths": np.array([len(a.tokens) for a in answers]),
        "firsts": np.array([a.first for a in answers]),
        "top": np.concatenate([a.top for a in answers]),
        "log_p": np.concatenate([a.log_p for a in answers]).astype(np.float16),
    }
    part = path.with_suffix(".part.npz")
    np.savez(part, **whole)
    os.replace(part, path)  # a file that is there is whole


def _read(path: Path) -> tuple[list[Answer], float]:
    answers: list[Answer] = []
    token = place = 0
    with np.load(path) as file:
        whole = {name: file[name] for name in file.files}
    for length, first in zip(whole["lengths"].tolist(), whole["firsts"].tolist(), strict=True):
        rows = slice(place, place + length - first)
        tokens = whole["tokens"][token : token + length]
        answers.append(Answer(tokens, first, whole["top"][rows], whole["log_p"][rows].astype(np.float32)))
        token, place = token + length, rows.stop
    return answers, float(whole["seconds"])

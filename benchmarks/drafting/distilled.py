"""A draft model made in minutes: the target's first layers, trained on the target's own answers.

    python -m benchmarks.drafting.distilled --out FOLDER --prompts FILE --held-out FILE  (then --drafter model:FOLDER)

The target answers prompts at temperature 1 by the pass that serves it; its 128 likeliest tokens at each place are kept,
and what mass the others have. The draft starts as the target's first layers with its embedding and head, which stay as
they are; the layers and the last norm learn to give each place the target's law (KL). ``--minutes`` fixes the work, not
the clock: the same options make the same recipe everywhere, sized for two cores that do nothing else. What was
interrupted goes on where it was; FOLDER/recipe.json says how the model was made.

    overlap_before, overlap  mean of sum_x min(p(x), q(x)) over the places of the target's answers to held-out prompts,
                             temperature 1, by the passes that serve: the ratio rule accepts so many first guesses
    overlap_error            its standard error, as if places were independent
    argmax_before, argmax    how often both think the same token likeliest
    by_task                  overlap, for each task
    cost                     a pass of the draft against one of the target, one row, context 200, interleaved medians

``--prompts`` are for training, ``--held-out`` for measuring; without the first the target writes the questions too.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import foredraft
from benchmarks.drafting.distil_training import Course, save, train
from benchmarks.shared.made_models import first_layers
from benchmarks.shared.script import finish, load, parser, read_prompts, read_rows, spread
from benchmarks.shared.target_answers import SLOTS, Answer, in_turn, kept_answers, own_questions, write
from foredraft.models.model import Model, Rows
from foredraft.options import parse_options
from foredraft.prompts import prompt_ids

ANSWERS_A_MINUTE, STEPS_A_MINUTE = 80, 75  # on two cores, a quarter of the time for answers
HELD_OUT_SEED = 1 << 20
BYTES_A_PLACE = 768  # of a kept answer


@dataclass(frozen=True)
class Recipe:
    """What decides the model that comes out."""

    model: str
    prompts: str  # a hash
    layers: int
    answers: int
    steps: int
    batch: int = 4
    rate: float = 1e-3
    answer_tokens: int = 128
    prompt_tokens: int = 256  # longer prompts are left out
    seed: int = 0


def main() -> None:
    arguments = options()
    training, named = read_training(arguments.prompts)
    answers, steps = (max(1, round(a_minute * arguments.minutes)) for a_minute in (ANSWERS_A_MINUTE, STEPS_A_MINUTE))
    recipe = Recipe(arguments.model, named, arguments.layers, answers, steps, seed=arguments.seed)
    held_out, digest = read_prompts(arguments.held_out)
    held_out = spread(held_out, arguments.held_out_per_task)
    target = load(arguments, drafter="none")
    made = begun(arguments.out, recipe)
    if not (arguments.out / "model.safetensors").exists():
        make(target, training, recipe, arguments.out, arguments.threads)
        made = json.loads((arguments.out / "recipe.json").read_text())
    figures = measure(arguments, target, held_out)
    report(figures)
    finish({**figures, "recipe": {key: value for key, value in made.items() if key != "loss"}}, digest)


def options() -> Namespace:
    made = parser("distil a small draft model from the target's own answers")
    made.add_argument("--out", type=Path, required=True, help="folder for the draft model")
    made.add_argument("--minutes", type=float, default=8, help="how much work, in minutes of two idle cores")
    made.add_argument("--layers", type=int, default=4)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--held-out", type=Path, help="prompts to measure on (default: a small bundled sample)")
    made.add_argument("--held-out-per-task", type=int, default=8)
    arguments = made.parse_args()
    if arguments.quick:
        arguments.minutes, arguments.held_out_per_task = min(arguments.minutes, 0.2), 1
    return arguments


def read_training(path: Path | None) -> tuple[list[str], str]:
    """Return the texts to train on, the sources in turn, and a hash of them; none where the target writes them."""
    if path is None:
        return [], "own"
    return in_turn(read_rows(path)), read_prompts(path)[1]


def say(text: str) -> None:
    """Show how far it is, on one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def begun(out: Path, recipe: Recipe) -> dict[str, Any]:
    """Return what is known of the model in ``out``, which must have been begun by the same recipe, if at all."""
    path = out / "recipe.json"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(recipe), indent=1))
    made: dict[str, Any] = json.loads(path.read_text())
    if any(made.get(key) != value for key, value in asdict(recipe).items()):
        sys.exit(f"{out} holds a model begun by another recipe (recipe.json): name another folder, or remove it")
    return made


def make(target: foredraft.LanguageModel, training: list[str], recipe: Recipe, out: Path, threads: int | None) -> None:
    """Let the target answer, train, and write the model and its recipe. What was done before is not done again."""
    work, start = out / "work", out / "work" / "start"
    work.mkdir(exist_ok=True)
    shutil.rmtree(start, ignore_errors=True)
    assert target.loaded.folder is not None
    first_layers(target.loaded.folder.path, start, recipe.layers)
    size = (start / "model.safetensors").stat().st_size / 1e6
    room = (
        3 * size + recipe.answers * recipe.answer_tokens * BYTES_A_PLACE / 1e6
    )  # the start, and the state of training
    print(f"a model of {size:.0f} MB, with up to {room:.0f} MB beside it until it is done", file=sys.stderr)
    texts = training or own_questions(target, recipe.answers, recipe.seed, work, say)
    ids = [text for text in (ask(target, text) for text in texts) if len(text) <= recipe.prompt_tokens]
    answers, seconds = kept_answers(target, ids[: recipe.answers], recipe.answer_tokens, recipe.seed, work, say)
    course = Course(recipe.steps, recipe.batch, recipe.rate, recipe.seed, threads)
    weights, curve = train(start, work, answers, course, say)
    facts = {
        "answer_s": round(seconds),
        "train_s": round(curve[-1][2]),
        "places": sum(len(answer.top) for answer in answers),
        "loss": curve,
    }
    for path in start.iterdir():
        if path.name != "model.safetensors":
            shutil.copy(path, out)
    (out / "recipe.json").write_text(json.dumps({**asdict(recipe), **facts}))
    save(start, out, weights)
    shutil.rmtree(work)


def ask(target: foredraft.LanguageModel, text: str) -> list[int]:
    """Return a prompt as token ids, in the target's chat format."""
    tokenizer = target.loaded.tokenizer
    return prompt_ids(
        text.strip() or "Hello!", tokenizer, parse_options({}), target.loaded.target.vocabulary, target.loaded.context
    )


def measure(arguments: Namespace, target: foredraft.LanguageModel, held_out: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the trained draft, and of its start, on the target's answers to held-out prompts."""
    assert target.loaded.folder is not None
    layers = json.loads((arguments.out / "config.json").read_text())["num_hidden_layers"]
    with TemporaryDirectory() as folder:
        untrained = first_layers(target.loaded.folder.path, Path(folder) / "untrained", layers)
        # a cache of their own: what is packed for a measurement is thrown away
        own = {**vars(arguments), "cache": Path(folder) / "cache"}
        models = [
            load(Namespace(**{**own, "model": path}), drafter="none").loaded.target.model
            for path in (untrained, arguments.out)
        ]
        model = target.loaded.target.model
        marks: dict[str, list[Any]] = {}
        for start in range(0, len(held_out), SLOTS):
            some = held_out[start : start + SLOTS]
            say(f"held out {start}/{len(held_out)}")
            answers = write(target, [ask(target, row["prompt"]) for row in some], 64, HELD_OUT_SEED + start)
            for row, answer in zip(some, answers, strict=True):
                p = laws(model, answer)
                mark = np.stack([agreement(p, laws(each, answer)) for each in models])
                marks.setdefault(row["task"], []).append(mark)
        cost = relative_cost(models[1], model, passes=10 if arguments.quick else 50)
    tasks = {task: np.concatenate(some, axis=2) for task, some in marks.items()}  # [2 models, 2 figures, places]
    everything = np.concatenate(list(tasks.values()), axis=2)
    (overlap_before, argmax_before), (overlap, argmax) = everything.mean(2).tolist()
    return {
        "overlap_before": overlap_before,
        "overlap": overlap,
        "overlap_error": float(everything[1, 0].std() / everything.shape[2] ** 0.5),
        "argmax_before": argmax_before,
        "argmax": argmax,
        "places": everything.shape[2],
        "by_task": {task: float(some[1, 0].mean()) for task, some in tasks.items()},
        "cost": cost,
        "bytes": (arguments.out / "model.safetensors").stat().st_size,
    }


def laws(model: Model, answer: Answer) -> Any:
    """Return a model's law of every token of the answer, [A, V], given all before it."""
    tokens = tuple(answer.tokens[:-1].tolist())
    logits = model.forward([Rows(0, 0, tokens, tuple(range(-1, len(tokens) - 1)), len(answer.top))]).logits
    model.release(0)
    likely = np.exp(logits - logits.max(1, keepdims=True))
    return likely / likely.sum(1, keepdims=True)


def agreement(p: Any, q: Any) -> Any:
    """Return for each place the overlap of two laws, and whether their likeliest tokens are the same: [2, A]."""
    return np.stack([np.minimum(p, q).sum(1), p.argmax(1) == q.argmax(1)])


def relative_cost(draft: Model, target: Model, passes: int, context: int = 200) -> float:
    """Return the time of a pass of one row, the draft's over the target's: medians of interleaved passes."""
    text = tuple(7 + (31 * i) % 4000 for i in range(context))
    times: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(-3, passes):
        for number, model in enumerate((draft, target)):
            if turn == -3:
                model.forward([Rows(0, 0, text, tuple(range(-1, context - 1)), 1)])
            began = time.perf_counter()
            model.forward([Rows(0, context, (11,), (-1,), 1)])
            if turn >= 0:
                times[number].append(time.perf_counter() - began)
    for model in (draft, target):
        model.release(0)
    return statistics.median(times[0]) / statistics.median(times[1])


def report(figures: dict[str, Any]) -> None:
    """Print the table for people."""
    print(f"\n{'':16}{'before':>10}{'after':>10}")
    print(
        f"{'overlap':16}{figures['overlap_before']:>10.3f}{figures['overlap']:>10.3f} ± {figures['overlap_error']:.3f}"
    )
    print(f"{'same argmax':16}{figures['argmax_before']:>10.3f}{figures['argmax']:>10.3f}\n")
    for task, overlap in figures["by_task"].items():
        print(f"{task:26}{overlap:>10.3f}")
    print(f"\na pass of the draft costs {figures['cost']:.2f} of one of the target; {figures['bytes'] / 1e6:.0f} MB\n")


if __name__ == "__main__":
    main()

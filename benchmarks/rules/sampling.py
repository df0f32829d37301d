"""What noise, filters and acceptance cost: their share of decode time, on real text and on a wide made-up model.

    noise_share           of the native laws and noise, the worst of the model's arms (V is its own)
    noise_share_wide      the same of a random model of 1 B parameters and 151,936 tokens
    arms                  model -> "sampler rule drafter options" -> its share, the share of a quiet round, and the laws
                          that a pass was asked for; sampler python is core's own

An arm decodes every prompt. Its share is the time of a round between the pass and the cache, over the whole time of the
rounds, both summed over the rounds after the prompt's; a quiet round is the tenth part's upper end of either time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.shared.made_models import random_llama
from benchmarks.shared.script import finish, load, parser, read_prompts, spread
from foredraft.core import round as rounds
from foredraft.core.noise import Noise
from foredraft.core.protocols import Round
from foredraft.core.sampling import LawOf, SamplingParams, law_of
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.lookup import Lookup
from foredraft.drafters.none import NoDrafter
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.loop import run
from foredraft.models.folder import ModelFolder
from foredraft.models.native.sampling import sampler
from foredraft.models.runner import RunnerOptions, open_runner
from foredraft.models.target import CachedTarget
from foredraft.runtime.drafters import DRAFT_TOKENS

OPTIONS = {"0.8/0.95": SamplingParams(0.8, top_p=0.95), "1": SamplingParams(1.0)}
WIDE = {"hidden": 2048, "layers": 16, "mlp": 5632, "heads": 32, "kv_heads": 8, "vocabulary": 151936}
QUIET = 0.1  # quantile of the rounds that nothing else on the machine has slowed down
WIDE_PROMPTS = [[7 + 31 * i % 1000 for i in range(64)], [11 + 17 * i % 900 for i in range(64)]]


def main() -> None:
    """Measure, print a table, and one JSON line."""
    options = parser("what noise, filters and acceptance cost")
    options.add_argument("--wide", type=Path, help="folder for the wide model (2.1 GB, and as much packed)")
    arguments = options.parse_args()
    prompts, prompts_hash = read_prompts(arguments.prompts)
    lm = load(arguments, drafter="none")
    tokenizer = lm.loaded.tokenizer
    assert tokenizer is not None
    asked = spread(prompts, 1 if arguments.quick else 3)
    texts = [tokenizer.chat([{"role": "user", "content": row["prompt"]}]) for row in asked]
    arms = {"model": measure(lm.loaded.target, texts, 32 if arguments.quick else 128)}
    if arguments.wide is not None:
        arms["wide"] = measure(wide(arguments), WIDE_PROMPTS, 12 if arguments.quick else 32)
    worst = {
        name: max(share for arm, share in of["shares"].items() if arm.startswith("native")) for name, of in arms.items()
    }
    finish({"noise_share": worst["model"], "noise_share_wide": worst.get("wide"), "arms": arms}, prompts_hash)


def wide(arguments: Any) -> CachedTarget:
    """Return the random model, kept with its packed form in its own folder."""
    folder = arguments.wide / "model"
    if not folder.exists():
        print("making a random model of 1.0 B parameters (2.1 GB, and as much packed) ...")
        random_llama(folder, **WIDE)
    options = RunnerOptions("bf16", arguments.wide, "cpu", arguments.threads, arguments.native_tier)
    return CachedTarget(open_runner(ModelFolder(folder), options).model)


@dataclass(slots=True)
class Clock:
    """A Watch that keeps, of every round after the prompt's: seconds of sampling, seconds in all, laws asked for."""

    rounds: list[tuple[float, float, float]] = field(default_factory=list)
    seconds: float = 0.0
    laws: int = 0

    def timed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do some work, on the clock."""
        began = perf_counter()
        done = work(*arguments)
        self.seconds += perf_counter() - began
        return done

    def law(self, of: LawOf, row: Any, params: SamplingParams) -> Any:
        """Return a law, counted."""
        self.laws += 1
        return of(row, params)

    def see(self, done: Round) -> None:
        """End a round; the one that read the prompt is not kept."""
        if len(done.sequences[0].answer) > 1:
            self.rounds.append((self.seconds, perf_counter() - done.began, self.laws))
        self.seconds, self.laws = 0.0, 0


@contextmanager
def on_the_clock(clock: Clock) -> Iterator[None]:
    """Time what lies between the pass and the cache in every round inside."""
    plain = {name: getattr(rounds, name) for name in ("distribution", "decide")}
    for name, work in plain.items():
        setattr(rounds, name, partial(clock.timed, work))
    try:
        yield
    finally:
        for name, work in plain.items():
            setattr(rounds, name, work)


def measure(target: CachedTarget, texts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Return the shares and counts of each arm; the arms take turns prompt by prompt."""
    native, noise, who, why = sampler()
    if who != "native":
        sys.exit(f"there is no native sampler: {why}")
    samplers = {"python": (law_of, Noise), "native": (native, noise)}
    arms = [
        (f"{name} {rule} {drafter} {option}", samplers[name], rule == "coupled", drafter, params)
        for option, params in OPTIONS.items()
        for rule in ("ratio", "coupled")
        for drafter in ("none", "lookup")
        for name in samplers
    ]
    spent: dict[str, list[Any]] = {arm[0]: [] for arm in arms}
    for number, text in enumerate(texts):
        for arm, (law, kind), coupled, drafter, params in arms:
            spent[arm] += decode(target, text, tokens, law, kind(number, coupled=coupled), drafter, params)
    shares, quiet, laws = {}, {}, {}
    title = f"V = {target.vocabulary}"
    print(f"\n{title:36}{'share':>8}{'quiet':>8}{'us/pass':>9}{'ms/pass':>9}{'laws/pass':>11}")
    for arm, kept in spent.items():
        of_rounds = np.array(kept)
        mean, low = of_rounds.mean(0), np.quantile(of_rounds, QUIET, axis=0)
        shares[arm], quiet[arm], laws[arm] = float(mean[0] / mean[1]), float(low[0] / low[1]), float(mean[2])
        times = f"{low[0] * 1e6:>9.0f}{low[1] * 1e3:>9.2f}"
        print(f"{arm:36}{shares[arm]:>8.2%}{quiet[arm]:>8.2%}{times}{laws[arm]:>11.2f}")
    return {"shares": shares, "quiet": quiet, "laws_per_pass": laws}


def decode(
    target: CachedTarget, text: list[int], tokens: int, law: LawOf, noise: Noise, drafter: str, params: SamplingParams
) -> list[tuple[float, float, float]]:
    """Answer one prompt; return the clock's rounds."""
    clock = Clock()
    sequence = TokenSequence(list(text), len(text) + tokens, params, noise, law=partial(clock.law, law))
    drafts = NoDrafter() if drafter == "none" else Lookup()
    planner = FixedPlanner(0 if drafter == "none" else DRAFT_TOKENS)
    with on_the_clock(clock):
        for _ in run([sequence], target, drafts, planner, [clock]):
            pass
    return clock.rounds


if __name__ == "__main__":
    main()

"""How often each rule accepts a drawn guess, against its closed form, and what noise and acceptance cost.

Temperature 1, a draft model distilled for the purpose, prefixes from the target's own answers to held-out prompts. At
each place p and q are computed once; then both rules draw many independent rounds of one guess through the core's own
code, and a few of a chain through whole rounds of both models.

    ratio, coupled        share of single guesses accepted, both rules at the same places
    coupled_over_ratio    the one over the other
    bound                 mean of (1 - TV) / (1 + TV), which coupled's closed form is never below (below_bound counts)
    closed_form_error     the largest difference between a measured rate and its closed form, over both rules, single
                          guesses and places 1 to 4 of a chain (given that the guesses before were accepted)
    closed_form_half_width    half the 95 % interval of the rate that differs most
    within                whether every rate lies inside its interval, 95 % for all of them at once (Bonferroni)
    chain_ratio, chain_coupled    tokens a pass of 4 guesses yields, from the same places
    noise_share, noise_share_wide    of sampling.py, the worst of the native arms; the wide one with --wide
    intervals             rate, closed form, half width, z and rounds of each

Without ``--draft`` a model is distilled in the cache folder, once (benchmarks.drafting.distilled, eight minutes).
"""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

import foredraft
from benchmarks.drafting.distilled import (
    ANSWERS_A_MINUTE,
    HELD_OUT_SEED,
    STEPS_A_MINUTE,
    Recipe,
    ask,
    begun,
    make,
    read_training,
    say,
)
from benchmarks.rules import sampling
from benchmarks.rules.closed_forms import Tally, bound, match, overlap, quantile
from benchmarks.shared.script import finish, load, parser, read_prompts, spread
from benchmarks.shared.target_answers import SLOTS, write
from foredraft.core.accept import accept, coupled
from foredraft.core.draft import ROOT, Draft
from foredraft.core.law import Law
from foredraft.core.noise import Noise
from foredraft.core.protocols import Round
from foredraft.core.round import run_round
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.model import ModelDrafter
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.models.model import Model, Rows
from foredraft.runtime.drafter_names import draft_model
from foredraft.runtime.loaded_model import LoadedModel, Machine

RULES = {"ratio": False, "coupled": True}
PLAIN = SamplingParams(1.0)
CHAIN = 4
LEAST = 4.0  # variance of a count; smaller ones are shown, not judged
FULL = {"prompts": 8, "tokens": 64, "rounds": 48, "chains": 4}  # prompts a task, and the rest a prompt, place and rule
QUICK = {"prompts": 1, "tokens": 8, "rounds": 16, "chains": 2}


def main() -> None:
    """Measure, print tables, and one JSON line."""
    arguments = options()
    prompts, digest = read_prompts(arguments.prompts)
    target = load(arguments, drafter="none")
    draft = load(Namespace(**{**vars(arguments), "model": drafts_folder(arguments, target)}), drafter="none")
    work = QUICK if arguments.quick else FULL
    seen = Seen()
    measure(target, draft.loaded, spread(prompts, work["prompts"]), work, count(arguments.seed), seen)
    figures = {**summary(seen), "noise_share_wide": None}
    report(seen, figures)
    shares = noise_shares(arguments, target, spread(prompts, 1)[:2] if arguments.quick else spread(prompts, 3))
    finish({**figures, **shares, "sampler": target.loaded.sampler.name, "draft": draft.loaded.name}, digest)


def options() -> Namespace:
    made = parser("acceptance of the rules against their closed forms, temperature 1")
    made.add_argument("--draft", type=Path, help="folder of a draft model (default: one is distilled)")
    made.add_argument("--training", type=Path, help="prompts to distil on (default: the target writes its own)")
    made.add_argument("--wide", type=Path, help="folder for the wide model (2.1 GB, and as much packed)")
    made.add_argument("--seed", type=int, default=0, help="first seed of the rounds; another repeats the measurement")
    return made.parse_args()


def drafts_folder(arguments: Namespace, target: foredraft.LanguageModel) -> Path:
    """Return the folder of the draft model, distilled first where none is named."""
    if arguments.draft is not None:
        return Path(arguments.draft)
    minutes = 0.2 if arguments.quick else 8
    training, named = read_training(arguments.training)
    answers, steps = (max(1, round(a_minute * minutes)) for a_minute in (ANSWERS_A_MINUTE, STEPS_A_MINUTE))
    recipe = Recipe(arguments.model, named, 4, answers, steps)
    name = hashlib.sha256(json.dumps(asdict(recipe)).encode()).hexdigest()[:12]
    out = Machine(cache=arguments.cache).cache_folder / f"distilled-{name}"
    begun(out, recipe)
    if not (out / "model.safetensors").exists():
        make(target, training, recipe, out, arguments.threads)
    return out


@dataclass(slots=True)
class Seen:
    """What came of the rounds."""

    tallies: dict[str, Tally] = field(default_factory=dict)  # "rule single" or "rule place"
    bounds: list[float] = field(default_factory=list)  # one a place
    below: int = 0  # places where coupled's closed form is below its bound
    tokens: dict[str, list[int]] = field(default_factory=dict)  # rule -> what each chain yielded

    def add(self, name: str, chance: float, rounds: int, accepted: int) -> None:
        """Count rounds of one kind."""
        self.tallies.setdefault(name, Tally()).add(chance, rounds, accepted)

    def judged(self) -> list[Tally]:
        """Return the counts that are large enough for a normal law."""
        return [tally for tally in self.tallies.values() if tally.variance >= LEAST]


def measure(
    target: foredraft.LanguageModel,
    draft: LoadedModel,
    prompts: list[dict[str, Any]],
    work: dict[str, int],
    seeds: Iterator[int],
    seen: Seen,
) -> None:
    """Let the target answer the prompts, and draw rounds at every place of the answers."""
    drafter = draft_model(draft, target.loaded, None, None)
    models = target.loaded.target.model, draft.target.model
    answers = []  # all before the first chain, whose slots they use
    for start in range(0, len(prompts), SLOTS):
        asked = [ask(target, row["prompt"]) for row in prompts[start : start + SLOTS]]
        answers += write(target, asked, work["tokens"], HELD_OUT_SEED + start)
    for number, answer in enumerate(answers):
        say(f"prompt {number}/{len(prompts)}")
        tokens = answer.tokens.tolist()
        ours, theirs = (rows(model, tokens, answer.first) for model in models)
        for row, place in enumerate(range(answer.first, len(tokens))):
            p, q = (target.loaded.sampler.law(logits[row, :], PLAIN) for logits in (ours, theirs))
            known = {(): closed(p, q)}
            single(p, q, known[()], target.loaded.sampler.noise, place, islice(seeds, work["rounds"]), seen)
            sequences = chains(target.loaded, tokens[:place], list(islice(seeds, work["chains"])))
            one_round(target.loaded, drafter, sequences, Watch(known, seen))


def rows(model: Model, tokens: Sequence[int], first: int) -> Any:
    """Return a model's logits [A, V] for every token from ``first`` on, by the pass that serves."""
    slot = 1 << 12  # nobody else's
    fed = Rows(slot, 0, tuple(tokens[:-1]), tuple(range(-1, len(tokens) - 2)), len(tokens) - first)
    logits = model.forward([fed]).logits
    model.release(slot)
    return logits


def single(
    p: Law, q: Law, chances: dict[str, float], kind: type[Noise], place: int, seeds: Iterable[int], seen: Seen
) -> None:
    """Draw one guess a seed and rule at one place, and count what the core accepts beside the closed forms."""
    seen.bounds.append(bound(chances["ratio"]))
    seen.below += chances["coupled"] < seen.bounds[-1] * (1 - 1e-9)
    for seed in seeds:
        for rule, shared in RULES.items():
            noise = kind(seed, 0, place, shared)
            draft = Draft.chain([noise.guess(q, 0, 0)], [q])
            # what follows an accepted guess is not looked at: p stands in for it
            laws = coupled(lambda _: p, draft, noise) if shared else (lambda _: p)
            seen.add(f"{rule} single", chances[rule], 1, len(accept(draft, laws, noise).path))


def closed(p: Law, q: Law) -> dict[str, float]:
    """Return the closed form of each rule."""
    p, q = dense(p), dense(q)
    return {"ratio": overlap(p, q), "coupled": match(p, q)}


def dense(law: Any) -> Any:
    """Return a law as its V probabilities."""
    return law.dense() if hasattr(law, "dense") else np.asarray(law.probabilities)


def chains(loaded: LoadedModel, tokens: list[int], seeds: Sequence[int]) -> list[TokenSequence]:
    """Return the same text once a seed and rule, each with room for one round."""
    stops = loaded.tokenizer.stop_ids if loaded.tokenizer is not None else frozenset()
    return [
        TokenSequence(
            list(tokens), len(tokens) + CHAIN + 1, PLAIN, loaded.sampler.noise(seed, coupled=shared),
            law=loaded.sampler.law, stop_ids=stops, prompt_length=0,  # a text without an answer is not drafted for
        )
        for shared in RULES.values() for seed in seeds
    ]  # fmt: skip


def one_round(loaded: LoadedModel, drafter: ModelDrafter, sequences: list[TokenSequence], watch: Watch) -> None:
    """Run one round over all texts, and count every guess that was put to the test."""
    for sequence in sequences:
        loaded.target.begin(sequence)
        drafter.begin(sequence)
    run_round(sequences, loaded.target, drafter, FixedPlanner(CHAIN), [watch])
    for sequence in sequences:
        drafter.end(sequence)
        loaded.target.end(sequence)


@dataclass(frozen=True, slots=True)
class Watch:
    """Counts a round; ``known`` has the closed forms after the guesses that several texts share."""

    known: dict[tuple[int, ...], dict[str, float]]
    seen: Seen

    def see(self, done: Round) -> None:
        """Count, for each text, the guesses accepted, and the one refused if a stop did not come first."""
        for sequence, outcome, laws in zip(done.sequences, done.outcomes, done.laws, strict=True):
            rule = "coupled" if sequence.noise.coupled else "ratio"
            draft = outcome.draft
            refused = outcome.origins[-1] == "correction"
            for node in range(outcome.accepted + refused):
                path = draft.tokens[:node]
                if path not in self.known:
                    assert draft.laws is not None
                    self.known[path] = closed(laws(node - 1 if node else ROOT), draft.laws[node])
                self.seen.add(f"{rule} {node + 1}", self.known[path][rule], 1, int(node < outcome.accepted))
            self.seen.tokens.setdefault(rule, []).append(len(outcome.tokens))


def summary(seen: Seen) -> dict[str, Any]:
    """Return the figures of the rounds."""
    rates = {rule: seen.tallies[f"{rule} single"].rate for rule in RULES}
    judged = seen.judged()
    worst = max(judged, key=lambda tally: abs(tally.rate - tally.closed))
    return {
        **rates,
        "coupled_over_ratio": rates["coupled"] / rates["ratio"],
        "bound": float(np.mean(seen.bounds)),
        "below_bound": seen.below,
        "places": len(seen.bounds),
        "closed_form_error": abs(worst.rate - worst.closed),
        "closed_form_half_width": worst.half_width(),
        "within": all(abs(tally.z) <= quantile(len(judged)) for tally in judged),
        "largest_z": max(abs(tally.z) for tally in judged),
        **{f"chain_{rule}": float(np.mean(yields)) for rule, yields in seen.tokens.items()},
        **{f"chain_{rule}_interval": 1.96 * float(np.std(y)) / len(y) ** 0.5 for rule, y in seen.tokens.items()},
        "intervals": {
            name: {
                "rate": tally.rate,
                "closed": tally.closed,
                "half_width": tally.half_width(),
                "z": tally.z,
                "rounds": tally.rounds,
            }
            for name, tally in seen.tallies.items()
        },
    }


def report(seen: Seen, figures: dict[str, Any]) -> None:
    """Print the table for people."""
    print(f"\n{'rule, place':20}{'rounds':>9}{'measured':>10}{'closed':>9}{'difference':>12}{'95 %':>9}{'z':>7}")
    for name, tally in sorted(seen.tallies.items()):
        difference = f"{tally.rate - tally.closed:>+12.4f}{tally.half_width():>9.4f}{tally.z:>+7.2f}"
        print(f"{name:20}{tally.rounds:>9}{tally.rate:>10.4f}{tally.closed:>9.4f}{difference}")
    print(f"\n{'all' if figures['within'] else 'NOT all'} within 95 % for {len(seen.judged())} differences at once")
    print(f"coupled accepts {figures['coupled_over_ratio']:.3f} of what ratio does")
    print(f"(1-TV)/(1+TV) is {figures['bound']:.4f}; coupled is below at {seen.below} of {len(seen.bounds)} places")
    yields = ", ".join(f"{np.mean(yields):.3f} ({rule})" for rule, yields in seen.tokens.items())
    print(f"tokens that a pass over {CHAIN} guesses yields: {yields}")


def noise_shares(
    arguments: Namespace, target: foredraft.LanguageModel, prompts: list[dict[str, Any]]
) -> dict[str, float]:
    """Return the worst share of decode time that native sampling costs, on the model and on the wide one."""
    texts = [ask(target, row["prompt"]) for row in prompts]
    tokens, wide_tokens = (32, 12) if arguments.quick else (128, 32)
    arms = {"noise_share": sampling.measure(target.loaded.target, texts, tokens)}
    if arguments.wide is not None:
        arms["noise_share_wide"] = sampling.measure(sampling.wide(arguments), sampling.WIDE_PROMPTS, wide_tokens)
    return {
        name: max(share for arm, share in of["shares"].items() if arm.startswith("native")) for name, of in arms.items()
    }


if __name__ == "__main__":
    main()

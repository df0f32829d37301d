"""Planted faults: each must be caught by the check that its row of the table names.

A mutant is one substitution in the source of one module. ``foredraft.core`` and ``tests.core`` are then imported
afresh, beside the real ones; the check is called there, and has to fail by an assertion of its own.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings

PACKAGES = ("foredraft.core", "tests.core")


@dataclass(frozen=True)
class Mutant:
    """In ``module``, ``old`` becomes ``new``; ``check`` is the test, with its arguments, that must fail."""

    name: str
    module: str
    old: str
    new: str
    check: str
    arguments: tuple[Any, ...] = ()


ACCEPT, ROUND, SAMPLING = "foredraft.core.accept", "foredraft.core.round", "foredraft.core.sampling"
LAW, NOISE, SEQUENCE = "foredraft.core.law", "foredraft.core.noise", "foredraft.core.sequence"
DRAFT, PLANNER, TALLY = "foredraft.core.draft", "foredraft.engine.planner", "foredraft.engine.tally"
TOYS = "tests.core.toys"

CHAIN = "test_enumeration.test_chain"
WHOLE = "test_enumeration.test_whole_text_over_several_rounds"
ONEHOT = "test_enumeration.test_tree_of_certain_guesses"
SIBLINGS = "test_enumeration.test_tree_of_sampled_siblings"
FILTERED = "test_enumeration.test_filters_through_the_real_distribution"
EQUAL = "test_equality.test_greedy_text_is_plain_text"
RULED_OUT = "test_enumeration.test_a_token_that_the_target_rules_out_is_never_accepted"
STOP = "test_enumeration.test_stop_inside_a_draft"
NO_REUSE = "test_noise.test_no_number_is_used_twice"
CHI = "test_statistics.test_sampled_text_has_the_target_law"

# fmt: off
MUTANTS = [
    # the rule
    Mutant("accept always", ACCEPT, "if noise.test(guess) * q[x] < law[x]:", "if True:", CHAIN, (2, False)),
    Mutant("u <= p/q", ACCEPT, "* q[x] < law[x]", "* q[x] <= law[x]", RULED_OUT),
    Mutant("ratio upside down", ACCEPT, "* q[x] < law[x]", "* law[x] < q[x]", CHAIN, (1, False)),
    Mutant("resample from p", ACCEPT, "law = residual(law, q)", "pass", CHAIN, (1, False)),
    Mutant("residual of q - p", ACCEPT, "law = residual(law, q)", "law = residual(q, law)", CHAIN, (1, False)),
    Mutant("residual of |p - q|", ACCEPT, "- q.probabilities, 0 * p.prob",
           "- q.probabilities, q.probabilities - p.prob", CHAIN, (1, False)),
    Mutant("residual not renormalised", ACCEPT, "Dense(left / total)", "Dense(left)", SIBLINGS, ("three", True, False)),
    Mutant("refused certain guess stays", ACCEPT, "q.token, 0 *", "q.token, 1 *", ONEHOT, ("two", False)),
    Mutant("sampled guess taken as certain (exact, but slow)", ACCEPT, "draft.laws[guess] if", "Point(x) if",
           CHAIN, (1, False)),
    Mutant("law of another node", ACCEPT, "draft.laws[guess]", "draft.laws[guess - 1]", CHAIN, (2, False)),
    Mutant("bonus from the row before", ACCEPT, "law = p(node)", "law = p(draft.parents[node])", CHAIN, (1, False)),
    Mutant("bonus from the root's row", ACCEPT, "law = p(node)", "law = p(ROOT)", CHAIN, (2, False)),
    Mutant("sibling tested against p", ACCEPT, "< law[x]", "< p(node)[x]", SIBLINGS, ("two", False, False)),
    Mutant("siblings leak into the path", ACCEPT, "guesses = list(draft.children(node))",
           "guesses += draft.children(node)", ONEHOT, ("deep", False)),
    Mutant("children of the refused are tried", ACCEPT, "law = residual(law, q)",
           "law = residual(law, q); guesses += draft.children(guess)", ONEHOT, ("deep", False)),
    Mutant("one number for every test", ACCEPT, "noise.test(guess)", "noise.test(0)", CHAIN, (2, False)),
    Mutant("the guess's number used for its test", ACCEPT, "noise.test(guess)", "noise.guess(guess)",
           CHAIN, (1, False)),
    # the noise
    Mutant("guess and test share a stream", NOISE, "_TEST: Final = 2", "_TEST: Final = 1", CHI, ("temperature",)),
    Mutant("guess and last share a stream", NOISE, "_LAST: Final = 3", "_LAST: Final = 1", CHI, ("temperature",)),
    Mutant("choice ignored", NOISE, "self.position, self.choice)", "self.position, 0)", NO_REUSE),
    Mutant("half of the seed ignored", NOISE, "self.seed >> 32 & _WORD", "0", NO_REUSE),
    Mutant("Philox of nine rounds", NOISE, "range(10)", "range(9)", "test_noise.test_known_answers",
           ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8))),
    Mutant("the same noise in every round", ROUND, "s.noise.at(len(s))", "s.noise.at(0)", WHOLE, (1,)),
    # rows, laws and filters
    Mutant("greedy rows off by one", SAMPLING, "best[start + 1 + node]", "best[start + node]", EQUAL, ("perfect",)),
    Mutant("sampled rows off by one", SAMPLING, "[start + 1 + node, :]", "[start + node, :]",
           FILTERED, ("temperature",)),
    Mutant("rows of a batch packed too close", SAMPLING, "start += len(draft) + 1", "start += len(draft)",
           EQUAL, ("garbage",)),
    Mutant("residual with the untruncated p", SAMPLING, "node, :], params)",
           "node, :], params if node == ROOT else SamplingParams(params.temperature))", FILTERED, ("top-k",)),
    Mutant("temperature ignored", SAMPLING, "/ max(params.temperature, 1e-30)", "", FILTERED, ("temperature",)),
    Mutant("nucleus one short", SAMPLING, "near[min(inside, near.shape[0] - 1)]", "near[max(inside - 1, 0)]",
           FILTERED, ("top-p",)),
    Mutant("min-p of the total", SAMPLING, "params.min_p * xp.max(law)", "params.min_p", FILTERED, ("min-p",)),
    Mutant("not renormalised after filters", SAMPLING, "    return law / xp.sum(law)", "    return law",
           FILTERED, ("top-p",)),
    Mutant("draw takes the upper edge", LAW, 'side="right"', 'side="left"',
           "test_law.test_draw", (np.array, [0.25, 0.5, 0.25], 0.25, 1)),
    Mutant("draw ends on a token ruled out", LAW, "index if self.probabilities[index] > 0", "index if True",
           "test_law.test_single_precision_rounds_the_top_to_one_and_still_draws_what_there_is", (np.array,)),
    # commit and keep
    Mutant("kept one too many", ROUND, "path[: committed - 1]", "path[:committed]", EQUAL, ("overlong",)),
    Mutant("kept one too few", ROUND, "path[: committed - 1]", "path[: max(committed - 2, 0)]", EQUAL, ("perfect",)),
    Mutant("end inside a draft ignored", ROUND, "while sequence.append(tokens[committed - 1]) and committed <",
           "while (sequence.append(tokens[committed - 1]) or True) and committed <", EQUAL, ("overlong",)),
    Mutant("end of text ignored", SEQUENCE, "ended or token in self.stop_ids", "ended", STOP),
    Mutant("stop string ignored", SEQUENCE, "if ended or token in", "if token in", EQUAL, ("perfect",)),
    Mutant("stop string not told of a stop id", SEQUENCE, "ended = self.ends",
           "ended = token not in self.stop_ids and self.ends", EQUAL, ("perfect",)),
    Mutant("budget overshot", SEQUENCE, "elif self.room <= 0:", "elif self.room < 0:", EQUAL, ("perfect",)),
    Mutant("bonus dropped (exact, but slow)", ROUND, "in kept.path] + [last]", "in kept.path] or [last]",
           "test_equality.test_a_perfect_draft_saves_the_passes_it_should"),
    Mutant("refused counted as accepted", ROUND, "min(committed, len(kept.path))", "min(committed, len(draft))",
           EQUAL, ("garbage",)),
    Mutant("uncommitted counted as accepted", ROUND, "min(committed, len(kept.path))", "len(kept.path)",
           EQUAL, ("overlong",)),
    Mutant("bonus called a correction", ROUND, 'if draft.children(node) else "bonus"', 'if True else "bonus"',
           EQUAL, ("perfect",)),
    Mutant("over-long drafts not cut", ROUND, "draft = draft.first(limit)", "pass",
           "test_round.test_what_is_over_the_quote_is_cut"),
    Mutant("laws not cut with their tokens", DRAFT, "self.laws[:nodes]", "self.laws[-nodes:]",
           "test_round.test_a_chain_is_a_tree"),
    Mutant("no room left for the last token", PLANNER, "s.room - 1", "s.room", "test_round.test_fixed_planner"),
    Mutant("the reading of the prompt drafted for", PLANNER, "0 if len(s) == s.prompt_length else ", "",
           "test_round.test_fixed_planner"),
    Mutant("the reading of the prompt counted", TALLY, "                continue\n", "", "test_round.test_tally"),
    # drafters
    Mutant("law at another temperature", TOYS, "            laws.append(q)\n        return Draft.chain",
           "            laws.append(type(q)(q.probabilities**2 / sum(q.probabilities**2)))\n        return Draft.chain",
           CHAIN, (1, False)),
    Mutant("argmax guess with the whole law", TOYS, "q.draw(noise.guess(len(tokens)))", "int(q.probabilities.argmax())",
           CHAIN, (1, False)),
    Mutant("sampled guess dropped for its low q", TOYS, "            tokens.append(token)\n            l",
           "            if q[token] * 3 < 1:\n                break\n            tokens.append(token)\n            l",
           CHAIN, (1, False)),
    Mutant("later sibling with the first one's law", TOYS, "laws.append(q)\n                token",
           "laws.append(law(path))\n                token", SIBLINGS, ("two", False, False)),
]
# fmt: on


class MutantLoader(SourceFileLoader):
    """Loads a module with one substitution made in its source."""

    def __init__(self, name: str, path: str, old: str, new: str) -> None:
        super().__init__(name, path)
        self._old, self._new = old, new

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        if source.count(self._old) != 1:  # no AssertionError: that would pass for a caught fault
            raise LookupError(f"{fullname} holds {source.count(self._old)} times, not once: {self._old}")
        return compile(source.replace(self._old, self._new), self.path, "exec", dont_inherit=True)


class MutantFinder(MetaPathFinder):
    """Finds the one module that is to be changed."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = MutantLoader(fullname, spec.origin, self._mutant.old, self._mutant.new)
        return spec


@contextmanager
def fresh(mutant: Mutant | None) -> Iterator[None]:
    """Import the core and its tests anew inside, changed by ``mutant``; put the real ones back after."""
    parents = [importlib.import_module(package.split(".")[0]) for package in PACKAGES]
    real = {name: module for name, module in sys.modules.items() if name.startswith(PACKAGES)}
    finders = [MutantFinder(mutant)] if mutant else []
    try:
        for name in real:
            del sys.modules[name]
        sys.meta_path[:0] = finders
        yield
    finally:
        for finder in finders:
            sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(PACKAGES)]:
            del sys.modules[name]
        sys.modules.update(real)
        for parent in parents:
            if f"{parent.__name__}.core" in real:
                parent.core = real[f"{parent.__name__}.core"]  # type: ignore[attr-defined]


def run(check: str, arguments: tuple[Any, ...], mutant: Mutant | None) -> None:
    """Call one check among fresh modules; Hypothesis looks for a failure but does not shrink it."""
    module, _, function = check.partition(".")
    before = settings.get_current_profile_name()
    settings.register_profile("mutants", parent=settings.get_profile("ci"), phases=[Phase.generate])
    settings.load_profile("mutants")
    try:
        with fresh(mutant):
            test: Callable[..., None] = getattr(importlib.import_module(f"tests.core.{module}"), function)
            test(*arguments)
    finally:
        settings.load_profile(before)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_is_killed(mutant: Mutant) -> None:
    with pytest.raises(AssertionError):
        run(mutant.check, mutant.arguments, mutant)


CHECKS = {f"{m.check}{m.arguments}": m for m in MUTANTS}


@pytest.mark.parametrize("check", CHECKS)
def test_the_check_passes_without_the_fault(check: str) -> None:
    run(CHECKS[check].check, CHECKS[check].arguments, None)

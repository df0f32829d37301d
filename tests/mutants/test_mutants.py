"""Planted faults: each must be caught by the check that its row of the table names.

A mutant is one substitution in the source of one module. ``foredraft.core``, ``foredraft.engine`` and ``tests.core``
are then imported afresh, beside the real ones; the check is called there, and has to fail by an assertion of its own.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from inspect import signature
from types import CodeType, ModuleType
from typing import Any

import pytest
from hypothesis import Phase, settings

from .table import MUTANTS, PAGE, Mutant, page

pytestmark = pytest.mark.slow

PACKAGES = ("foredraft.core", "foredraft.engine", "tests.core")


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
    attributes = [package.rpartition(".")[::2] for package in PACKAGES]
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
        for parent, name in attributes:
            if f"{parent}.{name}" in real:
                setattr(sys.modules[parent], name, real[f"{parent}.{name}"])


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
# one of each module, cheap: that a check fails by a fault, not by being among fresh modules
FRESH = [
    "test_enumeration.test_chain(1, False, 'ratio')",
    "test_equality.test_greedy_text_is_plain_text('perfect',)",
    "test_failure.test_it_fails_alone('nan', 0, False, True)",
    "test_law.test_over_what_another_law_lists()",
    "test_noise.test_no_number_is_used_twice()",
    "test_race.test_siblings_are_the_tokens_whose_clocks_ring_first()",
    "test_round.test_tally()",
    "test_sampling.test_a_law_is_worked_out_when_asked_for_and_then_remembered()",
    "test_statistics.test_sampled_text_has_the_target_law('temperature',)",
]


def function_of(check: str) -> Callable[..., None]:
    module, _, function = check.partition(".")
    test: Callable[..., None] = getattr(importlib.import_module(f"tests.core.{module}"), function)
    return test


def ordinary(test: Callable[..., None]) -> list[tuple[Any, ...]]:
    """Return the arguments that the suite runs a test with, each in the order of the test's parameters."""
    cases: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        assert mark.name in ("parametrize", "slow"), f"does the suite run {test.__name__} in spite of {mark.name}?"
        if mark.name == "parametrize":
            names = mark.args[0].split(", ") if isinstance(mark.args[0], str) else list(mark.args[0])
            rows = [list(row) if len(names) > 1 else [row] for row in mark.args[1]]
            cases = [{**case, **dict(zip(names, row, strict=True))} for row in rows for case in cases]
    return [tuple(case[name] for name in signature(test).parameters if name in case) for case in cases]


def test_every_check_passes_without_the_fault() -> None:
    """Most are tests of the suite with just these arguments, and pass there; the others are run here."""
    own = [check for check, m in CHECKS.items() if m.arguments in ordinary(function_of(m.check))]
    assert len(own) > len(CHECKS) / 2
    for check in CHECKS.keys() - own:
        run(CHECKS[check].check, CHECKS[check].arguments, None)


@pytest.mark.parametrize("check", FRESH)
def test_a_check_passes_among_fresh_modules(check: str) -> None:
    run(CHECKS[check].check, CHECKS[check].arguments, None)


def test_fresh_modules_are_tried_of_every_module() -> None:
    assert {check.partition(".")[0] for check in FRESH} == {mutant.check.partition(".")[0] for mutant in MUTANTS}


def test_what_the_suite_runs_a_test_with() -> None:
    def check(a: int, b: str, c: int) -> None: ...

    assert ordinary(check) == [()]
    marked = pytest.mark.parametrize("c", [5])(pytest.mark.parametrize(("b", "a"), [("x", 1), ("y", 2)])(check))
    assert ordinary(marked) == [(1, "x", 5), (2, "y", 5)]
    with pytest.raises(AssertionError, match="skip"):
        ordinary(pytest.mark.skip()(marked))


def test_the_page_lists_them_all() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)

"""Test modules stand alone: what several need lies in a helper, and the path to look along is pytest's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MODULES = sorted(TESTS.rglob("*.py"))
EDIT_THE_PATH = ("cli/conftest.py",)  # takes back what a command added


def name_of(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module, package: tuple[str, ...]) -> Iterator[str]:
    """Every module that a file of a package imports, and every name that it imports from one, in full."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{name.name}" for name in node.names)


def edits_the_path(tree: ast.AST) -> bool:
    """Whether sys.path is assigned to, or a method of it is called."""

    def is_path(node: ast.AST) -> bool:
        node = node.value if isinstance(node, ast.Subscript) else node
        return isinstance(node, ast.Attribute) and node.attr == "path" and ast.unparse(node.value) == "sys"

    for node in ast.walk(tree):
        targets = [*node.targets] if isinstance(node, ast.Assign | ast.Delete) else []
        targets += [node.target] if isinstance(node, ast.AugAssign) else []
        called = node.func if isinstance(node, ast.Call) else None
        if any(is_path(target) for target in targets):
            return True
        if isinstance(called, ast.Attribute) and is_path(called.value):
            return True
    return False


def imports_of_tests(tree: ast.Module, *package: str) -> set[str]:
    """The test modules and conftests that a file imports, or imports from."""
    names = {path.stem for path in MODULES if path.stem.startswith("test_") or path.stem == "conftest"}
    found = [name.split(".") for name in imported(tree, ("tests", *package)) if name.startswith("tests.")]
    return {part for parts in found for part in parts} & names


def test_no_test_module_is_imported() -> None:
    found = {name_of(path): imports_of_tests(tree_of(path), *path.relative_to(TESTS).parent.parts) for path in MODULES}
    assert not {name: names for name, names in found.items() if names}, "what two need belongs into a helper"


@pytest.mark.parametrize(
    "line",
    ["from tests.core.test_law import X", "from tests.core import test_law", "import tests.cli.conftest",
     "from .test_helpers import X", "from . import conftest"],
)  # fmt: skip
def test_what_imports_a_test_module(line: str) -> None:
    assert imports_of_tests(ast.parse(line)) or imports_of_tests(ast.parse(line), "cli")


def test_nobody_edits_the_path_but_these() -> None:
    found = [name_of(path) for path in MODULES if edits_the_path(tree_of(path))]
    assert found == list(EDIT_THE_PATH)


@pytest.mark.parametrize(
    "line",
    ["sys.path.append('a')", "sys.path[:0] = ['a']", "sys.path += ['a']", "sys.path = []"],
)
def test_what_edits_the_path(line: str) -> None:
    assert edits_the_path(ast.parse(line))


def test_every_folder_is_a_package() -> None:
    assert [name_of(path) for path in MODULES if not (path.parent / "__init__.py").exists()] == []

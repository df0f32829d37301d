"""The size rule: what no longer fits in a head is split before it grows. Prose is free: only lines of code count.

A line of code holds a token that is neither a comment nor part of a docstring. ``__init__`` modules are free in the
count of a folder, and so are the doors and the verbs in that of imports: putting parts together is their work.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "foredraft"
MODULE, FUNCTION, FOLDER, IMPORTS = 300, 50, 15, 12
CORE, HEART = 600, 250  # all of core; accept.py and round.py together
# code lines of C++: the pass is about half, quantised blocks a quarter. A raise says its reason in its commit
NATIVE = 5000
_COMPOSING = ("api.py", "runtime/", "cli/")
_QUIET = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_CPP_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def code_lines(path: Path) -> set[int]:
    """Return the numbers of the lines that hold code."""
    lines: set[int] = set()
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type not in _QUIET:
                lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def own_imports(tree: ast.Module) -> int:
    """Return how many modules of ours a module imports, wherever it does; what only types need is free."""
    typing = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    found = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and id(node) not in typing and (node.module or "").startswith("foredraft")
    }
    return len(found - {"foredraft.errors", "foredraft._version"})


def of_module(path: Path, lines: set[int]) -> Iterator[str]:
    """Yield what is too large in one module."""
    name = path.relative_to(PACKAGE).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if len(lines) > MODULE:
        yield f"{name}: {len(lines)} code lines, over {MODULE}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = len(lines.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
            if length > FUNCTION:
                yield f"{name}:{node.lineno}: {node.name} has {length} code lines, over {FUNCTION}"
    if not name.startswith(_COMPOSING) and (count := own_imports(tree)) > IMPORTS:
        yield f"{name}: imports {count} modules of ours, over {IMPORTS}"


def faults(package: Path = PACKAGE) -> list[str]:
    """Return all that is too large, and print where the sums stand."""
    found: list[str] = []
    sizes: dict[str, int] = {}
    for path in sorted(package.rglob("*.py")):
        lines = code_lines(path)
        sizes[path.relative_to(package).as_posix()] = len(lines)
        found += of_module(path, lines)
    folders = Counter(Path(name).parent for name in sizes if Path(name).name != "__init__.py")
    found += [f"{folder}/ has {count} modules, over {FOLDER}" for folder, count in folders.items() if count > FOLDER]
    core = sum(size for name, size in sizes.items() if name.startswith("core/"))
    heart = sizes["core/accept.py"] + sizes["core/round.py"]
    sources = [
        path.read_text(encoding="utf-8") for end in ("cpp", "h") for path in (package / "native").glob(f"*.{end}")
    ]
    native = sum(1 for text in sources for line in _CPP_COMMENT.sub("", text).splitlines() if line.strip())
    for what, size, limit in (
        ("core", core, CORE),
        ("accept.py and round.py", heart, HEART),
        ("the C++", native, NATIVE),
    ):
        print(f"{what}: {size} code lines of {limit}")
        if size > limit:
            found.append(f"{what} has {size} code lines, over {limit}")
    largest = max(sizes, key=lambda name: sizes[name])
    fullest, most = folders.most_common(1)[0]
    print(f"largest module: {largest}, {sizes[largest]} of {MODULE}; fullest folder: {fullest}/, {most} of {FOLDER}")
    return found


if __name__ == "__main__":
    found = faults()
    print("\n".join(found) or "sizes hold")
    sys.exit(1 if found else 0)

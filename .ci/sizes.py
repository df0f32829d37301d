"""The size limits of the architecture: what no longer fits in a head is split before it grows."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "foredraft"
LIMITS = {"module": 300, "function": 50, "core": 900, "accept.py + round.py": 250}
# the pass is what must fit in a head; what stands beside it in the library has a budget of its own.
# It was 2,500 lines until the columns of a matrix could be of several types
LIBRARY = {"the pass": 2560, "quantised": 1240, "sampling": 330, "retrieval": 320, "heads": 320}


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def faults() -> list[str]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if lines(path) > LIMITS["module"]:
            found.append(f"{path}: {lines(path)} lines, over {LIMITS['module']}")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                # a docstring explains; it is not what makes a function too long to follow
                doc = node.body[0].end_lineno or 0 if ast.get_docstring(node) else node.body[0].lineno - 1
                length = node.end_lineno - doc
                if length > LIMITS["function"]:
                    found.append(f"{path}:{node.lineno}: {node.name} has {length} lines, over {LIMITS['function']}")
    core = PACKAGE / "core"
    total = sum(lines(path) for path in core.glob("*.py"))
    heart = lines(core / "accept.py") + lines(core / "round.py")
    if total > LIMITS["core"]:
        found.append(f"core has {total} lines, over {LIMITS['core']}")
    if heart > LIMITS["accept.py + round.py"]:
        found.append(f"accept.py and round.py have {heart} lines, over {LIMITS['accept.py + round.py']}")
    native = dict.fromkeys(LIBRARY, 0)
    for path in (PACKAGE / "native").iterdir():
        if path.suffix in (".cpp", ".h"):
            part = path.stem.split("_")[0]  # quantised_avx2 is of quantised
            native[part if part in LIBRARY else "the pass"] += lines(path)
    found += [
        f"{part} has {native[part]} lines of C++, over {limit}"
        for part, limit in LIBRARY.items()
        if native[part] > limit
    ]
    print(f"core {total} lines, accept.py + round.py {heart} lines, lines of C++: {native}")
    return found


if __name__ == "__main__":
    found = faults()
    print("\n".join(found) or "sizes hold")
    sys.exit(1 if found else 0)

"""What the documents name is there: modules, folders, scripts. The log is a dated record, and may name the past."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")} - {ROOT / "docs/log.md"})
FILE = re.compile(r"`((?:[\w.-]+/)+(?:[\w-]+\.(?:py|cpp|h|md))?)`")
MODULE = re.compile(r"python -m (benchmarks[\w.]*|tests[\w.]*)")
LINK = re.compile(r"\]\(([\w./-]+\.(?:md|png|html))\)")
BASES = (ROOT, ROOT / "src", ROOT / "src" / "foredraft", ROOT / "src" / "foredraft" / "server")


def is_there(name: str) -> bool:
    return any((base / name).exists() for base in BASES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    own = {name for name in FILE.findall(text) if is_there(name.split("/")[0]) or name.endswith(".py")}
    missing = sorted(name for name in own if not is_there(name))
    modules = [module.replace(".", "/") for module in MODULE.findall(text)]
    missing += [module for module in modules if not (is_there(f"{module}.py") or is_there(module))]
    missing += [name for name in LINK.findall(text) if not (page.parent / name).exists()]
    assert missing == []


def test_the_pages_name_something() -> None:
    assert sum(len(FILE.findall(page.read_text(encoding="utf-8"))) for page in PAGES) > 50

"""Somebody else's JSON: whatever is wrong with it is a ValueError in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foredraft.system.json_text import DEEPEST, parse_json, read_regular


@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}")])
def test_how_deep_it_may_nest(left: str, right: str) -> None:
    assert parse_json(left * (DEEPEST - 1) + "[]" + right * (DEEPEST - 1))
    for pairs in (None, list):
        with pytest.raises(ValueError, match="nested more than 200 levels deep"):
            parse_json(left * DEEPEST + "[0]" + right * DEEPEST, pairs)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(left * 100_000)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_only_regular_files_of_a_sane_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert read_regular(path, 5) == "{}"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_regular(path, 4)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_regular(path, 4)
    os.mkfifo(tmp_path / "pipe")
    for strange in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="not a regular file"):
            read_regular(strange, 4)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 4)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "absent", 4)

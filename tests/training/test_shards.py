"""Texts on disk: the same when read, never more than there is room for, nothing lost to a full disk."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from foredraft.errors import StorageError
from foredraft.training.data import shards as shards_module
from foredraft.training.data.shards import Example, Shards, bytes_a_token, narrowed, read_shard
from tests.training.making import TAPS, H, K, example

FIELDS = ("tokens", "prompt", "states", "top", "top_logits")


def same(a: Example, b: Example) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in FIELDS)


def filled(folder: Path, limit: int = 1 << 20) -> Shards:
    shards = Shards(folder, "key", limit)
    shards.sweep()
    for seed in range(2):
        for i in range(3):
            assert shards.add(example(10 * seed + i, 12 + i))
        shards.flush()
    return shards


def test_what_was_written_is_read(tmp_path: Path) -> None:
    shards = filled(tmp_path / "deep" / "states")
    again = Shards(shards.folder, "key", shards.limit)
    texts = list(again.examples())
    assert len(texts) == 6
    assert all(same(text, example(10 * (i // 3) + i % 3, 12 + i % 3)) for i, text in enumerate(texts))
    assert [path.name for path in again.paths] == ["states-00000.safetensors", "states-00001.safetensors"]
    assert again.bytes == sum(path.stat().st_size for path in again.paths) == shards.bytes
    text = texts[0]
    assert bytes_a_token(TAPS, H, K) == 4 + text.states[0].nbytes + text.top[0].nbytes + text.top_logits[0].nbytes


def test_the_limit_is_never_exceeded(tmp_path: Path) -> None:
    size = example(0, 20).nbytes
    shards = Shards(tmp_path, "key", 5 * size + 2000)
    taken = 0
    while shards.add(example(taken, 20)):
        taken += 1
        if taken % 2 == 0:
            shards.flush()
            assert shards.bytes <= shards.limit
    assert 3 <= taken <= 5
    assert shards.full
    shards.flush()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == shards.bytes <= shards.limit
    again = Shards(tmp_path, "key", shards.limit)
    assert len(list(again.examples())) == taken
    assert again.full
    assert not Shards(tmp_path, "key", 2 * shards.limit).full


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EIO, "bad disk")])
def test_a_full_disk_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    shards = filled(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def half(tensors: Any, path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        raise error

    assert shards.add(example(50))
    monkeypatch.setattr(shards_module, "save_file", half)
    with pytest.raises(
        StorageError, match=rf"cannot write under {tmp_path}: {error.strerror.lower()}; .*another folder$"
    ):
        shards.flush()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    shards.flush()
    assert same(list(shards.examples())[-1], example(50))


def test_no_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = filled(tmp_path)

    def none(folder: Path, needed: int, kind: str) -> None:
        raise StorageError(f"this needs {needed} bytes")

    monkeypatch.setattr(shards_module, "require_space", none)
    assert shards.add(example(50))
    with pytest.raises(StorageError, match=f"this needs {example(50).nbytes} bytes"):
        shards.flush()


def test_what_a_killed_process_left(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "states-00002.partial").write_bytes(b"half")
    shards = Shards(tmp_path, "key", 1 << 20)
    assert (tmp_path / "states-00002.partial").exists()  # looking harms nobody who is writing
    late = Shards(tmp_path / "late", "key", 1 << 20)
    filled(tmp_path / "late")  # by another process, before this one held the folder
    late.sweep()
    assert len(late.paths) == 2
    shards.sweep()
    assert not (tmp_path / "states-00002.partial").exists()
    assert len(list(shards.examples())) == 6


def change(path: Path, name: str, values: Any) -> None:
    save_file({**load_file(path), name: values}, path, {"key": "key"})


def test_shards_that_are_none(tmp_path: Path) -> None:
    path = filled(tmp_path).paths[0]
    whole = path.read_bytes()
    with pytest.raises(StorageError, match="holds states of another model or other layers"):
        read_shard(path, "other")
    path.write_bytes(whole[:-10])
    with pytest.raises(
        StorageError, match=rf"{re.escape(str(path))} cannot be read: [^,;]*; delete it, and it is made"
    ):
        read_shard(path, "key")
    path.write_bytes(whole)
    for name, values in (
        ("lengths", np.array([12, 13, 400])), ("prompts", np.array([6, 6, 14])), ("prompts", np.array([6, 6])),
        ("tokens", np.arange(5, dtype=np.int32)), ("states", np.zeros((3, TAPS, H), np.uint16)),
    ):  # fmt: skip
        change(path, name, values)
        with pytest.raises(StorageError, match="its arrays are not of the lengths that it names; delete it"):
            read_shard(path, "key")
        path.write_bytes(whole)
    save_file({"tokens": np.arange(3)}, path, {"key": "key"})
    with pytest.raises(StorageError, match="cannot be read"):
        read_shard(path, "key")


def test_rounding_to_bfloat16() -> None:
    import torch

    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    wanted = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(narrowed(values), wanted)

"""safetensors files, honest and lying."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from foredraft.errors import ModelNotFound, WeightsError
from foredraft.models.checkpoint import DRAFTED, INDEX, SINGLE, open_file, open_weights

GOOD = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}


def write(folder: Path, header: Any, data: bytes = bytes(24), length: int | None = None, name: str = SINGLE) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / name).write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return folder


def test_tensors_come_back_as_saved_and_uncopied(tmp_path: Path) -> None:
    saved = {
        "x": torch.randn(3, 4).to(torch.bfloat16),
        "y": torch.arange(6, dtype=torch.float64).view(2, 3),
        "scalar": torch.tensor(7.0),
        "none": torch.zeros(0, 5),
    }
    save_file(saved, tmp_path / SINGLE, metadata={"format": "pt"})
    weights = open_weights(tmp_path)
    assert set(weights.names()) == set(saved)
    assert (weights.dtype("x"), weights.shape("x"), weights.raw("x").dtype) == ("BF16", (3, 4), np.uint16)
    np.testing.assert_array_equal(weights.raw("x"), saved["x"].view(torch.uint16).numpy())
    np.testing.assert_array_equal(weights.raw("y"), saved["y"].numpy())
    assert weights.raw("scalar").shape == ()
    assert weights.raw("none").shape == (0, 5)
    first, second = weights.raw("y"), weights.raw("y")
    assert np.shares_memory(first, second)
    with pytest.raises(WeightsError, match="no tensor missing"):
        weights.raw("missing")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_vector_that_holds_no_number_is_named(dtype: torch.dtype, value: float, tmp_path: Path) -> None:
    bad, good = torch.ones(9, dtype=dtype), torch.ones(9, dtype=dtype)
    bad[5] = value
    save_file({"x.norm.weight": bad, "y": good}, tmp_path / SINGLE)
    weights = open_weights(tmp_path)
    assert weights.raw("y").shape == (9,)
    with pytest.raises(WeightsError) as caught:
        weights.raw("x.norm.weight")
    assert str(caught.value) == (
        f"{tmp_path / SINGLE}: x.norm.weight holds NaN or infinite numbers, "
        "so the file is damaged: fetch or make it again"
    )


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / SINGLE).write_bytes(b"")
    with pytest.raises(WeightsError, match="safetensors is truncated: it is empty, fetch the model again"):
        open_weights(tmp_path)


def test_writing_to_a_view_leaves_the_file_alone(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    before = (tmp_path / SINGLE).read_bytes()
    open_weights(tmp_path).raw("a")[:] = 1
    assert (tmp_path / SINGLE).read_bytes() == before


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 25]}}, "contradicts"),
        ({"a": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}}, "beyond the file"),
        ({"a": {"dtype": "F32", "shape": [-2, -3], "data_offsets": [0, 24]}}, "contradicts"),
        ({"a": {"dtype": "F32", "shape": [2.0, 3], "data_offsets": [0, 24]}}, "contradicts"),
        ({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 24]}}, "contradicts"),
        ({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [24, 0]}}, "contradicts"),
        ({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [-24, 0]}}, "contradicts"),
        ({"a": {"dtype": "F32", "shape": [2, 3]}}, "contradicts"),
        ({"a": {"dtype": "F4", "shape": [48], "data_offsets": [0, 24]}}, "F4.*bf16"),
        ({"a": 3}, "contradicts"),
        ({"a": {"dtype": ["F32"], "shape": [2, 3], "data_offsets": [0, 24]}}, "contradicts"),
        ({**GOOD, "b": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]}}, "overlaps"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]}}, "gap"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, "no tensor"),
        ([], "no table"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'{"a": 1, "a": 2}', "not JSON"),
    ],
)
def test_lying_headers(tmp_path: Path, header: Any, says: str) -> None:
    with pytest.raises(WeightsError, match=says):
        open_weights(write(tmp_path, header))


@pytest.mark.parametrize("fault", ["cut", "shard", "index"])
def test_the_way_out_is_that_of_the_thing(tmp_path: Path, fault: str) -> None:
    """What was fetched is fetched again, and what was trained here is trained again."""
    write(tmp_path, GOOD)
    path = tmp_path / SINGLE
    if fault == "cut":
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(WeightsError, match=r"model\.safetensors is truncated: 'a' ends beyond the file, copy it$"):
            open_file(path, "copy it")
        with pytest.raises(WeightsError, match=r"model\.safetensors is truncated: 'a' ends beyond the file$"):
            open_file(path, "")
    else:
        path.unlink()
        (tmp_path / INDEX).write_text("{" if fault == "index" else '{"weight_map": {"a": "b.safetensors"}}')
    for again in ("do so", None):
        with pytest.raises(WeightsError, match=rf"[:,] {again or 'fetch the model again'}$"):
            open_weights(tmp_path, again)
    (tmp_path / DRAFTED).write_text("{}")
    with pytest.raises(WeightsError, match=r"[:,] train the draft again$"):
        open_weights(tmp_path)


@pytest.mark.parametrize("length", [2**63, 10**9, 300])
def test_header_longer_than_the_file(tmp_path: Path, length: int) -> None:
    with pytest.raises(WeightsError, match="truncated"):
        open_weights(write(tmp_path, GOOD, length=length))


@given(data=st.data())
def test_any_cut_or_flipped_byte_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = write(tmp_path_factory.mktemp("w"), {**GOOD, "b": {"dtype": "I8", "shape": [1], "data_offsets": [24, 25]}})
    path = folder / SINGLE
    content = bytearray((*path.read_bytes(), 0))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 26))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        weights = open_weights(folder)
    except WeightsError:
        return
    for name in weights.names():
        assert weights.raw(name).shape == weights.shape(name)


def shards(folder: Path, places: dict[str, str]) -> Path:
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    return folder


def test_shards(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "two.safetensors")
    shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    weights = open_weights(tmp_path)
    assert (weights.raw("a").tolist(), weights.raw("b").tolist()) == ([1, 1], [0, 0, 0])
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"lacks the shard two\.safetensors"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ({"a": "../one.safetensors"}, "no shard of this folder"),
        ({"a": "/etc/one.safetensors"}, "no shard of this folder"),
        ({"a": "one.bin"}, "no shard of this folder"),
        ({"a": 3}, "no shard of this folder"),
        ({"a": "one.safetensors", "c": "one.safetensors"}, "no tensor c"),
        ({"b": "one.safetensors"}, "does not place"),
        ({}, "weight_map"),
    ],
)
def test_lying_indices(tmp_path: Path, places: dict[str, Any], says: str) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    with pytest.raises(WeightsError, match=says):
        open_weights(shards(tmp_path, places))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_refused_by_name_and_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch canary'\ntR.")
    with pytest.raises(WeightsError, match=f"{name} is pickled"):
        open_weights(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="holds no weights"):
        open_weights(tmp_path)
    with pytest.raises(ModelNotFound):
        open_weights(tmp_path / "nowhere")
    (tmp_path / SINGLE).write_bytes(b"1234")
    with pytest.raises(WeightsError, match="too short"):
        open_weights(tmp_path)
    (tmp_path / INDEX).write_text("{")
    (tmp_path / SINGLE).unlink()
    with pytest.raises(WeightsError, match="not a readable index"):
        open_weights(tmp_path)

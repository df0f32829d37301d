"""A GGUF file becomes the checkpoint it was made from, or is refused quickly and in one sentence."""

from __future__ import annotations

import errno
import json
import math
import random
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from transformers import AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from foredraft.errors import ForedraftError, ModelNotFound, OptionError, StorageError, UnsupportedModel, WeightsError
from foredraft.models.gguf import convert as gguf_convert
from foredraft.models.gguf import tensors as gguf_tensors
from foredraft.models.gguf.config import Keys
from foredraft.models.gguf.convert import convert_gguf
from foredraft.models.gguf.header import read_header, readable
from foredraft.models.gguf.rope import add_rope_scaling, llama3_divisors
from foredraft.models.gguf.stored import unrotate
from foredraft.models.spec import read_spec
from foredraft.models.weights.floats import to_bf16
from foredraft.system import files as system_files
from tests.models.gguf_files import OVERRIDES, checkpoint, letters, model_file, permuted

TRANSFORMERS_READS = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small, valid llama file."""
    folder = tmp_path_factory.mktemp("small")
    return model_file(checkpoint("llama", folder / "hf", num_hidden_layers=1), folder / "tiny.gguf", "llama")


def logits(folder: Path, **how: Any) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **how)
    ids = torch.arange(3, 43)[None]
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("architecture", OVERRIDES)
def test_every_architecture_comes_back_as_the_checkpoint_it_was(architecture: str, tmp_path: Path) -> None:
    original = checkpoint(architecture, tmp_path / "hf")
    path = model_file(original, tmp_path / "tiny.gguf", architecture)
    folder = convert_gguf(path, tmp_path / "cache", "f32")
    expected, got = load_file(original / "model.safetensors"), load_file(folder / "model.safetensors")
    if json.loads((original / "config.json").read_text())["tie_word_embeddings"]:
        expected.pop("lm_head.weight", None)
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=0, atol=2e-7 if architecture.startswith("gemma") else 0)
    # the config says the same too: to our decoder, and the same numbers come out of transformers
    configs = [json.loads((place / "config.json").read_text()) for place in (original, folder)]
    specs = [replace(read_spec(config), eos=()) for config in configs]
    assert specs[0] == specs[1]
    torch.testing.assert_close(logits(folder), logits(original), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", TRANSFORMERS_READS)
def test_weights_are_those_that_transformers_reads(architecture: str, tmp_path: Path) -> None:
    original = checkpoint(architecture, tmp_path / "hf", intermediate_size=64)
    path = model_file(original, tmp_path / "tiny.gguf", architecture, Kind.Q8_0)
    folder = convert_gguf(path, tmp_path / "cache", "f32")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # gives them the names
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    ours = load_torch(folder / "model.safetensors")
    assert ours.keys() | {"lm_head.weight"} == theirs.keys() | {"lm_head.weight"}
    for name, values in ours.items():
        torch.testing.assert_close(values, theirs[name], rtol=0, atol=2e-7)


def test_unrotate_puts_neighbours_half_a_head_apart() -> None:
    # one head of six rows: llama.cpp's order is 0 3 1 4 2 5
    rows = np.array([0, 3, 1, 4, 2, 5], dtype=np.float32)[:, None]
    assert unrotate(rows, 1)[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    many = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
    np.testing.assert_array_equal(unrotate(permuted(many, 3), 3), many)


def test_large_tensors_are_read_in_blocks_of_whole_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpoint("llama", tmp_path / "hf", intermediate_size=64)
    path = model_file(original, tmp_path / "tiny.gguf", "llama", Kind.Q8_0)
    whole = convert_gguf(path, tmp_path / "one")
    monkeypatch.setattr(gguf_tensors, "_PART_VALUES", 100)
    blocks = convert_gguf(path, tmp_path / "many")
    assert (whole / "model.safetensors").read_bytes() == (blocks / "model.safetensors").read_bytes()


def _random_bytes(kind: Kind, rows: int, columns: int) -> np.ndarray:
    """Return random bytes of a quantised type; blocks with a value that is no number are zero."""
    block, width = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(int(kind)).integers(0, 256, (rows * columns // block, width), dtype=np.uint8)
    with np.errstate(all="ignore"):
        raw[~np.isfinite(gguf.quants.dequantize(raw, kind)).all(1)] = 0
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("name", readable())
def test_every_type_is_dequantised_as_the_library_does(name: str, tmp_path: Path) -> None:
    kind = Kind[name]
    original = checkpoint("qwen2", tmp_path / "hf", intermediate_size=256, num_hidden_layers=1)
    writer_values = np.random.default_rng(1).standard_normal((32, 256)).astype(np.float32)
    stored = {"F32": np.float32, "F16": np.float16}.get(name)
    data = writer_values.astype(stored) if stored else _random_bytes(kind, 32, 256)
    path = tmp_path / "tiny.gguf"
    model_file(original, path, "qwen2")
    _replace_tensor(path, "blk.0.ffn_down.weight", data, kind)
    expected = gguf.quants.dequantize(data, kind).astype(np.float32)
    assert np.isfinite(expected).all()
    weights = load_file(convert_gguf(path, tmp_path / "cache", "f32") / "model.safetensors")
    np.testing.assert_array_equal(weights["model.layers.0.mlp.down_proj.weight"], expected)
    half = load_torch(convert_gguf(path, tmp_path / "cache", "bf16") / "model.safetensors")
    wanted = torch.from_numpy(expected).to(torch.bfloat16)
    assert torch.equal(half["model.layers.0.mlp.down_proj.weight"], wanted)


def _replace_tensor(path: Path, name: str, data: np.ndarray, kind: Kind) -> None:
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(path.with_suffix(".new"), "qwen2")
    for key, found in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            sub = found.types[-1] if len(found.types) > 1 else None
            writer.add_key_value(key, found.contents(), found.types[0], sub_type=sub)
    for tensor in reader.tensors:
        mine = tensor.name == name
        writer.add_tensor(tensor.name, data if mine else tensor.data, raw_dtype=kind if mine else tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".new").replace(path)


def test_a_type_that_cannot_be_read_is_named(tmp_path: Path, small: Path) -> None:
    data = bytearray(small.read_bytes())
    at = data.find(b"blk.0.ffn_down.weight") + len(b"blk.0.ffn_down.weight") + 4 + 16
    data[at : at + 4] = struct.pack("<I", Kind.Q8_K)
    path = tmp_path / "odd.gguf"
    path.write_bytes(data)
    with pytest.raises(UnsupportedModel, match="Q8_K"):
        read_header(path)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64))
def test_bf16_rounds_as_torch_does(bits: list[int]) -> None:
    values = np.array(bits, dtype=np.uint32).view(np.float32)
    theirs = torch.from_numpy(values.copy()).to(torch.bfloat16)
    ours = torch.from_numpy(to_bf16(values).view(np.int16).copy()).view(torch.bfloat16)
    nan = torch.isnan(theirs)
    assert torch.equal(torch.isnan(ours), nan)
    assert torch.equal(ours.view(torch.int16)[~nan], theirs.view(torch.int16)[~nan])


def test_other_architectures_and_mixtures_are_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "mamba")
    letters(40).add_to(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="mamba"):
        convert_gguf(tmp_path / "a.gguf", tmp_path / "cache")
    mixture = model_file(
        checkpoint("llama", tmp_path / "hf"), tmp_path / "b.gguf", "llama", keys=[("llama.expert_count", 8)]
    )
    with pytest.raises(UnsupportedModel, match="experts"):
        convert_gguf(mixture, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*"))


@pytest.mark.parametrize(
    ("scaling", "theta", "head_dim"),
    [
        ({"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original": 8192}, 500000.0, 64),
        ({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original": 8192}, 500000.0, 128),
        ({"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 8.0, "original": 4096}, 10000.0, 64),
        ({"factor": 16.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0, "original": 4096}, 1000000.0, 128),
    ],
)
def test_the_llama3_rule_is_found_from_its_factors(
    scaling: dict[str, Any], theta: float, head_dim: int, tmp_path: Path
) -> None:
    factor, low, high, original = scaling.values()
    divisors = np.array(_reference_divisors(theta, head_dim, factor, low, high, original), dtype=np.float32)
    path = tmp_path / "rope.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config: dict[str, Any] = {"head_dim": head_dim, "rope_theta": theta, "max_position_embeddings": 131072}
    add_rope_scaling(read_header(path), config)
    found = config["rope_scaling"]
    assert found["rope_type"] == "llama3"
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    again = llama3_divisors(
        frequencies,
        found["factor"],
        found["low_freq_factor"],
        found["high_freq_factor"],
        found["original_max_position_embeddings"],
    )
    np.testing.assert_allclose(again, divisors, rtol=2e-5)
    if (low, high, original) == (1.0, 4.0, 8192):
        assert found == {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }


def _reference_divisors(
    theta: float, head_dim: int, factor: float, low: float, high: float, original: int
) -> list[float]:
    values = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        if wavelength < original / high:
            values.append(1.0)
        elif wavelength > original / low:
            values.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            values.append(1 / ((1 - smooth) / factor + smooth))
    return values


def test_factors_of_no_known_rule_are_refused(tmp_path: Path, small: Path) -> None:
    odd = np.array([1, 3, 2, 5], dtype=np.float32)
    path = model_file(
        checkpoint("llama", tmp_path / "hf"), tmp_path / "a.gguf", "llama", extra=[("rope_freqs.weight", odd)]
    )
    with pytest.raises(UnsupportedModel, match="no known rule"):
        convert_gguf(path, tmp_path / "cache")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([("type", "linear"), ("factor", 4.0)], {"rope_type": "linear", "factor": 4.0}),
        (
            [("type", "yarn"), ("factor", 4.0), ("original_context_length", 64)],
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
        ([("type", "none")], None),
    ],
)
def test_rope_scaling_keys(keys: list[tuple[str, Any]], expected: Any, tmp_path: Path) -> None:
    given_keys = [(f"llama.rope.scaling.{key}", value) for key, value in keys]
    scaling = {"rope_theta": 10000.0, **expected} if expected else None
    more = {"rope_parameters": scaling} if scaling else {}
    original = checkpoint("llama", tmp_path / "hf", **more)
    path = model_file(original, tmp_path / "a.gguf", "llama", keys=given_keys)
    folder = convert_gguf(path, tmp_path / "cache", "f32")
    assert json.loads((folder / "config.json").read_text()).get("rope_scaling") == expected
    torch.testing.assert_close(logits(folder), logits(original), rtol=1e-4, atol=1e-4)


def test_longrope_comes_back_whole(tmp_path: Path) -> None:
    short, long = [1.0, 1.1, 1.2, 1.3], [1.0, 2.0, 4.0, 8.0]
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long}
    original = checkpoint(
        "phi3",
        tmp_path / "hf",
        rope_parameters={**rope, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 16},
        original_max_position_embeddings=16,
    )
    factors = [("rope_factors_long.weight", np.float32(long)), ("rope_factors_short.weight", np.float32(short))]
    keys = [("phi3.rope.scaling.original_context_length", 16)]
    path = model_file(original, tmp_path / "a.gguf", "phi3", extra=factors, keys=keys)
    torch.testing.assert_close(
        logits(convert_gguf(path, tmp_path / "cache", "f32")), logits(original), rtol=1e-4, atol=1e-4
    )


# what the disk and other processes can do


def test_the_second_call_converts_nothing_and_the_key_knows_the_file(small: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    first = convert_gguf(small, tmp_path, progress=lambda *step: seen.append(step))
    assert seen
    assert (
        seen[-1][0]
        == seen[-1][1]
        == sum(values.numel() * 2 for values in load_torch(first / "model.safetensors").values())
    )
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert convert_gguf(small, tmp_path) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    other = shutil.copy(small, tmp_path / "tiny.gguf")
    data = bytearray(Path(other).read_bytes())
    data[-1] ^= 1
    Path(other).write_bytes(data)
    assert convert_gguf(Path(other), tmp_path) != first
    assert convert_gguf(small, tmp_path, "f32") != first


def test_a_full_disk_leaves_nothing(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for place, name in ((gguf_convert, "_write_weights"), (gguf_convert, "_write_json"), (system_files, "sync")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, full)
            with pytest.raises(StorageError, match="no space left on device; free some space"):
                convert_gguf(small, tmp_path / "cache")
        assert list((tmp_path / "cache").iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 67_108_000))
        cache = re.escape(str(tmp_path / "cache"))
        words = rf"this needs 68 MB under {cache}, 67 MB of which stay free, and 67 MB are free; free some space"
        with pytest.raises(StorageError, match=words):
            convert_gguf(small, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_made_is_a_sentence(small: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="another cache folder"):
        convert_gguf(small, tmp_path / "file" / "cache")


def test_ctrl_c_leaves_nothing(small: Path, tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_gguf(small, tmp_path / "cache", progress=interrupt)
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_a_living_ones_is_not(small: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    code = (
        "import sys, os, pathlib\n"
        "from foredraft.system.files import scratch\n"
        "with scratch(pathlib.Path(sys.argv[1])) as folder:\n"
        "    (folder / 'model.safetensors').write_bytes(b'half')\n"
        "    os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(cache)], check=False).returncode == 9
    [left] = cache.iterdir()
    with system_files.scratch(cache) as living:
        assert not left.exists()
        convert_gguf(small, cache)
        assert living.exists()
    assert len(list(cache.iterdir())) == 1


def test_the_faster_of_two_processes_wins(small: Path, tmp_path: Path) -> None:
    first: list[Path] = []

    def meanwhile(*_: object) -> None:
        if not first:
            first.append(tmp_path)
            first[0] = convert_gguf(small, tmp_path)

    assert convert_gguf(small, tmp_path, progress=meanwhile) == first[0]
    assert list(tmp_path.iterdir()) == [first[0]]


# files that lie


def test_no_file_an_empty_file_and_other_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        convert_gguf(tmp_path / "none.gguf", tmp_path)
    (tmp_path / "bad.gguf").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"bad\.gguf is empty: fetch or make the file again"):
        convert_gguf(tmp_path / "bad.gguf", tmp_path)
    for content in (b"GG", b"GGUF", b"PK\x03\x04" * 10, b"GGUF" + struct.pack("<IQQ", 1, 0, 0)):
        (tmp_path / "bad.gguf").write_bytes(content)
        with pytest.raises(WeightsError):
            convert_gguf(tmp_path / "bad.gguf", tmp_path)
    with pytest.raises(OptionError):
        convert_gguf(tmp_path / "bad.gguf", tmp_path, "f16")  # type: ignore[arg-type]


HUGE = 1 << 62
HEAD = struct.pack("<IQQ", 3, 0, 1)
KEY = struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<IQQ", 3, HUGE, 0),
        struct.pack("<IQQ", 3, 0, HUGE),
        struct.pack("<IQQ", 3, 60000, 60000) + b"\0" * 4000,
        HEAD + struct.pack("<Q", HUGE),
        HEAD + KEY + struct.pack("<IQ", 8, HUGE),
        HEAD + KEY + struct.pack("<IIQ", 9, 8, HUGE),
        HEAD + KEY + struct.pack("<IIQ", 9, 0, HUGE),
        HEAD + KEY + struct.pack("<IIQ", 9, 9, 1),
        HEAD + KEY + struct.pack("<II", 77, 0),
        HEAD + KEY + struct.pack("<IQ", 8, 2) + b"\xff\xff",
    ],
)
def test_huge_counts_and_lengths_are_refused_without_being_believed(body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "liar.gguf"
    path.write_bytes(b"GGUF" + body)
    with pytest.raises(WeightsError):
        read_header(path)


def test_dimensions_offsets_and_doubles(tmp_path: Path) -> None:
    architecture = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 5) + b"llama"

    def file(*tensors: bytes, data: int = 256) -> Path:
        path = tmp_path / "liar.gguf"
        head = struct.pack("<IQQ", 3, len(tensors), 1) + architecture + b"".join(tensors)
        path.write_bytes(b"GGUF" + head + b"\0" * (-(len(head) + 4) % 32) + b"\0" * data)
        return path

    def tensor(name: bytes, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
        shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        return struct.pack("<Q", len(name)) + name + shape + struct.pack("<IQ", kind, offset)

    assert read_header(file(tensor(b"a", [8, 4]))).tensors["a"].shape == (4, 8)
    for offset in (4, 16, 33):
        with pytest.raises(WeightsError, match=f"the data of 'a' begin at {offset}, which is no multiple of 32"):
            read_header(file(tensor(b"a", [8, 4], offset=offset)))
    for tensors in (
        [tensor(b"a", [1 << 40, 1 << 40])],
        [tensor(b"a", [0, 4])],
        [tensor(b"a", [])],
        [tensor(b"a", [1] * 5)],
        [tensor(b"a", [8, 4], offset=1 << 60)],
        [tensor(b"a", [8, 4], offset=224)],
        [tensor(b"a", [8, 4], kind=999)],
        [tensor(b"a", [33, 4], kind=int(Kind.Q4_0))],
        [tensor(b"a", [8, 4]), tensor(b"a", [8, 4], offset=128)],
        [tensor(f"t{i}".encode(), [8, 8]) for i in range(40)],
    ):
        with pytest.raises(WeightsError):
            read_header(file(*tensors))


def test_metadata_of_the_wrong_kind(tmp_path: Path) -> None:
    original = checkpoint("llama", tmp_path / "hf")
    good = model_file(original, tmp_path / "a.gguf", "llama").read_bytes()
    for key in (b"llama.block_count", b"llama.embedding_length", b"llama.attention.head_count"):
        at = good.find(key) + len(key) + 4
        for value in (0, 1 << 31, 0xFFFFFFFF, 5):
            path = tmp_path / "b.gguf"
            path.write_bytes(good[:at] + struct.pack("<I", value) + good[at + 4 :])
            with pytest.raises((WeightsError, UnsupportedModel)):
                convert_gguf(path, tmp_path / "cache")
    header = read_header(tmp_path / "a.gguf")
    assert Keys(header).whole("block_count") == 3
    with pytest.raises(WeightsError, match=r"rope\.nothing"):
        Keys(header).real("rope.nothing")


@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_are_fine_or_refused_in_one_sentence(small: Path, tmp_path: Path, seed: int) -> None:
    good = small.read_bytes()
    header_end = good.find(b"output_norm.weight") + 200
    rng = random.Random(seed)
    path = tmp_path / "damaged.gguf"
    outcomes = {True: 0, False: 0}
    for _ in range(80):
        data = bytearray(good)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice((0, 1, 1, 2, 8))):
            if data:
                place = rng.randrange(min(header_end, len(data)) if rng.random() < 0.9 else len(data))
                data[place] = rng.randrange(256)
        path.write_bytes(data)
        try:
            shutil.rmtree(convert_gguf(path, tmp_path / "cache"))
            outcomes[True] += 1
        except ForedraftError as error:
            outcomes[False] += "\n" not in str(error)
    assert sum(outcomes.values()) == 80
    assert min(outcomes.values()) > 10
    assert list((tmp_path / "cache").iterdir()) == []

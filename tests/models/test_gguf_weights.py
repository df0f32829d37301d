"""A GGUF in place looks like the checkpoint it would be converted to; and what can happen to the file behind a link."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from foredraft.errors import StorageError, UnsupportedModel, WeightsError
from foredraft.models.checkpoint import open_weights
from foredraft.models.folder import ModelFolder
from foredraft.models.gguf import weights as gguf_weights
from foredraft.models.gguf.convert import convert_gguf
from foredraft.models.gguf.link import LINK, read_link
from foredraft.models.gguf.stored import Stored
from foredraft.models.gguf.weights import GgufWeights, open_gguf
from foredraft.models.heads.layer import head_rows
from foredraft.models.identity import weights_digest
from foredraft.models.native.model import NativeModel
from foredraft.models.spec import read_spec
from foredraft.models.weights.base import held_weights
from foredraft.models.weights.floats import to_bf16
from tests.models.gguf_files import checkpoint, model_file
from tests.models.quantised_files import BLOCKS, quantised, quantised_file, random_blocks

ARCHITECTURES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"query_pre_attn_scalar": 16},
    "phi3": {},
    "olmo2": {},
}
OTHERS = ("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ2_XXS", "IQ1_S", "TQ2_0", "MXFP4", "BF16", "F16", "F32")


def spec_of(folder: Path) -> Any:
    return read_spec(json.loads((folder / "config.json").read_text()))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with a type to each kind of matrix."""
    leaves = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "token_embd")
    kinds = {leaf: Kind[name] for leaf, name in zip(leaves, BLOCKS, strict=True)}
    return quantised_file(tmp_path_factory.mktemp("mixed") / "mixed.gguf", kinds=kinds)


def opened(path: Path, cache: Path) -> GgufWeights:
    weights = open_weights(convert_gguf(path, cache, "file"))
    assert isinstance(weights, GgufWeights)
    return weights


def alike(path: Path, cache: Path) -> None:
    """Assert that a file in place is what the converted folder is; norms are wider there."""
    ours, theirs = opened(path, cache), open_weights(convert_gguf(path, cache, "bf16"))
    assert ours.names() == theirs.names()
    for name in ours.names():
        assert ours.shape(name) == theirs.shape(name)
        raw = ours.raw(name)
        assert raw.shape == ours.shape(name)
        matrix = len(raw.shape) > 1
        assert ours.dtype(name) == ("BF16" if matrix else "F32")
        np.testing.assert_array_equal(raw if matrix else to_bf16(raw), theirs.raw(name))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_names_order_and_values_are_the_converted_ones(architecture: str, tmp_path: Path) -> None:
    wide = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    original = checkpoint(architecture, tmp_path / "hf", **wide)
    alike(model_file(original, tmp_path / "tiny.gguf", architecture, Kind.Q8_0), tmp_path / "cache")


@pytest.mark.parametrize("name", [*BLOCKS, *OTHERS])
def test_every_type_is_the_converted_one_and_its_blocks_are_the_rows(name: str, tmp_path: Path) -> None:
    path = quantised_file(tmp_path / "tiny.gguf", Kind[name], layers=1)
    alike(path, tmp_path / "cache")
    weights = opened(path, tmp_path / "cache")
    for tensor in weights.names():
        if tensor.endswith("proj.weight"):
            assert weights.quant_type(tensor) == name
            rows = weights.blocks(tensor)
            assert rows.dtype == np.uint8
            assert rows.shape[0] == weights.shape(tensor)[0]
            assert rows.nbytes == weights.stored_bytes(tensor)
            plain = {"F32": np.float32, "F16": np.float16}.get(name)
            values = gguf.quants.dequantize(rows if plain is None else rows.view(plain), Kind[name])
            np.testing.assert_array_equal(to_bf16(np.float32(values)), weights.raw(tensor))


def test_part_of_a_tensor_is_read_alone(mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = opened(mixed, tmp_path)
    whole = {name: weights.raw(name) for name in weights.names()}
    seen: list[int] = []
    real = gguf_weights.values_of

    def counting(*given: Any) -> Any:
        values = real(*given)
        seen.append(values.size)
        return values

    monkeypatch.setattr(gguf_weights, "values_of", counting)
    ids = np.array([5, 3, 3, 90])
    for name, raw in whole.items():
        flat = raw.reshape(-1)
        for most in (1, 7, 64) if raw.ndim == 2 else (1, 7, 64, 10**9):
            if raw.ndim == 2 and most == 64:
                seen.clear()
            sample = weights.sample(name, most)
            np.testing.assert_array_equal(sample, flat[:: max(1, -(-len(flat) // most))])
            if raw.ndim == 2 and most == 64:
                assert sum(seen) <= 64 * 256
        if raw.ndim == 2:
            seen.clear()
            np.testing.assert_array_equal(weights.rows(name, ids), raw[ids])
            assert sum(seen) == len(ids) * raw.shape[1]


def test_heads_read_only_the_rows_of_their_vocabulary(mixed: Path, tmp_path: Path) -> None:
    weights = opened(mixed, tmp_path)
    ids = np.array([4, 8, 15], np.int32)
    asked: list[str] = []
    weights.raw = asked.append  # type: ignore[method-assign,assignment]
    rows, dtype = head_rows(held_weights(Path(), {"vocabulary": ids}), weights, spec_of(weights.folder))
    assert (asked, dtype) == ([], "BF16")
    del weights.raw
    np.testing.assert_array_equal(rows, weights.raw("model.embed_tokens.weight")[ids])


def test_the_digest_is_that_of_the_widened_weights(mixed: Path, tmp_path: Path) -> None:
    folders = [convert_gguf(mixed, tmp_path, dtype) for dtype in ("file", "bf16", "f32")]  # type: ignore[arg-type]
    assert len({weights_digest(open_weights(folder), spec_of(folder)) for folder in folders}) == 1
    other = quantised_file(tmp_path / "other.gguf", Kind.Q4_0)
    folder = convert_gguf(other, tmp_path, "file")
    assert weights_digest(open_weights(folder), spec_of(folder)) != weights_digest(
        open_weights(folders[0]), spec_of(folders[0])
    )


def test_a_folder_that_links_holds_no_weights_and_reads_as_bf16(mixed: Path, tmp_path: Path) -> None:
    before = sorted(mixed.parent.iterdir())
    folder = convert_gguf(mixed, tmp_path, "file")
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json", "foredraft.json", "generation_config.json", LINK, "tokenizer.json", "tokenizer_config.json"
    ]  # fmt: skip
    assert sorted(mixed.parent.iterdir()) == before  # nothing is written beside the file
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert ModelFolder(folder).weight_bytes == mixed.stat().st_size
    link = read_link(folder)
    assert link is not None
    assert link.file == str(mixed.resolve())
    assert convert_gguf(mixed, tmp_path, "file") == folder
    assert folder != convert_gguf(mixed, tmp_path, "bf16")


def test_the_identity_covers_the_file(mixed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(mixed, tmp_path / "a.gguf"))
    folder = convert_gguf(path, tmp_path / "cache", "file")
    first = ModelFolder(folder).identity
    assert ModelFolder(folder).known_identity == first
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    other = convert_gguf(path, tmp_path / "cache", "file")
    assert (other / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert ModelFolder(other).identity != first
    path.unlink()
    assert ModelFolder(folder).known_identity == first


def test_two_files_that_look_alike_are_two_models(mixed: Path, tmp_path: Path) -> None:
    """A name, a size and samples say nothing: one byte in the middle is another model, in blocks and widened."""
    data = bytearray(mixed.read_bytes())
    data[len(data) // 2] ^= 1
    paths = [tmp_path / name / "a.gguf" for name in ("one", "two")]
    for path, content in zip(paths, (mixed.read_bytes(), bytes(data)), strict=True):
        path.parent.mkdir()
        path.write_bytes(content)
        os.utime(path, ns=(10**18, 10**18))
    for dtype in ("file", "bf16", "f32"):
        one, two = (
            ModelFolder(convert_gguf(path, tmp_path / path.parent.name / "cache", dtype)).identity for path in paths
        )
        assert one != two
    cache = tmp_path / "cache"  # the same name, size, time and ends: which of the two is asked for is looked at
    seen = [ModelFolder(convert_gguf(path, cache, "file")).identity for path in (*paths, *paths)]
    assert seen[0] != seen[1]
    assert seen[:2] == seen[2:]


def test_a_file_that_was_touched_is_the_same_one(mixed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(mixed, tmp_path / "a.gguf"))
    folder = convert_gguf(path, tmp_path / "cache", "file")
    before = ModelFolder(folder).identity
    os.utime(path, ns=(10**18, 10**18))
    assert ModelFolder(folder).identity == before
    link = read_link(folder)
    assert link is not None
    assert link.modified == 10**18  # so that the next start need not read it all
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=r"is not the file that .* was made for"):
        _ = ModelFolder(folder).identity


# what happens to a file behind a link


def test_a_file_that_moved_is_found_where_it_is_named(mixed: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    first = Path(shutil.copy2(mixed, tmp_path / "one" / "a.gguf"))
    folder = convert_gguf(first, tmp_path / "cache", "file")
    (tmp_path / "two").mkdir()
    second = first.rename(tmp_path / "two" / "a.gguf")
    with pytest.raises(WeightsError, match=r"one/a\.gguf is gone.*name the \.gguf file itself"):
        open_weights(folder)
    assert convert_gguf(second, tmp_path / "cache", "file") == folder
    assert opened(second, tmp_path / "cache").path == second


def test_a_link_that_cannot_be_set_anew_still_serves(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(shutil.copy2(mixed, tmp_path / "a.gguf"))
    folder = convert_gguf(first, tmp_path / "cache", "file")
    (tmp_path / "two").mkdir()
    second = Path(shutil.copy2(first, tmp_path / "two" / "a.gguf"))

    def refuse(*_: object) -> None:
        raise StorageError("no")

    monkeypatch.setattr("foredraft.models.gguf.convert.write_link", refuse)
    assert convert_gguf(second, tmp_path / "cache", "file") == folder
    first.unlink()
    with pytest.raises(StorageError, match="no"):
        convert_gguf(second, tmp_path / "cache", "file")


def test_a_file_that_was_shortened_or_changed_is_a_sentence(mixed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(mixed, tmp_path / "a.gguf"))
    folder = convert_gguf(path, tmp_path / "cache", "file")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    for look in (open_weights, lambda folder: ModelFolder(folder).identity):
        with pytest.raises(WeightsError, match=r"a\.gguf has \d+ bytes where it had \d+, so it was cut or replaced"):
            look(folder)
    with pytest.raises(WeightsError, match="lie beyond its end"):
        convert_gguf(path, tmp_path / "cache", "file")
    path.write_bytes(whole + b"x")
    with pytest.raises(WeightsError, match="so it was cut or replaced"):
        open_weights(folder)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(WeightsError, match=r"is not the file that .* was made for"):
        open_weights(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(WeightsError):
        open_weights(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda link: "",
        lambda link: "[]",
        lambda link: json.dumps({**link, "format": 9}),
        lambda link: json.dumps({**link, "file": 3}),
        lambda link: json.dumps({**link, "bytes": "many"}),
        lambda link: json.dumps({**link, "more": 1}),
        lambda link: json.dumps({**link, "tensors": 5}),
        lambda link: json.dumps({**link, "tensors": [{}]}),
        *(
            lambda link, field=field, value=value: json.dumps(
                {**link, "tensors": [{**link["tensors"][1], field: value}]}
            )
            for field, value in (
                ("kind", "Q9"), ("kind", "Q6_K"), ("start", 10**9), ("start", -1), ("size", 1), ("size", 10**12),
                ("shape", []), ("shape", [0, 3]), ("shape", 3), ("shape", [2.5, 256]), ("heads", 7), ("heads", "x"),
            )
        ),
    ],
)  # fmt: skip
def test_a_damaged_link_is_a_sentence_and_made_anew(damage: Any, mixed: Path, tmp_path: Path) -> None:
    folder = convert_gguf(mixed, tmp_path, "file")
    whole = (folder / LINK).read_text()
    (folder / LINK).write_text(damage(json.loads(whole)))
    with pytest.raises(WeightsError, match="damaged"):
        open_weights(folder)
    try:
        read_link(folder)
    except WeightsError:
        assert convert_gguf(mixed, tmp_path, "file") == folder
        assert (folder / LINK).read_text() == whole


def test_a_folder_without_a_link_links_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="links to no GGUF"):
        open_gguf(tmp_path)


def test_a_missing_tensor_is_named(mixed: Path, tmp_path: Path) -> None:
    weights = opened(mixed, tmp_path)
    for ask in (weights.raw, weights.blocks, weights.quant_type, weights.stored_bytes):
        with pytest.raises(WeightsError, match="has no tensor nothing"):
            ask("nothing")


# files that cannot be


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1", "Q6_K", "IQ4_NL", "TQ2_0"])
@pytest.mark.parametrize("bits", [0x7E00, 0x7C00, 0xFC00])
def test_a_scale_that_is_no_number_is_named(name: str, bits: int, tmp_path: Path) -> None:
    kind = Kind[name]
    raw = quantised(kind, 256, 512, seed=3).copy()
    place = {"Q6_K": 208, "TQ2_0": 64}.get(name, 0)
    raw[17, place : place + 2] = [bits & 255, bits >> 8]
    path = quantised_file(tmp_path / "a.gguf", kind, replaced={"blk.1.ffn_down.weight": (raw, kind)})
    weights = opened(path, tmp_path / "cache")
    for read in (
        lambda: weights.raw("model.layers.1.mlp.down_proj.weight"),
        lambda: convert_gguf(path, tmp_path / "cache", "bf16"),
    ):
        with pytest.raises(WeightsError, match=r"a\.gguf: blk\.1\.ffn_down\.weight has a block whose") as caught:
            read()
        assert str(caught.value).endswith("so the file is damaged: fetch or make it again")


@pytest.mark.parametrize("name", ["blk.1.attn_norm.weight", "output_norm.weight"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_vector_that_holds_no_number_is_named(name: str, value: float, tmp_path: Path) -> None:
    vector = np.ones(256, np.float32)
    vector[200] = value
    path = quantised_file(tmp_path / "a.gguf", replaced={name: (vector, Kind.F32)})
    weights = opened(path, tmp_path / "cache")
    spec = spec_of(weights.folder)
    for read in (
        lambda: NativeModel(spec, weights, "file", threads=1),
        lambda: NativeModel(spec, weights, "bf16", threads=1),
        lambda: convert_gguf(path, tmp_path / "cache", "f32"),
    ):
        with pytest.raises(WeightsError, match=rf"a\.gguf: {name} holds NaN or infinite numbers, so the file is"):
            read()


@pytest.mark.parametrize(
    ("name", "kept", "shape"),
    [
        ("blk.1.attn_q.weight", 192, [256, 256]),
        ("blk.0.ffn_down.weight", 128, [256, 512]),
        ("blk.0.ffn_norm.weight", 128, [256]),
    ],
)
def test_a_shape_that_contradicts_the_metadata_is_named(name: str, kept: int, shape: list[int], tmp_path: Path) -> None:
    found = [kept, *shape[1:]]
    data = np.ones(found, np.float32)
    path = quantised_file(tmp_path / "a.gguf", replaced={name: (data, Kind.F32)})
    with pytest.raises(WeightsError) as caught:
        convert_gguf(path, tmp_path / "cache", "file")
    assert str(caught.value) == (
        f"{path}: {name} has the shape {found} where the file's metadata imply {shape}: fetch or make the file again"
    )


def test_a_split_file_says_how_to_join_it(tmp_path: Path) -> None:
    path = quantised_file(tmp_path / "a.gguf", keys={"split.count": 3, "split.no": 1})
    with pytest.raises(UnsupportedModel, match="part 2 of 3 of a split model: join them with llama-gguf-split --merge"):
        convert_gguf(path, tmp_path / "cache", "file")
    whole = quantised_file(tmp_path / "b.gguf", keys={"split.count": 1, "split.no": 0})
    assert convert_gguf(whole, tmp_path / "cache", "file").is_dir()
    rest = gguf.GGUFWriter(tmp_path / "c.gguf", "llama")  # later parts say nothing else
    rest.kv_data[0].clear()
    rest.add_uint16("split.no", 2)
    rest.add_uint16("split.count", 3)
    rest.write_header_to_file()
    rest.write_kv_data_to_file()
    rest.write_tensors_to_file()
    rest.close()
    with pytest.raises(UnsupportedModel, match="part 3 of 3"):
        convert_gguf(tmp_path / "c.gguf", tmp_path / "cache", "file")


def test_types_and_rows_that_cannot_be_are_named(tmp_path: Path) -> None:
    path = quantised_file(tmp_path / "a.gguf", Kind.Q4_0, layers=1)
    data = bytearray(path.read_bytes())
    at = data.find(b"blk.0.ffn_down.weight") + len(b"blk.0.ffn_down.weight") + 4
    (tmp_path / "b.gguf").write_bytes(data[: at + 16] + (99).to_bytes(4, "little") + data[at + 20 :])
    with pytest.raises(WeightsError, match=r"'blk\.0\.ffn_down\.weight' is of an unknown type, number 99"):
        convert_gguf(tmp_path / "b.gguf", tmp_path / "cache", "file")
    (tmp_path / "c.gguf").write_bytes(data[:at] + (500).to_bytes(8, "little") + data[at + 8 :])
    with pytest.raises(WeightsError, match=r"rows of 500 values in .* are no whole blocks of Q4_0"):
        convert_gguf(tmp_path / "c.gguf", tmp_path / "cache", "file")
    (tmp_path / "d.gguf").write_bytes(data[:-64])
    with pytest.raises(WeightsError, match="lie beyond its end"):
        convert_gguf(tmp_path / "d.gguf", tmp_path / "cache", "file")
    assert list((tmp_path / "cache").glob("*")) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_may_not_be_read_is_a_sentence(tmp_path: Path) -> None:
    path = quantised_file(tmp_path / "a.gguf")
    folder = convert_gguf(path, tmp_path / "cache", "file")
    path.chmod(0)
    with pytest.raises(WeightsError, match="cannot be read"):
        open_weights(folder)


def test_a_folder_that_may_only_be_read_serves(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    path = quantised_file(tmp_path / "disk" / "a.gguf")
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        alike(path, tmp_path / "cache")
    finally:
        path.parent.chmod(0o755)


def test_random_blocks_are_what_they_say() -> None:
    for name in ("Q4_K", "Q5_K", "Q6_K", "IQ4_NL"):
        values = gguf.quants.dequantize(random_blocks(Kind[name], 64, 1024), Kind[name])
        assert abs(float(values.mean())) < 0.01
        assert 0.05 < float(values.std()) < 0.08


def test_a_link_has_the_names_that_it_has_always_had(mixed: Path, tmp_path: Path) -> None:
    """Folders that an earlier version made must open, and those of this one must open there."""
    folder = convert_gguf(mixed, tmp_path / "cache", "file")
    written = json.loads((folder / LINK).read_text())
    assert set(written) == {"format", "file", "bytes", "modified", "digest", "identity", "tensors"}
    names = {"name", "kind", "shape", "start", "size", "heads", "offset", "called"}
    assert all(set(tensor) == names for tensor in written["tensors"])
    one = Stored.from_fields(written["tensors"][0])
    assert (one.quant_type, one.to_fields()["kind"]) == (written["tensors"][0]["kind"],) * 2

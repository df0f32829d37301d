"""The packed form stays as it is, to the byte: users keep it on disk, and a pass reads it without a look.

The digests were recorded at revision 7a48fe2. One that differs means that what lies in users' caches is of another
form: raise VERSION in ``native.library`` and FD_VERSION in ``native/api.h`` with it, and record them anew.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from foredraft.models.checkpoint import open_weights
from foredraft.models.gguf.convert import convert_gguf
from foredraft.models.native.model import NativeModel
from foredraft.models.native.packing import FILE, HEADER
from foredraft.models.spec import DecoderSpec, read_spec
from foredraft.models.weights.base import Weights, held_weights
from tests.models.checkpoints import FAMILIES, make_checkpoint
from tests.models.gguf_files import OVERRIDES, model_file
from tests.models.quantised_files import quantised_file

BODIES: Mapping[str, str] = MappingProxyType(
    {
        "llama bf16": "98d22637cab43b8146039f0bcd98ce4e8088dba08958361eeec8beb4f504c894",
        "llama f32": "9970eacdc035d2128516ca3f58c5c4e746d484d445bf4081fb050c18b3d456a9",
        "mistral bf16": "8aafdb6d9ae3cda6b4be9e535e469cd395b0c857023ea226619163d2f7091011",
        "mistral f32": "605ed9a6b8b90faf884fdf680ba98931c374aa6a0f8e2134292a5df2fc5e99d7",
        "qwen2 bf16": "e0ac9f3ad765a843cf0db340898146c8d18964867a660ef12a36f4862a48987a",
        "qwen2 f32": "fdf2e7873be2035fbe8e7a58420f178afb2e52445493cc8f2db5fbd6649407ff",
        "qwen3 bf16": "87bcbd7a55b5bc337db198008cb5f28f1b185bf3e8a719a64a5dee261bcb1ac6",
        "qwen3 f32": "aa2cc299b5dbacdc32a36ec13563bace5d5d194ffc39eb994e5f334e871165d1",
        "gemma2 bf16": "57ff49c8031f17a10019fdd53298609092033af1f281b8ab92b9e720db27e6ec",
        "gemma2 f32": "d9d50beb413d6580a6ce7637c61be9e39629c9c67b0ce10274378f101d9d7f84",
        "gemma3_text bf16": "117ed03233b40261c0bf55bc2b24fcb28f0994cb3aa4bf230f0938fa247a9f54",
        "gemma3_text f32": "dac9a9834a63e35b3b42f8f4cd44003539a64c93cb4839242d0e8c1badb060d4",
        "phi3 bf16": "849a8e37bea835dc3e2a5d1ab86fd4fd23fe3142a2b240cf0266466b64d523ea",
        "phi3 f32": "d9c0f2abe7e92137c7b33e9eabd609323e9592c8710d7980ed22d3df9407a644",
        "olmo2 bf16": "863b2b29b4f96628e36421a3f215aa45abd89c01330f59ebcf5bb47d04921c4d",
        "olmo2 f32": "4cace421e86293868a0d74ca31f42d3fda096171e2504f521a5919fe2778cb6b",
        "granite bf16": "46aae4a925bec3ce43da023b75d7a4c4d8cea74649d6c37311447e4cff92e0c5",
        "granite f32": "71de39c624613977b0d14e4f4211f3a0bebb62d35a46328fd0d80fa9b22241f2",
        "smollm3 bf16": "0c8bb0ed60b30b8129451f0a259107e2060ca7288483cf771ab6fa7a9404ffeb",
        "smollm3 f32": "b77d6d57038afc7eabfe787a47eebbaba613979201249093238392e81069500e",
        "gemma3 bf16": "72376e8ffd3dde9c7dbc42ab4b0bfa6b1c8a726db560dc22d46422dc1db6accc",
        "gemma3 f32": "217636ab4a4996370ec2f070d17a5859d4e25aa0981404a1527623eb59dc2983",
        "llama rounded": "e4a0f51af412c96b115cc229432e2c3dc173b79ad3d0369edf493ddc8ea6b779",
        "phi3 rounded": "659934371aa212f68321400f203738c9439dc0436c525e4b038f445fe0866284",
        "qwen2 rounded": "900d1c0a901c76bd267e5e9c590efa32cfc44105a76b603ec3825c003d3f6de2",
        "narrow phi3 bf16": "d04c323e9a7c85dd0dd59e5bea932097b117754bceaaae617f5c0d6eee61a7d6",
        "narrow phi3 f32": "226ac2dab051a4d9479036ab61da544c093b7dec0448d44a4db878453eb4ffdc",
        "narrow phi3 rounded": "0eb420b1a96359860e634e83d51479d1b5dc2723fd4f3e69aaee17a087de4745",
        "tied.gguf file": "24ebf8db76aebf608183671c9a7de7ef10ae4bdce1ba584fa759d9fb9e72ead1",
        "untied.gguf file": "84264b92c5331db1d5ffff30e7901e26514342a338873c634bbc06f558759580",
        "phi3.gguf file": "fd08b295066407fc88e42b32b2def7e2284aee116e8294029b64588e3a92db80",
        "narrow phi3.gguf file": "deaf6210a8d2e1d0fedbd08b9130450f7142659fe6a2f7ee90ab44be84c9f752",
        "gemma2.gguf file": "f00e4c4ff43f6b43695cca2be5d684ad71bdc725ebba02610533eb14ce5a6d04",
        "olmo2.gguf file": "3b31b7e73d0f6ef64a7e183d97a1a8b6d8a9769635523f689f652eb4ae95e0b3",
    }
)
HEADERS = "a54c5328b5efc5ed0c09215051a7c8c9a9f468f7c4359ddca804a03f9fed26d8"  # of all of them, in the order of CASES
MIXED: Mapping[str, Kind] = MappingProxyType(
    {
        "attn_q": Kind.Q8_0, "attn_k": Kind.Q8_0, "attn_v": Kind.Q6_K, "attn_output": Kind.Q4_1,
        "ffn_gate": Kind.Q5_0, "ffn_up": Kind.Q5_1, "ffn_down": Kind.Q4_K, "token_embd": Kind.Q5_K,
        "output": Kind.Q4_0, "blk.1.ffn_down.weight": Kind.F16, "blk.1.attn_output.weight": Kind.BF16,
    }
)  # fmt: skip
FROM_GGUF = ("tied.gguf", "untied.gguf", "phi3.gguf", "narrow phi3.gguf", "gemma2.gguf", "olmo2.gguf")
CASES = (
    *((family, dtype) for family in (*FAMILIES, "gemma3") for dtype in ("bf16", "f32")),
    *((family, "rounded") for family in ("llama", "phi3", "qwen2")),
    *(("narrow phi3", dtype) for dtype in ("bf16", "f32", "rounded")),
    *((family, "file") for family in FROM_GGUF),
)


def numbers(name: str, shape: tuple[int, ...], dtype: str = "<f4") -> NDArray[Any]:
    """Return numbers of 12 bits [shape] between -0.5 and 0.5, by arithmetic that every machine does alike."""
    count = np.arange(int(np.prod(shape)), dtype=np.uint32) + np.uint32(zlib.crc32(name.encode()))
    mixed = (count * np.uint32(2654435761)) >> np.uint32(20)
    return ((mixed.astype(np.float32) - 2048) / 4096).astype(dtype).reshape(shape)


def refilled(folder: Path) -> Path:
    """Give each tensor of a checkpoint such numbers: torch's own change from version to version."""
    path = folder / "model.safetensors"
    save_file({name: numbers(name, values.shape) for name, values in load_file(path).items()}, path)
    return folder


def plain(family: str, folder: Path) -> tuple[DecoderSpec, Weights]:
    """Return a family's checkpoint, held, its tensors of several types of floats."""
    more = NARROW if family.startswith("narrow") else {}
    made = make_checkpoint(family.removeprefix("narrow "), folder / "made", **more)
    shapes = {name: values.shape for name, values in load_file(made / "model.safetensors").items()}
    types = ("<f4", "<f2", "<f8")
    tensors = {name: numbers(name, shape, types[at % 3]) for at, (name, shape) in enumerate(sorted(shapes.items()))}
    # held in no folder of weights, whose times would be in the header
    return read_spec(json.loads((made / "config.json").read_text())), held_weights(folder / "held", tensors)


def stored(kind: Kind, rows: int, cols: int, seed: int) -> NDArray[Any]:
    """Return blocks of a type [rows, bytes of a row]; no byte is above 112, so that no half float is infinite."""
    block, width = GGML_QUANT_SIZES[kind]
    count = np.arange(rows * cols // block * width, dtype=np.uint32)
    return ((count * np.uint32(37) + np.uint32(seed)) % np.uint32(113)).astype(np.uint8).reshape(rows, -1)


def from_gguf(name: str, folder: Path) -> tuple[DecoderSpec, Weights]:
    path = folder / name
    architecture = path.stem.removeprefix("narrow ")
    if architecture in OVERRIDES:
        more = {**OVERRIDES[architecture], **WHOLE, **(NARROW if path.stem.startswith("narrow") else {})}
        made = refilled(make_checkpoint(architecture, folder / "made", **more))
        model_file(made, path, architecture, Kind.Q8_0)
    else:
        tied = architecture == "tied"
        replaced = {**matrices(tied), **vectors()}
        quantised_file(path, Kind.F32, tied=tied, replaced=replaced, vocabulary=100)
    linked = convert_gguf(path, folder / "cache", "file")
    return read_spec(json.loads((linked / "config.json").read_text())), open_weights(linked)


WHOLE = MappingProxyType({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2})  # rows of whole blocks

NARROW = MappingProxyType({"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 3})  # no whole tiles


def matrices(tied: bool) -> dict[str, tuple[NDArray[Any], Kind]]:
    """Return the matrices of ``quantised_file``'s llama as a file stores them, by name: a mixture of types."""
    leaves = {"attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256), "attn_output": (256, 256)}
    leaves |= {"ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512)}
    shapes = {"token_embd.weight": (100, 256), **({} if tied else {"output.weight": (100, 256)})}
    shapes |= {f"blk.{layer}.{leaf}.weight": shape for layer in range(2) for leaf, shape in leaves.items()}
    made: dict[str, tuple[NDArray[Any], Kind]] = {}
    for seed, (name, (rows, cols)) in enumerate(shapes.items()):
        leaf = name.removesuffix(".weight").rpartition(".")[2]
        kind = MIXED.get(name, MIXED[leaf])
        if kind is Kind.F16:
            made[name] = numbers(name, (rows, cols), "<f2"), kind
        elif kind is Kind.BF16:
            made[name] = (numbers(name, (rows, cols)).view(np.uint32) >> 16).astype("<u2").view(np.uint8), kind
        else:
            made[name] = stored(kind, rows, cols, seed), kind
    return made


def vectors() -> dict[str, tuple[NDArray[Any], Kind]]:
    names = ["output_norm.weight"]
    names += [f"blk.{layer}.{norm}_norm.weight" for layer in range(2) for norm in ("attn", "ffn")]
    return {name: (numbers(name, (256,)), Kind.F32) for name in names}


class Packed:
    """Files of packed weights as opening a model writes them, each written once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, str], bytes] = {}

    def __call__(self, family: str, dtype: str) -> bytes:
        if (family, dtype) not in self._made:
            folder = self._folder / f"{family}-{dtype}"
            folder.mkdir()
            spec, weights = from_gguf(family, folder) if dtype == "file" else plain(family, folder)
            NativeModel(spec, weights, dtype, identity="guard", cache=folder / "kept", threads=1)
            (path,) = (folder / "kept" / "packed").glob(f"*/{FILE}")
            self._made[family, dtype] = path.read_bytes()
        return self._made[family, dtype]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return Packed(tmp_path_factory.mktemp("packed"))


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_packed_weights_are_what_they_were(family: str, dtype: str, packed: Packed) -> None:
    assert hashlib.sha256(packed(family, dtype)[HEADER:]).hexdigest() == BODIES[f"{family} {dtype}"]


def test_their_headers_are_what_they_were(packed: Packed) -> None:
    """A header holds a digest of the spec as Python writes it: a field by another name packs all weights anew."""
    headers = b"".join(packed(*case)[:HEADER] for case in CASES)
    assert hashlib.sha256(headers).hexdigest() == HEADERS

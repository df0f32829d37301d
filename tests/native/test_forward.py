"""The native pass against torch's decoder, family by family; and its promise about bits, tier by tier."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.errors import ModelError, OptionError, WeightsError
from foredraft.models.checkpoint import open_weights
from foredraft.models.model import Rows
from foredraft.models.native import packing as packing
from foredraft.models.native.model import NativeModel
from foredraft.models.native.packing import FILE, HEADER, aligned, digest, layout
from foredraft.models.torch_decoder.decoder import TorchDecoder
from foredraft.native import library as native_library
from foredraft.system import machine
from tests.models.checkpoints import make_checkpoint
from tests.models.decoders import CASES, TEXT, TREE, broken, chain
from tests.native.models import close, open_native, spec_of

SMALL: Mapping[str, Any] = {"hidden_size": 52, "intermediate_size": 76, "vocab_size": 101, "num_key_value_heads": 2}
ODD: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{f"heads of {size}": ("llama", {**SMALL, "head_dim": size}) for size in (64, 80, 96, 128, 256)},
    "normed heads of 80": ("qwen3", {**SMALL, "head_dim": 80}),
    "one wide group": ("llama", {**SMALL, "num_attention_heads": 26, "num_key_value_heads": 1, "head_dim": 6}),
    "groups wider than a product": (
        "llama",
        {**SMALL, "num_attention_heads": 70, "num_key_value_heads": 1, "head_dim": 4, "hidden_size": 70},
    ),
    "gated layer of 130": ("gemma3_text", {**SMALL, "intermediate_size": 130}),
}
SHARED = ("avx512-vnni", "avx-vnni")  # whose floats are avx2's
TIERS = tuple(
    tier
    for tier in native_library.tiers()
    if tier not in SHARED and (tier != "amx" or native_library.choose_tier(None)[0] == "amx")
)


def open_torch(folder: Path, dtype: str = "f32") -> TorchDecoder:
    return TorchDecoder(spec_of(folder), open_weights(folder), dtype=dtype)


def scored_alike(ours: Any, theirs: Any) -> None:
    assert ours.starts == theirs.starts
    close(ours.logits, theirs.logits)
    for layer, states in theirs.hidden.items():
        close(ours.hidden[layer], states)


@pytest.fixture(scope="module", params=[*CASES, *ODD])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, overrides = {**CASES, **ODD}[request.param]
    return make_checkpoint(family, tmp_path_factory.mktemp(family), **overrides)


def passes() -> Iterator[tuple[str, Any]]:
    """Give passes whose results must agree: prompts, single rows, trees, a ragged batch, going back, moved rows."""
    yield "forward", [chain(TEXT, 0, 21, 5)]
    yield "forward", [chain(TEXT, 21, 22)]
    yield "forward", [Rows(0, 22, (5, 9, 11, 5, 40, 41), TREE, 6)]
    yield "compact", (0, 22, [0, 2, 5])
    yield "forward", [chain((*TEXT[:22], 5, 11, 41, 17, 18), 25, 27)]
    yield "forward", [chain(TEXT, 15, 48)]
    yield "forward", [chain(TEXT[5:], 0, 30, 0, slot=3), chain(TEXT[20:], 0, 2, 1, slot=1)]
    batch = [(3, 30, (7, 8), (-1, 0)), (0, 40, (3,), (-1,)), (1, 2, (4, 5, 6, 7, 9), (-1, -1, 1, -1, 2))]
    yield "forward", [Rows(slot, start, tokens, parents, len(tokens)) for slot, start, tokens, parents in batch]
    yield "release", (3,)
    yield "forward", [chain(TEXT, 0, 9, 1, slot=3), chain(TEXT * 3, 41, 141, 2)]


def test_float32_is_torch(folder: Path) -> None:
    ours, theirs = open_native(folder, threads=2), open_torch(folder)
    for name, arguments in passes():
        if name == "forward":
            scored_alike(*(model.forward(arguments, taps=(-1, 1)) for model in (ours, theirs)))
        else:
            assert getattr(ours, name)(*arguments) == getattr(theirs, name)(*arguments)


def test_bfloat16_errs_no_more_than_torch(folder: Path) -> None:
    def weights_in_bf16(tensors: dict[str, Any]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].bfloat16().float()

    broken(folder, weights_in_bf16)
    errors = np.zeros(2)
    exact, theirs, ours = open_torch(folder, "f64"), open_torch(folder, "bf16"), open_native(folder, "bf16")
    for name, arguments in passes():
        if name == "forward":
            want = exact.forward(arguments).logits
            errors += [np.abs(model.forward(arguments).logits - want).sum() for model in (ours, theirs)]
        else:
            for model in (exact, theirs, ours):
                getattr(model, name)(*arguments)
    assert errors[0] < 1.2 * errors[1]


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_long_texts_and_windows(tmp_path: Path, family: str) -> None:
    wide = {"max_position_embeddings": 4096, "sliding_window": 150, "num_hidden_layers": 2}
    folder = make_checkpoint(family, tmp_path, **wide)
    text = tuple(int(token) for token in np.random.default_rng(1).integers(3, 97, 2000))
    ours, theirs = open_native(folder, threads=2), open_torch(folder)
    for start in range(0, 1900, 475):
        piece = [chain(text, start, start + 475, 3)]
        scored_alike(ours.forward(piece), theirs.forward(piece))
    tree = [Rows(0, 1900, text[1900:1980], (*range(-1, 39), *(max(i - 3, 3) for i in range(40, 80))), 80)]
    scored_alike(ours.forward(tree), theirs.forward(tree))
    row = [chain(text, 1900, 1901)]
    scored_alike(ours.forward(row), theirs.forward(row))


@dataclass
class Bits:
    """A model of one tier, and the bits of each row of a text fed a row at a time on one thread."""

    folder: Path
    tier: str
    dtype: str
    alone: np.ndarray
    hidden: np.ndarray

    def open(self, threads: int = 2) -> NativeModel:
        return open_native(self.folder, self.dtype, tier=self.tier, threads=threads)


LONG = tuple(int(token) for token in np.random.default_rng(3).integers(3, 97, 700))
SHAPES = {
    "llama": {"hidden_size": 96, "head_dim": 32, "intermediate_size": 180},
    "mistral": {"hidden_size": 40, "head_dim": 80, "sliding_window": 37},
    "gemma2": {"num_hidden_layers": 2},
}


@pytest.fixture(
    scope="module", params=[(tier, dtype, family) for tier in TIERS for dtype in ("bf16", "f32") for family in SHAPES]
)
def bits(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bits:
    tier, dtype, family = request.param
    folder = make_checkpoint(family, tmp_path_factory.mktemp(family), max_position_embeddings=1024, **SHAPES[family])
    model = open_native(folder, dtype, tier=tier, threads=1)
    rows = [model.forward([chain(LONG, i, i + 1)], taps=(0,)) for i in range(len(LONG))]
    alone, hidden = (np.concatenate(part) for part in zip(*((r.logits, r.hidden[0]) for r in rows), strict=True))
    return Bits(folder, tier, dtype, alone, hidden)


def same(ours: Any, want: np.ndarray) -> None:
    np.testing.assert_array_equal(ours, want)


def test_bits_do_not_hang_on_chunks_threads_or_rows(bits: Bits) -> None:
    for threads, chunk in ((1, 64), (2, 7), (3, 200), (2, 700)):
        model = bits.open(threads)
        for start in range(0, len(LONG), chunk):
            stop = min(start + chunk, len(LONG))
            scored = model.forward([chain(LONG, start, stop)], taps=(0,))
            same(scored.logits, bits.alone[start:stop])
            same(scored.hidden[0], bits.hidden[start:stop])
    for start in (0, 100, 127, 300, 515):  # keys and values are overwritten, and left behind beyond the end
        for rows in range(1, 65) if start == 100 else (1, 2, 5, 16, 17, 33, 64):
            same(model.forward([chain(LONG, start, start + rows)]).logits, bits.alone[start : start + rows])


def test_bits_do_not_hang_on_neighbours_or_slots(bits: Bits) -> None:
    model = bits.open(2)
    for slot, length in ((0, 11), (7, 130), (2, 600), (5, 64)):
        model.forward([chain(LONG, 0, length, 0, slot)])
    spans = {7: (130, 133), 2: (600, 631), 0: (9, 30), 5: (64, 65)}
    scored = model.forward([chain(LONG, *span, slot=slot) for slot, span in spans.items()])
    for first, (start, stop) in zip(scored.starts, spans.values(), strict=True):
        same(scored.logits[first : first + stop - start], bits.alone[start:stop])
    model.release(2)
    same(model.forward([chain(LONG, 0, 50, slot=2)]).logits, bits.alone[:50])


@pytest.mark.parametrize(("start", "guesses"), [(0, 90), (126, 40), (509, 64), (200, 12)])
def test_bits_of_a_tree_are_those_of_its_paths(bits: Bits, start: int, guesses: int) -> None:
    """Guesses stand at random places, each path a piece of the text: every row then has bits known from before."""
    random = np.random.default_rng(start)
    depths, parents = [], []
    for node in range(guesses):
        parent = int(random.integers(-1, node)) if random.random() < 0.4 or not node else node - 1
        parents.append(parent)
        depths.append(0 if parent < 0 else depths[parent] + 1)
    model = bits.open(2)
    model.forward([chain(LONG, 0, start, 0), chain(LONG, 0, 5, 0, slot=1)])
    tokens = tuple(LONG[start + depth] for depth in depths)
    tree = Rows(0, start, tokens, tuple(parents), guesses)
    scored = model.forward([chain(LONG, 5, 8, slot=1), tree], taps=(0,))
    same(scored.logits[3:], bits.alone[[start + depth for depth in depths]])
    same(scored.hidden[0][3:], bits.hidden[[start + depth for depth in depths]])
    deepest = max(range(guesses), key=lambda node: depths[node])
    path = [deepest]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    assert model.compact(0, start, path) == len(path)
    end = start + len(path)
    same(model.forward([chain(LONG, end, end + 20)]).logits, bits.alone[end : end + 20])


def test_parts_of_a_pass(tmp_path: Path) -> None:
    folder = make_checkpoint("llama", tmp_path)
    model = open_native(folder, "bf16")
    rows = [chain(TEXT, 0, 20, 7)]
    whole = model.forward(rows, taps=(-1, 0, 1, 2))
    some = (96, 3, 50, 51, 17)
    narrowed = model.run(rows, subset=model.subset(some))
    same(narrowed.logits, whole.logits[:, some])
    every = model.run([chain(TEXT, 0, 20)], taps=(0,), logits=False)
    assert every.logits.shape == (0, 97)
    later = model.run(rows, taps=(1, 2), hidden=every.hidden[0], sub_layers=range(2, 6))
    same(later.logits, whole.logits)
    same(later.hidden[1], whole.hidden[1])
    without = model.run(rows, sub_layers=[0, 1, 2, 4, 5])  # layer 1 keeps its attention only
    assert not np.array_equal(without.logits, whole.logits)
    embedded = model.run(rows, taps=(-1, 2), sub_layers=[])
    same(embedded.hidden[-1], whole.hidden[-1])
    same(embedded.hidden[2], whole.hidden[-1])
    same(model.forward(rows).logits, whole.logits)


def test_what_is_no_number_spoils_only_those_who_see_it(tmp_path: Path) -> None:
    model = open_native(make_checkpoint("llama", tmp_path), "bf16")
    want = model.forward([chain(TEXT, 0, 40)]).logits
    sick = np.full((20, 32), np.nan, np.float32)
    spoilt = model.run([chain(TEXT, 10, 30)], hidden=sick).logits
    assert np.isnan(spoilt).all()
    assert np.isnan(model.forward([chain(TEXT, 30, 32)]).logits).all()
    for start in range(10):  # the keys beyond are still there, unseen
        same(model.forward([chain(TEXT, start, start + 1)]).logits, want[start : start + 1])
    tree = model.forward([Rows(0, 5, (TEXT[5], TEXT[5], TEXT[6]), (-1, -1, 1), 3)]).logits
    same(tree, want[[5, 5, 6]])
    same(model.forward([chain(TEXT, 5, 40)]).logits, want[5:])


def test_threads_of_python_take_turns(tmp_path: Path) -> None:
    model = open_native(make_checkpoint("llama", tmp_path), threads=3)
    texts = [TEXT[at : at + 30] for at in range(8)]
    want = [model.forward([chain(text, 0, 30)]).logits for text in texts]

    def ask(slot: int) -> bool:
        rows = [model.forward([chain(texts[slot], at, at + 3, slot=slot)]).logits for at in range(0, 30, 3)]
        return np.array_equal(np.concatenate(rows), want[slot])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, [*range(8)] * 3))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_of_fork_is_told(tmp_path: Path) -> None:
    model = open_native(make_checkpoint("llama", tmp_path), threads=2)
    want = model.forward([chain(TEXT, 0, 9)]).logits
    child = os.fork()
    if not child:
        try:
            model.forward([chain(TEXT, 0, 9)])
        except ModelError as error:
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    same(model.forward([chain(TEXT, 0, 9)]).logits, want)


def attempts() -> Mapping[str, Any]:
    two = ((5, 6), (-1, 0), 1)
    return {
        "more tokens than their slot holds": lambda m: m.forward([Rows(0, 21, *two)]),
        "slots are numbered from 0": lambda m: m.forward([Rows(-1, 0, *two)]),
        "slots are numbered from 0 to 65535": lambda m: m.forward([Rows(1 << 16, 0, *two)]),
        "have the same slot": lambda m: m.forward([Rows(0, 0, *two)] * 2),
        "a slot is not a whole number of 32 bits": lambda m: m.forward([Rows(1 << 40, 0, *two)]),
        "a start is not a whole number": lambda m: m.forward([Rows(0, 0.0, *two)]),
        "fewer than 0 tokens": lambda m: m.forward([Rows(0, -1, *two)]),
        "not in the vocabulary": lambda m: m.forward([Rows(0, 0, (97,), (-1,), 1)]),
        "vocabulary": lambda m: m.forward([Rows(0, 0, (-1,), (-1,), 1)]),
        "a token is not a whole number": lambda m: m.forward([Rows(0, 0, (1.5,), (-1,), 1)]),
        "parent must be -1": lambda m: m.forward([Rows(0, 0, (5, 6), (-1, 1), 1)]),
        "or a row before it": lambda m: m.forward([Rows(0, 0, (5, 6), (-2, 0), 1)]),
        "has 2 tokens and 1 parents": lambda m: m.forward(
            [Rows(0, 0, (5, 6), (-1,), 1), Rows(1, 0, (5,), (-1, 0), 1)]  # as many in all
        ),
        "3 rows cannot be wanted of a sequence of 2": lambda m: m.forward(
            [Rows(0, 0, (5, 6), (-1, 0), 0), Rows(1, 0, (5, 6), (-1, 0), 3)]
        ),
        "-1 rows cannot be wanted": lambda m: m.forward([Rows(0, 0, (5, 6), (-1, 0), -1)]),
        "context": lambda m: m.forward([chain(TEXT * 6, 0, 257, 1)]),
        "layer to tap": lambda m: m.forward([chain(TEXT, 0, 2)], taps=(3,)),
        "sub-layers must be increasing": lambda m: m.run([chain(TEXT, 0, 2)], sub_layers=[0, 0]),
        "no such sub-layer": lambda m: m.run([chain(TEXT, 0, 2)], sub_layers=[6]),
        "such sub-layer to run": lambda m: m.run([chain(TEXT, 0, 2)], sub_layers=[-1]),
        "hidden rows": lambda m: m.run([chain(TEXT, 0, 2)], hidden=np.zeros((2, 31), np.float32)),
        "no subset": lambda m: m.run([chain(TEXT, 0, 2)], subset=1),
        "of the subset": lambda m: m.subset([97]),
        "needs a token": lambda m: m.subset([]),
        "rows to keep": lambda m: m.compact(0, 20, [0]),
        "to keep": lambda m: m.compact(0, 10, [3, 3]),
        "of slot 4": lambda m: m.compact(4, 0, [0]),
    }


@pytest.mark.parametrize("says", attempts())
def test_nonsense_is_refused_and_harms_nothing(tmp_path: Path, says: str) -> None:
    model = open_native(make_checkpoint("llama", tmp_path), threads=1)
    want = model.forward([chain(TEXT, 0, 20)]).logits
    with pytest.raises(ModelError, match=says):
        attempts()[says](model)
    same(model.forward([chain(TEXT, 10, 20)]).logits, want[10:])
    assert model.forward([]).logits.shape == (0, 97)
    assert model.forward([Rows(0, 20, (), (), 0)]).starts == (0,)


def test_options_are_checked(tmp_path: Path) -> None:
    folder = make_checkpoint("llama", tmp_path)
    for options, says in (({"dtype": "f64"}, "dtype"), ({"tier": "mmx"}, "tier mmx"), ({"threads": 0}, "threads")):
        with pytest.raises(OptionError, match=says):
            open_native(folder, **options)
    with pytest.raises(WeightsError, match="no tensor"):
        open_native(broken(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight")))
    with pytest.raises(WeightsError, match="no use for"):
        open_native(broken(make_checkpoint("llama", tmp_path), lambda t: t.update({"x": torch.ones(1)})))


def packs(folder: Path, cache: Path, **options: Any) -> tuple[NativeModel, bool]:
    """Open a model through a cache; also say whether it was packed."""
    told: list[int] = []
    model = open_native(
        folder, "bf16", cache=cache, identity="some", progress=lambda done, total, label: told.append(done), **options
    )
    return model, bool(told)


def test_packed_weights_are_kept_and_rebuilt_when_torn(tmp_path: Path) -> None:
    folder, cache = make_checkpoint("phi3", tmp_path / "model"), tmp_path / "cache"
    want = open_native(folder, "bf16").forward([chain(TEXT, 0, 9)]).logits

    def opened(packed: bool, says: str | None = None) -> None:
        model, was_packed = packs(folder, cache)
        assert (was_packed, model.notice) == (packed, says)
        same(model.forward([chain(TEXT, 0, 9)]).logits, want)

    opened(packed=True)
    opened(packed=False)
    (file,) = cache.rglob(FILE)
    whole = file.read_bytes()
    for damaged in (
        whole[:-1],
        whole[:HEADER],
        b"",
        bytes(HEADER) + whole[HEADER:],
        whole.replace(b'"version": ', b'"version": 9', 1)[: len(whole)],
        whole.replace(b"some", b"same", 1),
        whole.replace(layout(False).encode(), b"0" * 16, 1),  # packed by a build with another layout
    ):
        file.unlink()
        file.write_bytes(damaged)
        opened(packed=True)
        opened(packed=False)
    for place in (HEADER, (HEADER + len(whole)) // 2, len(whole) - 1, HEADER - 1):  # the last is the digest itself
        file.unlink()
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 128]) + whole[place + 1 :])
        opened(packed=True, says=f"the packed weights in {file} were damaged and have been packed anew")
        opened(packed=False)
    file.unlink()
    file.parent.rmdir()
    file.parent.write_bytes(b"in the way")
    model, _ = packs(folder, cache)
    assert model.notice is not None
    same(model.forward([chain(TEXT, 0, 9)]).logits, want)


def test_weights_that_changed_where_nobody_samples_are_packed_anew(tmp_path: Path) -> None:
    """An identity is of samples: what was packed is also held against the sizes and times of its files."""
    folder, cache = make_checkpoint("llama", tmp_path / "model"), tmp_path / "cache"
    first, packed = packs(folder, cache)
    before = np.array(first.forward([chain(TEXT, 0, 9)]).logits)
    assert packed
    (file,) = folder.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = bytes(4096)
    file.write_bytes(data)
    os.utime(file, ns=(10**18, 10**18))
    second, packed = packs(folder, cache)
    assert packed
    same(second.forward([chain(TEXT, 0, 9)]).logits, open_native(folder, "bf16").forward([chain(TEXT, 0, 9)]).logits)
    assert not np.array_equal(second.forward([chain(TEXT, 0, 9)]).logits, before)
    assert not packs(folder, cache)[1]


def test_a_digest_tells_changed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = aligned((3 << 20) + 640)
    packed[:] = np.random.default_rng(0).integers(0, 256, len(packed), np.uint8)
    want = digest(packed)
    seen = {want}
    for place in (0, 63, 64, (1 << 20) - 1, 1 << 20, (2 << 20) + 77, len(packed) - 1):
        for bit in (1, 128):
            packed[place] ^= bit
            seen.add(digest(packed))
            packed[place] ^= bit
    packed[7::64] ^= 128  # the highest bit of every eighth word
    seen.add(digest(packed))
    packed[7::64] ^= 128
    packed[: 1 << 20], packed[1 << 20 : 2 << 20] = packed[1 << 20 : 2 << 20].copy(), packed[: 1 << 20].copy()
    seen.add(digest(packed))
    assert len(seen) == 17
    packed[: 1 << 20], packed[1 << 20 : 2 << 20] = packed[1 << 20 : 2 << 20].copy(), packed[: 1 << 20].copy()
    for threads in (1, 3, 8):
        monkeypatch.setattr(packing, "cores", lambda threads=threads: threads)
        assert digest(packed) == want


def test_too_little_memory_is_said_before_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint("llama", tmp_path / "model")
    reads = Path.read_text

    def poor(path: Path, *rest: Any, **more: Any) -> str:
        return "MemAvailable: 20 kB\n" if path == Path("/proc/meminfo") else reads(path, *rest, **more)

    monkeypatch.setattr(Path, "read_text", poor)
    with pytest.raises(ModelError, match="B of memory, with some to spare, and 0 MB are free"):
        packs(folder, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_quota_limits_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(given: Mapping[str, str]) -> Any:
        def read(path: Path, *_: Any, **__: Any) -> str:
            if str(path) not in given:
                raise FileNotFoundError
            return given[str(path)]

        return read

    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    two = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"
    expected: Sequence[tuple[Mapping[str, str], int]] = (
        ({"/sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"/sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({two[0]: "300000\n", two[1]: "100000\n"}, 3),
        ({two[0]: "-1\n", two[1]: "100000\n"}, 8),
        ({}, 8),
    )
    for given, count in expected:
        monkeypatch.setattr(Path, "read_text", files(given))
        assert machine.cores() == count


def test_memory_is_counted_and_given_back(tmp_path: Path) -> None:
    model = open_native(make_checkpoint("llama", tmp_path), threads=3)
    model.forward([chain(TEXT, 0, 40, 1), chain(TEXT * 4, 0, 130, 0, slot=1)])
    held = model.slot_bytes()
    model.release(1)
    assert 0 < model.slot_bytes() < held
    assert 0 < model.working_bytes() < 1 << 20
    assert model.floor() > 0

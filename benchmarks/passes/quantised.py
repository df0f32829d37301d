"""What a quantised file costs and what it loses: run from its own blocks, widened to bf16, and by llama.cpp.

    t1_ratio       a pass over 1 row, context 200, of the file's blocks, against the same model widened to bf16
    v8, v16        t(rows) / t(1), the worst of the file, of random models of 1 B parameters, in amx and avx512 (VNNI)
    v4_avx2        the same with avx2 forced, the worst of the files
    peer_ratio     plain decoding, tokens a second, against llama.cpp on the same file (null without ``--peer``)
    memory_ratio   what loading and passes of 1, 64 and 512 rows add to the resident memory of a process, against the
                   file and the slot's keys and values; the worst of the files
    kl, kl_peer    mean KL, in nats, of the next token's law from that of the dequantised model in float64
    bitwise        whether rows have the same bits however they are grouped, in every tier, also with mixed types
    files          all of it by file: this one's, and the random ones', quantised to Q4_0, Q4_1 and as Q4_K_M is

Every time is a ratio of the least times of passes that took turns; medians stand beside them in the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import foredraft
from benchmarks.passes.probes import Times, bits_hold, feed, forward, least, passes, read, resident, table, take_turns
from benchmarks.passes.quantised_kl import divergences, of_model, of_peer, show, texts
from benchmarks.passes.quantised_peer import Peer
from benchmarks.shared.made_gguf import medium, mixed, plain, random_gguf
from benchmarks.shared.script import finish, parser
from foredraft.models.folder import ModelFolder
from foredraft.models.gguf.link import linked_file, read_link
from foredraft.models.hub.fetch import resolve
from foredraft.models.runner import TIERS, RunnerOptions, native_facts, open_runner
from foredraft.system.machine import cores
from foredraft.tokenizer.tokenizer import Tokenizer

CONTEXT: Final = 200
WIDE: Final = {"q4_0": plain("Q4_0"), "q4_1": plain("Q4_1"), "q4_k": medium}
QUICK: Final = ("q4_0", "q4_k")
WIDE_SIZES: Final = {"hidden": 2048, "layers": 16, "mlp": 8192, "heads": 32, "kv_heads": 8, "vocabulary": 32000}
SMALL_SIZES: Final = {"hidden": 256, "layers": 4, "mlp": 512, "heads": 4, "kv_heads": 2, "vocabulary": 2048}
BEST: Final = ("amx", "avx512")  # the tiers whose cost of more rows is judged, where the machine has them
STORY: Final = "It was the longest winter that anybody in the village could remember. "


def main() -> None:
    options = parser("what a quantised file costs and what it loses")
    options.add_argument("--peer", type=Path, help="a Python that has xllamacpp or llama_cpp")
    options.add_argument("--no-wide", action="store_true", help="leave the models of 1 B parameters out")
    options.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    arguments.cache = arguments.cache or Path.home() / ".cache" / "foredraft"
    bench = Bench(arguments)
    if arguments.memory:
        print(json.dumps(bench.memory()))
        return
    figures, digest = bench.figures()
    print()
    finish(figures, digest)


@dataclass(frozen=True)
class Subject:
    """A GGUF file, by its path or an alias, and where what is made of it is kept."""

    model: str
    cache: Path

    def folder(self, dtype: str) -> Path:
        return resolve(self.model, self.cache, offline=False, dtype="f32" if dtype == "f64" else dtype)

    def file(self) -> Path:
        folder = self.folder("file")
        link = read_link(folder)
        if link is None:
            raise SystemExit(f"{self.model} is no GGUF file")
        return linked_file(folder, link)


class Bench:
    """One file, and the random ones beside it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.quick = bool(arguments.quick)
        self.rounds = 12 if self.quick else 60
        self.dtype = "file" if arguments.dtype == "auto" else arguments.dtype
        self.threads = arguments.threads or cores()

    def figures(self) -> tuple[dict[str, Any], str]:
        """Return all figures and the hash of the prompts."""
        here = Subject(str(self.arguments.model), self.arguments.cache)
        own = self.one(here)
        files = {here.file().stem: own}
        figures: dict[str, Any] = {"t1_ratio": self.t1_ratio(here)}
        if not self.arguments.no_wide:
            files |= self.wide()
        for key in ("v8", "v16", "v4_avx2", "memory_ratio"):
            known = [found[key] for found in files.values() if found[key] is not None]
            figures[key] = max(known) if known else None
        figures["peer_ratio"] = own["peer_ratio"]
        divergence, digest = self.kl(here)
        return {**figures, **divergence, "bitwise": self.bitwise(here), "files": files}, digest

    def open(self, subject: Subject, dtype: str | None = None, tier: str | None = None, threads: int = 0) -> Any:
        """Return a model in a tier (None: as asked for), "off" being torch's; None where the machine lacks the tier."""
        folder = subject.folder(dtype or self.dtype)
        options = RunnerOptions(
            dtype or self.dtype, subject.cache, "cpu", threads or self.threads, tier or self.arguments.native_tier
        )
        try:
            return open_runner(ModelFolder(folder), options).model
        except foredraft.errors.OptionError:
            if tier is None:
                raise
            return None

    def one(self, subject: Subject) -> dict[str, Any]:
        """Return what passes over a file cost, by rows, and the memory they take."""
        size = subject.file().stat().st_size
        print(f"\n{subject.file().name}: {size / 1e6:.0f} MB")
        found: dict[str, Any] = {"file_mb": size / 1e6, "v8": 0.0, "v16": 0.0, "v4_avx2": None}
        for tier in self._judged():
            model = self.open(subject, tier=tier)
            times = self._passes(model, (1, 4, 8, 16))
            found[model.tier] = {f"t{rows}_ms": 1e3 * least(times, rows) for rows in (1, 4, 8, 16)}
            found[model.tier]["floor_ratio"] = least(times, 1) / least(times, "floor")
            found["packed_ratio"] = model.weight_bytes() / size
            for rows in (8, 16):
                found[f"v{rows}"] = max(found[f"v{rows}"], least(times, rows) / least(times, 1))
        model = self.open(subject, tier="avx2")
        if model is None:
            print("this machine or build has no avx2")
        else:
            times = self._passes(model, (1, 4, 8))
            found["avx2"] = {f"t{rows}_ms": 1e3 * least(times, rows) for rows in (1, 4, 8)}
            found["v4_avx2"] = least(times, 4) / least(times, 1)
        found |= self._memory_of(subject, size)
        found["peer_ratio"] = self._peer_ratio(subject)
        return found

    def _judged(self) -> list[str | None]:
        if self.arguments.native_tier is not None:
            return [None]
        return [tier for tier in BEST if tier in native_facts()["tiers"]] or [None]

    def _passes(self, model: Any, rows: tuple[int, ...]) -> Times:
        feed(model, 0, CONTEXT)
        small = model.weight_bytes() < 2 << 27
        times = take_turns(
            passes(model, rows, CONTEXT) | {"floor": model.floor}, self.rounds if small else max(self.rounds // 4, 5)
        )
        model.release(0)
        print(f"\n{model.tier}, {model.threads} threads, context {CONTEXT}\n")
        table(times)
        return times

    def t1_ratio(self, subject: Subject) -> float:
        """Return what a row costs from the file's blocks against bf16, both models open in this process."""
        ways = {}
        for name, dtype in {"file": self.dtype, "bf16": "bf16"}.items():
            model = self.open(subject, dtype)
            feed(model, 0, CONTEXT)
            ways[name] = passes(model, (1,), CONTEXT)["1"]
        times = take_turns(ways, 2 * self.rounds)
        print("\na row, from blocks and widened\n")
        table(times)
        return least(times, "file") / least(times, "bf16")

    def wide(self) -> dict[str, dict[str, Any]]:
        """Return what the passes of random models of 1 B parameters cost, by how they are quantised."""
        files = {}
        for name in QUICK if self.quick else WIDE:
            with tempfile.TemporaryDirectory() as place:
                path = random_gguf(Path(place) / f"{name}.gguf", WIDE[name], **WIDE_SIZES)
                files[name] = self.one(Subject(str(path), Path(place) / "cache"))
        return files

    def _memory_of(self, subject: Subject, size: int) -> dict[str, Any]:
        words = [sys.executable, "-m", "benchmarks.passes.quantised", "--memory"]
        words += ["--model", subject.model, "--cache", str(subject.cache)]
        words += ["--threads", str(self.threads), "--dtype", self.dtype]
        if self.arguments.native_tier is not None:
            words += ["--native-tier", self.arguments.native_tier]
        out = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        found = json.loads(out)
        if found["added"] is None:
            print("this system does not say what memory a process has")
            return {"memory_ratio": None}
        ratio = found["added"] / (size + found["slots"])
        print(
            f"\nmemory: {found['added'] / 1e6:.1f} MB for a file of {size / 1e6:.1f} MB and slots of "
            f"{found['slots'] / 1e6:.1f} MB, {ratio:.3f}; the whole process has {found['whole'] / 1e6:.1f} MB"
        )
        return {"memory_ratio": ratio, "memory_mb": {key: value / 1e6 for key, value in found.items()}}

    def memory(self) -> dict[str, int | None]:
        """Return the bytes that loading and passes add to this process, which is fresh; of its slots; and of it all."""
        before = resident()
        model = self.open(Subject(str(self.arguments.model), self.arguments.cache))
        read(model, 0, 512)
        for rows in (64, 1):
            forward(model, rows, CONTEXT)
        after = resident()
        added = None if before is None or after is None else after - before
        return {"added": added, "slots": model.slot_bytes(), "scratch": model.working_bytes(), "whole": after}

    def _peer_ratio(self, subject: Subject) -> float | None:
        """Return the ratio of tokens a second in plain greedy decoding, a run of each in turn, the other one idle."""
        if self.arguments.peer is None:
            print("no --peer: nothing to compare with")
            return None
        lm = foredraft.load(
            subject.model,
            drafter="none",
            device="cpu",
            dtype=self.arguments.dtype,
            threads=self.threads,
            cache=subject.cache,
            native_tier=self.arguments.native_tier,
        )
        prompt = lm.loaded.tokenizer.encode(STORY)
        tokens = 24 if self.quick else 96
        with Peer(self.arguments.peer, subject.file(), self.threads) as peer:

            def theirs() -> float:
                return peer.decode(prompt, tokens)

            def ours() -> float:
                time.sleep(0.5)  # the peer's threads may go on spinning for a while, on the cores that ours need
                return 1 / lm.generate(prompt, max_tokens=tokens + 1).timings.tokens_per_s

            times = take_turns({"ours": ours, "llama.cpp": theirs}, 3 if self.quick else 9, warm=1)
            print(f"\nplain decoding, a token: dtype {lm.loaded.dtype} against {peer.name}\n")
            table(times)
            return least(times, "llama.cpp") / least(times, "ours")

    def kl(self, subject: Subject) -> tuple[dict[str, Any], str]:
        """Return the divergences from float64, and the hash of the prompts that the texts are."""
        tokenizer = Tokenizer.from_folder(subject.folder(self.dtype))
        given, digest = texts(self.arguments.prompts, tokenizer, 1 if self.quick else 16)
        figures: dict[str, Any] = dict.fromkeys(("kl", "kl_bf16", "kl_peer"))
        with ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            # widened to f32, which rounds nothing, and computed in f64
            reference = self.open(Subject(str(subject.file()), place), "f64", "off")
            if reference is None:
                print("torch is not installed: there is no reference to diverge from")
                return figures, digest
            engines = {"kl": of_model(self.open(subject)), "kl_bf16": of_model(self.open(subject, "bf16"))}
            if self.arguments.peer is not None:
                peer = stack.enter_context(Peer(self.arguments.peer, subject.file(), self.threads))
                engines["kl_peer"] = of_peer(peer, place)
            found = divergences(given, of_model(reference), engines)
        show(found)
        return {**figures, **{name: row["mean"] for name, row in found.items()}, "divergences": found}, digest

    def bitwise(self, subject: Subject) -> bool:
        """Say whether rows have the same bits however they are grouped, in every tier, also with eight types."""
        same = True
        with tempfile.TemporaryDirectory() as place:
            path = random_gguf(Path(place) / "mixed.gguf", mixed, **SMALL_SIZES)
            for each in (subject, Subject(str(path), Path(place) / "cache")):
                for tier in TIERS:
                    model, alone = self.open(each, tier=tier), self.open(each, tier=tier, threads=1)
                    if model is None or alone is None:
                        continue
                    fine = bits_hold(model, alone)
                    print(f"bits of {Path(each.model).stem} in {tier}: {'hold' if fine else 'DIFFER'}")
                    same = same and fine
        return same


if __name__ == "__main__":
    main()

"""What a pass of the native forward costs: against the memory it must read, with more rows, against other engines.

    tier                  the tier that ran; the keys of tiers that this machine lacks are null
    t1_ms                 a pass over 1 row, context 200
    floor_ms              one read of the packed weights by the same threads; floor_ratio = t1 / floor
    v4 .. v64             t(rows) / t(1); v4_avx512 and v4_avx2 with that tier forced
    v8_context_4096       the same behind 4,096 tokens
    transformers_ratio    plain decoding, tokens a second, against transformers in bf16
    prefill_ratio         time to read 512 tokens, against torch in bf16
    extra_mb              memory of the process beyond packed weights and slots, after passes of 1, 64 and 512 rows
    bitwise               whether rows have the same bits alone, in chunks, in a tree, beside others, on one thread
    wide                  t1_ms, floor_ratio, v8, v16 of a random model of 1 B parameters

Every figure is a ratio of the least times of passes that took turns; medians stand beside them in the table.
"""

from __future__ import annotations

import argparse
import inspect
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import foredraft
from benchmarks.passes.probes import anonymous, bits_hold, feed, forward, least, passes, read, table, take_turns
from benchmarks.shared.made_models import random_llama
from benchmarks.shared.script import finish, parser
from foredraft.models.folder import ModelFolder
from foredraft.models.hub.fetch import resolve
from foredraft.models.runner import TIERS, RunnerOptions, open_runner

CONTEXT = 200
ROWS = (1, 4, 8, 16, 32, 64)


def main() -> None:
    options = parser("what a pass of the native forward costs")
    options.add_argument("--no-wide", action="store_true", help="leave the model of 1 B parameters out")
    options.add_argument("--extra", action="store_true", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    cache = arguments.cache or Path.home() / ".cache" / "foredraft"
    folder = resolve(arguments.model, cache, offline=False)
    bench = Bench(folder, cache, arguments)
    if arguments.extra:
        print(bench.extra())
        return
    figures = bench.figures()
    figures["wide"] = None if arguments.no_wide else bench.wide()
    print()
    finish(figures, "none")


class Bench:
    """One model folder, measured."""

    def __init__(self, folder: Path, cache: Path, arguments: argparse.Namespace) -> None:
        self.folder = folder
        self.cache = cache
        self.arguments = arguments
        self.rounds = 25 if arguments.quick else 60

    def open(self, tier: str | None = None, threads: int | None = None, folder: Path | None = None) -> Any:
        """Return a model of a tier (None: as asked for), "off" being torch's; None where the machine lacks the tier."""
        asked = tier or self.arguments.native_tier
        folder = folder or self.folder
        options = RunnerOptions("bf16", self.cache, "cpu", threads or self.arguments.threads, asked)
        try:
            return open_runner(ModelFolder(folder), options).model
        except foredraft.errors.OptionError:
            if tier is None:
                raise
            return None

    def figures(self) -> dict[str, Any]:
        """Return everything about the small model."""
        model = self.open()
        feed(model, 0, CONTEXT)
        times = take_turns(passes(model, ROWS, CONTEXT) | {"floor": model.floor}, self.rounds)
        figures: dict[str, Any] = {"tier": model.tier, "t1_ms": 1e3 * least(times, "1")}
        figures["floor_ms"] = 1e3 * least(times, "floor")
        figures["floor_ratio"] = least(times, "1") / least(times, "floor")
        figures |= {f"v{rows}": least(times, rows) / least(times, "1") for rows in ROWS[1:]}
        print(f"\n{self.folder.name}, {model.tier}, {model.threads} threads, context {CONTEXT}\n")
        table(times)
        for tier in ("avx512", "avx2"):
            figures[f"v4_{tier}"] = self._forced(tier)
        figures["v8_context_4096"] = self._far(model)
        figures["transformers_ratio"] = self._transformers()
        figures["prefill_ratio"] = self._prefill(model)
        figures["extra_mb"] = self._extra()
        figures["bitwise"] = self._bitwise()
        return figures

    def _forced(self, tier: str) -> float | None:
        model = self.open(tier)
        if model is None:
            print(f"this machine or build has no {tier}")
            return None
        feed(model, 0, CONTEXT)
        times = take_turns(passes(model, (1, 4, 8), CONTEXT), self.rounds)
        print(f"\n{tier} forced\n")
        table(times)
        return least(times, "4") / least(times, "1")

    def _far(self, model: Any) -> float:
        length = min(4096, model.context - 8)
        feed(model, 1, length)
        times = take_turns(passes(model, (1, 8), length, slot=1), max(self.rounds // 2, 6))
        model.release(1)
        print(f"\ncontext {length}\n")
        table(times)
        return least(times, "8") / least(times, "1")

    def _transformers(self) -> float | None:
        """Return the ratio of tokens a second, a run of each in turn; theirs is the bare loop, without generate's."""
        try:
            import torch
            from transformers import AutoModelForCausalLM

            from foredraft.models.hf.load import STATES
        except ImportError:
            print("transformers is not installed: nothing to compare with")
            return None
        lm = foredraft.load(
            self.folder,
            drafter="none",
            device="cpu",
            threads=self.arguments.threads,
            cache=self.cache,
            native_tier=self.arguments.native_tier,
        )
        torch.set_num_threads(lm.loaded.target.model.threads)
        theirs = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.bfloat16).eval()
        state = next(name for name in STATES if name in inspect.signature(theirs.forward).parameters)
        tokens = 24 if self.arguments.quick else 96
        prompt = lm.loaded.tokenizer.encode("It was the longest winter that anybody in the village could remember. ")

        @torch.inference_mode()
        def their_speed() -> float:
            past, ids = None, torch.tensor([prompt])
            for step in range(tokens + 1):
                out = theirs(input_ids=ids, use_cache=True, logits_to_keep=1, **{state: past})
                past, ids = getattr(out, state), out.logits[:, -1:].argmax(-1)
                if step == 0:
                    began = time.perf_counter()
            return (time.perf_counter() - began) / tokens

        def our_speed() -> float:
            time.sleep(0.5)  # torch's threads go on spinning for a while, on the cores that ours need
            return 1 / lm.generate(prompt, max_tokens=tokens + 1).timings.tokens_per_s

        times = take_turns({"ours": our_speed, "transformers": their_speed}, 3 if self.arguments.quick else 7, warm=1)
        print("\nplain decoding, a token\n")
        table(times)
        return least(times, "transformers") / least(times, "ours")

    def _prefill(self, model: Any) -> float | None:
        try:
            torch = self.open("off")
        except foredraft.errors.ForedraftError as error:
            print(error)
            return None
        ways = {"ours": lambda: read(model, 2, 512), "torch": lambda: read(torch, 2, 512)}
        times = take_turns(ways, 4 if self.arguments.quick else 12, warm=1)
        model.release(2)
        print("\nreading 512 tokens\n")
        table(times)
        return least(times, "ours") / least(times, "torch")

    def _extra(self) -> float | None:
        words = [sys.executable, "-m", "benchmarks.passes.forward", "--extra"]
        words += ["--model", str(self.folder), "--cache", str(self.cache)]
        for name in ("threads", "native_tier"):
            if getattr(self.arguments, name) is not None:
                words += [f"--{name.replace('_', '-')}", str(getattr(self.arguments, name))]
        out = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1]
        print(f"\nmemory of the pass: {out} MB")
        return None if out == "None" else float(out)

    def extra(self) -> float | None:
        """Return the megabytes that loading and passes add to a fresh process, weights and slots not counted."""
        before = anonymous()
        model = self.open()
        read(model, 0, 512)
        for rows in (64, 1):
            forward(model, rows, CONTEXT)
        after = anonymous()
        if before is None or after is None:
            return None
        spec = model.spec
        slot = 2 * spec.layers * spec.kv_heads * spec.head_dim * 512 * 2  # keys and values of 512 tokens in bf16
        return round((after - before - slot) / 1e6, 1)

    def _bitwise(self) -> bool:
        same = True
        for tier in TIERS:
            model, alone = self.open(tier), self.open(tier, threads=1)
            if model is None or alone is None:
                continue
            fine = bits_hold(model, alone)
            print(f"bits in {tier}: {'hold' if fine else 'DIFFER'}")
            same = same and fine
        return same

    def wide(self) -> dict[str, float]:
        """Return the figures of a random model of 1 B parameters."""
        with made() as (folder, cache):
            self.cache = cache
            model = self.open(folder=folder)
            (folder / "model.safetensors").unlink()  # packed by now
            feed(model, 0, CONTEXT)
            ways = passes(model, (1, 8, 16), CONTEXT) | {"floor": model.floor}
            times = take_turns(ways, max(self.rounds // 4, 5), warm=1)
            print("\na random model of 1 B parameters\n")
            table(times)
        return {
            "t1_ms": 1e3 * least(times, "1"),
            "floor_ratio": least(times, "1") / least(times, "floor"),
            "v8": least(times, "8") / least(times, "1"),
            "v16": least(times, "16") / least(times, "1"),
        }


@contextmanager
def made() -> Iterator[tuple[Path, Path]]:
    """Write a random model of 1 B parameters, and have a cache folder for its packed form, for a while."""
    with tempfile.TemporaryDirectory() as place:
        sizes = {"hidden": 2048, "layers": 16, "mlp": 8192, "heads": 32, "kv_heads": 8, "vocabulary": 32000}
        yield random_llama(Path(place) / "wide", **sizes), Path(place) / "cache"


if __name__ == "__main__":
    main()

"""What this machine allows: seconds of a pass by its rows, and what follows for draft lengths and batches.

One reading of the weights serves every row of a pass, until arithmetic is what takes the time. Guesses use what is idle
between the two. Speed-up of k guesses, each right with chance a, against plain decoding of the same batch b:

    (1 + a + ... + a^k) * t(b) / (t(b * (k + 1)) + b * (k + 1) * c)

with t the seconds of a pass and c those of drafting a guess (Leviathan et al. 2022, arXiv 2211.17192, theorem 3.8, with
a measured t in place of a constant one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from foredraft.core.protocols import Drafter
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.loop import run
from foredraft.errors import DrafterError
from foredraft.measure.roofline.machine_load import Repeats
from foredraft.models.capabilities import Weighed, WithSpec
from foredraft.models.spec import DecoderSpec
from foredraft.planning.choose import Chooser
from foredraft.planning.costs import PassTable
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.runtime.pass_table import measure

LENGTHS: Final = 15  # guesses at most
CHANCES: Final = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PAYS: Final = 1.02  # less is within the noise
_READINGS: Final = 9
_WIDTHS: Final = {"bf16": 2, "f32": 4, "f64": 8}  # bytes of a weight
_DRAFTED: Final = 4  # guesses a round with which acceptance is observed


@dataclass(frozen=True, slots=True)
class Guesser:
    """One drafter on the prompts: the chance of its first guess, seconds a guess, how often it has one to make."""

    name: str
    tested: int
    chance: float
    seconds: float
    answers: float


@dataclass(frozen=True, slots=True)
class Weights:
    """What a row is multiplied with: ``products`` multiply-adds a row, over so many ``bytes`` of weights.

    ``floor_bytes`` are those that one reading of the weights reads; None where that cannot be measured.
    """

    products: int
    bytes: int
    floor_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Roofline:
    """What was measured. ``floor`` is the seconds of one reading of the weights; None where that cannot be measured.

    ``weights`` is None for a model whose form is not known here; ``faults`` says of drafters why they have no figures.
    """

    table: PassTable
    floor: float | None
    guessers: tuple[Guesser, ...]
    weights: Weights | None = None
    repeats: Repeats | None = None
    faults: dict[str, str] = field(default_factory=dict)

    def speedup(self, chance: float, length: int, seconds: float = 0.0, batch: int = 1) -> float:
        """Return what a draft length is expected to give against plain decoding, which is 1."""
        tokens = sum(chance**i for i in range(length + 1))
        drafting = batch * seconds * (length + 1) if length else 0.0
        return tokens * self.table.bare(batch) / (self.table.bare(batch * (length + 1)) + drafting)

    def best(self, chance: float, seconds: float = 0.0, batch: int = 1) -> tuple[float, int]:
        """Return the greatest speed-up over draft lengths, none among them, and its length."""
        return max((self.speedup(chance, k, seconds, batch), -k) for k in range(LENGTHS + 1))

    def ends(self, chance: float, seconds: float = 0.0) -> int | None:
        """Return the smallest batch from which on no draft length pays; None where even the largest one gains."""
        gains = [self.best(chance, seconds, batch)[0] >= PAYS for batch in BATCHES]
        last = max((i for i, pays in enumerate(gains) if pays), default=-1)
        return BATCHES[last + 1] if last + 1 < len(BATCHES) else None

    @property
    def read_gb_s(self) -> float | None:
        """Gigabytes a second at which weights alone can be read; None where that cannot be measured."""
        if self.floor is None or self.weights is None or self.weights.floor_bytes is None:
            return None
        return self.weights.floor_bytes / self.floor / 1e9

    @property
    def pass_gb_s(self) -> float | None:
        """Gigabytes of weights a second that a plain pass reads."""
        return None if self.weights is None else self.weights.bytes / self.table.bare(1) / 1e9

    def gflop_s(self, rows: int) -> float | None:
        """Return the billions of multiplications and additions a second with weights in a pass of so many rows."""
        return None if self.weights is None else 2 * self.weights.products * rows / self.table.bare(rows) / 1e9

    @property
    def busiest(self) -> int:
        """Rows of the measured pass with the most arithmetic a second."""
        return max(self.table.rows, key=lambda rows: rows / self.table.bare(rows))

    @property
    def busy(self) -> bool:
        """Whether the machine did something else meanwhile."""
        return self.repeats is not None and self.repeats.busy

    def document(self) -> dict[str, Any]:
        """Return all of it under names, times in milliseconds."""
        table, plain = self.table, self.table.bare(1)
        curves = [self._curve(f"{chance:.1f}", chance, 0.0) for chance in CHANCES]
        return {
            "rows": list(table.rows),
            "pass_ms": [1e3 * s for s in table.seconds],
            "relative": [s / plain for s in table.seconds],
            "context_us_per_1000_tokens": [1e9 * table.per_token, 1e9 * table.per_row],
            "weights_once_ms": None if self.floor is None else 1e3 * self.floor,
            "read_gb_s": self.read_gb_s,
            "plain_pass_gb_s": self.pass_gb_s,
            "plain_pass_gflop_s": self.gflop_s(1),
            "most_gflop_s": self.gflop_s(self.busiest),
            "most_gflop_s_rows": self.busiest,
            "repeats": None if self.repeats is None else self.repeats.document(),
            "busy": self.busy,
            "rows_for_one_pass": max(m for m in table.rows if table.bare(m) < 2 * plain),
            "marginal_row_ms": 1e3 * (table.bare(64) - table.bare(32)) / 32,
            "curves": curves,
            "drafters": [
                {
                    "tested": g.tested,
                    "guess_ms": 1e3 * g.seconds,
                    "has_a_guess": g.answers,
                    **self._curve(g.name, g.chance, g.seconds),
                }
                for g in self.guessers
            ],
            "failed": [{"name": name, "fault": why} for name, why in self.faults.items()],
        }

    def _curve(self, name: str, chance: float, seconds: float) -> dict[str, Any]:
        speedup, length = self.best(chance, seconds)
        return {
            "name": name,
            "acceptance": chance,
            "speedup": [self.speedup(chance, k, seconds) for k in range(LENGTHS + 1)],
            "best_length": -length,
            "best_speedup": speedup,
            "batches": list(BATCHES),
            "best_by_batch": [self.best(chance, seconds, batch)[0] for batch in BATCHES],
            "stops_at_batch": self.ends(chance, seconds),
        }


def measured(
    loaded: LoadedModel,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Sequence[int]],
    tokens: int,
    faults: Mapping[str, str],
) -> Roofline:
    """Time passes, and let each drafter guess in greedy answers of so many ``tokens`` to some prompts of token ids.

    ``drafters`` are those by name; one that breaks joins the ``faults`` of those that could not be made.
    """
    model = loaded.target.model
    repeats = Repeats(model, loaded.context)
    repeats.again()
    table = measure(model, loaded.context)
    repeats.again()
    floor = min(model.floor() for _ in range(_READINGS)) if isinstance(model, Weighed) else None
    guessers, broken = [], dict(faults)
    for name, drafter in drafters.items():
        try:
            guessers.append(_observed(loaded, drafter, prompts, tokens))
        except DrafterError as error:
            broken[name] = " ".join(str(error).split())
        repeats.again()
    return Roofline(table, floor, tuple(guessers), weights_of(model, loaded.dtype), repeats, broken)


def weights_of(model: object, dtype: str) -> Weights | None:
    """Return what a row of a dense decoder is multiplied with; None for a model that has no ``spec``."""
    spec = model.spec if isinstance(model, WithSpec) else None
    if not isinstance(spec, DecoderSpec):
        return None
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    layer = spec.hidden * (q + 2 * kv) + q * spec.hidden + 3 * spec.hidden * spec.mlp
    products = spec.layers * layer + spec.hidden * spec.vocabulary
    read = model.read_bytes() if isinstance(model, Weighed) else None  # of types that differ from matrix to matrix
    whole = model.weight_bytes() if isinstance(model, Weighed) else None
    return Weights(products, products * _WIDTHS.get(dtype, 4) if read is None else read, whole)


def _observed(loaded: LoadedModel, drafter: Drafter, prompts: Sequence[Sequence[int]], tokens: int) -> Guesser:
    """Raises DrafterError for a drafter that breaks."""
    chooser = Chooser([drafter], vocabulary=loaded.target.vocabulary)
    (source,) = chooser.sources
    ends = frozenset(() if loaded.tokenizer is None else loaded.tokenizer.stop_ids)
    for prompt in prompts:
        limit = min(len(prompt) + tokens, loaded.context)
        sequence = TokenSequence(list(prompt), limit, SamplingParams(), stop_ids=ends)
        with closing(run([sequence], loaded.target, chooser, FixedPlanner(_DRAFTED))) as rounds:
            for _ in rounds:
                if source.faults:
                    break
        if source.faults:
            raise DrafterError(chooser.notice or f"drafter {source.name} was dropped")
    acceptance = source.acceptance
    chance = acceptance.accepted / acceptance.tested if acceptance.tested else 0.0
    return Guesser(source.name, acceptance.tested, chance, source.unit or 0.0, source.answers)

"""What a pass costs: a table, what is measured, and a table at work."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from foredraft.errors import StorageError
from foredraft.models.model import Rows
from foredraft.planning.costs import TABLED, Costs, PassTable, fitted
from foredraft.runtime import pass_table as pass_table_module
from foredraft.runtime.pass_table import measure, pass_table
from tests.planning.simulate import Clock

FLAT = PassTable((1, 2, 4, 8, 16, 64), (5e-3, 5.2e-3, 5.3e-3, 5.5e-3, 8e-3, 20e-3), 1e-6, 2e-6)


def test_a_table_between_its_rows_and_beyond_them() -> None:
    assert [FLAT.bare(rows) for rows in FLAT.rows] == pytest.approx(FLAT.seconds)
    assert FLAT.bare(3) == pytest.approx(5.25e-3)
    assert FLAT.bare(12) == pytest.approx(6.75e-3)
    assert FLAT.bare(0) == FLAT.bare(1)
    assert FLAT.bare(112) == pytest.approx(32e-3)  # the last slope goes on
    assert FLAT.of(4, 100, 300) == pytest.approx(5.3e-3 + 1e-4 + 6e-4)
    single = PassTable((1,), (2e-3,), 0.0, 0.0)
    assert [single.bare(rows) for rows in (1, 3)] == pytest.approx([2e-3, 6e-3])


def test_the_table_and_its_costs_agree() -> None:
    costs = Costs(FLAT)
    for rows in (1, 2, 3, 7, 15, 16, 40, 64, 200, TABLED, TABLED + 50):
        assert costs.seconds(rows, 70, 90) == pytest.approx(FLAT.of(rows, 70, 90))
        steps = costs.steps(rows, 5, 30)
        bare = [FLAT.bare(i) for i in range(rows, rows + 6)]
        assert steps == pytest.approx([b - a + 30 * 2e-6 for a, b in pairwise(bare)])
    assert costs.steps(3, 0, 10) == []


@pytest.mark.parametrize("seed", range(20))
def test_noise_never_makes_more_rows_cheaper(seed: int) -> None:
    draw = random.Random(seed)
    truth = [5e-3 * (1 + 0.02 * m) for m in FLAT.rows]
    noisy = [s * (1 + 0.5 * draw.random()) for s in truth]
    table = fitted(FLAT.rows, noisy, (1000, 6e-3 * (1 + draw.random()), 6e-3 * (1 + draw.random())))
    assert table.sane()
    assert all(a <= b for a, b in pairwise(table.seconds))
    assert all(found <= seen for found, seen in zip(table.seconds, noisy, strict=True))
    assert min(Costs(table).steps(1, 40, 1000)) >= 0.0


def test_what_context_costs() -> None:
    truth = replace(FLAT, per_token=3e-6, per_row=1e-6)
    table = fitted(truth.rows, truth.seconds, (500, truth.of(1, 500, 500), truth.of(8, 500, 4000)))
    assert (table.per_token, table.per_row) == pytest.approx((3e-6, 1e-6))
    noise = fitted(truth.rows, truth.seconds, (500, 1e-9, 1e-9))
    assert (noise.per_token, noise.per_row) == (0.0, 0.0)
    assert fitted((1, 2), (1e-3, 1e-3), None) == PassTable((1, 2), (1e-3, 1e-3), 0.0, 0.0)
    stopped = fitted((1, 2), (0.0, 0.0), None)  # a clock too coarse for it
    assert stopped.sane()


def taught(costs: Costs, truth: Callable[[int], float], rows: Sequence[int], rounds: int = 400) -> Costs:
    for i in range(rounds):
        m = rows[i % len(rows)]
        costs.learn(m, 0, 0, truth(m))
    return costs


def test_a_machine_that_becomes_slow_slows_everything_alike() -> None:
    costs = taught(Costs(FLAT), lambda m: 2 * FLAT.bare(m), (1, 4, 8), 1500)
    assert costs.pace == pytest.approx(2.0, rel=0.04)
    assert costs.bend == pytest.approx(1.0, rel=0.15)
    taught(costs, FLAT.bare, (1, 4, 8), 1500)
    assert costs.pace == pytest.approx(1.0, rel=0.02)


def test_a_machine_whose_arithmetic_others_use_bends() -> None:
    steep = PassTable((1, 16), (5e-3, 10e-3), 0.0, 0.0)
    costs = taught(Costs(steep), lambda m: 5e-3 + 3 * (steep.bare(m) - 5e-3), (1, 4, 8, 16), 2000)
    assert costs.pace == pytest.approx(1.0, rel=0.05)
    assert costs.bend == pytest.approx(3.0, rel=0.1)
    assert costs.steps(1, 1, 0)[0] * costs.pace == pytest.approx(1e-3, rel=0.1)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, math.nan, math.inf, 3600.0])
def test_a_clock_that_jumps_teaches_nothing(seconds: float) -> None:
    costs = Costs(FLAT)
    costs.learn(4, 10, 10, seconds)
    assert (costs.pace, costs.bend) == (1.0, 1.0)


def test_one_slow_pass_teaches_little() -> None:
    costs = Costs(FLAT)
    costs.learn(4, 0, 0, 100 * FLAT.bare(4))
    assert costs.pace < 1.02
    for _ in range(3000):
        costs.learn(64, 0, 0, 900 * FLAT.bare(64) * costs.pace)
    assert costs.bend <= 16.0
    assert math.isfinite(costs.pace)


def test_noise_to_one_side_leaves_the_shape() -> None:
    draw, costs = random.Random(1), Costs(FLAT)
    taught(costs, lambda m: FLAT.bare(m) * (1 + 0.4 * draw.random()), (1, 2, 5, 9), 3000)
    assert costs.bend == pytest.approx(1.0, abs=0.15)
    assert 1.05 < costs.pace < 1.35


class Timed:
    """A model of which only the time is of interest: what a pass costs moves a made clock."""

    vocabulary = 4
    context = 4096
    why_not_rewindable = ""

    def __init__(self, clock: Clock, seconds: Callable[[int, int], float]) -> None:
        self.clock = clock
        self.seconds = seconds
        self.passes = 0
        self.held: dict[int, int] = {}

    def forward(self, rows: Sequence[Rows], taps: Any = (), *, logits: bool = True) -> Any:
        (row,) = rows
        assert self.held.get(row.slot, 0) >= row.start, "a gap in the slot"
        self.held[row.slot] = row.start + len(row.tokens)
        self.passes += 1
        self.clock.now += self.seconds(len(row.tokens), row.start)

    def release(self, slot: int) -> None:
        self.held.pop(slot, None)


def law_of(m: int, context: int) -> float:
    return FLAT.bare(m) + 1e-6 * context + 2e-7 * context * m


def test_passes_are_timed_and_the_slots_left_as_they_were() -> None:
    clock = Clock()
    model = Timed(clock, law_of)
    table = measure(model, 4096, clock)  # type: ignore[arg-type]
    assert table.rows == pass_table_module.ROWS
    assert [table.bare(m) for m in (1, 8, 64)] == pytest.approx([law_of(m, 32) for m in (1, 8, 64)])
    assert (table.per_token, table.per_row) == pytest.approx((1e-6, 2e-7), rel=0.05)
    assert model.held == {}
    assert clock.now < 8.0


def test_the_least_of_several_counts() -> None:
    clock, draw = Clock(), random.Random(3)
    model = Timed(clock, lambda m, context: law_of(m, context) * (1 + (draw.random() < 0.5)))
    table = measure(model, 4096, clock)  # type: ignore[arg-type]
    assert [table.bare(m) for m in (1, 8, 64)] == pytest.approx([law_of(m, 32) for m in (1, 8, 64)], rel=0.2)


def test_a_slow_model_is_timed_for_as_long_as_is_needed() -> None:
    clock = Clock()
    model = Timed(clock, lambda m, context: 0.5 + 0.1 * m + 1e-4 * context * 0)
    table = measure(model, 4096, clock)  # type: ignore[arg-type]
    assert table.rows == tuple(m for m in pass_table_module.ROWS if m <= 16)
    assert table.per_row == 0.0  # no context was read
    assert clock.now < 60.0


@pytest.mark.parametrize("context", [2, 9, 40, 100, 150])
def test_a_short_context_is_not_exceeded(context: int) -> None:
    clock, most = Clock(), [0]

    def seconds(m: int, start: int) -> float:
        most[0] = max(most[0], m + start)
        return law_of(m, start)

    table = measure(Timed(clock, seconds), context, clock)  # type: ignore[arg-type]
    assert most[0] <= context
    assert table.sane()
    assert table.rows[0] == 1


FACTS = {"version": "1", "machine": "2 x thing", "tier": "avx2"}


@pytest.fixture
def timing() -> tuple[Timed, Clock]:
    clock = Clock()
    return Timed(clock, law_of), clock


def asked(timing: tuple[Timed, Clock], path: Path | None, facts: Any = FACTS) -> tuple[PassTable, bool]:
    """Return the table, and whether passes were timed for it."""
    model, clock = timing
    model.passes = 0
    table = pass_table(model, 4096, path, facts, clock)  # type: ignore[arg-type]
    return table, model.passes > 0


def test_a_table_is_kept_and_read(timing: tuple[Timed, Clock], tmp_path: Path) -> None:
    path = tmp_path / "costs" / "a.json"
    table, timed = asked(timing, path)
    assert timed
    assert asked(timing, path) == (table, False)
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]
    assert asked(timing, None)[1]


@pytest.mark.parametrize("changed", [{"version": "2"}, {"machine": "8 x thing"}, {"tier": "amx"}, {"threads": 3}])
def test_a_table_of_another_machine_or_version_is_measured_anew(
    timing: tuple[Timed, Clock], tmp_path: Path, changed: Any
) -> None:
    path = tmp_path / "a.json"
    asked(timing, path)
    assert asked(timing, path, {**FACTS, **changed})[1]
    assert not asked(timing, path, {**FACTS, **changed})[1]  # which replaces it
    assert asked(timing, path)[1]


def broken(**changes: Any) -> str:
    table = {**asdict(FLAT), **changes}
    return json.dumps({"format": pass_table_module.FORMAT, **FACTS, "table": table})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        "[" * 100_000,
        json.dumps({"format": pass_table_module.FORMAT, **FACTS}),
        json.dumps({"format": 0, **FACTS, "table": asdict(FLAT)}),
        broken(rows=[2, 4], seconds=[1, 2]),
        broken(rows=[1, 4, 4, 8, 16, 64]),
        broken(seconds=[1, 2]),
        broken(seconds=[5, 4, 6, 7, 8, 9]),
        broken(seconds=[-1, 2, 3, 4, 5, 6]),
        broken(seconds=[math.nan] * 6),
        broken(per_token=-1.0),
        broken(per_row=math.inf),
        broken(rows=[], seconds=[]),
        broken(rows="abc"),
        broken(rows=[math.inf] * 6),
        broken(seconds=None),
        "\udcff",
    ],
)
def test_a_file_that_makes_no_sense_is_measured_anew(timing: tuple[Timed, Clock], tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    table, timed = asked(timing, path)
    assert timed
    assert table.sane()
    assert asked(timing, path) == (table, False)


def test_a_pipe_in_the_files_place_is_not_waited_for(timing: tuple[Timed, Clock], tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    os.mkfifo(path)
    table, timed = asked(timing, path)
    assert timed
    assert table.sane()


def test_a_good_file_is_taken_as_it_is(timing: tuple[Timed, Clock], tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(broken())
    assert asked(timing, path) == (FLAT, False)


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    timing: tuple[Timed, Clock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, text: str) -> None:
        raise StorageError(f"cannot write {path}")

    monkeypatch.setattr(pass_table_module, "write_whole", refuse)
    path = tmp_path / "a.json"
    first, timed = asked(timing, path)
    assert timed
    assert first.sane()
    assert asked(timing, path)[1]
    (tmp_path / "folder").write_text("")
    monkeypatch.undo()
    assert asked(timing, tmp_path / "folder" / "a.json")[1]  # a file where a folder belongs

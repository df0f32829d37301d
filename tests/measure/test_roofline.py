"""What a roofline says of a machine whose passes are known."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foredraft.cli.roofline import lines
from foredraft.errors import OptionError
from foredraft.measure.roofline.machine_load import BUSY, ROWS, Repeats
from foredraft.measure.roofline.plot import plot
from foredraft.measure.roofline.roofline import BATCHES, Guesser, Roofline, Weights, measured, weights_of
from foredraft.planning.costs import PassTable
from tests.measure.toys import PROMPTS, certain, drafter, host

FLAT = Roofline(PassTable((1, 64), (5e-3, 5e-3), 0.0, 0.0), 4e-3, ())
LINEAR = Roofline(PassTable((1, 64), (5e-3, 64 * 5e-3), 0.0, 0.0), None, (Guesser("own", 10, 0.9, 1e-3, 1.0),))


@pytest.mark.parametrize("chance", [0.3, 0.8])
def test_where_rows_are_free_the_speed_up_is_the_tokens(chance: float) -> None:
    assert FLAT.speedup(chance, 3) == pytest.approx((1 - chance**4) / (1 - chance))
    assert FLAT.best(chance)[1] == -15
    assert FLAT.ends(chance) is None
    assert FLAT.speedup(chance, 0, seconds=9.0) == 1.0


def test_drafting_is_paid_for() -> None:
    assert FLAT.speedup(0.8, 1, seconds=5e-3) == pytest.approx(1.8 / 3)
    assert FLAT.best(0.8, seconds=5e-3) == (1.0, 0)


def test_where_a_row_costs_a_pass_nothing_pays() -> None:
    assert LINEAR.best(0.9) == (1.0, 0)
    assert LINEAR.ends(0.9) == BATCHES[0]
    document = LINEAR.document()
    assert document["rows_for_one_pass"] == 1
    assert document["drafters"][0]["best_length"] == 0
    assert document["weights_once_ms"] is None
    assert "stops at a batch of" in "\n".join(lines(LINEAR))
    assert "more than 64" in "\n".join(lines(FLAT))


def test_a_knee_is_found() -> None:
    knee = Roofline(PassTable((1, 16, 64), (5e-3, 5e-3, 20e-3), 0.0, 0.0), None, ())
    assert knee.best(0.8)[1] <= -14
    assert 2 < (knee.ends(0.8) or 0) <= 32
    gains = [knee.best(0.8, batch=batch)[0] for batch in BATCHES]
    assert gains == sorted(gains, reverse=True)


def test_without_matplotlib_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match=r"pip install 'foredraft\[plots\]'"):
        plot(FLAT.document(), tmp_path / "x.png", "x")


KNOWN = Roofline(
    PassTable((1, 8, 64), (5e-3, 6e-3, 32e-3), 0.0, 0.0), 4e-3, (), Weights(100_000_000, 200_000_000, 240_000_000)
)


def test_what_is_read_and_computed_in_a_second() -> None:
    document = KNOWN.document()
    assert document["read_gb_s"] == pytest.approx(60)  # 0.24 GB in 4 ms
    assert document["plain_pass_gb_s"] == pytest.approx(40)
    assert document["plain_pass_gflop_s"] == pytest.approx(40)
    assert (document["most_gflop_s"], document["most_gflop_s_rows"]) == (pytest.approx(400), 64)
    told = "\n".join(lines(KNOWN))
    assert "reading the weights once takes 4 ms, 80 % of a plain pass: 60.0 GB/s" in told
    assert "a plain pass reads 40.0 GB/s and computes 40 GFLOP/s" in told
    assert "at most 400 GFLOP/s, in a pass of 64 rows" in told


def test_what_is_not_known_is_not_told() -> None:
    document = LINEAR.document()
    for name in ("read_gb_s", "plain_pass_gb_s", "plain_pass_gflop_s", "most_gflop_s"):
        assert document[name] is None
    assert "GB/s" not in "\n".join(lines(LINEAR))
    assert "4 ms, 80 % of a plain pass" in "\n".join(lines(FLAT))  # FLAT's floor is known, its bytes are not


def test_weights_of_a_checkpoint(tmp_path: Path) -> None:
    import json

    from foredraft.models.spec import read_spec
    from tests.models.checkpoints import make_checkpoint

    make_checkpoint("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    wide, mlp = config["hidden_size"], config["intermediate_size"]
    heads = config["head_dim"] * (2 * config["num_attention_heads"] + 2 * config["num_key_value_heads"])
    layer = wide * heads + 3 * wide * mlp
    products = config["num_hidden_layers"] * layer + wide * config["vocab_size"]
    weighed = {"floor": lambda: 1.0, "weight_bytes": lambda: 7, "read_bytes": lambda: None}
    model = SimpleNamespace(spec=read_spec(config), **weighed)
    assert weights_of(model, "bf16") == Weights(products, 2 * products, 7)
    assert weights_of(SimpleNamespace(spec=["forward"]), "f32") is None


class Timed:
    """A model whose passes take what a list says, by a clock of its own."""

    def __init__(self, times: list[float]) -> None:
        self.now, self.times, self.passes, self.released = 0.0, times, 0, 0

    def forward(self, rows: Any) -> None:
        self.now += self.times[self.passes % len(self.times)]
        self.passes += 1

    def release(self, slot: int) -> None:
        self.released += 1

    def repeats(self, context: int = 99, blocks: int = 3) -> Repeats:
        model: Any = self
        found = Repeats(model, context, lambda: self.now)
        for _ in range(blocks):
            found.again()
        return found


def test_the_same_pass_lies_together_on_an_idle_machine() -> None:
    idle = Timed([0.010, 0.0101, 0.0102])
    found = idle.repeats()
    assert not found.busy
    assert found.spread == pytest.approx(1.0, abs=0.02)
    assert idle.released == 3
    assert [each["times"] for each in found.document()["passes"]] == [24, 24]


def test_a_busy_machine_is_noticed() -> None:
    for times in ([0.010, 0.025, 0.013, 0.031, 0.017], [0.010] * 19 + [0.014] * 40):  # always; after a while
        found = Timed(times).repeats()
        assert found.spread >= BUSY
        assert found.document()["busy"]


def test_a_slow_model_is_not_timed_for_long() -> None:
    slow = Timed([2.0])
    assert {rows: len(each) for rows, each in slow.repeats(blocks=1).seconds.items()} == dict.fromkeys(ROWS, 2)
    assert list(Timed([1.0]).repeats(context=4).seconds) == [1]  # no room for the others
    assert Timed([0.0]).repeats().spread == 1.0  # a clock that stands still


def test_a_drafter_that_breaks_has_no_figures() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("two\nlines")

    given = {"good": drafter(certain, "good"), "bad": drafter(broken, "bad")}
    found = measured(host(), given, PROMPTS, 12, {"absent": "there is none"})
    assert [guesser.name for guesser in found.guessers] == ["good"]
    assert found.faults == {"absent": "there is none", "bad": "drafter bad was dropped: two lines"}
    assert found.document()["failed"][0] == {"name": "absent", "fault": "there is none"}
    told = lines(found)
    assert told[-2:] == ["absent failed: there is none", "bad failed: drafter bad was dropped: two lines"]
    assert found.repeats is not None
    assert len(found.repeats.seconds[1]) >= 8
    assert host().target.slots.free == len(host().target.slots)


STRANGE = Guesser("model:a$b_{$c", 5, 0.4, 1e-4, 1.0)
LONE = Roofline(PassTable((1,), (5e-3,), 0.0, 0.0), 4e-3, (), Weights(10**8, 2 * 10**8, 2 * 10**8))
BUSILY = Roofline(KNOWN.table, 4e-3, (STRANGE,) * 6, KNOWN.weights, Timed([0.01, 0.03, 0.05, 0.01]).repeats())


@pytest.mark.parametrize("found", [FLAT, LINEAR, KNOWN, LONE, BUSILY])
def test_a_figure_is_drawn(tmp_path: Path, found: Roofline) -> None:
    pytest.importorskip("matplotlib")
    plot(found.document(), tmp_path / "x.png", "a$x")
    drawn: Any = (tmp_path / "x.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")

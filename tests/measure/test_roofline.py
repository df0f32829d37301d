"""What a roofline says of a machine whose passes are known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli.roofline import lines
from foredraft.errors import OptionError
from foredraft.measure.roofline import BATCHES, Guesser, Roofline
from foredraft.measure.roofline_plot import plot
from foredraft.planning.costs import PassTable

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


def test_a_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(LINEAR.document(), tmp_path / "x.png", "x")
    drawn: Any = (tmp_path / "x.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")

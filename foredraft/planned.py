"""The planner of one model: made when it is first needed, with costs that were measured on this machine."""

from __future__ import annotations

import platform
from pathlib import Path

from foredraft._version import __version__
from foredraft.compose import Host
from foredraft.core.draft import Drafter
from foredraft.engine.tally import Tally
from foredraft.models.store import Progress
from foredraft.planning.choose import Chooser
from foredraft.planning.costs import Costs
from foredraft.planning.measured import pass_table
from foredraft.planning.planner import AutoPlanner
from foredraft.result import Pace


class Planning:
    """Plans for one model. What it learns of machine and texts serves all that the model is asked."""

    def __init__(self, host: Host, progress: Progress | None = None) -> None:
        self._host = host
        self._progress = progress
        self._planner: AutoPlanner | None = None

    def planner(self) -> AutoPlanner:
        """Return the planner; the first time passes are timed, unless that was done on this machine before."""
        if self._planner is None:
            host = self._host
            threads = getattr(host.target.model, "threads", None)
            facts = {
                "version": __version__, "identity": host.identity, "tier": host.tier, "device": host.device,
                "dtype": host.dtype, "threads": threads, "machine": _processor(),
            }  # fmt: skip
            name = f"{host.identity}-{host.tier}-{host.dtype}-{threads}.json"
            kept = host.cache / "costs" / name if host.identity and host.folder is not None else None
            table = pass_table(host.target.model, host.context, kept, facts, self._progress)
            self._planner = AutoPlanner(Costs(table))
        return self._planner

    def pace(self, tally: Tally, drafter: Drafter, context: int) -> Pace:
        """Return what plain decoding would have given, and what was decided and why, in a few words."""
        if self._planner is None:
            return Pace(None, None)
        costs, beside = self._planner.costs, self._planner.means.beside
        plain = 1.0 / ((costs.seconds(1, context, context) + beside) * costs.pace)
        return Pace(plain, self._why(tally, drafter, context) if tally.passes else None)

    def _why(self, tally: Tally, drafter: Drafter, context: int) -> str:
        assert self._planner is not None
        costs = self._planner.costs
        plain = costs.seconds(1, context, context)
        price = (costs.seconds(5, context, 5 * context) - plain) / 4 / plain
        words = f"checking a guess costs {100 * price:.0f} % of a token here"
        if isinstance(drafter, Chooser):
            tested = [s for s in drafter.sources if s.acceptance.tested]
            words += "".join(f", {s.name} first guess {s.acceptance.chance(0):.2f}" for s in tested)
        if not tally.total.drafted:
            return f"off: {words}"
        return f"{tally.total.drafted / tally.passes:.1f} guesses a pass: {words}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()

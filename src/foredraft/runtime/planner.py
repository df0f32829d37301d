"""The planner of one model: made when it is first needed, with costs that were measured on this machine."""

from __future__ import annotations

from foredraft._version import __version__
from foredraft.core.protocols import Drafter, Planner
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.watches.tally import Tally
from foredraft.models.capabilities import WithThreads
from foredraft.planning.choose import Chooser
from foredraft.planning.costs import Costs
from foredraft.planning.planner import AutoPlanner
from foredraft.result import Pace
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.runtime.pass_table import pass_table
from foredraft.system.machine import machine


class Planning:
    """Plans for one model. What it learns of machine and texts serves all that the model is asked."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._auto: AutoPlanner | None = None

    def planner(self, length: int | None) -> Planner:
        """Return the planner of a generation: one of a fixed length, or where that is None the one that decides."""
        return self.auto() if length is None else FixedPlanner(length)

    def auto(self) -> AutoPlanner:
        """Return the planner that decides; the first time passes are timed, unless that was done here before."""
        if self._auto is None:
            loaded = self._loaded
            model = loaded.target.model
            threads = model.threads if isinstance(model, WithThreads) else None
            facts = {
                "version": __version__, "identity": loaded.identity, "tier": loaded.tier, "device": loaded.device,
                "dtype": loaded.dtype, "threads": threads, "machine": machine(),
            }  # fmt: skip
            name = f"{loaded.identity}-{loaded.tier}-{loaded.dtype}-{threads}.json"
            kept = loaded.cache / "costs" / name if loaded.identity and loaded.folder is not None else None
            self._auto = AutoPlanner(Costs(pass_table(model, loaded.context, kept, facts)))
        return self._auto

    def pace(self, tally: Tally, drafter: Drafter, context: int) -> Pace:
        """Return what plain decoding would have given, and what was decided and why, in a few words.

        Both are None where nothing was planned.
        """
        if self._auto is None:
            return Pace(None, None)
        seconds = self.plain_seconds(1, context)
        planned = isinstance(drafter, Chooser) and tally.passes
        reason = why(self._auto, tally, drafter, context) if planned else None
        return Pace(None if seconds is None else 1.0 / seconds, reason)

    def plain_seconds(self, texts: int, context: int) -> float | None:
        """Return what a round without guesses takes for texts of ``context`` tokens together; None if never timed."""
        if self._auto is None:
            return None
        costs = self._auto.costs
        return (costs.seconds(texts, context, context) + self._auto.means.plain) * costs.pace


def why(planner: AutoPlanner, tally: Tally, drafter: Drafter, context: int) -> str:
    """Return in a few words whether a text was drafted for, and why: what a guess costs, and how they fared."""
    sources = drafter.sources if isinstance(drafter, Chooser) else ()
    quote = planner.price(context)
    share = sum(quote.steps[:4]) / 4 / quote.plain
    words = f"verifying a guess costs {100 * share:.0f} % of a token here"
    if tally.total.drafted:
        return f"on: {tally.total.drafted / tally.passes:.1f} guesses a pass, {words}{_fared(tally)}"
    mute = [source.name for source in sources if quote.by(source).best()[0] > 0.0]
    if mute:
        return f"on: {' and '.join(mute)} had no guess to make"
    known = [f", {s.name} acceptance {s.acceptance.chance(0):.2f}" for s in sources if s.acceptance.tested]
    return f"off: {words}{''.join(known)}"


def _fared(tally: Tally) -> str:
    return "".join(f", {name} acceptance {c.accepted / c.drafted:.2f}" for name, c in tally.by_drafter.items())

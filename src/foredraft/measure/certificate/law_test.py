"""The test of sampled text against the target's own law, with the planted fault that it has to find."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from foredraft.core.protocols import Drafter
from foredraft.engine.watches.law_watch import LawWatch
from foredraft.engine.watches.tally import Tally
from foredraft.measure.certificate import p_values
from foredraft.measure.certificate.answers import Asker, Kind
from foredraft.measure.certificate.pit import FEWEST, Pit
from foredraft.measure.certificate.plan import THRESHOLD, Batch, Check
from foredraft.measure.certificate.planted_faults import FaultyDrafter, FavouringNoise

POWERLESS: Final = "the planted fault was not found: the test had no power here, so take more samples"
NOTHING: Final = "the drafter guessed nothing, so nothing was tested"


def law_check(check: str, name: str, asker: Asker, drafter: Drafter, kind: Kind, batch: Batch) -> Check:
    """Test sampled tokens against the target's own law. Raises whatever the drafter does.

    Where the noise of ``kind`` favours tokens, a fault is planted, and the test holds if it finds it.
    """
    planted = kind.noise is FavouringNoise
    tally, pit, watch = Tally(), Pit(np.random.default_rng(kind.seeds)), LawWatch()
    sequences = asker.sequences(kind, batch.answers)
    asker.answer(
        sequences, FaultyDrafter(drafter) if planted else drafter, batch.length, batch.width, [tally, pit, watch]
    )
    seen = pit.uniformity()
    # Ville: a wealth of M has a probability of at most 1/M, however it was come by
    watch_p = min(1.0, math.exp(-max(0.0, watch.evidence)))
    p = 0.0 if pit.impossible else p_values.bonferroni(seen.ks_p, seen.bins_p, seen.lag_p, watch_p)
    figures = {
        "tokens": seen.tokens,
        "drafted": tally.total.drafted,
        "accepted": tally.total.accepted,
        "ks_p": seen.ks_p,
        "bins_p": seen.bins_p,
        "lag_p": seen.lag_p,
        "watch_p": watch_p,
        "p_value": p,
        "threshold": THRESHOLD,
    }
    note = _why_not(planted, p, seen.tokens, tally)
    return Check(check, name, note is None, figures, note=note)


def _why_not(planted: bool, p: float, tokens: int, tally: Tally) -> str | None:
    if not tally.total.drafted:
        return NOTHING
    if tokens < FEWEST:
        return f"{tokens} tokens are too few: {FEWEST} are needed"
    if planted:
        return None if p < THRESHOLD else POWERLESS
    return None if p >= THRESHOLD else "the text does not have the model's distribution"

"""What a user may not expect of the options he gave."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.core.protocols import Drafter
from foredraft.core.sampling import SamplingParams
from foredraft.drafters.heads import HeadsDrafter
from foredraft.options import Settings
from foredraft.planning.choose import Chooser
from foredraft.result import Predicted
from foredraft.runtime.drafters import Drafters, notes_of, parts_of


def notices_of(settings: Settings, drafters: Drafters, drafter: Drafter, copied: Predicted | None) -> list[str]:
    """Return a sentence for each option that has no effect, or another than one may think, with this drafter.

    ``copied`` is what became of a prediction, where there was one.
    """
    notices = []
    idle = drafters.no_speculation_reason(settings, drafter) is not None
    if settings.seed is not None and settings.rule == "ratio" and not (settings.sampling.greedy or idle):
        notices.append(
            "under rule ratio a seed's text also depends on the drafter, its lengths and what the cache held; "
            "under coupled it does not"
        )
    if settings.sampling.greedy:
        notices += _greedy(settings)
    unused = [name for name in ("prediction", "cache_scope") if getattr(settings, name) is not None]
    if unused and idle:
        notices.append(f"{' and '.join(unused)} had no use: nothing was drafted")
    elif copied == Predicted(0, 0):
        notices.append("prediction had no use: no guess was copied from it")
    if isinstance(drafter, Chooser) and drafter.notice is not None:
        notices.append(drafter.notice)
    notices += [part.notice for part in parts_of(drafter) if isinstance(part, HeadsDrafter) and part.notice is not None]
    return notices + drafters.without_effect(settings, drafter) + notes_of(drafter)


def _greedy(settings: Settings) -> list[str]:
    """Say what temperature 0, which draws nothing, leaves without effect; a seed alone is no mistake."""
    notices, plain = [], SamplingParams()
    idle = [name for name in ("top_k", "top_p", "min_p") if getattr(settings.sampling, name) != getattr(plain, name)]
    if idle:
        names = _listed([*idle, *(["seed"] if settings.seed is not None else [])])
        notices.append(f"{names} had no effect: temperature 0 takes the likeliest token")
    if settings.n > 1:
        notices.append(f"{settings.n} answers at temperature 0 are all the same")
    return notices


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))

"""What beside the text itself an answer may be copied from: a prediction, and the recent text of a scope."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.core.capabilities import Copying
from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter, Quote
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.none import NoDrafter
from foredraft.errors import OptionError
from foredraft.result import Predicted
from foredraft.retrieval.copier import Counts
from foredraft.runtime.drafters import parts_of


def informed(drafter: Drafter, prediction: Sequence[int], scope: str | None) -> Drafter:
    """Return a drafter that is told of a prediction and a scope; the same one where there is nothing to tell.

    ``none`` stays as it is, for no option that concerns guesses can change its text. Raises OptionError for any other
    drafter that cannot use them.
    """
    if (scope is None and not prediction) or isinstance(drafter, NoDrafter):
        return drafter
    parts = tuple(part for part in parts_of(drafter) if isinstance(part, Copying))
    if not parts:
        name = "prediction" if prediction else "cache_scope"
        raise OptionError(f"{name} cannot be used by drafter {drafter.name}: use suffix, alone or joined with others")
    return Informed(drafter, parts, prediction, scope)


def uninformed(drafter: Drafter) -> Drafter:
    """Return the drafter that ``informed`` was given."""
    return drafter.drafter if isinstance(drafter, Informed) else drafter


def predicted(drafter: Drafter, sequences: Sequence[TokenSequence]) -> Predicted:
    """Return what became of the prediction in the answers to one prompt."""
    used = drafter.used if isinstance(drafter, Informed) else {}
    each = [used[sequence] for sequence in sequences if sequence in used]
    return Predicted(sum(one.accepted for one in each), sum(one.rejected for one in each))


class Informed:
    """A drafter whose copying parts are told, as each sequence begins, what else to copy from.

    ``used`` tells what became of the prediction in each sequence that has ended. It is ``Sharing`` the drafter itself.
    """

    def __init__(
        self, drafter: Drafter, parts: Sequence[Copying], prediction: Sequence[int], scope: str | None
    ) -> None:
        self.name = drafter.name
        self.taps = drafter.taps
        self.used: dict[TokenSequence, Counts] = {}
        self.drafter = self.shared = drafter
        self._parts = parts
        self._prediction = prediction
        self._scope = scope

    def begin(self, sequence: TokenSequence) -> None:
        """Tell the parts, then let the drafter meet the sequence."""
        for part in self._parts:
            part.prepare(sequence, self._prediction, self._scope)
        self.used[sequence] = Counts()
        self.drafter.begin(sequence)

    def propose(
        self, sequences: Sequence[TokenSequence], quotes: Sequence[Quote], noises: Sequence[Noise]
    ) -> Sequence[Draft]:
        """Return the drafter's drafts."""
        return self.drafter.propose(sequences, quotes, noises)

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Let the drafter see the outcome."""
        self.drafter.observe(sequences, outcomes, scored)

    def end(self, sequence: TokenSequence) -> None:
        """Count what the prediction was good for, and let the drafter forget the sequence."""
        try:
            if sequence in self.used:  # it may have been rejected
                each = [part.counts(sequence)["prediction"] for part in self._parts]
                self.used[sequence] = Counts(sum(one.drafted for one in each), sum(one.accepted for one in each))
        finally:
            self.drafter.end(sequence)

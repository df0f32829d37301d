"""What is known of one drafter: how its guesses fare, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foredraft.core.draft import Draft, Outcome
from foredraft.planning.acceptance import Acceptance

_GAIN: Final = 0.1  # of a draft on the price of a guess
_FREE: Final = 0.02  # of a plain pass that a guess may cost to be worth asking for in every round
_SURE: Final = 16  # guesses of a chain whose chances are multiplied


class Source:
    """One drafter's record. ``unit`` is the price of a guess in seconds of the clock; None until it was asked once."""

    def __init__(self, name: str, prior: float = 0.5) -> None:
        self.name = name
        self.acceptance = Acceptance(prior)
        self.unit: float | None = None
        self.idle = 0  # rounds since it was last asked
        self.gap = 8  # rounds between two looks at whether it has come to pay
        self.faults = 0
        self.draws = False  # whether its guesses were seen to be drawn, so that they are taken once they are made

    def free(self, plain: float) -> bool:
        """Say whether asking costs next to nothing against a plain pass of so many seconds."""
        return self.unit is not None and self.unit < _FREE * plain

    def paid(self, seconds: float, guesses: int, texts: int = 1) -> None:
        """Learn what the drafts of some texts took; catching up counts as one guess more for each."""
        each = seconds / (guesses + texts)
        self.unit = each if self.unit is None else self.unit + _GAIN * (min(each, 4 * self.unit) - self.unit)

    def worth(self, draft: Draft) -> float:
        """Return how many guesses of a draft are expected to be accepted."""
        sure = draft.confidences
        if sure is not None and len(sure) == len(draft):
            return sum(map(self.acceptance.survival, sure))
        total, paths = 0.0, [0.0] * len(draft)
        for i, (parent, depth) in enumerate(zip(draft.parents, draft.depths(), strict=True)):
            paths[i] = (1.0 if parent < 0 else paths[parent]) * self.acceptance.chance(depth - 1)
            total += paths[i]
        return total

    def learn(self, outcome: Outcome) -> None:
        """Count what became of a draft. What an end of the text left untested teaches nothing."""
        draft, kept = outcome.draft, outcome.kept
        judged = outcome.finish_reason is None
        hits = [True] * len(kept)
        last = kept[-1] if kept else -1
        if judged and last in draft.parents:
            hits.append(False)
        self.acceptance.learn(hits)
        sure = draft.confidences
        if judged and sure is not None and len(sure) == len(draft):
            accepted = set(kept)
            for i, each in enumerate(sure):
                self.acceptance.learn_path(each, i in accepted)

    def watched(self, draft: Draft, tokens: Sequence[int]) -> None:
        """Count a draft that was not taken against what was committed instead: the first choices, as far as tested."""
        hits: list[bool] = []
        node = -1
        for token in tokens:
            children = [i for i, parent in enumerate(draft.parents) if parent == node]
            if not children:
                break
            chosen = next((i for i in children if draft.tokens[i] == token), None)
            hits.append(chosen is not None)
            if chosen is None:
                break
            node = chosen
        self.acceptance.learn(hits)

"""What is known of one drafter: how its guesses fare, and what they cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from foredraft.core.draft import Draft, Outcome
from foredraft.planning.acceptance import DEPTHS, Acceptance

_GAIN: Final = 0.1  # of a draft on a price
_FALL: Final = 0.3  # the same where it turns out to be less
_SLOWER: Final = 4.0  # times a price that one draft can teach, at most: a machine stalls now and then
_FREE: Final = 0.02  # of a plain pass that a guess may cost to be worth asking for in every round
_NOWHERE: Final = -2
BEHIND: Final = 32  # tokens that a drafter has not seen yet, from which on its time goes to reading them


class Source:
    """One drafter's record. Prices are in seconds of the clock, None until they are known.

    ``unit`` is the price of a guess, ``read`` that of a token of text which the drafter has to catch up with.
    """

    def __init__(self, name: str, prior: float = 0.5) -> None:
        self.name = name
        self.acceptance = Acceptance(prior)
        self.unit: float | None = None
        self.read: float | None = None
        self.answers = 1.0  # of the times that it is asked, those that it has something to say
        self.idle = 0  # rounds since it was last asked
        self.gap = 8  # rounds between two looks at whether it has come to pay
        self.faults = 0
        self.draws = False  # whether its guesses were seen to be drawn, so that they are taken once they are made

    def free(self, plain: float) -> bool:
        """Say whether asking costs next to nothing against a plain pass of so many seconds."""
        return self.unit is not None and self.unit < _FREE * plain

    def paid(self, seconds: float, guesses: int, texts: int = 1, behind: int = 0) -> None:
        """Learn what the drafts of some texts took that it was ``behind`` so many tokens of.

        Catching up with a round counts as one guess more for each. A clock that jumped back teaches nothing.
        """
        if not seconds >= 0.0:
            return
        self.answers += _GAIN * ((guesses > 0) - self.answers)
        if behind > BEHIND * texts:
            drafting = 0.0 if self.unit is None else self.unit * (guesses + texts)
            self.read = _moved(self.read, max(0.0, seconds - drafting) / behind)
            return
        each = seconds / (guesses + texts)
        if guesses or self.unit is None or each > self.unit:  # to say nothing is cheap, and not what a guess costs
            self.unit = _moved(self.unit, each)

    def worth(self, draft: Draft) -> float:
        """Return how many guesses of a draft are expected to be accepted."""
        confidences = draft.confidences
        if confidences is not None and len(confidences) == len(draft):
            return sum(map(self.acceptance.survival, confidences))
        chances, paths, depths = self.acceptance.chances, [1.0], [0]  # those of the text itself come first
        for parent in draft.parents:
            depth = depths[parent + 1]
            paths.append(paths[parent + 1] * chances[depth if depth < DEPTHS else -1])
            depths.append(depth + 1)
        return sum(paths) - 1.0

    def learn(self, outcome: Outcome) -> None:
        """Count what became of a draft. What an end of the text left untested teaches nothing."""
        draft, kept = outcome.draft, outcome.kept
        judged = outcome.finish_reason is None
        hits = [True] * len(kept)
        last = kept[-1] if kept else -1
        if judged and last in draft.parents:
            hits.append(False)
        self.acceptance.learn(hits)
        if judged:
            self._judge(draft, set(kept))

    def watched(self, draft: Draft, tokens: Sequence[int]) -> None:
        """Count a draft that was not taken against what was committed instead: the first choices, as far as tested."""
        hits: list[bool] = []
        node, guesses, parents, path = -1, draft.tokens, draft.parents, set[int]()
        for token in tokens:
            if node not in parents:
                break
            here = (i for i in range(node + 1, len(guesses)) if parents[i] == node and guesses[i] == token)
            node = next(here, _NOWHERE)
            hits.append(node != _NOWHERE)
            if node == _NOWHERE:
                break
            path.add(node)
        self.acceptance.learn(hits)
        if hits and not hits[-1]:  # where the text ended before the draft, the rest was not tested
            self._judge(draft, path)

    def _judge(self, draft: Draft, survived: Collection[int]) -> None:
        """Count what became of a draft that was tested whole."""
        if (confidences := draft.confidences) is not None and len(confidences) == len(draft):
            for i, each in enumerate(confidences):
                self.acceptance.learn_path(each, i in survived)


def _moved(price: float | None, seen: float) -> float:
    if price is None:
        return seen
    if seen < price:  # the lesser time is the truer
        return price + _FALL * (seen - price)
    return price + _GAIN * (min(seen, _SLOWER * price) - price)

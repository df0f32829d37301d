"""From the logits of a pass to the law after each node: one function for target, draft and plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foredraft.core.draft import Draft
from foredraft.core.law import Array, Law, Laws
from foredraft.core.sampling import SamplingParams, argmax_rows, point_at

if TYPE_CHECKING:
    from foredraft.core.sequence import TokenSequence


def distribution(logits: Array, sequences: Sequence[TokenSequence], drafts: Sequence[Draft]) -> list[Laws]:
    """Return, for each sequence, its law after every node of its draft.

    ``logits`` is [R, V], packed as in ``Scored``. Unshaped greedy laws come from one argmax over the pass; the others
    are worked out when asked for, so that only the accepted path is paid for, and then remembered. Raises
    NumericalError, when a law is asked for, if its logits hold no finite maximum.
    """
    plain = [s.params.greedy and s.shaping is None for s in sequences]
    best = argmax_rows(logits) if any(plain) else []
    laws: list[Laws] = []
    start = 0
    for sequence, draft, certain in zip(sequences, drafts, plain, strict=True):
        laws.append(_greedy(best, start) if certain else _shaped(logits, start, sequence, draft))
        start += len(draft) + 1
    return laws


def law_after(row: Array, sequence: TokenSequence, path: tuple[int, ...], params: SamplingParams) -> Law:
    """Return the law of the token after ``path``, guesses beyond the committed sequence, from its logits [V]."""
    return sequence.law(row if sequence.shaping is None else sequence.shaping(row, sequence, path), params)


def _greedy(best: list[tuple[int, float]], start: int) -> Laws:
    return lambda node: point_at(*best[start + 1 + node])


def _shaped(logits: Array, start: int, sequence: TokenSequence, draft: Draft) -> Laws:
    known: dict[int, Law] = {}  # once a round: a functools.cache takes longer to make than all the rest here

    def law(node: int) -> Law:
        if node not in known:
            path = tuple(draft.tokens[i] for i in draft.path(node))
            known[node] = law_after(logits[start + 1 + node, :], sequence, path, sequence.params)
        return known[node]

    return law

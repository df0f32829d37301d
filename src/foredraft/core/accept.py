"""The accept rule: why the text is exactly the target's.

A token ``x`` was guessed from the law ``q``; the target's law at the same place is ``p``.

    accept x with probability min(1, p(x) / q(x)); otherwise draw from the residual  norm(max(0, p - q))

A token emerges by being guessed and accepted, min(q, p), or from the residual after a rejection, max(0, p - q):
together exactly p (Leviathan et al. 2022, arXiv 2211.17192, theorem 1; Chen et al. 2023, arXiv 2302.01318). Where
nothing more was guessed, q covers nothing and the residual *is* p: the bonus after a draft that survived whole, and
ordinary decoding, which is a round with no guesses. Where several guesses share a parent, each is tested against what
the earlier ones left over (recursive rejection, SpecInfer, arXiv 2305.09781).

That is the ``ratio`` rule. The ``coupled`` rule is the same over one-hot laws: the target's own noise draws its token
at every place, and what it draws is p. A guess is then accepted iff it *is* that token, whatever q was, and the token
after a rejection is that token too. The text is the target's own draw, place by place, and no drafter can change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from array_api_compat import array_namespace

from foredraft.core.draft import ROOT, Draft, Kept
from foredraft.core.law import Dense, Law, Point

if TYPE_CHECKING:
    from foredraft.core.law import Laws
    from foredraft.core.noise import Noise


def accept(draft: Draft, p: Laws, noise: Noise) -> Kept:
    """Keep the longest surviving path of the draft, and say how the token after it is distributed.

    ``p(node)`` is the target's law after ``node``. Pure: reads its arguments and changes nothing.
    """
    path: list[int] = []
    node = ROOT
    law = p(ROOT)
    guesses = list(draft.children(ROOT))
    while guesses:
        guess = guesses.pop(0)
        x = draft.tokens[guess]
        q = draft.laws[guess] if draft.laws is not None else Point(x)
        # u < p/q without the division: a token the target rules out is never accepted, whatever q says
        if noise.test(guess) * q[x] < law[x]:
            path.append(guess)
            node = guess
            law = p(node)
            guesses = list(draft.children(node))
        else:
            law = residual(law, q)
    return Kept(tuple(path), law)


def coupled(p: Laws, draft: Draft, noise: Noise) -> Laws:
    """Return, for each node, the one-hot law of the token that the target draws after it by the place's own noise."""
    depths = draft.depths()
    return lambda node: Point(noise.race(p(node), 0 if node == ROOT else depths[node]))


def residual(p: Law, q: Law) -> Law:
    """Return ``norm(max(0, p - q))``, the part of ``p`` that ``q`` failed to cover.

    Where nothing is left but rounding, q covered p whole, a rejection had probability zero, and ``p`` is the answer.
    """
    if isinstance(p, Point):
        return p  # one token carries all of p: it is what is left, or nothing is
    assert isinstance(p, Dense)
    if (own := p.less(q)) is not None:  # the same by a faster way: native laws have one
        return own
    xp = array_namespace(p.probabilities)
    left = p.probabilities - q.over(p)
    left = xp.where(left > 0, left, 0 * left)
    total = xp.sum(left)
    return p.with_probabilities(left / total) if total > 0 else p

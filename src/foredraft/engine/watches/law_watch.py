"""A watch for long-running processes: evidence against the text's law, valid at every moment it is looked at.

A bet on every token: with a score f in [0, 1] the wealth grows by ``1 + eta (f(x) - E_p f)``. If the text has the
target's law no bet has an edge, whatever happened before, and M, the mean over two scores and several stakes eta of
both signs, is a martingale that starts at 1. It exceeds 1/alpha at any time at all with a probability of at most alpha
(Ville 1939). The scores are ``q / (p + q)``, which rises with q/p, and whether x is the likeliest guess. A rule that
favours or starves guesses gives some bet an edge, and M grows exponentially.
"""

from __future__ import annotations

import math
from threading import Lock
from typing import Final

from array_api_compat import array_namespace

from foredraft.core.law import Dense, Law, Point
from foredraft.core.protocols import Round
from foredraft.engine.watches.places import Place, places
from foredraft.errors import OptionError

ALPHA: Final = 1e-4
STAKES: Final = (0.5, 0.125, 0.03125, -0.5, -0.125, -0.03125)
_SCORES: Final = 2
_BETS: Final = _SCORES * len(STAKES)


class LawWatch:
    """Bets on every token of every round it sees. Memory is constant; a guessed token costs a look or two over the law.

    ``alpha`` is the probability of ever alarming without a fault. The three figures may be read from any thread.
    Holds for draft lengths that do not depend on the noise, and for drafters whose certain guesses are functions of
    the text; where the target rules a token out, one is proof. Raises OptionError for an alpha outside (0, 1).
    """

    def __init__(self, alpha: float = ALPHA) -> None:
        if not 0 < alpha < 1:
            raise OptionError(f"alpha must lie between 0 and 1, not {alpha}")
        self.alpha = alpha
        self._lock = Lock()
        self._wealth = [0.0] * _BETS  # log of what each bet has come to
        self._tokens = 0
        self._evidence = 0.0
        self._alarmed_after: int | None = None

    def see(self, done: Round) -> None:
        """Bet on a round's tokens."""
        for place in places(done):
            self._bet(place)

    @property
    def tokens(self) -> int:
        """How many tokens were seen."""
        return self._tokens

    @property
    def evidence(self) -> float:
        """The log of M now; infinite after a token that the target rules out."""
        return self._evidence

    @property
    def alarmed(self) -> bool:
        """Whether M ever exceeded 1/alpha."""
        return self._alarmed_after is not None

    @property
    def alarmed_after(self) -> int | None:
        """After how many tokens it did, or None."""
        return self._alarmed_after

    @property
    def notice(self) -> str | None:
        """The alarm in words, or None."""
        if not self.alarmed:
            return None
        return (
            f"the watch found texts that do not have the model's distribution (after {self.alarmed_after} tokens;"
            f" a false alarm has probability {self.alpha:g}): foredraft certify says more"
        )

    def _bet(self, place: Place) -> None:
        edges = (0.0,) * _SCORES if place.q is None else _edges(place.p, place.q, place.token)
        gains = [math.log1p(eta * edge) if place.possible else math.inf for edge in edges for eta in STAKES]
        with self._lock:
            self._tokens += 1
            self._wealth = [wealth + gain for wealth, gain in zip(self._wealth, gains, strict=True)]
            top = max(self._wealth)
            mean = sum(math.exp(w - top) for w in self._wealth) / _BETS if top < math.inf else 1.0
            self._evidence = top + math.log(mean)
            if self._alarmed_after is None and self._evidence > -math.log(self.alpha):
                self._alarmed_after = self._tokens


def _edges(p: Law, q: Law, token: int) -> tuple[float, float]:
    """Return f(x) - E_p f in (-1, 1) for both scores; nothing where p is certain."""
    if not isinstance(p, Dense):
        return 0.0, 0.0
    if isinstance(q, Point):
        chance = float(p[q.token])
        guessed = float(token == q.token) - chance
        return guessed / (1 + chance), guessed
    xp = array_namespace(p.probabilities)
    law, guess = p.probabilities, q.over(p)
    own, theirs = float(p[token]), float(q[token])
    mean = float(xp.sum(law * guess / xp.where(law > 0, law + guess, 1 + 0 * law)))
    likeliest = int(xp.argmax(guess))  # among the tokens that the target lists
    guessed = float(token == int(p.ids[likeliest])) - float(law[likeliest])
    return (theirs / (own + theirs) if theirs else 0.0) - mean, guessed

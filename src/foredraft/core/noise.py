"""Randomness that is a function, not a stream: the same key always gives the same number.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") keyed by the seed; the counter says
what the number is for: (node or token, purpose, position, choice). Nothing is consumed, so nothing depends on the order
in which sequences are served.

Under the ``ratio`` rule no number is used twice: guess, test and last token have streams of their own, and a round is
known by the position it starts from, which no other round of the same sequence shares. Under ``coupled`` a place in the
text has one clock a token, whoever asks: target and drafter read the same clocks, so their draws mostly agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from foredraft.core.law import Law

_WORD: Final = 0xFFFFFFFF
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)

_GUESS: Final = 1
_TEST: Final = 2
_LAST: Final = 3
_CLOCK: Final = 4


def philox(counter: tuple[Any, int, int, int], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Return the four 32-bit words of Philox4x32-10 at ``counter``; at many where its first word is a uint64 array."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _WORD, (a >> 32) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one answer, as seen from one position.

    ``seed`` has 64 bits; ``choice`` tells the several answers to one prompt apart; ``position`` is how many tokens were
    committed before the round; ``coupled`` is the rule, and with it whose noise a drafter draws with.
    """

    seed: int
    choice: int = 0
    position: int = 0
    coupled: bool = False

    def at(self, position: int) -> Noise:
        """Return the same noise as seen from ``position``."""
        return replace(self, position=position)

    def guess(self, law: Law, node: int, depth: int) -> int:
        """Draw the draft's node ``node`` from ``law``; ``depth`` guesses lie before it on its path."""
        return self.race(law, depth) if self.coupled else law.draw(self._uniform(_GUESS, node))

    def test(self, node: int) -> float:
        """Return the number in [0, 1) that decides whether node ``node`` is accepted."""
        return self._uniform(_TEST, node)

    def last(self) -> float:
        """Return the number in [0, 1) that draws the round's last token: the residual or the bonus."""
        return self._uniform(_LAST, 0)

    def race(self, law: Law, depth: int) -> int:
        """Draw from ``law`` the token ``depth`` places on, by that place's clocks: the token whose clock rings first.

        Token x's clock is exponential with rate law[x], so it is first with probability law[x] (the Gumbel-max trick;
        Daliri, Musco, Suresh 2024, arXiv 2408.07978).
        """
        return law.first(lambda ids: self.clocks(ids, self.position + depth))

    def clocks(self, ids: Any, position: int) -> Any:
        """Return a unit exponential for each token of ``ids`` [S]."""
        pairs = ids.astype(np.uint64)
        words = philox((pairs >> np.uint64(1), _CLOCK, position, self.choice), self._key())
        odd = (pairs & np.uint64(1)).astype(bool)  # a counter's four words serve two neighbouring tokens
        high, low = np.where(odd, words[2], words[0]), np.where(odd, words[3], words[1])
        whole = (high >> np.uint64(6)).astype(np.float64) * 67108864 + (low >> np.uint64(6)).astype(np.float64)
        return -np.log((whole + 0.5) / 4503599627370496)  # 52 bits and a half: never 0, never 1

    def _key(self) -> tuple[int, int]:
        return self.seed & _WORD, self.seed >> 32 & _WORD

    def _uniform(self, purpose: int, node: int) -> float:
        high, low, _, _ = philox((node, purpose, self.position, self.choice), self._key())
        whole: int = (high >> 5) * 67108864 + (low >> 6)
        return whole / 9007199254740992  # 53 bits

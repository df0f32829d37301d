"""Randomness that is a function, not a stream: the same key always gives the same number.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") keyed by the seed; the counter says
what the number is for: (node, purpose, position, choice). Nothing is consumed, so nothing depends on the order in which
sequences are served, and no number is used twice: under the ``ratio`` rule a round is known by the position it starts
from, which no other round of the same sequence shares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

_WORD: Final = 0xFFFFFFFF
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)

_GUESS: Final = 1
_TEST: Final = 2
_LAST: Final = 3


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the four 32-bit words of Philox4x32-10 at ``counter``."""
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
    committed before the round. The three purposes are independent streams, as the ``ratio`` rule needs.
    """

    seed: int
    choice: int = 0
    position: int = 0

    def at(self, position: int) -> Noise:
        """Return the same noise as seen from ``position``."""
        return replace(self, position=position)

    def guess(self, node: int) -> float:
        """Return the number in [0, 1) that draws the draft's node ``node``."""
        return self._uniform(_GUESS, node)

    def test(self, node: int) -> float:
        """Return the number in [0, 1) that decides whether node ``node`` is accepted."""
        return self._uniform(_TEST, node)

    def last(self) -> float:
        """Return the number in [0, 1) that draws the round's last token: the residual or the bonus."""
        return self._uniform(_LAST, 0)

    def _uniform(self, purpose: int, node: int) -> float:
        key = (self.seed & _WORD, self.seed >> 32 & _WORD)
        high, low, _, _ = philox((node, purpose, self.position, self.choice), key)
        return ((high >> 5) * 67108864 + (low >> 6)) / 9007199254740992  # 53 bits

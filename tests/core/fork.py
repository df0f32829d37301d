"""Chance by enumeration: a function of random numbers is run once for every way they can fall.

A ``Uniform`` is a number in [0, 1) that nobody has looked at yet. Comparing it with a threshold takes both answers, in
turn, each with its exact probability, and remembers what the answer says about the number; asking for the same number
twice therefore gives the same answers, as it must.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

from foredraft.core.noise import Noise

T = TypeVar("T")
PLACE = 99  # a purpose that no stream of ``Noise`` has


class Fork:
    """One way for the comparisons to fall: first as ``script`` says, then always "yes" where that is possible."""

    def __init__(self, script: list[bool]) -> None:
        self.taken = script
        self.weight = Fraction(1)
        self._next = 0

    def flip(self, probability: Fraction) -> bool:
        if self._next == len(self.taken):
            self.taken.append(True)
        answer = self.taken[self._next]
        self._next += 1
        self.weight *= probability if answer else 1 - probability
        return answer


def branches(run: Callable[[Fork], T]) -> Iterator[tuple[Fraction, T]]:
    """Yield what ``run`` returns in every case, and how probable the case is."""
    script: list[bool] = []
    while True:
        fork = Fork(script)
        result = run(fork)
        yield fork.weight, result
        script = fork.taken
        while script and not script[-1]:
            script.pop()
        if not script:
            return
        script[-1] = False


class Uniform:
    """A number in [0, 1), or a multiple of one, known only by the comparisons it has been through."""

    def __init__(self, fork: Fork) -> None:
        self._fork = fork
        self._low, self._high = Fraction(0), Fraction(1)

    def __mul__(self, factor: Any) -> Multiple:
        return Multiple(self, Fraction(factor))

    def below(self, x: Fraction) -> bool:
        if x >= self._high:
            return True
        if x <= self._low:
            return False
        if self._fork.flip((x - self._low) / (self._high - self._low)):
            self._high = x
            return True
        self._low = x
        return False


class Multiple:
    """``factor`` times a uniform number. Equality has probability zero, so ``>`` is "not <"."""

    def __init__(self, uniform: Uniform, factor: Fraction) -> None:
        self._uniform, self._factor = uniform, factor

    def __lt__(self, x: Any) -> bool:
        if x is self:  # numpy's search asks that first
            return False
        return x > 0 if self._factor == 0 else self._uniform.below(Fraction(x) / self._factor)

    def __gt__(self, x: Any) -> bool:
        return x is not self and not self < x


@dataclass(frozen=True)
class ForkNoise(Noise):
    """Noise whose numbers are forks; equal questions get the same number, different ones independent numbers.

    A place's clocks are one number too, which draws from every law asked of that place by inversion: like the clocks,
    it draws equal laws to equal tokens, and each law truly.
    """

    seed: int = 0
    fork: Fork = field(default_factory=lambda: Fork([]))
    known: dict[tuple[int, int, int], Uniform] = field(default_factory=dict)

    def race(self, law: Any, depth: int) -> int:
        return int(law.draw(self.at(self.position + depth)._uniform(PLACE, 0)))

    def _uniform(self, purpose: int, node: int) -> Any:
        return self.known.setdefault((self.position, purpose, node), Uniform(self.fork))

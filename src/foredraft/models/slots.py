"""Which sequence holds which slot of a model's cache, and which tokens each slot holds. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence


class Slots:
    """A pool of slots, each with the tokens it holds.

    A slot given back keeps its tokens, and serves next whoever starts with them. ``count`` slots are kept between
    uses; more exist while more sequences are under way. Where ``rewindable`` is false a slot can only be continued from
    all that it holds. Sequences are told apart by identity.

    A slot's tokens serve only the ``owner`` whose they are: what a prefix saves in time would tell others of it. Where
    ``sparing`` is true, a slot that holds much more than the prefix it would spare is taken only if no other is left,
    so that texts which begin alike do not push each other out.
    """

    def __init__(self, count: int, rewindable: bool = True) -> None:
        self.count = count
        self.rewindable = rewindable
        self._of: dict[int, int] = {}  # id of a sequence -> its slot
        self._held: dict[int, list[int]] = {}  # slot -> the tokens it holds
        self._free: list[int] = []  # least recently used first
        self._owners: dict[int, str] = {}  # slot -> whose tokens it holds
        self.sparing = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def free(self) -> int:
        """How many slots nobody uses."""
        return len(self._free)

    def slot(self, sequence: object) -> int | None:
        """Return the slot a sequence holds, or None."""
        return self._of.get(id(sequence))

    def held(self, slot: int) -> list[int]:
        """Return the tokens a slot holds."""
        return self._held[slot]

    def hold(self, slot: int, tokens: Sequence[int]) -> None:
        """Say which tokens a slot holds from now on."""
        self._held[slot] = list(tokens)

    def take(self, sequence: object, tokens: Sequence[int], owner: str = "") -> int:
        """Give a sequence that will start with ``tokens`` the slot that spares it most, and return it.

        What the slot then holds is a prefix of ``tokens`` and leaves at least the last to be fed.
        """
        if (slot := self.slot(sequence)) is None:
            slot = self._choose(tokens, owner)
            self._of[id(sequence)] = slot
            if self._owners.setdefault(slot, owner) != owner:
                self._owners[slot] = owner
                self.hold(slot, ())
        self.hold(slot, self._held[slot][: self.usable(slot, tokens)])
        return slot

    def usable(self, slot: int, tokens: Sequence[int]) -> int:
        """Return how many tokens of a slot can serve a text of ``tokens``, whose last is always fed."""
        held = self._held[slot]
        common = min(common_prefix(held, tokens), len(tokens) - 1)
        return common if self.rewindable or common == len(held) else 0

    def release(self, sequence: object) -> int | None:
        """Take a sequence's slot back; its tokens stay for re-use.

        Returns a slot that is one too many, whose memory can go, or None.
        """
        slot = self._of.pop(id(sequence), None)
        if slot is None:
            return None
        self._free.append(slot)
        if len(self._held) <= self.count:
            return None
        surplus = self._free.pop(0)
        del self._held[surplus]
        self._owners.pop(surplus, None)
        return surplus

    def _choose(self, tokens: Sequence[int], owner: str) -> int:
        worth = {slot: self._worth(slot, tokens, owner) for slot in self._free}
        best = max(self._free, key=worth.__getitem__, default=None)  # of several alike the least recently used
        if best is not None and (worth[best] > 0 or len(self._held) >= self.count):
            self._free.remove(best)
            return best
        slot = next(n for n in range(len(self._held) + 1) if n not in self._held)
        self._held[slot] = []
        return slot

    def _worth(self, slot: int, tokens: Sequence[int], owner: str) -> int:
        """Return what taking a free slot is worth, in tokens; what is lost with it counts half where that matters."""
        usable = self.usable(slot, tokens) if self._owners[slot] == owner else 0
        return max(0, 3 * usable - len(self._held[slot])) if self.sparing else usable


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two texts share from their start."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the usual case, at the speed of C
        return n
    return next(i for i in range(n) if a[i] != b[i])

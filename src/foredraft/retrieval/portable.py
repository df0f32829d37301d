"""The same retrieval in Python, to the bit: native/retrieval.cpp, where the reasons stand, for installs without it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.retrieval.index import END, MAX_GUESSES, PREDICTION, TEXT, Guesses, Hint

LENGTH: Final = (1, 3, 8)
DEPTH: Final = 64
EDIT: Final = 8
WALKS: Final = 4
CANDIDATES: Final = 128
OWN_LINKS: Final = 24
OTHER_LINKS: Final = 6
ASTRAY: Final = 4
_START: Final = 64
_FAR: Final = 1 << 62


def hashes(tokens: NDArray[np.int32], length: int) -> NDArray[np.uint32]:
    """Return the hash of each ``length`` tokens in a row: [T - length + 1]."""
    count = len(tokens) - length + 1
    value = np.zeros(max(0, count), dtype=np.uint32)
    for i in range(length if count > 0 else 0):
        value = (value ^ tokens[i : i + count].view(np.uint32)) * np.uint32(0x9E3779B1)
        value ^= value >> np.uint32(15)
    return value


class PortableIndex:
    """An index of lists."""

    def __init__(self) -> None:
        self.text = array("i")
        self.link = [array("i") for _ in LENGTH]
        self.head = [array("i", [-1]) * _START for _ in LENGTH]

    def __len__(self) -> int:
        return len(self.text)

    @property
    def bytes(self) -> int:
        """Bytes it occupies."""
        return 4 * (len(self.text) + sum(map(len, self.link)) + sum(map(len, self.head)))

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append tokens, END where a document ends."""
        old = len(self.text)
        self.text.frombytes(np.ascontiguousarray(tokens, dtype=np.int32).tobytes())
        slots = len(self.head[0])
        while slots < len(self.text):
            slots *= 2
        if slots > len(self.head[0]):
            self.head = [array("i", [-1]) * slots for _ in LENGTH]
            self.link = [array("i") for _ in LENGTH]
            old = 0
        for length, link, head in zip(LENGTH, self.link, self.head, strict=True):
            self._chain(old, length, link, head)

    def _chain(self, old: int, length: int, link: array[int], head: array[int]) -> None:
        link.extend([-1] * (len(self.text) - old))
        first = max(0, old + 1 - length)
        window = np.frombuffer(self.text[first:], dtype=np.int32)
        ends = np.cumsum(np.concatenate(([0], window == END)))
        whole = np.flatnonzero(ends[length:] == ends[:-length]) if len(window) >= length else np.empty(0, dtype=int)
        slots = hashes(window, length) & np.uint32(len(head) - 1)
        for start, slot in zip(whole.tolist(), slots[whole].tolist(), strict=True):
            at = first + start + length - 1
            if at >= old:
                link[at] = head[slot]
                head[slot] = at

    def tokens(self) -> NDArray[np.int32]:
        """Return a copy of all it holds: [T]."""
        return np.array(self.text, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class _Candidate:
    source: int
    position: int
    matched: int
    beyond: int
    factor: float


@dataclass(frozen=True, slots=True)
class _Node:
    token: int
    parent: int
    bucket: int
    depth: int
    path: float
    best: _Candidate
    followers: list[_Candidate]


class PortableSearch:
    """Proposes how one text goes on."""

    def __init__(self, text: PortableIndex, table: Any) -> None:
        self._text = text
        self._table = table

    def propose(
        self,
        fresh: Sequence[int],
        others: Sequence[tuple[PortableIndex, int]],
        hints: Sequence[Hint] = (),
        limit: int = 15,
        branches: int = 0,
        floor: float = 0.0,
    ) -> Guesses:
        """Append ``fresh`` to the text and guess on; see ``Search``."""
        if len(fresh):
            self._text.extend(fresh)
        proposal = _Proposal(((self._text, TEXT), *others), hints, branches, self._table)
        nodes = proposal.run(min(limit, MAX_GUESSES), floor)
        rows = [[node.token, node.parent, node.bucket, node.best.source, node.best.position] for node in nodes]
        return Guesses(rows, [node.path for node in nodes], proposal.steps)


class _Proposal:
    def __init__(
        self, sources: Sequence[tuple[PortableIndex, int]], hints: Sequence[Hint], branches: int, table: Any
    ) -> None:
        self.sources = [index for index, _ in sources]
        self.kinds = [kind for _, kind in sources]
        self.hints = hints
        self.branches = branches
        self.table = table
        self.context = list(self.sources[0].text[-(DEPTH + EDIT + 1) :])
        self.open: list[_Node] = []
        self.steps = 0
        self.walks = 0

    def run(self, limit: int, floor: float) -> list[_Node]:
        tail, nodes = self.context, list[_Node]()
        if limit > 0:
            self._expand([], -1, 0, 1.0)
        while self.open and len(nodes) < limit:
            node = max(self.open, key=lambda one: one.path)  # the first of equals
            if node.path < floor:
                break
            self.open.remove(node)
            nodes.append(node)
            path, place = [node.token], node.parent
            while place >= 0:
                path.append(nodes[place].token)
                place = nodes[place].parent
            self.context = tail + path[::-1]
            if len(nodes) < limit:
                self._expand(node.followers, len(nodes) - 1, node.depth, node.path)
        return nodes

    def _match(self, text: array[int], at: int, skip: int, most: int) -> int:
        mine, matched = len(self.context) - 1 - skip, 0
        while matched < most and at >= 0 and mine >= 0 and text[at] == self.context[mine]:
            matched, at, mine = matched + 1, at - 1, mine - 1
        return matched

    def _beyond(self, text: array[int], at: int, matched: int) -> int:
        at -= matched
        best = self._match(text, at, matched + 1, EDIT) if at >= 0 else 0
        if at >= 1 and text[at] != END:
            best = max(best, self._match(text, at - 1, matched, EDIT), self._match(text, at - 1, matched + 1, EDIT))
        return best

    def _add(self, found: list[_Candidate], source: int, at: int, matched: int, rank: int, hint: bool) -> None:
        more, kind = self._beyond(self.sources[source].text, at, matched), self.kinds[source]
        factor = 1.0 if hint and kind != PREDICTION else float(1 << more) / (1.0 + 0.05 * rank)
        found.append(_Candidate(source, at + 1, matched, more, factor * 256.0 if kind == PREDICTION else factor))

    def _walk(self, found: list[_Candidate], source: int, at_end: bool) -> None:
        index, own = self.sources[source], self.kinds[source] == TEXT
        most = OWN_LINKS if own else OTHER_LINKS
        deepest, rank = _FAR, 0
        for level in (2, 1, 0):
            if len(self.context) < LENGTH[level] or not (own or rank < most):
                continue
            last = np.array(self.context[-LENGTH[level] :], dtype=np.int32)
            at = index.head[level][int(hashes(last, LENGTH[level])[0]) & (len(index.head[level]) - 1)]
            lowest, links, same = _FAR, 0, 0
            while at >= 0 and same < most and links < ASTRAY * most:
                links += 1
                self.steps += 1
                lowest, here, at = at, at, index.link[level][at]
                if source == 0 and at_end and here == len(index) - 1:
                    continue
                matched = self._match(index.text, here, 0, DEPTH)
                same += matched >= LENGTH[level]
                if matched < LENGTH[level] or (level < 2 and matched >= LENGTH[level + 1] and here >= deepest):
                    continue
                if len(found) < CANDIDATES:
                    self._add(found, source, here, matched, rank, False)
                    rank += 1
            deepest = lowest

    def _look(self, depth: int) -> list[_Candidate]:
        found: list[_Candidate] = []
        self.walks += 1
        if not self.context:
            return found
        for source in range(len(self.sources)):
            self._walk(found, source, depth == 0)
        for rank, (source, position) in enumerate(self.hints if depth == 0 else ()):
            if not 0 <= source < len(self.sources) or not 0 <= position < len(self.sources[source]):
                continue
            if not any(one.source == source and one.position == position for one in found):
                matched = self._match(self.sources[source].text, position - 1, 0, DEPTH)
                self._add(found, source, position - 1, matched, rank, True)
        return found

    def _next(self, one: _Candidate, depth: int) -> int:
        text = self.sources[one.source].text
        if one.position < len(text):
            return text[one.position]
        further = one.position - len(text)
        return self.context[len(self.context) - depth + further] if one.source == 0 and further < depth else END

    def _bucket(self, best: _Candidate, supporters: int, share: float) -> int:
        m = best.matched
        length = m if m < 4 else 4 if m < 6 else 5 if m < 9 else 6 if m < 17 else 7
        more = 0 if best.beyond < 2 else 1 if best.beyond < 5 else 2
        votes = 0 if share < 0.5 else 1 if share < 1.0 else 2
        return (((self.kinds[best.source] * 8 + length) * 3 + more) * 3 + min(supporters, 3) - 1) * 3 + votes

    def _expand(self, candidates: list[_Candidate], parent: int, depth: int, path: float) -> None:
        for turn in range(2):
            candidates = [one for one in candidates if self._next(one, depth) != END]
            if turn or candidates or self.walks >= WALKS:
                break
            candidates = self._look(depth)
        choices: dict[int, list[_Candidate]] = {}
        votes: dict[int, float] = {}
        total = 0.0
        for one in candidates:
            token = self._next(one, depth)
            weight = float(1 << 2 * min(one.matched, 12)) * one.factor
            choices.setdefault(token, []).append(one)
            votes[token] = votes.get(token, 0.0) + weight
            total += weight
        for token in sorted(choices, key=lambda one: -votes[one])[: self.branches + 1]:
            agree = choices[token]
            best = max(agree, key=lambda one: (one.matched, one.beyond))
            place = self._bucket(best, len(agree), votes[token] / total)
            followers = [replace(one, position=one.position + 1, matched=one.matched + 1) for one in agree]
            self.open.append(_Node(token, parent, place, depth + 1, path * self.table[place], best, followers))

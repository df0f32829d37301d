"""Several drafters, or one: in each round whoever is expected to bring most guesses, or nobody.

What costs nothing is asked in every round, and scored on every verified text whether it was taken or not. The others
are asked where what is known of them says that they pay, and now and then to learn whether they do by now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from foredraft.core.draft import Draft, Drafter, Outcome, Quote, Scored
from foredraft.core.noise import Noise
from foredraft.core.sequence import Sequence as Text
from foredraft.planning.planner import AutoQuote
from foredraft.planning.source import Source

NOTHING: Final = Draft()
NEAR: Final = 4  # rounds until the first look at a drafter that has ceased to pay
FAR: Final = 256  # rounds between two looks at a drafter that does not pay, at most
BUDGET: Final = 0.01  # share of the time that looks may take
LOOK: Final = 2  # guesses of such a look
_SLOW: Final = 50.0  # plain passes that a draft may take before its drafter is dropped for the request


@dataclass(slots=True)
class _Offer:
    """What is proposed for one sequence in this round: by each drafter that was asked, and who is taken."""

    sequence: Text
    quote: Quote
    noise: Noise
    drafts: dict[int, Draft] = field(default_factory=dict)
    taken: int = -1
    net: float = 0.0
    bound: bool = False

    def take(self, i: int, net: float) -> None:
        """Take a drafter's draft, which is worth so much."""
        self.taken, self.net = i, net


class Chooser:
    """Joins drafters. A drafter that raises or hangs is dropped for the request, which is counted and said.

    Under a planner that sets a fixed length the longest expected draft is taken, whatever it costs. ``said`` is what
    there is to say of who is not among the drafters.
    """

    def __init__(self, drafters: Sequence[Drafter], said: str | None = None) -> None:
        self.drafters = tuple(drafters)
        self.name = "+".join(d.name for d in self.drafters)
        self.taps: tuple[int, ...] = tuple(sorted({tap for d in self.drafters for tap in d.taps}))
        self.sources = tuple(Source(d.name) for d in self.drafters)
        self._dropped: dict[Text, set[int]] = {}
        self._rounds: dict[Text, _Offer] = {}
        self._said: dict[str, str] = {} if said is None else {"": said}

    @property
    def notice(self) -> str | None:
        """Which drafters were dropped, and why; None where all went well."""
        return "; ".join(self._said.values()) or None

    def begin(self, sequence: Text) -> None:
        """Let every drafter meet the sequence."""
        self._dropped[sequence] = set()
        for i, drafter in enumerate(self.drafters):
            try:
                drafter.begin(sequence)
            except Exception as fault:
                self._drop(sequence, i, fault)

    def propose(self, sequences: Sequence[Text], quotes: Sequence[Quote], noises: Sequence[Noise]) -> list[Draft]:
        """Return for each sequence the draft that is worth most, or an empty one."""
        batch = [_Offer(*each) for each in zip(sequences, quotes, noises, strict=True)]
        for offer in batch:
            self._rounds[offer.sequence] = offer
        offers = [offer for offer in batch if offer.quote.limit > 0]
        for i, source in enumerate(self.sources):
            free = [o for o in offers if not o.bound and not self._gone(o, i) and self._free(i, o.quote)]
            for offer, draft in self._ask(i, free, [_priced(o.quote, source) for o in free]):
                if draft.laws is not None:  # once drawn it is taken: to look at guesses and drop them is not exact
                    offer.take(i, math.inf)
                    source.draws = offer.bound = True
                elif (net := _net(source, draft, offer.quote)) > offer.net:
                    offer.take(i, net)
        turns: dict[int, list[tuple[_Offer, Quote]]] = {}
        for offer in offers:
            if not offer.bound and (choice := self._dear(offer)) is not None:
                turns.setdefault(choice[0], []).append((offer, choice[1]))
        for i, asked in turns.items():
            for offer, _ in self._ask(i, [offer for offer, _ in asked], [quote for _, quote in asked]):
                offer.take(i, math.inf)
        return [offer.drafts.get(offer.taken, NOTHING) for offer in batch]

    def observe(self, sequences: Sequence[Text], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Let every drafter see what became of its own guesses, and learn from all that were made."""
        for sequence, outcome in zip(sequences, outcomes, strict=True):
            made = self._rounds.pop(sequence, None)
            if made is None or not outcome.tokens:
                continue
            for i, draft in made.drafts.items():
                if i == made.taken:
                    self.sources[i].learn(outcome)
                else:
                    self.sources[i].watched(draft, outcome.tokens)
        for i, drafter in enumerate(self.drafters):
            asked = [j for j, s in enumerate(sequences) if i not in self._dropped.get(s, ())]
            if not asked:
                continue
            try:
                if len(asked) == len(sequences):
                    drafter.observe(sequences, outcomes, scored)
                else:
                    part = _part(scored, asked)
                    drafter.observe([sequences[j] for j in asked], [outcomes[j] for j in asked], part)
            except Exception as fault:
                for j in asked:
                    self._drop(sequences[j], i, fault)

    def end(self, sequence: Text) -> None:
        """Let every drafter forget the sequence."""
        dropped = self._dropped.pop(sequence, set())
        self._rounds.pop(sequence, None)
        for i, drafter in enumerate(self.drafters):
            try:
                drafter.end(sequence)
            except Exception as fault:
                if i not in dropped:
                    self._say(i, fault)

    def _dear(self, offer: _Offer) -> tuple[int, Quote] | None:
        """Return which of the drafters that cost something to ask, and with which quote: None where none pays."""
        promises = []
        for i, source in enumerate(self.sources):
            if not self._gone(offer, i) and not self._free(i, offer.quote):
                source.idle += 1
                promises.append((*_promise(source, offer.quote), i))
        for promise, length, i in sorted(promises, reverse=True):
            source = self.sources[i]
            pays = promise > offer.net
            if pays or source.idle >= source.gap:
                source.idle = 0
                source.gap = NEAR if pays else _patience(source, offer.quote)
                return i, _priced(offer.quote, source) if pays else Look(min(LOOK, max(1, length), offer.quote.limit))
        return None

    def _gone(self, offer: _Offer, i: int) -> bool:
        return i in self._dropped.get(offer.sequence, ())

    def _free(self, i: int, quote: Quote) -> bool:
        """Say whether asking is cheap enough to do it in every round, and can be done without taking the answer."""
        source = self.sources[i]
        if source.draws or not isinstance(quote, AutoQuote):
            return not source.draws and bool(getattr(self.drafters[i], "free", False))
        return bool(getattr(self.drafters[i], "free", False)) or source.free(quote.plain * quote.pace)

    def _ask(self, i: int, offers: Sequence[_Offer], quotes: Sequence[Quote]) -> list[tuple[_Offer, Draft]]:
        """Return the drafts that are not empty, each noted in its offer."""
        if not offers:
            return []
        source, began = self.sources[i], perf_counter()
        try:
            answer = self.drafters[i].propose([o.sequence for o in offers], quotes, [o.noise for o in offers])
            drafts = list(zip(offers, answer, strict=True))
            guesses = sum(len(draft) for _, draft in drafts)
        except Exception as fault:
            for offer in offers:
                self._drop(offer.sequence, i, fault)
            return []
        seconds = perf_counter() - began
        source.paid(seconds, guesses, len(offers))
        quote = offers[0].quote
        if isinstance(quote, AutoQuote) and seconds > max(1.0, _SLOW * quote.plain * quote.pace):
            for offer in offers:
                self._drop(offer.sequence, i, TimeoutError(f"a draft took {seconds:.1f} s"))
        found = [(offer, draft) for offer, draft in drafts if len(draft)]
        for offer, draft in found:
            offer.drafts[i] = draft
        return found

    def _drop(self, sequence: Text, i: int, fault: Exception) -> None:
        self._dropped.setdefault(sequence, set()).add(i)
        self._say(i, fault)

    def _say(self, i: int, fault: Exception) -> None:
        source = self.sources[i]
        source.faults += 1
        times = "" if source.faults == 1 else f" ({source.faults} times)"
        self._said[source.name] = f"drafter {source.name} was dropped{times}: {fault}"


@dataclass(frozen=True, slots=True)
class Look:
    """Room for a few guesses, whatever they cost: to learn how they fare."""

    limit: int

    def worth(self, path_probability: float, rows: int) -> bool:  # noqa: ARG002 - the length alone decides
        """Say yes until there are as many."""
        return rows < self.limit


def _priced(quote: Quote, source: Source) -> Quote:
    return quote.by(source) if isinstance(quote, AutoQuote) else quote


def _net(source: Source, draft: Draft, quote: Quote) -> float:
    """Return what a draft is worth, in tokens; under a fixed length its own time counts nothing."""
    accepted = source.worth(draft)
    return quote.net(accepted, len(draft), 0.0) if isinstance(quote, AutoQuote) else accepted


def _promise(source: Source, quote: Quote) -> tuple[float, int]:
    """Return what asking a drafter is expected to be worth, and the number of guesses that is best."""
    if isinstance(quote, AutoQuote):
        return quote.by(source).best()
    path, total = 1.0, 0.0
    for depth in range(quote.limit):
        path *= source.acceptance.chance(depth)
        total += path
    return total, quote.limit


def _patience(source: Source, quote: Quote) -> int:
    """Return the rounds between two looks at a drafter, such that looks keep within their budget."""
    if not isinstance(quote, AutoQuote):
        return NEAR
    spent = sum(quote.steps[:LOOK]) + (LOOK + 1) * quote.by(source).unit
    return max(NEAR, min(FAR, round(spent / (BUDGET * quote.plain))))


def _part(scored: Scored, asked: Sequence[int]) -> Scored:
    """Return what was scored, its starts those of some sequences."""
    earlier = [scored.earlier[j] for j in asked] if scored.earlier else ()
    return Scored(scored.logits, tuple(scored.starts[j] for j in asked), scored.hidden, earlier)

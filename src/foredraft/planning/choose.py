"""Several drafters, or one: in each round whoever is expected to bring most guesses, or nobody.

What costs nothing is asked in every round, and scored on every verified text whether it was taken or not. The others
are asked where what is known of them says that they pay, and now and then to learn whether they do by now.

Under the ratio rule guesses that were drawn are taken once they are there: to look at them and drop them would give a
text another law. Whom to ask is decided by what earlier rounds taught, before anything is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from foredraft.core.capabilities import Instant
from foredraft.core.draft import Draft, Outcome, Scored
from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter, Quote
from foredraft.core.round import drafts_of
from foredraft.core.sequence import TokenSequence
from foredraft.planning.planner import AutoQuote, unpriced
from foredraft.planning.source import Source

NOTHING: Final = Draft()
NEAR: Final = 4  # rounds until the first look at a drafter that has ceased to pay
FAR: Final = 1024  # rounds between two looks at a drafter that does not pay, at most
STALE: Final = 128  # rounds until a look at a drafter that pays, but less than another
BUDGET: Final = 0.01  # share of the time that looks may take
LOOK: Final = 2  # guesses of such a look
_SLOW: Final = 50.0  # plain passes that a draft may take before its drafter is dropped for the request
_SECOND: Final = 1.0  # and that it may take in any case
_OURS: Final = "foredraft.drafters."
_SERVES: Final = 4.0  # tokens of room a round, about: over so many rounds the cost of catching up is spread


@dataclass(slots=True)
class _Known:
    """One text: which drafters were dropped for it, and how long it was when each was last asked."""

    seen: list[int]
    dropped: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Offer:
    """What is proposed for one sequence in this round: by each drafter that was asked, and who is taken."""

    sequence: TokenSequence
    quote: AutoQuote
    noise: Noise
    known: _Known
    drafts: dict[int, Draft] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    taken: int = -1
    net: float = 0.0
    bound: bool = False


class Chooser:
    """Joins drafters. One that raises or hangs is dropped for the request, which is counted and said.

    Under a planner without prices the longest expected draft is taken, whatever it costs. ``clock`` tells seconds;
    ``note`` is what there is to say of who is not among the drafters. With the target's ``vocabulary`` the drafts of
    strangers are checked here, so that a bad one costs its drafter and not the request.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        clock: Callable[[], float] = perf_counter,
        note: str | None = None,
        vocabulary: int | None = None,
    ) -> None:
        self.drafters = tuple(drafters)
        self.name = "+".join(d.name for d in self.drafters)
        self.taps: tuple[int, ...] = tuple(sorted({tap for d in self.drafters for tap in d.taps}))
        self.sources = tuple(Source(d.name) for d in self.drafters)
        self._instant = tuple(isinstance(d, Instant) and d.free for d in self.drafters)
        self._clock = clock
        ours = (type(d).__module__.startswith(_OURS) for d in self.drafters)
        self._widths = tuple(None if trusted else vocabulary for trusted in ours)  # that drafts are checked against
        self._texts: dict[TokenSequence, _Known] = {}
        self._rounds: dict[TokenSequence, _Offer] = {}
        self.note = note
        self._said: dict[int, tuple[int, str]] = {}

    @property
    def notice(self) -> str | None:
        """Which drafters were dropped for the texts since the last time there was none, and why; None for none."""
        words = []
        for i, (times, why) in self._said.items():
            often = "" if times == 1 else f" for {times} texts"
            words.append(f"drafter {self.sources[i].name} was dropped{often}: {why}")
        return "; ".join(words) or None

    def begin(self, sequence: TokenSequence) -> None:
        """Let every drafter meet the sequence."""
        if not self._texts:
            self._said.clear()
        self._texts[sequence] = _Known([0] * len(self.drafters))
        for i, drafter in enumerate(self.drafters):
            try:
                drafter.begin(sequence)
            except Exception as error:  # a drafter may break in any way
                self._drop(sequence, i, error)

    def propose(
        self, sequences: Sequence[TokenSequence], quotes: Sequence[Quote], noises: Sequence[Noise]
    ) -> list[Draft]:
        """Return for each sequence the draft that is worth most, or an empty one."""
        offers = []
        for sequence, quote, noise in zip(sequences, quotes, noises, strict=True):
            priced = quote if isinstance(quote, AutoQuote) else unpriced(quote.limit)
            offer = _Offer(sequence, priced, noise, self._texts[sequence])
            self._rounds[sequence] = offer
            offers.append(offer)
        for i, source in enumerate(self.sources):
            free = [o for o in offers if not o.bound and i not in o.known.dropped and self._free(i, o.quote)]
            if free:
                self._ask(i, free, [o.quote.by(source) for o in free])
            else:
                source.idle += 1
        turns: dict[int, list[tuple[_Offer, Quote]]] = {}
        for offer in offers:
            if not offer.bound and (choice := self._dear(offer)) is not None:
                turns.setdefault(choice[0], []).append((offer, choice[1]))
        for i, asked in turns.items():
            self._ask(i, [offer for offer, _ in asked], [quote for _, quote in asked])
        return [offer.drafts.get(offer.taken, NOTHING) for offer in offers]

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Let every drafter see what became of its own guesses, and learn from all that were made."""
        gone = False
        for sequence, outcome in zip(sequences, outcomes, strict=True):
            made = self._rounds.pop(sequence, None)
            gone = gone or bool(self._texts[sequence].dropped)
            if made is None or not outcome.tokens:
                continue
            for i, draft in made.drafts.items():
                if i == made.taken:
                    self.sources[i].learn(outcome)
                    if outcome.accepted == len(outcome.draft):  # a look that met only right guesses: look again soon
                        self.sources[i].gap = max(NEAR, self.sources[i].gap // 4)
                else:
                    self.sources[i].watched(draft, outcome.tokens)
        everybody = range(len(sequences))
        for i, drafter in enumerate(self.drafters):
            of = [j for j in everybody if i not in self._texts[sequences[j]].dropped] if gone else everybody
            if not of:
                continue
            try:
                if len(of) == len(sequences):
                    drafter.observe(sequences, outcomes, scored)
                else:
                    drafter.observe([sequences[j] for j in of], [outcomes[j] for j in of], _part(scored, of))
            except Exception as error:  # as above
                for j in of:
                    self._drop(sequences[j], i, error)

    def end(self, sequence: TokenSequence) -> None:
        """Let every drafter forget the sequence."""
        known = self._texts.pop(sequence, None)
        self._rounds.pop(sequence, None)
        for i, drafter in enumerate(self.drafters):
            try:
                drafter.end(sequence)
            except Exception as error:  # as above; what it broke on before is no news
                if known is None or i not in known.dropped:
                    self._say(i, error)

    def _free(self, i: int, quote: AutoQuote) -> bool:
        """Say whether asking is cheap enough to do it in every round, and can be done without taking the answer."""
        source = self.sources[i]
        if source.draws:
            return False
        return self._instant[i] or (quote.rate > 0.0 and source.free(quote.plain * quote.pace))

    def _dear(self, offer: _Offer) -> tuple[int, Quote] | None:
        """Return which of the drafters that cost something to ask, and with which quote: None where none pays."""
        promises = []
        for i, source in enumerate(self.sources):
            if i not in offer.known.dropped and i not in offer.asked:
                behind, rounds = self._behind(offer, i), max(1.0, offer.sequence.room / _SERVES)
                promises.append((*offer.quote.by(source).best(behind, rounds), i))
        promises.sort(reverse=True)
        for promise, length, i in promises[1:]:  # one that pays, but less than another, may have come to pay more
            source = self.sources[i]
            if source.idle >= max(STALE, source.gap):
                return self._look(offer, i, length, pays=promise > offer.net)
        for promise, length, i in promises:
            source = self.sources[i]
            if promise > offer.net:
                source.idle, source.gap = 0, NEAR
                return i, offer.quote.by(source)
            if source.idle >= source.gap:
                return self._look(offer, i, length, pays=False)
        return None

    def _look(self, offer: _Offer, i: int, length: int, pays: bool) -> tuple[int, Quote]:
        """Return a turn for a drafter of which it is to be learnt how it fares, and put the next one off."""
        source = self.sources[i]
        source.idle, source.gap = 0, STALE if pays else _patience(source, offer.quote)
        return i, Look(min(LOOK, max(1, length), offer.quote.limit))

    def _behind(self, offer: _Offer, i: int) -> int:
        return len(offer.sequence) - offer.known.seen[i]

    def _ask(self, i: int, offers: Sequence[_Offer], quotes: Sequence[Quote]) -> None:
        """Ask one drafter, and take its drafts where they are worth most, or were drawn to be tested by ratio."""
        source, began = self.sources[i], self._clock()
        behind = 0
        for offer in offers:
            behind += self._behind(offer, i)
            offer.asked.add(i)
            offer.known.seen[i] = len(offer.sequence)
        try:
            answer = self.drafters[i].propose([o.sequence for o in offers], quotes, [o.noise for o in offers])
            drafts = list(zip(offers, self._checked(i, answer, offers), strict=True))
            guesses = sum([max(draft.depths(), default=0) for _, draft in drafts])  # what stands beside one is free
        except Exception as error:  # as above
            for offer in offers:
                self._drop(offer.sequence, i, error)
            return
        seconds = self._clock() - began
        source.idle = 0
        source.paid(seconds, guesses, len(offers), behind)
        plain = offers[0].quote.plain * offers[0].quote.pace
        if seconds > max(_SECOND, (_SLOW + behind) * plain):
            for offer in offers:
                self._drop(offer.sequence, i, TimeoutError(f"a draft took {seconds:.1f} s"))
        for (offer, draft), quote in zip(drafts, quotes, strict=True):
            if not draft.tokens:
                continue
            offer.drafts[i] = draft
            look = isinstance(quote, Look) and offer.taken < 0
            if draft.laws is not None and not offer.noise.coupled:
                offer.taken, offer.net, offer.bound = i, math.inf, True
                source.draws = True
            elif (net := offer.quote.net(source.worth(draft), len(draft))) > offer.net or look:
                offer.taken, offer.net = i, net

    def _checked(self, i: int, answer: object, offers: Sequence[_Offer]) -> list[Draft]:
        """Return a drafter's drafts as they are known to be ones. Raises DrafterError as the round itself would."""
        limits = [max(1, offer.quote.limit) for offer in offers]
        return drafts_of(answer, self.sources[i].name, limits, self._widths[i], lead="")  # the notice names it

    def _drop(self, sequence: TokenSequence, i: int, error: Exception) -> None:
        self._texts[sequence].dropped.add(i)
        self._say(i, error)

    def _say(self, i: int, error: Exception) -> None:
        self.sources[i].faults += 1
        times, _ = self._said.get(i, (0, ""))
        words = " ".join(str(error).split()).removeprefix(f"drafter {self.sources[i].name}: ") or type(error).__name__
        self._said[i] = times + 1, words


@dataclass(frozen=True, slots=True)
class Look:
    """Room for a few guesses, whatever they cost: to learn how they fare."""

    limit: int

    def worth(self, path_probability: float, rows: int) -> bool:  # noqa: ARG002 - the length alone decides
        """Say yes until there are as many."""
        return rows < self.limit


def _patience(source: Source, quote: AutoQuote) -> int:
    """Return the rounds between two looks at a drafter, such that looks keep within their budget."""
    spent = sum(quote.steps[:LOOK]) + (LOOK + 1) * quote.by(source).unit
    return max(NEAR, min(FAR, round(spent / (BUDGET * quote.plain))))


def _part(scored: Scored, asked: Sequence[int]) -> Scored:
    """Return what was scored, its starts those of some sequences."""
    earlier = [scored.earlier[j] for j in asked] if scored.earlier else ()
    return Scored(scored.logits, tuple(scored.starts[j] for j in asked), scored.hidden, earlier)

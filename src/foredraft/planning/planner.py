"""The planner: one more guess while it is expected to bring more than its time is worth elsewhere.

Renewal-reward stopping: with rate the tokens a second that rounds bring in the long run, a guess pays while

    P(it and all it builds on survive) > rate * (what it costs to draft and to verify)

and a round is worth what it brings less ``rate`` times what it takes. No guesses at all is always a candidate. One rate
prices the rows of a whole batch, so load that has spent the arithmetic makes guesses dear, and they stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from foredraft.core.protocols import Round
from foredraft.core.sequence import TokenSequence
from foredraft.planning.costs import Costs
from foredraft.planning.source import BEHIND, Source

MAX_DRAFT_TOKENS: Final = 15  # guesses of a round
_GAIN: Final = 0.05  # of a round on what rounds bring
_NEAR: Final = 64  # tokens of length by which sequences are told apart in price
_STALL: Final = 64.0  # plain passes: no drafting that goes on takes so long
_HOPELESS: Final = 0.01  # a guess that survives so seldom is not looked beyond
_BESIDE: Final = 2.0  # plain passes that a round's own work may count as, at most


@dataclass(slots=True)
class Means:
    """What a round brings and takes a sequence, of late."""

    tokens: float = 1.0
    rows: float = 1.0
    drafting: float = 0.0  # seconds of table time
    overhead: float = 0.0  # seconds of a round with guesses that are neither drafting nor the pass
    alone: float | None = None  # the same of a plain round; None until there was one

    @property
    def plain(self) -> float:
        """What a plain round takes beside its pass; about half of another's until one was seen."""
        return self.overhead / 2 if self.alone is None else self.alone

    def note(self, seconds: float, drafted: bool) -> None:
        """Learn what a round took beside its pass and its drafting."""
        if drafted:
            self.overhead += _GAIN * (seconds - self.overhead)
        else:
            self.alone = seconds if self.alone is None else self.alone + _GAIN * (seconds - self.alone)


class AutoQuote:
    """The prices of one sequence's guesses in this round. ``rate`` is in tokens a second of table time.

    ``steps[i]`` is what verifying a guess costs beside i others, in seconds of table time.
    """

    __slots__ = ("_by", "limit", "pace", "plain", "rate", "steps")

    def __init__(self, limit: int, rate: float, steps: Sequence[float], plain: float, pace: float) -> None:
        self.limit = limit
        self.rate = rate
        self.steps = steps
        self.plain = plain  # seconds of a plain pass
        self.pace = pace
        self._by: dict[Source, SourceQuote] = {}

    def worth(self, path_probability: float, rows: int) -> bool:
        """Say whether one more guess pays if it is as likely as what it builds on: for a drafter nobody knows yet."""
        return rows < self.limit and path_probability > self.rate * self.steps[rows]

    def net(self, accepted: float, guesses: int) -> float:
        """Return what verifying a draft is worth: tokens that it brings, less what its time would bring elsewhere."""
        return accepted - self.rate * sum(self.steps[:guesses])

    def by(self, source: Source) -> SourceQuote:
        """Return the prices as they are for one drafter."""
        found = self._by.get(source)
        if found is None:
            found = self._by[source] = SourceQuote(self, source)
        return found


def unpriced(limit: int) -> AutoQuote:
    """Return a quote by which every guess is worth it, up to a number of them."""
    return AutoQuote(limit, 0.0, (0.0,) * limit, 1.0, 1.0)


class SourceQuote:
    """The prices of one sequence's guesses for a drafter whose record is known."""

    __slots__ = ("_quote", "_source", "limit", "unit")

    def __init__(self, quote: AutoQuote, source: Source) -> None:
        self.limit = quote.limit
        self._quote = quote
        self._source = source
        self.unit = 0.0 if source.unit is None else source.unit / quote.pace

    def _floor(self, rows: int) -> float:
        """Return how likely all that a guess builds on must be, for one that has so many before it."""
        quote = self._quote
        return quote.rate * (quote.steps[rows] + self.unit) / self._source.acceptance.chance(rows)

    def worth(self, path_probability: float, rows: int) -> bool:
        """Say whether one more guess, drafted by this drafter and as good as its guesses are, pays."""
        if rows >= self.limit:
            return False
        confidence = 1.0 if path_probability >= 1.0 else self._source.acceptance.survival(path_probability)
        return confidence > self._floor(rows)

    def pays(self, path_probability: float, rows: int) -> bool:
        """Say whether a guess that costs nothing to draft pays; the path is the guess and all that it builds on."""
        if rows >= self.limit:
            return False
        return self._source.acceptance.survival(path_probability) > self._quote.rate * self._quote.steps[rows]

    def floors(self, most: int) -> list[float]:
        """Return how sure the drafter must be of what a guess builds on, for each guess that can pay."""
        found: list[float] = []
        for rows in range(min(most, self.limit)):
            confidence = self._source.acceptance.confidence_for(self._floor(rows))
            if confidence > 1.0:
                break
            found.append(confidence)
        return found

    def best(self, behind: int = 0, rounds: float = 1.0) -> tuple[float, int]:
        """Return what the best number of guesses is worth before any is drafted, and that number.

        ``behind`` tokens have to be caught up with first, which serves so many ``rounds``.
        """
        best, length, path, total, spent = 0.0, 0, 1.0, 0.0, 0.0
        quote, source, unit = self._quote, self._source, self.unit
        rate, answers = quote.rate, source.answers
        asked = unit
        if behind > BEHIND and source.read is not None:
            asked += source.read / quote.pace * behind / rounds
        chances = _longer(source.acceptance.chances, self.limit)
        for i, (step, chance) in enumerate(zip(quote.steps, chances, strict=False)):
            path *= chance
            if path < _HOPELESS:
                break
            total += path
            spent += step + unit
            net = answers * (total - rate * spent) - rate * asked  # most do not always have something to say
            if net > best:
                best, length = net, i + 1
        return best, length


def _longer(chances: list[float], count: int) -> list[float]:
    return chances if count <= len(chances) else chances + chances[-1:] * (count - len(chances))


class AutoPlanner:
    """Prices guesses by ``costs``, and by what rounds have brought of late. ``most`` bounds a draft.

    It outlives a generation: what was learnt of machine and texts serves the next.
    """

    def __init__(self, costs: Costs, most: int = MAX_DRAFT_TOKENS, clock: Callable[[], float] = perf_counter) -> None:
        self.costs = costs
        self.most = most
        self.means = Means()
        self.spent = 0.0  # seconds in this planner
        self._clock = clock

    def quote(self, sequences: Sequence[TokenSequence]) -> list[AutoQuote]:
        """Price one more guess for each sequence; none for one that has yet to read its prompt."""
        began = self._clock()
        costs, count = self.costs, len(sequences)
        plain, rate = self._worth(count, sum(map(len, sequences)))
        others = 1 + round((count - 1) * self.means.rows)  # rows that the batch has without this sequence's guesses
        made: dict[tuple[int, int], AutoQuote] = {}
        quotes: list[AutoQuote] = []
        for sequence in sequences:
            length = len(sequence)
            limit = 0 if length == sequence.prompt_length else max(0, min(self.most, sequence.room - 1))
            key = length // _NEAR, limit  # sequences of about one length pay one price
            if key not in made:
                made[key] = AutoQuote(limit, rate, self._steps(others, limit, length), plain, costs.pace)
            quotes.append(made[key])
        self.spent += self._clock() - began
        return quotes

    def reasons(self, sequence: TokenSequence) -> str:
        """Say how likely a guess must be accepted to pay at this place of a text: for whoever traces a generation."""
        quote = self.price(len(sequence))
        floor = quote.rate * quote.steps[0]
        return f"guesses pay from {100 * floor:.0f} %"

    def price(self, length: int) -> AutoQuote:
        """Return the price of a guess for one text of a length, alone and with all the room that there may be."""
        plain, rate = self._worth(1, length)
        return AutoQuote(self.most, rate, self._steps(1, self.most, length), plain, self.costs.pace)

    def _steps(self, others: int, limit: int, length: int) -> list[float]:
        """Return what each guess costs to verify; the first bears what a round with guesses takes beside."""
        steps = self.costs.steps(others, limit, length)
        if steps:
            steps[0] += max(0.0, self.means.overhead - self.means.plain)
        return steps

    def _worth(self, count: int, context: int) -> tuple[float, float]:
        """Return the seconds of a plain round and the tokens a second that rounds bring, in table time."""
        means, costs = self.means, self.costs
        plain = costs.seconds(count, context, context) + means.plain
        taken = costs.seconds(round(count * means.rows), context, round(context * means.rows)) + means.overhead
        return plain, max(count / plain, count * means.tokens / (taken + count * means.drafting))

    def record(self, done: Round) -> None:
        """Learn what the round brought, and what it took."""
        began = self._clock()
        sequences, outcomes = done.sequences, done.outcomes
        fed = any(len(s) - len(o.tokens) <= s.prompt_length for s, o in zip(sequences, outcomes, strict=True))
        if not fed and outcomes:
            count, costs, means = len(outcomes), self.costs, self.means
            pace, plain = costs.pace, costs.table.seconds[0]
            rows = count + sum([len(outcome.draft) for outcome in outcomes])
            context = sum(map(len, sequences))
            costs.learn(rows, context, context * rows // count, done.verified - done.drafted)
            brought = sum([len(outcome.tokens) for outcome in outcomes]) / count
            means.tokens += _GAIN * (brought - means.tokens)
            means.rows += _GAIN * (rows / count - means.rows)
            drafting = (done.drafted - done.began) / pace / count
            if 0.0 <= drafting < _STALL * plain:  # not where the clock has jumped, or a drafter hung
                means.drafting += _GAIN * (drafting - means.drafting)
            overhead = (began - done.verified) / pace
            if overhead >= 0.0:
                means.note(min(overhead, _BESIDE * plain), rows > count)
        self.spent += self._clock() - began

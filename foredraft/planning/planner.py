"""The planner: one more guess while it is expected to bring more than its time is worth elsewhere.

Renewal-reward stopping: with rate the tokens a second that rounds bring in the long run, a guess pays while

    P(it and all it builds on survive) > rate * (what it costs to draft and to verify)

and a round is worth what it brings less ``rate`` times what it takes. No guesses at all is always a candidate. One rate
prices the rows of a whole batch, so load that has spent the arithmetic makes guesses dear, and they stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from foredraft.core.draft import Round
from foredraft.core.sequence import Sequence as Text
from foredraft.planning.costs import Costs
from foredraft.planning.source import Source

MOST: Final = 15  # guesses of a round
_GAIN: Final = 0.05  # of a round on what rounds bring


@dataclass(slots=True)
class Means:
    """What a round brings and takes a sequence, of late."""

    tokens: float = 1.0
    rows: float = 1.0
    drafting: float = 0.0  # seconds of table time
    beside: float = 0.0  # seconds of a round that are neither drafting nor the pass


class AutoQuote:
    """The prices of one sequence's guesses in this round. ``rate`` is in tokens a second of table time.

    ``steps[i]`` is what verifying a guess costs beside i others, in seconds of table time.
    """

    __slots__ = ("limit", "pace", "plain", "rate", "steps")

    def __init__(self, limit: int, rate: float, steps: Sequence[float], plain: float, pace: float) -> None:
        self.limit = limit
        self.rate = rate
        self.steps = steps
        self.plain = plain  # seconds of a plain pass
        self.pace = pace

    def worth(self, path_probability: float, rows: int) -> bool:
        """Say whether one more guess pays if it is as likely as what it builds on: for a drafter nobody knows yet."""
        return rows < self.limit and path_probability > self.rate * self.steps[rows]

    def net(self, accepted: float, guesses: int, drafting: float) -> float:
        """Return what a draft is worth: tokens that it brings, less what its time would bring elsewhere."""
        return accepted - self.rate * (sum(self.steps[:guesses]) + drafting)

    def by(self, source: Source) -> SourceQuote:
        """Return the prices as they are for one drafter."""
        return SourceQuote(self, source)


class SourceQuote:
    """The prices of one sequence's guesses for a drafter whose record is known."""

    __slots__ = ("_floors", "_quote", "_source", "limit", "unit")

    def __init__(self, quote: AutoQuote, source: Source) -> None:
        self.limit = quote.limit
        self._quote = quote
        self._source = source
        self.unit = 0.0 if source.unit is None else source.unit / quote.pace
        chance, rate, unit = source.acceptance.chance, quote.rate, self.unit
        self._floors = [rate * (step + unit) / chance(i) for i, step in enumerate(quote.steps[: quote.limit])]

    def worth(self, path_probability: float, rows: int) -> bool:
        """Say whether one more guess, drafted by this drafter and as good as its guesses are, pays."""
        if rows >= self.limit:
            return False
        sure = 1.0 if path_probability >= 1.0 else self._source.acceptance.survival(path_probability)
        return sure > self._floors[rows]

    def pays(self, path_probability: float, rows: int) -> bool:
        """Say whether a guess that costs nothing to draft pays; the path is the guess and all that it builds on."""
        if rows >= self.limit:
            return False
        return self._source.acceptance.survival(path_probability) > self._quote.rate * self._quote.steps[rows]

    def floors(self, most: int) -> list[float]:
        """Return how sure the drafter must be of what a guess builds on, for each guess that can pay."""
        found: list[float] = []
        for floor in self._floors[:most]:
            sure = self._source.acceptance.sureness_for(floor)
            if sure > 1.0:
                break
            found.append(sure)
        return found

    def best(self) -> tuple[float, int]:
        """Return what the best number of guesses is worth before any is drafted, and that number."""
        best, length, path, total, spent = 0.0, 0, 1.0, 0.0, 0.0
        chance, rate = self._source.acceptance.chance, self._quote.rate
        for i, step in enumerate(self._quote.steps[: self.limit]):
            path *= chance(i)
            total += path
            spent += step
            net = total - rate * (spent + (i + 2) * self.unit)
            if net > best:
                best, length = net, i + 1
        return best, length


class AutoPlanner:
    """Prices guesses by ``costs``, and by what rounds have brought of late. ``most`` bounds a draft.

    It outlives a generation: what was learnt of machine and texts serves the next.
    """

    def __init__(self, costs: Costs, most: int = MOST) -> None:
        self.costs = costs
        self.most = most
        self.means = Means()
        self.spent = 0.0  # seconds in this planner
        self._verified = 0.0

    def quote(self, sequences: Sequence[Text]) -> list[AutoQuote]:
        """Price one more guess for each sequence; none for one that has yet to read its prompt."""
        began = perf_counter()
        means, costs, count = self.means, self.costs, len(sequences)
        context = sum(map(len, sequences))
        others = 1 + round((count - 1) * means.rows)  # rows that the batch has without this sequence's guesses
        plain = costs.seconds(count, context, context) + means.beside
        taken = costs.seconds(round(count * means.rows), context, round(context * means.rows)) + means.beside
        rate = max(count / plain, count * means.tokens / (taken + count * means.drafting))
        made: dict[int, AutoQuote] = {}
        quotes = []
        for sequence in sequences:
            length = len(sequence)
            limit = 0 if length == sequence.prompt_length else max(0, min(self.most, sequence.room - 1))
            near = length // 64  # sequences of about one length pay one price
            if near not in made or made[near].limit != limit:
                made[near] = AutoQuote(limit, rate, self._steps(others, limit, length), plain, costs.pace)
            quotes.append(made[near])
        self.spent += perf_counter() - began
        return quotes

    def _steps(self, others: int, limit: int, length: int) -> list[float]:
        """Return what each further row costs."""
        bare = [self.costs.seconds(others + i, 0, 0) for i in range(limit + 1)]
        look = self.costs.table.per_row * length
        return [max(0.0, bare[i + 1] - bare[i]) + look for i in range(limit)]

    def record(self, done: Round) -> None:
        """Learn what the round brought, and what it took."""
        began = perf_counter()
        fed = any(len(s) - len(o.tokens) == s.prompt_length for s, o in zip(done.sequences, done.outcomes, strict=True))
        if not fed and done.outcomes:
            count, pace = len(done.outcomes), self.costs.pace
            rows = count + sum(len(outcome.draft) for outcome in done.outcomes)
            context = sum(map(len, done.sequences))
            self.costs.learn(rows, context, context * rows // count, done.verified - done.drafted)
            means = self.means
            brought = sum(len(outcome.tokens) for outcome in done.outcomes) / count
            means.tokens += _GAIN * (brought - means.tokens)
            means.rows += _GAIN * (rows / count - means.rows)
            means.drafting += _GAIN * ((done.drafted - done.began) / pace / count - means.drafting)
            if self._verified:
                beside = min((done.began - self._verified) / pace, 0.2 * self.costs.table.seconds[0])
                means.beside += _GAIN * (max(0.0, beside) - means.beside)
        self._verified = 0.0 if fed else done.verified
        self.spent += perf_counter() - began

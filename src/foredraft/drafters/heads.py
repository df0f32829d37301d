"""Trained heads draft from what the target's own layers put out (EAGLE-3, arXiv 2503.01840; Medusa, 2401.10774)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from array_api_compat import array_namespace

from foredraft.core.capabilities import knows_floors, prices_paths
from foredraft.core.distribution import law_after
from foredraft.core.draft import ROOT, Draft, Outcome, Scored
from foredraft.core.law import Array, Law, Point
from foredraft.core.noise import Noise
from foredraft.core.protocols import Quote
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.errors import GenerationError, NumericalError
from foredraft.models.heads.modules import MedusaHeads, RecurrentHeads
from foredraft.models.heads.native import Chain, NativeHeads
from foredraft.models.native.sampling import NativeNoise, native_law
from foredraft.planning.acceptance import confidence_of

WINDOW: Final = 1024  # positions that are caught up with, at most: what lies before them is not worth the wait
_RACERS: Final = 1e-3  # of the likeliest token's chance: who is less likely is not worth a clock
_HALVINGS: Final = 24  # of the search for the price of a guess


class HeadsDrafter:
    """Drafts a chain from the last position that the target has verified.

    What the tapped layers said of each committed token is kept until the next draft, which first reads it in one pass.
    Nothing is known of a prompt that lay in the target's cache already: a sequence is drafted for from what was fed.

    ``temperature`` is the drafter's own (None: the request's); the text stays exact at any value, because each guess
    carries the law it was drawn from. ``draft_tokens`` caps a draft beside the quote. ``window`` bounds how many
    positions are read at once.
    """

    name = "heads"

    def __init__(
        self,
        heads: RecurrentHeads | MedusaHeads,
        temperature: float | None = None,
        draft_tokens: int | None = None,
        window: int = WINDOW,
    ) -> None:
        self.heads = heads
        self.taps = heads.spec.taps
        self.temperature = temperature
        self.draft_tokens = draft_tokens
        self.window = 1 if isinstance(heads, MedusaHeads) else window  # each of those heads reads one position
        self._texts: dict[TokenSequence, _Known] = {}
        self._broken = 0

    @property
    def notice(self) -> str | None:
        """What is slower than it could be, and that nothing more was drafted for some texts; None if all went well."""
        if not self._broken:
            return self.heads.note
        texts = "a text" if self._broken == 1 else f"{self._broken} texts"
        broken = f"the heads answered with NaN or infinite logits, so nothing more was drafted for {texts}"
        return broken if self.heads.note is None else f"{self.heads.note}; {broken}"

    def begin(self, sequence: TokenSequence) -> None:
        """Take a slot for a sequence."""
        self._texts[sequence] = _Known(self.heads.take() if isinstance(self.heads, RecurrentHeads) else 0)

    def propose(
        self, sequences: Sequence[TokenSequence], quotes: Sequence[Quote], noises: Sequence[Noise]
    ) -> list[Draft]:
        """Guess a chain for each sequence while its quote says it is worth it."""
        return [self._draft(*each) for each in zip(sequences, quotes, noises, strict=True)]

    def observe(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome], scored: Scored) -> None:
        """Keep what the tapped layers said of the tokens that stay."""
        for i, (sequence, outcome) in enumerate(zip(sequences, outcomes, strict=True)):
            known = self._texts.get(sequence)
            if known is None or not outcome.tokens:
                continue
            rows = [scored.starts[i] + 1 + node for node in (-1, *outcome.kept)]
            before = scored.earlier[i] if scored.earlier else {}
            states = [scored.hidden[tap][rows, :] for tap in self.taps]
            if before:
                earlier = (before[tap][-self.window :, :] for tap in self.taps)
                states = [_joined(pair) for pair in zip(earlier, states, strict=True)]
            known.add(len(sequence) - 1, states, self.window)

    def end(self, sequence: TokenSequence) -> None:
        """Forget a sequence."""
        known = self._texts.pop(sequence, None)
        if known is not None and isinstance(self.heads, RecurrentHeads):
            self.heads.release(known.slot)

    def _draft(self, sequence: TokenSequence, quote: Quote, noise: Noise) -> Draft:
        known = self._texts.get(sequence)
        if known is None or known.broken or not known.count or known.end != len(sequence) - 1:
            return Draft()
        floors = _floors(quote, self._most(quote, known))
        if not floors:
            return Draft()
        params = self._params(sequence.params, noise)
        if isinstance(self.heads, NativeHeads) and _in_library(sequence, params, noise, len(floors)):
            following = known.following(sequence)
            drawn = self.heads.chain(known.slot, known.read, known.states(), following, floors, params, noise)
            known.asked = True
            draft, broken = _comb(drawn, quote), drawn.broken
        else:
            tokens, laws, confidences, broken = self._grown(sequence, known, floors, params, noise)
            draft = replace(Draft.chain(tokens, laws), confidences=tuple(confidences))
        if broken:
            known.broken = True
            self._broken += 1
        return replace(draft, source=self.name)

    def _params(self, params: SamplingParams, noise: Noise) -> SamplingParams:
        """Return what guesses are drawn by: the drafter's own temperature, no tokens that hardly ever win a race."""
        if self.temperature is not None:
            params = replace(params, temperature=self.temperature)
        if noise.coupled and not params.greedy and params.min_p < _RACERS:
            params = replace(params, min_p=_RACERS)
        return params

    def _most(self, quote: Quote, known: _Known) -> int:
        """Return how many guesses there is room for."""
        most = quote.limit if self.draft_tokens is None else min(quote.limit, self.draft_tokens)
        if isinstance(self.heads, MedusaHeads):
            return min(most, self.heads.spec.steps)
        return min(most, self.heads.context - known.read - known.count + 1)

    def _grown(
        self, sequence: TokenSequence, known: _Known, floors: Sequence[float], params: SamplingParams, noise: Noise
    ) -> tuple[list[int], list[Law] | None, list[float], bool]:
        """Draft a guess at a time: tokens, laws (None: certain), how sure of each, whether they broke."""
        with np.errstate(over="ignore", invalid="ignore"):  # the law says what comes of it
            logits_after = self._logits_after(sequence, known)
        tokens: list[int] = []
        laws: list[Law] = []
        confidences: list[float] = []
        path = 1.0
        for depth, floor in enumerate(floors):
            if path < floor:
                break
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    logits = logits_after(tokens)
                law = law_after(self._row(logits), sequence, tuple(tokens), params)
            except NumericalError:
                return tokens, _unless_certain(laws), confidences, True
            except GenerationError:  # nothing can be drawn after the guesses, so they end here
                break
            tokens.append(noise.guess(law, depth, depth))
            laws.append(law)
            path *= confidence_of(law, tokens[-1], logits, noise, depth)
            confidences.append(path)
        return tokens, _unless_certain(laws), confidences, False

    def _logits_after(self, sequence: TokenSequence, known: _Known) -> Callable[[list[int]], Array]:
        """Return what gives the logits [Vd] after guesses, asked for none first and then with one more each time."""
        heads, states = self.heads, known.states()
        if isinstance(heads, MedusaHeads):
            rows = heads.rows([state[-1:, :] for state in states])
            return lambda tokens: rows[len(tokens), :]
        state, first = heads.read(known.slot, known.read, states, known.following(sequence))
        known.asked = True
        place = known.read + known.count - 1

        def logits_after(tokens: list[int]) -> Array:
            nonlocal state
            if not tokens:
                return first
            state, logits = heads.step(known.slot, place + len(tokens), state, tokens[-1])
            return logits

        return logits_after

    def _row(self, logits: Array) -> Array:
        """Return logits over the target's vocabulary [V], the tokens that heads never guess ruled out."""
        xp = array_namespace(logits)
        row = xp.full((self.heads.width,), -math.inf, dtype=logits.dtype, device=logits.device)
        row[xp.asarray(self.heads.vocabulary, dtype=xp.int64, device=logits.device)] = logits
        return row


@dataclass(slots=True)
class _Known:
    """What is known of one sequence: positions ``base`` up to ``end``, the first ``read`` of them in the heads' slot.

    ``fresh`` are the outputs [n, H] of each tapped layer at the ``count`` positions after those; ``asked`` says that
    they were read, and need only be counted as such when more is known.
    """

    slot: int
    base: int = 0
    read: int = 0
    count: int = 0
    fresh: list[list[Array]] = field(default_factory=list)
    asked: bool = False
    broken: bool = False

    @property
    def end(self) -> int:
        """The first position that nothing is known of."""
        return self.base + self.read + self.count

    def add(self, end: int, states: Sequence[Array], window: int) -> None:
        """Learn the outputs [n, H] at the n positions before ``end``; those known already are passed over."""
        if self.asked:
            self.read, self.count, self.fresh, self.asked = self.read + self.count, 0, [], False
        known, begin = self.end, end - int(states[0].shape[0])
        if begin > known:  # the target did not say what it made of those between
            self.base, self.read, self.count, self.fresh = begin, 0, 0, []
        elif begin < known:
            states = [state[known - begin :, :] for state in states]
        self.fresh.append(list(states))
        self.count += int(states[0].shape[0])
        if self.count > window:
            self.fresh = [[state[-window:, :] for state in self.states()]]
            self.base, self.read, self.count = end - window, 0, window

    def states(self) -> list[Array]:
        """Return the outputs [count, H] of each tapped layer that were not read yet."""
        if len(self.fresh) > 1:
            self.fresh = [[_joined(parts) for parts in zip(*self.fresh, strict=True)]]
        return self.fresh[0]

    def following(self, sequence: TokenSequence) -> list[int]:
        """Return the token [count] after each of those positions."""
        return sequence.tokens[self.end - self.count + 1 : self.end + 1]


def _joined(parts: Sequence[Array]) -> Array:
    return array_namespace(parts[0]).concat(list(parts), axis=0)


def _floors(quote: Quote, most: int) -> list[float]:
    """Return, for each guess that can pay, how likely what it builds on must be for that."""
    if knows_floors(quote):
        return list(quote.floors(most))
    floors: list[float] = []
    while len(floors) < most and quote.worth(1.0, len(floors)):
        low, high = 0.0, 1.0
        if quote.worth(low, len(floors)):
            high = low
        for _ in range(_HALVINGS if high > low else 0):
            middle = (low + high) / 2
            low, high = (low, middle) if quote.worth(middle, len(floors)) else (middle, high)
        floors.append(high)
    return floors


def _comb(chain: Chain, quote: Quote) -> Draft:
    """Return a chain with each guess's runner-up beside it where that pays: verifying it is all that it costs.

    Only where the quote tells what pays, and no guess was drawn: of two that are drawn the second has a law of its own.
    """
    pays = quote.pays if prices_paths(quote) else None
    nodes: list[tuple[int, int, float, Law]] = []
    behind = ROOT
    for i, token in enumerate(chain.tokens):
        guess = len(nodes)
        nodes.append((token, behind, chain.confidence[i], chain.laws[i] if chain.laws else Point(token)))
        second, rows = chain.second[i], guess + len(chain.tokens) - i  # the whole chain is there already
        if pays is not None and second >= 0 and pays(chain.second_confidence[i], rows):
            nodes.append((second, behind, chain.second_confidence[i], Point(second)))
        behind = guess
    tokens, parents, confidences, laws = zip(*nodes, strict=True) if nodes else ((), (), (), ())
    return Draft(tokens, parents, laws if chain.laws else None, confidences=confidences)


def _in_library(sequence: TokenSequence, params: SamplingParams, noise: Noise, count: int) -> bool:
    """Say whether the library draws as Python would: nothing shapes the logits, and law and noise are its own."""
    if sequence.shaping is not None:
        return False
    native = sequence.law is native_law and isinstance(noise, NativeNoise) and noise.places(count) is not None
    return params.greedy or native


def _unless_certain(laws: list[Law]) -> list[Law] | None:
    return None if all(isinstance(law, Point) for law in laws) else laws

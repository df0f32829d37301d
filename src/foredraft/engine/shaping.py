"""What happens to logits before the temperature: bias, penalties, masks, for one sequence, node by node of a draft.

Order: logit bias, repetition penalty, presence and frequency penalties, then the masks: bad words, min tokens, grammar.
Everything is a function of the tokens before the row alone, so a guess is counted exactly as a committed token is. The
repetition penalty is CTRL's (Keskar et al. 2019, arXiv 1909.05858), presence and frequency penalties are OpenAI's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from array_api_compat import array_namespace, is_numpy_array, is_torch_array

from foredraft.core.law import Array
from foredraft.core.sequence import TokenSequence
from foredraft.errors import NoTokenLeft

_ROOM: Final = 64


@dataclass(frozen=True, slots=True)
class ShapingOptions:
    """What is asked of the logits before they become a law; the defaults ask for nothing.

    ``bad_words`` are token sequences, each not empty. Ranges are checked where options are read.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, what is added to its logit)
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0


class GrammarMask(Protocol):
    """A grammar that follows one sequence."""

    name: str  # the option it came from

    def mask(self, sequence: TokenSequence, path: tuple[int, ...]) -> bytes | None:
        """Return which tokens may follow ``path``, a bit a token, the lowest bit first; None if ``path`` breaks it.

        Raises GrammarLimit when it cannot be followed any further.
        """
        ...


def shaper(options: ShapingOptions, grammar: GrammarMask | None = None) -> Shaper | None:
    """Return what shapes the logits of one sequence; None where nothing is asked for."""
    return None if grammar is None and options == ShapingOptions() else Shaper(options, grammar)


class Shaper:
    """Shapes the rows of one sequence. It keeps counts that catch up with the sequence, which only grows."""

    def __init__(self, options: ShapingOptions, grammar: GrammarMask | None = None) -> None:
        self.options = options
        self.grammar = grammar
        self._all = _Counts()
        self._answer = _Counts()
        self._biased = np.asarray([token for token, _ in options.logit_bias], dtype=np.int64)
        self._bias = np.asarray([bias for _, bias in options.logit_bias], dtype=np.float64)
        self._single = [words[0] for words in options.bad_words if len(words) == 1]
        self._several = [words for words in options.bad_words if len(words) > 1]
        self._reach = max((len(words) - 1 for words in self._several), default=0)

    def __call__(self, row: Array, sequence: TokenSequence, path: tuple[int, ...] = ()) -> Array:
        """Return the logits [V] after bias, penalties and masks, for the token that follows ``path``.

        ``row`` [V] is over the target's vocabulary and is not changed; ``path`` are guesses that follow the committed
        sequence. After a guess that ends the text nothing follows, and the row comes back as it is; so does one that
        holds NaN or no finite maximum, for the law to report. Raises NoTokenLeft if the masks rule every token out,
        GrammarLimit if the grammar cannot be followed.
        """
        xp = array_namespace(row)
        if any(token in sequence.stop_ids for token in path) or not math.isfinite(float(xp.max(row))):
            return row
        shaped = self._penalised(xp, xp.asarray(row, copy=True), sequence, path)
        banned = self._banned(sequence, path)
        if banned:
            shaped = _put(xp, shaped, np.asarray(banned, dtype=np.int64), -math.inf)
        allowed = None if self.grammar is None else self.grammar.mask(sequence, path)
        if allowed is not None:
            bits = np.unpackbits(np.frombuffer(allowed, np.uint8), count=row.shape[0], bitorder="little")
            shaped = xp.where(xp.asarray(bits.view(np.bool_), device=row.device), shaped, -math.inf)
        if (banned or allowed is not None) and not math.isfinite(float(xp.max(shaped))):
            self._complain(len(sequence) - sequence.prompt_length + len(path) + 1)
        return shaped

    def _penalised(self, xp: Any, row: Array, sequence: TokenSequence, path: tuple[int, ...]) -> Array:
        """Return the row, which may be changed, after bias and penalties."""
        options = self.options
        if len(self._biased):
            row = _put(xp, row, self._biased, _taken(xp, row, self._biased) + _like(xp, row, self._bias))
        if options.repetition_penalty != 1:
            tokens, _ = self._all.along(sequence.tokens, path)
            values = _taken(xp, row, tokens)
            penalty = options.repetition_penalty
            row = _put(xp, row, tokens, xp.where(values > 0, values / penalty, values * penalty))
        if options.presence_penalty != 0 or options.frequency_penalty != 0:
            tokens, counts = self._answer.along(sequence.tokens, path, sequence.prompt_length)
            if len(tokens):
                penalties = options.presence_penalty + options.frequency_penalty * counts
                row = _put(xp, row, tokens, _taken(xp, row, tokens) - _like(xp, row, penalties))
        return row

    def _banned(self, sequence: TokenSequence, path: tuple[int, ...]) -> list[int]:
        """Return the tokens that bad words and min tokens rule out."""
        banned = list(self._single)
        if self._several:
            before = (*sequence.tokens[-self._reach :], *path)
            banned += [words[-1] for words in self._several if before[-len(words) + 1 :] == words[:-1]]
        if len(sequence) - sequence.prompt_length + len(path) < self.options.min_tokens:
            banned += sequence.stop_ids
        return banned

    def _complain(self, place: int) -> None:
        masks = [self.grammar.name] if self.grammar is not None else []
        masks += ["bad_words"] if self.options.bad_words else []
        masks += ["min_tokens"] if self.options.min_tokens else []
        names = " and ".join(filter(None, (", ".join(masks[:-1]), masks[-1])))
        rule = "rule" if len(masks) > 1 else "rules"
        raise NoTokenLeft(f"no token is left at token {place} of the answer: {names} {rule} every one out")


class _Counts:
    """How often each token has occurred so far: counts of a sequence, and a path's on top when asked."""

    def __init__(self) -> None:
        self._done = 0
        self._size = 0
        self._place: dict[int, int] = {}
        self._tokens = np.empty(_ROOM, dtype=np.int64)
        self._counts = np.empty(_ROOM, dtype=np.float64)

    def along(self, tokens: list[int], path: Sequence[int], start: int = 0) -> tuple[Any, Any]:
        """Return the distinct tokens [K] of ``tokens`` from ``start`` on and of ``path``, and how often each occurs.

        Both are views: whoever changes them changes the counts.
        """
        for token in tokens[max(start, self._done) :]:
            self._add(token)
        self._done = len(tokens)
        found, counts = self._tokens[: self._size], self._counts[: self._size]
        if not path:
            return found, counts
        counts = counts.copy()
        fresh: dict[int, int] = {}
        for token in path:
            if token in self._place:
                counts[self._place[token]] += 1
            else:
                fresh[token] = fresh.get(token, 0) + 1
        if not fresh:
            return found, counts
        return np.concatenate([found, list(fresh)]), np.concatenate([counts, list(fresh.values())])

    def _add(self, token: int) -> None:
        if token in self._place:
            self._counts[self._place[token]] += 1
            return
        if self._size == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, self._tokens])
            self._counts = np.concatenate([self._counts, self._counts])
        self._place[token] = self._size
        self._tokens[self._size] = token
        self._counts[self._size] = 1
        self._size += 1


def _like(xp: Any, row: Array, numbers: Any) -> Array:
    """Return numpy's numbers as an array of the row's kind and dtype."""
    return xp.astype(xp.asarray(numbers, device=row.device), row.dtype)


def _taken(xp: Any, row: Array, tokens: Any) -> Array:
    return xp.take(row, xp.asarray(tokens, device=row.device), axis=0)


def _put(xp: Any, row: Array, tokens: Any, values: Any) -> Array:
    """Return the row [V] with ``values``, an array or a number, at ``tokens`` [K]; the row itself may be what changes.

    The array API standard has no assignment at indices: numpy and torch do, any other library takes the long way.
    """
    if is_numpy_array(row) or is_torch_array(row):
        row[xp.asarray(tokens, device=row.device)] = values
        return row
    places = np.zeros(row.shape[0], dtype=np.int64)
    places[tokens] = np.arange(1, len(tokens) + 1)
    if isinstance(values, float):
        values = xp.full((len(tokens),), values, dtype=row.dtype, device=row.device)
    table = xp.concat([xp.zeros((1,), dtype=row.dtype, device=row.device), values])
    picked = xp.take(table, xp.asarray(places, device=row.device), axis=0)
    return xp.where(xp.asarray(places > 0, device=row.device), picked, row)

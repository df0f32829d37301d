"""One generation, round by round: what was guessed, what the target thought of it, and what it cost.

A planner that is ``Reasoning`` is asked, after it has learnt from the round, why the draft was as long as it was; of
another the trace's ``reason`` is empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any, Final

from foredraft.core.capabilities import Reasoning
from foredraft.core.draft import ROOT, Draft, Outcome
from foredraft.core.law import Array, Law, Point
from foredraft.core.protocols import Planner, Round
from foredraft.engine.watches.logprobs import Logprobs
from foredraft.tokenizer.tokenizer import Tokenizer

ACCEPTED: Final = "accepted"
REJECTED: Final = "refused"
UNTESTED: Final = "untested"
LIKELIEST: Final = 3  # tokens told at each place


@dataclass(frozen=True, slots=True)
class Guess:
    """One guess of a draft. ``parent`` is the guess that it follows, -1 for the text itself.

    ``p`` is its chance under the target's law, ``q`` under the law it was drawn from; ``q`` is None for a guess that is
    certain of itself. Where the target's law is certain too (greedy decoding), ``p`` is the model's own probability of
    the token, by the raw logits, and the guess is kept iff it is the likeliest. A guess behind a rejected one is
    "untested", and its ``p`` None.
    """

    token: int
    text: str
    parent: int
    fate: str
    p: float | None
    q: float | None


@dataclass(frozen=True, slots=True)
class Written:
    """One token of the answer: who wrote it, and how sure the model was of it by its raw logits.

    ``text`` is the token's own, ``shown`` what it adds to the text: nothing while a character is still in parts.
    ``likeliest`` holds the likeliest tokens at that place with their probabilities, the likeliest first.
    """

    token: int
    text: str
    shown: str
    origin: str
    p: float
    likeliest: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Traced:
    """One round. ``position`` counts the answer's tokens before it; times are milliseconds.

    ``prompt`` says that its pass read the prompt; ``equality`` that guesses were kept iff they were the target's own
    choice (greedy and coupled decoding), else they were tested by p/q.
    """

    position: int
    prompt: bool
    source: str
    equality: bool
    guesses: tuple[Guess, ...]
    accepted: int
    tokens: tuple[Written, ...]
    draft_ms: float
    verify_ms: float
    rest_ms: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the document's form."""
        return asdict(self)


class Trace:
    """A watch that keeps all there is to say of one generation that runs alone: ``rounds``.

    ``logprobs`` reads log-probabilities off logits, ``tokenizer`` spells tokens (None: a model without a tokenizer).
    """

    def __init__(
        self,
        planner: Planner,
        logprobs: Logprobs,
        tokenizer: Tokenizer | None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.rounds: list[Traced] = []
        self._reasoning = planner if isinstance(planner, Reasoning) else None
        self._logprobs = logprobs
        self._tokenizer = tokenizer
        self._stream = None if tokenizer is None else tokenizer.stream()
        self._clock = clock

    def see(self, done: Round) -> None:
        """Keep a round."""
        now = self._clock()
        (sequence,), (outcome,), (laws,) = done.sequences, done.outcomes, done.laws
        start = done.scored.starts[0] + 1
        rows = {node: done.scored.logits[start + node, :] for node in outcome.nodes}
        tested = {node: laws(node) for node in outcome.nodes}
        path = _path(outcome)
        position = len(sequence) - len(outcome.tokens) - sequence.prompt_length
        self.rounds.append(
            Traced(
                position=position,
                prompt=position == 0,
                source=outcome.draft.source,
                equality=sequence.params.greedy or sequence.noise.coupled,
                guesses=tuple(self._guess(outcome.draft, i, path, tested, rows) for i in range(len(outcome.draft))),
                accepted=outcome.accepted,
                tokens=tuple(self._written(outcome, i, rows) for i in range(len(outcome.tokens))),
                draft_ms=1e3 * (done.drafted - done.began),
                verify_ms=1e3 * (done.verified - done.drafted),
                rest_ms=1e3 * (now - done.verified),
                reason="" if self._reasoning is None else self._reasoning.reasons(sequence),
            )
        )

    def finish(self) -> None:
        """Give the last token what text was still held back."""
        held = "" if self._stream is None else self._stream.finish()
        if held and self.rounds:
            last = self.rounds[-1]
            *before, token = last.tokens
            tokens = (*before, replace(token, shown=token.shown + held))
            self.rounds[-1] = replace(last, tokens=tokens)

    def _guess(
        self, draft: Draft, node: int, path: Sequence[int], tested: dict[int, Law], rows: dict[int, Array]
    ) -> Guess:
        token, parent = draft.tokens[node], draft.parents[node]
        law = None if draft.laws is None else draft.laws[node]
        q = None if law is None or isinstance(law, Point) else float(law[token])
        fate, p = UNTESTED, None
        if parent in tested:
            fate = ACCEPTED if node in path else REJECTED
            theirs = tested[parent]
            p = self._sure(rows[parent], token)[0] if isinstance(theirs, Point) else float(theirs[token])
        return Guess(token, self._token_text(token), parent, fate, p, q)

    def _written(self, outcome: Outcome, i: int, rows: dict[int, Array]) -> Written:
        token = outcome.tokens[i]
        p, likeliest = self._sure(rows[outcome.nodes[i]], token)
        shown = "" if self._stream is None else self._stream.push(token)
        return Written(token, self._token_text(token), shown, outcome.origins[i], p, likeliest)

    def _sure(self, row: Array, token: int) -> tuple[float, tuple[tuple[str, float], ...]]:
        logprob, top_logprobs = self._logprobs(row, token, LIKELIEST)
        return math.exp(logprob), tuple((self._token_text(other), math.exp(value)) for other, value in top_logprobs)

    def _token_text(self, token: int) -> str:
        return f"<{token}>" if self._tokenizer is None else self._tokenizer.token_text(token)


def _path(outcome: Outcome) -> tuple[int, ...]:
    """Return the nodes of the guesses that were accepted and committed."""
    path: list[int] = []
    for token in outcome.tokens[: outcome.accepted]:
        children = outcome.draft.children(path[-1] if path else ROOT)
        path.append(next(child for child in children if outcome.draft.tokens[child] == token))
    return tuple(path)

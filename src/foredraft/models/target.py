"""A model with a cache of slots as the core's Target: feeds what is lacking, forgets what was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from array_api_compat import array_namespace

from foredraft.core.draft import ROOT, Draft, Outcome, Scored
from foredraft.core.law import Array
from foredraft.core.sequence import TokenSequence
from foredraft.errors import DrafterError
from foredraft.models.capabilities import WithLayers
from foredraft.models.model import Model, Rows
from foredraft.models.slots import Slots

BLOCK: Final = 512  # rows of a prefill pass
STRAGGLER: Final = 16  # tokens a sequence may lack and still be fed together with the others


@dataclass(frozen=True, slots=True)
class _Pass:
    """The last pass over a slot: it fed ``fed`` committed tokens after ``start``, then the guesses."""

    start: int
    fed: int


@dataclass(slots=True)
class _Ahead:
    """What the tapped layers said of the tokens before ``end`` that were fed ahead of a round, oldest first."""

    end: int
    outputs: list[Mapping[int, Array]] = field(default_factory=list)


class CachedTarget:
    """Feeds a model whatever its cache lacks of each sequence. ``slots`` of them are kept for re-use.

    Every call first compares what a slot holds with the tokens wanted, so a cache left behind, or one that ran ahead
    along guesses since refused, finds its way back by itself.
    """

    def __init__(self, model: Model, slots: int = 8) -> None:
        self.model = model
        self.slots = Slots(slots, model.rewindable)
        self._passes: dict[int, _Pass] = {}
        self._reused: dict[int, int] = {}  # slot -> tokens its sequence did not need to feed
        self._ahead: dict[int, _Ahead] = {}  # slot -> what no round has seen yet

    @property
    def vocabulary(self) -> int:
        """Width of the logits, padding included."""
        return self.model.vocabulary

    @property
    def context(self) -> int:
        """Positions the model was made for."""
        return self.model.context

    @property
    def rewindable(self) -> bool:
        """Whether guesses can be refused: False means that nothing may be drafted."""
        return self.model.rewindable

    @property
    def occupied(self) -> int:
        """How many sequences hold a slot."""
        return len(self.slots) - self.slots.free

    def serve(self, slots: int) -> None:
        """Keep so many slots at least, and none for the sake of a short prefix while others will do."""
        self.slots.count = max(self.slots.count, slots)
        self.slots.sparing = True

    def check_taps(self, taps: tuple[int, ...]) -> None:
        """Raise DrafterError for a layer that the model does not have. -1 is the embedding."""
        layers = self.model.layers if isinstance(self.model, WithLayers) else None
        wrong = [tap for tap in taps if tap < -1 or (layers is not None and tap >= layers)]
        if wrong:
            raise DrafterError(f"there is no layer {wrong[0]} to tap: the model has {layers}")

    def begin(self, sequence: TokenSequence) -> None:
        """Take a slot for a sequence, the one of its owner's that holds the most of its start."""
        slot = self._slot(sequence, sequence.tokens)
        self._reused[slot] = len(self.slots.held(slot))

    def ahead(self, sequence: TokenSequence, together: bool, taps: tuple[int, ...] = ()) -> int:
        """Return how many tokens ``score`` would feed in passes of their own before the one that answers.

        ``together`` says whether it would be asked for other sequences too.
        """
        slot = self._slot(sequence, sequence.tokens)
        return self._apart(len(sequence) - len(self.slots.held(slot)), together, taps)

    def feed(self, sequence: TokenSequence, count: int, taps: tuple[int, ...] = ()) -> int:
        """Feed up to ``count`` tokens of a sequence before it is scored, never its last; return how many that were.

        What the tapped layers say of them is ``Scored.earlier`` of the next score. Nothing changes a bit of any row.
        """
        slot = self._slot(sequence, sequence.tokens)
        start = len(self.slots.held(slot))
        count = min(count, len(sequence) - 1 - start) if self.rewindable else 0
        if count > 0:
            self._passes.pop(slot, None)
            before = self._ahead.pop(slot, None)
            outputs = self._feed(slot, sequence.tokens, count, taps)
            if outputs:
                known = before.outputs if before is not None and before.end == start else []
                self._ahead[slot] = _Ahead(start + count, [*known, outputs])
        return max(0, count)

    def reused(self, sequence: TokenSequence) -> int:
        """Return how many tokens of a sequence lay in its slot when it began; 0 for one that has no slot."""
        slot = self.slots.slot(sequence)
        return 0 if slot is None else self._reused.get(slot, 0)

    def end(self, sequence: TokenSequence) -> None:
        """Give a sequence's slot back; its content stays for whoever starts with the same tokens."""
        slot = self.slots.slot(sequence)
        if slot is not None:
            self._reused.pop(slot, None)
            self._ahead.pop(slot, None)
        surplus = self.slots.release(sequence)
        if surplus is not None:
            self._passes.pop(surplus, None)
            self.model.release(surplus)

    def score(self, sequences: Sequence[TokenSequence], drafts: Sequence[Draft], taps: tuple[int, ...] = ()) -> Scored:
        """Score every guess in one pass, after passes without logits over long stretches that the cache lacks.

        Row 0 of each sequence is its last committed token's, then its guesses in order. Raises DrafterError for guesses
        that the model could not forget.
        """
        if not self.rewindable and any(len(draft) for draft in drafts):
            raise DrafterError("this model's cache cannot be rewound, so nothing may be drafted for it")
        return self._run([(s, s.tokens) for s in sequences], drafts, taps)

    def keep(self, sequences: Sequence[TokenSequence], outcomes: Sequence[Outcome]) -> None:
        """Forget what was refused: afterwards each slot holds ``len(sequence) - 1`` tokens.

        Fewer only where the model itself kept fewer; those are fed again. One more where the sequence failed, and so
        did not grow. Doing it twice changes nothing.
        """
        for sequence, outcome in zip(sequences, outcomes, strict=True):
            slot = self._slot(sequence, sequence.tokens)
            last = self._passes.pop(slot, None)
            if last is None:
                continue
            if not outcome.tokens:  # it failed, and what was just written may be why
                self.slots.hold(slot, ())
                continue
            rows = (*range(last.fed), *(last.fed + node for node in outcome.kept))
            kept = self.model.compact(slot, last.start, rows) if len(outcome.draft) else len(rows)
            self.slots.hold(slot, sequence.tokens[: last.start + kept])
            exact = len(self.slots.held(slot)) == len(sequence) - bool(outcome.tokens)
            assert kept < len(rows) or exact, "the target's cache is off"

    def extend(self, batch: Sequence[tuple[TokenSequence, Sequence[int]]]) -> Array:
        """Return the logits [B, V] after each sequence's ``tokens``: the whole text wanted, guesses included.

        Only what the slot lacks is fed, so a text one token longer than the last costs one row.
        """
        return self._run([(s, tokens) for s, tokens in batch], [Draft()] * len(batch), ()).logits

    def ready(self, sequence: TokenSequence) -> bool:  # noqa: ARG002 - a cache of its own catches up by itself
        """Say whether ``extend`` can serve a sequence: always."""
        return True

    def rewind(self, sequence: TokenSequence, length: int) -> None:
        """Forget all but the first ``length`` tokens of a sequence; all of them where the model cannot rewind."""
        slot = self.slots.slot(sequence)
        if slot is not None and length < len(self.slots.held(slot)):
            self.slots.hold(slot, self.slots.held(slot)[:length] if self.rewindable else ())

    def _run(
        self, texts: Sequence[tuple[TokenSequence, Sequence[int]]], drafts: Sequence[Draft], taps: tuple[int, ...]
    ) -> Scored:
        together = len(texts) > 1
        rows, earlier = [], []
        for (sequence, tokens), draft in zip(texts, drafts, strict=True):
            slot = self._slot(sequence, tokens)
            self._passes.pop(slot, None)
            start = len(self.slots.held(slot))
            before = self._ahead.pop(slot, None)
            outputs = self._feed(slot, tokens, self._apart(len(tokens) - start, together, taps), taps)
            known = before.outputs if before is not None and before.end == start else []
            earlier.append(_joined([*known, outputs], taps))
            rows.append(_last_rows(slot, len(self.slots.held(slot)), tokens, draft))
        scored = self.model.forward(rows, taps)
        for row, (_, tokens), draft in zip(rows, texts, drafts, strict=True):
            self.slots.hold(row.slot, tokens)
            self._passes[row.slot] = _Pass(row.start, len(row.tokens) - len(draft))
        return replace(scored, earlier=earlier) if taps else scored

    def _slot(self, sequence: TokenSequence, tokens: Sequence[int]) -> int:
        return self.slots.take(sequence, tokens, sequence.owner)

    def _apart(self, lacking: int, together: bool, taps: tuple[int, ...]) -> int:
        """Return how many of the tokens that a slot lacks are fed before the pass that answers."""
        if not self.rewindable:  # a recurrent state goes on one token at a time, so it reads its prompt whole
            return 0
        if taps or (together and lacking > STRAGGLER):  # hidden states are wanted of every row
            return lacking - 1
        return max(lacking - BLOCK, 0)

    def _feed(self, slot: int, tokens: Sequence[int], count: int, taps: tuple[int, ...]) -> Mapping[int, Array]:
        """Feed the next ``count`` tokens in blocks, without logits; return what the tapped layers put out."""
        found: list[Mapping[int, Array]] = []
        start = len(self.slots.held(slot))
        for at in range(start, start + count, BLOCK):
            block = tuple(tokens[at : min(at + BLOCK, start + count)])
            chain = tuple(range(-1, len(block) - 1))
            if taps:
                found.append(self.model.forward([Rows(slot, at, block, chain, len(block))], taps, logits=False).hidden)
            else:
                self.model.forward([Rows(slot, at, block, chain, 0)])
            self.slots.hold(slot, tokens[: at + len(block)])
        return _joined(found, taps)


def _joined(parts: Sequence[Mapping[int, Array]], taps: tuple[int, ...]) -> Mapping[int, Array]:
    """Return the outputs [n, H] of the layers that every part tells of, all parts in a row."""
    parts = [part for part in parts if part]
    both = [tap for tap in taps if parts and all(tap in part for part in parts)]
    return {tap: array_namespace(parts[0][tap]).concat([part[tap] for part in parts]) for tap in both}


def _last_rows(slot: int, start: int, tokens: Sequence[int], draft: Draft) -> Rows:
    """Return the rows of the pass that answers: the committed tokens still lacking, then the guesses."""
    lacking = tuple(tokens[start:])
    last = len(lacking) - 1
    guesses = (last if parent == ROOT else last + 1 + parent for parent in draft.parents)
    return Rows(slot, start, lacking + draft.tokens, (*range(-1, last), *guesses), len(draft) + 1)

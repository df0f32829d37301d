"""A model with some of its own sub-layers, as a view: what self-speculation drafts with.

No weights are copied and no cache is kept. A view reads the keys and values that the target holds of the committed
tokens, and writes those of its guesses behind them in the target's own slot, where verification overwrites them. The
target's book-keeping never learns of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.core.law import Array
from foredraft.core.sequence import TokenSequence
from foredraft.errors import DrafterError
from foredraft.models.capabilities import Layered
from foredraft.models.model import Rows
from foredraft.models.target import CachedTarget


class LayersView:
    """The target with the sub-layers ``sub_layers`` alone (2 * layer is an attention, 2 * layer + 1 an MLP).

    A guess is drafted over the keys and values of guesses before it that these sub-layers wrote, which are not the
    target's: ``extend`` must be asked for the text first, then with a guess more each time, and the target must score
    before it reads on, as every round does. Raises DrafterError for a set that cannot be run (``checked``), or a model
    whose layers cannot be left out. ``notice`` is what a user should know of the set.
    """

    def __init__(self, target: CachedTarget, sub_layers: Sequence[int], notice: str | None = None) -> None:
        self.notice = notice
        self.target = target
        self.model = layered(target)
        self.sub_layers = checked(sub_layers, self.model.layers)

    @property
    def vocabulary(self) -> int:
        """Width of the logits, padding included."""
        return self.model.vocabulary

    @property
    def context(self) -> int:
        """Positions the model was made for."""
        return self.model.context

    def begin(self, sequence: TokenSequence) -> None:
        """Do nothing: the slot is the target's."""

    def end(self, sequence: TokenSequence) -> None:
        """Do nothing: the slot is the target's."""

    def ready(self, sequence: TokenSequence) -> bool:
        """Say whether the target's slot holds all of a sequence but its last token, and no more.

        Not so before the prompt was read, or after a pass whose outcome was never kept: nothing is drafted then.
        """
        slot = self.target.slots.slot(sequence)
        return slot is not None and self.target.slots.held(slot) == sequence.tokens[:-1]

    def extend(self, batch: Sequence[tuple[TokenSequence, Sequence[int]]]) -> Array:
        """Return the logits [B, V] after each sequence's tokens and guesses: one row each.

        Raises DrafterError for a sequence that is not ``ready``.
        """
        rows = []
        for sequence, tokens in batch:
            slot = self.target.slots.slot(sequence)
            if slot is None or not self.ready(sequence):
                raise DrafterError("the target does not hold this sequence, so its layers cannot draft for it")
            rows.append(Rows(slot, len(tokens) - 1, (tokens[-1],), (-1,), 1))
        return self.model.run(rows, sub_layers=self.sub_layers).logits


def layered(target: CachedTarget) -> Layered:
    """Return a target's model as one whose sub-layers can be run apart. Raises DrafterError where they cannot."""
    if not isinstance(target.model, Layered):
        raise DrafterError("drafter layers is not available for a model that runs through transformers' own module")
    return target.model


def checked(sub_layers: Sequence[int], layers: int) -> tuple[int, ...]:
    """Return a set of sub-layers, increasing. Raises DrafterError for one that skips everything or is not there."""
    chosen = tuple(sorted(set(sub_layers)))
    if not chosen:
        raise DrafterError("a set that skips every sub-layer leaves nothing to draft with")
    if chosen[0] < 0 or chosen[-1] >= 2 * layers:
        wrong = chosen[0] if chosen[0] < 0 else chosen[-1]
        raise DrafterError(f"there is no sub-layer {wrong}: a model of {layers} layers has 0 to {2 * layers - 1}")
    return chosen


def early_exit(depth: int, layers: int) -> tuple[int, ...]:
    """Return the sub-layers of the first ``depth`` layers. Raises DrafterError for an exit that is not inside."""
    if layers == 1:
        raise DrafterError("a model of one layer has no early exit: each of its drafts would cost a whole pass")
    if depth == layers:
        raise DrafterError(
            f"an exit after layer {depth} of {layers} is the whole model, which gains nothing by drafting for itself: "
            f"name 1 to {layers - 1}"
        )
    if not 1 <= depth < layers:
        raise DrafterError(f"an exit after layer {depth} is not in a model of {layers} layers: name 1 to {layers - 1}")
    return tuple(range(2 * depth))


def default_sub_layers(layers: int) -> tuple[int, ...]:
    """Return what drafts where nothing was searched: all but every second layer of the middle third.

    Their attention and their MLPs are both left out. A model of fewer than three layers leaves out its last
    MLP.
    """
    skipped = {part for layer in range(layers // 3, 2 * layers // 3, 2) for part in (2 * layer, 2 * layer + 1)}
    skipped = skipped or {2 * layers - 1}
    return tuple(part for part in range(2 * layers) if part not in skipped)

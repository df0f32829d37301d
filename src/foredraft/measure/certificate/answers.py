"""Answers for a certificate: the same prompts under one kind of sampling, run alone or mixed with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from foredraft.core.noise import Noise
from foredraft.core.protocols import Drafter, Round, Watch
from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.loop import run
from foredraft.engine.watches.tally import Tally
from foredraft.runtime.loaded_model import LoadedModel


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to draw tokens: the parameters, the rule, and the first of the seeds, one a prompt."""

    params: SamplingParams
    coupled: bool = False
    seeds: int = 0
    noise: type[Noise] = Noise


@dataclass(frozen=True, slots=True)
class Counting:
    """A watch that counts the rounds of some sequences."""

    tally: Tally
    sequences: frozenset[TokenSequence]

    def see(self, done: Round) -> None:
        """Count a round of each of them."""
        for sequence, outcome in zip(done.sequences, done.outcomes, strict=True):
            if sequence in self.sequences:
                self.tally.count(sequence, outcome)


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks a model the same prompts [texts of token ids] again and again; ``tokens`` is the longest answer.

    ``done`` is told of each answer that has ended.
    """

    loaded: LoadedModel
    prompts: Sequence[Sequence[int]]
    tokens: int
    done: Callable[[], None]

    def sequences(self, kind: Kind, count: int | None = None) -> list[TokenSequence]:
        """Return sequences ready to run: one a prompt, or ``count`` of them, the prompts taken in turn."""
        tokenizer = self.loaded.tokenizer
        sequences = []
        for i in range(len(self.prompts) if count is None else count):
            prompt = list(self.prompts[i % len(self.prompts)])
            sequences.append(
                TokenSequence(
                    tokens=prompt,
                    limit=min(len(prompt) + self.tokens, self.loaded.context),
                    params=kind.params,
                    noise=kind.noise(kind.seeds + i, coupled=kind.coupled),
                    stop_ids=frozenset(() if tokenizer is None else tokenizer.stop_ids),
                )
            )
        return sequences

    def answer(
        self,
        sequences: Sequence[TokenSequence],
        drafter: Drafter,
        length: int,
        width: int,
        watches: Sequence[Watch] = (),
    ) -> None:
        """Run the sequences to their end, ``width`` at a time.

        Raises what kept a sequence's token from being drawn, or the drafter's own fault.
        """
        rounds = run(sequences, self.loaded.target, drafter, FixedPlanner(length), watches, width)
        with closing(rounds):
            for outcomes in rounds:
                for sequence, outcome in outcomes:
                    if sequence.error is not None:
                        raise sequence.error
                    if outcome.finish_reason is not None:
                        self.done()

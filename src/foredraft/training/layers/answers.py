"""The target's own greedy answers: what a search for a drafter measures against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from foredraft.core.protocols import Drafter, Watch
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.none import NoDrafter
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.loop import run
from foredraft.runtime.loaded_model import LoadedModel

WIDTH: Final = 8  # answers that are generated side by side


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and what the target greedily says to it, as token ids: all of it, and the prompt's length."""

    tokens: tuple[int, ...]
    prompt: int

    @property
    def length(self) -> int:
        """Tokens of the answer itself."""
        return len(self.tokens) - self.prompt


def greedy_text(loaded: LoadedModel, prompt: Sequence[int], length: int) -> TokenSequence:
    """Return a sequence ready to be answered greedily, with ``length`` tokens at most."""
    tokenizer = loaded.tokenizer
    return TokenSequence(
        tokens=list(prompt),
        limit=min(len(prompt) + length, loaded.context),
        noise=loaded.sampler.noise(0),
        law=loaded.sampler.law,
        stop_ids=frozenset(() if tokenizer is None else tokenizer.stop_ids),
    )


def run_all(
    loaded: LoadedModel,
    sequences: Sequence[TokenSequence],
    drafter: Drafter,
    length: int,
    watches: Sequence[Watch] = (),
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Run sequences to their end, drafting so many tokens a round, or until ``over`` says so after one.

    Raises what kept a token from being drawn.
    """
    with closing(run(sequences, loaded.target, drafter, FixedPlanner(length), watches, WIDTH)) as rounds:
        for outcomes in rounds:
            for sequence, _ in outcomes:
                if sequence.error is not None:
                    raise sequence.error
            if over():
                return


def greedy_answers(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    length: int,
    tell: Callable[[int, int], None],
    over: Callable[[], bool] = lambda: False,
) -> list[Answer]:
    """Return the target's answer to each prompt; ``tell`` hears (done, of).

    Once ``over`` says so, the prompts that are left go unanswered, and the answers on their way end where they are.
    """
    answers: list[Answer] = []
    for at in range(0, len(prompts), WIDTH):
        tell(at, len(prompts))
        sequences = [greedy_text(loaded, prompt, length) for prompt in prompts[at : at + WIDTH]]
        run_all(loaded, sequences, NoDrafter(), 0, over=over)
        answers += [Answer(tuple(sequence.tokens), sequence.prompt_length) for sequence in sequences]
        if over():
            break
    tell(len(prompts), len(prompts))
    return answers

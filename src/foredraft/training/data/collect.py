"""The target answers prompts, given ones and its own, while a recorder looks on: what heads are trained on.

On its own answers a drafter learns what it will have to guess (DistillSpec, arXiv 2310.08461). Where prompts do not
suffice the target writes more itself: given nothing but the opening of a user's turn (Magpie, arXiv 2406.08464).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Final

from foredraft.core.sampling import SamplingParams
from foredraft.core.sequence import TokenSequence
from foredraft.drafters.suffix import Suffix
from foredraft.engine.fixed_planner import FixedPlanner
from foredraft.engine.loop import run
from foredraft.errors import PromptError
from foredraft.models.capabilities import WithSpec
from foredraft.models.target import CachedTarget
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.training.data.recorder import TOP, Recorder, Tapping
from foredraft.training.data.shards import Example, Shards, bytes_a_token

PROMPTS: Final = 128  # of a shard
SHARD_BYTES: Final = 512 << 20  # of a shard, at most, about
QUICK: Final = 256_000_000  # weights of a model that answers so many prompts within minutes
WIDTH: Final = 32  # texts side by side: what a pass costs a row no longer falls
FLOOR: Final = 0.8  # a copied guess takes a row from nobody, but it costs one
DRAFT_TOKENS: Final = 4
_QUESTION: Final = 128  # longest question of its own, in tokens
_MIN_QUESTION: Final = 3  # tokens of a question
_MARK: Final = "\u2042"


@dataclass(frozen=True, slots=True)
class CollectPlan:
    """How much to collect. Each prompt is answered twice, greedily and drawn at temperature 1."""

    tokens: int  # of answers, in all
    longest: int = 160  # tokens of an answer
    own: float = 0.5  # least share of prompts that the target writes itself
    seed: int = 0
    batch: int = PROMPTS  # prompts of a shard


class Collector:
    """Collects answers of ``loaded`` into ``shards``, batch after batch; a batch is whole on disk or not begun.

    ``prompts`` [texts of token ids] are used once each, in order; what is in a batch depends on its number alone, but
    for the last, which ends with the text that brings the tokens to the plan's number. The host's model is
    read through slots of its own, so nobody else may be using it. Raises PromptError where answers are lacking, there
    are no prompts and the target has no chat template to write its own by.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        prompts: Sequence[Sequence[int]],
        taps: tuple[int, ...],
        shards: Shards,
        plan: CollectPlan,
    ) -> None:
        self.loaded = loaded
        self.prompts = prompts
        self.taps = taps
        self.shards = shards
        self.plan = plan
        # none is kept for re-use: of a prefix that lay in a slot already nobody would hear the states
        self._target = CachedTarget(loaded.target.model, slots=0)
        self.tokens = sum(len(e.tokens) - e.prompt for e in shards.examples())
        self._opening = opening(loaded)
        if not prompts and self._opening is None and not self.done:
            raise PromptError("there are no prompts, and without a chat template the model cannot write any: give some")

    @property
    def done(self) -> bool:
        """Whether there is enough, or no room for more."""
        return self.tokens >= self.plan.tokens or self.shards.full

    def batch(self, tell: Callable[[int, int], None]) -> None:
        """Collect one batch more and write it; ``tell`` hears (tokens so far, tokens wanted)."""
        number = self.shards.number
        before = self.tokens

        def keep(example: Example) -> None:
            if self.tokens < self.plan.tokens and self.shards.add(example):
                self.tokens += len(example.tokens) - example.prompt
                tell(self.tokens, self.plan.tokens)

        sequences = []
        for i, prompt in enumerate(self._prompts(number)):
            sequences.append(self._made(prompt, self.plan.longest, SamplingParams(), 0))
            sequences.append(self._drawn(prompt, self.plan.longest, ("answer", number, i)))
        self._run(sequences, Recorder(self.taps, keep))
        if self.tokens == before and not self.shards.full:
            raise PromptError("the model's answers are too short to learn from: give other prompts")
        self.shards.flush()

    def _size(self) -> int:
        """Return how many prompts a batch has: fewer where states are wide or the model large.

        What is lost when a collection is killed is then a matter of minutes.
        """
        if not isinstance(self._target.model, WithSpec):
            return self.plan.batch
        spec = self._target.model.spec
        each = 4 * self.plan.longest * bytes_a_token(len(self.taps), spec.hidden, TOP)  # two answers, and their prompts
        attention = 2 * spec.head_dim * (spec.heads + spec.kv_heads)
        weights = spec.hidden * (spec.vocabulary + spec.layers * (attention + 3 * spec.mlp))
        return max(2, min(self.plan.batch, SHARD_BYTES // each, PROMPTS * QUICK // weights))

    def _prompts(self, number: int) -> list[Sequence[int]]:
        size = self._size()
        given = size if self._opening is None else round(size * (1 - self.plan.own))
        at = given * number
        some = list(islice(self.prompts, at, at + given))
        if self._opening is None:
            return some or [self.prompts[i % len(self.prompts)] for i in range(at, at + given)]
        return [*some, *islice(self._questions(number, size), size - len(some))]

    def _questions(self, number: int, size: int) -> Iterator[Sequence[int]]:
        """Yield chat prompts that hold a question the target wrote."""
        tokenizer = self.loaded.tokenizer
        assert tokenizer is not None
        assert self._opening is not None
        for attempt in range(64):
            sequences = [
                self._drawn(self._opening, _QUESTION, ("question", number, attempt, i), top_p=0.95)
                for i in range(-(-size // 2))
            ]
            self._run(sequences)
            for sequence in sequences:
                asked = tokenizer.decode(sequence.answer[:-1]).strip()
                if sequence.finish_reason == "stop" and len(sequence.answer) > _MIN_QUESTION and asked:
                    prompt = tokenizer.chat([{"role": "user", "content": asked}])
                    if len(prompt) + _MIN_QUESTION <= self.loaded.context:
                        yield prompt
        raise PromptError("the model writes no questions of its own: give prompts")

    def _drawn(self, prompt: Sequence[int], most: int, place: tuple[object, ...], top_p: float = 1.0) -> TokenSequence:
        seed = int(_uniform(self.plan.seed, *place, "seed") * 2**53)
        return self._made(prompt, most, SamplingParams(temperature=1.0, top_p=top_p), seed)

    def _made(self, prompt: Sequence[int], most: int, params: SamplingParams, seed: int) -> TokenSequence:
        loaded = self.loaded
        return TokenSequence(
            tokens=list(prompt),
            limit=min(len(prompt) + most, loaded.context),
            params=params,
            noise=loaded.sampler.noise(seed),
            law=loaded.sampler.law,
            stop_ids=frozenset(() if loaded.tokenizer is None else loaded.tokenizer.stop_ids),
        )

    def _run(self, sequences: Sequence[TokenSequence], recorder: Recorder | None = None) -> None:
        suffix = Suffix(FLOOR)
        drafter = suffix if recorder is None else Tapping(suffix, recorder.taps)
        watches = () if recorder is None else (recorder,)
        with closing(run(sequences, self._target, drafter, FixedPlanner(DRAFT_TOKENS), watches, WIDTH)) as rounds:
            for _ in rounds:
                if recorder is not None and self.done:
                    break


def opening(loaded: LoadedModel) -> list[int] | None:
    """Return the tokens that open a user's turn, or None where there is no chat template that has such."""
    tokenizer = loaded.tokenizer
    if tokenizer is None or not tokenizer.has_chat_template:
        return None
    before, mark, _ = tokenizer.render([{"role": "user", "content": _MARK}]).partition(_MARK)
    return tokenizer.encode(before, special=False) if mark and before else None


def _uniform(*facts: object) -> float:
    """Return a number in [0, 1) that depends on ``facts`` alone."""
    return int.from_bytes(hashlib.sha256(repr(facts).encode()).digest()[:7], "big") / 2**56

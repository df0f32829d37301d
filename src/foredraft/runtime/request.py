"""One answer on its way: from a prompt and its options to a sequence, and what it has come to so far."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from foredraft.core.draft import Outcome
from foredraft.core.sequence import TokenSequence
from foredraft.engine.shaping import Shaper, ShapingOptions, shaper
from foredraft.engine.text import AnswerText
from foredraft.engine.watches.logprobs import TokenLogprob as Recorded
from foredraft.engine.watches.tally import Tally
from foredraft.errors import OptionError
from foredraft.options import Settings, check_vocabulary
from foredraft.prompts import bad_word_ids, prediction_ids, prompt_ids
from foredraft.result import Choice, TokenLogprob
from foredraft.runtime.loaded_model import LoadedModel
from foredraft.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from foredraft.grammar.masks import Grammars


@dataclass(slots=True)
class Request:
    """One answer to one prompt, of the ``n`` that are asked for together and share a ``tally``.

    ``scores`` is where its tokens' log-probabilities go; None where nobody asked for them.
    """

    sequence: TokenSequence
    answer: AnswerText
    tally: Tally
    scores: list[Recorded] | None = None
    cached_tokens: int = 0
    origins: list[str] = field(default_factory=list)

    def take(self, outcome: Outcome) -> None:
        """Note what a round committed."""
        self.tally.count(self.sequence, outcome)
        self.origins.extend(outcome.origins)
        if outcome.finish_reason is not None:
            self.answer.finish()

    def choice(self, tokenizer: Tokenizer | None) -> Choice:
        """Return what it came to."""
        sequence = self.sequence
        return Choice(
            index=sequence.noise.choice,
            text=self.answer.text,
            token_ids=sequence.answer,
            finish_reason=sequence.finish_reason,
            logprobs=None if self.scores is None else [token_logprob(score, tokenizer) for score in self.scores],
            origins=self.origins,
            fault=sequence.error,
        )


class Requests:
    """Makes requests for one model. Its grammars are compiled once and kept."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._grammars: Grammars | None = None

    def make(self, prompt: Any, settings: Settings) -> list[Request]:
        """Turn a prompt into the sequences of its ``n`` answers, ready to run. Raises OptionError or PromptError."""
        loaded, tokenizer, tally = self._loaded, self._loaded.tokenizer, Tally()
        ids = prompt_ids(prompt, tokenizer, settings, loaded.target.vocabulary, loaded.context)
        check_vocabulary(settings, loaded.target.vocabulary)
        if settings.stop and tokenizer is None:
            raise OptionError("stop strings need a tokenizer: load the model with tokenizer=")
        shaping = self._shaping(settings)
        seed = secrets.randbits(64) if settings.seed is None else settings.seed
        requests = []
        for choice in range(settings.n):
            stream = tokenizer.stream() if tokenizer is not None else _Wordless()
            answer = AnswerText(stream, settings.stop, settings.shaping.min_tokens)
            sequence = TokenSequence(
                tokens=list(ids),
                limit=min(len(ids) + settings.max_tokens, loaded.context),
                params=settings.sampling,
                noise=loaded.sampler.noise(seed, choice, coupled=is_coupled(settings)),
                shaping=self._shaper(shaping, settings),
                law=loaded.sampler.law,
                stop_ids=settings.stop_token_ids | (tokenizer.stop_ids if tokenizer is not None else frozenset()),
                ends=answer.push,
            )
            requests.append(Request(sequence, answer, tally))
        return requests

    def prediction(self, settings: Settings) -> tuple[int, ...]:
        """Return the tokens of the prediction; none where there is none. Raises OptionError."""
        loaded = self._loaded
        return prediction_ids(settings, loaded.tokenizer, loaded.target.vocabulary, loaded.context)

    def _shaping(self, settings: Settings) -> ShapingOptions:
        if not settings.bad_words:
            return settings.shaping
        if self._loaded.tokenizer is None:
            raise OptionError("bad words need a tokenizer: load the model with tokenizer=")
        return replace(settings.shaping, bad_words=bad_word_ids(settings.bad_words, self._loaded.tokenizer))

    def _shaper(self, shaping: ShapingOptions, settings: Settings) -> Shaper | None:
        """Return what shapes one answer's logits; a grammar's place in its answer is its own."""
        if settings.grammar is None:
            return shaper(shaping)
        if self._grammars is None:
            if self._loaded.tokenizer is None:
                raise OptionError("json_schema and regex need a tokenizer: load the model with tokenizer=")
            from foredraft.grammar.masks import Grammars  # llguidance takes a while to import

            self._grammars = Grammars(self._loaded.tokenizer, self._loaded.target.vocabulary)
        return shaper(shaping, self._grammars.follow(settings.grammar))


def is_coupled(settings: Settings) -> bool:
    """Say which rule a generation follows: ``auto`` is ``coupled`` where a seed was named, else ``ratio``."""
    return settings.rule == "coupled" or (settings.rule == "auto" and settings.seed is not None)


def token_logprob(score: Recorded, tokenizer: Tokenizer | None) -> TokenLogprob:
    """Return a recorded log-probability with its tokens spelled out."""

    def named(token: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(token, "" if tokenizer is None else tokenizer.token_text(token), logprob)

    return replace(named(score.token, score.logprob), top_logprobs=[named(*each) for each in score.top_logprobs])


class _Wordless:
    """The token stream of a model without a tokenizer: its text is empty."""

    def push(self, token: int) -> str:  # noqa: ARG002 - there are no words to look it up in
        """Return nothing."""
        return ""

    def finish(self) -> str:
        """Return nothing."""
        return ""

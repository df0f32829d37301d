"""A conversation: each turn feeds only what is new, to the target and to a draft model alike."""

from __future__ import annotations

from typing import Unpack

from foredraft.api import LanguageModel, Stream
from foredraft.checks import is_text
from foredraft.checks import text as check_text
from foredraft.errors import OptionError, PromptError, TokenizerError
from foredraft.options import Options


class Conversation:
    """Turns of a chat with one model, under an optional ``system`` turn.

    The model's own tokens of an answer are kept rather than read again from its text (a model may write a word in other
    tokens than its tokenizer would), so the caches hold all of the conversation when the next turn comes.

    Raises TokenizerError for a model that was loaded without a tokenizer.
    """

    def __init__(self, model: LanguageModel, system: str | None = None) -> None:
        if system is not None:
            check_text("system", system)
        if model.loaded.tokenizer is None:
            raise TokenizerError("a conversation needs a tokenizer: load the model with tokenizer=")
        self._model = model
        self._words = model.loaded.tokenizer
        self.messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self._stream: Stream | None = None
        self._ids: list[int] = []  # the conversation so far, as the model read and wrote it
        self._text = ""  # the same as text, as the template renders it

    def send(self, text: str, **options: Unpack[Options]) -> Stream:
        """Say something; return the answer as a stream. Options are those of ``generate``, less raw and system."""
        if options.get("raw") or options.get("system") is not None:
            raise OptionError("a conversation uses the chat template and its own system turn: leave raw and system out")
        if not isinstance(text, str) or not is_text(text):
            raise PromptError(f"a turn is UTF-8 text, not {text!r:.60}")
        self._settle()
        turn = [*self.messages, {"role": "user", "content": text}]
        rendered = self._words.render(turn)
        ids = self._continued(rendered)
        context = self._model.loaded.context
        if self.messages and len(ids) >= context:
            raise PromptError(f"the conversation has {len(ids)} tokens and the context {context}: begin a new one")
        stream = self._model.stream(ids, **options)
        self.messages, self._ids, self._text, self._stream = turn, ids, rendered, stream
        return stream

    def _settle(self) -> None:
        """Take the last answer into the conversation, as far as it came."""
        if self._stream is None:
            return
        self._stream.close()
        result = self._stream.result
        self._stream = None
        if result is None:
            self.messages.pop()  # nothing was answered, so nothing was said
            return
        self.messages.append({"role": "assistant", "content": result.text})
        ids = result.token_ids
        if ids and ids[-1] in self._words.stop_ids:
            ids = ids[:-1]  # the template writes the end of a turn itself
        self._ids += ids
        self._text += result.text

    def _continued(self, rendered: str) -> list[int]:
        """Return the ids of a rendered conversation, keeping those it shares with what was said before."""
        if self._text and rendered.startswith(self._text):
            return self._ids + self._words.encode(rendered[len(self._text) :], special=False)
        return self._words.encode(rendered, special=False)

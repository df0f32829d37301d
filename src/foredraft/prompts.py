"""A prompt, in any of its forms, as token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from foredraft.checks import is_text
from foredraft.errors import OptionError, PromptError, PromptTooLong
from foredraft.options import Settings
from foredraft.tokenizer.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, str]
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
EMPTY_LIST: Final = "the list is empty: it holds no prompts, messages or token ids"


def is_batch(prompt: object) -> bool:
    """Say whether this is a list of prompts rather than one: one is text, messages, or token ids."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence) or len(prompt) == 0:
        return False
    return not any(isinstance(part, int | Mapping) for part in prompt)


def prompt_ids(
    prompt: Any, tokenizer: Tokenizer | None, settings: Settings, vocabulary: int, context: int
) -> list[int]:
    """Return the ids of one prompt, checked to leave room for an answer in ``context`` tokens.

    Raises PromptError for an empty prompt, one that is too long, ids outside the vocabulary, or text where there is no
    tokenizer to read it.
    """
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise PromptError(f"a prompt is text, a list of messages or a list of token ids, not {prompt!r:.100}")
    if len(prompt) == 0:
        raise PromptError("the prompt is empty: give it some text" if isinstance(prompt, str) else EMPTY_LIST)
    if isinstance(prompt, str) or isinstance(prompt[0], Mapping):
        if tokenizer is None:
            raise PromptError("this model was loaded without a tokenizer: give the prompt as token ids")
        ids = _ids_of_text(prompt, tokenizer, settings, context)
    else:
        ids = list(prompt)
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
                raise PromptError(f"prompt token {token!r} is not in the vocabulary of {vocabulary}")
    if not ids:
        raise PromptError("the prompt is empty: it has no tokens")
    if len(ids) >= context:
        raise PromptTooLong(
            f"the prompt has {len(ids)} tokens, and the context of {context} leaves no room for an answer"
        )
    return ids


def _ids_of_text(prompt: Any, tokenizer: Tokenizer, settings: Settings, context: int) -> list[int]:
    messages = messages_of(prompt, settings.system)
    size = sum(len(message["content"]) for message in messages)
    if tokenizer.fewest_tokens(size) >= context:
        # a hundred megabytes are refused before minutes go into tokenising them
        raise PromptTooLong(f"the prompt has {size} characters, and a context of {context} tokens cannot hold them")
    if not all(is_text(part) for message in messages for part in message.values()):
        raise PromptError("the prompt is not UTF-8 text")
    if settings.raw:
        if not isinstance(prompt, str):
            raise PromptError("raw=True takes text or token ids, not messages")
        if settings.system is not None:
            raise PromptError("a raw prompt has no system turn: leave system out")
        return tokenizer.encode(prompt)
    return tokenizer.chat(messages, variables=dict(settings.template))


def messages_of(prompt: Any, system: str | None) -> list[dict[str, str]]:
    """Return a prompt as messages, its system turn first. Raises PromptError for anything that is not one."""
    turns: Sequence[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    messages = [] if system is None else [{"role": "system", "content": system}]
    for turn in turns:
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise PromptError(f"a message needs a role and a content, both text, not {turn!r:.100}")
        messages.append({"role": turn["role"], "content": turn["content"]})
    return messages


def bad_word_ids(bad_words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return bad words as token sequences: each as it is written at the start of a text and after a space.

    Raises OptionError for one that the tokenizer has no tokens for.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in bad_words:
        if not is_text(word) or not tokenizer.encode(word.lstrip(), special=False):
            raise OptionError(f"the bad word {word!r} has no tokens in this vocabulary")
        for written in (word.lstrip(), f" {word.lstrip()}"):
            sequences[tuple(tokenizer.encode(written, special=False))] = None
    return tuple(sequences)


def prediction_ids(settings: Settings, tokenizer: Tokenizer | None, vocabulary: int, context: int) -> tuple[int, ...]:
    """Return a prediction as token ids, without those that a tokenizer puts around a text; empty where there is none.

    Raises OptionError for text without a tokenizer, text that is none, or more of it than the context could hold.
    """
    text = settings.prediction
    if text is None:
        return ()
    ids = text if isinstance(text, tuple) else _ids_of_prediction(text, tokenizer, context)
    if len(ids) > context:
        raise OptionError(f"prediction has {len(ids)} tokens, and a context of {context} cannot hold them")
    if max(ids) >= vocabulary:
        raise OptionError(f"prediction holds token {max(ids)}, which is not in the vocabulary of {vocabulary}")
    return ids


def _ids_of_prediction(text: str, tokenizer: Tokenizer | None, context: int) -> tuple[int, ...]:
    if tokenizer is None:
        raise OptionError("prediction needs a tokenizer, or must be token ids: load the model with tokenizer=")
    if tokenizer.fewest_tokens(len(text)) >= context:
        raise OptionError(f"prediction has {len(text)} characters, and a context of {context} tokens cannot hold them")
    ids = tokenizer.encode(text, special=False)
    if not ids:
        raise OptionError("prediction is empty: it has no tokens")
    return tuple(ids)

"""Bad words as the tokens that would write them."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from foredraft.errors import OptionError
from foredraft.prompts import bad_word_ids
from foredraft.tokenizer.tokenizer import Tokenizer


def byte_level(*merged: str) -> Tokenizer:
    """Return a byte-level tokenizer; each of ``merged`` is two earlier tokens put together."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate([*alphabet, *merged])}
    merges = [(word[:-1], word[-1]) for word in merged]
    backend = Backend(models.BPE(words, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer.from_backend(backend)


def spelled(tokenizer: Tokenizer, sequences: tuple[tuple[int, ...], ...]) -> list[list[str]]:
    return [[tokenizer.token(token) for token in sequence] for sequence in sequences]


def test_a_bad_word_is_written_with_and_without_a_space() -> None:
    tokenizer = byte_level("Ġa", "Ġab", "ab")
    assert spelled(tokenizer, bad_word_ids(["ab"], tokenizer)) == [["ab"], ["Ġab"]]
    assert spelled(tokenizer, bad_word_ids([" ab"], tokenizer)) == [["ab"], ["Ġab"]]
    assert spelled(tokenizer, bad_word_ids(["ab ab"], tokenizer)) == [["ab", "Ġab"], ["Ġab", "Ġab"]]
    assert spelled(tokenizer, bad_word_ids(["ab", " ab", "b"], tokenizer)) == [["ab"], ["Ġab"], ["b"], ["Ġ", "b"]]


def test_no_bad_words_are_no_sequences() -> None:
    assert bad_word_ids([], byte_level()) == ()


def test_a_bad_word_that_cannot_be_written_is_refused() -> None:
    empty = Tokenizer.from_backend(Backend(models.BPE({"a": 0}, [])))
    with pytest.raises(OptionError, match="the bad word 'b' has no tokens in this vocabulary"):
        bad_word_ids(["a", "b"], empty)
    with pytest.raises(OptionError, match="has no tokens"):
        bad_word_ids(["\udcff"], byte_level())

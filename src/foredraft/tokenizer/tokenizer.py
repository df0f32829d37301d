"""A model's tokenizer: text to tokens and back, chats to prompts, and which tokens end an answer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer as Backend
from tokenizers import models

from foredraft.errors import TokenizerError
from foredraft.system.json_text import parse_json
from foredraft.tokenizer.chat_template import ChatTemplate
from foredraft.tokenizer.stream import TextStream, text_stream

_ROLES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """Text to tokens and back, as the model's own tokenizer has it.

    ``stop_ids`` are the tokens that end an answer: those of the generation config (of the config where that names
    none), and the tokenizer's end-of-text. ``vocabulary`` counts the tokens: 1 more than the largest id.
    """

    def __init__(
        self,
        backend: Backend,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        stop_ids: Iterable[int] = (),
        clean_up: bool = False,
    ) -> None:
        self._backend = backend
        self._source = chat_template
        self._template: ChatTemplate | None = None
        self._roles = dict(special_tokens or {})
        eos = self._id(self._roles.get("eos_token"))
        self.stop_ids = frozenset(stop_ids) | (frozenset() if eos is None else {eos})
        # Hugging Face refuses to clean up after byte pairs, whose spaces are part of the text
        self._clean_up = clean_up and not isinstance(backend.model, models.BPE)
        self._tokens: dict[int, str] = {i: token for token, i in backend.get_vocab(with_added_tokens=True).items()}
        self.vocabulary = max(self._tokens, default=-1) + 1
        self._longest = max(map(len, self._tokens.values()), default=1)
        self._special = frozenset(i for i, t in backend.get_added_tokens_decoder().items() if t.special)

    @classmethod
    def from_folder(cls, folder: Path, model_config: Mapping[str, Any] | None = None) -> Tokenizer:
        """Read the tokenizer of a model folder; ``model_config`` is its config.json, from whoever has read it.

        Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json, chat_template.jinja or .json, and the
        end-of-text ids of generation_config.json or config.json. Raises TokenizerError.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(_missing(folder))
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare exceptions
            raise TokenizerError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
        config = _read(folder / "tokenizer_config.json")
        roles = _special_tokens({**_read(folder / "special_tokens_map.json"), **config})
        template = _template_source(folder, config)
        clean_up = config.get("clean_up_tokenization_spaces") is True
        return cls.from_backend(backend, template, _ends(folder, model_config), special_tokens=roles, clean_up=clean_up)

    @classmethod
    def from_backend(
        cls,
        backend: Backend,
        chat_template: str | None = None,
        stop_ids: Iterable[int] = (),
        *,
        special_tokens: Mapping[str, str] | None = None,
        clean_up: bool = False,
    ) -> Tokenizer:
        """Wrap a ``tokenizers.Tokenizer``, such as a transformers fast tokenizer's ``backend_tokenizer``.

        ``special_tokens`` maps roles ("bos_token", "eos_token", ...) to tokens. The object itself is left as it is.
        """
        own = Backend.from_str(backend.to_str())
        own.no_truncation()
        own.no_padding()
        return cls(own, chat_template, special_tokens, stop_ids, clean_up)

    @classmethod
    def from_transformers(cls, tokenizer: Any) -> Tokenizer:
        """Wrap a transformers tokenizer object. Raises TokenizerError for one that is not a fast tokenizer."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Backend):
            raise TokenizerError(
                f"a tokenizer of the class {type(tokenizer).__name__} cannot be used: hand in a fast tokenizer of "
                "transformers, or a folder with a tokenizer.json"
            )
        template = getattr(tokenizer, "chat_template", None)
        roles = _special_tokens({role: getattr(tokenizer, role, None) for role in _ROLES})
        clean_up = getattr(tokenizer, "clean_up_tokenization_spaces", None) is True
        return cls.from_backend(backend, _default(template), special_tokens=roles, clean_up=clean_up)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return the tokens of ``text``, between the BOS and EOS that the model's own tokenizer adds if ``special``."""
        try:
            return list(self._backend.encode(text, add_special_tokens=special).ids)
        except Exception as error:  # lone surrogates, and whatever else the library does not take
            raise TokenizerError(f"this text cannot be tokenized: {str(error).splitlines()[0]}") from error

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``; special tokens, and ids that are no tokens, leave none."""
        text = str(self._backend.decode([i for i in ids if i in self._tokens], skip_special_tokens=True))
        return _cleaned(text) if self._clean_up else text

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        add_generation_prompt: bool = True,
        variables: Mapping[str, bool | str] | None = None,
    ) -> list[int]:
        """Return the prompt for a conversation, a list of ``{"role": ..., "content": ...}``, by the model's template.

        ``variables`` are switches that the template knows. Raises TokenizerError if the model has no template, or if
        that fails or refuses.
        """
        # the template writes BOS itself where the model wants one
        return self.encode(self.render(messages, add_generation_prompt, variables), special=False)

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        add_generation_prompt: bool = True,
        variables: Mapping[str, bool | str] | None = None,
    ) -> str:
        """Return the prompt for a conversation as text, special tokens spelled out.

        Raises TokenizerError if the model has no template, or if the template fails or refuses.
        """
        if self._source is None:
            raise TokenizerError("this model has no chat template; use --raw (or plain text) to prompt it without one")
        if self._template is None:
            self._template = ChatTemplate(self._source)
        return self._template.render(messages, {**(variables or {}), **self._roles}, add_generation_prompt)

    def fewest_tokens(self, characters: int) -> int:
        """Return a number of tokens that a text of so many characters has at the least; cheap, and far from tight."""
        if not isinstance(self._backend.model, models.BPE):
            return 0
        return characters // (4 * max(1, self._longest))  # composing characters can make one of a few

    @property
    def has_chat_template(self) -> bool:
        """Whether ``chat`` can be used."""
        return self._source is not None

    def token(self, token: int) -> str:
        """Return how the vocabulary spells a token; empty for an id that is none (padding of the embedding)."""
        return self._tokens.get(token, "")

    def token_text(self, token: int) -> str:
        """Return the text of one token; a special token, which leaves none in an answer, as it is spelled."""
        return self.token(token) if token in self._special else self.decode([token])

    def stream(self) -> TextStream:
        """Return ``push(id) -> str`` and ``finish() -> str`` whose pieces, joined, are what ``decode`` returns."""
        return text_stream(self._backend, self._special, whole=self._clean_up)

    def definition(self) -> str:
        """Return the tokenizer as the text of a tokenizer.json."""
        return str(self._backend.to_str())

    def fingerprint(self) -> str:
        """Return a digest of which id is which token."""
        digest = hashlib.sha256()
        for i in sorted(self._tokens):
            digest.update(f"{i}\t{self._tokens[i]!r}\n".encode())
        return digest.hexdigest()[:16]

    def first_difference(self, other: Tokenizer) -> tuple[int, str, str] | None:
        """Return the first id that is one token here and another there, with both spellings; None if there is none.

        Beyond the shorter vocabulary an id that is a token on one side only is padding on the other, no difference.
        """
        shorter = min(self.vocabulary, other.vocabulary)
        for i in range(shorter):
            mine, theirs = self._tokens.get(i, ""), other._tokens.get(i, "")
            if mine != theirs:
                return i, mine, theirs
        return None

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._backend.token_to_id(token)


def _missing(folder: Path) -> str:
    if any(folder.glob("*.model")):
        return (
            f"{folder} has its tokenizer only as a SentencePiece model; make a tokenizer.json of it once with "
            "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    return f"{folder} has no tokenizer.json"


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty if there is no such file."""
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} does not hold an object")
    return value


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    roles: dict[str, str] = {}
    for role in _ROLES:
        value = config.get(role)
        token = value.get("content") if isinstance(value, dict) else value
        if isinstance(token, str):
            roles[role] = token
    return roles


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise TokenizerError(f"{path} cannot be read: {error}") from error
    value = _read(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(value, list):  # several, by name
        value = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
    return _default(value)


def _default(template: Any) -> str | None:
    """Return a template, or of several by name the default one."""
    value = template.get("default") if isinstance(template, dict) else template
    return value if isinstance(value, str) else None


def _ends(folder: Path, model_config: Mapping[str, Any] | None) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        config = model_config if name == "config.json" and model_config is not None else _read(folder / name)
        value = config.get("eos_token_id")
        if value is None and isinstance(config.get("text_config"), dict):
            value = config["text_config"].get("eos_token_id")
        ids = [i for i in (value if isinstance(value, list) else [value]) if type(i) is int and i >= 0]
        if ids:
            return ids
    return []


def _cleaned(text: str) -> str:
    """Return ``text`` with the spaces gone that Hugging Face's ``clean_up_tokenization`` takes out, in its order."""
    for spaced in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(spaced, spaced.strip())
    return text

"""A tokenizer from the metadata of a GGUF file.

Two kinds: byte-level BPE ("gpt2"), whose merges the file lists and whose way of cutting text into words it only names;
and SentencePiece ("llama"), whose merges are implied by the scores of its pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from foredraft.errors import TokenizerError
from foredraft.models.gguf.header import Header

_UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 2, 3, 4, 5, 6  # token types
_MAX_PIECE: Final = 1 << 10
_SPACE: Final = "▁"

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL: Final = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_QWEN2: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED: Final = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_SHOUTED: Final = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_MARKS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
_TEKKEN: Final = f"{_CASED}|{_SHOUTED}|\\p{{N}}{_MARKS}"
_GPT4O: Final = f"{_CASED}{_CONTRACTIONS}?|{_SHOUTED}{_CONTRACTIONS}?|\\p{{N}}{{1,3}}{_MARKS}"


@dataclass(frozen=True, slots=True)
class _Cut:
    """How text is cut into words: by ``pattern``, or GPT-2's way if None, digits one by one first if ``digits``."""

    pattern: str | None = None
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False  # a word in the vocabulary is taken without merging
    bos: bool = False  # begins with BOS where the file does not say


_GPT2_CUT: Final = _Cut()
_DIGIT_CUT: Final = _Cut(digits=True)
_LLAMA3_CUT: Final = _Cut(_LLAMA3, whole_words=True, bos=True)
_CUTS: Final[Mapping[str, _Cut]] = {
    **dict.fromkeys(("default", "gpt-2", "phi-2", "olmo"), _GPT2_CUT),
    **dict.fromkeys(("smollm", "refact", "starcoder", "command-r"), _DIGIT_CUT),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3_CUT),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _Cut(_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _Cut(_QWEN2, nfc=True)),
    "tekken": _Cut(_TEKKEN, whole_words=True, bos=True),
    "gpt-4o": _Cut(_GPT4O),
}

_ENDS: Final = frozenset(
    ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")
)


class _Vocabulary:
    """The token lists of a file, checked against each other."""

    def __init__(self, header: Header) -> None:
        self.path = header.path
        self.metadata = header.metadata
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
            raise self.broken("it lists no tokens")
        types = self.metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
        if not isinstance(types, list) or len(types) != len(tokens):
            raise self.broken("it has not one type for every token")
        size = len(tokens)
        while size > 1 and types[size - 1] == _UNUSED and tokens[size - 1].startswith("[PAD"):
            size -= 1  # rows of the embedding that no token uses
        self.tokens: list[str] = tokens[:size]
        self.types: list[int] = types[:size]
        self.ids: dict[str, int] = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) != size:
            raise self.broken("it has a token twice")

    def broken(self, why: str) -> TokenizerError:
        return TokenizerError(f"the tokenizer in {self.path} cannot be used: {why}")

    def token(self, role: str) -> str | None:
        """Return the token that has ``role`` ("bos", "eos", "unknown", "padding"), if one has."""
        value = self.metadata.get(f"tokenizer.ggml.{role}_token_id")
        return self.tokens[value] if type(value) is int and 0 <= value < len(self.tokens) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        return value if isinstance(value, bool) else default

    @property
    def special(self) -> set[str]:
        roles = {self.token(role) for role in ("bos", "eos", "unknown", "padding")}
        typed = {t for t, kind in zip(self.tokens, self.types, strict=True) if kind in (_CONTROL, _UNKNOWN)}
        return typed | {token for token in roles if token is not None}


def tokenizer_of(header: Header) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer of a file and its tokenizer_config.json. Raises TokenizerError."""
    vocabulary = _Vocabulary(header)
    kind = header.metadata.get("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            backend, bos = _byte_level(vocabulary)
        elif kind == "llama":
            backend, bos = _sentencepiece(vocabulary, header.architecture), True
        else:
            raise vocabulary.broken(f"its kind is {str(kind)[:40]!r}, and only 'gpt2' and 'llama' are understood")
        config = _add_tokens(backend, vocabulary, header, bos)
    except TokenizerError:
        raise
    except Exception as error:  # the library raises bare exceptions; they are about what the file says
        raise vocabulary.broken(str(error).splitlines()[0]) from error
    return backend, config


def stop_ids(header: Header) -> list[int]:
    """Return the ids that end an answer: those the file names, and its control tokens that end a turn or a text."""
    vocabulary = _Vocabulary(header)
    named = [vocabulary.token(role) for role in ("eos", "eot", "eom")]
    spoken = [t for t in vocabulary.tokens if t in _ENDS and vocabulary.types[vocabulary.ids[t]] in (_CONTROL, _USER)]
    return list(dict.fromkeys(vocabulary.ids[t] for t in (*named, *spoken) if t is not None))


def _byte_level(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    name = vocabulary.metadata.get("tokenizer.ggml.pre", "default")
    cut = _CUTS.get(name) if isinstance(name, str) else None
    if cut is None:
        raise vocabulary.broken(
            f"it cuts text by the rule {str(name)[:40]!r}, which is not among {', '.join(sorted(_CUTS))}"
        )
    merges = vocabulary.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(m, str) and m.count(" ") == 1 for m in merges):
        raise vocabulary.broken("it has no usable list of merges")
    pairs = [(left, right) for left, right in (m.split(" ") for m in merges)]
    backend = Tokenizer(models.BPE(vocabulary.ids, pairs, ignore_merges=cut.whole_words))
    if cut.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[Any] = []
    if cut.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if cut.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(cut.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend, cut.bos


def _sentencepiece(vocabulary: _Vocabulary, architecture: str) -> Tokenizer:
    gemma = architecture.startswith("gemma")
    if gemma:  # runs of spaces are stored as spaces, and looked up as what spaces are turned into
        vocabulary.tokens = [_SPACE * len(t) if t.isspace() and set(t) == {" "} else t for t in vocabulary.tokens]
        vocabulary.ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.token("unknown")
    model = models.BPE(
        vocabulary.ids, _implied_merges(vocabulary, gemma), unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    backend = Tokenizer(model)
    prefix = vocabulary.flag("add_space_prefix", default=not gemma)
    tail: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if gemma:
        backend.normalizer = normalizers.Replace(" ", _SPACE)
        backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    elif architecture == "phi3":
        prepend = [normalizers.Prepend(_SPACE)] if prefix else []
        backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", _SPACE)])
    else:
        scheme = "first" if prefix else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)
    if prefix and not gemma:
        tail.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(tail)
    return backend


def _implied_merges(vocabulary: _Vocabulary, by_place: bool) -> list[tuple[str, str]]:
    """Return every way of joining two pieces to a third, the best third first.

    SentencePiece always joins the neighbours that make the piece of the highest score. Gemma's scores are not those its
    pieces were ranked by; their places in the list are.
    """
    scores = vocabulary.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) < len(vocabulary.tokens):
        raise vocabulary.broken("it has not one score for every token")
    found: list[tuple[float, int, int, str, str]] = []
    for place, (piece, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind in (_UNKNOWN, _CONTROL, _BYTE):
            continue
        if len(piece) > _MAX_PIECE:
            raise vocabulary.broken(f"a token has {len(piece)} characters")
        score = -float(place) if by_place else float(scores[place])
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        ways = [(a, b) for a, b in splits if a in vocabulary.ids and b in vocabulary.ids]
        ways.sort(key=lambda way: (vocabulary.ids[way[0]], vocabulary.ids[way[1]]))
        found += [(score, len(a), len(b), a, b) for a, b in ways]
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [(a, b) for _, _, _, a, b in found]


def _add_tokens(backend: Tokenizer, vocabulary: _Vocabulary, header: Header, bos_by_default: bool) -> dict[str, Any]:
    special = vocabulary.special
    # Phi-3's control tokens swallow the white space after them, which the file does not say
    swallow = "phi-3" in _name(header) or "phi3" in _name(header)
    kept = ("<s>", "<unk>", "<|endoftext|>")
    added = [
        AddedToken(t, normalized=False, special=True, rstrip=swallow and t not in kept)
        for t in _ordered(vocabulary, special)
    ]
    backend.add_special_tokens(added)
    users = {t for t, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == _USER} - special
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in _ordered(vocabulary, users)])
    bos, eos = vocabulary.token("bos"), vocabulary.token("eos")
    add_bos = vocabulary.flag("add_bos_token", bos_by_default) and bos is not None
    add_eos = vocabulary.flag("add_eos_token", False) and eos is not None
    if add_bos or add_eos:
        backend.post_processor = _template(backend, bos if add_bos else None, eos if add_eos else None)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": add_bos,
        "add_eos_token": add_eos,
        "clean_up_tokenization_spaces": False,
    }
    for key, role in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        if (token := vocabulary.token(role)) is not None:
            config[key] = token
    template = vocabulary.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    return config


def _template(backend: Tokenizer, bos: str | None, eos: str | None) -> processors.TemplateProcessing:
    parts = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
    named = [(token, backend.token_to_id(token)) for token in (bos, eos) if token]
    return processors.TemplateProcessing(single=parts, pair=[*parts, "$B:1"], special_tokens=named)


def _ordered(vocabulary: _Vocabulary, tokens: Iterable[str]) -> list[str]:
    return sorted((t for t in tokens if t), key=vocabulary.ids.__getitem__)


def _name(header: Header) -> str:
    return str(header.metadata.get("general.name", "")).lower()

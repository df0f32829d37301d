"""Tokenizers: from GGUF metadata as transformers has them, texts that stream exactly, templates that cannot escape."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from foredraft.errors import TokenizerError
from foredraft.models.gguf.header import read_header
from foredraft.models.gguf.tokenizer import stop_ids, tokenizer_of
from foredraft.tokenizer import chat_template
from foredraft.tokenizer.stream import byte_values
from foredraft.tokenizer.tokenizer import Tokenizer
from tests.models.gguf_files import (
    NORMAL,
    TEMPLATE,
    TEXTS,
    Vocabulary,
    byte_pairs,
    pieces,
    vocabulary_file,
)

CHAT = [{"role": "user", "content": "Hi <b>there</b>"}, {"role": "assistant", "content": "Hello"}]


def from_gguf(path: Path, folder: Path) -> Tokenizer:
    """Write a tokenizer's files as the conversion does and read them back."""
    folder.mkdir(exist_ok=True)
    backend, config = tokenizer_of(read_header(path))
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_folder(folder)


def assert_same(ours: Tokenizer, theirs: Any, texts: Sequence[str] = TEXTS) -> None:
    for text in texts:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.encode(text, special=False) == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


# from GGUF, against transformers


@pytest.mark.parametrize("pre", ["default", "gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o", "dbrx", "smaug-bpe"])
def test_byte_level_tokenizers_are_those_of_transformers(pre: str, tmp_path: Path) -> None:
    path = vocabulary_file(tmp_path / "a.gguf", byte_pairs(pre), "qwen2")
    ours = from_gguf(path, tmp_path / "ours")
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="a.gguf")
    # transformers forgets that Qwen composes characters first
    texts = [t for t in TEXTS if "e\u0301" not in t] if pre == "qwen2" else TEXTS
    assert_same(ours, theirs, texts)
    assert ours.token(ours.vocabulary - 1) == "<think>"  # what pads the embedding is no token


@pytest.mark.parametrize("pre", ["smollm", "refact", "starcoder"])
def test_digits_are_cut_one_by_one(pre: str, tmp_path: Path) -> None:
    vocabulary = byte_pairs(pre)
    vocabulary.tokens.insert(-2, "89")
    vocabulary.types.insert(-2, NORMAL)
    assert vocabulary.merges is not None
    vocabulary.merges.append("8 9")
    ours = from_gguf(vocabulary_file(tmp_path / "a.gguf", vocabulary), tmp_path / "ours")
    assert [ours.token(i) for i in ours.encode("89")] == ["8", "9"]
    whole = from_gguf(
        vocabulary_file(tmp_path / "b.gguf", Vocabulary(**{**vars(vocabulary), "pre": "gpt-2"})), tmp_path
    )
    assert [whole.token(i) for i in whole.encode("89")] == ["89"]


def test_qwen_composes_characters(tmp_path: Path) -> None:
    ours = from_gguf(vocabulary_file(tmp_path / "a.gguf", byte_pairs("qwen2")), tmp_path)
    assert ours.encode("e\u0301") == ours.encode("\u00e9")


def test_llama3_takes_whole_words_and_begins_with_bos(tmp_path: Path) -> None:
    vocabulary = byte_pairs("llama-bpe")
    vocabulary.flags = {}
    vocabulary.tokens.insert(3, "zzzz")  # in the vocabulary, reached by no merge
    vocabulary.types.insert(3, NORMAL)
    ours = from_gguf(vocabulary_file(tmp_path / "a.gguf", vocabulary), tmp_path)
    assert ours.encode("zzzz") == [1, 3]
    assert ours.encode("zzzz", special=False) == [3]


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3", "phi3"])
def test_sentencepiece_tokenizers_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    vocabulary = pieces(gemma=architecture.startswith("gemma"))
    path = vocabulary_file(tmp_path / "a.gguf", vocabulary, architecture)
    ours = from_gguf(path, tmp_path / "ours")
    assert_same(ours, AutoTokenizer.from_pretrained(tmp_path, gguf_file="a.gguf"))
    assert ours.encode("x")[0] == 1


def test_sentencepiece_merges_are_sentencepieces_own(tmp_path: Path) -> None:
    ours = from_gguf(vocabulary_file(tmp_path / "a.gguf", pieces()), tmp_path)
    for text in ("The quick brown fox", "jumps over  the lazy dog", "return sum", "𝔘nseen ☃"):
        assert ours.decode(ours.encode(text)) == text
    assert [ours.token(i) for i in ours.encode("☃")[2:]] == ["<0xE2>", "<0x98>", "<0x83>"]


def test_flags_of_sentencepiece(tmp_path: Path) -> None:
    vocabulary = pieces()
    vocabulary.flags = {"add_bos_token": False, "add_eos_token": True, "add_space_prefix": False}
    ours = from_gguf(vocabulary_file(tmp_path / "a.gguf", vocabulary), tmp_path)
    ids = ours.encode("fox")
    assert ids[-1] == 2
    assert ids[0] != 1
    assert not ours.token(ids[0]).startswith("▁")
    assert ours.decode(ids) == "fox"


def test_phi3_control_tokens_swallow_white_space(tmp_path: Path) -> None:
    path = vocabulary_file(tmp_path / "a.gguf", pieces(), "phi3", name="Phi-3 mini")
    ours = from_gguf(path, tmp_path)
    assert ours.encode("<|im_start|> \n fox") == ours.encode("<|im_start|>fox")


def test_the_default_models_tokenizer_is_that_of_transformers(tmp_path: Path) -> None:
    found = [Path(p) for p in os.environ.get("FOREDRAFT_TEST_GGUF", "").split(os.pathsep) if p]
    if not found or not found[0].is_file():
        pytest.skip("set FOREDRAFT_TEST_GGUF to the default model's GGUF file")
    ours = from_gguf(found[0], tmp_path)
    theirs = AutoTokenizer.from_pretrained(found[0].parent, gguf_file=found[0].name)
    assert_same(ours, theirs)
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ours.chat(CHAT) == expected


def test_stop_ids_are_those_named_and_those_that_end_turns(tmp_path: Path) -> None:
    assert stop_ids(read_header(vocabulary_file(tmp_path / "a.gguf", byte_pairs("smollm")))) == [2, 0]
    vocabulary = byte_pairs("llama-bpe")
    vocabulary.roles |= {"eot": 5, "eom": 6}
    assert stop_ids(read_header(vocabulary_file(tmp_path / "b.gguf", vocabulary))) == [2, 5, 6, 0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pre": "klingon"}, "klingon"),
        ({"model": "bert"}, "bert"),
        ({"merges": ["a b c"]}, "merges"),
        ({"merges": ["qq zz"]}, "out of vocabulary"),
        ({"merges": None}, "merges"),
        ({"tokens": ["a", "a"], "types": [NORMAL, NORMAL]}, "twice"),
        ({"types": [NORMAL]}, "one type"),
        ({"model": "llama", "scores": None}, "score"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_a_sentence(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    vocabulary = Vocabulary(**{**vars(byte_pairs("smollm")), **change})
    with pytest.raises(TokenizerError, match=words):
        tokenizer_of(read_header(vocabulary_file(tmp_path / "a.gguf", vocabulary)))


# folders


def simple(**config: Any) -> Backend:
    vocab = {"<s>": 0, "</s>": 1, "<|im_end|>": 2, "a": 3, "b": 4, "Ġ": 5}
    backend = Backend(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<|im_end|>"])
    return backend


def folder_with(folder: Path, **files: Any) -> Path:
    simple().save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_stop_ids_of_a_folder(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "</s>"}}
    folder_with(tmp_path, tokenizer_config=config, config={"eos_token_id": 3})
    assert Tokenizer.from_folder(tmp_path).stop_ids == {1, 3}
    folder_with(tmp_path, generation_config={"eos_token_id": [2, 4]})
    assert Tokenizer.from_folder(tmp_path).stop_ids == {1, 2, 4}
    folder_with(tmp_path, generation_config={}, config={"text_config": {"eos_token_id": 4}})
    assert Tokenizer.from_folder(tmp_path).stop_ids == {1, 4}


@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_tokenizer_file_decides_on_bos_as_in_transformers(adds_bos: bool, tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}
    folder_with(tmp_path, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **config})
    if adds_bos:
        backend = simple()
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        backend.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_folder(tmp_path)
    assert_same(ours, AutoTokenizer.from_pretrained(tmp_path), ["ab", "", "a b"])
    assert ours.encode("a") == ([0, 3] if adds_bos else [3])


def test_folders_without_a_usable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(TokenizerError, match="SentencePiece"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)
    folder_with(tmp_path, tokenizer_config=[1])
    with pytest.raises(TokenizerError, match="object"):
        Tokenizer.from_folder(tmp_path)


def test_where_templates_are_found(tmp_path: Path) -> None:
    folder_with(tmp_path)
    assert not Tokenizer.from_folder(tmp_path).has_chat_template
    with pytest.raises(TokenizerError, match="--raw"):
        Tokenizer.from_folder(tmp_path).chat(CHAT)
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder_with(tmp_path, tokenizer_config={"chat_template": named})
    assert Tokenizer.from_folder(tmp_path).chat(CHAT) == [3]
    folder_with(tmp_path, chat_template={"chat_template": "b"})
    assert Tokenizer.from_folder(tmp_path).chat(CHAT) == [4]
    (tmp_path / "chat_template.jinja").write_text("ab")
    assert Tokenizer.from_folder(tmp_path).chat(CHAT) == [3, 4]


def test_a_transformers_tokenizer_is_wrapped_and_left_alone() -> None:
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=simple(), bos_token="<s>", eos_token="</s>", chat_template="{{ bos_token }}a"
    )
    theirs.backend_tokenizer.enable_truncation(1)
    ours = Tokenizer.from_transformers(theirs)
    assert ours.encode("abab") == [3, 4, 3, 4]
    assert ours.stop_ids == {1}
    assert ours.chat(CHAT) == [0, 3]
    assert theirs.backend_tokenizer.truncation is not None
    with pytest.raises(TokenizerError, match="fast"):
        Tokenizer.from_transformers(object())


def test_a_text_that_is_no_text_is_refused() -> None:
    with pytest.raises(TokenizerError, match="cannot be tokenized"):
        Tokenizer(simple()).encode("\ud800")


@given(st.text(alphabet="ab ", max_size=60))
def test_no_text_has_fewer_tokens_than_the_bound(text: str) -> None:
    ours = Tokenizer(simple())
    assert ours.fewest_tokens(len(text)) <= len(ours.encode(text))
    assert ours.fewest_tokens(10**8) > 10**6


def test_the_first_difference_of_two_vocabularies() -> None:
    one, other = Tokenizer(simple()), simple()
    assert one.first_difference(Tokenizer(other)) is None
    other.add_tokens(["beyond"])
    assert one.first_difference(Tokenizer(other)) is None  # padding of the shorter one
    assert Tokenizer(other).first_difference(one) is None
    assert one.fingerprint() != Tokenizer(other).fingerprint()
    swapped = Backend(models.BPE({"<s>": 0, "</s>": 1, "<|im_end|>": 2, "b": 3, "a": 4, "Ġ": 5}, []))
    assert one.first_difference(Tokenizer(swapped)) == (3, "a", "b")


# streaming


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("spoken")
    byte_level = from_gguf(vocabulary_file(folder / "a.gguf", byte_pairs("smollm")), folder / "a")
    piecewise = from_gguf(vocabulary_file(folder / "b.gguf", pieces()), folder / "b")
    gemma = from_gguf(vocabulary_file(folder / "c.gguf", pieces(gemma=True), "gemma3"), folder / "c")
    phi = from_gguf(vocabulary_file(folder / "d.gguf", pieces(), "phi3"), folder / "d")
    odd = Backend(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2, ".": 3, "n't": 4}, unk_token="[UNK]"))
    odd.decoder = decoders.WordPiece()
    tidy = Tokenizer(odd, clean_up=True)
    meta = Backend(models.BPE({"▁": 0, "▁a": 1, "b": 2, "<s>": 3}, []))
    meta.decoder = decoders.Metaspace()
    meta.add_special_tokens(["<s>"])
    return {
        "bytes": byte_level,
        "pieces": piecewise,
        "gemma": gemma,
        "phi": phi,
        "tidy": tidy,
        "metaspace": Tokenizer(meta),
    }


def streamed(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    stream = tokenizer.stream()
    return "".join([stream.push(i) for i in ids] + [stream.finish()])


@pytest.mark.parametrize("kind", ["bytes", "pieces", "gemma", "phi", "tidy", "metaspace"])
@given(data=st.data())
def test_pieces_joined_are_the_whole_text(kind: str, spoken: dict[str, Tokenizer], data: st.DataObject) -> None:
    tokenizer = spoken[kind]
    # byte tokens, special tokens and ids that are no tokens are drawn often
    token = st.one_of(st.integers(0, tokenizer.vocabulary + 3), st.integers(0, 12), st.integers(3, 262))
    ids = data.draw(st.lists(token, max_size=40))
    assert streamed(tokenizer, ids) == tokenizer.decode(ids)


@given(st.text(max_size=40))
def test_texts_stream_and_come_back(text: str) -> None:
    tokenizer = _byte_level()
    ids = tokenizer.encode(text)
    assert streamed(tokenizer, ids) == tokenizer.decode(ids) == text


def _byte_level() -> Tokenizer:
    alphabet = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE(alphabet, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def test_a_character_is_told_when_it_is_whole(spoken: dict[str, Tokenizer]) -> None:
    tokenizer = spoken["bytes"]
    stream = tokenizer.stream()
    ids = tokenizer.encode("a☃b")
    told = [stream.push(i) for i in ids]
    assert told[0] == "a"
    assert told[-1] == "b"
    assert told.count("☃") == 1
    assert stream.finish() == ""


def test_a_stream_can_be_used_again(spoken: dict[str, Tokenizer]) -> None:
    for kind in ("bytes", "pieces"):
        tokenizer = spoken[kind]
        stream = tokenizer.stream()
        first = tokenizer.encode("fox ☃")[:-1]
        for _ in range(2):
            assert "".join(map(stream.push, first)) + stream.finish() == tokenizer.decode(first)


def test_the_byte_alphabet_is_gpt2s() -> None:
    values = byte_values()
    assert len(set(values.values())) == 256
    assert values["Ġ"] == 32
    assert values["Ċ"] == 10
    assert values["a"] == ord("a")
    assert values["é"] == 0xE9


def test_spaces_are_cleaned_up_only_where_hugging_face_does() -> None:
    word_piece = Backend(models.WordLevel({"a": 0, ".": 1, "n't": 2, "[U]": 3}, unk_token="[U]"))
    assert Tokenizer(word_piece, clean_up=True).decode([0, 1, 0, 2]) == "a. an't"
    assert Tokenizer(word_piece).decode([0, 1]) == "a ."
    pairs = simple()
    pairs.add_tokens([AddedToken(" .")])
    assert Tokenizer(pairs, clean_up=True).decode([3, 6]) == "a ."


# chat templates


def rendered(template: str, messages: Sequence[dict[str, str]] = CHAT, **variables: Any) -> str:
    return chat_template.ChatTemplate(template).render(messages, variables, True)


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE,
        "{% for m in messages %}\n    {%- if loop.first %}{{ bos_token }}{% endif %}\n  {{ m | tojson }}\n{% endfor %}",
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.length %}{% endfor %}{{ ns.n }}",
        "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}",
        "{{ messages[-1].content.upper().split('L') | join('-') }}{{ tools is none }}{{ nothing is defined }}",
        "{% for m in messages[::-1] if m.role == 'user' %}{{ loop.last }}{{ m.role ~ '!' * 3 }}{% else %}x{% endfor %}",
        "{% macro say(m) %}[{{ m.content }}]{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
        "{{ strftime_now('%%') }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{{ range(3) | list }}",
    ],
)
def test_templates_render_as_in_transformers(template: str) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_object=simple(), bos_token="<s>", eos_token="</s>")
    expected = theirs.apply_chat_template(CHAT, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert rendered(template, **theirs.special_tokens_map) == expected


def test_no_second_bos() -> None:
    tokenizer = Tokenizer(simple(), "{{ bos_token }}a", {"bos_token": "<s>"})
    assert tokenizer.chat(CHAT) == [0, 3]


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ (messages | attr('__class__')) }}{{ messages.append(1) }}",
        "{{ self._TemplateReference__context }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ messages.append({}) }}",
        "{{ '{0.__class__}'.format(messages) }}{{ messages[0].pop('role') }}",
    ],
)
def test_a_template_cannot_reach_into_python(template: str) -> None:
    try:
        text = rendered(template)
    except TokenizerError:
        return
    assert text == ""  # jinja gives nothing for what may not be seen


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% for a in 'aaaaaaaaaa' * 1000 %}{% for b in 'aaaaaaaaaa' * 1000 %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10 ** 12 }}",
        "{{ 9 ** 99999999 }}",
        "{{ '%1000000000d' % 1 }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    ],
)
def test_a_template_ends(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_MAX_STEPS", 20_000)
    monkeypatch.setattr(chat_template, "_MAX_CHARACTERS", 1_000_000)
    with pytest.raises(TokenizerError, match="template fails"):
        rendered(template)


def test_a_template_that_refuses_is_quoted() -> None:
    with pytest.raises(TokenizerError, match="template fails: no system turn"):
        rendered("{{ raise_exception('no system turn\nat all') }}")
    with pytest.raises(TokenizerError, match="template fails"):
        rendered("{% for %}")
    with pytest.raises(TokenizerError, match="template fails"):
        rendered("{{ messages[7].content.x }}")


def test_messages_are_not_changed_by_a_template() -> None:
    messages = [{"role": "user", "content": "x"}]
    rendered("{% set m = messages[0] %}{{ m.content }}", messages)
    assert messages == [{"role": "user", "content": "x"}]

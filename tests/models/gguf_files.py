"""Tiny GGUF files, written as llama.cpp's converter writes them: from checkpoints, or around a vocabulary."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import sentencepiece
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.models.checkpoints import make_checkpoint

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
SAMPLE = """The quick brown fox jumps over the lazy dog. It's 12 o'clock; they'll have 1234 apples, won't they?
def main(argv: list[str]) -> int:
    return sum(int(a) for a in argv)  # comments    with   spaces
Über Äpfel, naïve café, Ελληνικά, русский текст, 中文字符, 日本語, 한국어, العربية, 😀 👩‍👩‍👧 🇨🇭
\tTabs\tand\n\n\nnewlines\r\nWindows THE HTTPServer parses JSONData camelCase
"""
TEXTS = (
    "Hello, world!",
    "  two spaces,   three\tand a tab ",
    "12345 1 22 333 4444 3.14159 10,000",
    "It's they'll WE'RE don't 'quoted'",
    "def f(x):\n    return x ** 2\n\n\n# done\r\n",
    "Über naïve café Ελληνικά русский 中文 日本語 한국어",
    "😀 👩‍👩‍👧 🇨🇭 e\u0301 \u200b \xa0nbsp",
    "<|im_start|>user\nHi<|im_end|>\n<think>x</think>",
    "\n\n \n  \n",
    "",
    "camelCase HTTPServer JSONData ALLCAPS",
)


@dataclass
class Vocabulary:
    """What a GGUF says of a tokenizer."""

    tokens: list[str]
    model: str = "gpt2"
    pre: str | None = "smollm"
    types: list[int] = field(default_factory=list)
    merges: list[str] | None = None
    scores: list[float] | None = None
    roles: dict[str, int] = field(default_factory=dict)
    flags: dict[str, bool] = field(default_factory=dict)
    template: str | None = TEMPLATE

    def add_to(self, writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(self.model)
        if self.pre is not None:
            writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types or [NORMAL] * len(self.tokens))
        if self.merges is not None:
            writer.add_token_merges(self.merges)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        for role, token in self.roles.items():
            writer.add_uint32(f"tokenizer.ggml.{role}_token_id", token)
        for flag, value in self.flags.items():
            writer.add_bool(f"tokenizer.ggml.{flag}", value)
        if self.template is not None:
            writer.add_chat_template(self.template)


def letters(size: int) -> Vocabulary:
    """Return a byte-level vocabulary of ``size`` tokens, at most 260, with one merge."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "AB"]
    tokens += sorted(pre_tokenizers.ByteLevel.alphabet())[: size - 4]
    types = [CONTROL] * 3 + [NORMAL] * (size - 3)
    return Vocabulary(tokens, types=types, merges=["A B"], roles={"bos": 1, "eos": 2, "padding": 2, "unknown": 0})


def byte_pairs(pre: str) -> Vocabulary:
    """Return a trained byte-level vocabulary with control tokens and a user-defined one."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([SAMPLE] * 3, trainer)
    state = json.loads(backend.to_str())["model"]
    learnt = sorted(state["vocab"], key=state["vocab"].__getitem__)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *learnt, "<think>", "[PAD1]", "[PAD2]"]
    types = [CONTROL] * 3 + [NORMAL] * len(learnt) + [USER, UNUSED, UNUSED]
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["merges"]]
    roles = {"bos": 1, "eos": 2, "padding": 2, "unknown": 0}
    return Vocabulary(tokens, pre=pre, types=types, merges=merges, roles=roles, flags={"add_bos_token": False})


def pieces(gemma: bool = False) -> Vocabulary:
    """Return a trained SentencePiece vocabulary with byte fallback."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SAMPLE.splitlines() * 3),
        model_writer=model,
        model_type="bpe",
        vocab_size=520,
        byte_fallback=True,
        character_coverage=0.98,
        user_defined_symbols=["<|im_start|>", "<|im_end|>", *(["▁▁", "▁▁▁"] if gemma else [])],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens, types, scores = [], [], []
    for i in range(processor.get_piece_size()):
        piece = processor.id_to_piece(i)
        kind = BYTE if processor.is_byte(i) else CONTROL if processor.is_control(i) else NORMAL
        kind = UNKNOWN if processor.is_unknown(i) else kind
        if piece.startswith("<|im_"):
            kind = CONTROL
        if gemma and set(piece) == {"▁"} and len(piece) > 1:
            piece, kind = " " * len(piece), USER
        tokens.append(piece)
        types.append(kind)
        scores.append(processor.get_score(i))
    roles = {"bos": 1, "eos": 2, "unknown": 0}
    return Vocabulary(tokens, "llama", None, types, scores=scores, roles=roles)


def vocabulary_file(path: Path, vocabulary: Vocabulary, architecture: str = "llama", name: str = "tiny") -> Path:
    """Write a GGUF that holds a vocabulary and no weights."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_block_count(1)
    vocabulary.add_to(writer)
    return close(writer, path)


def close(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Order the rows of q or k for llama.cpp: of each head, row i and row i + D/2 become neighbours."""
    width = rows.shape[0] // heads
    order = [
        head * width + half * (width // 2) + i for head in range(heads) for i in range(width // 2) for half in (0, 1)
    ]
    return rows[order]


def model_file(
    folder: Path,
    path: Path,
    architecture: str,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: Sequence[tuple[str, np.ndarray]] = (),
    keys: Sequence[tuple[str, Any]] = (),
) -> Path:
    """Write the checkpoint in ``folder`` as a GGUF: matrices as ``kind``, vectors as F32."""
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    _add_config(writer, config, architecture)
    for key, value in keys:
        add = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        add[type(value)](key, value)
    letters(config["vocab_size"]).add_to(writer)
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, values in weights.items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        if architecture in ("llama", "granite", "smollm3") and (".q_proj." in name or ".k_proj." in name):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            values = permuted(values, heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            values = values + np.float32(1)
        raw = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(values), raw), raw_dtype=raw)
    for name, values in extra:
        writer.add_tensor(name, values)
    return close(writer, path)


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config
    full = rope.get("full_attention", rope)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_vocab_size(config["vocab_size"])
    if architecture not in ("llama", "phi3"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if architecture.startswith("gemma"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if architecture == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


# the GGUF says neither Gemma's query scale nor the places of windows and of layers without rotation
OVERRIDES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "sliding_window_pattern": 6},
    "phi3": {"hidden_size": 64},
    "olmo2": {},
    "granite": {},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]},
}


def checkpoint(architecture: str, folder: Path, **more: Any) -> Path:
    family = {"gemma3": "gemma3_text"}.get(architecture, architecture)
    return make_checkpoint(family, folder, **{**OVERRIDES[architecture], **more})

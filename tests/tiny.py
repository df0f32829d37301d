"""A random Llama that speaks bytes and has a chat template: small enough to be asked in every test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.models.checkpoints import make_checkpoint

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")


def write_tokenizer(folder: Path, extra: tuple[str, ...] = ()) -> None:
    """Write a tokenizer of single bytes, with the special tokens of a chat."""
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([*SPECIAL, *extra])
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def make_chat_model(folder: Path, **overrides: Any) -> Path:
    """Write a random Llama that speaks bytes."""
    ends = {"eos_token_id": 259, "bos_token_id": 256, "pad_token_id": 257}
    make_checkpoint("llama", folder, **{"vocab_size": 260, "max_position_embeddings": 512, **ends, **overrides})
    write_tokenizer(folder)
    return folder

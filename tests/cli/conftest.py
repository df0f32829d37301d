"""Tiny models to ask, and a command line to ask them by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from foredraft.cli.main import main
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


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads that wait for each other cost more than a tiny model does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's: his cache, his colours, his folder."""
    for name in ("NO_COLOR", "FORCE_COLOR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The last line of stdout."""
        document: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return document


Ask = Callable[..., Answer]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: object) -> Answer:
        capsys.readouterr()  # what the test itself wrote before
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return run


@pytest.fixture
def refused(ask: Ask) -> Callable[..., str]:
    """Ask for something that is refused; return the one sentence."""

    def run(*words: object) -> str:
        answer = ask(*words)
        assert (answer.status, answer.out) == (2, "")
        assert answer.err.count("\n") == 1
        assert answer.err.startswith("foredraft: ")
        return answer.err.removeprefix("foredraft: ").rstrip("\n")

    return run

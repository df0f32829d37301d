"""What the answers of a server are made with."""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.engine.service import Service
from foredraft.engine.watches.logprobs import LogprobRecorder
from foredraft.runtime.runtime import Runtime
from foredraft.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Engine:
    """A runtime, the service that runs its jobs, who records log-probabilities there, and the model's tokenizer."""

    runtime: Runtime
    service: Service
    recorder: LogprobRecorder
    tokenizer: Tokenizer

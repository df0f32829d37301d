"""Answers on their way through the rounds of one generation."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from foredraft.core.protocols import Drafter
from foredraft.engine.watches.tally import Tally
from foredraft.options import Settings
from foredraft.result import Result
from foredraft.runtime.request import Request
from foredraft.runtime.runtime import Runtime


class Running(Iterator[None]):
    """Answers on their way, a round a step; ``results``, one a prompt, are there once they have ended or were left."""

    def __init__(self, runtime: Runtime, requests: Sequence[Sequence[Request]], settings: Settings) -> None:
        self.requests = requests
        self.results: list[Result] = []
        self._rounds = self._run(runtime, settings, runtime.drafter_for(settings))

    def __next__(self) -> None:
        next(self._rounds)

    def finish(self) -> None:
        """Run to the end. What Ctrl-C interrupts has results too: of the answers as far as they came."""
        try:
            for _ in self:
                pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop generating."""
        self._rounds.close()

    def _run(self, runtime: Runtime, settings: Settings, drafter: Drafter) -> Generator[None, None, None]:
        tally = Tally()
        every = [request for requests in self.requests for request in requests]
        rounds = runtime.rounds(every, settings, drafter, tally)
        try:
            yield from rounds
        finally:
            rounds.close()
            for request in every:
                request.sequence.cancel()
            self.results = [runtime.result_of(requests, settings, drafter, tally) for requests in self.requests]

"""The state of one server: what it serves, its keys and limits, and what it counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from foredraft.server.backend import Served
from foredraft.server.errors import busy
from foredraft.server.keys import Keys
from foredraft.server.limits import Limits, PerKey
from foredraft.server.watch.metrics import Meters

_LOADING_S = 5.0
_MAKERS = 2  # threads that make requests ready


def _silent(_: str) -> None:
    """Tell nobody."""


@dataclass(slots=True)
class ServerState:
    """One server. ``served`` is None while the model is loaded; ``report`` is told of what nobody expected."""

    name: str
    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    hosts: frozenset[str] = frozenset()  # names beside the loopback's that a keyless server answers to
    by_address: bool = False  # and whether it answers to any address of this machine
    origins: tuple[str, ...] = ()
    vllm: bool = False
    report: Callable[[str], None] = _silent
    served: Served | None = None
    draining: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    making: int = 0  # requests that are being made ready
    meters: Meters = field(init=False)
    per_key: PerKey = field(init=False)
    makers: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.meters = Meters(
            self.name, vllm=self.vllm, load=lambda: None if self.served is None else self.served.load()
        )
        self.per_key = PerKey(self.limits.per_key)
        self.makers = ThreadPoolExecutor(_MAKERS, "foredraft-requests")

    @property
    def status(self) -> str:
        """Return "ok", "loading" or "draining"."""
        return "draining" if self.draining else "loading" if self.served is None else "ok"

    def model(self) -> Served:
        """Return what is served. Raises ApiError 503 while it is loaded."""
        if self.served is None:
            raise busy(f"the model {self.name} is being loaded: try again", "loading", _LOADING_S)
        return self.served

"""A server on a socket: loading behind it, and an end that lets answers finish."""

from __future__ import annotations

import errno
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final

import uvicorn

from foredraft.errors import OptionError
from foredraft.server.app import create_app
from foredraft.server.backend import Served
from foredraft.server.http import protocol
from foredraft.server.state import ServerState

BACKLOG: Final = 2048
_FLUSH_S: Final = 5  # in which what was written may still be taken
FINISHED: Final = 0
INTERRUPTED: Final = 130


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address. Raises OptionError where that cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError, OverflowError) as error:
        raise OptionError(f"there is no address {host}: {getattr(error, 'strerror', None) or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise OptionError(f"port {port} of {host} is in use: give another with --port") from error
        raise OptionError(f"{host}:{port} cannot be listened at: {error.strerror}") from error
    return listener


@dataclass(slots=True)
class _End:
    """How a server ended."""

    error: BaseException | None = None
    forced: bool = False


def serve(
    state: ServerState,
    listener: socket.socket,
    load: Callable[[], Served],
    loaded: Callable[[Served], None],
    drain_seconds: float,
    report: Callable[[str], None],
) -> int:
    """Serve until a signal ends it; return the exit status. Raises what loading the model does.

    ``load`` runs on a thread of its own while /health answers already, and then ``loaded`` is told. At the first
    SIGTERM or Ctrl-C nothing more is admitted and what runs may end, within ``drain_seconds``; at the second it ends
    at once.
    """
    end = _End()
    server = Server(_config(state), state, drain_seconds, end, report)

    def begin() -> None:
        try:
            served = load()
            state.served = served
            loaded(served)
        except BaseException as error:  # told by whoever called, once the server has ended
            end.error = error
            server.should_exit = True

    threading.Thread(target=begin, name="foredraft-load", daemon=True).start()
    try:
        server.run([listener])
    finally:
        if state.served is not None:  # also at once: what the engine's thread reads is freed when the process ends
            state.served.close()
        state.makers.shutdown(wait=False, cancel_futures=True)
    if end.error is not None:
        raise end.error
    return INTERRUPTED if end.forced else FINISHED


def _config(state: ServerState) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(state),
        http=protocol(state.limits),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=state.limits.headers,
        timeout_graceful_shutdown=_FLUSH_S,
    )


class Server(uvicorn.Server):
    """uvicorn's server, which goes on answering (with 503) while the last answers are written."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, drain_seconds: float, end: _End, report: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._state = state
        self._drain_seconds = drain_seconds
        self._end = end
        self._report = report

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn calls it so
        """Begin to end, or end at once where that has begun."""
        if self._state.draining or self._state.served is None:
            self._end.forced = self._state.draining or sig == signal.SIGINT
            self.should_exit = self.force_exit = True
            return
        self._state.draining = True
        threading.Thread(target=self._drain, name="foredraft-drain", daemon=True).start()

    def _drain(self) -> None:
        self._report(f"ending: answers may go on for {self._drain_seconds:g} s; once more ends them at once")
        served = self._state.served
        if served is not None and not served.drain(self._drain_seconds):
            self._report("answers that were still under way have been cut off")
        self.should_exit = True

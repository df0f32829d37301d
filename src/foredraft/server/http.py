"""uvicorn's HTTP protocol with deadlines: for headers that come slowly, and for answers that nobody takes."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from foredraft.server.errors import encoded, error_object
from foredraft.server.limits import Limits

_WORDS: Final = {
    400: "this is not a request that HTTP knows",
    408: "the headers took too long to arrive",
    431: "the headers are larger than this server reads",
}


class Deadlines(H11Protocol):
    """One connection, under the limits of its class."""

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        self._headers_due: asyncio.TimerHandle | None = None
        self._write_due: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        """Read on; headers must be complete in time, counted from their first byte."""
        if self._headers_due is None and self.conn.their_state is h11.IDLE:
            self._await_headers()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        self._stop_waiting()
        _stop(self._write_due)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Go on to the next request, if the body of this one has come; what is still to come of it is waited for."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self.loop.call_later(self.limits.headers_s, self._still_sending, self.cycle)

    def _still_sending(self, cycle: object) -> None:
        """Cut a connection that goes on sending what was answered long ago."""
        if self.cycle is cycle and self.conn.their_state is h11.SEND_BODY:
            self.transport.close()

    def pause_writing(self) -> None:
        """Wait for the client to take what was written, for so long."""
        self._write_due = self.loop.call_later(self.limits.write_s, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Write on."""
        _stop(self._write_due)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - our own words are OpenAI's object
        """Refuse what is no request; h11 says which kind of none it is."""
        self._refuse(getattr(sys.exception(), "error_status_hint", 400))

    def _stop_waiting(self) -> None:
        _stop(self._headers_due)
        self._headers_due = None

    def _await_headers(self) -> None:
        self._headers_due = self.loop.call_later(self.limits.headers_s, self._late)

    def _late(self) -> None:
        """Cut a connection whose headers have not come."""
        self._headers_due = None
        if not self.transport.is_closing():
            self._refuse(408)

    def _refuse(self, status: int) -> None:
        status = status if status in _WORDS else 400
        body = encoded(error_object(status, _WORDS[status]))
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        try:
            for event in (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer was under way
            pass
        self.transport.close()


def protocol(limits: Limits) -> type[H11Protocol]:
    """Return the protocol of a server with these limits."""
    return type("Bounded", (Deadlines,), {"limits": limits})


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()

"""What stands before every request: who asks, from where, and whether there is anybody to answer."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foredraft.server.errors import ApiError
from foredraft.server.state import ServerState

OWNER: Final = "foredraft.owner"
OPEN: Final = ("/health", "/ready", "/")  # the page holds nothing of the server's, and is where a key is given
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Guard:
    """Lets through what may pass, and answers the rest; nothing gets beyond it but as an answer.

    A server with keys asks for one. A server without asks that it be called by a name of its own, by pages of its own:
    a page of somebody else, in a browser on this machine, must not reach it by a name that was made to point here.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def counted(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._state.meters.answered(message["status"])
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, receive, counted)
        except ApiError as refused:
            await refused.response()(scope, receive, counted)
        except Exception as error:  # ours, whatever it is: the next request is served
            self._state.report(f"{scope['method']} {scope['path']} failed: {type(error).__name__}: {error}")
            if started:
                raise
            await ApiError(500, "the server failed at this request", code="internal_error").response()(
                scope, receive, counted
            )

    def _check(self, scope: Scope) -> None:
        """Note whose request it is. Raises ApiError where it may not pass."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        state = self._state
        scope[OWNER] = ""
        sizes = len(scope["path"]) + len(scope["query_string"]) + sum(len(name) + len(value) for name, value in headers)
        if sizes > state.limits.headers:  # those that came all at once; h11 stops the others
            raise ApiError(431, "the headers are larger than this server reads", headers={"Connection": "close"})
        if not state.keys:
            self._check_names(headers)
        if scope["path"] in OPEN:
            return
        if state.keys:
            scope[OWNER] = self._owner(headers)
        if state.served is None:
            state.model()

    def _owner(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        sent = [value for name, value in headers if name == b"authorization"]
        owner = self._state.keys.owner(sent[0]) if len(sent) == 1 else None
        if owner is None:
            what = "this API key is not known here" if sent else "an API key is missing"
            raise ApiError(
                401,
                f"{what}: send the header Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return owner

    def _check_names(self, headers: list[tuple[bytes, bytes]]) -> None:
        sent = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(sent) != 1 or not self._own(_hostname(f"//{sent[0]}")):
            raise ApiError(
                400, "this server has no API key, so it answers to its own address only", "Host", "invalid_host"
            )
        for origin in [value.decode("latin-1") for name, value in headers if name == b"origin"]:
            allowed = self._state.origins
            if "*" not in allowed and origin not in allowed and origin.partition("://")[2] != sent[0]:
                raise ApiError(400, "pages of this origin may not use this server", "Origin", "invalid_origin")

    def _own(self, name: str | None) -> bool:
        """Say whether a name is this server's; an address, unlike a name, cannot be made to point elsewhere."""
        if name is None or name in _LOOPBACK | self._state.hosts:
            return name is not None
        return self._state.by_address and _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None

"""A server on the loopback, and who talks to it in raw bytes."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import closing
from typing import Any

from foredraft.server.run import Server, _config, _End, listen
from foredraft.server.state import ServerState


class Live:
    """A server on a thread of its own."""

    def __init__(self, state: ServerState) -> None:
        self.listener = listen("127.0.0.1", 0)
        self.port: int = self.listener.getsockname()[1]
        self.desk = state
        self.server = Server(_config(state), state, 1.0, _End(), lambda _: None)
        self._thread = threading.Thread(target=self.server.run, args=([self.listener],))

    def __enter__(self) -> Live:
        self._thread.start()
        while not self.server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def send(self, *parts: bytes, pause: float = 0.0) -> bytes:
        """Send raw bytes, and return all that comes until the server closes."""
        with closing(socket.create_connection(("127.0.0.1", self.port), timeout=20)) as connection:
            for part in parts:
                try:
                    connection.sendall(part)
                except OSError:
                    break
                time.sleep(pause)
            found = b""
            while True:
                try:
                    part = connection.recv(65536)
                except ConnectionResetError:
                    return found
                if not part:
                    return found
                found += part

    def ask(self, path: str, body: Any) -> bytes:
        """Post a body, and return the answer."""
        return self.send(request(path, json.dumps(body).encode()))


def request(path: str, body: bytes, *more: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "Connection: close", *more, "", ""]).encode() + body

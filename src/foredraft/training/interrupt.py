"""Ctrl-C that waits for a good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether Ctrl-C was pressed since; a second press interrupts at once.

    A step of training that was cut in two would leave half of the weights a step ahead of the others. Signals reach
    the main thread only: in another one, or under a handler of the caller's own, nothing is changed.
    """
    pressed = False
    before = signal.getsignal(signal.SIGINT)

    def press(*_: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)

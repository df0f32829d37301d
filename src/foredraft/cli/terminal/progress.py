"""What is being waited for: a bar on a terminal once it takes longer than a moment, a plain line elsewhere."""

from __future__ import annotations

import threading
from typing import Any, Final, TextIO

from foredraft.system.sizes import size_of

_MOMENT: Final = 1.0  # seconds
_ERASE: Final = "\r\x1b[K"
_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"


class Progress:
    """The ``progress`` callback of ``load``, and a status line for what cannot be measured."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()  # downloads report from their own threads
        self._label: str | None = None
        self._bar: Any = None
        self._status = False
        self._told: set[str] = set()

    def __call__(self, done: int, total: int, label: str) -> None:
        """Show that ``done`` bytes of ``total`` (0: unknown) are there."""
        self._advance(done, total, label, "B")

    def count(self, done: int, total: int, label: str, note: str = "") -> None:
        """Show that ``done`` pieces of work of ``total`` are done, and behind the bar what there is to say of it."""
        self._advance(done, total, label, "", note)

    def _advance(self, done: int, total: int, label: str, unit: str, note: str = "") -> None:
        with self._lock:
            if label != self._label:
                self._close()
                self._label = label
                self._begin(total, unit)
            if self._bar is not None:
                self._bar.total = total or None
                if note:
                    self._bar.set_postfix_str(note, refresh=False)
                self._bar.update(done - self._bar.n)
                if total and done >= total:
                    self._close()
                    self._label = label  # told once more, it is still over

    def status(self, text: str) -> None:
        """Show ``text`` on a terminal until something else is shown."""
        with self._lock:
            self._close()
            self._show(text)

    def close(self) -> None:
        """Take away what is shown."""
        with self._lock:
            self._close()

    def _begin(self, total: int, unit: str) -> None:
        if not self._stream.isatty():
            if not unit and self._label in self._told:
                return  # work that goes on after a line of its result
            self._told.add(str(self._label))
            size = f" ({size_of(total)})" if total and unit else ""
            self._stream.write(f"foredraft: {self._label}{size}\n")
            self._stream.flush()
            return
        from tqdm import tqdm

        self._show(f"{self._label} …")  # until the bar takes its place
        self._bar = tqdm(
            total=total or None,
            desc=self._label,
            unit=unit,
            unit_scale=bool(unit),
            delay=_MOMENT,
            leave=False,
            dynamic_ncols=True,
            file=self._stream,
        )

    def _show(self, text: str) -> None:
        if self._stream.isatty():
            self._stream.write(f"{_ERASE}{_DIM}{text}{_PLAIN}")
            self._stream.flush()
            self._status = True

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._status:
            self._stream.write(_ERASE)
            self._stream.flush()
            self._status = False
        self._label = None

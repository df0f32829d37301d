"""Chromium without a window, driven through its own debugging protocol over a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9}
# the browser reads from its file 3 and writes to 4
_START = (
    "import os, sys; [os.dup2(int(a), 20 + i) for i, a in enumerate(sys.argv[1:3])]; os.dup2(20, 3); os.dup2(21, 4)"
)
_FLAGS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def find() -> str | None:
    """Return a browser of the Chromium kind, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Browser:
    """One browser with one page at a time. Every wait has an end."""

    def __init__(self, path: str, profile: Path, seconds: float = 30.0) -> None:
        theirs, self._write = os.pipe()
        self._read, answers = os.pipe()
        start = f"{_START}; os.execv(sys.argv[3], sys.argv[3:])"
        words = [sys.executable, "-c", start, str(theirs), str(answers), path, *_FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            [*words, "about:blank"], pass_fds=(theirs, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs)
        os.close(answers)
        self._seconds = seconds
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self._target: str | None = None
        self.said: list[str] = []  # by the page's console, and of what its policy refused

    def close(self) -> None:
        self._send("Browser.close", {}, None)
        self._process.wait(self._seconds)
        os.close(self._write)
        os.close(self._read)

    def open(self, address: str, width: int = 1280, height: int = 800, dark: bool = False, still: bool = False) -> None:
        """Open a page of its own, without what others left behind."""
        if self._target is not None:
            self.call("Target.closeTarget", top=True, targetId=self._target)
        self.said.clear()
        context = self.call("Target.createBrowserContext", top=True)["browserContextId"]
        made = self.call("Target.createTarget", top=True, url="about:blank", browserContextId=context)
        self._target = made["targetId"]
        attached = self.call("Target.attachToTarget", top=True, targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        small = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **small)
        features = {
            "color-scheme": "dark" if dark else "light",
            "reduced-motion": "reduce" if still else "no-preference",
        }
        media = [{"name": f"prefers-{name}", "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=media)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.call("Page.navigate", url=address)
        loaded = "document.readyState === 'complete' && location.href !== 'about:blank'"
        # a page may be there for a moment before it has been told of its screen
        self.wait(f"{loaded} && document.documentElement.clientWidth === {width}")

    def run(self, script: str) -> Any:
        """Return what an expression, or the promise that it gives, comes to."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, script: str) -> Any:
        """Return what an expression comes to as soon as that is something."""
        end = time.monotonic() + self._seconds
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"this never came true: {script}\n{self.said}"
            time.sleep(0.02)
        return found

    def text(self, selector: str) -> str:
        """Return the text that the page holds at a place."""
        found = self.run(f"document.querySelector({json.dumps(selector)}).textContent")
        assert isinstance(found, str)
        return found

    def click(self, selector: str) -> None:
        """Click as a mouse does: in the middle, on whatever lies there."""
        place = f"document.querySelector({json.dumps(selector)})"
        x, y = self.run(
            f"{place}.scrollIntoView({{block: 'nearest'}}), (({{x, y, width, height}}) =>"
            f" [x + width / 2, y + height / 2])({place}.getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, selector: str, text: str) -> None:
        """Write into an input, in place of what it holds."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.run("document.activeElement.select()")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.run("document.activeElement.value = ''")

    def press(self, key: str, ctrl: bool = False) -> None:
        """Press a key, and let it go."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 2 if ctrl else 0}
        if key == "Enter" and not ctrl:
            code["text"] = "\r"
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **code)

    def picture(self) -> bytes:
        """Return what can be seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def call(self, method: str, top: bool = False, **parameters: Any) -> dict[str, Any]:
        """Call the protocol; ``top`` is for the browser, else it is for the page."""
        number = self._send(method, parameters, None if top else self._session)
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Log.entryAdded":
            self.said.append(parameters["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.said.append(str(parameters["exceptionDetails"]))
        elif message.get("method") == "Runtime.consoleAPICalled":
            self.said.append(str(parameters["args"]))

    def _send(self, method: str, parameters: dict[str, Any], session: str | None) -> int:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return self._last

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + self._seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser says nothing"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

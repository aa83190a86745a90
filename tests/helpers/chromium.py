"""A headless Chromium that a test can look at and use, over the DevTools protocol.

The protocol's own pipe (``--remote-debugging-pipe``: descriptors 3 and 4, messages that end in a zero byte) needs no
port, no socket and no library.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ABSENT = "no Chromium on this machine: install Debian's package chromium, or set WORKSPAN_TEST_CHROMIUM"
PATIENCE_SECONDS = 60.0

_START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium wants fixed descriptors; a child of our own puts them there."""


def find_chromium() -> str | None:
    """Path of the browser; ``None``: there is none."""
    named = os.environ.get("WORKSPAN_TEST_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page. Everything that it asks of the network is noted in :attr:`requests`."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        self.errors: list[str] = []
        """Exceptions of scripts, and what the page's policy or the console complained about."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol."""
        return self._browser.call(method, params, self._session)

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a page and wait until it stands."""
        self._browser.loaded.discard(self._session)
        self.call("Page.navigate", url=path.as_uri() + fragment)
        self._browser.wait(lambda: self._session in self._browser.loaded)

    def js(self, text: str) -> Any:
        """Evaluate a piece of JavaScript; its value is what JSON can carry."""
        told = self.call("Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise AssertionError(f"{text}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def text(self, selector: str) -> str:
        """Text of the first element that the selector finds."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str, x: float | None = None, y: float | None = None) -> None:
        """Click an element with the mouse: at its middle, or so many pixels from its corner."""
        where = json.dumps(selector)
        self.js(f"document.querySelector({where}).scrollIntoView({{block: 'center'}})")
        box = self.js(f"(b => [b.x, b.y, b.width, b.height])(document.querySelector({where}).getBoundingClientRect())")
        at = {
            "x": box[0] + (box[2] / 2 if x is None else x),
            "y": box[1] + (box[3] / 2 if y is None else y),
            "button": "left",
            "clickCount": 1,
        }
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **at)

    def press(self, *keys: str) -> None:
        """Press and release keys, by the names that events give them."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Tab": 9}
        codes |= {"Home": 36, "End": 35, "PageUp": 33, "PageDown": 34}
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])


class Browser:
    """The process and its pipe."""

    def __init__(self, path: str, profile: Path) -> None:
        out_read, out_write = os.pipe()
        in_read, in_write = os.pipe()
        options = (
            "--headless=new",
            "--no-sandbox",  # containers have no user namespaces; the pages are the tests' own
            "--disable-gpu",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--disable-dev-shm-usage",
            "--force-device-scale-factor=1",
            "--window-size=1280,1000",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "about:blank",
        )
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", _START, str(in_read), str(out_write), path, *options],
            pass_fds=(in_read, out_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(in_read)
        os.close(out_write)
        self._to, self._from = in_write, out_read
        self._rest = b""
        self._number = 0
        self._answers: dict[int, Any] = {}
        self.loaded: set[str] = set()
        self._tabs: dict[str, Tab] = {}

    def tab(self) -> Tab:
        """Open a page of its own."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._tabs[session] = tab = Tab(self, session)
        return tab

    def call(self, method: str, params: dict[str, Any], session: str | None = None) -> Any:
        """Send a message and wait for its answer."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        self.wait(lambda: number in self._answers)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def wait(self, done: Any) -> None:
        """Read messages until *done* says so."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not done():
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise AssertionError("Chromium did not answer")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise AssertionError("Chromium has gone")
            *messages, self._rest = (self._rest + data).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        session, params = message.get("sessionId", ""), message.get("params", {})
        tab = self._tabs.get(session)
        match message.get("method"):
            case None:
                self._answers[message["id"]] = message
            case "Page.loadEventFired":
                self.loaded.add(session)
            case "Network.requestWillBeSent" if tab is not None:
                tab.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown" if tab is not None:
                tab.errors.append(str(params["exceptionDetails"])[:500])
            case "Log.entryAdded" if tab is not None:
                tab.errors.append(str(params["entry"])[:500])

    def close(self) -> None:
        """End the process with everything that it started."""
        os.close(self._to)  # which it takes for a request to leave
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._from)


@contextmanager
def chromium(path: str, profile: Path) -> Iterator[Browser]:
    """Run a browser."""
    browser = Browser(path, profile)
    try:
        yield browser
    finally:
        browser.close()

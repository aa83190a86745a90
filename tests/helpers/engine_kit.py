"""A tiny driver for any engine, and gates that let a test and a block wait for each other without sleeping."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from workspan.engines import Engine, Job
from workspan.grid import Layout
from workspan.schedule.events import Ended, Event, Ready, Returned

SECONDS = 60.0
"""Longest wait for anything; only a broken engine needs it."""


def line(n: int = 100) -> Layout:
    """Return a 1-d layout of *n* blocks of 10, each with a margin of 2."""
    return Layout((-2,), (10 * n + 4,), (-2,), (14,), (0,), (10,))


class Run:
    """Drives an engine by hand and keeps what it reported."""

    def __init__(self, engine: Engine, job: Job) -> None:
        self.engine = engine
        self.events: list[Event] = []
        """All that were looked at."""
        self._unseen: deque[Event] = deque()
        engine.open(job)

    def start(self, worker: int = 0, task: int = 0) -> None:
        """Start a worker and wait until it is ready."""
        self.engine.start_worker(worker, task)
        event = self.until(lambda e: e.worker == worker)
        assert event == Ready(worker), event

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        """Poll until an event is there that is *wanted*, and look at no later one."""
        end = time.monotonic() + SECONDS
        while True:
            while self._unseen:
                event = self._unseen.popleft()
                self.events.append(event)
                if wanted(event):
                    return event
            left = end - time.monotonic()
            assert left > 0, f"no such event in {SECONDS} s; there were {self.events}"
            self._unseen.extend(self.engine.poll(left))

    def returned(self, worker: int = 0) -> Returned:
        """Wait for the next result of *worker*."""
        event = self.until(lambda e: e.worker == worker)
        assert isinstance(event, Returned), event
        return event

    def ended(self, worker: int = 0) -> Ended:
        """Wait for the end of *worker*."""
        event = self.until(lambda e: e.worker == worker and isinstance(e, Ended))
        assert isinstance(event, Ended)
        return event

    def block(self, index: int = 0, worker: int = 0) -> Returned:
        """Send a block and wait for its result."""
        self.engine.send(worker, index)
        return self.returned(worker)

    def of(self, worker: int) -> list[Event]:
        """All events of *worker* so far."""
        return [event for event in self.events if event.worker == worker]


class Gate:
    """A named pipe: :meth:`pass_through` waits until somebody opens the other side, with a word to tell."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(self.path)

    def wait(self) -> str:
        """Wait for the worker's :meth:`tell` and return its word."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            data = b""
            end = time.monotonic() + SECONDS
            while not data.endswith(b"\n"):
                left = end - time.monotonic()
                assert left > 0, f"nobody came to {self.path} in {SECONDS} s"
                if select.select([descriptor], [], [], left)[0]:
                    data += os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
        return data.decode().strip()

    def open(self) -> None:
        """Let the worker's :func:`hold` go on."""
        descriptor = os.open(self.path, os.O_WRONLY)
        os.close(descriptor)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait until *condition* holds in the world outside, where nothing can tell us."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not so after {seconds} s: {what}"
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    """Whether no process *pid* runs any more; a zombie is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True

"""The looking end: finds programs that run, connects to all that are wanted, and tells what they say.

One thread, which is the caller's. A program that appears, ends, stalls or talks nonsense is an event like any other.
"""

from __future__ import annotations

import math
import selectors
import socket
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from workspan.errors import WireError
from workspan.live import folder as folders
from workspan.live.frames import FrameReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["Closed", "Event", "Opened", "Program", "Received", "Trouble", "Viewer"]

LOOK_SECONDS = 0.5
"""How often the folders are looked into for new programs."""
RETRY_SECONDS = 1.0
"""Pause before a program that did not answer, or that was broken off, is tried again; doubles each time."""
MOST_RETRY_SECONDS = 30.0
_READ_BYTES = 1 << 16
_MOST_AT_ONCE = 1 << 18
_MOST_NAME = 100


@dataclass(frozen=True)
class Program:
    """A running program, for as long as it is connected."""

    number: int
    """Of the connection, counted from 1."""
    pid: int
    script: str


@dataclass(frozen=True)
class Opened:
    """A program has been found."""

    program: Program


@dataclass(frozen=True)
class Received:
    """A program has said something."""

    program: Program
    frame: dict[str, Any]
    at: float
    """When, on the viewer's clock, in seconds."""


@dataclass(frozen=True)
class Closed:
    """A program is seen no more."""

    program: Program
    reason: str


@dataclass(frozen=True)
class Trouble:
    """Something went wrong that is worth a line."""

    text: str


Event = Opened | Received | Closed | Trouble


class Viewer:
    """Looks at the programs of this user.

    Parameters
    ----------
    name
        Only programs whose script is called so, with or without its ending, and of others only the records of a log
        handler of that name. May be a pattern with ``*``.
    pid
        Only this process.
    places
        Folders to look in; ``None``: those in which programs open their sockets.
    clock
        Monotonic, in seconds.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        pid: int | None = None,
        places: Sequence[Path] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._pid = pid
        self._places = folders.places() if places is None else list(places)
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._links: dict[Path, _Link] = {}
        self._retry: dict[Path, tuple[float, float]] = {}
        self._look_due = -math.inf
        self._count = 0
        self._skipped: list[folders.Candidate] = []

    def poll(self, timeout: float) -> list[Event]:
        """Return what has happened; if nothing has, wait for it *timeout* seconds at most."""
        events: list[Event] = []
        now = self._clock()
        if now >= self._look_due:
            self._look_due = now + LOOK_SECONDS
            events += self._look()
        wait = 0.0 if events else max(0.0, min(timeout, self._look_due - now))
        if not self._links:  # not all selectors can wait for nothing
            if wait:
                time.sleep(wait)
            return events
        for key, _ in self._selector.select(wait):
            events += self._hear(key.data)
        return events

    def is_settled(self) -> bool:
        """Whether all programs that are connected have told their whole state."""
        return all(link.is_told for link in self._links.values())

    @property
    def others(self) -> list[folders.Candidate]:
        """Programs that run and are not wanted, as far as is known."""
        return self._skipped + [link.candidate for link in self._links.values() if not link.is_wanted]

    def close(self) -> None:
        """Disconnect from all programs."""
        for link in list(self._links.values()):
            self._drop(link)
        self._selector.close()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- finding ---------------------------------------------------------------------------------------------------

    def _look(self) -> list[Event]:
        events: list[Event] = []
        found = [candidate for place in self._places for candidate in folders.candidates(place)]
        self._skipped = []
        for candidate in found:
            if self._pid is not None and candidate.pid != self._pid:
                if folders.is_running(candidate.pid):
                    self._skipped.append(candidate)
            elif (
                candidate.path not in self._links
                and self._retry.get(candidate.path, (0.0, -math.inf))[1] <= self._clock()
            ):
                events += self._connect(candidate)
        here = {candidate.path for candidate in found}
        self._retry = {path: retry for path, retry in self._retry.items() if path in here}
        return events

    def _connect(self, candidate: folders.Candidate) -> Iterator[Event]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(str(candidate.path))
            if not folders.same_user(connection):
                raise PermissionError
        except PermissionError:
            connection.close()
            self._back_off(candidate.path)
            yield Trouble(f"{candidate.path} belongs to another user's process")
            return
        except OSError:  # it has ended, or is busy with too many others
            connection.close()
            self._back_off(candidate.path)
            if not folders.is_running(candidate.pid):
                folders.remove_stale(candidate.path)
            return
        link = self._links[candidate.path] = _Link(candidate, connection)
        self._selector.register(connection, selectors.EVENT_READ, link)

    def _back_off(self, path: Path) -> None:
        pause = min(2 * self._retry.get(path, (RETRY_SECONDS / 2, 0.0))[0], MOST_RETRY_SECONDS)
        self._retry[path] = (pause, self._clock() + pause)

    def _drop(self, link: _Link) -> None:
        self._selector.unregister(link.socket)
        link.socket.close()
        del self._links[link.candidate.path]

    # -- hearing ---------------------------------------------------------------------------------------------------

    def _hear(self, link: _Link) -> Iterator[Event]:
        heard = 0
        reason = ""
        try:
            while heard < _MOST_AT_ONCE and not reason:
                data = link.socket.recv(_READ_BYTES)
                heard += len(data)
                for frame in link.reader.feed(data):
                    yield from self._take(link, frame)
                if not data:
                    reason = self._reason(link)
        except BlockingIOError:
            pass
        except WireError as error:
            reason = "protocol error"
            yield Trouble(f"{link.title}: {error}")
        except OSError as error:
            reason = str(error)
        if reason:
            self._drop(link)
            self._back_off(link.candidate.path)
            if link.program is not None and link.is_wanted:
                yield Closed(link.program, reason)

    def _reason(self, link: _Link) -> str:
        """Why a program is at its end."""
        if link.has_left:
            return "ended"
        return "hung up" if folders.is_running(link.candidate.pid) else "was killed"

    def _take(self, link: _Link, frame: dict[str, Any]) -> Iterator[Event]:
        kind = frame["kind"]
        if kind == "error":
            raise WireError(str(frame.get("message"))[:200])
        if link.program is None:
            if kind != "hello":
                raise WireError("protocol error: the first frame does not say who it is")
            self._count += 1
            script = frame.get("script")
            script = script[:_MOST_NAME] if isinstance(script, str) and script else link.candidate.name
            link.program = Program(self._count, link.candidate.pid, script)
            link.is_all_wanted = self._name is None or _matches(script, self._name)
        if kind == "bye":
            link.has_left = True
        if kind == "sync" and frame.get("stage") == "end":
            link.is_told = True
            self._retry.pop(link.candidate.path, None)
        if not (link.is_all_wanted or self._is_wanted_log(frame)):
            return
        if not link.is_wanted:
            link.is_wanted = True
            yield Opened(link.program)
        yield Received(link.program, frame, link.time_of(frame, self._clock()))

    def _is_wanted_log(self, frame: dict[str, Any]) -> bool:
        handler = frame.get("handler")
        is_log = frame["kind"] in ("log", "handler") and isinstance(handler, str)
        return is_log and self._name is not None and fnmatchcase(str(handler), self._name)


class _Link:
    """A connection to a program."""

    def __init__(self, candidate: folders.Candidate, connection: socket.socket) -> None:
        self.candidate = candidate
        self.socket = connection
        self.reader = FrameReader()
        self.program: Program | None = None
        self.is_all_wanted = False
        self.is_wanted = False
        self.is_told = False
        self.has_left = False
        self._offset = math.inf

    @property
    def title(self) -> str:
        script = self.candidate.name if self.program is None else self.program.script
        return f"{script} (pid {self.candidate.pid})"

    def time_of(self, frame: dict[str, Any], now: float) -> float:
        """Return when the frame was made, on the viewer's clock: the quickest frame so far shows how the two differ."""
        mono = frame.get("mono")
        if not isinstance(mono, (int, float)) or isinstance(mono, bool):
            return now
        if (isinstance(mono, int) and abs(mono) > 2**63) or not math.isfinite(mono):
            return now
        self._offset = min(self._offset, now - mono)
        return min(now, mono + self._offset)


def _matches(script: str, name: str) -> bool:
    return any(fnmatchcase(known, name) for known in (script, script.removesuffix(".py"), folders.safe_name(script)))

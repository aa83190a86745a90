"""What the driver does with the logs of live workers: it cuts those that grow too long, and shows what is appended."""

from __future__ import annotations

import sys
from contextlib import suppress
from io import TextIOWrapper
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspan.engines.logs import WorkerLog
    from workspan.engines.trim import Cut, LogPart

CUT_SECONDS = 1.0
"""How often the size of a live worker's logs is looked at."""
SHOW_SECONDS = 0.1
"""How often what was appended is shown."""
READ_BYTES = 256 << 10
"""Most that is read of one file at a time."""
MAX_LINE_BYTES = 8 << 10
"""A line without an end is held back up to this length."""
MAX_LAST_BYTES = 16 << 20
"""Most that is shown of a file at its worker's end; of more, the end."""


class Follower:
    """Reads what a worker appends to a log file, whole lines where possible.

    Parameters
    ----------
    part
        The worker's part of the file.
    separator
        The line at its beginning that the driver wrote; it is not shown. May be empty.
    """

    def __init__(self, part: LogPart, separator: bytes = b"") -> None:
        self._part = part
        self._separator = separator
        self._position = part.start
        self._held = b""
        self._notes = b""

    def read(self) -> bytes:
        """Return the lines appended since the last call, at most about ``READ_BYTES``; empty if there are none.

        An unfinished last line is held back until it ends or is longer than ``MAX_LINE_BYTES``.
        """
        notes, self._notes = self._notes, b""
        data = self._held + self._next_piece()
        whole = data.rfind(b"\n") + 1
        if len(data) - whole > MAX_LINE_BYTES:
            whole = len(data)
        self._held = data[whole:]
        return notes + data[:whole]

    def read_rest(self) -> Iterator[bytes]:
        """Yield all that is left when the worker has ended, in pieces; of very much, the last ``MAX_LAST_BYTES``."""
        end = self._size()
        if end - self._position > MAX_LAST_BYTES:
            self._skip(end - self._position - MAX_LAST_BYTES)
            self._position = end - MAX_LAST_BYTES
        before = -1
        while before != self._position < end:  # not beyond, since others may append, nor if nothing can be read
            before = self._position
            yield self.read()
        if self._held or self._notes:
            yield self._notes + (self._held + b"\n" if self._held else b"")
            self._held = self._notes = b""

    def moved(self, cut: Cut) -> None:
        """Go on at the right place after a cut of the file; what is gone and was not read is told of."""
        if self._position >= cut.end:
            self._position -= cut.end - cut.moved_to
        elif self._position > cut.begin:
            self._skip(cut.end - self._position)
            self._position = cut.moved_to

    def _next_piece(self) -> bytes:
        size = self._size()
        if size < self._position:  # somebody emptied the file
            self._position = 0
        if size == self._position:
            return b""
        try:
            with self._part.path.open("rb", buffering=0) as file:
                file.seek(self._position)
                piece = file.read(READ_BYTES)
        except OSError:
            return b""
        is_first = self._position == self._part.start
        self._position += len(piece)
        return piece.removeprefix(self._separator) if is_first else piece

    def _size(self) -> int:
        try:
            return self._part.size()
        except OSError:  # removed, or replaced: there is nothing more to read
            return self._position

    def _skip(self, size: int) -> None:
        if self._held:
            self._notes += self._held + b"\n"
            self._held = b""
        self._notes += f"---- {size:,} bytes of {self._part.path.name} are not shown here ----\n".encode()


class Screen:
    """One of the driver's streams, shared by the workers whose output is shown on it.

    Parameters
    ----------
    name
        ``"stdout"`` or ``"stderr"``; whatever ``sys`` has under this name at the time.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._unfinished: Follower | None = None

    def show(self, data: bytes, source: Follower) -> None:
        """Write *data*; a line that another source left unfinished is ended first. A broken stream is no error."""
        if not data:
            return
        if self._unfinished not in (None, source):
            data = b"\n" + data
        self._unfinished = None if data.endswith(b"\n") else source
        # Whatever stands in for a stream may raise anything, and nobody needs this copy to go on.
        with suppress(Exception):
            _write(getattr(sys, self._name), data)


class LogWatch:
    """Looks after the logs of the workers that live.

    Call :meth:`tend` when :attr:`due` has come. Nothing here raises for a file or a stream that fails.

    Parameters
    ----------
    show
        Whether what workers write is shown on the driver's streams too, within ``SHOW_SECONDS``. A stream whose
        reader stands still holds the driver up, as any print does.
    """

    def __init__(self, *, show: bool = False) -> None:
        self.due = inf
        """When to call :meth:`tend` next, on the caller's monotonic clock, in seconds."""
        self._shows = show
        self._logs: dict[WorkerLog, tuple[Follower, Follower]] = {}
        self._screens = Screen("stdout"), Screen("stderr")
        self._cut_due = inf

    def add(self, log: WorkerLog, now: float) -> None:
        """Begin to look after *log*, whose worker has been started."""
        self._logs[log] = Follower(log.out_part, log.separator), Follower(log.err_part, log.separator)
        self._cut_due = min(self._cut_due, now + CUT_SECONDS)
        self.due = min(self.due, now + (SHOW_SECONDS if self._shows else CUT_SECONDS))

    def tend(self, now: float) -> None:
        """Show what was appended, and cut what has become too long."""
        if now < self.due:
            return
        if self._shows:
            for followers in self._logs.values():
                for screen, follower in zip(self._screens, followers, strict=True):
                    screen.show(follower.read(), follower)
        if now >= self._cut_due:
            for log in self._logs:
                self._cut(log)
            self._cut_due = now + CUT_SECONDS
        self.due = min(self._cut_due, now + SHOW_SECONDS) if self._shows else self._cut_due

    def end(self, log: WorkerLog) -> None:
        """Show the rest of *log*, whose worker has ended, cut it for the last time, and forget it."""
        followers = self._logs.get(log)
        if followers is None:
            return
        if self._shows:
            for screen, follower in zip(self._screens, followers, strict=True):
                for data in follower.read_rest():
                    screen.show(data, follower)
        self._cut(log)
        del self._logs[log]
        if not self._logs:
            self.due = self._cut_due = inf

    def _cut(self, log: WorkerLog) -> None:
        for cut, follower in zip(log.trim(), self._logs[log], strict=True):
            if cut is not None:
                follower.moved(cut)


def _write(stream: Any, data: bytes) -> None:
    if type(stream) is TextIOWrapper:
        # As they are, bytes that are no text too. Stand-ins (of notebooks, progress bars, tests) want text instead.
        stream.flush()
        view = memoryview(data)
        while view:  # with "python -u" the buffer is none, and may take less than it is given
            view = view[stream.buffer.write(view) or len(view) :]
        stream.buffer.flush()
    else:  # or there is none, and this raises
        text = data.decode(errors="replace")
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()

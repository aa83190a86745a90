"""The listening end in a running program: one daemon thread that tells viewers what they want to see.

The program only puts records into a queue. The thread sends them, a few at a time and with rests between, so that it
takes little of a program that reports all the time; what is more than that is left out, the oldest first, and viewers
then get the whole state anew. A viewer that does not read is passed over until it does.

A state that is sent anew is put between ``sync`` frames of the stages ``begin`` and ``end``: what a viewer knows and is
not told again in between is over.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from workspan.live.folder import same_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    Snapshot = Callable[[], list[dict[str, Any]]]

__all__ = ["MOST_QUEUED", "MOST_VIEWERS", "REST_SECONDS", "TELL_SECONDS", "THREAD_NAME", "Server"]

THREAD_NAME = "workspan-live"
MOST_QUEUED = 1000
"""Records that wait to be sent; one more takes the place of the oldest."""
MOST_VIEWERS = 16
REST_SECONDS = 0.05
"""Pause after records were sent: with :data:`_MOST_AT_ONCE` it bounds what the thread takes of the program."""
_MOST_AT_ONCE = 50
_MOST_IN_STATE = 500
_MOST_UNSENT = 1 << 20
"""Bytes that wait for one viewer, before it is passed over."""
TELL_SECONDS = 0.25
"""How often snapshots that are to be told again are taken, while anybody reads them."""
_SYNC_SECONDS = 1.0
"""Least time between two whole states for the reason that records were left out."""
_SEND_BYTES = 1 << 16


class _Viewer:
    """A connected viewer, and what has not been sent to it yet."""

    __slots__ = ("is_behind", "socket", "unsent", "writing")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.unsent = bytearray()
        self.is_behind = False
        """Frames have been left out: it gets the whole state when all of ``unsent`` has been read."""
        self.writing = False


class Server:
    """Tells viewers what this program does.

    Parameters
    ----------
    listener, path
        As ``folder.bind`` gives them; the server closes and removes them.
    hello
        What identifies this program; goes into the first frame, and ``pid`` and ``script`` of it into all.
    snapshots
        Called in the thread for the whole state; may change meanwhile.
    repeated
        Those of them that are called again and again, for what changes too often to be told of each time.
    report
        Called in the thread with what a snapshot raised.
    clock
        Monotonic, in seconds.
    """

    def __init__(
        self,
        listener: socket.socket,
        path: Path,
        hello: dict[str, Any],
        snapshots: list[Snapshot],
        repeated: list[Snapshot],
        *,
        report: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.watched = False
        """Somebody is connected."""
        self.dropped = 0
        """Records that were left out so far."""
        self._listener = listener
        self._hello = hello
        self._marks = {"pid": hello["pid"], "script": hello["script"]}
        self._snapshots = snapshots
        self._repeated = repeated
        self._tell_due = 0.0
        self._report = report
        self._clock = clock
        self._queue: deque[tuple[int, float, dict[str, Any]]] = deque(maxlen=MOST_QUEUED)
        self._numbers = itertools.count()
        self._expected = 0
        self._lost = 0
        self._sync_due = 0.0
        self._awake = False
        self._closing: float | None = None
        self._viewers: dict[socket.socket, _Viewer] = {}
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._bell, selectors.EVENT_READ, self._answer_bell)
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None

    # -- called by the program -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen, or go on after :meth:`halt`."""
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def halt(self, timeout: float) -> None:
        """End the thread, waiting *timeout* seconds at most; viewers stay connected and the queue is kept."""
        thread, self._thread = self._thread, None
        self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def publish(self, record: dict[str, Any]) -> None:
        """Queue a record for all viewers. It must not be changed afterwards."""
        self._queue.append((next(self._numbers), self._clock(), record))
        if not self._awake:
            self._ring()

    def is_own_thread(self) -> bool:
        """Whether this is the thread that sends."""
        return threading.current_thread() is self._thread

    def close(self, timeout: float) -> None:
        """Send what is queued, for *timeout* seconds at most, and listen no more."""
        thread = self._thread
        self._closing = self._clock() + timeout
        self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * timeout)

    def forget(self) -> None:
        """Close the descriptors that a forked child has inherited, and nothing else: they are its parent's."""
        # Unregistering would end the parent's watch: the two share one epoll.
        self._selector.close()
        for inherited in (self._listener, self._bell, self._ringer, *self._viewers):
            inherited.close()

    def _ring(self) -> None:
        self._awake = True
        with suppress(OSError):  # full: it will be heard anyway; closed: nobody is there to hear it
            self._ringer.send(b"\0")

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._turn:  # one thread that was told to stop may not have noticed yet
            try:
                wait: float | None = None
                while self.is_own_thread() and not self._is_over():
                    for key, mask in self._selector.select(wait):
                        key.data(mask)
                    # In this order: what is queued from now on rings, what was queued before is taken.
                    self._awake = False
                    self._tell_again()
                    if self._send_queued():
                        wait = 0.0
                        self._rest()
                    else:
                        wait = self._wait()
            except Exception as error:  # a fault of this module must not hurt the program
                self._report(error)
                self._closing = self._clock()
            if self._closing is not None:
                self._end()

    def _wait(self) -> float | None:
        """How long nothing will happen unless somebody comes, or rings."""
        if self._closing is not None:
            return max(0.0, self._closing - self._clock())
        return max(0.0, self._tell_due - self._clock()) if self._repeated and self._is_read() else None

    def _is_read(self) -> bool:
        return not all(viewer.is_behind for viewer in self._viewers.values())

    def _tell_again(self) -> None:
        """Tell how things stand of which no single change is told, if it is time and somebody reads it."""
        now = self._clock()
        if self._repeated and now >= self._tell_due and self._is_read():
            self._tell_due = now + TELL_SECONDS
            records = self._taken(self._repeated)
            if records:
                self._send(self._viewers.values(), [self._frame(record, now) for record in records])

    def _rest(self) -> None:
        """Serve viewers for some time, but not the queue, and let no bell be rung."""
        self._awake = True
        until = self._clock() + REST_SECONDS
        while self._closing is None and self.is_own_thread() and (left := until - self._clock()) > 0:
            for key, mask in self._selector.select(left):
                key.data(mask)

    def _is_over(self) -> bool:
        if self._closing is None:
            return False
        waiting = any(viewer.unsent and not viewer.is_behind for viewer in self._viewers.values())
        return self._clock() >= self._closing or not (self._queue or waiting)

    def _end(self) -> None:
        self._send(self._viewers.values(), [self._frame({"kind": "bye"}, self._clock())])
        for viewer in list(self._viewers.values()):
            self._drop(viewer)
        with suppress(OSError):
            self.path.unlink()
        self._selector.close()
        for one in (self._listener, self._bell, self._ringer):
            one.close()

    def _answer_bell(self, mask: int) -> None:
        with suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass

    def _send_queued(self) -> bool:
        """Send some of the queue; whether there was anything to do."""
        frames: list[bytes] = []
        is_read = self._is_read()
        while self._queue and len(frames) < _MOST_AT_ONCE:
            _, stamp, record = self._take()
            frames.append(self._frame(record, stamp) if is_read else b"")
        if frames:
            self._send(self._viewers.values(), frames)
        if self._lost and is_read and self._clock() >= self._sync_due:
            self._sync_due = self._clock() + _SYNC_SECONDS
            self._send_anew()
        return bool(frames or (self._lost and is_read))

    def _take(self) -> tuple[int, float, dict[str, Any]]:
        """Take the oldest record, and count what had to go from in front of it."""
        taken = self._queue.popleft()
        gone = taken[0] - self._expected
        self._expected = taken[0] + 1
        self._lost += gone
        self.dropped += gone
        return taken

    def _send_anew(self) -> None:
        """Give all viewers the whole state, which makes the steps in the queue old news."""
        frames: list[bytes] = []
        while self._queue:
            _, stamp, record = self._take()
            if record.get("kind", "step") == "step":
                self.dropped += 1
            else:
                frames.append(self._frame(record, stamp))
        self._lost = 0
        self._send(self._viewers.values(), frames + self._state())

    def _frame(self, record: dict[str, Any], stamp: float) -> bytes:
        from workspan.live.frames import encode  # with the first viewer: every run makes a server, few are watched

        return encode({"kind": "step", **record, **self._marks, "mono": stamp})

    def _state(self) -> list[bytes]:
        """Frames of the whole state."""
        records = self._taken(self._snapshots)
        now = self._clock()
        begin: dict[str, Any] = {"kind": "sync", "stage": "begin", "dropped": self.dropped}
        end: dict[str, Any] = {"kind": "sync", "stage": "end", "more": max(0, len(records) - _MOST_IN_STATE)}
        return [self._frame(record, now) for record in (begin, *records[:_MOST_IN_STATE], end)]

    def _taken(self, snapshots: list[Snapshot]) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        for snapshot in list(snapshots):
            try:
                records += snapshot()
            except Exception as error:
                self._report(error)
        return records

    # -- viewers -------------------------------------------------------------------------------------------------------

    def _accept(self, mask: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor or no memory left: the program needs them more
            time.sleep(REST_SECONDS)
            return
        try:
            connection.setblocking(False)
            if not same_user(connection):
                raise PermissionError
        except OSError:
            connection.close()
            return
        if len(self._viewers) >= MOST_VIEWERS:
            self._say_last(connection, f"{MOST_VIEWERS} viewers are connected, which is the limit")
            return
        viewer = self._viewers[connection] = _Viewer(connection)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._serve, viewer))
        self.watched = True  # before the snapshot: what begins after it is told
        self._send([viewer], [self._frame({**self._hello, "kind": "hello"}, self._clock()), *self._state()])

    def _serve(self, viewer: _Viewer, mask: int) -> None:
        if mask & selectors.EVENT_READ:
            try:
                heard = viewer.socket.recv(1)
            except BlockingIOError:
                heard = None
            except OSError:
                heard = b""
            if heard is not None:  # viewers have nothing to say: it is the end, or no viewer
                if heard:
                    self._say_last(viewer.socket, "protocol error: a viewer only listens")
                self._drop(viewer)
                return
        if mask & selectors.EVENT_WRITE:
            self._flush(viewer)

    def _say_last(self, connection: socket.socket, message: str) -> None:
        with suppress(OSError):
            connection.send(self._frame({"kind": "error", "message": message}, self._clock()))
        if connection not in self._viewers:
            connection.close()

    def _send(self, viewers: Iterable[_Viewer], frames: list[bytes]) -> None:
        data = b"".join(frames)
        for viewer in list(viewers):
            if viewer.is_behind:
                continue
            if viewer.unsent and len(viewer.unsent) + len(data) > _MOST_UNSENT:
                viewer.is_behind = True
                continue
            viewer.unsent += data
            self._flush(viewer)

    def _flush(self, viewer: _Viewer) -> None:
        try:
            while viewer.unsent:
                sent = viewer.socket.send(bytes(viewer.unsent[:_SEND_BYTES]))
                del viewer.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(viewer)
            return
        if not viewer.unsent and viewer.is_behind:
            viewer.is_behind = False
            self._send([viewer], self._state())
            return
        if viewer.writing != bool(viewer.unsent):
            viewer.writing = not viewer.writing
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if viewer.writing else 0)
            self._selector.modify(viewer.socket, events, partial(self._serve, viewer))

    def _drop(self, viewer: _Viewer) -> None:
        if self._viewers.pop(viewer.socket, None) is not None:
            self._selector.unregister(viewer.socket)
            viewer.socket.close()
            self.watched = bool(self._viewers)
            if not self.watched:
                self._queue.clear()

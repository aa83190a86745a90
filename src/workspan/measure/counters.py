"""The kernel's counters of this process: read cheaply, and each on its own.

All figures are those of the whole process, every thread included: only they see the work that a block hands to other
threads. The files of ``/proc/self`` are opened at the first measurement and kept, since opening costs more than
reading. A forked child opens its own, because a kept descriptor goes on reporting the parent. What cannot be read is
``None``, never 0 and never an exception, and is told once per process through :mod:`logging`.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from workspan.measure import ticks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LIFETIME", "PER_BLOCK", "Costs", "ProcessCounters", "Snapshot", "Watch"]

PER_BLOCK = "VmHWM reset per block"
LIFETIME = "ru_maxrss, process lifetime"

MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Unit of ``ru_maxrss``, in bytes."""

READ_SIZE = 4096

IO_READ_SIZE = 96
"""Holds the first two lines of ``io``, however large their numbers, and a little of the third."""

PROBE_BYTES = 4 << 20
"""Taken and given back once, to see what the kernel makes of it."""

PROBE_SLACK_BYTES = 1 << 20
"""The kernel's figures of resident memory may differ by so much from one another."""

PERMANENT = (errno.ENOENT, errno.EACCES, errno.EPERM)
"""Why a file is not tried again in this process. Too many open files, for example, will pass."""


Watch = ticks.Watch


class _KeptFile:
    """A file of ``/proc`` that stays open; opened when it is first needed.

    Programs close descriptors that are not theirs (twice, or all of them) and get the same numbers for files of their
    own. So a kept number is trusted for reading only if the text begins as it should, and for writing and closing only
    if it still is the same file.
    """

    __slots__ = ("begins", "dead", "fd", "flags", "identity", "path")

    def __init__(self, path: str, flags: int, begins: bytes = b"") -> None:
        self.path = path
        self.flags = flags
        self.begins = begins
        self.fd = -1
        self.dead = False
        """Not to be tried again."""
        self.identity = (0, 0)

    def open(self) -> None:
        """Open the file, again if need be."""
        self.close()
        self.fd = os.open(self.path, self.flags)
        stat = os.fstat(self.fd)
        self.identity = (stat.st_dev, stat.st_ino)

    def is_open(self) -> bool:
        """Whether the descriptor still is this file's."""
        try:
            stat = os.fstat(self.fd)
        except OSError:
            return False
        return (stat.st_dev, stat.st_ino) == self.identity

    def close(self) -> None:
        """Give the descriptor back, if it is this file's."""
        if self.fd >= 0 and self.is_open():
            os.close(self.fd)
        self.fd = -1


class Snapshot(NamedTuple):
    """Counters at the start of a measurement that took the long way."""

    watch: Watch
    io_read_bytes: int | None
    io_write_bytes: int | None
    cpu_seconds: float | None


class Costs(NamedTuple):
    """What a measurement found; ``None``: this platform cannot tell."""

    cpu_seconds: float | None
    io_read_bytes: int | None
    io_write_bytes: int | None
    peak_rss_bytes: int | None


class ProcessCounters:
    """CPU, I/O and peak memory of this process.

    Thread-safe. Measurements may overlap or nest: the high-water mark of memory belongs to all of them, so each keeps
    what it has seen when another one resets the mark.

    Parameters
    ----------
    proc
        Folder with ``io``, ``status`` and ``clear_refs``.
    getrusage
        ``resource.getrusage``: its first three items are user and system CPU seconds and peak memory.
    maxrss_unit
        Unit of that peak memory, in bytes.
    """

    def __init__(
        self,
        proc: str | os.PathLike[str] = "/proc/self",
        *,
        getrusage: Callable[[int], Any] = resource.getrusage,
        maxrss_unit: int = MAXRSS_UNIT,
    ) -> None:
        self._proc = os.fspath(proc)
        self._getrusage = getrusage
        self._maxrss_unit = maxrss_unit
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._watches: list[Watch] = []
        self._io = _KeptFile(f"{self._proc}/io", os.O_RDONLY, b"rchar:")
        self._status = _KeptFile(f"{self._proc}/status", os.O_RDONLY, b"Name:")
        self._clear_refs = _KeptFile(f"{self._proc}/clear_refs", os.O_WRONLY)
        self._files = (self._io, self._status, self._clear_refs)
        self._told: set[str] = set()
        self._io_counts_itself: bool | None = None  # not known yet
        self._usage_has_mark: bool | None = None  # not known yet
        self.meter: ticks.Meter | None = None
        """Takes a whole measurement, or says that :meth:`start` and :meth:`finish` must; ``None``: always they."""

    def _begin_in_child(self) -> None:
        """Forget what belongs to the process that this one was forked from, a lock that a thread held included."""
        files = self._files
        self._begin()
        for file in files:
            file.close()

    def close(self) -> None:
        """Close the kept files; the next measurement opens them again."""
        with self._lock:
            for file in self._files:
                file.close()

    # -- one measurement -------------------------------------------------------------------------------------------

    def start(self) -> Snapshot | Watch:
        """Reset the high-water mark of memory, then read the other counters, the most sensitive last."""
        if self._pid != os.getpid():
            self._begin_in_child()
        if self.meter is not None and (quick := self.meter.start()) is not None:
            return quick
        if self._usage_has_mark is None:
            self._usage_has_mark = self._look_at_usage()
        watch = self.watch_peak()
        read, write = self.io(after_reading=True)
        self.meter = self._make_meter() if watch.own else None
        return Snapshot(watch, read, write, self.cpu())

    def _make_meter(self) -> ticks.Meter | None:
        mark, status = self._clear_refs, self._status
        if self._io_counts_itself is None or self._getrusage is not resource.getrusage:
            return None
        if not self._usage_has_mark and status.fd < 0 and self._high_water() is None:
            return None
        status_fd = -1 if self._usage_has_mark else status.fd
        return ticks.Meter(
            mark.fd,
            *mark.identity,
            self._io.fd,
            self._io_counts_itself,
            self._maxrss_unit,
            status_fd,
            self._watches,
            self._lock,
        )

    def finish(self, start: Snapshot | Watch) -> Costs:
        """Read the counters, the most sensitive first, and return what was spent since *start*.

        A counter that went backwards (in a forked child, say, which starts at 0) counts as 0.
        """
        if self.meter is not None and (quick := self.meter.finish(start)) is not None:
            return Costs(*quick)
        if isinstance(start, Watch):
            start = Snapshot(start, start.read, start.written, start.seconds)
        watch = start.watch
        cpu, peak = self._usage()
        if self._pid != os.getpid():
            self._begin_in_child()
        read, write = self.io()
        peak = self._ended(watch, peak) if self._usage_has_mark and watch.own and peak else self.peak(watch)
        return Costs(
            None if cpu is None or start.cpu_seconds is None else max(0.0, cpu - start.cpu_seconds),
            None if read is None or start.io_read_bytes is None else max(0, read - start.io_read_bytes),
            None if write is None or start.io_write_bytes is None else max(0, write - start.io_write_bytes),
            peak,
        )

    # -- single counters -------------------------------------------------------------------------------------------

    def cpu(self) -> float | None:
        """Return user and system time of all threads, in seconds."""
        return self._usage()[0]

    def _usage(self) -> tuple[float | None, int | None]:
        """Return CPU time in seconds, and what the kernel says with it of peak memory, in bytes."""
        try:
            user, system, peak = self._getrusage(resource.RUSAGE_SELF)[:3]
            return float(user + system), int(peak) * self._maxrss_unit or None
        except Exception as error:
            self._unknown("CPU time", error)
            return None, None

    def io(self, *, after_reading: bool = False) -> tuple[int | None, int | None]:
        """Return bytes read and written through system calls, whether cached or not.

        Reading the counter is itself a read, which the kernel counts afterwards: *after_reading* includes it.
        """
        try:  # the usual case, cheaply
            data = os.pread(self._io.fd, IO_READ_SIZE, 0)
            key, first, other_key, second, _ = data.split(None, 4)
            own = len(data) if after_reading and self._io_counts_itself else 0
            if key == b"rchar:" and other_key == b"wchar:" and not (after_reading and self._io_counts_itself is None):
                return int(first) + own, int(second)
        except (OSError, ValueError):
            pass
        data = self._text(self._io)
        read = self._number(data, b"rchar:", "bytes read")
        write = self._number(data, b"wchar:", "bytes written")
        if after_reading and read is not None:
            if self._io_counts_itself is None:
                again = self._number(self._text(self._io), b"rchar:", "bytes read")
                self._io_counts_itself = again is not None and again >= read + len(data)
                return self.io(after_reading=True)
            if self._io_counts_itself:
                read += len(data)
        return read, write

    def watch_peak(self) -> Watch:
        """Begin a measurement of peak memory."""
        watch = Watch()
        with self._lock:
            others = tuple(self._watches)
            self._watches.append(watch)  # first: while it is there, no meter resets the mark without looking around
            if others:
                high = self._high_water() or 0
                for other in others:
                    other.seen = max(other.seen, high)
            watch.own = self._reset_mark()
        return watch

    def peak(self, watch: Watch) -> int | None:
        """End a measurement of peak memory; return the peak since its beginning, in bytes.

        Where the mark cannot be reset or read, it is the peak of this process or, if that was higher, of the one that
        started it.
        """
        high = self._high_water() if watch.own else None
        peak = self._ended(watch, high)
        return self._usage()[1] if peak is None else peak

    def _ended(self, watch: Watch, high: int | None) -> int | None:
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)
        return None if high is None else max(high, watch.seen)

    def _look_at_usage(self) -> bool:
        """Try whether ``ru_maxrss`` follows the mark up and down, as it is much cheaper to read than ``VmHWM``.

        It does where the kernel takes it from the mark. But it never falls below the size of the program that this one
        replaced at ``exec``, so a worker of a large driver would be charged with that one's memory.
        """
        with self._lock:
            if self._watches or not self._reset_mark():
                return False
            before, mark = self._usage()[1], self._high_water()
            if before is None or mark is None or before > mark + PROBE_SLACK_BYTES:
                return False
            try:
                from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap

                with mmap(-1, PROBE_BYTES, flags=MAP_PRIVATE | MAP_ANONYMOUS) as probe:
                    for at in range(0, PROBE_BYTES, PAGESIZE):
                        probe[at] = 1
                    high = self._usage()[1]
            except (OSError, ImportError, ValueError):
                return False
            self._reset_mark()
            low = self._usage()[1]
            mark = self._high_water()
            self._status.close()  # not needed again, if all is well
        if high is None or low is None or mark is None:
            return False
        half = PROBE_BYTES // 2
        return high >= before + half and low <= high - half and low <= mark + PROBE_SLACK_BYTES

    @property
    def usage_has_mark(self) -> bool | None:
        """Whether ``ru_maxrss`` is read in place of ``VmHWM``; ``None``: there was no measurement that tried."""
        return self._usage_has_mark

    @property
    def memory_source(self) -> str:
        """What the figure of :meth:`peak` is: :data:`PER_BLOCK` or :data:`LIFETIME`."""
        watch = self.watch_peak()
        exact = watch.own and self._high_water() is not None
        self.peak(watch)
        return PER_BLOCK if exact else LIFETIME

    # -- files -----------------------------------------------------------------------------------------------------

    def _reset_mark(self) -> bool:
        file = self._clear_refs
        if file.dead:
            return False
        try:
            if not file.is_open():
                file.open()
            os.pwrite(file.fd, b"5", 0)
        except OSError as error:
            file.dead = error.errno in PERMANENT
            self._unknown("peak memory of single blocks", error)
            return False
        return True

    def _high_water(self) -> int | None:
        data = self._text(self._status)
        kib = self._number(data, b"VmHWM:", "peak memory of single blocks")
        return None if kib is None else kib * 1024

    def _text(self, file: _KeptFile) -> bytes:
        """Read a file from its beginning; empty if it cannot be read."""
        if file.dead:
            return b""
        try:
            data = os.pread(file.fd, READ_SIZE, 0)
        except OSError:  # not open, or not any more
            data = b""
        if not data.startswith(file.begins):
            try:
                with self._lock:
                    file.open()
                data = os.pread(file.fd, READ_SIZE, 0)
            except OSError as error:
                file.dead = error.errno in PERMANENT
                self._unknown(file.path, error)
                return b""
        if len(data) == READ_SIZE:  # somebody in a thousand groups, whose list comes before the figures
            data = os.pread(file.fd, 1 << 20, 0)
        return data

    def _number(self, data: bytes, key: bytes, what: str) -> int | None:
        if not data:
            return None
        try:
            at = data.index(key) + len(key)
            return int(data[at : data.index(b"\n", at)].rstrip(b"kB"))
        except ValueError:
            self._unknown(what, f"the kernel gives no number for {key.decode()!r}")
            return None

    def _unknown(self, what: str, reason: object) -> None:
        """Tell once in a process that a figure stays empty."""
        if what not in self._told:
            self._told.add(what)
            import logging

            # Where there is no /proc at all, as on macOS, that is no surprise.
            level = logging.WARNING if os.path.isdir(self._proc) else logging.INFO
            logging.getLogger(__name__).log(level, "process %d cannot measure %s: %s", os.getpid(), what, reason)

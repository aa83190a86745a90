"""The pure-Python twin of ``_ticks.pyx``: same names, same behaviour, for machines without a compiler.

Section times are kept by *attribution*: every instant of a lane (one thread or one asyncio task) belongs to the
innermost section that is open at that instant. Entering and leaving move a cursor and credit what it passed. For
windows that nest this is "own window less the windows nested in it"; for sections that are left out of order, left
late by an abandoned generator or never, it still splits the lane's time without gap or overlap, so that the self times
of all nodes sum to the root's total by construction.
"""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from math import nan
from resource import RUSAGE_SELF, getrusage
from sys import modules
from threading import get_ident
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING

from workspan.errors import UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Lane",
    "Meter",
    "Moments",
    "Node",
    "Section",
    "Slope",
    "Tree",
    "Watch",
    "current_lane",
    "now_ns",
    "push_each",
    "running_task",
]


class Node:
    """A place in a tree of sections: one name below one parent."""

    __slots__ = ("calls", "children", "name", "self_ns")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise UsageTypeError(f"section({name!r}): a section is named by text, not by {type(name).__name__}")
        self.name = str.__str__(name)  # plain text, also of a member of a StrEnum
        self.calls = 0
        """How often the section was entered."""
        self.self_ns = 0
        """Time credited to it and not to a child, in ns."""
        self.children: dict[str, Node] = {}


class Tree:
    """What one collection has seen.

    Parameters
    ----------
    name
        Name of the root.
    clock
        Monotonic clock, in ns.
    """

    __slots__ = ("aside", "clock", "live", "root")

    def __init__(self, name: str, clock: Callable[[], int] = now_ns) -> None:
        self.root = Node(name)
        """The lane that collects: time outside all sections is the root's own."""
        self.aside: dict[int, Node] = {}
        """Thread id -> sections of other lanes that ran in that thread; these roots have no own time."""
        self.clock = clock
        self.live = True
        """Whether sections are collected now."""

    def pause(self) -> bool:
        """Collect nothing for now; return whether nothing was collected so far."""
        self.live = False
        return not self.root.children and not self.aside

    def resume(self) -> None:
        """Collect again."""
        self.live = True


class _Frame:
    """One open section of a lane."""

    __slots__ = ("below", "lane", "node", "open")

    def __init__(self, lane: Lane | None, node: Node, below: _Frame | None) -> None:
        self.lane = lane
        self.node = node
        self.below = below
        self.open = True


class Lane:
    """The time of one thread or asyncio task inside one collection; starts now.

    Parameters
    ----------
    tree
        The collection.
    root
        Where time outside all sections goes.
    """

    __slots__ = ("_clock", "_since", "_top", "task", "thread", "tree")

    def __init__(self, tree: Tree, root: Node) -> None:
        self.tree = tree
        # By id: a reference would tie the task into a cycle with its own context. Where an id is used again, its first
        # owner has ended, so that the two cannot overlap in this lane.
        self.thread = get_ident()
        self.task = running_task()
        self._clock = tree.clock
        self._top = _Frame(None, root, None)  # stays below all others
        self._since = tree.clock()

    def branch(self) -> Lane:
        """Open a lane for the calling thread and task, and make it the current one of the calling context.

        It takes nothing from the lane that it comes from: both run at once.
        """
        tree = self.tree
        lane = Lane(tree, tree.aside.setdefault(get_ident(), Node(tree.root.name)))
        current_lane.set(lane)
        return lane

    def enter(self, name: str) -> _Frame:
        """Open a section on top of the innermost one."""
        # Calls and allocations may run foreign code: a signal handler, or the collector, which closes an abandoned
        # generator, which leaves a section of this lane. They come first, and are repeated if that happened; nothing
        # can interrupt the lines after the loop.
        while True:
            top = below = self._top
            while not below.open:
                below = below.below  # type: ignore[assignment]  # the lowest frame is never left
            siblings = below.node.children
            node = siblings.get(name)
            if node is None:
                node = siblings[name] = Node(name)
            frame = _Frame(self, node, below)
            now = self._clock()
            if self._top is top and below.open:
                break
        top.node.self_ns += now - self._since
        self._since = now
        self._top = frame
        node.calls += 1
        return frame

    def leave(self, frame: _Frame) -> None:
        """Close a section; time goes on to the innermost one that is still open."""
        if self.thread != get_ident():  # a generator that moved: only its lane's own thread touches the figures
            frame.open = False
            return
        now = self._clock()
        frame.open = False
        top = self._top
        if not top.open and self.tree.live:
            top.node.self_ns += now - self._since
            self._since = now
            while not (top := self._top).open:
                self._top = top.below  # type: ignore[assignment]  # the lowest frame is never left

    def end(self) -> None:
        """Credit the time up to now and close the collection; what happens later is not measured."""
        now = self._clock()
        self._top.node.self_ns += now - self._since
        self._since = now
        self.tree.live = False


current_lane: ContextVar[Lane | None] = ContextVar("workspan_lane", default=None)
"""Lane of the calling context, or of the one that it was copied from: then the caller needs a :meth:`Lane.branch`."""


class Section:
    """Time a named piece of the work that is being measured; ``workspan.measure.sections`` tells its rules."""

    __slots__ = ("_frame", "_more", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._frame: _Frame | None = None
        self._more: list[_Frame] | None = None  # where the object is used again while it is open

    def __enter__(self) -> Section:
        lane = current_lane.get()
        if lane is not None and lane.tree.live:
            if lane.thread != get_ident() or lane.task != running_task():
                lane = lane.branch()
            frame = lane.enter(self.name)
            if self._more:
                self._more.append(frame)
            elif self._frame is None:
                self._frame = frame
            else:
                self._more = [frame]
        return self

    def __exit__(self, kind: object = None, error: object = None, traceback: object = None) -> None:
        frame = self._frame
        if self._more:
            frame = self._take(self._more)
        else:
            self._frame = None
        if frame is not None:
            frame.lane.leave(frame)  # type: ignore[union-attr]  # only the lowest frame has no lane

    def _take(self, more: list[_Frame]) -> _Frame:
        lane = current_lane.get()
        frames = more if self._frame is None else [self._frame, *more]
        frame = next((frame for frame in reversed(frames) if frame.lane is lane), frames[-1])
        if frame is self._frame:
            self._frame = None
        else:
            more.remove(frame)
        return frame


def running_task() -> int:
    """Return the id of the asyncio task that the caller runs in; 0 outside a running event loop."""
    asyncio = modules.get("asyncio")
    if asyncio is None:
        return 0
    try:
        loop = asyncio._get_running_loop()
        task = None if loop is None else asyncio.current_task(loop)
    except AttributeError:  # another thread is just importing it
        return 0
    return 0 if task is None else id(task)


class Moments:
    """Running sums of any number of samples: the arithmetic behind ``stats.Welford``.

    Not measured (``None`` or NaN) is no sample: it is skipped and not counted. Not thread-safe.
    """

    __slots__ = ("_lost", "_m2", "_max", "_mean", "_min", "_total", "n")

    def __init__(self) -> None:
        self.n = 0
        """Number of samples so far."""
        self._mean = 0.0
        self._m2 = 0.0  # sum of squared differences to the mean
        self._min = nan
        self._max = nan
        self._total = 0.0
        self._lost = 0.0  # what rounding has taken from the total so far (Neumaier)

    def push(self, sample: float | None) -> None:
        """Add one sample."""
        if sample is None or sample != sample:
            return
        sample = float(sample)
        self.n = n = self.n + 1
        delta = sample - self._mean
        self._mean = mean = self._mean + delta / n
        self._m2 += delta * (sample - mean)
        if n == 1:
            self._min = self._max = sample
        elif sample < self._min:
            self._min = sample
        elif sample > self._max:
            self._max = sample
        self._add(sample)

    def merge(self, other: Moments) -> None:
        """Add all samples of *other*, which keeps its own; the order of merging does not matter beyond rounding."""
        count = other.n
        if not count:
            return
        if not self.n:
            self._min, self._max, self._mean = other._min, other._max, other._mean
        n = self.n + count
        delta = other._mean - self._mean
        self._m2 += other._m2 + delta * delta * (self.n * (count / n))
        self._mean += delta * (count / n)
        self._min = min(self._min, other._min)
        self._max = max(self._max, other._max)
        self.n = n
        lost = other._lost
        self._add(other._total)
        self._add(lost)

    def figures(self) -> tuple[int, float, float, float, float, float]:
        """Return number, mean, sum of squared differences to it, least, greatest, and sum of the samples."""
        return self.n, self._mean, self._m2, self._min, self._max, self._total + self._lost

    def _add(self, value: float) -> None:
        total = self._total + value
        big, small = (self._total, value) if abs(self._total) >= abs(value) else (value, self._total)
        self._lost += (big - total) + small
        self._total = total


def push_each(folds: tuple[Moments, ...], samples: tuple[float | None, ...]) -> None:
    """Add one sample to each of *folds*.

    Raises
    ------
    ValueError
        There are not as many of the one as of the other.
    """
    if len(samples) != len(folds):
        raise ValueError(f"{len(samples)} samples for {len(folds)} folds")
    for fold, sample in zip(folds, samples, strict=True):
        fold.push(sample)


class Slope:
    """Running least-squares slope of samples over their number: the arithmetic behind ``stats.Trend``."""

    __slots__ = ("_covariance", "_mean", "n")

    def __init__(self) -> None:
        self.n = 0
        """Number of samples so far."""
        self._mean = 0.0
        self._covariance = 0.0  # sum of (x - mean x) (y - mean y)

    def push(self, sample: float) -> None:
        """Add the next sample."""
        n = self.n
        delta = sample - self._mean
        self._mean += delta / (n + 1)
        # (x - old mean of x) (y - new mean of y) = (n + 1) / 2 * delta n / (n + 1)
        self._covariance += delta * n / 2
        self.n = n + 1

    @property
    def slope(self) -> float:
        """Growth per sample, in the unit of the samples; 0.0 for fewer than two."""
        n = self.n
        return self._covariance / (n * (n * n - 1) / 12) if n > 1 else 0.0


class Watch:
    """A measurement of peak memory that is under way, and what the other counters said when it began."""

    __slots__ = ("own", "read", "seconds", "seen", "written")

    def __init__(self) -> None:
        self.own = False
        """Whether the mark was reset for it."""
        self.seen = 0
        """Peak before the mark was reset for another measurement, in bytes."""
        self.read = self.written = 0
        """Bytes read and written, and CPU seconds, as of its beginning; only if :meth:`Meter.start` made it."""
        self.seconds = 0.0


class Meter:
    """Counters of this process over files of ``/proc`` that are open already: what a measurement costs is mostly this.

    Parameters
    ----------
    mark_fd, device, inode
        Descriptor of ``clear_refs``, and what it must be to be written to.
    io_fd
        Descriptor of ``io``.
    counts_itself
        Reading ``io`` is counted there, afterwards.
    unit
        Unit of ``ru_maxrss``, in bytes.
    status_fd
        Descriptor of ``status``, to read peak memory from; negative: it is ``ru_maxrss``, which is much cheaper.
    watches
        All measurements of peak memory that are under way, whoever began them.
    lock
        Held by whoever changes *watches*.
    """

    __slots__ = (
        "_counts_itself",
        "_identity",
        "_io_fd",
        "_lock",
        "_mark_fd",
        "_pid",
        "_status_fd",
        "_unit",
        "_watches",
    )

    def __init__(
        self,
        mark_fd: int,
        device: int,
        inode: int,
        io_fd: int,
        counts_itself: bool,
        unit: int,
        status_fd: int = -1,
        watches: list[Watch] | None = None,
        lock: threading.RLock | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._watches: list[Watch] = [] if watches is None else watches
        self._lock = threading.RLock() if lock is None else lock
        self._mark_fd = mark_fd
        self._identity = (device, inode)
        self._io_fd = io_fd
        self._counts_itself = counts_itself
        self._unit = unit
        self._status_fd = status_fd

    def begin(self) -> tuple[int, int, float] | None:
        """Reset the high-water mark of memory; return bytes read and written, and CPU seconds so far.

        ``None``: a file is not what it was, and nothing is known.
        """
        try:
            stat = os.fstat(self._mark_fd)
            if (stat.st_dev, stat.st_ino) != self._identity or os.pwrite(self._mark_fd, b"5", 0) != 1:
                return None
        except OSError:
            return None
        io = self._io()
        if io is None:
            return None
        read, written, size = io
        usage = getrusage(RUSAGE_SELF)
        return read + size if self._counts_itself else read, written, usage[0] + usage[1]

    def end(self) -> tuple[float, int, int, int] | None:
        """Return CPU seconds, peak memory in bytes, and bytes read and written, all so far; ``None`` as above."""
        usage = getrusage(RUSAGE_SELF)
        io = self._io()
        peak = usage[2] * self._unit if self._status_fd < 0 else self._high_water()
        return None if io is None or peak is None else (usage[0] + usage[1], peak, io[0], io[1])

    def start(self) -> Watch | None:
        """Begin a measurement with the mark to itself.

        ``None``: another one is under way, a file is not what it was, or this is a forked child.
        """
        if self._pid != os.getpid():  # before the lock: a thread that is not here may have held it at the fork
            return None
        with self._lock:
            if self._watches:
                return None
            taken = self.begin()
            if taken is None:
                return None
            watch = Watch()
            watch.own = True
            watch.read, watch.written, watch.seconds = taken
            self._watches.append(watch)
        return watch

    def finish(self, start: object) -> tuple[float, int, int, int] | None:
        """End a measurement; return what it cost: CPU seconds, bytes read, bytes written, peak memory in bytes.

        ``None``, and it goes on, if :meth:`start` did not begin it, a file is not what it was, or this is a forked
        child. A counter that went backwards counts as 0.
        """
        if type(start) is not Watch:
            return None
        taken = self.end()
        if taken is None or not start.own or self._pid != os.getpid():
            return None
        with self._lock:
            if start in self._watches:
                self._watches.remove(start)
        seconds, peak, read, written = taken
        return (
            max(0.0, seconds - start.seconds),
            max(0, read - start.read),
            max(0, written - start.written),
            max(peak, start.seen),
        )

    def _high_water(self) -> int | None:
        try:
            data = os.pread(self._status_fd, 4095, 0)
            at = data.index(b"\nVmHWM:") + 7
            peak = int(data[at : data.index(b"kB", at)]) * 1024
        except (OSError, ValueError):
            return None
        return peak if peak and data.startswith(b"Name:") else None

    def _io(self) -> tuple[int, int, int] | None:
        try:
            data = os.pread(self._io_fd, 63, 0)
            key, first, other_key, second, _ = data.split(None, 4)
            return (int(first), int(second), len(data)) if (key, other_key) == (b"rchar:", b"wchar:") else None
        except (OSError, ValueError):
            return None

# cython: language_level=3
"""The clock, the bookkeeping of sections and running sums, compiled. What it does and why is told by its twin, ``_ticks_py.py``."""

import cython
from contextvars import ContextVar
from sys import modules

from workspan.errors import UsageTypeError

from cpython.contextvars cimport get_value
from libc.math cimport NAN, fabs

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() nogil

cdef extern from *:
    """
    #include <time.h>
    /* The clock of time.monotonic(): on macOS the one that stands still while the machine sleeps. */
    #ifdef __APPLE__
    #define WORKSPAN_CLOCK CLOCK_UPTIME_RAW
    #else
    #define WORKSPAN_CLOCK CLOCK_MONOTONIC
    #endif
    static inline long long workspan_now_ns(void) {
        struct timespec now;
        clock_gettime(WORKSPAN_CLOCK, &now);
        return (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    """
    long long workspan_now_ns() nogil


def now_ns():
    """Return the time of the monotonic clock, in ns."""
    return workspan_now_ns()


cdef object _now_ns = now_ns


cdef extern from *:
    """
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    #include <sys/resource.h>
    #include <sys/stat.h>

    /* CPU seconds of all threads; the peak that the kernel tells with it, in units of its own, goes to *peak. */
    static double workspan_usage(long long *peak) {
        struct rusage usage;
        if (getrusage(RUSAGE_SELF, &usage) != 0)
            return -1.0;
        *peak = usage.ru_maxrss;
        return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec
            + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    }

    /* Bytes read and written from the beginning of /proc/self/io; the length that was read, or -1. */
    static long workspan_io(int fd, long long *bytes_read, long long *written) {
        char text[64], *end;
        ssize_t size = pread(fd, text, sizeof text - 1, 0);
        if (size < 16)
            return -1;
        text[size] = 0;
        if (memcmp(text, "rchar: ", 7) != 0)
            return -1;
        *bytes_read = strtoll(text + 7, &end, 10);
        if (memcmp(end, "\\nwchar: ", 8) != 0)
            return -1;
        *written = strtoll(end + 8, &end, 10);
        return *end == '\\n' ? (long)size : -1;
    }

    /* VmHWM of /proc/self/status, in bytes, or -1. */
    static long long workspan_high_water(int fd) {
        char text[4096], *at;
        ssize_t size = pread(fd, text, sizeof text - 1, 0);
        if (size < 5)
            return -1;
        text[size] = 0;
        if (memcmp(text, "Name:", 5) != 0 || (at = strstr(text, "\\nVmHWM:")) == NULL)
            return -1;
        return strtoll(at + 7, NULL, 10) * 1024;
    }

    /* Reset the high-water mark of memory, if the descriptor still is that file; whether it was. */
    static int workspan_reset_mark(int fd, unsigned long long device, unsigned long long inode) {
        struct stat now;
        return fstat(fd, &now) == 0 && (unsigned long long)now.st_dev == device
            && (unsigned long long)now.st_ino == inode && pwrite(fd, "5", 1, 0) == 1;
    }
    """
    double workspan_usage(long long *peak) nogil
    long workspan_io(int fd, long long *bytes_read, long long *written) nogil
    long long workspan_high_water(int fd) nogil
    int getpid() nogil
    bint workspan_reset_mark(int fd, unsigned long long device, unsigned long long inode) nogil


@cython.final
@cython.freelist(8)
cdef class Watch:
    """A measurement of peak memory that is under way, and what the other counters said when it began."""

    cdef public bint own
    cdef public long long seen
    cdef readonly long long read
    cdef readonly long long written
    cdef readonly double seconds


cdef class Meter:
    """Counters of this process over files that are open already. Its methods run under the interpreter's lock."""

    cdef int mark_fd, io_fd, status_fd, pid
    cdef list watches
    cdef unsigned long long device, inode
    cdef bint counts_itself
    cdef long long unit

    def __init__(self, mark_fd, device, inode, io_fd, counts_itself, unit, status_fd=-1, watches=None, lock=None):
        self.pid = getpid()
        self.watches = [] if watches is None else watches
        self.mark_fd = mark_fd
        self.device = device
        self.inode = inode
        self.io_fd = io_fd
        self.counts_itself = counts_itself
        self.unit = unit
        self.status_fd = status_fd

    def begin(self):
        cdef long long bytes_read = 0, written = 0, peak = 0
        if not workspan_reset_mark(self.mark_fd, self.device, self.inode):
            return None
        cdef long size = workspan_io(self.io_fd, &bytes_read, &written)
        cdef double seconds = workspan_usage(&peak)
        if size < 0 or seconds < 0:
            return None
        if self.counts_itself:
            bytes_read += size
        return bytes_read, written, seconds

    def end(self):
        cdef long long bytes_read = 0, written = 0, peak = 0
        cdef double seconds = workspan_usage(&peak)
        if seconds < 0 or workspan_io(self.io_fd, &bytes_read, &written) < 0:
            return None
        if self.status_fd < 0:
            return seconds, peak * self.unit, bytes_read, written
        peak = workspan_high_water(self.status_fd)
        return None if peak <= 0 else (seconds, peak, bytes_read, written)

    def start(self):
        cdef long long bytes_read = 0, written = 0, peak = 0
        cdef Watch watch
        if self.watches or self.pid != getpid():
            return None
        watch = Watch.__new__(Watch)
        if not workspan_reset_mark(self.mark_fd, self.device, self.inode):
            return None
        cdef long size = workspan_io(self.io_fd, &bytes_read, &written)
        cdef double seconds = workspan_usage(&peak)
        if size < 0 or seconds < 0:
            return None
        watch.own = True
        watch.read = bytes_read + size if self.counts_itself else bytes_read
        watch.written = written
        watch.seconds = seconds
        self.watches.append(watch)
        return watch

    def finish(self, start):
        cdef long long bytes_read = 0, written = 0, peak = 0
        cdef Watch watch
        cdef double seconds
        if type(start) is not Watch:
            return None
        seconds = workspan_usage(&peak)
        if seconds < 0 or workspan_io(self.io_fd, &bytes_read, &written) < 0:
            return None
        peak = peak * self.unit if self.status_fd < 0 else workspan_high_water(self.status_fd)
        watch = <Watch>start
        if peak <= 0 or not watch.own or self.pid != getpid():
            return None
        if watch in self.watches:
            self.watches.remove(watch)
        return (
            max(0.0, seconds - watch.seconds),
            max(0, bytes_read - watch.read),
            max(0, written - watch.written),
            max(peak, watch.seen),
        )


cdef class Node:
    """A place in a tree of sections: one name below one parent."""

    cdef readonly str name
    cdef readonly long long calls
    cdef readonly long long self_ns
    cdef readonly dict children

    def __init__(self, name):
        if not isinstance(name, str):
            raise UsageTypeError(f"section({name!r}): a section is named by text, not by {type(name).__name__}")
        self.name = str.__str__(name)
        self.children = {}


cdef class Tree:
    """What one collection has seen."""

    cdef readonly Node root
    cdef readonly dict aside
    cdef readonly object clock
    cdef readonly bint live

    def __init__(self, name, clock=now_ns):
        self.root = Node(name)
        self.aside = {}
        self.clock = clock
        self.live = True

    def pause(self):
        """Collect nothing for now; return whether nothing was collected so far."""
        self.live = False
        return not self.root.children and not self.aside

    def resume(self):
        """Collect again."""
        self.live = True


@cython.final
@cython.freelist(64)
@cython.trashcan(True)
cdef class _Frame:
    """One open section of a lane."""

    cdef Lane lane
    cdef Node node
    cdef _Frame below
    cdef bint open


cdef class Lane:
    """The time of one thread or asyncio task inside one collection; starts now."""

    cdef readonly Tree tree
    cdef readonly unsigned long thread
    cdef readonly size_t task
    cdef object _clock  # None: this module's own
    cdef _Frame _top
    cdef long long _since

    def __init__(self, Tree tree not None, Node root not None):
        cdef _Frame lowest = _Frame.__new__(_Frame)
        self.tree = tree
        self.thread = PyThread_get_thread_ident()
        self.task = running_task_id()
        self._clock = None if tree.clock is _now_ns else tree.clock
        lowest.node = root
        lowest.open = True
        self._top = lowest
        self._since = self._now()

    cdef long long _now(self) except? -1:
        return workspan_now_ns() if self._clock is None else self._clock()

    cpdef Lane branch(self):
        """Open a lane for the calling thread and task, and make it the current one of the calling context."""
        cdef Tree tree = self.tree
        cdef Lane lane
        lane = Lane(tree, tree.aside.setdefault(PyThread_get_thread_ident(), Node(tree.root.name)))
        current_lane.set(lane)
        return lane

    cpdef _Frame enter(self, name):
        """Open a section on top of the innermost one."""
        cdef _Frame top, below, frame
        cdef Node node
        cdef long long now
        while True:
            top = below = self._top
            while not below.open:
                below = below.below
            node = <Node>below.node.children.get(name)
            if node is None:
                node = below.node.children[name] = Node(name)
            frame = _Frame.__new__(_Frame)
            frame.lane = self
            frame.node = node
            frame.below = below
            frame.open = True
            now = self._now()
            if self._top is top and below.open:
                break
        top.node.self_ns += now - self._since
        self._since = now
        self._top = frame
        node.calls += 1
        return frame

    cpdef leave(self, _Frame frame):
        """Close a section; time goes on to the innermost one that is still open."""
        cdef long long now
        if self.thread != PyThread_get_thread_ident():
            frame.open = False
            return
        now = self._now()
        frame.open = False
        if not self._top.open and self.tree.live:
            self._top.node.self_ns += now - self._since
            self._since = now
            while not self._top.open:
                self._top = self._top.below

    def end(self):
        """Credit the time up to now and close the collection; what happens later is not measured."""
        cdef long long now = self._now()
        self._top.node.self_ns += now - self._since
        self._since = now
        self.tree.live = False


current_lane = ContextVar("workspan_lane", default=None)
cdef object _current_lane = current_lane


@cython.freelist(16)
cdef class Section:
    """Time a named piece of the work that is being measured; ``workspan.measure.sections`` tells its rules."""

    cdef readonly object name
    cdef _Frame _frame
    cdef list _more

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        cdef Lane lane = get_value(_current_lane)
        cdef _Frame frame
        if lane is not None and lane.tree.live:
            if lane.thread != PyThread_get_thread_ident() or lane.task != running_task_id():
                lane = lane.branch()
            frame = lane.enter(self.name)
            if self._more:
                self._more.append(frame)
            elif self._frame is None:
                self._frame = frame
            else:
                self._more = [frame]
        return self

    def __exit__(self, kind=None, error=None, traceback=None):
        cdef _Frame frame = self._frame
        if self._more:
            frame = self._take(self._more)
        else:
            self._frame = None
        if frame is not None:
            frame.lane.leave(frame)

    cdef _Frame _take(self, list more):
        cdef Lane lane = get_value(_current_lane)
        cdef list frames = more if self._frame is None else [self._frame, *more]
        cdef _Frame frame, chosen = frames[-1]
        for frame in reversed(frames):
            if frame.lane is lane:
                chosen = frame
                break
        if chosen is self._frame:
            self._frame = None
        else:
            more.remove(chosen)
        return chosen


cdef size_t running_task_id() except? 1:
    asyncio = modules.get("asyncio")
    if asyncio is None:
        return 0
    try:
        loop = asyncio._get_running_loop()
        task = None if loop is None else asyncio.current_task(loop)
    except AttributeError:
        return 0
    return 0 if task is None else <size_t><void*>task


def running_task():
    """Return the id of the asyncio task that the caller runs in; 0 outside a running event loop."""
    return running_task_id()


cdef class Moments:
    """Running sums of any number of samples: the arithmetic behind ``stats.Welford``."""

    cdef readonly long long n
    cdef double _mean, _m2, _min, _max, _total, _lost

    def __init__(self):
        self._min = self._max = NAN

    cpdef push(self, sample):
        """Add one sample."""
        cdef double value, delta, mean
        if sample is None:
            return
        value = sample
        if value != value:
            return
        self.n += 1
        delta = value - self._mean
        self._mean = mean = self._mean + delta / self.n
        self._m2 += delta * (value - mean)
        if self.n == 1:
            self._min = self._max = value
        elif value < self._min:
            self._min = value
        elif value > self._max:
            self._max = value
        self._add(value)

    def merge(self, Moments other not None):
        """Add all samples of *other*, which keeps its own; the order of merging does not matter beyond rounding."""
        cdef long long count = other.n, n
        cdef double delta, part, lost
        if not count:
            return
        if not self.n:
            self._min, self._max, self._mean = other._min, other._max, other._mean
        n = self.n + count
        delta = other._mean - self._mean
        part = <double>count / n
        self._m2 += other._m2 + delta * delta * (self.n * part)
        self._mean += delta * part
        self._min = min(self._min, other._min)
        self._max = max(self._max, other._max)
        self.n = n
        lost = other._lost
        self._add(other._total)
        self._add(lost)

    def figures(self):
        """Return number, mean, sum of squared differences to it, least, greatest, and sum of the samples."""
        return self.n, self._mean, self._m2, self._min, self._max, self._total + self._lost

    cdef void _add(self, double value) noexcept:
        cdef double total = self._total + value
        if fabs(self._total) >= fabs(value):
            self._lost += (self._total - total) + value
        else:
            self._lost += (value - total) + self._total
        self._total = total


def push_each(tuple folds not None, tuple samples not None):
    """Add one sample to each of *folds*."""
    cdef Py_ssize_t number, count = len(folds)
    if len(samples) != count:
        raise ValueError(f"{len(samples)} samples for {count} folds")
    for number in range(count):
        (<Moments?>folds[number]).push(samples[number])


cdef class Slope:
    """Running least-squares slope of samples over their number: the arithmetic behind ``stats.Trend``."""

    cdef readonly long long n
    cdef double _mean, _covariance

    cpdef push(self, double sample):
        """Add the next sample."""
        cdef double delta = sample - self._mean
        self._mean += delta / (self.n + 1)
        self._covariance += delta * self.n / 2
        self.n += 1

    @property
    def slope(self):
        """Growth per sample, in the unit of the samples; 0.0 for fewer than two."""
        cdef double n = self.n
        return self._covariance / (n * (n * n - 1) / 12) if self.n > 1 else 0.0

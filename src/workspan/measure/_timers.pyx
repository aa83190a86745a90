# cython: language_level=3
"""The timed iterator of a step, compiled. What it does and why is told by its twin, ``_timers_py.py``."""

import cython

from workspan.errors import UsageTypeError
from workspan.measure import _ticks
from workspan.measure import windows as shared
from workspan.measure.sketch import Sketch

from cpython.exc cimport PyErr_Fetch, PyErr_Restore
from cpython.object cimport PyObject
from libc.stdlib cimport qsort

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() nogil

cdef extern from *:
    """
    #include <time.h>
    #ifdef __APPLE__
    #define WORKSPAN_TIMERS_CLOCK CLOCK_UPTIME_RAW
    #else
    #define WORKSPAN_TIMERS_CLOCK CLOCK_MONOTONIC
    #endif
    static inline long long workspan_timers_ns(void) {
        struct timespec now;
        clock_gettime(WORKSPAN_TIMERS_CLOCK, &now);
        return (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <cpuid.h>
    #include <x86intrin.h>
    static inline long long workspan_tsc(void) { return (long long)__rdtsc(); }
    /* Whether the counter runs at one speed in every power state. */
    static int workspan_tsc_invariant(void) {
        unsigned int a, b, c, d;
        return __get_cpuid(0x80000007u, &a, &b, &c, &d) ? (int)((d >> 8) & 1u) : 0;
    }
    #else
    static inline long long workspan_tsc(void) { return workspan_timers_ns(); }
    static int workspan_tsc_invariant(void) { return 0; }
    #endif
    static inline PyObject *workspan_next(PyObject *iterator) {
        return Py_TYPE(iterator)->tp_iternext(iterator);
    }
    static int workspan_order(const void *a, const void *b) {
        long long x = *(const long long *)a, y = *(const long long *)b;
        return (x > y) - (x < y);
    }
    static inline PyObject *workspan_adopt(PyObject *item) { return item; }
    static inline PyObject *workspan_raise(void) { return NULL; }
    static inline int workspan_is_stop(PyObject *kind) {
        return kind == NULL || PyErr_GivenExceptionMatches(kind, PyExc_StopIteration);
    }
    """
    long long workspan_timers_ns() nogil
    long long workspan_tsc() nogil
    int workspan_tsc_invariant() nogil
    PyObject *workspan_next(PyObject *)  # NULL: the end, or an error is set
    object workspan_adopt(PyObject *)  # takes the reference over
    object workspan_raise()  # raises the error that is set
    int workspan_is_stop(PyObject *)
    int workspan_order(const void *, const void *) noexcept nogil


def now_tsc():
    """Return the processor's counter, in its own unit."""
    return workspan_tsc()


cdef object _now_ns = _ticks.now_ns
cdef object _now_tsc = now_tsc
cdef int FULL = shared.FULL
cdef int ENDED = shared.ENDED
cdef object pull = shared.pull


def tsc_is_invariant():
    """Return whether the processor says that its counter runs at one speed."""
    return bool(workspan_tsc_invariant())


CLOCKS = {"monotonic": _now_ns}
if workspan_tsc_invariant():
    CLOCKS["tsc"] = now_tsc


@cython.final
cdef class Cell:
    """What a step has seen so far."""

    cdef public long long seen, closed, apart, opened, misses, items, first_opened, first
    cdef public long long cpu, cpu_apart, cpu_opened, unwatched, low, high
    cdef public unsigned long long owner
    cdef public bint nested, watched, overlapped
    cdef public dict others
    cdef object _sketch
    cdef long long _recent[256]
    cdef int _n, _level, _sampled
    cdef long long _wait, _offset, _begun
    cdef unsigned long long _draw

    def __init__(self):
        self.opened = self.first_opened = self.first = self.seen = -1
        self.nested = True
        self.others = {}
        self._draw = 1
        self._begin()

    cdef _begin(self):
        self.low = self.high = -1
        self._begun = self.items
        self._sketch = Sketch()
        self._n = self._level = self._sampled = 0
        self._wait = self._offset = 0

    def sums(self):
        """Return the time in closed windows, and the number of items."""
        return self.closed, self.items

    def note(self, long long spent):
        """Add the window of an item."""
        self._note(spent)

    cdef inline int _note(self, long long spent) except -1:
        self.closed += spent
        self.items += 1
        if self.high < spent:
            self.high = spent
        if spent < self.low or self.low < 0:
            self.low = spent
        if self._wait:
            self._wait -= 1
            return 0
        return self._sample(spent)

    cdef int _sample(self, long long spent) except -1:
        cdef long long place
        self._recent[self._n] = spent
        self._n += 1
        if self._n == 256:
            self._flush()
        self._sampled += 1
        if self._sampled == FULL:
            self._flush()
            self._sampled = 0
            self._offset = 0
            self._level = min(self._level + 1, 30)
        if 0 < self._level:
            self._draw = self._draw * 6364136223846793005ULL + 1442695040888963407ULL
            place = <long long>(self._draw >> (64 - self._level))
            self._wait = self._offset + place if self._sampled else place
            self._offset = (1LL << self._level) - 1 - place
        return 0

    cdef _flush(self):
        cdef int i, n = self._n
        qsort(self._recent, n, sizeof(long long), workspan_order)
        cdef list recent = [self._recent[i] for i in range(n)]
        self._n = 0
        self._sketch.extend(recent, self._level)

    def harvest(self):
        """Return items, sampled latencies, least and greatest (-1: none) since the last call."""
        self._flush()
        found = self.items - self._begun, self._sketch, self.low, self.high
        self._begin()
        return found


cdef class Timer:
    """A step of a running chain: an iterator that times its own pulls."""

    cdef readonly object windows
    cdef readonly Py_ssize_t index
    cdef readonly object apply
    cdef public object section, upstream, iterator, error
    cdef public int state
    cdef public bint plain
    cdef Cell _cell, _consumer
    cdef object _now
    cdef int _source  # 0: the function, 1: the monotonic clock, 2: the processor's counter
    cdef object __weakref__

    def __init__(self, windows, Py_ssize_t index, apply, upstream, section=None):
        cells = windows.cells
        self._cell = cells[index]
        self._consumer = cells[index + 1] if index + 1 < len(cells) else None
        self._now = windows.now
        self._source = 2 if self._now is _now_tsc else 1 if self._now is _now_ns else 0
        self.windows = windows
        self.index = index
        self.apply = apply
        self.upstream = upstream
        self.section = section
        self.state = shared.FRESH

    cdef inline long long _read(self) except? -1:
        if self._source == 2:
            return workspan_tsc()
        if self._source == 1:
            return workspan_timers_ns()
        return self._now()

    def __iter__(self):
        return self

    def __next__(self):
        cdef Cell cell = self._cell
        cdef unsigned long me = PyThread_get_thread_ident()
        if not self.plain or cell.owner or cell.watched or (self._consumer is not None and self._consumer.owner != me):
            return pull(self)
        if self.section is None:
            return self._plainly(cell, me)
        section = self.section
        section.__enter__()
        try:
            return self._plainly(cell, me)
        finally:
            section.__exit__(None, None, None)

    cdef inline _plainly(self, Cell cell, unsigned long me):
        cdef long long begin, end, spent
        cdef PyObject *item
        iterator = self.iterator  # a close meanwhile must not free it
        begin = self._read()
        cell.opened = begin
        cell.owner = me
        item = workspan_next(<PyObject *>iterator)
        if item is NULL:
            return self._nothing(me)
        if cell.watched:
            self.windows.leave(self.index, me, item=True)
            return workspan_adopt(item)
        end = self._read()
        if end < cell.seen:  # see Windows.leave
            end = cell.seen
        spent = end - begin
        cell.opened = -1
        cell.owner = 0
        cell._note(spent)
        return workspan_adopt(item)

    cdef _nothing(self, unsigned long me):
        cdef PyObject *kind
        cdef PyObject *value
        cdef PyObject *trace
        PyErr_Fetch(&kind, &value, &trace)
        try:
            if workspan_is_stop(kind):
                self.plain = False
                self.state = ENDED
            self.windows.leave(self.index, me, item=False)
        finally:
            PyErr_Restore(kind, value, trace)
        if kind is NULL:
            raise StopIteration
        return workspan_raise()

    def close(self):
        """Close the step, then those upstream of it; later pulls find the end."""
        shared.close(self)

    def __del__(self):
        if self.windows is not None:
            shared.close(self)

    def __reduce__(self):
        raise UsageTypeError("a timer belongs to one run of a chain and cannot be pickled; send its steps instead")

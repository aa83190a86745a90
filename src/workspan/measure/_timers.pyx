# cython: language_level=3
"""The timed iterator of a step, compiled. What it does and why is told by its twin, ``_timers_py.py``."""

import cython

from workspan.errors import UsageTypeError
from workspan.measure import _ticks
from workspan.measure import windows as shared
from workspan.measure.sketch import Sketch

from cpython.exc cimport PyErr_Fetch, PyErr_Restore
from cpython.object cimport PyObject

cdef extern from *:
    """
    #include <pythread.h>
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

    /* What get_ident() returns, without a call where the platform keeps it in a register. */
    #if defined(__x86_64__) && defined(__linux__) && (defined(__GNUC__) || defined(__clang__))
    static inline unsigned long workspan_thread(void) {
        unsigned long found;
        __asm__("movq %%fs:0, %0" : "=r"(found));
        return found;
    }
    #else
    static inline unsigned long workspan_thread(void) { return PyThread_get_thread_ident(); }
    #endif

    /* What the short way of a pull reads and writes. */
    typedef struct {
        long long opened, seen, closed, items, low, high;
        unsigned long long owner;
        int watched;
        /* Of every 2 ** level windows in a row one is taken, at a random place among them: after `wait` more ones. */
        int n, level, sampled;
        long long wait, offset;
        unsigned long long draw;
        /* Those that are not counted yet: counting many at once is cheaper, since a place that depends on what a clock
           has just returned stalls the next reading. */
        long long recent[64];
        long long weighed;
        /* For how many windows each length stands, since the cell was made. Page 0 has the lengths below 512 ticks one
           by one, page p > 0 the 512 parts of [2 ** (p + 8), 2 ** (p + 9)), so that none is off by more than 0.2 %.
           Pages are made when they are needed. */
        unsigned long long *pages[56];
        unsigned long long *harvested[56];
    } workspan_cell;

    static unsigned long long *workspan_page(void) {
        return PyMem_RawCalloc(512, sizeof(unsigned long long));
    }
    static inline int workspan_page_of(long long spent) {
        return spent < 512 ? 0 : 55 - __builtin_clzll((unsigned long long)spent);
    }
    static void workspan_flush(workspan_cell *cell) {
        int i, n = cell->n;
        cell->n = 0;
        for (i = 0; i < n; i++) {
            unsigned long long spent = cell->recent[i] < 0 ? 0 : (unsigned long long)cell->recent[i];
            int page = workspan_page_of((long long)spent);
            int place = (int)(page ? spent >> (page - 1) : spent) & 511;
            if (cell->pages[page] == NULL && (cell->pages[page] = workspan_page()) == NULL)
                continue;  /* no memory: this window is in no percentile */
            cell->pages[page][place] += 1ull << cell->level;
            cell->weighed += 1ll << cell->level;
        }
    }
    static void workspan_sampled(workspan_cell *cell, int full) {
        long long place;
        if (cell->n == 64)
            workspan_flush(cell);
        cell->sampled += 1;
        if (cell->sampled == full) {
            workspan_flush(cell);
            cell->sampled = 0;
            cell->offset = 0;
            if (cell->level < 30)
                cell->level += 1;
        }
        if (cell->level) {
            cell->draw = cell->draw * 6364136223846793005ull + 1442695040888963407ull;
            place = (long long)(cell->draw >> (64 - cell->level));
            cell->wait = cell->sampled ? cell->offset + place : place;
            cell->offset = (1ll << cell->level) - 1 - place;
        }
    }
    static void workspan_samples(workspan_cell *cell) { workspan_sampled(cell, 1 << 14); }
    static inline void workspan_note(workspan_cell *cell, long long spent) {
        cell->closed += spent;
        cell->items += 1;
        if (cell->high < spent)
            cell->high = spent;
        if ((unsigned long long)spent < (unsigned long long)cell->low)  /* -1, for none, is the greatest */
            cell->low = spent;
        if (cell->wait)
            cell->wait -= 1;
        else {
            cell->recent[cell->n] = spent;
            cell->n += 1;
            workspan_samples(cell);
        }
    }

    static inline long long workspan_read(int source) {
        return source == 2 ? workspan_tsc() : workspan_timers_ns();
    }
    /* Pull an item in a window. If 0 is returned, the window is still open, and *item may be NULL. */
    static inline int workspan_pull(
        workspan_cell *cell, PyObject *iterator, unsigned long me, int source, PyObject **item
    ) {
        long long end, begin = workspan_read(source);
        cell->opened = begin;
        cell->owner = me;
        *item = Py_TYPE(iterator)->tp_iternext(iterator);
        if (*item == NULL || cell->watched)
            return 0;
        end = workspan_read(source);
        if (end < cell->seen)  /* see Windows.leave */
            end = cell->seen;
        cell->opened = -1;
        cell->owner = 0;
        workspan_note(cell, end - begin);
        return 1;
    }

    static inline PyObject *workspan_next(PyObject *iterator) {
        return Py_TYPE(iterator)->tp_iternext(iterator);
    }
    static inline PyObject *workspan_adopt(PyObject *item) { return item; }
    static inline PyObject *workspan_raise(void) { return NULL; }
    static inline int workspan_is_stop(PyObject *kind) {
        return kind == NULL || PyErr_GivenExceptionMatches(kind, PyExc_StopIteration);
    }
    """
    ctypedef struct workspan_cell:
        long long opened, seen, closed, items, low, high
        unsigned long long owner
        bint watched
        int n, level, sampled
        long long wait, offset, weighed
        unsigned long long draw
        unsigned long long *pages[56]
        unsigned long long *harvested[56]
    long long workspan_timers_ns() nogil
    long long workspan_tsc() nogil
    int workspan_tsc_invariant() nogil
    unsigned long workspan_thread() nogil
    unsigned long PyThread_get_thread_ident() nogil
    void workspan_note(workspan_cell *, long long) nogil
    void workspan_flush(workspan_cell *) nogil
    unsigned long long *workspan_page() nogil
    int workspan_page_of(long long) nogil
    int workspan_pull(workspan_cell *, PyObject *, unsigned long, int, PyObject **)
    PyObject *workspan_next(PyObject *)  # NULL: the end, or an error is set
    object workspan_adopt(PyObject *)  # takes the reference over
    object workspan_raise()  # raises the error that is set
    int workspan_is_stop(PyObject *)
    void PyMem_RawFree(void *) nogil


if workspan_thread() != PyThread_get_thread_ident():
    raise ImportError("threads are not identified here as these timers expect; the pure-Python ones do it")


def now_tsc():
    """Return the processor's counter, in its own unit."""
    return workspan_tsc()


cdef object _now_ns = _ticks.now_ns
cdef object _now_tsc = now_tsc
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

    cdef workspan_cell hot
    cdef public long long apart, misses, first_opened, first, cpu, cpu_apart, cpu_opened, unwatched
    cdef public bint nested, overlapped
    cdef public dict others
    cdef long long _items, _weighed

    def __init__(self):
        self.hot.opened = self.hot.seen = self.hot.low = self.hot.high = self.first_opened = self.first = -1
        self.nested = True
        self.others = {}

    def __dealloc__(self):
        cdef int page
        for page in range(56):
            PyMem_RawFree(self.hot.pages[page])
            PyMem_RawFree(self.hot.harvested[page])

    @property
    def opened(self):
        return self.hot.opened

    @opened.setter
    def opened(self, long long value):
        self.hot.opened = value

    @property
    def seen(self):
        return self.hot.seen

    @seen.setter
    def seen(self, long long value):
        self.hot.seen = value

    @property
    def closed(self):
        return self.hot.closed

    @closed.setter
    def closed(self, long long value):
        self.hot.closed = value

    @property
    def items(self):
        return self.hot.items

    @items.setter
    def items(self, long long value):
        self.hot.items = value

    @property
    def owner(self):
        return self.hot.owner

    @owner.setter
    def owner(self, unsigned long long value):
        self.hot.owner = value

    @property
    def watched(self):
        return self.hot.watched

    @watched.setter
    def watched(self, bint value):
        self.hot.watched = value

    def sums(self):
        """Return the time in closed windows, and the number of items."""
        return self.hot.closed, self.hot.items

    def note(self, long long spent):
        """Add the window of an item."""
        workspan_note(&self.hot, spent)

    def harvest(self):
        """Return items, latencies, least and greatest (-1: none) since the last call."""
        workspan_flush(&self.hot)
        cdef long long n = self.hot.items - self._items, low = self.hot.low, high = self.hot.high
        cdef long long weight = self.hot.weighed - self._weighed
        self._items += n
        self._weighed += weight
        self.hot.low = self.hot.high = -1
        self.hot.level = self.hot.sampled = 0
        self.hot.wait = self.hot.offset = 0
        sketch = Sketch()
        if weight > 0:
            self._fill(sketch, weight, low, high)
        return n, sketch, low, high

    cdef _fill(self, sketch, long long n, long long low, long long high):
        """Add one sample for every so many windows in the order of their length, some 400 in all."""
        cdef int page, place, level = 0
        cdef unsigned long long *counts
        cdef unsigned long long *before
        cdef long long count, passed = 0, done = 0, value, part
        cdef list samples = []
        while n >> level > 500:  # as many as a sketch keeps all of
            level += 1
        for page in range(workspan_page_of(low), workspan_page_of(high) + 1):
            counts, before = self.hot.pages[page], self.hot.harvested[page]
            if counts == NULL:
                continue
            if before == NULL:
                before = self.hot.harvested[page] = workspan_page()
                if before == NULL:
                    raise MemoryError
            for place in range(512):
                count = <long long>(counts[place] - before[place])
                if not count:
                    continue
                before[place] = counts[place]
                passed += count
                # The windows from `done` on that the next sample stands for: it is their middle one.
                while level >= 0 and done + (1LL << level >> 1) < passed:
                    value = place
                    if page:  # as far in the part, less what is beyond the least and the greatest, as among its windows
                        value = max((512LL + place) << (page - 1), low)
                        part = min((513LL + place) << (page - 1), high + 1) - value
                        value += <long long>(part * ((done + (1LL << level >> 1) - passed + count + 0.5) / count))
                    samples.append(min(max(value, low), high))
                    done += 1LL << level
                    while level >= 0 and done + (1LL << level) > n:
                        sketch.extend(samples, level)
                        samples = []
                        level -= 1
        sketch.min = low
        sketch.max = high


@cython.final
cdef class Timer:
    """A step of a running chain: an iterator that times its own pulls."""

    cdef workspan_cell *_hot
    cdef workspan_cell *_above  # the consumer's; NULL: this is the last step
    cdef public object iterator
    cdef int _source  # 0: the function, 1: the monotonic clock, 2: the processor's counter
    cdef bint _short  # plain, without a section and a function
    cdef bint _plain
    cdef public object section, upstream, error
    cdef public int state
    cdef readonly object windows
    cdef readonly Py_ssize_t index
    cdef readonly object apply
    cdef Cell _cell, _consumer
    cdef object _now
    cdef object __weakref__

    def __init__(self, windows, Py_ssize_t index, apply, upstream, section=None):
        cells = windows.cells
        self._cell = cells[index]
        self._hot = &self._cell.hot
        if index + 1 < len(cells):
            self._consumer = cells[index + 1]
            self._above = &self._consumer.hot
        self._now = windows.now
        self._source = 2 if self._now is _now_tsc else 1 if self._now is _now_ns else 0
        self.windows = windows
        self.index = index
        self.apply = apply
        self.upstream = upstream
        self.section = section
        self.state = shared.FRESH

    @property
    def plain(self):
        return self._plain

    @plain.setter
    def plain(self, bint value):
        self._plain = value
        self._short = value and self.section is None and self._source

    def __iter__(self):
        return self

    def __next__(self):
        cdef unsigned long me = workspan_thread()
        cdef PyObject *item
        cdef workspan_cell *cell = self._hot
        if not self._short or cell.owner or cell.watched or (self._above != NULL and self._above.owner != me):
            return self._otherwise(me)
        iterator = self.iterator  # a close meanwhile must not free it
        if workspan_pull(cell, <PyObject *>iterator, me, self._source, &item):
            return workspan_adopt(item)
        return self._leave(item, me)

    cdef _leave(self, PyObject *item, unsigned long me):
        """Close the window of a pull that gave *item*, or raise what it raised."""
        if item is NULL:
            return self._nothing(me)
        self.windows.leave(self.index, me, item=True)
        return workspan_adopt(item)

    cdef _otherwise(self, unsigned long me):
        """Pull in any other case than the plainest."""
        if not self._plain or self._hot.owner or self._hot.watched or (self._above != NULL and self._above.owner != me):
            return pull(self)
        if self.section is None:
            return self._plainly(me)
        section = self.section
        section.__enter__()
        try:
            return self._plainly(me)
        finally:
            section.__exit__(None, None, None)

    cdef _plainly(self, unsigned long me):
        cdef workspan_cell *cell = self._hot
        cdef long long begin, end
        cdef PyObject *item
        iterator = self.iterator
        if self._source:
            if workspan_pull(cell, <PyObject *>iterator, me, self._source, &item):
                return workspan_adopt(item)
            return self._leave(item, me)
        begin = self._now()
        cell.opened = begin
        cell.owner = me
        item = workspan_next(<PyObject *>iterator)
        if item is NULL or cell.watched:
            return self._leave(item, me)
        end = self._now()
        if end < cell.seen:  # see Windows.leave
            end = cell.seen
        cell.opened = -1
        cell.owner = 0
        workspan_note(cell, end - begin)
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

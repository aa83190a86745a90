"""The windows of a chain of steps: what both timers share, natively and in pure Python.

A chain has one cell a step. A pull of step k opens a window in cell k and closes it when it leaves. Cells only ever
grow and only whoever pulls writes to them; a reader takes a snapshot of all at one instant, in which an open window
counts up to that instant, and subtracts the snapshot before. So a drain in the middle of a pull, from whatever thread,
neither loses time nor counts it twice.

A window of step k that lies inside a window of step k + 1, its consumer, is *nested* and is subtracted from it. One
that does not (a body pulls from another thread, or ``close`` runs) is *apart* and is not. Which part of the consumer's
own windows lies *beside* pulls that are apart is kept as well: no more than that can it have waited for them.

The timers handle the plain case themselves: started, nested, one puller. Everything else is done here.
"""

from __future__ import annotations

import time
from _thread import get_ident
from contextlib import suppress
from threading import RLock
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from workspan.errors import UsageTypeError
from workspan.measure import ticks
from workspan.measure.sketch import Sketch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

__all__ = ["CellLike", "Reading", "TimerLike", "Windows", "close", "pull"]

FRESH, STARTED, ENDED, FAILED, CLOSED = range(5)
"""States of a timer: nothing ran yet; apply ran; the end was reached; apply raised; closed."""

FULL = 1 << 12
"""Samples after which the latencies of a step are sampled half as often as before."""

_TRIES = 50


class CellLike(Protocol):
    """What a step has seen; times in the ticks of the chain's clock, all of them sums that only grow."""

    closed: int
    """Time in all windows that are closed."""
    apart: int
    """Part of it that no window of the consumer covers."""
    owner: int
    """Thread or task in whose pull the window is open; 0: closed."""
    opened: int
    """When it was opened, if it is open."""
    seen: int
    """The last instant that was read: a window that was open then cannot have closed before."""
    nested: bool
    """Whether the open window lies in one of the consumer."""
    misses: int
    """Pulls that have left without an item."""
    items: int
    first_opened: int
    """When the first window was opened; -1: none was."""
    first: int
    """Time from then to the first item; -1: there is none yet."""
    others: dict[int, tuple[int, bool, int]]
    """Windows that opened while another puller held the cell: owner -> opened, nested, CPU time then."""
    watched: bool
    """Whether CPU time is taken."""
    cpu: int
    """CPU time of the puller's thread in windows that are closed, in ns."""
    cpu_apart: int
    cpu_opened: int
    overlapped: bool
    """Whether upstream was pulled outside of a window of this step."""
    unwatched: int
    """Self time before CPU time was taken, of a step that is watched since it was overlapped."""

    def sums(self) -> tuple[int, int]:
        """Return the time in closed windows, and the number of items."""

    def note(self, spent: int) -> None:
        """Add the window of an item."""

    def harvest(self) -> tuple[int, Sketch, int, int]:
        """Return items, sampled latencies, least and greatest (-1: none) since the last call."""


class TimerLike(Protocol):
    """A step of a running chain: an iterator that times its own pulls."""

    windows: Windows
    index: int
    apply: Callable[[Any], Any]
    upstream: Any
    iterator: Any
    state: int
    error: tuple[BaseException, TracebackType | None] | None
    """What apply raised, with its traceback then."""
    plain: bool
    """Whether the next pull may take the short way."""
    section: AbstractContextManager[Any] | None


class Reading(NamedTuple):
    """A cell at one instant; times in ticks, CPU in ns."""

    inclusive: int
    apart: int
    pulls: int
    items: int
    cpu: int
    cpu_apart: int
    unwatched: int
    beside: int
    """Part of inclusive in which upstream was pulled apart."""


class Windows:
    """All cells of a chain, and the clock they use.

    Parameters
    ----------
    cells
        One a step.
    now
        Clock of the windows, in ticks.
    cpu
        Whether to take CPU time of every step.
    labels
        Names of the steps, for errors.
    """

    __slots__ = ("_beside", "_lock", "_pullers", "_since", "cells", "cpu", "labels", "now")

    def __init__(
        self, cells: Sequence[CellLike], now: Callable[[], int], *, cpu: bool = False, labels: Sequence[str] = ()
    ) -> None:
        self.cells = cells
        self.now = now
        self.cpu = cpu
        self.labels = labels
        for cell in cells:
            cell.watched = cpu
        self._lock = RLock()  # of what follows
        self._pullers = [0] * len(cells)  # of a step's upstream, apart from it
        self._since = [0] * len(cells)  # time in the step's windows when the first of them came
        self._beside = [0] * len(cells)  # time in the step's windows from then until the last one had left

    def refuse(self, index: int, found: object, *, awaited: bool = False) -> NoReturn:
        """Raise that what an apply returned cannot be iterated."""
        step = f"step {index}" + (f", {self.labels[index]!r}," if self.labels else "")
        kind = "asynchronous, as the input of the chain is" if awaited else "iterable"
        hint = ""
        if found is None:
            hint = "; does its apply return or yield?"
        elif hasattr(found, "__aiter__"):
            hint = "; give the chain an asynchronous input"
        raise UsageTypeError(f"{step} made {type(found).__name__} of its input, which is not {kind}{hint}")

    def enter(self, index: int, me: int, *, closing: bool = False, threads: bool = True) -> bool:
        """Open a window; return whether there was none of this puller's yet, so that this one is to be left."""
        cell = self.cells[index]
        if cell.owner == me or me in cell.others:
            return False  # the outermost window counts
        nested = True
        if index + 1 < len(self.cells):
            consumer = self.cells[index + 1]
            nested = consumer.owner == me or me in consumer.others
            if not nested and not closing and not consumer.overlapped:
                self._overlap(index + 1, threads)
            if not nested and not closing:
                self._pull_apart(index + 1, 1)
        cpu = time.thread_time_ns() if cell.watched and threads else -1
        if cell.owner:
            cell.others[me] = (self.now(), nested, cpu)
            return True
        cell.cpu_opened = cpu
        cell.owner = me
        cell.nested = nested
        cell.opened = now = self.now()
        if cell.first_opened < 0:
            cell.first_opened = now
        return True

    def leave(self, index: int, me: int, *, item: bool, closing: bool = False, threads: bool = True) -> None:
        """Close the window that this puller opened; *item*: an item came out of it, *closing*: it was no pull."""
        cell = self.cells[index]
        now = self.now()
        if now < cell.seen:  # a reader came between the clock and here, and has counted the window up to then
            now = cell.seen
        first = cell.owner == me
        if first:
            opened, nested, cpu_opened = cell.opened, cell.nested, cell.cpu_opened
            cell.opened = -1
        else:
            opened, nested, cpu_opened = cell.others.pop(me)
        spent = now - opened
        if item:
            cell.note(spent)
            if cell.first < 0:
                cell.first = now - cell.first_opened
        else:
            cell.closed += spent
            cell.misses += not closing
        if not nested:
            cell.apart += spent
            if not closing:
                self._pull_apart(index + 1, -1)
        if first:
            cell.nested = True  # as the timers' short way expects it
            cell.owner = 0
        if cpu_opened >= 0 and threads and cell.watched:
            cpu = time.thread_time_ns() - cpu_opened
            cell.cpu += cpu
            if not nested:
                cell.cpu_apart += cpu

    def read(self) -> tuple[int, list[Reading]]:
        """Return an instant and what every cell had seen at it."""
        for _ in range(_TRIES):
            found = [self._state(cell) for cell in self.cells]
            # Between two looks that see the same, so that it is an instant of that state, however long this thread was
            # kept from running meanwhile.
            now = self.now()
            # Another thread may be in the middle of opening or closing a window; then look again.
            whole = all((owner != 0) == (opened != -1) for owner, opened, *_ in found)
            if whole and found == [self._state(cell) for cell in self.cells]:
                break
            time.sleep(0)
        for cell in self.cells:
            cell.seen = now
        readings = [self._reading(cell, state, now) for cell, state in zip(self.cells, found, strict=True)]
        with self._lock:
            for index, reading in enumerate(readings):
                beside = self._beside[index]
                if self._pullers[index]:
                    beside += max(0, reading.inclusive - self._since[index])
                if beside:
                    readings[index] = reading._replace(beside=beside)
        return now, readings

    @staticmethod
    def _state(cell: CellLike) -> tuple[Any, ...]:
        return (
            cell.owner,
            cell.opened,
            cell.nested,
            cell.apart,
            cell.misses,
            *cell.sums(),
            dict(cell.others),
        )

    @staticmethod
    def _reading(cell: CellLike, state: tuple[Any, ...], now: int) -> Reading:
        owner, opened, nested, apart, misses, closed, items, others = state
        cpu, cpu_apart = cell.cpu, cell.cpu_apart
        windows = [(owner, opened, nested, cell.cpu_opened)] if owner and opened != -1 else []
        windows += [(other, *window) for other, window in others.items()]
        for who, begin, within, cpu_opened in windows:
            spent = max(0, now - begin)
            closed += spent
            apart += 0 if within else spent
            if (
                cell.watched and cpu_opened >= 0 and who == get_ident()
            ):  # of another thread's open window CPU time comes when it closes
                used = time.thread_time_ns() - cpu_opened
                cpu += used
                cpu_apart += 0 if within else used
        return Reading(closed, apart, items + misses, items, cpu, cpu_apart, cell.unwatched, 0)

    def _pull_apart(self, index: int, more: int) -> None:
        """Note that a pull of a step's upstream begins (1) or ends (-1) that lies in no window of the step."""
        with self._lock:
            before = self._pullers[index]
            self._pullers[index] = before + more
            if before and before + more:
                return  # another one is there before and after
            inclusive = self._inclusive(self.cells[index])
            if before:
                self._beside[index] += max(0, inclusive - self._since[index])
            else:
                self._since[index] = inclusive

    def _inclusive(self, cell: CellLike) -> int:
        for _ in range(_TRIES):
            now, state = self.now(), self._state(cell)
            if (state[0] != 0) == (state[1] != -1) and state == self._state(cell):
                break
            time.sleep(0)
        return self._reading(cell, state, now).inclusive

    def _overlap(self, index: int, threads: bool) -> None:
        cell = self.cells[index]
        cell.overlapped = True
        if cell.watched or not threads:
            return
        readings = self.read()[1]
        above = readings[index - 1]
        cell.unwatched = readings[index].inclusive - (above.inclusive - above.apart)
        cell.cpu_opened = -1
        if cell.owner:
            with suppress(AttributeError, OSError):  # where a thread's clock cannot be read, its window so far is busy
                cell.cpu_opened = time.clock_gettime_ns(time.pthread_getcpuclockid(cell.owner))
        cell.watched = True


def collecting() -> bool:
    """Return whether sections are collected in the calling context."""
    lane = ticks.current_lane.get()
    return lane is not None and lane.tree.live


def pull(timer: TimerLike) -> Any:
    """Pull a step in any state; the timers call it where their short way does not do."""
    windows, index, me = timer.windows, timer.index, get_ident()
    if timer.state == FRESH and not collecting():
        timer.section = None
    section = timer.section
    if section is not None:
        section.__enter__()
    try:
        own = windows.enter(index, me)
        item = False
        try:
            if timer.state == FRESH:
                timer.state = FAILED  # until apply has returned
                try:
                    made = timer.apply(timer.upstream)
                    if not hasattr(made, "__iter__") and not hasattr(made, "__getitem__"):
                        windows.refuse(index, made)
                    timer.iterator = iter(made)
                except StopIteration as stop:  # would look like a clean end
                    wrong = RuntimeError("the apply of a step raised StopIteration")
                    timer.error = wrong, None
                    raise wrong from stop
                except BaseException as error:
                    timer.error = error, error.__traceback__
                    raise
                timer.state = STARTED
            elif timer.state == FAILED:
                if timer.error is None:
                    raise RuntimeError("a step was pulled while its apply was running")
                failure, traceback = timer.error
                raise failure.with_traceback(traceback)
            elif timer.state != STARTED:
                raise StopIteration
            try:
                found = next(timer.iterator)
            except StopIteration:
                timer.state = ENDED
                timer.plain = False
                raise
            item = True
            return found
        finally:
            if own:
                windows.leave(index, me, item=item)
            if item:
                timer.plain = True
    finally:
        if section is not None:
            section.__exit__(None, None, None)


def close(timer: TimerLike) -> None:
    """Close a step, then those upstream of it; what each cleanup takes is charged to its own step."""
    if timer.state == CLOSED:
        return
    state, timer.state, timer.plain = timer.state, CLOSED, False
    iterator, timer.iterator, timer.error = timer.iterator, None, None
    upstream, timer.upstream = timer.upstream, None
    try:
        ended = state == ENDED and isinstance(iterator, GeneratorType)  # has nothing left to do
        end = getattr(iterator, "close", None) if iterator is not upstream and not ended else None
        if end is not None:
            windows, me = timer.windows, get_ident()
            section = timer.section
            if section is not None:
                section.__enter__()
            try:
                own = windows.enter(timer.index, me, closing=True)
                try:
                    end()
                finally:
                    if own:
                        windows.leave(timer.index, me, item=False, closing=True)
            finally:
                if section is not None:
                    section.__exit__(None, None, None)
    finally:
        if timer.index:
            upstream.close()


def unstarted(source: Iterable[Any]) -> Iterator[Any]:
    """Yield the input: the chain of no steps, which has a ``close`` like any other."""
    yield from source

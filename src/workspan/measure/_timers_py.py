"""The pure-Python twin of ``_timers.pyx``: same names, same behaviour.

What is not the plain case is in ``windows.py``.
"""

from __future__ import annotations

from _thread import get_ident
from threading import RLock
from time import monotonic_ns as now_ns
from typing import TYPE_CHECKING, Any

from workspan.errors import UsageTypeError
from workspan.measure import windows as shared
from workspan.measure.sketch import Sketch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

__all__ = ["CLOCKS", "Cell", "Timer"]

CLOCKS: dict[str, Callable[[], int]] = {"monotonic": now_ns}
"""Clocks of the windows by name; all but the monotonic one tick in a unit of their own."""


_MANY = 256
"""Windows that are kept one by one before they are summed: summing many at once is cheaper."""


class Cell:
    """What a step has seen so far; :class:`workspan.measure.windows.CellLike` tells the fields."""

    __slots__ = (
        "_begun",
        "_draw",
        "_level",
        "_lock",
        "_sampled",
        "_sketch",
        "apart",
        "closed",
        "cpu",
        "cpu_apart",
        "cpu_opened",
        "first",
        "first_opened",
        "high",
        "items",
        "left",
        "low",
        "misses",
        "nested",
        "opened",
        "others",
        "overlapped",
        "owner",
        "recent",
        "seen",
        "unwatched",
        "watched",
    )

    def __init__(self) -> None:
        self.closed = self.apart = self.owner = self.misses = self.items = 0
        self.cpu = self.cpu_apart = self.cpu_opened = self.unwatched = 0
        self.opened = self.first_opened = self.first = self.seen = -1
        self.nested = True
        self.watched = self.overlapped = False
        self.others: dict[int, tuple[int, bool, int]] = {}
        self.recent: list[int] = []  # latencies that are in no sum yet; always this one list
        self.left = _MANY
        self._draw = 1
        self._lock = RLock()  # a signal handler may read
        self._begin()

    def _begin(self) -> None:
        self.low = self.high = -1
        self._begun = self.items
        self._sketch = Sketch()
        self._level = self._sampled = 0

    def sums(self) -> tuple[int, int]:
        """Return the time in closed windows, and the number of items."""
        with self._lock:
            return self.closed + sum(self.recent), self.items + len(self.recent)

    def note(self, spent: int) -> None:
        """Add the window of an item."""
        self.recent.append(spent)
        self.left -= 1
        if self.left <= 0:
            self.fold()

    def fold(self) -> None:
        """Move the recent windows into the sums."""
        with self._lock:  # the puller and a reader may both come here; meanwhile the puller may append
            recent = self.recent[:]
            if not recent:
                return
            low, high = min(recent), max(recent)
            if self.high < high:
                self.high = high
            if low < self.low or self.low < 0:
                self.low = low
            self._sample(recent)
            self.closed += sum(recent)
            self.items += len(recent)
            del self.recent[: len(recent)]
            self.left = _MANY

    def _sample(self, recent: list[int]) -> None:
        stride = 1 << self._level
        taken = recent
        if self._level:
            # Of every `stride` in a row the one at a random place among them.
            self._draw = self._draw * 6364136223846793005 + 1442695040888963407 & 0xFFFFFFFFFFFFFFFF
            taken = recent[(self._draw >> 40) % stride :: stride]
        self._sketch.extend(taken, self._level)
        self._sampled += len(taken)
        if self._sampled >= shared.FULL and stride < _MANY:
            self._sampled = 0
            self._level += 1

    def harvest(self) -> tuple[int, Sketch, int, int]:
        """Return items, sampled latencies, least and greatest (-1: none) since the last call."""
        with self._lock:
            self.fold()
            found = self.items - self._begun, self._sketch, self.low, self.high
            self._begin()
            return found


class Timer:
    """A step of a running chain: an iterator that times its own pulls.

    Parameters
    ----------
    windows
        The chain's cells and clock.
    index
        Place of the step in the chain.
    apply
        Iterable in, iterable out; runs in the first pull.
    upstream
        The timer before, or the raw input.
    section
        Section that is open during every pull; ``None``: none.
    """

    __slots__ = (
        "__weakref__",
        "_append",
        "_cell",
        "_consumer",
        "_now",
        "apply",
        "error",
        "index",
        "iterator",
        "plain",
        "section",
        "state",
        "upstream",
        "windows",
    )

    def __init__(
        self,
        windows: shared.Windows,
        index: int,
        apply: Callable[[Any], Any],
        upstream: Any,
        section: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.windows = windows
        self.index = index
        self.apply = apply
        self.upstream = upstream
        self.section = section
        self.iterator: Any = None
        self.state = shared.FRESH
        self.error: tuple[BaseException, TracebackType | None] | None = None
        self.plain = False
        cells: Any = windows.cells
        self._cell: Cell = cells[index]
        self._consumer: Cell | None = cells[index + 1] if index + 1 < len(cells) else None
        self._now = windows.now
        self._append = self._cell.recent.append

    def __iter__(self) -> Timer:
        return self

    def __next__(self) -> Any:
        cell = self._cell
        consumer = self._consumer
        me = get_ident()
        if not self.plain or cell.owner or cell.watched or (consumer is not None and consumer.owner != me):
            return shared.pull(self)
        section = self.section
        if section is not None:
            section.__enter__()
        try:
            cell.owner = me
            cell.opened = begin = self._now()
            item = next(self.iterator)
            end = self._now()
        except BaseException as error:
            if isinstance(error, StopIteration):
                self.plain = False
                self.state = shared.ENDED
            if cell.opened == -1:
                cell.owner = 0
            else:
                self.windows.leave(self.index, me, item=False)
            if section is not None:
                section.__exit__(None, None, None)
            raise
        if cell.watched:
            self.windows.leave(self.index, me, item=True)
        else:
            if end < cell.seen:  # see Windows.leave
                end = cell.seen
            cell.opened = -1
            self._append(end - begin)
            cell.left -= 1
            if not cell.left:
                cell.fold()
            cell.owner = 0
        if section is not None:
            section.__exit__(None, None, None)
        return item

    def close(self) -> None:
        """Close the step, then those upstream of it; later pulls find the end."""
        shared.close(self)

    def __del__(self) -> None:
        shared.close(self)

    def __reduce__(self) -> Any:
        raise UsageTypeError("a timer belongs to one run of a chain and cannot be pickled; send its steps instead")

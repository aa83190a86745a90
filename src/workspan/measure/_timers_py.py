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
        "_seen",
        "_sketch",
        "_watched",
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
        "marked",
        "misses",
        "nested",
        "opened",
        "others",
        "overlapped",
        "owner",
        "recent",
        "unwatched",
    )

    def __init__(self) -> None:
        self.closed = self.apart = self.owner = self.misses = self.items = 0
        self.cpu = self.cpu_apart = self.cpu_opened = self.unwatched = 0
        self.opened = self.first_opened = self.first = self._seen = -1
        self.nested = True
        self._watched = self.overlapped = False
        self.marked = False  # whether the open window cannot be closed in the short way
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

    @property
    def seen(self) -> int:
        return self._seen

    @seen.setter
    def seen(self, now: int) -> None:
        self._seen = now
        if self.owner:  # not to be closed before that instant
            self.marked = True

    @property
    def watched(self) -> bool:
        return self._watched

    @watched.setter
    def watched(self, watched: bool) -> None:
        self._watched = self.marked = watched

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
        "_cell",
        "_consumer",
        "_left",
        "_now",
        "_plain",
        "_recent",
        "_short",
        "apply",
        "error",
        "index",
        "iterator",
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
        self._plain = False
        self._short: Any = None  # the iterator, while the short way may be taken
        cells: Any = windows.cells
        self._cell: Cell = cells[index]
        # The last step has none, and its cell is no consumer's that a thread could be in.
        self._consumer: Cell = cells[min(index + 1, len(cells) - 1)]
        self._now = windows.now
        self._recent = self._cell.recent
        self._left = _MANY

    @property
    def plain(self) -> bool:
        """Whether the next pull may take the short way."""
        return self._plain

    @plain.setter
    def plain(self, plain: bool) -> None:
        self._plain = plain
        self._short = self.iterator if plain and self.section is None else None

    def __iter__(self) -> Timer:
        return self

    def __next__(self) -> Any:
        cell = self._cell
        iterator = self._short
        if iterator is None or cell.owner or cell.marked:
            return self._otherwise()
        me = get_ident()
        if self._consumer.owner != me and self._consumer is not cell:
            return shared.pull(self)
        cell.owner = me
        now = self._now  # a call of an attribute costs more than one of a name
        try:
            cell.opened = begin = now()
            item = next(iterator)
            spent = now() - begin
        except BaseException as error:
            self._failed(error, me)
            raise
        if cell.marked:
            self.windows.leave(self.index, me, item=True)
            return item
        cell.opened = -1
        self._recent.append(spent)
        cell.owner = 0
        self._left -= 1
        if self._left:
            return item
        self._left = _MANY
        cell.fold()
        return item

    def _failed(self, error: BaseException, me: int) -> None:
        """Close the window of a pull that raised."""
        if isinstance(error, StopIteration):
            self.plain = False
            self.state = shared.ENDED
        if self._cell.opened == -1:  # the clock failed
            self._cell.owner = 0
        else:
            self.windows.leave(self.index, me, item=False)

    def _otherwise(self) -> Any:
        """Pull in any other case than the plainest."""
        cell, section = self._cell, self.section
        if not cell.owner:
            cell.marked = cell.watched
        if not self._plain or section is None or cell.owner or cell.marked:
            return shared.pull(self)
        section.__enter__()
        self._short = self.iterator
        try:
            return self.__next__()
        finally:
            self._short = None
            section.__exit__(None, None, None)

    def close(self) -> None:
        """Close the step, then those upstream of it; later pulls find the end."""
        shared.close(self)

    def __del__(self) -> None:
        shared.close(self)

    def __reduce__(self) -> Any:
        raise UsageTypeError("a timer belongs to one run of a chain and cannot be pickled; send its steps instead")

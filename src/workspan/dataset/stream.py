"""Results while the run goes on: it runs in a thread of its own, and waits when its consumer has enough."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from workspan.dataset.batching import batches
from workspan.dataset.blocks import batch_of, first_rows
from workspan.dataset.figures import Tally
from workspan.dataset.pace import Hold
from workspan.dataset.results import tables_of
from workspan.dataset.task import STOP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from workspan.dataset.execute import Execution
    from workspan.dataset.ops import BatchFormat, BatchSize
    from workspan.dataset.stats import IterationSummary

__all__ = ["Backlog", "Iteration", "Stream"]


class Backlog:
    """Tells the workers to wait while finished results pile up.

    They wait for nothing that the consumer needs: they are only held while the result that it takes next is there. So a
    result that is late (its worker died, say) never stops the run.

    Parameters
    ----------
    folder
        Where the file lies that holds the workers.
    most
        Results that may lie there.
    ordered
        The consumer takes them in order.
    """

    def __init__(self, folder: Path, most: int, *, ordered: bool) -> None:
        self._hold = Hold(folder)
        self._most, self._ordered = most, ordered
        self._waiting: set[int] = set()
        self._next = 0
        self._closed = False
        self._lock = threading.Lock()
        self.longest = 0
        """Most results that ever lay there."""

    def came(self, index: int) -> None:
        """Take note of a result that is there."""
        with self._lock:
            self._waiting.add(index)
            self.longest = max(self.longest, len(self._waiting))
            self._settle()

    def went(self, index: int) -> None:
        """Take note of a result that the consumer has taken."""
        with self._lock:
            self._waiting.discard(index)
            self._next = index + 1
            self._settle()

    def held(self) -> float:
        """Return for how long the workers have been told to wait, in seconds."""
        return self._hold.seconds

    def close(self) -> None:
        """Hold nobody any more."""
        with self._lock:
            self._closed = True
            self._settle()

    def _settle(self) -> None:
        full = len(self._waiting) >= self._most and (not self._ordered or self._next in self._waiting)
        self._hold.set(full and not self._closed)


class Stream:
    """The blocks of an execution, as they come.

    Parameters
    ----------
    execution
        Not run yet.
    ordered
        In the order of the tasks; else as tasks finish.
    ahead
        Finished tasks that may lie there untaken; ``None``: enough to keep the workers busy.
    limit
        Rows after which it ends; ``None``: all.
    """

    def __init__(self, execution: Execution, *, ordered: bool, ahead: int | None, limit: int | None) -> None:
        self._execution = execution
        self._ordered, self._limit = ordered, limit
        most = max(1, ahead) if ahead is not None else 2 * execution.options.workers + 2
        self.backlog = Backlog(execution.place.path, most, ordered=ordered)
        self._queue: SimpleQueue[tuple[int, bool] | None] = SimpleQueue()
        self._ended = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.fetch = Tally()
        """Mapping the results of a task, in seconds."""
        self.blocked = {"start": 0.0, "order": 0.0, "work": 0.0}
        """Seconds without a result that could be taken, by cause: see :class:`IterationSummary`."""
        self._cause = "start"
        execution.on_result = self._came
        execution.backpressure = self.backlog.held

    def _came(self, index: int, done: bool) -> None:
        if done:
            self.backlog.came(index)
        self._queue.put((index, done))

    def _work(self) -> None:
        try:
            self._execution.run()
        except BaseException as error:
            self._error = error
        finally:
            self._queue.put(None)

    def tables(self) -> Iterator[pa.Table]:
        """Run, and yield the blocks; closing this ends the run.

        Raises
        ------
        MapError
            A task failed; the blocks before it were yielded.
        """
        # Not a daemon: workers end with the thread that started them, and this one is always joined.
        self._thread = threading.Thread(target=self._work, name="workspan-dataset")
        self._thread.start()
        try:
            yield from self._limited(self._in_order() if self._ordered else self._as_they_come())
        finally:
            self.close()
        if self._error is not None:
            raise self._error

    def _limited(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        left = self._limit
        for table in tables:
            if left is None:
                box = [table]
            else:
                box = [first_rows(table, left)]
                left -= box[0].num_rows
            table = None
            yield box.pop()
            if left is not None and left <= 0:
                return

    def _as_they_come(self) -> Iterator[pa.Table]:
        while (found := self._next()) is not None:
            index, done = found
            if not done:
                return
            yield from self._taken(index)

    def _in_order(self) -> Iterator[pa.Table]:
        ready: set[int] = set()
        position = 0
        while (found := self._next()) is not None:
            index, done = found
            if not done:
                return
            ready.add(index)
            while position in ready:
                ready.discard(position)
                yield from self._taken(position)
                position += 1
            if ready:
                self._cause = "order"

    def _next(self) -> tuple[int, bool] | None:
        begin = time.perf_counter()
        found = self._queue.get()
        self.blocked[self._cause] += time.perf_counter() - begin
        self._cause = "work"
        self._ended = found is None
        return found

    def _taken(self, index: int) -> Iterator[pa.Table]:
        execution = self._execution
        begin = time.perf_counter()
        tables = tables_of(execution.runs[-1], index, forget=execution.tracking is None)
        self.fetch.add(time.perf_counter() - begin)
        self.backlog.went(index)
        while tables:
            yield tables.pop(0)

    def close(self) -> None:
        """End the run, if it goes on."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if not self._ended:
            (self._execution.place.path / STOP).touch()
        self._execution.stop.set()
        self.backlog.close()
        thread.join()


class Iteration:
    """Batches in the driver, and where their consumer's time went: every moment is in exactly one of its parts.

    Parameters
    ----------
    tables
        The blocks.
    size, form, zero_copy
        As for ``map_batches``.
    clock
        Monotonic clock, in seconds.
    """

    def __init__(
        self,
        tables: Iterator[pa.Table],
        size: BatchSize,
        form: BatchFormat,
        zero_copy: bool,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tables, self._size, self._form, self._zero_copy = tables, size, form, zero_copy
        self._clock = clock
        self._waiting, self._creating, self._formatting, self._user = Tally(), Tally(), Tally(), Tally()
        self._first_wait: float | None = None
        self._waited = 0.0
        self._begin = self._end = clock()
        self._rows = 0

    def batches(self) -> Iterator[Any]:
        """Yield the batches."""
        clock = self._clock
        self._begin = self._end = clock()
        cut = batches(self._watched(), self._size, where="iter_batches")
        try:
            while True:
                begin = clock()
                self._waited = 0.0
                try:
                    table = next(cut)
                except StopIteration:
                    self._waiting.add(self._waited)
                    return
                made = clock()
                self._rows += table.num_rows
                box = [batch_of(table, self._form, self._zero_copy)]
                table = None
                ready = clock()
                self._waiting.add(self._waited)
                self._creating.add(max(0.0, made - begin - self._waited))
                self._formatting.add(ready - made)
                if self._first_wait is None:
                    self._first_wait = ready - self._begin
                try:
                    yield box.pop()
                finally:
                    self._user.add(clock() - ready)
        finally:
            close = getattr(self._tables, "close", None)
            if close is not None:
                close()
            self._end = clock()

    def _watched(self) -> Iterator[pa.Table]:
        while True:
            begin = self._clock()
            box = []
            try:
                box.append(next(self._tables))
            except StopIteration:
                return
            finally:
                self._waited += self._clock() - begin
            yield box.pop()

    def summary(self, stream: Stream | None = None) -> IterationSummary:
        """Return where the time went so far.

        Parameters
        ----------
        stream
            Where the blocks come from, which knows what waiting was for.
        """
        from workspan.dataset.stats import IterationSummary

        return IterationSummary(
            total_seconds=self._end - self._begin,
            first_wait_seconds=self._first_wait,
            waiting=self._waiting.figure(),
            creating=self._creating.figure(),
            formatting=self._formatting.figure(),
            user=self._user.figure(),
            batches=self._user.count,
            rows=self._rows,
            fetch=None if stream is None else stream.fetch.figure(),
            blocked_seconds={} if stream is None else dict(stream.blocked),
        )

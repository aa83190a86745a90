"""The record of a run: what the scheduler reports goes to the store, the aggregates and the timelines, in one place.

There is one counter. What the report counts is what the store recorded is what the scheduler released.
"""

from __future__ import annotations

import logging
import mmap
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workspan.engines.logs import worker_log_basename
from workspan.errors import EngineError
from workspan.report.aggregate import TaskAggregate
from workspan.report.history import BlockSamples
from workspan.report.parts import BlockFailure, TaskPlace
from workspan.report.task import RunReport
from workspan.report.timeline import TaskTimeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from workspan.grid import Layout
    from workspan.measure.profile import BlockStats
    from workspan.report.task import TaskReport
    from workspan.run.clock import RunClock
    from workspan.run.costs import BlockCosts
    from workspan.schedule.events import Cause, Exit, SkipReason, Steps
    from workspan.schedule.state import TaskState
    from workspan.store.tracking import TrackingStore

logger = logging.getLogger(__name__)

FAILURES_TOLD = 5
"""Attempts of which :attr:`RunRecord.failures` knows."""

_WORST = ("completed", "incomplete", "abandoned", "interrupted", "error")


@dataclass
class TaskBook:
    """Everything that is kept of one task during a run."""

    task_id: str
    layout: Layout
    state: TaskState
    tracked: bool
    """Executed blocks must come back measured."""
    store: TrackingStore | None
    aggregate: TaskAggregate
    timeline: TaskTimeline = field(default_factory=TaskTimeline)
    costs: BlockCosts | None = None
    """Sums up what is done by its size; ``None``: all blocks are alike, or nobody asks."""
    samples: BlockSamples = field(default_factory=BlockSamples)
    times: memoryview[float] | None = None
    """Seconds of each executed block, 0 elsewhere; ``None`` if no block waits for another."""
    failed_before: dict[int, int] = field(default_factory=dict)
    """Block that is tried again -> attempts that have failed."""


class RunRecord:
    """Keeps the record of one run; a ``schedule.Recorder``.

    Parameters
    ----------
    run_id
        Identifies the run in reports and stores.
    books
        One entry a task, in display order.
    clock
        Turns the scheduler's times into stamps.
    has_workers
        Blocks travel to workers; without, no timeline is kept and blocks have no worker.
    log_dir
        Folder of the workers' logs, or ``None``.
    edges
        Pairs (upstream, downstream) of tasks, as positions in *books*; ``None``: not known, and so the span of a run of
        several tasks is not.

    Attributes
    ----------
    events
        Number of calls so far: changes whenever anything happened.
    failures
        The last attempts that failed, at most :data:`FAILURES_TOLD`: a number that counts them from 1, task, block,
        worker, when, cause, what was raised, and whether it was the block's last attempt.
    has_workers
        As given.
    stale_results, refused_messages
        As of the report; set by whoever counts them.
    """

    def __init__(
        self,
        run_id: str,
        books: Sequence[TaskBook],
        clock: RunClock,
        *,
        has_workers: bool,
        log_dir: Path | None,
        edges: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self.run_id = run_id
        self.books = list(books)
        self.events = 0
        self.failures: deque[tuple[int, int, int, int, float, Cause, str, bool]] = deque(maxlen=FAILURES_TOLD)
        self._clock = clock
        self._epoch = clock.at(0.0)
        self._has_workers = self.has_workers = has_workers
        self._log_dir = log_dir
        self._task_of: dict[int, int] = {}
        self._guests: set[int] = set()
        self.stale_results = self.refused_messages = 0
        self.listener: Callable[[str, int, bool], Any] = lambda task_id, index, done: None
        """Called in the run's thread with every block that is done, or given up, once that was recorded."""
        self._edges = edges
        self._span: tuple[list[float | None], float | None] | None = None
        self._has_times = True
        """Every task whose blocks wait for others has room for their times."""
        joined = {task for edge in edges or () for task in edge}
        for number, book in enumerate(self.books):
            if number in joined or book.layout.num_levels > 1:
                try:
                    book.times = _times(book.layout.num_blocks)
                except (OSError, MemoryError):  # a figure less, and not the run
                    self._has_times = False

    # -- the scheduler's calls -------------------------------------------------------------------------------------

    def worker_started(self, worker: int, task: int, now: float) -> None:
        """Begin the worker's timeline."""
        self.events += 1
        self._task_of[worker] = task
        if self._has_workers:  # else the scheduler's pseudo workers leave no trace in the report
            self.books[task].timeline.started(worker, now)

    def guest_joined(self, worker: int, task: int) -> None:
        """Count a client that was not started by this run."""
        self.events += 1
        self._task_of[worker] = task
        self._guests.add(worker)
        self.books[task].timeline.unmanaged()

    def worker_ready(self, worker: int, now: float) -> None:
        """End the worker's start-up."""
        self._timeline(worker).ready(worker, now)

    def block_granted(self, task: int, index: int, worker: int) -> None:
        """Write down that the block is about to leave, so that a killed run can say what was in flight."""
        store = self.books[task].store
        if store is not None:
            store.grant(index, self._label(worker))

    def block_sent(self, task: int, index: int, worker: int, sent_at: float, idle_seconds: float) -> None:
        """Add to the worker's idle time."""
        self.books[task].timeline.sent(worker, idle_seconds)

    def block_given_back(self, task: int, index: int) -> None:
        """Strike the block from what was in flight."""
        store = self.books[task].store
        if store is not None:
            store.ungrant(index)

    def block_done(
        self,
        task: int,
        index: int,
        worker: int,
        sent_at: float,
        returned_at: float,
        stats: BlockStats | None,
        steps: Steps | None,
    ) -> None:
        """Write the block to the store, then count it."""
        self.events += 1
        book = self.books[task]
        if book.tracked and stats is None:
            raise EngineError(
                f"block {index} of task {book.task_id!r} came back from worker {worker} without measurements, although "
                "the task has resource_tracking=True: wrap the work in workspan.profile_block(block)"
            )
        book.failed_before.pop(index, None)
        store = book.store
        if store is not None:
            label = self._label(worker) if self._has_workers else None
            store.record_done(index, stats, label, self._epoch + sent_at, self._epoch + returned_at, steps)
        elapsed = returned_at - sent_at
        times = book.times
        if times is not None:
            times[index] = stats.wall_seconds if stats is not None and book.tracked else elapsed
        book.aggregate.done(elapsed, stats, steps)
        if book.costs is not None:
            book.costs.take(index)
        samples = book.samples
        if samples.wait and worker in samples.workers:  # spares most blocks a call
            samples.wait -= 1
        else:
            samples.add(index, elapsed, worker)
        if self._has_workers:
            book.timeline.returned(worker, sent_at, returned_at, ok=True)
        self.listener(book.task_id, index, True)

    def attempt_failed(
        self,
        task: int,
        index: int,
        worker: int,
        sent_at: float,
        returned_at: float | None,
        cause: Cause,
        error: str,
        final: bool,
    ) -> None:
        """Count the attempt in the store and in the report; describe the block if it was the last one."""
        self.events += 1
        book = self.books[task]
        if book.store is not None:
            book.store.record_failure(index)
        attempts = book.failed_before.pop(index, 0) + 1
        if not final:
            book.failed_before[index] = attempts
        book.aggregate.failed(self._failure(task, index, worker, cause, error, attempts) if final else None)
        book.timeline.returned(worker, sent_at, returned_at, ok=False)
        at = self._clock.now() if returned_at is None else returned_at
        number = self.failures[-1][0] + 1 if self.failures else 1
        self.failures.append((number, task, index, worker, at, cause, error, final))
        if final:
            self.listener(book.task_id, index, False)

    def blocks_skipped(self, task: int, indices: Sequence[int] | Any, reason: SkipReason) -> None:
        """Count blocks that were not run; those found done by the check function are marked in the store."""
        self.events += 1
        book = self.books[task]
        if book.store is not None and reason == "check":
            book.store.mark_done(indices)
        book.aggregate.skipped(len(indices), reason)

    def worker_stopping(self, worker: int, now: float) -> None:
        """End the worker's final wait."""
        self._timeline(worker).stopping(worker, now)

    def worker_ended(self, worker: int, now: float, exit: Exit, text: str) -> None:
        """Close the worker's timeline."""
        self.events += 1
        self._timeline(worker).ended(worker, now, exit, text)

    def shut_down(self, now: float) -> None:
        """Note that the run is ending: workers that were not told so before are ending from now on."""
        for book in self.books:
            book.timeline.shut_down(now)

    # -- the end ---------------------------------------------------------------------------------------------------

    def report(self, *, outcome: str | None, ended_at: float) -> RunReport:
        """Close the record.

        Parameters
        ----------
        outcome
            ``"interrupted"`` or ``"error"``, or ``None`` to tell each task's outcome from its counters.
        ended_at
            When all workers had ended, on the monotonic clock.
        """
        started, seconds = self._clock.at(self._clock.start), ended_at - self._clock.start
        for book in self.books:
            if outcome is not None:
                book.timeline.interrupt(ended_at)
        if self._span is None:  # the times are used up by it
            self._span = self._spans()
        spans, whole = self._span
        tasks = {}
        for position, (book, span) in enumerate(zip(self.books, spans, strict=True)):
            place = TaskPlace(position, len(self.books), whole)
            tasks[book.task_id] = self._task_report(book, outcome, started, seconds, span, place)
        worst = max((task.outcome for task in tasks.values()), key=_WORST.index, default="completed")
        return RunReport(
            run_id=self.run_id,
            started_at=started,
            ended_at=started + seconds,
            wall_seconds=seconds,
            outcome=outcome or worst,
            tasks=tasks,
            span_seconds=whole,
            stale_results=self.stale_results,
            refused_messages=self.refused_messages,
        )

    def _spans(self) -> tuple[list[float | None], float | None]:
        """Longest path through each task, and through all.

        ``None`` where nothing ran, where the edges are not known, or if there is no memory for the search.
        """
        works = [book.aggregate.work()[0] for book in self.books]
        longest = [book.aggregate.longest() for book in self.books]
        try:
            own, whole = self._paths(longest)
        except MemoryError:
            logger.warning("the span of run %s is not known: there is no memory to find it", self.run_id)
            return [None] * len(self.books), None
        # Times are kept in single precision: a chain of all blocks must not seem longer than their sum.
        spans = [None if w is None else min(w, max(most, s)) for w, most, s in zip(works, longest, own, strict=True)]
        measured = [span for span in spans if span is not None]
        if not measured or (self._edges is None and len(self.books) > 1):
            return spans, None
        return spans, min(sum(work or 0.0 for work in works), max(whole, *measured))

    def _paths(self, longest: list[float]) -> tuple[list[float], float]:
        """Use up the times of the blocks for their longest paths."""
        times = [book.times for book in self.books]
        for book in self.books:
            book.times = None
        if not self._has_times:
            raise MemoryError
        if all(buffer is None for buffer in times):  # no block waits for another
            return longest, max(longest, default=0.0)
        from workspan.report.span import critical_paths

        return critical_paths([book.layout for book in self.books], self._edges or (), times, longest)

    def _task_report(
        self,
        book: TaskBook,
        outcome: str | None,
        started: float,
        seconds: float,
        span: float | None,
        place: TaskPlace,
    ) -> TaskReport:
        state = book.state
        own = "completed" if state.completed_count == state.total_block_count else "incomplete"
        if own == "incomplete":
            own = outcome or ("abandoned" if state.abandoned else own)
        return book.aggregate.report(
            run_id=self.run_id,
            task_id=book.task_id,
            started_at=started,
            ended_at=started + seconds,
            wall_seconds=seconds,
            outcome=own,
            tracking_path=None if book.store is None else str(book.store.path),
            orphaned=state.orphaned_count,
            workers=book.timeline.summary(),
            span_seconds=span,
            place=place,
        )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _label(self, worker: int) -> int | None:
        """Return the id under which stores and reports know *worker*; none without workers, or of a guest."""
        return worker if self._has_workers and worker not in self._guests else None

    def _timeline(self, worker: int) -> TaskTimeline:
        return self.books[self._task_of[worker]].timeline

    def _failure(self, task: int, index: int, worker: int, cause: Cause, error: str, attempts: int) -> BlockFailure:
        book = self.books[task]
        layout = book.layout
        read, write = layout.read_box(index), layout.write_box(index)
        log = None
        if self._log_dir is not None and self._label(worker) is not None:
            log = f"{worker_log_basename(self._log_dir, worker, book.task_id)}.err"
        return BlockFailure(
            cell=layout.cell(index),
            block_id=layout.block_id(index),
            read_begin=read[0],
            read_shape=tuple(e - b for b, e in zip(*read, strict=True)),
            write_begin=write[0],
            write_shape=tuple(e - b for b, e in zip(*write, strict=True)),
            attempts=attempts,
            cause=cause,
            error=error,
            worker=self._label(worker),
            log=log,
        )


def _times(count: int) -> memoryview[float]:
    """Return room for the seconds of *count* blocks, all 0, as float32.

    Its pages come into being when they are written, so blocks that never run cost no memory. numpy's zeros may get huge
    pages, which a few scattered blocks would fill.
    """
    pages = mmap.mmap(-1, 4 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if count else bytearray()
    return memoryview(pages).cast("f")

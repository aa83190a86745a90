"""Looks at a run for the time that it will still take: what the estimate is fed with, from counters that are there."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from threading import Lock
from typing import TYPE_CHECKING

from workspan.estimate.remaining import Left, Look, Remaining, Running

if TYPE_CHECKING:
    from workspan.grid import Layout
    from workspan.run.record import TaskBook
    from workspan.run.session import Session

__all__ = ["BlockSizes", "RunRemaining"]

LOOK_SECONDS = 0.2
"""Least time between two looks; who asks in between gets the last one's answer, counted down."""

MOST_LEVELS = 4096
"""Levels that are told apart."""


class BlockSizes:
    """What the blocks of a task write, in parts of a whole block, where those at the edge are clipped.

    Nothing is kept of a block but its part of a sum.
    """

    def __init__(self, layout: Layout) -> None:
        begin, end = layout.covered
        self._axes = []
        """Stride, count and size of the last block, of each axis where it is clipped."""
        clipped = []
        for b, e, w, stride, count in zip(begin, end, layout.write_shape, layout.strides, layout.counts, strict=True):
            over = (e - b) % w
            clipped.append((count - 1 + over / w) / count if over and count else 1.0)
            if over:
                self._axes.append((stride, count, over / w))
        self.mean = prod(clipped)
        self.done = 0.0

    @classmethod
    def of(cls, layout: Layout) -> BlockSizes | None:
        """Return the sizes, or ``None`` where all blocks are alike."""
        if layout.fit != "shrink" or not layout.num_blocks:
            return None
        sizes = cls(layout)
        return sizes if sizes._axes else None

    def size(self, index: int) -> float:
        """Return the size of a block; 1: whole."""
        size = 1.0
        for stride, count, last in self._axes:
            if index // stride % count == count - 1:
                size *= last
        return size

    def take(self, index: int) -> None:
        """Count a block that is done."""
        self.done += self.size(index)


class _Watched:
    """One task, as looked at."""

    def __init__(self, book: TaskBook) -> None:
        layout = book.layout
        self.book = book
        self.sizes = book.sizes
        self.firsts: dict[int, float] = {}
        self.first_units = 0.0
        self.known_skips = book.state.skipped_count
        self.levels: list[int] = []
        if 1 < layout.num_levels <= MOST_LEVELS:
            self.levels = list(accumulate(layout.level_size(level) for level in range(layout.num_levels)))
        self.remaining = Remaining(1 if self.sizes is None else 2)


class RunRemaining:
    """The time that each task of a run will still take. May be asked from any thread.

    Parameters
    ----------
    session
        The run.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tasks = [_Watched(book) for book in session.record.books]
        self._lock = Lock()
        self._looked_at = -1e300

    def look(self, now: float) -> list[Left | None]:
        """Return what is left of each task at *now*, in seconds of the run's clock; ``None`` where nothing is known."""
        with self._lock:
            if now >= self._looked_at + LOOK_SECONDS:
                self._looked_at = now
                self._look(now)
            return [watched.remaining.left(now) for watched in self._tasks]

    def _look(self, now: float) -> None:
        session = self._session
        upstream: dict[int, list[int]] = {}
        for up, down in session.spec.edges:
            upstream.setdefault(down, []).append(up)
        running, workers, ready = self._workers(now)
        before = 0.0
        for number, watched in enumerate(self._tasks):
            state = watched.book.state
            wait = 0.0
            if state.pending_count:
                found = (self._tasks[up].remaining.left(now) for up in upstream.get(number, ()))
                wait = max((left.value for left in found if left is not None), default=0.0)
            elif not watched.book.has_workers:
                wait = before  # tasks share one thread
            if watched.book.has_workers:
                look = self._seen(watched, now, running[number], workers[number], ready[number], wait)
            else:
                alone = len(self._tasks) == 1
                held = [(0, -1, 0.0)] if state.processing_count else []
                look = self._seen(watched, now, held, 1, int(alone), wait)
            watched.remaining.look(look)
            if (left := watched.remaining.left(now)) is not None:
                before = max(before, left.value)

    def _workers(self, now: float) -> tuple[list[list[tuple[int, int, float]]], list[int], list[int]]:
        """Return, by task: (worker, block, age) of each that runs, the number of workers, and of those started up."""
        count = len(self._tasks)
        running: list[list[tuple[int, int, float]]] = [[] for _ in range(count)]
        workers, ready = [0] * count, [0] * count
        dispatcher = self._session.dispatcher
        for slot in list(dispatcher.slots.values()) if dispatcher is not None else ():
            if slot.retired or slot.gone:
                continue
            if slot.held:
                running[slot.task].append((slot.worker, slot.held[0], max(0.0, now - slot.began_at)))
            elif slot.stopping:
                continue
            workers[slot.task] += 1
            ready[slot.task] += slot.has_asked
        return running, workers, ready

    def _seen(
        self,
        watched: _Watched,
        now: float,
        held: list[tuple[int, int, float]],
        workers: int,
        ready: int,
        upstream: float,
    ) -> Look:
        book, sizes, firsts = watched.book, watched.sizes, watched.firsts
        state, elapsed = book.state, book.aggregate.elapsed
        if book.has_workers:
            for worker, longest in book.timeline.first_blocks(firsts):
                firsts[worker] = longest
        elif elapsed.n and not firsts:
            firsts[-1] = elapsed.max  # the first one; if there are more, it is taken for the slowest
        number = min(len(firsts), elapsed.n)
        left = state.total_block_count - state.completed_count - state.failed_count - state.orphaned_count
        blocks = held[: max(left, 0)]
        units = [(1.0,) if sizes is None or index < 0 else (1.0, sizes.size(index)) for _, index, _ in blocks]
        running = [
            Running(age, unit, worker not in firsts) for (worker, _, age), unit in zip(blocks, units, strict=True)
        ]
        done = rest = None
        waiting = float(max(0, left - len(blocks)))
        if sizes is not None:
            # Which sizes the first blocks and those to come have is known only on the average.
            share = 1.0 - number / elapsed.n if elapsed.n else 0.0
            done = (float(elapsed.n - number), sizes.done * share)
            gone = elapsed.n + state.skipped_count + state.failed_count + state.orphaned_count + len(blocks)
            total = sizes.mean * state.total_block_count
            known = sizes.done + sum(sizes.size(index) for _, index, _ in blocks if index >= 0)
            others = sizes.mean * (gone - elapsed.n - len(blocks))
            rest = (waiting, max(0.0, total - known - others) if waiting else 0.0)
        chain = 1
        if watched.levels:
            passed = state.completed_count + state.failed_count + state.orphaned_count
            chain = max(1, sum(end > passed for end in watched.levels))
        return Look(
            at=now,
            blocks=elapsed.n,
            seconds=elapsed.total if elapsed.n else 0.0,
            squares=(elapsed.n - 1) * elapsed.std**2 + elapsed.n * elapsed.mean**2 if elapsed.n else 0.0,
            left=left,
            running=running,
            workers=workers,
            ready_workers=ready,
            firsts=number,
            first_seconds=sum(firsts.values()) if number else 0.0,
            first_squares=sum(t * t for t in firsts.values()) if number else 0.0,
            longest=elapsed.max if elapsed.n else 0.0,
            done=done,
            rest=rest,
            skipped=state.skipped_count - watched.known_skips,
            chain=chain,
            upstream=upstream,
        )

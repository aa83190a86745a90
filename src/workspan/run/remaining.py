"""Looks at a run for the time that it will still take: what the estimate is fed with, from counters that are there."""

from __future__ import annotations

from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING

from workspan.estimate.remaining import Left, Look, Remaining, Running
from workspan.run.costs import BlockCosts, costs_of, earlier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workspan.run.record import TaskBook
    from workspan.run.session import Session
    from workspan.run.task import Task

__all__ = ["RunRemaining"]

LOOK_SECONDS = 0.2
"""Least time between two looks; who asks in between gets the last one's answer, counted down."""

MOST_LEVELS = 4096
"""Levels that are told apart."""


class _Watched:
    """One task, as looked at."""

    def __init__(self, task: Task, book: TaskBook) -> None:
        layout = book.layout
        self.book = book
        self.known_skips = book.state.skipped_count
        self.levels: list[int] = []
        if 1 < layout.num_levels <= MOST_LEVELS:
            self.levels = list(accumulate(layout.level_size(level) for level in range(layout.num_levels)))
        known = earlier(task) if book.state.total_block_count > book.state.completed_count else None
        if known is not None and self.known_skips:
            known = known.without_places()  # nobody has summed up where the blocks are that need not run
        self.costs: BlockCosts | None = None
        if not book.aggregate.elapsed.n:  # else what is done can no longer be summed up
            self.costs = costs_of(task, layout, known)
        if self.costs is None:
            known = None
        self.startup = 0.0 if known is None else known.startup
        self.asked_at: float | None = None
        """When its first worker was asked for, as far as was seen."""
        self.is_history_first = known is not None
        self.are_alike = type(self.costs) in (BlockCosts, type(None))
        if not self.are_alike:
            book.costs = self.costs
        self.remaining = Remaining(
            1 if self.are_alike else 2,
            history=None if known is None else 0,
            history_spread=None if known is None else known.spread,
            first_extra=0.0 if known is None else known.first_extra,
            stragglers=None if known is None else known.stragglers,
        )

    def units(self, blocks: float, costs: float) -> tuple[float, ...]:
        """Return *blocks* that cost so much by each measure."""
        if self.are_alike:
            return (blocks if self.costs is None else blocks * self.costs.mean,)
        return (costs, blocks) if self.is_history_first else (blocks, costs)

    def block(self, index: int) -> tuple[float, ...]:
        """Return the size of one block by each measure."""
        return self.units(1.0, 0.0 if self.costs is None else self.costs.cost(index))


class RunRemaining:
    """The time that each task of a run will still take. May be asked from any thread.

    Best made before the first block is done: sizes are summed up from then on.

    Parameters
    ----------
    session
        The run.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._has_workers = session.record.has_workers
        self._tasks = [_Watched(*pair) for pair in zip(session.tasks, session.record.books, strict=True)]
        self._lock = Lock()
        self._looked_at = -1e300
        self._ended = 0

    def look(self, now: float) -> list[Left | None]:
        """Return what is left of each task at *now*, in seconds of the run's clock; ``None`` where nothing is known."""
        with self._lock:
            # A task that has just ended has nothing left, however short ago somebody looked.
            ended = sum(watched.book.state.is_done() for watched in self._tasks)
            if now >= self._looked_at + LOOK_SECONDS or ended != self._ended:
                self._looked_at, self._ended = now, ended
                self._look(now)
            return [watched.remaining.left(now) for watched in self._tasks]

    def _look(self, now: float) -> None:
        upstream: dict[int, list[int]] = {}
        for up, down in self._session.spec.edges:
            upstream.setdefault(down, []).append(up)
        running, workers, ready = self._workers(now)
        before = 0.0
        for number, watched in enumerate(self._tasks):
            state = watched.book.state
            wait = 0.0
            if state.pending_count:
                found = (self._tasks[up].remaining.left(now) for up in upstream.get(number, ()))
                wait = max((left.value for left in found if left is not None), default=0.0)
            if self._has_workers:
                if not state.worker_start_count and state.ready_count:
                    workers[number] = min(self._session.spec.tasks[number].max_workers, state.ready_count)
                look = self._seen(watched, now, running[number], workers[number], ready[number], wait)
            else:  # one thread for all tasks
                held = [(0, running[number][0][1], 0.0)] if running[number] else []
                look = self._seen(watched, now, held, 1, int(len(self._tasks) == 1), max(wait, before))
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
        book, costs, samples = watched.book, watched.costs, watched.book.samples
        state, elapsed = book.state, book.aggregate.elapsed
        count = elapsed.n
        firsts = [(watched.block(index), seconds) for index, seconds in samples.first[:count]]
        ended = state.completed_count + state.failed_count + state.orphaned_count
        left = state.total_block_count - ended
        known = samples.workers
        running = [
            Running(age, watched.block(index), worker not in known) for worker, index, age in held[: max(left, 0)]
        ]
        waiting = max(0, left - len(running))
        rest = watched.units(float(waiting), 0.0)
        if costs is not None and not watched.are_alike:
            begun = sum(costs.cost(index) for _, index, _ in held[: max(left, 0)])
            others = costs.mean * (ended - count)  # of those that did not run the sizes are not known
            ahead = max(0.0, costs.mean * state.total_block_count - costs.done - begun - others)
            rest = watched.units(float(waiting), ahead if waiting else 0.0)
        done = watched.units(float(count), 0.0 if costs is None else costs.done)
        for unit, _ in firsts:
            done = tuple(a - b for a, b in zip(done, unit, strict=True))
        starting = 0.0
        if self._has_workers and state.ready_count and not ready and not held:
            watched.asked_at = now if watched.asked_at is None else watched.asked_at
            starting = max(0.0, watched.startup - (now - watched.asked_at))
        largest = costs.largest(ended + len(running)) if costs is not None and waiting else None
        return Look(
            at=now,
            blocks=count,
            seconds=elapsed.total if count else 0.0,
            squares=(count - 1) * elapsed.std**2 + count * elapsed.mean**2 if count else 0.0,
            left=left,
            running=running,
            workers=workers,
            ready_workers=ready,
            starting=starting,
            firsts=len(firsts),
            first_seconds=sum(seconds for _, seconds in firsts),
            first_squares=sum(seconds * seconds for _, seconds in firsts),
            first_units=_sum(unit for unit, _ in firsts),
            longest=elapsed.max if count else 0.0,
            done=done,
            rest=rest,
            skipped=state.skipped_count - watched.known_skips,
            largest=None if largest is None else (largest[0], watched.units(1.0, largest[1])),
            chain=max(1, sum(end > ended for end in watched.levels)),
            upstream=upstream,
        )


def _sum(units: Iterable[tuple[float, ...]]) -> tuple[float, ...] | None:
    return tuple(sum(column) for column in zip(*units, strict=True)) or None

"""A run without workers: the scheduler itself, driven by a clock that jumps from event to event.

Whoever knows how long each block will take learns from it when the run will end, with all that the scheduler does:
conflicts, edges, budgets of resources, workers per task, grants that run ahead, skipped blocks. Beyond
:data:`EXACT_BLOCKS` blocks :func:`bounds` answers by levels, in a time that does not depend on the number of blocks.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

from workspan.schedule.dispatch import Dispatcher
from workspan.schedule.events import Ended, Ready, Returned, Send, StartWorker, StopWorker, TakeBack, TakenBack
from workspan.schedule.ledger import Ledger
from workspan.schedule.spec import PipelineSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from workspan.schedule.events import Decision, Event

__all__ = ["EXACT_BLOCKS", "Level", "Simulated", "Timing", "bounds", "simulate", "with_workers"]

EXACT_BLOCKS = 50_000
"""Largest number of blocks of a run that is simulated block by block (D46)."""


@dataclass(frozen=True)
class Timing:
    """How long what a task does takes, in seconds. Its functions are called once for each worker or block."""

    block: Sequence[float]
    """Each block, by index: from its grant to its return."""
    startup: Callable[[], float] = lambda: 0.0
    """A worker, from being asked for to its first request."""
    warm_up: Callable[[], float] = lambda: 0.0
    """The first block of a worker, beyond its own time."""
    gap: float = 0.0
    """From a return to the next block."""
    teardown: float = 0.0
    """A worker, from being told to end until it is gone."""
    cpu_share: float = 0.0
    """Processors that a block keeps busy while it runs."""


@dataclass(frozen=True)
class Simulated:
    """A simulated run. Times are seconds from its begin."""

    wall_seconds: float
    """Until the last worker was gone."""
    last_return: float
    """Until the last block was back."""
    executed: tuple[int, ...]
    """Blocks that ran, by task."""
    work_seconds: tuple[float, ...]
    """Sum of their times, by task; warm-ups are part of it, gaps are not."""
    workers: tuple[int, ...]
    """Workers that were started, by task."""
    most_alive: int
    """Most workers that were alive at the same time, of all tasks."""


def with_workers(pipeline: PipelineSpec, workers: int) -> PipelineSpec:
    """Return *pipeline* with so many workers a task."""
    return PipelineSpec(tuple(replace(spec, max_workers=workers) for spec in pipeline.tasks), pipeline.edges)


def simulate(
    pipeline: PipelineSpec,
    timings: Sequence[Timing],
    *,
    resources: Mapping[str, int] | None = None,
    flags: Sequence[Any] | None = None,
    cpus: float = inf,
) -> Simulated:
    """Run *pipeline* with blocks that take as long as *timings* say; nothing fails in it.

    Parameters
    ----------
    pipeline
        The rules, tasks in display order.
    timings
        One entry a task.
    resources
        Limits of what live workers may require together.
    flags
        One array a task as for :func:`workspan.schedule.resume.skip_known`: blocks that need not run.
    cpus
        Processors that there are: a block that begins while more are wanted takes as much longer.

    Raises
    ------
    ConfigurationError
        The pipeline cannot be run so.
    """
    # Nothing fails and nothing takes too long; a task without a function waits for clients: they are taken to come.
    rules = tuple(replace(spec, timeout=inf, has_function=True) for spec in pipeline.tasks)
    ledger = Ledger(PipelineSpec(rules, pipeline.edges))
    if flags is not None:
        from workspan.schedule.resume import skip_known

        skip_known(ledger, flags, lambda task, indices, reason: None)
    return _Run(Dispatcher(ledger, _Silent(), resources=resources), timings, cpus).all()


class _Silent:
    """A recorder of nothing."""

    def _pass(self, *args: Any) -> None:
        pass

    worker_started = guest_joined = worker_ready = block_sent = block_granted = block_given_back = _pass
    block_done = attempt_failed = blocks_skipped = worker_stopping = worker_ended = _pass


@dataclass(slots=True)
class _Worker:
    task: int
    held: deque[int] = field(default_factory=deque)
    """The first one runs."""
    is_warm: bool = False
    stops: bool = False


class _Run:
    """The engine of a simulated run: events are known ahead, in the order of their time."""

    def __init__(self, dispatcher: Dispatcher, timings: Sequence[Timing], cpus: float) -> None:
        self._dispatcher = dispatcher
        self._timings = timings
        self._cpus = cpus
        self._wanted = 0.0
        self._workers: dict[int, _Worker] = {}
        self._queue: list[tuple[float, int, Event]] = []
        self._number = 0
        self._executed = [0] * len(timings)
        self._work = [0.0] * len(timings)
        self._started = [0] * len(timings)
        self._most_alive = 0
        self._last_return = 0.0

    def all(self) -> Simulated:
        dispatcher, queue = self._dispatcher, self._queue
        now = 0.0
        self._act(dispatcher.start(now), now)
        while not dispatcher.finished:
            at = queue[0][0] if queue else inf
            # Between two events nothing changes but what is due by the clock, and that shows in the first tick or two.
            for _ in range(3):
                due = now + dispatcher.wait_seconds(now)
                if due >= at:
                    break
                now = due
                self._act(dispatcher.tick(now), now)
                at = queue[0][0] if queue else inf
            if not queue:
                break
            now, _, event = heapq.heappop(queue)
            if isinstance(event, Returned):
                self._returned(event, now)
            elif isinstance(event, Ended):
                del self._workers[event.worker]
            self._act(dispatcher.handle(event, now), now)
        return Simulated(
            wall_seconds=now,
            last_return=self._last_return,
            executed=tuple(self._executed),
            work_seconds=tuple(self._work),
            workers=tuple(self._started),
            most_alive=self._most_alive,
        )

    def _act(self, decisions: list[Decision], now: float) -> None:
        for decision in decisions:
            if isinstance(decision, Send):
                worker = self._workers[decision.worker]
                worker.held.append(decision.index)
                if len(worker.held) == 1:
                    self._begin(decision.worker, worker, now + self._timings[worker.task].gap)
            elif isinstance(decision, StartWorker):
                self._workers[decision.worker] = _Worker(decision.task)
                self._started[decision.task] += 1
                self._most_alive = max(self._most_alive, len(self._workers))
                self._put(now + self._timings[decision.task].startup(), Ready(decision.worker))
            elif isinstance(decision, StopWorker):
                worker = self._workers[decision.worker]
                worker.stops = True
                if not worker.held:
                    self._end(decision.worker, worker, now)
            elif isinstance(decision, TakeBack):
                held = self._workers[decision.worker].held
                back = tuple(held)[1:]
                while len(held) > 1:
                    held.pop()
                self._put(now, TakenBack(decision.worker, back))

    def _begin(self, number: int, worker: _Worker, now: float) -> None:
        timing = self._timings[worker.task]
        index = worker.held[0]
        seconds = timing.block[index]
        if not worker.is_warm:
            worker.is_warm = True
            seconds = max(0.0, seconds + timing.warm_up())
        self._wanted += timing.cpu_share
        if self._wanted > self._cpus:
            seconds *= self._wanted / self._cpus
        self._work[worker.task] += seconds
        self._put(now + seconds, Returned(number, index, True))

    def _returned(self, event: Returned, now: float) -> None:
        worker = self._workers[event.worker]
        worker.held.popleft()
        self._wanted -= self._timings[worker.task].cpu_share
        self._executed[worker.task] += 1
        self._last_return = now
        if worker.held:
            self._begin(event.worker, worker, now)
        elif worker.stops:
            self._end(event.worker, worker, now)

    def _end(self, number: int, worker: _Worker, now: float) -> None:
        self._put(now + self._timings[worker.task].teardown, Ended(number, True, "exit code 0"))

    def _put(self, at: float, event: Event) -> None:
        self._number += 1
        heapq.heappush(self._queue, (at, self._number, event))


# -- beyond what is simulated ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """Blocks of one task of which none waits for another."""

    blocks: int
    work_seconds: float
    longest_seconds: float


def bounds(
    levels: Sequence[Sequence[Level]], edges: Sequence[tuple[int, int]], workers: Sequence[int]
) -> tuple[float, float, float]:
    """Return the expected makespan of a run of any size, and what it cannot be below or above, in seconds.

    A level of work W and longest block M takes between ``max(W / p, M)`` and ``W / p + M`` on p workers that are never
    idle by choice (Graham); levels of a task follow each other. Tasks behind each other overlap block by block: they
    take at least what the longest of them takes, at most what they take one after the other.

    Parameters
    ----------
    levels
        The levels of each task, in order.
    edges
        Pairs (upstream, downstream) of tasks, every upstream one first.
    workers
        Workers of each task, above 0.
    """
    expected: list[float] = []
    least: list[float] = []
    most: list[float] = []
    for number, (own, count) in enumerate(zip(levels, workers, strict=True)):
        usual = low = high = 0.0
        for level in own:
            if not level.blocks:
                continue
            share = level.work_seconds / min(count, level.blocks)
            mean = level.work_seconds / level.blocks
            low += max(level.work_seconds / count, level.longest_seconds)
            high += level.work_seconds / count + level.longest_seconds
            # At the end of a level its last blocks are, on the average, half done by all workers but one.
            usual += max(share + mean * (min(count, level.blocks) - 1) / (2 * count), level.longest_seconds)
        low = min(low, usual)
        first = min((level.work_seconds / level.blocks for level in own if level.blocks), default=0.0)
        before = [up for up, down in edges if down == number]
        # Behind others it begins with their first blocks and cannot end before its last block after theirs.
        expected.append(
            max([usual + max((first for _ in before), default=0.0)] + [expected[up] + first for up in before])
        )
        least.append(max([low] + [least[up] for up in before]))
        most.append(high + max((most[up] for up in before), default=0.0))
    return max(expected, default=0.0), max(least, default=0.0), max(most, default=0.0)

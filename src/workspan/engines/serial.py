"""The serial engine: blocks run in the calling thread, one after another."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from workspan.engines.block import end_fork, run_block
from workspan.engines.common import NoClients, OneJob
from workspan.errors import EngineError
from workspan.grid.block import Block, BlockStatus
from workspan.measure.profile import Profile, close_counters
from workspan.measure.sections import Collector
from workspan.schedule.events import Ended, Ready, Returned, TakenBack

if TYPE_CHECKING:
    from workspan.engines.base import Job, WorkerTask
    from workspan.schedule.events import Event


class Serial(NoClients, OneJob):
    """Runs blocks inside :meth:`poll`, in the thread that calls it.

    A worker is only a name here: it has no process, and a block that runs cannot be killed. Output, debuggers and
    breakpoints work as in any function call. A real ``KeyboardInterrupt`` leaves :meth:`poll`; the block that it
    interrupted is not reported and counts as held.
    """

    name = "serial"
    has_workers = False

    def __init__(self) -> None:
        self._tasks: tuple[WorkerTask, ...] | None = None
        self._profile: Profile | None = None
        self._collector = Collector()
        self._workers: dict[int, WorkerTask] = {}
        self._held: dict[int, int] = {}
        self._stopping: set[int] = set()
        self._queue: deque[tuple[int, int]] = deque()
        self._events: list[Event] = []
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def open(self, job: Job) -> None:
        """Get ready to run *job*.

        Raises
        ------
        EngineError
            The engine is open already, or a task has no function.
        """
        if self._tasks is not None:
            raise EngineError("this serial engine is running a job already: give each run an engine of its own")
        for task in job.tasks:
            if task.function is None:
                raise EngineError(
                    f"task {task.task_id!r} has no block function, so the serial engine cannot run it: give it a "
                    "process_function or use engine='processes'"
                )
        self._tasks = job.tasks
        self._collector.__enter__()

    def start_worker(self, worker: int, task: int) -> None:
        """Let *worker* take blocks of *task*."""
        if self._tasks is None:
            raise EngineError("the serial engine is not open: call open(job) first")
        self._workers[worker] = self._tasks[task]
        self._held[worker] = 0
        self._events.append(Ready(worker))

    def send(self, worker: int, index: int) -> None:
        """Put block *index* into the queue.

        Raises
        ------
        EngineError
            The worker was told to stop before.
        """
        if worker in self._stopping:
            raise EngineError(f"worker {worker} was told to stop: it takes no more blocks")
        if worker in self._workers:
            self._held[worker] += 1
            self._queue.append((worker, index))

    def stop_worker(self, worker: int) -> None:
        """Let *worker* end after what it holds."""
        if worker in self._workers:
            if self._held[worker]:
                self._stopping.add(worker)
            else:
                self._end(worker, clean=True, reason="stopped")

    def kill_worker(self, worker: int) -> None:
        """End *worker* with what it holds; between blocks, since the block that runs cannot be ended."""
        if worker in self._workers:
            self._queue = deque(pair for pair in self._queue if pair[0] != worker)
            self._end(worker, clean=False, reason="killed between two blocks")

    def take_back(self, worker: int) -> None:
        """Take nothing back: all blocks run in one thread, and none waits behind another one's worker."""
        if worker in self._workers:
            self._events.append(TakenBack(worker, ()))

    def poll(self, timeout: float | None) -> list[Event]:
        """Return what is to be reported, or else run the next block, or else wait up to *timeout* seconds."""
        if self._wakes.empty() and not self._events:
            if self._queue:
                self._run(*self._queue[0])
            else:
                self._wait(timeout)
        self._clear_wakes()
        events, self._events = self._events, []
        return events

    def wake(self) -> None:
        """Make the ``poll`` that waits, or else the next one, return; a block that runs is not interrupted."""
        self._wakes.put(None)

    def close(self, grace: float = 0.0) -> list[Event]:
        """End all workers; blocks in the queue are not run."""
        for worker in list(self._workers):
            held = self._held[worker]
            self._end(worker, clean=not held, reason=f"ended with {held} blocks not run" if held else "stopped")
        self._queue.clear()
        if self._tasks is not None:
            self._collector.__exit__()
            close_counters()
        self._tasks = self._profile = None
        self._clear_wakes()
        events, self._events = self._events, []
        return events

    def _run(self, worker: int, index: int) -> None:
        task = self._workers[worker]
        assert task.function is not None
        if task.resource_tracking and self._profile is None:
            self._profile = Profile()
        block = Block.at(task.layout, index, task.task_id, BlockStatus.PROCESSING)
        profile = self._profile if task.resource_tracking else None
        try:
            outcome = run_block(task.function, block, profile, self._collector, pass_on=(KeyboardInterrupt,))
        except BaseException as error:
            end_fork(self._collector, block, error)
            raise
        end_fork(self._collector, block)
        self._queue.popleft()
        self._held[worker] -= 1
        result = Returned(worker, index, outcome.ok, outcome.error, outcome.stats, outcome.steps, outcome.final)
        self._events.append(result)
        if worker in self._stopping and not self._held[worker]:
            self._end(worker, clean=True, reason="stopped")

    def _end(self, worker: int, *, clean: bool, reason: str) -> None:
        del self._workers[worker], self._held[worker]
        self._stopping.discard(worker)
        self._events.append(Ended(worker, clean, reason))

    def _wait(self, timeout: float | None) -> None:
        # SimpleQueue: its put is the one operation that a signal handler may do while this thread waits in get.
        with suppress(Empty):
            self._wakes.get(timeout=timeout)

    def _clear_wakes(self) -> None:
        while not self._wakes.empty():
            self._wakes.get()

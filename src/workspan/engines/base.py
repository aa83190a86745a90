"""What an engine is told and what it promises.

An engine carries blocks to user code and back. It decides nothing: retries, deadlines, budgets and the order of blocks
belong to the scheduler. Every engine keeps these promises, and the contract suite (`tests/engines/test_contract.py`)
checks them:

1. After ``start_worker(w, t)`` at most one ``Ready(w)`` and exactly one ``Ended(w)`` follow, however the worker fares;
   a worker that cannot be started at all is reported as ended too. ``start_worker`` itself does not raise for it.
   A worker that asks for each block (its ``Ready`` says ``on_demand``) is ready again with each request, and is sent
   one block a request.
2. Each ``send(w, index)`` is answered by one ``Returned(w, index)``, in the order of the sends, or by none at all if
   ``Ended(w)`` comes first, or ``Dropped(w)`` from a worker on demand. What was sent and not returned then is lost; as
   far as the engine knows that it was never begun, ``Ended`` says so (``unstarted``).
3. Events of one worker keep their order: ``Ready``, then ``Returned``..., then ``Ended``, and nothing after it. A
   result that left the worker before it died is reported before its end. Between workers there is no order.
4. A worker can hold several indices. It runs them one after another, in the order of the sends, and reports each as
   soon as it is finished; the next one is begun without a message in between.
5. ``send``, ``stop_worker`` and ``kill_worker`` for a worker that has already ended, or whose end has not been polled
   yet, do nothing. They may be kept back until the next ``poll`` or ``close``.
6. ``take_back(w)`` is answered by one ``TakenBack(w, indices)``: blocks that the worker will not run, always the last
   ones sent and never the first one that it holds. An engine that cannot take anything back answers with none.
7. ``poll`` returns as soon as there is an event, and an empty list when the time is up or after :meth:`Engine.wake`.
8. After ``close`` nothing that the engine started is left, and the engine can be opened again.

All calls come from one thread, except ``wake`` and ``give_up``. That thread must live as long as the run: a worker
process ends when the thread that started it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from workspan.grid.block import Block

if TYPE_CHECKING:
    from types import TracebackType

    from workspan.engines.context import Context
    from workspan.grid.layout import Layout
    from workspan.schedule.events import Event

BlockFunction = Callable[[Block], Any]
"""User code of one block; what it returns is ignored."""


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What a worker must know of a task."""

    task_id: str
    layout: Layout
    function: Callable[..., Any] | None
    """A block function or a worker function; ``None``: the engine starts no workers for it."""
    kind: Literal["block", "worker"] = "block"
    """``"block"``: called with each block. ``"worker"``: called once a worker; its client asks for the blocks."""
    takes_context: bool = False
    """The worker function wants its client's context, as ``context=``."""
    resource_tracking: bool = False
    """Measure every block."""
    timeout: float | None = None
    """Deadline of one block, in seconds, for engines whose workers watch themselves; the others ignore it."""
    max_workers: int = 1
    """Most workers that it has at a time."""
    requires: Mapping[str, int] = field(default_factory=dict)
    """What one worker needs, by name, for engines that place workers by it; the others ignore it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: its tasks, by number, and where its workers write."""

    run_id: str
    tasks: tuple[WorkerTask, ...]
    log_dir: Path | None = None
    """Folder of the workers' output, one folder a task in it; ``None``: they write to the driver's own streams."""
    shows_logs: bool = False
    """Whether what they write to files is shown on the driver's streams too."""
    listen: bool = False
    """Let clients and guests connect, also if no task needs them."""
    host: str | None = None
    """Address of this machine that they dial; ``None``: found out, or loopback if nobody from outside is expected."""


class Engine(Protocol):
    """Runs blocks. See the module's text for what each call promises."""

    name: str
    """How people choose it: ``engine="processes"``."""
    has_workers: bool
    """Whether its workers have a life of their own, so that a timeline of them makes sense."""
    has_clients: bool
    """Whether clients can connect: for worker functions, tasks without a function, and guests."""

    def open(self, job: Job) -> None:
        """Get ready to run *job*. Nothing runs before :meth:`start_worker`.

        Raises
        ------
        EngineError
            The engine is open already, or something of *job* cannot be run by this engine: a function that cannot be
            sent to a worker, a log folder that cannot be written.
        """

    def start_worker(self, worker: int, task: int) -> None:
        """Start the worker number *worker*, never used before, for task number *task*."""

    def send(self, worker: int, index: int) -> None:
        """Give block *index* to a worker that has reported ``Ready`` and was not told to stop.

        Raises
        ------
        EngineError
            It was told to stop.
        """

    def stop_worker(self, worker: int) -> None:
        """Let a worker end after what it holds."""

    def kill_worker(self, worker: int) -> None:
        """End a worker at once, with everything that it started. What it holds is lost."""

    def take_back(self, worker: int) -> None:
        """Take back what *worker* has not begun, as far as that can be done without waiting for it."""

    def admit(self, guest: int, worker: int | None) -> None:
        """Answer a ``Joined(guest)``: it is worker number *worker* from now on, or with ``None`` is sent away.

        Engines that never report ``Joined`` are never told this.
        """

    @property
    def refused_messages(self) -> int:
        """Messages of clients that could not be accepted, in this run or the last one."""

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that clients dial; ``None`` when nothing listens."""

    def context(self, task: int, worker: int | None = None) -> Context:
        """Return what the client of a worker, or a guest, needs to work for task number *task*.

        Raises
        ------
        EngineError
            Nothing listens for clients; also for :meth:`context_file`.
        """

    def context_file(self, task: int) -> Path:
        """Return a file with the context of guests of task number *task*, which only its owner can read."""

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait until something happened and return it.

        Parameters
        ----------
        timeout
            Longest wait in seconds; ``None``: no limit.
        """

    def wake(self) -> None:
        """Make the ``poll`` that waits, or else the next one, return. Safe in other threads and signal handlers."""

    def give_up(self) -> None:
        """Make an ``open`` that waits for somebody's answer fail. Safe in other threads and signal handlers."""

    def close(self, grace: float = 0.0) -> list[Event]:
        """End all workers and give back everything the engine holds. Does nothing when it is closed already.

        Parameters
        ----------
        grace
            Seconds in which workers may finish what they hold; those that do not are killed.

        Returns
        -------
        list of Event
            What came back meanwhile, and one ``Ended`` for each worker that was left.
        """

    def __enter__(self) -> Engine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

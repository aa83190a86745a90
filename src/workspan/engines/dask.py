"""The engine that runs blocks on a Dask cluster.

Each of our workers is one *long-running task* of Dask that lives as long as the worker does, and owns one worker process
beside Dask's own (`host.py`). Why so, and not otherwise:

- A task that runs holds its thread and its ``resources`` for as long as it runs, so Dask places our workers as it places
  everybody's work, counts them as load, and grows an adaptive cluster for those that wait. An actor holds neither once
  it is made, and a task that secedes gives its thread away. For the same reason blocks are no tasks of Dask: there would
  be two schedulers with two ideas of retries, order and deadlines, and Dask's would cost a millisecond a block.
- The task is submitted with ``pure=False`` and ``retries=0`` and is tied to no worker: while it waits Dask may move it
  to one that joins late. Once it runs, stealing leaves it alone. If its Dask worker dies, Dask would run it again
  somewhere else: it is cancelled then, and a copy that has begun already is turned away. What is run again is decided by
  our scheduler alone.
- User code runs in a process of its own and not in Dask's: it can be killed at its deadline without a Dask worker's
  death, it is measured alone, and it may crash. What it costs: what lives in the memory of a Dask worker (plugins,
  persisted data) is not seen by block functions, and Dask's own memory limit does not watch them; this module does.

Messages travel through queues of Dask's scheduler (``distributed.Queue``): one to each worker and one for all answers.
Nothing listens, and driver and workers never connect to each other.

This module is imported on both sides; nothing of it imports Dask before an engine is opened.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import secrets
from collections import deque
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from workspan.engines import wire
from workspan.engines.logs import prepare_folder
from workspan.engines.remote import (
    Kill,
    Lost,
    Placed,
    Recall,
    Roster,
    pack_commands,
    pack_reports,
    start_values,
    unpack_reports,
)
from workspan.errors import EngineError
from workspan.schedule.events import Ended, TakenBack

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import TracebackType

    from workspan.engines.base import Job
    from workspan.engines.context import Context
    from workspan.engines.remote import Command, Report, Seat
    from workspan.schedule.events import Event

__all__ = ["Dask", "be_worker"]

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
"""Longest time in which the scheduler must answer."""
KILL_SECONDS = 2.0
"""Time from SIGTERM to SIGKILL."""
START_SECONDS = 300.0
"""Time in which a worker process must have loaded the user's function, once it has a place."""
LEAVE_SECONDS = 40.0
"""Time in which a worker whose Dask worker is retired must have said its last word: Dask gives it 30 s."""
END_SECONDS = 10.0
"""Longest time for the workers to end when the engine is closed, besides their grace."""
PATIENCE_SECONDS = 2.0
"""How long a worker may wait for a place before one that idles makes room for it."""
NOTICE_SECONDS = 5.0
"""How long a run has no worker at all before it says so."""
_RPC_SECONDS = 5.0


class Dask:
    """Runs blocks on the workers of a Dask cluster.

    Parameters
    ----------
    client_or_address
        A ``distributed.Client``, a cluster object, or the address of a scheduler: ``"tcp://host:8786"`` (also
        ``"dask://host:8786"``, or ``"host:8786"``). The engine makes a connection of its own to that scheduler. Default: a
        cluster on this machine for the time of the run, with one Dask worker for each worker of the run.
    workers
        Addresses of the Dask workers that may be used; default: all of them.
    security
        TLS settings of the connection, a ``distributed.Security``; default: those of the client or cluster.
    kill_seconds
        Time from SIGTERM to SIGKILL for a worker that is killed.
    start_seconds
        Time that a worker process has to start once it has a place, the imports of the user's function included.

    Notes
    -----
    The ``requires`` of a task are Dask resources: ``requires={"GPU": 1}`` takes one of the ``GPU`` that a Dask worker was
    started with (``dask worker --resources GPU=2``).
    """

    name = "dask"
    has_workers = True
    has_clients = False
    address = None
    refused_messages = 0
    wire_seconds = 0.005
    """How long a worker waits for a block that it asks for."""

    def __init__(
        self,
        client_or_address: Any = None,
        *,
        workers: list[str] | None = None,
        security: Any = None,
        kill_seconds: float = KILL_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._where = client_or_address
        self._workers = workers
        self._security = security
        self._kill_seconds = kill_seconds
        self._start_seconds = start_seconds
        self._wakes: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
        self._reset()

    def _reset(self) -> None:
        self._job: Job | None = None
        self._pid = 0
        self._starts: list[dict[str, Any]] = []
        self._roster = Roster()
        self._events: list[Event] = []
        self._link: _Link | None = None
        self._cluster: Any = None
        self._token_file: Path | None = None
        self._fatal: BaseException | None = None
        self._empty_since = inf
        """Since when workers wait for a place and none has one."""
        self._told_of_logs = False

    def open(self, job: Job) -> None:
        """Connect to the scheduler, or start a cluster; no worker is asked for yet.

        Raises
        ------
        EngineError
            The engine is open already, Dask is not installed, no scheduler answers, a function cannot be sent, or a log
            folder cannot be made.
        """
        if self._job is not None:
            raise EngineError("this engine is running a job already: give each run an engine of its own")
        _require_distributed()
        starts = start_values(job, kill_seconds=self._kill_seconds, start_seconds=self._start_seconds)
        self._reset()
        self._wakes = queue.SimpleQueue()
        self._starts = starts
        self._pid = os.getpid()
        self._job = job
        try:
            if job.log_dir is not None:
                self._mark_folder(job)
            self._connect(job)
        except BaseException:
            self.close()
            raise

    def _mark_folder(self, job: Job) -> None:
        from workspan.engines.host import TOKEN_NAME

        assert job.log_dir is not None
        for task in job.tasks:
            prepare_folder(job.log_dir, task.task_id)
        token = job.log_dir / TOKEN_NAME.format(run_id=job.run_id)
        token.touch()
        self._token_file = token

    def _connect(self, job: Job) -> None:
        address, security = self._where, self._security
        if address is None:
            from distributed import LocalCluster

            # Dask gives each of its workers a part of the memory, and kills those that use more; block functions do not
            # run in them.
            count = max((task.max_workers for task in job.tasks), default=1)
            needs: dict[str, float] = {}
            for task in job.tasks:
                needs |= {name: max(needs.get(name, 0), amount) for name, amount in task.requires.items()}
            self._cluster = address = LocalCluster(
                n_workers=count, threads_per_worker=1, dashboard_address=None, resources=needs or None
            )
        if not isinstance(address, str):
            security = security if security is not None else getattr(address, "security", None)
            address = _address_of(address)
        self._link = _Link(scheduler_address(address), security, job.run_id, self._wakes)

    # -- what the engine is told -------------------------------------------------------------------------------------

    def start_worker(self, worker: int, task: int) -> None:
        """Ask Dask for a place for *worker*; it is ready when it has got one and its process has started."""
        job = self._require_job()
        assert self._link is not None
        now = monotonic()
        self._roster.add(worker, task, now)
        if not any(seat.placed for seat in self._roster.seats.values()):
            self._empty_since = min(self._empty_since, now)
        start = {**self._starts[task], "worker": worker, "queue": self._link.answers}
        self._link.submit(worker, start, job.tasks[task].requires, self._workers)

    def send(self, worker: int, index: int) -> None:
        """Send block *index* to *worker*.

        Raises
        ------
        EngineError
            The worker was told to stop before.
        """
        seat = self._roster.grant(worker, index)
        if seat is not None:
            self._tell(seat, wire.Grant(index))

    def stop_worker(self, worker: int) -> None:
        """Let *worker* end after what it holds; one that has no place yet ends at once."""
        seat = self._roster.seats.get(worker)
        if seat is None or seat.stop_sent:
            return
        seat.stop_sent = True
        if seat.placed is None:
            self._withdraw(seat, clean=True, reason="stopped before it had a place")
        else:
            self._tell(seat, wire.Stop())

    def kill_worker(self, worker: int) -> None:
        """End *worker*'s process: SIGTERM to it and all that it started, SIGKILL a little later."""
        seat = self._roster.seats.get(worker)
        if seat is not None and not seat.kill_sent:
            self._kill(seat, self._kill_seconds)

    def take_back(self, worker: int) -> None:
        """Ask *worker* for what it has not begun; the answer comes with a later :meth:`poll`."""
        seat = self._roster.seats.get(worker)
        if seat is not None and seat.placed is not None:
            self._tell(seat, Recall())
        elif seat is not None:
            self._events.append(TakenBack(worker, ()))

    def admit(self, guest: int, worker: int | None) -> None:
        """Refuse: nobody can join from outside.

        Raises
        ------
        EngineError
            Always; also from :meth:`context` and :meth:`context_file`.
        """
        raise EngineError("no client can connect to the dask engine: add Dask workers to the cluster instead")

    def context(self, task: int, worker: int | None = None) -> Context:
        """Refuse: there is nothing to connect to."""
        raise EngineError("no client can connect to the dask engine: run with engine='processes'")

    def context_file(self, task: int) -> Path:
        """Refuse: there is nothing to connect to."""
        raise EngineError("no client can connect to the dask engine: run with engine='processes'")

    # -- what it tells -----------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait until something happened, at most *timeout* seconds, and return it.

        Raises
        ------
        EngineError
            The scheduler is gone.
        """
        self._require_job()
        end = inf if timeout is None else monotonic() + timeout
        woken = False
        while not (self._events or woken):
            if self._fatal is not None:
                raise self._fatal
            now = monotonic()
            woken = self._look(max(0.0, min(end, self._due(now)) - now))
            now = monotonic()
            self._look_after_places(now)
            if now >= end:
                break
        events, self._events = self._events, []
        return events

    def wake(self) -> None:
        """Make the ``poll`` that waits, or else the next one, return. Safe in other threads and signal handlers."""
        self._wakes.put(None)

    def close(self, grace: float = 0.0) -> list[Event]:
        """End all workers, wait for their ends, and leave nothing on the cluster.

        Parameters
        ----------
        grace
            Seconds in which workers may finish what they hold. Then their processes get SIGTERM and, a little later,
            SIGKILL; with 0 they get SIGKILL at once.

        Returns
        -------
        list of Event
            What came back meanwhile, and one ``Ended`` for each worker that was left.
        """
        if self._job is None or os.getpid() != self._pid:
            return []
        try:
            if grace > 0:
                for worker in list(self._roster.seats):
                    self.stop_worker(worker)
                self._wait_for_ends(grace)
                for seat in list(self._roster.seats.values()):
                    self._kill(seat, self._kill_seconds)
                self._wait_for_ends(self._kill_seconds)
        finally:
            self._end_all()
            events, self._events = self._events, []
            self._reset()
        return events

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _require_job(self) -> Job:
        if self._job is None:
            raise EngineError("the engine is not open: call open(job) first")
        return self._job

    def _tell(self, seat: Seat, command: Command) -> None:
        if self._link is not None and seat.placed is not None:
            self._link.tell(seat.placed, command)

    def _kill(self, seat: Seat, seconds: float) -> None:
        seat.kill_sent = True
        if seat.placed is None:
            self._withdraw(seat, clean=False, reason="killed before it had a place")
        else:
            self._tell(seat, Kill(seconds))

    def _withdraw(self, seat: Seat, *, clean: bool, reason: str) -> None:
        """End a worker that has no place: nothing of it has begun, so far as anybody knows."""
        del self._roster.seats[seat.worker]
        self._forget(seat.worker)
        self._events.append(Ended(seat.worker, clean, reason, unstarted=tuple(seat.held)))

    def _forget(self, worker: int) -> None:
        if self._link is not None:
            self._link.forget(worker)

    def _look(self, seconds: float | None) -> bool:
        """Wait for one message, take it and those behind it; whether :meth:`wake` was called."""
        woken = False
        with suppress(queue.Empty):
            item = self._wakes.get(timeout=None if seconds == inf else seconds)
            while True:
                if item is None:
                    woken = True
                elif isinstance(item, bytes):
                    self._take(unpack_reports(item))
                else:
                    self._fatal = item
                item = self._wakes.get_nowait()
        return woken

    def _take(self, reports: list[Report]) -> None:
        events, strangers = self._roster.take(reports, monotonic())
        for placed in strangers:
            if self._link is not None:
                self._link.tell(placed, Kill(0.0))
        for report in reports:
            if isinstance(report, Placed):
                self._empty_since = inf
                self._note_logs(report)
                if self._link is not None:
                    self._link.note(report)
        for event in events:
            if isinstance(event, Ended):
                self._forget(event.worker)
        self._events += events

    def _note_logs(self, placed: Placed) -> None:
        if not placed.logs_in_files and self._require_job().log_dir is not None and not self._told_of_logs:
            self._told_of_logs = True
            logger.warning(
                "the log folder %s cannot be seen on %s: what workers print there is in the output of the Dask workers",
                self._require_job().log_dir,
                placed.host,
            )

    def _due(self, now: float) -> float:
        waiting = self._roster.waiting()
        if not waiting:
            return inf
        return min(self._empty_since + NOTICE_SECONDS, now + PATIENCE_SECONDS / 2)

    def _look_after_places(self, now: float) -> None:
        if (seat := self._roster.replaceable(now, PATIENCE_SECONDS)) is not None:
            # Its task has no block for it now, and gets it a new place when there is one.
            seat.stop_sent = True
            self._tell(seat, wire.Stop())
        if now >= self._empty_since + NOTICE_SECONDS:
            self._empty_since = inf
            self._say_that_none_works()

    def _say_that_none_works(self) -> None:
        needs = sorted({need for seat in self._roster.waiting() for need in self._needs(seat)})
        assert self._link is not None
        logger.warning(
            "no worker has got a place on the Dask cluster %s yet (Dask workers there: %s)%s: the run waits, and goes on "
            "when one is free or joins",
            self._link.where,
            self._link.worker_count(),
            f"; needed are {', '.join(needs)}" if needs else "",
        )

    def _needs(self, seat: Seat) -> Iterator[str]:
        for name, amount in self._require_job().tasks[seat.task].requires.items():
            yield f"{amount} {name}"

    def _wait_for_ends(self, seconds: float) -> None:
        end = monotonic() + seconds
        while self._roster.seats and self._fatal is None and (left := end - monotonic()) > 0:
            self._look(left)

    def _end_all(self) -> None:
        """End what is left, and the connection, in bounded time."""
        try:
            for seat in list(self._roster.seats.values()):
                self._kill(seat, 0.0)
            self._wait_for_ends(END_SECONDS)
        finally:
            for seat in list(self._roster.seats.values()):
                reason = "its end was not heard of" if self._fatal is None else "the scheduler of the cluster is gone"
                self._events.append(Ended(seat.worker, False, reason))
            if self._link is not None:
                self._link.close()
            if self._cluster is not None:
                self._cluster.close()
            if self._token_file is not None:
                self._token_file.unlink(missing_ok=True)


# -- the driver's connection -----------------------------------------------------------------------------------------


class _Link:
    """The driver's connection to a scheduler: a client of its own, in whose event loop everything here happens."""

    def __init__(
        self, address: str, security: Any, run_id: str, inbox: queue.SimpleQueue[bytes | BaseException | None]
    ) -> None:
        from distributed import Client

        self.where = address
        self.answers = f"workspan-{run_id}-{secrets.token_hex(4)}"
        self._inbox = inbox
        self._is_over = False
        self._futures: dict[int, Any] = {}
        self._watchers: dict[int, asyncio.Future[None]] = {}
        self._placed: dict[int, Placed] = {}
        self._boxes: dict[str, _Outbox] = {}
        self._removed: set[str] = set()
        """Addresses of Dask workers that are gone; none is used again."""
        try:
            self._client = Client(
                address,
                security=security,
                set_as_default=False,
                timeout=CONNECT_SECONDS,
                name="workspan",
                direct_to_workers=False,
            )
        except (OSError, ValueError, TypeError) as error:
            raise EngineError(
                f"the Dask scheduler at {address} does not answer: {error}; is it running, and can it be reached from here?"
            ) from error
        self._loop: asyncio.AbstractEventLoop = self._client.loop.asyncio_loop
        try:
            self._run(self._begin())
        except BaseException:
            self._client.close()
            raise

    # In the driver's thread:

    def submit(self, worker: int, start: dict[str, Any], requires: Any, workers: list[str] | None) -> None:
        """Ask for a place."""
        self._loop.call_soon_threadsafe(self._submit, worker, start, dict(requires), workers)

    def tell(self, placed: Placed, command: Command) -> None:
        """Send *command* to a host."""
        self._loop.call_soon_threadsafe(self._post, _queue_name(self.answers, placed.worker, placed.token), command)

    def note(self, placed: Placed) -> None:
        """Take notice of where a host is, and see whether that place is gone already."""
        self._loop.call_soon_threadsafe(self._note, placed)

    def forget(self, worker: int) -> None:
        """Let Dask forget the task of a worker that has ended; if it runs or waits it is cancelled."""
        self._loop.call_soon_threadsafe(self._forget, worker)

    def worker_count(self) -> int | str:
        """Return how many Dask workers the cluster has."""
        try:
            return len(self._run(self._client.scheduler.identity())["workers"])
        except Exception:
            return "not known"

    def close(self) -> None:
        """Cancel what is left and disconnect."""
        self._is_over = True
        with suppress(Exception):
            self._run(self._finish())
        with suppress(Exception):
            self._client.close(timeout=_RPC_SECONDS)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_RPC_SECONDS)

    # In the client's event loop:

    async def _begin(self) -> None:
        from distributed import Queue

        self._answers = await Queue(self.answers, client=self._client)
        self._client.subscribe_topic("all", self._take_event)
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        """Hand on what workers report, until the end."""
        try:
            while True:
                for data in await self._answers.get():
                    self._inbox.put(data)
                for more in await self._answers.get(batch=True):
                    for data in more:
                        self._inbox.put(data)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._is_over:
            self._is_over = True
            self._inbox.put(
                EngineError(
                    f"the connection to the Dask scheduler at {self.where} is lost ({type(error).__name__}: {error}): what "
                    "was done is recorded; run again when the cluster is back, and only the rest is done"
                )
            )

    def _submit(self, worker: int, start: dict[str, Any], requires: dict[str, int], workers: list[str] | None) -> None:
        try:
            future = self._client.submit(
                be_worker,
                start,
                key=f"workspan-worker-{self.answers}-{worker}",
                pure=False,
                retries=0,
                resources=requires or None,
                workers=workers,
            )
        except Exception as error:
            self._lose(worker, None, f"could not be started: {type(error).__name__}: {error}")
            return
        self._futures[worker] = future
        self._watchers[worker] = asyncio.ensure_future(self._watch(worker, future))

    async def _watch(self, worker: int, future: Any) -> None:
        """Wait for the end of a task of Dask, and report it unless its host has done so before."""
        try:
            await future
            reason = "its task on the cluster ended without a word"
        except asyncio.CancelledError:
            if worker not in self._futures:
                raise  # this watch was cancelled, not the task
            reason = "its task on the cluster was cancelled"
        except Exception as error:
            reason = _reason_of(error)
        self._lose(worker, None, reason)

    def _take_event(self, event: tuple[float, Any]) -> None:
        message = event[1]
        if not isinstance(message, dict) or self._is_over:
            return
        if message.get("action") == "remove-worker":
            self._removed.add(str(message.get("worker")))
            for placed in self._hosts_at(message.get("worker")):
                reason = f"its Dask worker {placed.place} was lost: killed, or its machine is gone"
                if message.get("expected"):
                    # In good order: its block may still finish.
                    reason = f"its Dask worker {placed.place} was retired before its block was finished"
                    self._loop.call_later(LEAVE_SECONDS, self._lose, placed.worker, placed.token, reason)
                else:
                    self._lose(placed.worker, placed.token, reason)

    def _note(self, placed: Placed) -> None:
        if placed.worker not in self._futures:
            return
        self._placed[placed.worker] = placed
        if placed.place in self._removed:
            self._lose(placed.worker, placed.token, f"its Dask worker {placed.place} was lost")

    def _hosts_at(self, place: Any) -> list[Placed]:
        return [placed for placed in self._placed.values() if placed.place == place]

    def _lose(self, worker: int, token: str | None, reason: str) -> None:
        """Report a loss, behind all that was reported before."""
        if worker in self._futures or token is not None:
            self._box(self.answers).put(pack_reports([Lost(worker, token, reason)]))

    def _post(self, name: str, command: Command) -> None:
        self._box(name).put(pack_commands([command]))

    def _box(self, name: str) -> _Outbox:
        box = self._boxes.get(name)
        if box is None:
            box = self._boxes[name] = _Outbox(self._client, name, self._fail)
        return box

    def _forget(self, worker: int) -> None:
        self._placed.pop(worker, None)
        future = self._futures.pop(worker, None)
        if future is not None:
            self._watchers.pop(worker).cancel()
            future.release()
        for name in [name for name in self._boxes if name.startswith(_queue_name(self.answers, worker, ""))]:
            self._boxes.pop(name).close_soon()

    async def _finish(self) -> None:
        self._reader.cancel()
        for worker in list(self._futures):
            self._forget(worker)
        for box in self._boxes.values():
            box.close_soon()
        self._answers.close()
        with suppress(ValueError):
            self._client.unsubscribe_topic("all")


class _Outbox:
    """Sends bytes to one queue, in order; what comes together travels together. For one event loop only."""

    def __init__(self, client: Any, name: str, on_error: Callable[[BaseException], Any]) -> None:
        self._client = client
        self._name = name
        self._on_error = on_error
        self._waiting: deque[bytes] = deque()
        self._queue: Any = None
        self._sender: asyncio.Future[None] | None = None
        self._closing = False

    def put(self, data: bytes) -> None:
        self._waiting.append(data)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send())

    async def flush(self) -> None:
        """Wait until all is sent."""
        if self._sender is not None:
            await self._sender

    def close_soon(self) -> None:
        """Give the queue back when all is sent."""
        self._closing = True
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        from distributed import Queue

        try:
            if self._queue is None:
                self._queue = await Queue(self._name, client=self._client)
            while self._waiting:
                batch = list(self._waiting)
                self._waiting.clear()
                await self._queue.put(batch)
            if self._closing:
                self._queue.close()
        except Exception as error:
            self._on_error(error)


# -- on a Dask worker ------------------------------------------------------------------------------------------------


def be_worker(start: dict[str, Any]) -> None:
    """Be one worker of a run, as a task on a Dask worker, until its end.

    Parameters
    ----------
    start
        One of ``remote.start_values``, with ``worker``, its number, and ``queue``, the name of the one for answers.
    """
    from distributed import get_worker

    from workspan.engines.host import Host

    dask_worker = get_worker()
    key = dask_worker.get_current_task()
    loop = dask_worker.loop.asyncio_loop
    line = _Line(dask_worker, start["queue"], start["worker"])
    host = Host(start, start["worker"], dask_worker.address, line.emit, partial(_keeps_place, dask_worker, key))
    asyncio.run_coroutine_threadsafe(line.begin(host), loop).result(CONNECT_SECONDS + 5)
    try:
        host.run()
    finally:
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(line.end(), loop).result(_RPC_SECONDS)


class _Line:
    """A host's connection to the scheduler, in the event loop of its Dask worker."""

    def __init__(self, dask_worker: Any, answers: str, worker: int) -> None:
        self._dask_worker = dask_worker
        self._answers = answers
        self._worker = worker
        self._loop: asyncio.AbstractEventLoop = dask_worker.loop.asyncio_loop

    async def begin(self, host: Any) -> None:
        from distributed import Client, Queue

        self._host = host
        # Not the worker's own client: Dask closes that one before a worker that is retired has finished its tasks.
        self._client = await Client(
            self._dask_worker.scheduler.address,
            security=self._dask_worker.security,
            asynchronous=True,
            set_as_default=False,
            timeout=CONNECT_SECONDS,
            name="workspan-worker",
        )
        self._box = _Outbox(self._client, self._answers, lambda error: host.abandon())
        self._commands = await Queue(_queue_name(self._answers, self._worker, host.token), client=self._client)
        self._reader = asyncio.ensure_future(self._read())

    def emit(self, data: bytes) -> None:
        """Send packed reports; in any thread."""
        self._loop.call_soon_threadsafe(self._box.put, data)

    async def _read(self) -> None:
        try:
            while True:
                for data in await self._commands.get():
                    self._host.tell(data)
        except asyncio.CancelledError:
            raise
        except Exception:
            self._host.abandon()

    async def end(self) -> None:
        self._reader.cancel()
        await self._box.flush()
        with suppress(Exception):
            self._commands.close()
        await self._client.close()


def _keeps_place(dask_worker: Any, key: Any) -> str:
    """Whether Dask still wants the task *key* to run on its worker."""
    status = getattr(dask_worker.status, "name", "running")
    if status in ("closing_gracefully", "closing"):
        return "leave"
    if status in ("closed", "failed"):
        return "no"
    task = dask_worker.state.tasks.get(key)
    return "yes" if task is not None and task.state in ("executing", "long-running") else "no"


# -- names and words -------------------------------------------------------------------------------------------------


def scheduler_address(text: str) -> str:
    """Return the address that Dask knows of ``dask://host:8786`` or ``host:8786``."""
    return f"tcp://{text.removeprefix('dask://')}" if text.startswith("dask://") else text


def _queue_name(answers: str, worker: int, token: str) -> str:
    return f"{answers}-{worker}-{token}"


def _address_of(client_or_cluster: Any) -> str:
    address = getattr(client_or_cluster, "scheduler_address", None)  # a cluster
    if address is None:
        address = getattr(getattr(client_or_cluster, "scheduler", None), "address", None)  # a client
    if not isinstance(address, str):
        raise EngineError(
            f"Dask({client_or_cluster!r:.100}): pass a distributed.Client, a cluster, or the address of a scheduler"
        )
    return address


def _reason_of(error: Exception) -> str:
    """Say why a task of Dask failed."""
    if type(error).__name__ == "KilledWorker":
        return f"its Dask worker was lost several times before it had begun: {error}"
    if isinstance(error, (ImportError, AttributeError)) and "workspan" in str(error):
        return f"could not start: workspan is not installed, or not in this version, on the Dask workers: {error}"
    return f"could not start: {type(error).__name__}: {error}"


def _require_distributed() -> None:
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise EngineError(
            f"engine 'dask' needs the package 'distributed' ({error}): pip install 'workspan[dask]'"
        ) from error

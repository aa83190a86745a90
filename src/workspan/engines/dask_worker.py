"""What runs on a Dask worker: one long-running task, which owns one worker of a run.

Nothing here imports Dask before it is called: the module is imported wherever a worker of a run may be.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_SECONDS = 10.0
"""Longest time in which the scheduler must answer."""
FAREWELL_SECONDS = 2.0
"""Longest time in which the driver must have answered the last word of a worker."""
RPC_SECONDS = 5.0
"""Longest time for one exchange of messages with it."""


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
            asyncio.run_coroutine_threadsafe(line.end(), loop).result(RPC_SECONDS)


class _Line:
    """A host's connection to the scheduler, in the event loop of its Dask worker."""

    def __init__(self, dask_worker: Any, answers: str, worker: int) -> None:
        self._dask_worker = dask_worker
        self._answers = answers
        self._worker = worker
        self._loop: asyncio.AbstractEventLoop = dask_worker.loop.asyncio_loop

    async def begin(self, host: Any) -> None:
        from distributed import Client

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
        self._box = Outbox(self._client, self._answers, lambda error: host.abandon())
        self._commands = await open_queue(queue_name(self._answers, self._worker, host.token), self._client)
        self._reader = asyncio.ensure_future(self._read())

    def emit(self, data: bytes) -> None:
        """Send packed reports; in any thread."""
        self._loop.call_soon_threadsafe(self._box.put, data)

    async def _read(self) -> None:
        try:
            while batch := await self._commands.get():
                for data in batch:
                    self._host.tell(data)
        except asyncio.CancelledError:
            raise
        except Exception:
            self._host.abandon()

    async def end(self) -> None:
        await self._box.flush()
        with suppress(Exception):
            # The driver ends the queue when it has heard of the worker's end; unless it is gone.
            await asyncio.wait([self._reader], timeout=FAREWELL_SECONDS)
            if not self._reader.done():
                self._reader.cancel()
                give_back(self._commands)
        self._box.leave()
        await close_client(self._client)


async def close_client(client: Any) -> None:
    """Close a client of Dask, so that nothing of it is left in the event loop.

    Where the scheduler has closed the connection first, Dask leaves the sender of this side waiting with a timer. If
    that rings in the last turn of a loop, Python tells at exit of an exception that nobody has looked at.
    """
    await client.close(timeout=RPC_SECONDS)
    sender = getattr(client, "scheduler_comm", None)
    if sender is not None:
        with suppress(Exception):
            await sender.close(timeout=timedelta(seconds=RPC_SECONDS))  # a number would be a time of day
    with suppress(AttributeError, KeyError):
        # Dask counts who uses a loop, and forgets to count such a client out: the loop of a cluster that lives in this
        # process would never end.
        runner = client._loop_runner
        if runner._all_loops[client.loop][0] > 1:
            runner.stop()


def _keeps_place(dask_worker: Any, key: Any) -> str:
    """Whether Dask still wants the task *key* to run on its worker."""
    status = getattr(dask_worker.status, "name", "running")
    if status in ("closing_gracefully", "closing"):
        return "leave"
    if status in ("closed", "failed"):
        return "no"
    task = dask_worker.state.tasks.get(key)
    return "yes" if task is not None and task.state in ("executing", "long-running") else "no"


def queue_name(answers: str, worker: int, token: str) -> str:
    """Return the name of the queue that carries commands to one host."""
    return f"{answers}-{worker}-{token}"


async def open_queue(name: str, client: Any) -> Any:
    """Open the queue *name* of the scheduler, in the event loop of *client*."""
    from distributed import Queue

    queue = Queue(name, client=client)
    await getattr(queue, "_started", queue)  # to await the queue itself would open it a second time
    return queue


def give_back(queue: Any, users: int = 2) -> None:
    """Have the scheduler remove *queue*, which up to *users* have opened.

    It counts them. Closing it once too often does no harm.
    """
    for _ in range(users):
        queue.close()


class Outbox:
    """Sends bytes to one queue, in order; what comes together travels together. For one event loop only.

    Parameters
    ----------
    client
        Whose loop it is.
    name
        Of the queue.
    on_error
        Called once if the scheduler cannot be reached.
    """

    def __init__(self, client: Any, name: str, on_error: Callable[[BaseException], Any]) -> None:
        self._client = client
        self._name = name
        self._on_error = on_error
        self._waiting: deque[bytes] = deque()
        self._queue: Any = None
        self._sender: asyncio.Future[None] | None = None

    def put(self, data: bytes) -> None:
        """Send *data* after what was put before."""
        self._waiting.append(data)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send())

    async def flush(self) -> None:
        """Wait until all is sent."""
        if self._sender is not None:
            await self._sender

    def leave(self) -> None:
        """Give back what this side has opened; it may have made the queue anew when the reader was gone already."""
        if self._queue is not None:
            give_back(self._queue, 1)

    async def end(self, users: int = 2) -> None:
        """Send the rest, tell the reader that nothing follows, and remove the queue.

        Parameters
        ----------
        users
            How many may have opened it; some of them may have died.
        """
        await self.flush()
        with suppress(Exception):
            await self._open()
            await self._queue.put([])
            give_back(self._queue, users)

    async def _open(self) -> None:
        if self._queue is None:
            self._queue = await open_queue(self._name, self._client)

    async def _send(self) -> None:
        try:
            await self._open()
            while self._waiting:
                batch = list(self._waiting)
                self._waiting.clear()
                await self._queue.put(batch)
        except Exception as error:
            self._on_error(error)

"""The engine that runs blocks on a Dask cluster.

Each of our workers is one *long-running task* of Dask that lives as long as the worker does, and owns one worker
process beside Dask's own (`host.py`). Why so, and not otherwise:

- A task that runs holds its thread and its ``resources`` for as long as it runs, so Dask places our workers as
  everybody's work, counts them as load, and grows an adaptive cluster for those that wait. An actor holds neither once
  it is made, and a task that secedes gives its thread away. For the same reason blocks are no tasks of Dask: there
  would be two schedulers with two ideas of retries, order and deadlines.
- The task is submitted with ``pure=False`` and ``retries=0`` and is tied to no worker: while it waits, Dask may move it
  to one that joins late. Once it runs, stealing leaves it alone. If its Dask worker dies, Dask would run it again
  somewhere else: it is cancelled then, and a copy that has begun already is turned away. What is run again is decided
  by our scheduler alone.
- User code runs in a process of its own and not in Dask's: it can be killed at its deadline without the death of a Dask
  worker, it is measured alone, and it may crash. The price: what lives in the memory of a Dask worker (plugins,
  persisted data) is not seen by block functions, and Dask's own memory limit does not watch them.

Messages travel through queues of Dask's scheduler (``distributed.Queue``): one to each worker and one for all answers.
Nothing listens, and driver and workers never connect to each other.
"""

from __future__ import annotations

import asyncio
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from workspan.engines.cluster import END_SECONDS, KILL_SECONDS, START_SECONDS, ClusterEngine
from workspan.errors import EngineError

if TYPE_CHECKING:
    from workspan.engines.base import Job
    from workspan.engines.cluster import Inbox, Link

__all__ = ["Dask"]


class Dask(ClusterEngine):
    """Runs blocks on the workers of a Dask cluster.

    Parameters
    ----------
    client_or_address
        A ``distributed.Client``, a cluster object, or the address of a scheduler: ``"tcp://host:8786"``, or
        ``"dask://host:8786"``. The engine makes a connection of its own to that scheduler. Default: a cluster on this
        machine for the time of the run, with one Dask worker for each worker of the run.
    workers
        Addresses or names of the Dask workers that may be used; default: all of them.
    security
        TLS settings of the connection, a ``distributed.Security``; default: those of the client or cluster.
    kill_seconds
        Time from SIGTERM to SIGKILL for a worker that is killed.
    start_seconds
        Time that a worker process has to start once it has a place, the imports of the user's function included.

    Notes
    -----
    The ``requires`` of a task are Dask resources: ``requires={"GPU": 1}`` takes one of the ``GPU`` that a Dask worker
    was started with (``dask worker --resources GPU=2``).
    """

    name = "dask"
    title = "Dask"

    def __init__(
        self,
        client_or_address: Any = None,
        *,
        workers: list[str] | None = None,
        security: Any = None,
        kill_seconds: float = KILL_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        super().__init__(kill_seconds=kill_seconds, start_seconds=start_seconds)
        self._where = client_or_address
        self._workers = workers
        self._security = security
        self._cluster: Any = None

    def _connect(self, job: Job, inbox: Inbox) -> Link:
        try:
            import distributed
        except ImportError as error:
            raise EngineError(f"engine 'dask' needs 'distributed' ({error}): pip install 'workspan[dask]'") from error
        from workspan.engines.dask_link import DaskLink

        where, security = self._where, self._security
        if where is None:
            # As threads: user code has processes of its own anyway, and Dask starts its own ones by running the user's
            # script again. The memory is this program's own: no limit of it shall pause a worker.
            where = self._cluster = distributed.LocalCluster(
                n_workers=max((task.max_workers for task in job.tasks), default=1),
                threads_per_worker=1,
                processes=False,
                protocol="tcp://",
                host="127.0.0.1",
                memory_limit=0,
                dashboard_address="127.0.0.1:0",
                resources=_most_required(job),
            )
        elif _lives_in_this_loop(where):
            raise EngineError(
                f"Dask({where!r:.100}): its scheduler lives in the event loop that this call holds up, and could not "
                "answer: call await asyncio.to_thread(run_blockwise, ...), or make it without asynchronous=True"
            )
        if not isinstance(where, str):
            security = getattr(where, "security", None) if security is None else security
        return DaskLink(scheduler_address(where), security, job.run_id, inbox, self._given_up, workers=self._workers)

    def _disconnect(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            end = monotonic() + END_SECONDS
            while any(worker.state.executing for worker in cluster.workers.values()) and monotonic() < end:
                sleep(0.01)  # they say goodbye; Dask would complain of tasks that it cancels
            cluster.close()


def scheduler_address(where: Any) -> str:
    """Return the address that Dask knows, of a client, a cluster, or a text such as ``dask://host:8786``.

    Raises
    ------
    EngineError
        It is none of these.
    """
    if isinstance(where, str):
        return f"tcp://{where.removeprefix('dask://')}" if where.startswith("dask://") else where
    status = getattr(where, "status", None)
    if getattr(status, "name", status) in ("closing", "closed", "failed"):
        raise EngineError(f"Dask({where!r:.100}): it is closed; make a new one, or pass the address of a scheduler")
    address = getattr(where, "scheduler_address", None)  # a cluster
    if address is None:
        address = getattr(getattr(where, "scheduler", None), "address", None)  # a client
    if not isinstance(address, str):
        raise EngineError(f"Dask({where!r:.100}): pass a distributed.Client, a cluster, or the address of a scheduler")
    return address


def _lives_in_this_loop(where: Any) -> bool:
    """Whether the scheduler of a cluster, or the one that a client has made, is served by this thread's event loop."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return False
    loop = getattr(getattr(getattr(where, "cluster", None) or where, "scheduler", None), "loop", None)
    return getattr(loop, "asyncio_loop", None) is running


def _most_required(job: Job) -> dict[str, int]:
    """Return resources with which any worker of *job* finds a place on a Dask worker."""
    most: dict[str, int] = {}
    for task in job.tasks:
        for name, amount in task.requires.items():
            most[name] = max(most.get(name, 0), amount)
    return most

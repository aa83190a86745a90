"""Runs as objects: they have an address, hand out contexts, and can be ended from another thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workspan.engines import Processes
from workspan.errors import ConfigurationError
from workspan.run.runner import execute

if TYPE_CHECKING:
    from workspan.engines.context import Context
    from workspan.report.task import RunReport
    from workspan.run.pipeline import Pipeline
    from workspan.run.session import Session
    from workspan.run.task import Task
    from workspan.schedule.state import TaskState

__all__ = ["SerialServer", "Server"]


class Server:
    """Runs pipelines in worker processes, and lets workers from outside join.

    Parameters
    ----------
    stop_event
        Ends the run early when it is set, from any thread: blocks that run get 5 s.
    host
        Address of this machine under which workers on others dial it.

    Attributes
    ----------
    last_report : RunReport | None
        Report of the last run.
    last_task_order : list of str
        Its tasks, in display order.

    Examples
    --------
    >>> server = Server()
    >>> def run():  # in a thread; meanwhile server.context("segment") is for workers that somebody else starts
    ...     states = server.run_blockwise(task)
    >>> server.port is None
    True
    """

    def __init__(self, stop_event: threading.Event | None = None, host: str | None = None) -> None:
        self.stop_event = threading.Event() if stop_event is None else stop_event
        self._host = host
        self._engine: Processes | None = None
        self._session: Session | None = None
        self.last_report: RunReport | None = None
        self.last_task_order: list[str] = []

    @property
    def hostname(self) -> str | None:
        """Address that workers dial, from the observer's ``on_start`` on; ``None`` when nothing runs."""
        address = None if self._engine is None else self._engine.address
        return None if address is None else address[0]

    @property
    def port(self) -> int | None:
        """Port that workers dial, from the observer's ``on_start`` on; ``None`` when nothing runs."""
        address = None if self._engine is None else self._engine.address
        return None if address is None else address[1]

    def context(self, task_id: str) -> Context:
        """Return what a worker from outside needs to join the run and work for a task.

        Raises
        ------
        ConfigurationError
            Nothing runs, or the run has no such task.
        """
        engine, session = self._engine, self._session
        if engine is None or session is None or engine.address is None:
            raise ConfigurationError(f"nothing runs now, so there is no context of task {task_id!r}")
        ids = [task.task_id for task in session.tasks]
        if task_id not in ids:
            raise ConfigurationError(f"the run has no task {task_id!r}: its tasks are {', '.join(map(repr, ids))}")
        return engine.context(ids.index(task_id))

    def stop(self) -> None:
        """End the run early."""
        self.stop_event.set()

    def run_blockwise(
        self,
        pipeline: Pipeline | Task | list[Task] | tuple[Task, ...],
        resources: Mapping[str, int] | None = None,
        progress: Any = True,
        block_tracking: bool = True,
        host: str | None = None,
        summary: bool = True,
    ) -> dict[str, TaskState]:
        """Run all blocks; see :func:`workspan.run_blockwise`.

        Returns
        -------
        dict
            Task id -> ``TaskState``, in display order; also if the run was ended early.
        """
        if self._engine is not None:
            raise ConfigurationError("this server is running a pipeline already: give each run a server of its own")
        self._engine = Processes()
        try:
            session = execute(
                pipeline,
                self._engine,
                resources=resources,
                progress=progress,
                block_tracking=block_tracking,
                host=host or self._host,
                summary=summary,
                listen=True,
                stop_event=self.stop_event,
                on_start=self._begin,
            )
            return session.snapshot()
        finally:
            if self._session is not None:
                self.last_report = self._session.report
            self._engine = self._session = None

    def _begin(self, session: Session) -> None:
        self._session = session
        self.last_task_order = list(session.states)


class SerialServer:
    """Runs pipelines in the calling thread, in the debug mode: the first exception is the caller's."""

    def run_blockwise(
        self, tasks: Pipeline | Task | list[Task] | tuple[Task, ...], block_tracking: bool = True
    ) -> dict[str, TaskState]:
        """Run all blocks and return task id -> ``TaskState``, in display order."""
        return execute(tasks, None, progress=False, block_tracking=block_tracking, summary=False).snapshot()

"""What engines on other people's clusters have in common, besides the way their messages take.

A :class:`ClusterEngine` keeps the promises of `base.py` on top of a :class:`Link`: the driver's connection to the
cluster, which asks it for places, carries commands to hosts and puts what they report into the engine's inbox.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from workspan.engines import wire
from workspan.engines.common import NoClients, OneJob
from workspan.engines.logs import prepare_folder
from workspan.engines.remote import Kill, Placed, Recall, Roster, start_values, token_file, unpack_reports
from workspan.errors import EngineError
from workspan.schedule.events import Ended, TakenBack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workspan.engines.base import Job
    from workspan.engines.remote import Command, Report, Seat
    from workspan.schedule.events import Event

__all__ = ["ClusterEngine", "Inbox", "Link"]

logger = logging.getLogger(__name__)

KILL_SECONDS = 2.0
"""Time from SIGTERM to SIGKILL."""
START_SECONDS = 300.0
"""Time in which a worker process must have loaded the user's function, once it has a place."""
END_SECONDS = 10.0
"""Longest time for the workers to end when the engine is closed, besides their grace."""
PATIENCE_SECONDS = 2.0
"""How long a worker may wait for a place before one that idles makes room for it."""
NOTICE_SECONDS = 5.0
"""How long a task has no worker at all before it is looked why."""
LOOK_AGAIN_SECONDS = 60.0
"""How often that is looked at again while other tasks of the run have the places."""

Inbox = queue.SimpleQueue[bytes | BaseException | None]
"""What a link hands to its engine, from any thread: packed reports; an error that ends the run; ``None``: wake up."""


class Link(Protocol):
    """The driver's connection to a cluster. Only :meth:`places` and :meth:`close` wait, a little."""

    where: str
    """The cluster, for people."""

    def submit(self, worker: int, start: dict[str, Any], requires: Mapping[str, int]) -> None:
        """Ask for a place for *worker*, where a ``Host`` is made of *start*.

        What comes of it is told through the inbox: the reports of the host, or a ``Lost``.
        """

    def tell(self, placed: Placed, command: Command) -> None:
        """Send *command* to the host that said *placed*; after those sent before, or nowhere if it is gone."""

    def note(self, placed: Placed) -> None:
        """Take notice that a worker has got its place; from now on its loss is reported, also if it is gone already."""

    def forget(self, worker: int) -> None:
        """Give the place of a worker that has ended back, or the request for one."""

    def places(self, requires: Mapping[str, int]) -> tuple[int, str] | None:
        """Return how many workers or machines the cluster has, and what all of them lack to hold a worker, busy or not.

        The lack is ``""`` if one has what it *requires*. ``None``: that cannot be told.
        """

    def close(self) -> None:
        """Give everything back, in bounded time, also if the cluster is gone."""


class ClusterEngine(NoClients, OneJob):
    """Runs blocks in worker processes at places that a cluster gives; the base of the engines that do.

    Parameters
    ----------
    kill_seconds
        Time from SIGTERM to SIGKILL for a worker that is killed.
    start_seconds
        Time that a worker process has to start once it has a place, the imports of the user's function included.
    """

    name: str
    title: str
    """What the cluster is called in messages: ``"Dask"``."""
    place_words = "workers"
    """What ``Link.places`` counts."""
    has_workers = True
    wire_seconds = 0.005
    """How long a worker waits for a block that it asks for."""

    def __init__(self, *, kill_seconds: float, start_seconds: float) -> None:
        self._kill_seconds = kill_seconds
        self._start_seconds = start_seconds
        self._inbox: Inbox = queue.SimpleQueue()
        self._given_up = threading.Event()
        self._reset()

    def _connect(self, job: Job, inbox: Inbox) -> Link:
        """Connect to the cluster, or start one, unless :meth:`give_up` is called; :meth:`_disconnect` is in any case.

        Raises
        ------
        EngineError
            That cannot be done, with the reason and a way out.
        """
        raise NotImplementedError

    def _disconnect(self) -> None:
        """End what :meth:`_connect` started besides the link, which is closed already."""

    def _reset(self) -> None:
        self._job: Job | None = None
        self._pid = 0
        self._starts: list[dict[str, Any]] = []
        self._roster = Roster()
        self._events: list[Event] = []
        self._link: Link | None = None
        self._token_file: Path | None = None
        self._fatal: BaseException | None = None
        self._starved: dict[int, float] = {}
        """Tasks whose workers wait for a place and none has one -> when it is to be looked why."""
        self._told_of_logs = False

    def open(self, job: Job) -> None:
        """Connect to the scheduler, or start a cluster; no worker is asked for yet.

        Raises
        ------
        EngineError
            The engine is open already, the cluster cannot be used, a function cannot be sent, or a log folder cannot be
            made.
        """
        if self._job is not None:
            raise EngineError("this engine is running a job already: give each run an engine of its own")
        starts = start_values(job, kill_seconds=self._kill_seconds, start_seconds=self._start_seconds)
        self._reset()
        self._inbox = queue.SimpleQueue()
        self._starts = starts
        self._pid = os.getpid()
        self._job = job
        try:
            if job.log_dir is not None:
                self._mark_folder(job)
            self._link = self._connect(job, self._inbox)
        except BaseException:
            self.close()
            raise

    def _mark_folder(self, job: Job) -> None:
        """Make the log folders, with a file in them by which hosts see whether they are shared."""
        assert job.log_dir is not None
        for task in job.tasks:
            prepare_folder(job.log_dir, task.task_id)
        self._token_file = token_file(job.log_dir, job.run_id)
        self._token_file.touch()

    # -- what the engine is told -------------------------------------------------------------------------------------

    def start_worker(self, worker: int, task: int) -> None:
        """Ask for a place for *worker*; it is ready when it has got one and its process has started."""
        job = self._require_job()
        assert self._link is not None
        now = monotonic()
        self._roster.add(worker, task, now)
        if not any(seat.placed for seat in self._roster.seats.values() if seat.task == task):
            self._starved.setdefault(task, now + NOTICE_SECONDS)
        self._link.submit(worker, {**self._starts[task], "worker": worker}, job.tasks[task].requires)

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
        if seat.withdrawn:
            return
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

    # -- what it tells -----------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None) -> list[Event]:
        """Wait until something happened, at most *timeout* seconds, and return it.

        Raises
        ------
        EngineError
            The cluster is gone.
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
        self._inbox.put(None)

    def give_up(self) -> None:
        """Make an ``open`` that waits for a cluster's answer fail. Safe in other threads and signal handlers."""
        self._given_up.set()

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
            self._given_up.clear()
            self._reset()
        return events

    # -- inside ------------------------------------------------------------------------------------------------------

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
            item = self._inbox.get(timeout=None if seconds == inf else seconds)
            while True:
                if item is None:
                    woken = True
                elif isinstance(item, bytes):
                    self._take(unpack_reports(item))
                else:
                    self._fatal = item
                item = self._inbox.get_nowait()
        return woken

    def _take(self, reports: list[Report]) -> None:
        events, strangers = self._roster.take(reports, monotonic())
        for placed in strangers:
            if self._link is not None:
                self._link.tell(placed, Kill(0.0))
        for report in reports:
            if isinstance(report, Placed):
                seat = self._roster.seats.get(report.worker)
                if seat is not None:
                    self._starved.pop(seat.task, None)
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
                "the log folder %s cannot be seen on %s: what workers print there is in the output of %s's workers",
                self._require_job().log_dir,
                placed.host,
                self.title,
            )

    def _due(self, now: float) -> float:
        if not self._roster.waiting():
            return inf
        return min([*self._starved.values(), now + PATIENCE_SECONDS / 2])

    def _look_after_places(self, now: float) -> None:
        if (seat := self._roster.replaceable(now, PATIENCE_SECONDS)) is not None:
            # Its task has no block for it now, and gets it a new place when there is one.
            seat.withdrawn = True
            self._tell(seat, wire.Stop())
        for task, due in list(self._starved.items()):
            if now >= due:
                self._starved[task] = inf if self._say_why_none_works(task) else now + LOOK_AGAIN_SECONDS

    def _say_why_none_works(self, task: int) -> bool:
        """Say why no worker of task number *task* has a place; false if there is nothing to say while others work."""
        if not any(seat.task == task for seat in self._roster.waiting()):
            return True
        assert self._link is not None
        entry = self._require_job().tasks[task]
        count, lack = self._link.places(entry.requires) or (None, "")
        cluster = f"{self.title} cluster {self._link.where}"
        if count and lack:
            logger.warning(
                "no worker of task %r has got a place on the %s yet: none of its %d %s has %s, busy or not; the task "
                "waits, and goes on when one joins that has (its requires= say what a worker needs)",
                entry.task_id,
                cluster,
                count,
                self.place_words,
                lack,
            )
            return True
        if any(seat.placed for seat in self._roster.seats.values()):
            return False
        needs = [f"{amount} {name}" for name, amount in sorted(entry.requires.items())]
        logger.warning(
            "no worker of task %r has got a place on the %s yet, which has %s %s%s: the run waits, and goes on when "
            "one is free or joins",
            entry.task_id,
            cluster,
            "an unknown number of" if count is None else count,
            self.place_words,
            f"; needed are {', '.join(needs)}" if needs else "",
        )
        return True

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
                reason = "its end was not heard of" if self._fatal is None else "the cluster is gone"
                self._events.append(Ended(seat.worker, False, reason))
            if self._link is not None:
                self._link.close()
            self._disconnect()
            if self._token_file is not None:
                self._token_file.unlink(missing_ok=True)

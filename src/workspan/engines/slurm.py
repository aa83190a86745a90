"""Workers that Slurm starts: each is a job that runs ``workspan worker`` and dials this program.

The scheduler asks for workers by number; Slurm starts jobs when it likes. The two are kept apart: a *seat* is a worker
that the scheduler waits for, and whichever job of its task connects first takes it. So a job that Slurm runs again
after a preemption simply comes in as a new worker, jobs of an array need not tell which of them they are, and jobs that
are not needed any more are cancelled.
"""

from __future__ import annotations

import logging
import os
import queue
import selectors
import shlex
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from workspan.arguments import at_least
from workspan.engines import slurm_script
from workspan.engines.common import GateEngine
from workspan.engines.descriptors import SPARE, make_room
from workspan.engines.gate import Gate
from workspan.engines.logs import prepare_folder
from workspan.engines.payload import driver_settings, pack_function, task_settings
from workspan.engines.slurm_jobs import Gone, Jobs, Refused, Submitted, Waiting
from workspan.engines.slurm_seats import Seat, Seats
from workspan.engines.tcp import host_to_dial
from workspan.engines.waker import Waker
from workspan.errors import EngineError
from workspan.schedule.events import Ended, Joined, Ready, Returned, TakenBack

if TYPE_CHECKING:
    from workspan.engines.base import Job
    from workspan.engines.slurm_jobs import News
    from workspan.schedule.events import Event

__all__ = ["Slurm"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 10.0
"""How often Slurm is asked about jobs that have not begun: controllers do not like to be asked often."""
NOTICE_SECONDS = 30.0
"""How long jobs wait in the queue before the run says so."""


class Slurm(GateEngine):
    """Runs blocks in jobs of a Slurm cluster, over the authenticated wire of external workers.

    The driver (this program) runs where ``sbatch`` works and where the compute nodes can dial it: a login node, or a
    job of its own. The folder of the worker logs must be on a file system that the nodes see; it holds, for the time of
    the run and readable by nobody else, the secret of the run and its functions.

    Parameters
    ----------
    partition
        ``--partition`` of the jobs; ``None``: Slurm's default.
    time
        Wall-time limit of a job: Slurm's own spelling (``"01:00:00"``), minutes, or a ``timedelta``; ``None``: the
        partition's.
    memory
        ``--mem`` of a job, such as ``"8G"``; ``None``: the partition's default.
    cpus
        ``--cpus-per-task``.
    options
        Further arguments of ``sbatch``, such as ``("--account=lab", "--constraint=avx512")``.
    setup
        Shell lines that run in a job before its worker, such as ``"module load cuda"``.
    python
        Interpreter of the workers; ``None``: this program's, at the same path on the nodes.
    leave_seconds
        How long before its time limit a worker takes no more blocks: about the time of a long block. ``None``: a tenth
        of *time*, at most 2 minutes; nothing without *time*.
    requeue
        Let Slurm run a job again that it preempted, or whose node failed.
    poll_seconds
        How often Slurm is asked about jobs that have not begun.

    Raises
    ------
    ConfigurationError
        A value cannot be used.

    Notes
    -----
    A task's ``requires={"GPU": n}`` asks for ``--gres=gpu:n``, in capitals or not. Other names are budgets of the run,
    not Slurm's.
    """

    name = "slurm"
    has_workers = True
    has_clients = True
    wire_seconds = 0.0

    def __init__(
        self,
        partition: str | None = None,
        time: str | float | timedelta | None = None,
        *,
        memory: str | None = None,
        cpus: int = 1,
        options: Iterable[str] = (),
        setup: str = "",
        python: str | None = None,
        leave_seconds: float | None = None,
        requeue: bool = True,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        words = [f"--cpus-per-task={at_least('cpus', cpus, 1)}", "--requeue" if requeue else "--no-requeue"]
        words += [f"--partition={partition}"] if partition else []
        words += [f"--mem={memory}"] if memory else []
        limit = slurm_script.limit_text(time)
        words += [f"--time={limit}"] if limit else []
        self._words = words
        self._leave_seconds = slurm_script.leave_seconds(time, leave_seconds)
        if self._leave_seconds:
            # To the batch shell, which the worker replaces.
            words.append(f"--signal=B:USR1@{self._leave_seconds}")
        self._options = tuple(options)
        self._setup = setup
        self._python = python or sys.executable
        self._poll_seconds = poll_seconds
        self._reset()

    def _reset(self) -> None:
        self._job: Job | None = None
        self._pid = 0
        self._seats = Seats()
        self._wanted: Counter[int] = Counter()
        """Task number -> jobs to be submitted with the next poll."""
        self._events: list[Event] = []
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._waker: Waker | None = None
        self._slurm: Jobs | None = None
        self._gate: Gate | None = None
        self._folder = Path()
        self._waits_since = inf

    def open(self, job: Job) -> None:
        """Listen for workers; nothing is submitted yet.

        Raises
        ------
        EngineError
            The engine is open already, Slurm is not there, a function cannot be sent to a worker, the log folder cannot
            be written, or nothing can listen here.
        """
        if self._job is not None:
            raise EngineError("this engine is running a job already: give each run an engine of its own")
        for task in job.tasks:
            if task.kind == "worker":
                raise EngineError(
                    f"task {task.task_id!r} has a worker function, which starts its workers itself: give it a function "
                    "of one block, or use engine='processes' and call srun in the worker function"
                )
        functions = [
            None if task.function is None else pack_function(task.task_id, task.function) for task in job.tasks
        ]
        self._reset()
        # What the nodes must see is on a shared file system: the log folder, or else where the program was started.
        self._folder = Path.cwd() if job.log_dir is None else job.log_dir
        shared = driver_settings()
        settings = [{**shared, **task_settings(task)} for task in job.tasks]
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._waker = Waker(self._selector)
        self._job = job
        try:
            for task in job.tasks:
                prepare_folder(self._folder, task.task_id)
            host = host_to_dial(job.host, from_outside=True)
            self._gate = Gate(replace(job, log_dir=self._folder), settings, functions, host, self._selector, self._emit)
            self._slurm = Jobs(self._hear, self._folder, self._poll_seconds)
        except BaseException:
            self.close()
            raise

    # -- what the engine is told -----------------------------------------------------------------------------------

    def start_worker(self, worker: int, task: int) -> None:
        """Ask Slurm for a job; those asked for together are one array."""
        entry = self._require_job().tasks[task]
        if entry.function is None:
            raise EngineError(f"task {entry.task_id!r} has no block function: no worker can be started for it")
        if worker in self._seats.by_worker:
            raise EngineError(f"worker {worker} was started before: give each worker a number of its own")
        make_room(len(self._seats.by_worker) + 1 + SPARE)
        self._seats.by_worker[worker] = Seat(worker, task)
        self._balance(task)

    def send(self, worker: int, index: int) -> None:
        """Send block *index* to *worker*.

        Raises
        ------
        EngineError
            The worker was told to stop before.
        """
        seat = self._seats.by_worker.get(worker)
        if seat is not None and seat.stop_sent:
            raise EngineError(f"worker {worker} was told to stop: it takes no more blocks")
        self._require_gate().grant(worker, index)

    def stop_worker(self, worker: int) -> None:
        """Let *worker* end after what it holds; one whose job has not begun ends at once."""
        seat = self._seats.by_worker.get(worker)
        if seat is not None and not seat.stop_sent and not seat.taken:
            self._withdraw(seat, "stopped before its job began", clean=True)
        elif seat is not None:
            seat.stop_sent = True
        self._require_gate().stop(worker)

    def kill_worker(self, worker: int) -> None:
        """Close the connection of *worker* and cancel its job."""
        seat = self._seats.by_worker.get(worker)
        if seat is None:
            return
        if not seat.taken:
            self._withdraw(seat, "killed before its job began", clean=False)
            return
        job = seat.job
        self._require_gate().drop_worker(worker, "its worker was killed")
        if job is not None and self._slurm is not None:
            self._slurm.cancel([job])

    def take_back(self, worker: int) -> None:
        """Answer with nothing: a worker never holds more than the block that it runs."""
        if worker in self._seats.by_worker:
            self._events.append(TakenBack(worker, ()))

    # -- what it tells ---------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None) -> list[Event]:
        """Submit what was asked for, then wait until something happened, at most *timeout* seconds, and return it.

        Raises
        ------
        EngineError
            Slurm refuses the jobs of a task.
        """
        self._require_job()
        self._submit()
        return super().poll(timeout)

    def close(self, grace: float = 0.0) -> list[Event]:
        """End all workers and cancel what is left of their jobs.

        Parameters
        ----------
        grace
            Seconds in which workers may finish what they hold. The jobs of those that do not are cancelled.

        Returns
        -------
        list of Event
            What came back meanwhile, and one ``Ended`` for each worker that was left.
        """
        if self._job is None or os.getpid() != self._pid:
            return []
        kept: list[Event] = []
        try:
            if grace > 0 and self._gate is not None:
                for worker in list(self._seats.by_worker):
                    self.stop_worker(worker)
                end = monotonic() + grace
                while any(seat.taken for seat in self._seats.by_worker.values()) and monotonic() < end:
                    kept += self._events
                    self._events = []
                    self._look(end)
        finally:
            kept += self._events
            self._events = []
            jobs = [*self._seats.waiting, *self._seats.at_work]
            for seat in list(self._seats.by_worker.values()):
                self._events.append(Ended(seat.worker, False, "the run has ended"))
            self._seats.by_worker.clear()
            ends = self._events
            self._events = []
            if self._slurm is not None:
                self._slurm.close(jobs)
            self._close_gate()
            self._selector.close()
            if self._waker is not None:
                self._waker.close()
            self._reset()
        return kept + ends

    # -- inside: seats and jobs ------------------------------------------------------------------------------------

    def _balance(self, task: int) -> None:
        """Ask for jobs that are missing, and cancel those that are too many."""
        self._wanted[task], surplus = self._seats.balance(task)
        if self._slurm is not None:
            self._slurm.cancel(surplus)

    def _submit(self) -> None:
        assert self._slurm is not None
        assert self._job is not None
        for task, count in self._wanted.items():
            if count:
                self._wanted[task] = 0
                self._seats.asked(task, count)
                entry = self._job.tasks[task]
                folder = prepare_folder(self._folder, entry.task_id)
                gpus = sum(amount for name, amount in entry.requires.items() if name.lower() == "gpu")
                words = [
                    f"--job-name=workspan-{entry.task_id}",
                    f"--output={folder / ('slurm-%A_%a.out' if count > 1 else 'slurm-%j.out')}",
                    f"--chdir={os.getcwd()}",
                    *self._words,
                    *([f"--gres=gpu:{gpus}"] if gpus else []),
                    *self._options,
                ]
                text = slurm_script.script(self._python, self.context_file(task), self._setup)
                logger.debug("sbatch %s", shlex.join(words))
                self._slurm.submit(task, count, text, words)

    def _withdraw(self, seat: Seat, reason: str, *, clean: bool) -> None:
        del self._seats.by_worker[seat.worker]
        self._events.append(Ended(seat.worker, clean, reason))
        self._balance(seat.task)

    def _emit(self, event: Event) -> None:
        """Take what the gate says: jobs that log in take seats, and what ends gives its seat back."""
        if isinstance(event, Joined):
            self._joined(event)
            return
        if isinstance(event, Returned):
            seat = self._seats.by_worker.get(event.worker)
            if seat is not None:
                seat.done += 1
        elif isinstance(event, Ended):
            # A request that nobody was told of yet: answered, it would cost a block that was never begun an attempt.
            self._events = [e for e in self._events if not (type(e) is Ready and e.worker == event.worker)]
            event = self._ended(event)
        self._events.append(event)

    def _joined(self, event: Joined) -> None:
        gate = self._require_gate()
        job = gate.job_of(event.guest)
        if job is None or not self._seats.is_ours(job, event.task):
            self._events.append(event)  # somebody who was given the context
            return
        seat = self._seats.join(job, event.task)
        if self._slurm is not None:
            self._slurm.ignore(job)
        # One that Slurm ran again may find its place taken.
        gate.admit(event.guest, None if seat is None else seat.worker)
        self._balance(event.task)

    def _ended(self, event: Ended) -> Ended:
        seat = self._seats.by_worker.pop(event.worker, None)
        if seat is None:
            return event
        reason, tail = event.reason, ""
        if seat.job is not None and not event.clean:
            reason = f"{event.reason} (Slurm job {seat.job})"
            tail = self._log_tail(seat.task, seat.job)
        # A job that did something and left in good order, for its time limit or a preemption, is no failure (W9).
        productive = event.clean and seat.done > 0 and not seat.stop_sent
        return Ended(
            event.worker, event.clean, reason, stderr_tail=tail, unstarted=event.unstarted, withdrawn=productive
        )

    def _log_tail(self, task: int, job: str) -> str:
        path = prepare_folder(self._folder, self._require_job().tasks[task].task_id) / f"slurm-{job}.out"
        with suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-20:])
        return ""

    # -- inside: the loop ------------------------------------------------------------------------------------------

    def _hear(self, news: News) -> None:
        """Take news in the thread of the jobs."""
        self._news.put(news)
        self.wake()

    def _look(self, end: float) -> None:
        gate = self._require_gate()
        due = min(end, gate.due)
        seconds = 0.0 if self._hurries else max(0.0, due - monotonic())
        for key, mask in self._selector.select(None if seconds == inf else seconds):
            key.data(mask)
        now = monotonic()
        if gate.due <= now:
            gate.expire(now)
        with suppress(queue.Empty):
            while True:
                self._learn(self._news.get_nowait(), now)

    def _learn(self, news: News, now: float) -> None:
        if isinstance(news, Submitted):
            surplus = self._seats.submitted(news.task, news.jobs)
            if self._slurm is not None:
                self._slurm.cancel(surplus)
            self._balance(news.task)
        elif isinstance(news, Refused):
            raise EngineError(
                f"Slurm refuses the jobs of task {self._require_job().tasks[news.task].task_id!r}: {news.reason}; see "
                "the arguments of workspan.engines.Slurm"
            )
        elif isinstance(news, Waiting):
            self._waits_since = min(self._waits_since, now)
            if now - self._waits_since >= NOTICE_SECONDS and not self._seats.at_work:
                self._waits_since = now + 20 * NOTICE_SECONDS
                logger.warning("%d jobs wait in Slurm's queue (%s)", news.count, news.reason or "no reason given")
        elif isinstance(news, Gone):
            self._gone(news)

    def _gone(self, news: Gone) -> None:
        seat = self._seats.gone(news.job)
        if seat is not None:
            reason = f"Slurm job {news.job} ended before its worker connected: {news.reason}"
            tail = self._log_tail(seat.task, news.job)
            self._events.append(Ended(seat.worker, False, reason, stderr_tail=tail))

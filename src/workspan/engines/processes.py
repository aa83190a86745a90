"""The engine of worker processes on this machine: one operating-system process a worker, one connection each.

Each worker is a fresh interpreter, or a fork of one (`fork_server`), in a session of its own: Ctrl-C in a terminal does
not reach it. It inherits its ends of two socket pairs, so nobody else can connect. Code reaches it through the pipe of
its standard input, and afterwards only numbers and text cross the connection (`wire`). One selector watches
connections, payload pipes and process descriptors; there is no thread, and nothing here waits without a bound.

Only for tasks whose blocks go to clients (worker functions, tasks without a function), or when it is asked for, a
`Gate` listens as well.

A worker dies with all that it started in its process group, whether it ends by itself, is killed, or loses its driver.
A process that is to survive a worker must be started in a session of its own.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from workspan import config
from workspan.engines import wire
from workspan.engines.child import Child
from workspan.engines.common import GateEngine
from workspan.engines.descriptors import SPARE, make_room
from workspan.engines.follow import LogWatch
from workspan.engines.gate import Gate
from workspan.engines.logs import open_log, prepare_folder
from workspan.engines.memory import MemoryWatch
from workspan.engines.payload import driver_settings, pack_function, task_settings
from workspan.engines.tcp import host_to_dial
from workspan.engines.waker import Waker
from workspan.errors import EngineError, UsageTypeError, WireError
from workspan.schedule.events import Dropped, Ended, Ready, TakenBack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspan.engines.base import Job, WorkerTask
    from workspan.engines.fork_server import ForkServer
    from workspan.engines.wire import Message
    from workspan.schedule.events import Event

KILL_SECONDS = 2.0
"""Time from SIGTERM to SIGKILL."""
START_SECONDS = 300.0
"""Time in which a worker must have loaded the user's function."""
SILENT_EXIT_SECONDS = 1.0
"""Time in which a worker that closed its connection must have ended."""
EXIT_SECONDS = 30.0
"""Time in which a worker that was told to stop must have ended after its last block: exit handlers, threads."""
STUCK_SECONDS = 5.0
"""Time in which SIGKILL must have worked."""
REAP_SECONDS = 0.05
"""How often ends are looked for where the kernel has no process descriptors."""

DESCRIPTORS_A_WORKER = 6


class Processes(GateEngine):
    """Runs blocks in worker processes on this machine.

    Parameters
    ----------
    kill_seconds
        Time from SIGTERM to SIGKILL for a worker that is killed.
    start_seconds
        Time that a worker has to start, the imports of the user's function included. One that takes longer is ended
        (with SIGABRT, so that its log says where it was) and counts as failed.
    fork_server
        Whether workers are forked from a process that has loaded what they need, instead of being fresh interpreters
        (Linux; elsewhere they are those). Resident memory of a forked worker counts pages that it shares with that
        process, and not the pages of libraries that it never touches. ``None``: as the setting ``fork_server`` says.
    preload
        Names of modules that this process loads as well, such as ``["scipy.ndimage"]``. They must not start threads.
        Changes of their source are not seen by later runs.
    """

    name = "processes"
    has_workers = True
    has_clients = True

    def __init__(
        self,
        *,
        kill_seconds: float = KILL_SECONDS,
        start_seconds: float = START_SECONDS,
        fork_server: bool | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        if isinstance(preload, str):
            raise UsageTypeError(f"preload={preload!r} is a text: pass a list of names of modules")
        self._kill_seconds = kill_seconds
        self._start_seconds = start_seconds
        self._wants_server = fork_server
        self._preload = tuple(preload)
        self._reset()

    def _reset(self) -> None:
        self._job: Job | None = None
        self._pid = 0
        self._server: ForkServer | None = None
        self._settings: list[dict[str, object]] = []
        self._functions: list[bytes | None] = []
        self._folders: list[Path] | None = None
        self._children: dict[int, Child] = {}
        self._unwatched: set[Child] = set()
        """Children without a process descriptor."""
        self._log_watch = LogWatch()
        self._timed: set[Child] = set()
        """Children that something is due for."""
        self._outgoing: list[Child] = []
        self._events: list[Event] = []
        self._waker: Waker | None = None
        self._memory: MemoryWatch | None = None
        self._gate: Gate | None = None

    def open(self, job: Job) -> None:
        """Serialise the functions of *job* and make the log folders; no process is started yet.

        Raises
        ------
        EngineError
            The engine is open already, a function cannot be sent to a worker, a log folder cannot be made, this
            program does not know its interpreter, or nothing can listen for clients that are needed.
        """
        if self._job is not None:
            raise EngineError("this engine is running a job already: give each run an engine of its own")
        if not sys.executable:
            raise EngineError("sys.executable is empty, so no worker can be started: run with engine='serial'")
        server = None
        if config.get("fork_server") if self._wants_server is None else self._wants_server:
            from workspan.engines.fork_server import server_for

            server = server_for((task.function for task in job.tasks), self._preload)
        functions = [self._pack(task) for task in job.tasks]
        folders = None
        if job.log_dir is not None:
            folders = [prepare_folder(job.log_dir, task.task_id) for task in job.tasks]
        shared = driver_settings()
        self._reset()
        self._server = server
        self._settings = [{**shared, **task_settings(task)} for task in job.tasks]
        self._functions = functions
        self._folders = folders
        self._log_watch = LogWatch(show=job.shows_logs)
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._waker = Waker(self._selector)
        self._memory = MemoryWatch()
        self._job = job
        needs_clients = any(task.kind == "worker" or task.function is None for task in job.tasks)
        if needs_clients or job.listen or job.host:
            host = host_to_dial(job.host, from_outside=needs_clients)
            try:
                self._gate = Gate(job, self._settings, functions, host, self._selector, self._emit)
            except BaseException:
                self.close()
                raise

    @staticmethod
    def _pack(task: WorkerTask) -> bytes | None:
        return None if task.function is None else pack_function(task.task_id, task.function)

    # -- what the engine is told -----------------------------------------------------------------------------------

    def start_worker(self, worker: int, task: int) -> None:
        """Start a process; a process that cannot be started is reported as ended."""
        entry = self._require_job().tasks[task]
        function = self._functions[task]
        if function is None:
            raise EngineError(f"task {entry.task_id!r} has no block function: no worker can be started for it")
        if worker in self._children:
            raise EngineError(f"worker {worker} was started before: give each worker a number of its own")
        settings = self._settings[task]
        if entry.kind == "worker":
            settings = {**settings, "context": self.context(task, worker).to_env()}
        try:
            make_room((len(self._children) + 1) * DESCRIPTORS_A_WORKER + SPARE)
            if self._server is not None and not self._children and not self._server.wait():
                self._server = None
            log = None if self._folders is None else open_log(self._folders[task], worker)
            child = Child(worker, settings, function, log, self._server)
        except OSError as error:
            self._events.append(Ended(worker, False, f"could not be started: {error}"))
            return
        self._children[worker] = child
        if log is not None:
            self._log_watch.add(log, monotonic())
        child.line.watch(self._selector, partial(self._connection_ready, child))
        if child.pidfd is None:
            self._unwatched.add(child)
        else:
            self._selector.register(child.pidfd, selectors.EVENT_READ, partial(self._process_ready, child))
        if not child.feed_payload():
            self._selector.register(child.lifeline, selectors.EVENT_WRITE, partial(self._payload_ready, child))
        self._time(child, self._start_seconds)
        if child.is_spawn and self._gate is not None:
            self._gate.expect(child)

    def send(self, worker: int, index: int) -> None:
        """Send block *index* to *worker*: at once if it waits for one, else with the next :meth:`poll`.

        Raises
        ------
        EngineError
            The worker was told to stop before.
        """
        child = self._children.get(worker)
        if child is not None and child.stop_sent:
            raise EngineError(f"worker {worker} was told to stop: it takes no more blocks")
        if child is None or child.is_spawn:
            if self._gate is not None:
                self._gate.grant(worker, index)
        elif child.fault is None:
            waits = not child.held
            child.held.append(index)
            self._queue(child, wire.Grant(index))
            if waits:
                child.line.flush()

    def stop_worker(self, worker: int) -> None:
        """Let *worker* end after what it holds."""
        child = self._children.get(worker)
        if child is not None and not child.stop_sent:
            child.stop_sent = True
            if not child.is_spawn:
                self._queue(child, wire.Stop())
            elif not child.was_met:
                self._time(child, EXIT_SECONDS)
        if self._gate is not None:
            self._gate.stop(worker)

    def kill_worker(self, worker: int) -> None:
        """Send SIGTERM to *worker* and all that it started, and SIGKILL a little later if that does not do.

        What it has not begun is taken from it before, and the connection of a client is closed.
        """
        child = self._children.get(worker)
        if child is not None and not child.is_signalled:
            if not child.is_spawn:
                child.take_back()
            self._press(child)
        if self._gate is not None:
            self._gate.drop_worker(worker, "its worker was killed")

    def take_back(self, worker: int) -> None:
        """Take back what *worker* has not begun, as far as that can be done without waiting for it."""
        child = self._children.get(worker)
        if child is not None:
            indices = () if child.is_spawn else child.take_back()
            self._events.append(TakenBack(worker, indices))

    # -- what it tells ---------------------------------------------------------------------------------------------

    def close(self, grace: float = 0.0) -> list[Event]:
        """End all workers, wait for them, and give back all descriptors.

        Parameters
        ----------
        grace
            Seconds in which workers may finish what they hold. Then they get SIGTERM and, a little later, SIGKILL;
            with 0 they get SIGKILL at once.

        Returns
        -------
        list of Event
            What came back meanwhile, and one ``Ended`` for each worker that was left.
        """
        if self._job is None or os.getpid() != self._pid:  # a fork of the driver has no workers
            return []
        try:
            if grace > 0:
                for worker in self._children:
                    self.stop_worker(worker)
                self._wait_for_ends(grace)
                for child in self._children.values():
                    self._press(child)
                self._wait_for_ends(self._kill_seconds)
        finally:
            # Whatever interrupts the grace, a second Ctrl-C for example, ends it and not the clean-up.
            self._end_all()
            self._close_gate()
            events = self._events
            self._selector.close()
            if self._waker is not None:
                self._waker.close()
            self._reset()
        return events

    # -- inside ----------------------------------------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        if isinstance(event, Dropped | Ended):
            # A request that nobody was told of yet: answered, it would cost a block that was never begun an attempt.
            self._events = [e for e in self._events if not (type(e) is Ready and e.worker == event.worker)]
        self._events.append(event)

    def _queue(self, child: Child, message: Message) -> None:
        if child.line.queue(message):
            self._outgoing.append(child)

    def _look(self, end: float) -> None:
        """Send, wait for the kernel until *end* (monotonic clock) at most, and deal with what it reports."""
        while self._outgoing:
            child = self._outgoing.pop()
            if child.line.out and not child.is_over:
                child.line.flush()
        for key, mask in self._selector.select(self._wait_seconds(end)):
            key.data(mask)
        for child in list(self._unwatched):
            self._try_end(child)
        now = monotonic()
        self._log_watch.tend(now)
        if self._timed:
            self._press_due(now)
        if self._gate is not None and self._gate.due <= now:
            self._gate.expire(now)

    def _wait_seconds(self, end: float) -> float | None:
        if self._hurries:
            return 0.0
        if self._timed:
            end = min(end, *(child.due for child in self._timed))
        end = min(end, self._log_watch.due)
        if self._gate is not None:
            end = min(end, self._gate.due)
        if end == inf:
            return REAP_SECONDS if self._unwatched else None
        seconds = max(0.0, end - monotonic())
        return min(seconds, REAP_SECONDS) if self._unwatched else seconds

    # A selector reports several descriptors at once; the first of a worker may be its end.

    def _process_ready(self, child: Child, mask: int) -> None:
        if not child.is_over:
            self._try_end(child)

    def _payload_ready(self, child: Child, mask: int) -> None:
        if not child.is_over and child.feed_payload():
            self._selector.unregister(child.lifeline)

    def _connection_ready(self, child: Child, mask: int) -> None:
        if child.is_over:
            return
        if mask & selectors.EVENT_WRITE:
            child.line.flush()
        if not mask & selectors.EVENT_READ:
            return
        data = child.line.read()
        if data:
            self._take(child, data)
        elif data is not None:
            # The end of the connection is not the end of the process, but that should not be far.
            child.line.close()
            if not child.is_spawn:
                self._time(child, SILENT_EXIT_SECONDS)

    def _take(self, child: Child, data: bytes) -> None:
        """Turn bytes from *child* into events."""
        try:
            was_started = child.started
            for event in child.take(data):
                self._events.append(event)
            if child.started is not was_started and not child.is_signalled:
                # Its start had a deadline, and so has a worker function that was told meanwhile that it is too late.
                child.due = monotonic() + EXIT_SECONDS if child.is_spawn and child.stop_sent else inf
        except WireError as error:
            child.fault = f"broke the protocol: {error}"
            child.line.close()
            self._press(child)
        if child.is_leaving:
            self._time(child, EXIT_SECONDS)

    def _time(self, child: Child, seconds: float) -> None:
        """Give *child* so long to end, if it has no less already."""
        child.due = min(child.due, monotonic() + seconds)
        self._timed.add(child)

    def _press(self, child: Child) -> None:
        child.press(monotonic(), self._kill_seconds)
        self._timed.add(child)

    def _press_due(self, now: float) -> None:
        for child in list(self._timed):
            if child.due <= now and not (child.started or child.is_signalled or child.is_leaving):
                child.give_up(now, self._kill_seconds, start_seconds=self._start_seconds)
            elif child.due <= now:
                child.press(now, self._kill_seconds)
            if child.due == inf:
                self._timed.discard(child)

    def _try_end(self, child: Child) -> None:
        """Report the end of *child* if its process has ended, after all that it sent before."""
        if child.reap():
            self._take(child, child.line.read_rest())
            self._end(child)

    def _end(self, child: Child) -> None:
        for descriptor in (child.lifeline, child.pidfd):
            with suppress(KeyError, ValueError):  # not registered
                self._selector.unregister(descriptor)  # type: ignore[arg-type]
        if child.exit_code == -signal.SIGKILL and not child.is_signalled and self._memory is not None:
            child.note_memory(self._memory)
        ended = child.ended()
        child.close()
        self._timed.discard(child)
        self._unwatched.discard(child)
        del self._children[child.worker]
        if child.log is not None:
            self._log_watch.end(child.log)
        if child.is_spawn and self._gate is not None:
            self._gate.child_ended(child)
        self._events.append(ended)

    def _wait_for_ends(self, seconds: float) -> None:
        end = monotonic() + seconds
        while self._children and monotonic() < end:
            self._look_past_events(end)

    def _look_past_events(self, end: float) -> None:
        """Look as :meth:`_look` does, but wait although events are there already."""
        before, self._events = self._events, []
        try:
            if self._waker is not None:
                self._waker.woken = False
            self._look(end)
        finally:
            self._events = before + self._events

    def _end_all(self) -> None:
        for child in self._children.values():
            child.kill()
        self._wait_for_ends(STUCK_SECONDS)
        for child in list(self._children.values()):
            child.abandon()
            self._end(child)

"""The far side of an engine on a cluster: beside one of the cluster's workers, one worker process of ours.

A host lives in a task or an actor of the cluster and owns one worker process on that machine, as :class:`Processes`
owns its many: a fresh interpreter in a session of its own, which runs one block at a time and is measured, stopped,
killed and reaped by the same code. So a block can be ended without ending the cluster's own worker, its figures are its
own however many threads that worker has, and a crash of user code costs nobody else anything. The process dies with the
cluster's worker, whatever that dies of.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from workspan.engines import wire
from workspan.engines.base import Job, WorkerTask
from workspan.engines.payload import load_layout
from workspan.engines.processes import Processes
from workspan.engines.remote import (
    Ending,
    Found,
    Placed,
    Recall,
    check_match,
    pack_reports,
    token_file,
    unpack_commands,
)
from workspan.measure import notes
from workspan.schedule.events import Ended, TakenBack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from workspan.engines.remote import Command, Report
    from workspan.schedule.events import Event

CHECK_SECONDS = 0.25
"""How often a host looks whether its place is still its own."""

_found = threading.local()


class Host:
    """Owns one worker process, in the thread that calls :meth:`run`.

    Parameters
    ----------
    start
        One of ``remote.start_values``.
    worker
        The worker's number.
    place
        The cluster's name for where this is.
    emit
        Takes packed reports, in order; never waits.
    keeps_place
        Whether the cluster still wants this to run: ``"yes"``, ``"leave"`` (finish the block that runs, the place will
        be gone) or ``"no"``.

    Raises
    ------
    EngineError
        Workspan or Python here differ from the driver's.
    """

    def __init__(
        self,
        start: dict[str, Any],
        worker: int,
        place: str,
        emit: Callable[[bytes], Any],
        keeps_place: Callable[[], str],
    ) -> None:
        check_match(start)
        self.token = secrets.token_hex(8)
        self._start = start
        self._worker = worker
        self._place = place
        self._emit = emit
        self._keeps_place = keeps_place
        self._commands: deque[bytes] = deque()
        self._engine = _Own(kill_seconds=start["kill_seconds"], start_seconds=start["start_seconds"], fork_server=False)
        self._taken = 0
        self._refused: list[int] = []
        """Blocks that came when the worker was leaving."""
        self._leaving = False
        self._gone = False
        self._ended = False

    def tell(self, data: bytes) -> None:
        """Take packed commands. Safe in any thread."""
        self._commands.append(data)
        self._engine.wake()

    def abandon(self) -> None:
        """End the worker at once and report nothing more: the driver cannot be reached. Safe in any thread."""
        self._gone = True
        self._engine.wake()

    def run(self) -> None:
        """Start the worker process and serve it to its end."""
        log_dir = self._log_dir()
        self._report(
            [Placed(self._worker, self.token, self._place, socket.gethostname(), os.getpid(), log_dir is not None)]
        )
        with _kept_notes() as found, self._engine as engine:
            engine.open_with(self._start, log_dir)
            engine.start_worker(self._worker, 0)
            while True:
                look_at = monotonic() + CHECK_SECONDS
                while monotonic() < look_at:
                    while self._commands:
                        for command in unpack_commands(self._commands.popleft()):
                            self._obey(command)
                    if self._gone:
                        return
                    self._tell(engine.poll(max(0.0, look_at - monotonic())), found)
                    if self._ended:
                        return
                self._look_after_place()

    def _obey(self, command: Command) -> None:
        engine, worker = self._engine, self._worker
        if isinstance(command, wire.Grant):
            self._taken += 1
            self._look_after_place()
            if self._leaving:
                self._refused.append(command.index)
            else:
                engine.send(worker, command.index)
        elif isinstance(command, wire.Stop):
            engine.stop_worker(worker)
        elif isinstance(command, Recall):
            engine.take_back(worker)
        elif command.seconds > 0:
            engine.kill_worker(worker)
        else:
            engine.kill_at_once(worker)

    def _look_after_place(self) -> None:
        wanted = self._keeps_place()
        if wanted == "no":
            self._engine.kill_at_once(self._worker)
        elif wanted == "leave" and not self._leaving:
            self._leaving = True
            self._engine.take_back(self._worker)
            self._engine.stop_worker(self._worker)

    def _tell(self, events: Sequence[Event], found: list[notes.Note]) -> None:
        reports: list[Report] = []
        if found:
            reports.append(Found(self._worker, list(found)))
            found.clear()
        for event in events:
            if isinstance(event, Ended):
                self._ended = True
                reports.append(self._ending(event))
            elif isinstance(event, TakenBack) and not event.indices and self._leaving:
                continue
            else:
                reports.append(event)  # type: ignore[arg-type]  # an engine of one worker reports nothing else
        if reports:
            self._report(reports)

    def _ending(self, event: Ended) -> Ending:
        withdrawn = self._leaving and event.clean
        reason = f"left with its place {self._place}, which the cluster withdrew" if withdrawn else event.reason
        ended = Ended(
            event.worker,
            event.clean,
            reason,
            event.exit_code,
            event.stderr_tail,
            (*event.unstarted, *self._refused),
            withdrawn,
        )
        return Ending(ended, self._taken)

    def _report(self, reports: list[Report]) -> None:
        self._emit(pack_reports(reports))

    def _log_dir(self) -> Path | None:
        """Return the run's log folder if it can be seen from here, or else ``None``."""
        if self._start["log_dir"] is None:
            return None
        folder = Path(self._start["log_dir"])
        return folder if token_file(folder, self._start["run_id"]).exists() else None


class _Own(Processes):
    """The engine of this host's one worker process, whose function has been packed by a driver elsewhere."""

    def open_with(self, start: dict[str, Any], log_dir: Path | None) -> None:
        settings = dict(start["settings"])
        layout = {
            name: tuple(value) if isinstance(value, list) else value for name, value in settings["layout"].items()
        }
        task = WorkerTask(settings["task_id"], load_layout(layout), start["function"])
        self.open(Job(start["run_id"], (task,), log_dir))
        # What is importable here comes first; the driver's own paths may mean something else on this machine.
        here = [entry for entry in sys.path if entry]
        settings["sys_path"] = [*here, *(entry for entry in settings["sys_path"] if entry not in here)]
        cwd = settings["cwd"]
        settings |= {"layout": layout, "driver_pid": os.getpid()}
        settings["cwd"] = cwd if cwd is not None and os.path.isdir(cwd) else None
        style = settings["traceback_style"]
        settings["traceback_style"] = tuple(style)
        self._settings = [settings]

    @staticmethod
    def _pack(task: WorkerTask) -> bytes | None:
        return task.function  # type: ignore[return-value]  # packed already

    def kill_at_once(self, worker: int) -> None:
        """Send SIGKILL to *worker* and all that it started."""
        child = self._children.get(worker)
        if child is not None:
            child.take_back()
            child.kill()


@contextmanager
def _kept_notes() -> Iterator[list[notes.Note]]:
    """Collect what this thread's worker measured of steps, to be sent to the driver."""
    global _elsewhere
    if notes.home is not _route:
        _elsewhere, notes.home = notes.home, _route
    found: list[notes.Note] = []
    _found.notes = found
    try:
        yield found
    finally:
        del _found.notes


_elsewhere: Callable[[Sequence[notes.Note]], None] | None = None


def _route(found: Sequence[notes.Note]) -> None:
    """Keep what comes from this thread's worker; another thread of this process may drive a run of its own."""
    kept: list[notes.Note] | None = getattr(_found, "notes", None)
    if kept is not None:
        kept.extend(found)
    elif _elsewhere is not None:
        _elsewhere(found)

"""Who is told how a run goes: our displays, or any object with the three methods of :class:`Observer`.

An observer can neither stop nor slow a run: it is called at most twice a second, and one that raises is dropped.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from workspan.errors import ConfigurationError, UsageTypeError
from workspan.views.format import clock as clock_text
from workspan.views.status import TaskStatus
from workspan.views.terminal import emit, in_notebook, is_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from workspan.schedule.state import TaskState

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.5
"""Least time between two calls of an observer's ``on_progress``."""

LINE_SECONDS = 5.0
"""Least time between two lines about a task in a log file."""


class Observer(Protocol):
    """What a run tells. *states* is task id -> counters, in display order; they are copies, the observer's to keep."""

    def on_start(self, states: Mapping[str, TaskState]) -> None:
        """Take note of the begin: called once, before the first block."""

    def on_progress(self, states: Mapping[str, TaskState]) -> None:
        """Take note of a change: called at most every 500 ms."""

    def on_finish(self, states: Mapping[str, TaskState]) -> None:
        """Take note of the end, however it came: called once, with the final counters."""


class Guard:
    """Stands between a run and its observer: keeps the pace, and keeps errors away from the run.

    Parameters
    ----------
    observer
        Whom to tell; ``None``: nobody. One with a true attribute ``wants_ticks`` is told of the passing of time too,
        not only of changes.
    interval_seconds
        Least time between two calls of ``on_progress``.
    before
        Called before each call of the observer: brings up to date what is not counted.
    """

    def __init__(
        self,
        observer: Observer | None,
        *,
        interval_seconds: float = PROGRESS_SECONDS,
        before: Callable[[], Any] = lambda: None,
    ) -> None:
        self._observer = observer
        self._before = before
        self._interval = interval_seconds
        self._ticks = bool(getattr(observer, "wants_ticks", False))
        self._changed = False
        self._due_at = float("inf")

    def start(self, states: Mapping[str, TaskState], now: float) -> None:
        """Tell of the begin. *states* are the live counters, *now* is in seconds of a monotonic clock."""
        self._due_at = now + self._interval
        self._tell("on_start", states)

    def changed(self) -> None:
        """Note that a counter has changed."""
        self._changed = True

    def tick(self, states: Mapping[str, TaskState], now: float) -> None:
        """Tell of progress if there is any and the time has come; next to nothing otherwise."""
        if now >= self._due_at and (self._changed or self._ticks):
            self._due_at = now + self._interval
            self._changed = False
            self._tell("on_progress", states)

    def finish(self, states: Mapping[str, TaskState]) -> None:
        """Tell of the end; later calls, and one without a begin, do nothing."""
        if self._due_at != float("inf"):
            self._due_at = float("inf")
            self._tell("on_finish", states)

    def _tell(self, method: str, states: Mapping[str, TaskState]) -> None:
        if self._observer is None:
            return
        try:
            self._before()
            getattr(self._observer, method)({task_id: copy(state) for task_id, state in states.items()})
        except (Exception, SystemExit):
            name = type(self._observer).__name__
            self._observer = None
            logger.warning("progress observer %s raised in %s and is switched off", name, method, exc_info=True)


class PlainProgress:
    """One line a task every few seconds, for log files and pipes: no control codes, no line twice.

    Parameters
    ----------
    stream
        Where to write; a stream that nobody reads any more is no error.
    interval_seconds
        Least time between two rounds of lines. In long runs it is a hundredth of the time that has passed.
    clock
        Monotonic clock, in seconds.
    """

    wants_ticks = True

    def __init__(
        self,
        stream: TextIO | None,
        *,
        interval_seconds: float = LINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._interval = interval_seconds
        self._clock = clock
        self._tasks: dict[str, TaskStatus] = {}
        self._shown: dict[str, TaskState] = {}
        self._began_at = self._last_at = 0.0

    def on_start(self, states: Mapping[str, TaskState]) -> None:
        """Print a line for each task that has something to do now."""
        self._began_at = self._last_at = now = self._clock()
        for task_id, state in states.items():
            self._tasks[task_id] = status = TaskStatus(state, now)
            if state.ready_count:
                self._print(status)

    def on_progress(self, states: Mapping[str, TaskState]) -> None:
        """Print a line for each task that has changed, if the last round was long enough ago."""
        now = self._update(states)
        if now - self._last_at >= max(self._interval, (now - self._began_at) / 100):
            self._last_at = now
            self._print_changed()

    def on_finish(self, states: Mapping[str, TaskState]) -> None:
        """Print the last line of each task, unless it was printed."""
        self._update(states, final=True)
        self._print_changed()

    def _update(self, states: Mapping[str, TaskState], *, final: bool = False) -> float:
        now = self._clock()
        for task_id, state in states.items():
            self._tasks[task_id].update(state, now, final=final)
        return now

    def _print_changed(self) -> None:
        for task_id, status in self._tasks.items():
            if self._shown.get(task_id) != status.state:
                self._print(status)

    def _print(self, status: TaskStatus) -> None:
        self._shown[status.state.task_id] = status.state
        parts = [f"{status.numbers} blocks ({status.percent} %)", *status.details]
        if not status.ended:
            parts.append(f"{clock_text(status.elapsed_seconds)} elapsed")
        if status.time:
            parts.append(status.time)
        emit(f"{status.name}: {', '.join(parts)}", self._stream)


class JsonProgressObserver:
    """One JSON line a task and event.

    Keys: ``t`` (seconds since the epoch), ``event`` (``"start"``, ``"progress"``, ``"finish"``), ``task``, ``total``,
    ``ready``, ``processing``, ``completed``, ``skipped``, ``failed``, ``orphaned``, ``restarts`` (worker starts beyond
    the first ones) and ``failures`` (workers that did not end cleanly).

    Parameters
    ----------
    path
        File to write, from its beginning; opened when the run starts and closed when it ends.
    stream
        Stream to write to instead; it stays open. Default: the standard output of that moment.
    clock
        Clock for ``t``.

    Raises
    ------
    ConfigurationError
        Both *path* and *stream* are given.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if path is not None and stream is not None:
            raise ConfigurationError(f"JsonProgressObserver was given path={path!r} and a stream: give one of them")
        self._path = path
        self._stream = stream
        self._clock = clock
        self._file: TextIO | None = None

    def on_start(self, states: Mapping[str, TaskState]) -> None:
        """Open the file and write the first lines."""
        if self._path is not None:
            self._file = open(self._path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed in on_finish)
        self._write("start", states)

    def on_progress(self, states: Mapping[str, TaskState]) -> None:
        """Write a line a task."""
        self._write("progress", states)

    def on_finish(self, states: Mapping[str, TaskState]) -> None:
        """Write the last lines and close the file."""
        self._write("finish", states)
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: str, states: Mapping[str, TaskState]) -> None:
        stream = self._file or self._stream or sys.stdout
        try:
            now = self._clock()
            for task_id, state in states.items():
                stream.write(json.dumps(self._line(now, event, task_id, state)) + "\n")
            stream.flush()
        except BaseException:
            self._close()  # whoever raises is not called again
            raise

    @staticmethod
    def _line(now: float, event: str, task_id: str, state: TaskState) -> dict[str, Any]:
        return {
            "t": now,
            "event": event,
            "task": task_id,
            "total": state.total_block_count,
            "ready": state.ready_count,
            "processing": state.processing_count,
            "completed": state.completed_count,
            "skipped": state.skipped_count,
            "failed": state.failed_count,
            "orphaned": state.orphaned_count,
            "restarts": state.worker_restart_count,
            "failures": state.worker_failure_count,
        }


def choose(progress: Any, stream: TextIO | None = None) -> Observer | None:
    """Return the observer that a person means by *progress*.

    Parameters
    ----------
    progress
        True: bars in a terminal and in notebooks, plain lines elsewhere; False or None: nobody; or an observer.
    stream
        Where a display is shown; default: standard error.

    Raises
    ------
    UsageTypeError
        *progress* is something else.
    """
    if progress is None or progress is False:
        return None
    if progress is not True:
        methods = ("on_start", "on_progress", "on_finish")
        if isinstance(progress, type) or not all(callable(getattr(progress, name, None)) for name in methods):
            raise UsageTypeError(
                f"progress={progress!r:.80} is no observer: pass True, False or an object with on_start(states), "
                "on_progress(states) and on_finish(states)"
            )
        return progress  # type: ignore[no-any-return]
    notebook = stream is None and in_notebook()
    stream = sys.stderr if stream is None else stream
    if notebook or is_terminal(stream):
        from workspan.views.rich_progress import RichProgress

        return RichProgress(stream, notebook=notebook)
    return PlainProgress(stream)

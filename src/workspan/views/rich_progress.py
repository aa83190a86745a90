"""Bars in a terminal or a notebook. Loaded only where they are shown, since it loads rich.

There is no thread: a bar is redrawn when the run tells of progress, twice a second.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from workspan.views.format import shorten
from workspan.views.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workspan.schedule.state import TaskState

_BAR_WIDTH = 30
_LEAST_BAR = 10
_LEAST_NAME = 12


class QuietConsole(Console):
    """A console that does not end the process when nobody reads it any more."""

    def on_broken_pipe(self) -> None:
        """Fall silent; rich would end the process."""
        self.quiet = True


class RichProgress:
    """One bar a task: sign, bar, blocks, percent, workers and troubles, time left.

    Parameters
    ----------
    stream
        The terminal.
    notebook
        Show it as a notebook's output instead.
    console
        Show it on this console instead.
    clock
        Monotonic clock, in seconds.
    """

    wants_ticks = True

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        notebook: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or QuietConsole(file=stream, force_jupyter=notebook)
        self._notebook = notebook
        self._clock = clock
        self._tasks: dict[str, tuple[TaskStatus, TaskID]] = {}
        self._bar = BarColumn(_BAR_WIDTH)
        self._progress = Progress(
            _text("name"),
            self._bar,
            _text("numbers", justify="right"),
            _text("percent", justify="right"),
            _text("details"),
            _text("time", justify="right"),
            console=self._console,
            auto_refresh=False,
            transient=notebook,  # what changes is a widget, and no notebook keeps it when it is saved
        )

    def on_start(self, states: Mapping[str, TaskState]) -> None:
        """Show the bars."""
        now = self._clock()
        for task_id, state in states.items():
            status = TaskStatus(state, now)
            self._tasks[task_id] = status, self._progress.add_task("", total=1, **_fields(status))
        self._fit()
        self._progress.start()
        self._draw(states)

    def on_progress(self, states: Mapping[str, TaskState]) -> None:
        """Redraw the bars."""
        self._draw(states)

    def on_finish(self, states: Mapping[str, TaskState]) -> None:
        """Draw the bars for the last time and leave them standing."""
        try:
            self._draw(states, final=True)
        finally:
            self._progress.stop()
            if self._notebook:
                self._console.print(self._progress.get_renderable())

    def _draw(self, states: Mapping[str, TaskState], *, final: bool = False) -> None:
        now = self._clock()
        try:
            for task_id, state in states.items():
                status, bar = self._tasks[task_id]
                status.update(state, now, final=final)
                # A task without blocks is full, and a bar of length 0 is not.
                total = state.total_block_count or 1
                done = state.completed_count if state.total_block_count else 1
                self._progress.update(bar, total=total, completed=done, **_fields(status))
            self._fit()
            self._progress.refresh()
        except BaseException:
            self._progress.stop()  # or the cursor stays hidden
            raise

    def _fit(self) -> None:
        """Make the bars short where the line is; then leave out the ranges of the times, and cut names."""
        room = self._room()
        if room < _LEAST_BAR:
            for status, bar in self._tasks.values():
                self._progress.update(bar, time=status.short_time)
            room = self._room()
        if room < _LEAST_BAR:
            longest = max((len(status.name) for status, _ in self._tasks.values()), default=0)
            most = max(_LEAST_NAME, longest - (_LEAST_BAR - room))
            for status, bar in self._tasks.values():
                self._progress.update(bar, name=f"{shorten(status.name, most)} {status.symbol}")
            room = self._room()
        self._bar.bar_width = max(_LEAST_BAR, min(_BAR_WIDTH, room))

    def _room(self) -> int:
        """Return how many columns the words of all tasks leave to the bars."""
        rows = [task.fields for task in self._progress.tasks]
        names = ("name", "numbers", "percent", "details", "time")
        return self._console.width - sum(max((cell_len(row[n]) for row in rows), default=0) + 1 for n in names)


def _fields(status: TaskStatus) -> dict[str, Any]:
    return {
        "name": f"{status.name} {status.symbol}",
        "numbers": status.numbers,
        "percent": f"{status.percent}%",
        "details": "  ".join(status.details),
        "time": status.time,
    }


def _text(field: str, *, justify: Literal["left", "right"] = "left") -> TextColumn:
    """Return a column that shows a field literally: task ids are not markup."""
    column = Column(no_wrap=True)
    return TextColumn(f"{{task.fields[{field}]}}", justify=justify, markup=False, table_column=column)

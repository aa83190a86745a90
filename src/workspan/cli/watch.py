"""``workspan watch``: what programs are doing that run in other terminals."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from workspan.cli import exits
from workspan.cli.terminal import remark, say
from workspan.errors import ConfigurationError
from workspan.live.folder import is_running
from workspan.live.handler import line_of
from workspan.live.viewer import Closed, Opened, Received, Trouble, Viewer
from workspan.views.format import many_lines, one_line
from workspan.views.terminal import columns_of, emit, encoding_of, is_terminal
from workspan.views.watch import WatchState, render
from workspan.views.watch_plain import PlainLines, end_line, title
from workspan.views.watch_run import RunChange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from workspan.live.viewer import Event

REDRAW_SECONDS = 0.25
ONCE_SECONDS = 2.0
"""How long ``--once`` waits for programs that do not answer."""


def run(place: str | None = None, *, name: str | None, pid: int | None, plain: bool, once: bool) -> int:
    """Show programs until Ctrl-C or until the one that was asked for has ended, or their state once.

    Raises
    ------
    ConfigurationError
        There is no such process, or nobody works into the tracking folder *place*.
    """
    if place is not None:
        if name is not None or pid is not None:
            raise ConfigurationError(f"{place!r} names a program already: leave out --name and --pid")
        pid = pid_at(place)
    elif pid is not None and (pid < 1 or not is_running(pid)):
        raise ConfigurationError(
            f"--pid {pid}: there is no process of that number; without --pid all programs are shown"
        )
    with Viewer(name=name, pid=pid) as viewer:
        watcher = Watcher(viewer, pid=pid)
        try:
            if once:
                watcher.show_once()
            elif plain or not is_terminal(sys.stdout):
                watcher.show_lines()
            elif not watcher.show_app():
                watcher.show_screen()
        except KeyboardInterrupt:
            pass
    return exits.DONE


def pid_at(place: str) -> int:
    """Return the process that works into a tracking folder, or a folder of some.

    Raises
    ------
    ConfigurationError
        None does, more than one does, or it is on another machine.
    """
    from workspan.report.places import nothing_at, task_folders
    from workspan.store.lock import holder_of

    path = Path(place)
    if not path.exists():
        if place.isdigit():
            raise ConfigurationError(f"{place!r} is no tracking folder; a process is named with --pid {place}")
        raise ConfigurationError(f"{nothing_at(path, 'run')}; a program is named with --name")
    folders = task_folders(path)
    if not folders:
        raise ConfigurationError(f"{nothing_at(path, 'tracking store')}; without a place all programs are shown")
    found = [holder for folder in folders if (holder := holder_of(folder)) is not None]
    pids = sorted({holder.pid for holder in found})
    if not pids:
        raise ConfigurationError(
            f"no program works into {place!r} now: `workspan report {place}` tells what its last run did, "
            "`workspan watch` shows whatever runs"
        )
    elsewhere = [holder for holder in found if holder.host != gethostname()]
    if elsewhere:
        raise ConfigurationError(f"the program that works into {place!r} is not on this machine: {elsewhere[0]}")
    if len(pids) > 1:
        raise ConfigurationError(
            f"several programs work into {place!r}: choose one, --pid {' or '.join(map(str, pids))}"
        )
    return pids[0]


class Watcher:
    """Brings what a viewer sees onto the terminal.

    Parameters
    ----------
    viewer
        Where it comes from.
    pid
        The only process that is wanted: when it has ended there is nothing to wait for.
    clock
        The viewer's.
    """

    def __init__(self, viewer: Viewer, *, pid: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._viewer = viewer
        self._pid = pid
        self._clock = clock
        self._state = WatchState()
        self._plain = PlainLines()
        self._formats: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._waiting = ""

    def show_once(self) -> None:
        """Print what all programs do now."""
        until = self._clock() + ONCE_SECONDS
        troubles: list[str] = []
        while True:
            for event in self._viewer.poll(0.05):
                troubles += [line for line in self._take(event, steps=False) if isinstance(event, Trouble)]
            if self._viewer.is_settled() or self._clock() >= until:
                break
        for line in troubles:
            say(line)
        for line in self._picture():
            say(line)
        if not self._state.programs:
            remark(self._wait_text("no program to watch runs" if self._pid is None else self._unseen()))

    def show_lines(self) -> None:
        """Print a line for each thing that happens, for as long as anybody reads them."""
        is_read, is_over = True, False
        while is_read and not is_over:
            is_over = self._is_over()  # and is told of once more
            lines = list(self._news(REDRAW_SECONDS, steps=True))
            lines += self._plain.overviews(list(self._state.programs.values()), self._clock())
            is_read = all([emit(f"{time.strftime('%H:%M:%S')} {line}", sys.stdout) for line in lines])

    def _is_over(self) -> bool:
        """Whether the only process that is wanted has ended."""
        return self._pid is not None and not is_running(self._pid)

    def show_app(self) -> bool:
        """Show the full-screen view until somebody ends it; False if it cannot be: it is in the extra ``live``."""
        if not (
            is_terminal(sys.stderr) and is_terminal(sys.stdin)
        ):  # it draws on the one and reads keys from the other
            return False
        try:
            from workspan.views.watch_app import WatchApp
        except ImportError:
            return False
        app = WatchApp(
            lambda: list(self._state.programs.values()),
            lambda: list(self._news(0.0, steps=False)),
            lambda: self._waits("q"),
            self._clock,
        )
        app.run()
        return True

    def show_screen(self) -> None:
        """Keep a picture of all programs on the terminal, for as long as there is one."""
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        from workspan.views.rich_progress import QuietConsole

        console = QuietConsole(file=sys.stdout, highlight=False)
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            drawn_at = -REDRAW_SECONDS
            is_over = False
            while not console.quiet and not is_over:
                is_over = self._is_over()
                for line in self._news(REDRAW_SECONDS, steps=False):
                    console.print(Text(line), soft_wrap=True)
                if (now := self._clock()) - drawn_at < REDRAW_SECONDS and not is_over:
                    continue
                drawn_at = now
                most = max(1, console.height - 1)
                lines = render(self._state.programs.values(), now, width=console.width, height=most)
                if not lines:
                    lines = [Text(self._waits("Ctrl-C"), "dim")]
                if len(lines) > most:
                    hidden = len(lines) - most + 1
                    lines = [
                        *lines[: most - 1],
                        Text(f"  ... {hidden} more lines: a higher terminal shows them", "dim"),
                    ]
                for text in lines:
                    text.truncate(console.width, overflow="ellipsis")
                live.update(Group(*lines), refresh=True)

    def _news(self, wait: float, *, steps: bool) -> Iterator[str]:
        """Wait *wait* seconds at most and yield lines about what has happened; about *steps* only if wanted."""
        for event in self._viewer.poll(wait):
            yield from self._take(event, steps=steps)
        if steps and not self._state.programs:
            text = self._waits("Ctrl-C")
            if text != self._waiting:
                self._waiting = text
                yield text
        elif self._state.programs:
            self._waiting = ""

    def _take(self, event: Event, *, steps: bool) -> Iterable[str]:
        if isinstance(event, Trouble):
            yield one_line(event.text)
        elif isinstance(event, Opened):
            program = self._state.open(event.program.number, event.program.pid, event.program.script)
            if steps:
                yield f"{title(program)} runs"
        elif isinstance(event, Closed):
            number = event.program.number
            if (gone := self._state.programs.get(number)) is not None:
                self._state.close(number)
                self._plain.forget(gone)
                yield f"{title(gone)} {one_line(event.reason)}"
        elif isinstance(event, Received):
            yield from self._hear(event, steps)

    def _hear(self, event: Received, steps: bool) -> Iterator[str]:
        number, frame = event.program.number, event.frame
        key = number, str(frame.get("handler"))
        if frame["kind"] == "handler":
            self._formats[key] = frame.get("fmt"), frame.get("datefmt")
        elif frame["kind"] == "log":
            text = line_of(frame, *self._formats.get(key, (None, None)))
            yield many_lines(text).replace("\n", "\n    ").replace("\t", "    ")
        else:
            change = self._state.receive(number, frame, event.at)
            if change is None:
                return
            program = self._state.programs[number]
            if isinstance(change, RunChange):
                if steps:
                    yield from self._plain.run_lines(program, change, self._clock())
                elif change.event == "end":
                    yield end_line(program, change.run)
            elif steps:
                yield from self._plain.lines(program, change, self._clock())

    def _picture(self) -> Iterator[str]:
        """Yield the state of all programs as lines of text."""
        try:
            "━╸─╌✔✗▶∅…µ".encode(encoding_of(sys.stdout))
            ascii_only = False
        except (UnicodeEncodeError, LookupError):
            ascii_only = True
        columns = columns_of(sys.stdout)
        width = 10**6 if columns is None else columns  # in a pipe nothing is cut
        for text in render(self._state.programs.values(), self._clock(), width=width, ascii_only=ascii_only):
            line = text.plain.rstrip()
            yield line if columns is None or len(line) <= columns else line[: columns - 1] + "…"

    def _unseen(self) -> str:
        return f"process {self._pid} shows nothing: it runs no block and no step, or its live.directory is another one"

    def _waits(self, key: str) -> str:
        """Say for what the display waits, and how to end it."""
        if self._pid is None:
            return self._wait_text(f"waiting for a program ({key} ends)")
        if self._is_over():
            return f"process {self._pid} has ended"
        return self._wait_text(f"waiting for process {self._pid} to run blocks or steps ({key} ends)")

    def _wait_text(self, beginning: str) -> str:
        others = ", ".join(f"{other.pid} {other.name}" for other in self._viewer.others[:10])
        return f"{beginning}{f'; others that run: {others}' if others else ''}"

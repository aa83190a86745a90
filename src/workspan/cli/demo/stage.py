"""What the acts of the demo share: the folder, what was asked for, and how things are said."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import workspan as ws
from workspan.cli import exits
from workspan.cli.terminal import say
from workspan.engines.choose import engine_of
from workspan.errors import ConfigurationError, StoreFullError, WorkspanError
from workspan.views.format import table, titled
from workspan.views.terminal import encoding_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from workspan.cli.demo.folder import Folder
    from workspan.schedule.state import TaskState
    from workspan.views.progress import Observer

ACTS = ("brain", "flights", "forecast")

SMALLEST_BLOCK = 8
"""Edge in voxels; smaller blocks make tens of thousands of files of some bytes."""

FRESH = "use --fresh to delete this demo and start anew"


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for on the command line."""

    out: Path
    workers: int
    block: int
    engine: str
    fresh: bool
    quiet: bool
    acts: tuple[str, ...] = ACTS

    def check(self) -> None:
        """Refuse what cannot work.

        Raises
        ------
        ConfigurationError
            A number is too small, the engine is not known, or a forecast is asked for without worker processes.
        """
        if self.workers < 1:
            raise ConfigurationError(f"--workers {self.workers} is too small: use 1 or more")
        if self.block < SMALLEST_BLOCK:
            raise ConfigurationError(f"--block {self.block} is too small: use {SMALLEST_BLOCK} or more voxels")
        engine_of(self.engine)  # refuses words that name none; nothing is connected to yet
        if self.engine == "serial" and self.acts == ("forecast",):
            raise ConfigurationError("--act forecast is of worker processes: leave --engine serial out")

    @property
    def who(self) -> str:
        """Who runs the blocks."""
        if self.engine == "serial":
            return "all in this process"
        if self.engine != "processes":
            return f"{self.workers} worker{'s' * (self.workers > 1)} a task on {self.engine}"
        return "1 worker process a task" if self.workers == 1 else f"{self.workers} worker processes a task"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where an act plays."""

    folder: Folder
    options: Options

    def tell(self, text: str = "") -> None:
        """Print a line, or some, unless silence was asked for."""
        if not self.options.quiet:
            say(text)

    def title(self, act: str) -> None:
        """Print the heading of an act, with that of the demo above the first one."""
        if act == next(name for name in ACTS if name in self.options.acts):
            from workspan.cli.demo.evaluate import shown

            self.tell(f"Workspan demo, {self.options.who}, in {shown(self.folder.path)}")
        self.tell("\n" + "\n".join(titled(f"Act {ACTS.index(act) + 1}: the {act}", [])))

    def tell_table(self, rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> None:
        """Print a table with its heading first."""
        self.tell("\n".join(f"  {line}" for line in table(rows, encoding=encoding_of(sys.stdout), right=right)))

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Say what it means when the file system refuses the input.

        Raises
        ------
        StoreFullError
            No space is left.
        ConfigurationError
            It refuses for another reason.
        """
        path = str(self.folder.path)
        try:
            yield
        except WorkspanError:
            raise
        except OSError as error:
            if exits.is_full(error):
                raise StoreFullError(
                    f"no space is left for the input in {path!r}: make some, or use another --out; nothing "
                    "half-written was left there"
                ) from error
            raise ConfigurationError(f"{path!r} cannot be prepared: {error}") from error

    @contextmanager
    def running(self, logs: Path) -> Iterator[None]:
        """Keep the logs of workers in *logs* meanwhile."""
        before = ws.logging.get_log_basedir()
        ws.logging.set_log_basedir(logs)
        try:
            yield
        finally:
            ws.logging.set_log_basedir(before)

    def watch(self, name: str | None = None) -> Watch:
        """Return who is told of the progress of a run; *name* stands for its only task."""
        from workspan.views.progress import choose

        return Watch(choose(not self.options.quiet), name)


class Watch:
    """Shows the progress as always, under a shorter name where there is one, and remembers the last counters."""

    def __init__(self, shown: Observer | None, name: str | None) -> None:
        self.states: Mapping[str, TaskState] = {}
        self.wants_ticks = bool(getattr(shown, "wants_ticks", False))
        self._shown, self._name = shown, name

    def on_start(self, states: Mapping[str, TaskState]) -> None:
        """Take note of the begin."""
        self._pass_on("on_start", states)

    def on_progress(self, states: Mapping[str, TaskState]) -> None:
        """Take note of a change."""
        self._pass_on("on_progress", states)

    def on_finish(self, states: Mapping[str, TaskState]) -> None:
        """Take note of the end."""
        self._pass_on("on_finish", states)

    def _pass_on(self, method: str, states: Mapping[str, TaskState]) -> None:
        self.states = states
        if self._shown is None:
            return
        if self._name is not None:
            (state,) = states.values()
            state.task_id = self._name
            states = {self._name: state}
        call: Any = getattr(self._shown, method)
        call(states)

"""The full-screen view of ``workspan watch``: a list of all that goes on, and below it what is known of one line.

The only module that needs the extra ``live``. It shows what the plain view shows, and lets a person choose a task, a
worker or a failure and read all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from workspan.views.format import clock, count
from workspan.views.watch import Ended, ProgramState, StepState, describe, describe_ended, picture
from workspan.views.watch_parts import Line, rough
from workspan.views.watch_run import Detail, FailureLine, RunState, TaskLine, WorkerLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

__all__ = ["WatchApp", "describe_line"]

LISTEN_SECONDS = 0.1
DRAW_SECONDS = 0.25
_DETAIL = Detail(failures=20, error_lines=0)
_MOST_NEWS = 3


class WatchApp(App[None]):
    """Shows running programs until ``q`` is pressed.

    Parameters
    ----------
    programs
        Returns the programs as they are known now.
    listen
        Takes in what has arrived, without waiting, and yields lines about it.
    waiting
        Returns what to say while no program runs.
    clock
        The watcher's, in seconds.
    """

    CSS = """
    OptionList { height: 1fr; border: none; padding: 0; text-wrap: nowrap; text-overflow: ellipsis; }
    OptionList > .option-list--option-disabled { color: $foreground; }
    #detail { height: 40%; border-top: solid $primary; padding: 0 1; }
    #news { height: auto; max-height: 6; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "End"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        ("f", "failure", "Next failure"),
        ("tab", "app.focus_next", "Scroll the text"),
    ]
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = "OptionList"

    def __init__(
        self,
        programs: Callable[[], Sequence[ProgramState]],
        listen: Callable[[], Iterable[str]],
        waiting: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._programs = programs
        self._listen = listen
        self._waiting = waiting
        self._clock = clock
        self._lines: list[Line] = []
        self._told: list[str] = []
        self._detail: list[Text] = []

    def compose(self) -> ComposeResult:
        """Make the list, the text below it, and the news."""
        yield OptionList()
        with VerticalScroll(id="detail"):
            yield Static(id="text")
        yield Static(id="news")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to listen and to draw."""
        self.hear()
        self.draw()
        self.set_interval(LISTEN_SECONDS, self.hear)
        self.set_interval(DRAW_SECONDS, self.draw)

    def hear(self) -> None:
        """Take in what has arrived."""
        if news := list(self._listen()):
            self._told = [*self._told, *news][-_MOST_NEWS:]
            self.query_one("#news", Static).update(Text("\n".join(self._told)))

    def draw(self) -> None:
        """Bring the list and the text up to date."""
        options = self.query_one(OptionList)
        chosen = self._chosen()
        self._lines = lines = _unique(self._pictures(options.size.width or self.size.width))
        if [(option.id or "", option.disabled) for option in options.options] == [_state(line) for line in lines]:
            for number, line in enumerate(lines):
                if options.get_option_at_index(number).prompt != line.text:
                    options.replace_option_prompt_at_index(number, line.text)
        else:
            top = options.scroll_offset.y
            options.clear_options()
            options.add_options([Option(line.text, id=line.key or None, disabled=not line.key) for line in lines])
            keys = [line.key for line in lines]
            if chosen is not None and chosen.key in keys:
                options.highlighted = keys.index(chosen.key)
            elif any(keys):
                options.highlighted = next(number for number, key in enumerate(keys) if key)
            options.scroll_to(y=top, animate=False)
        self._draw_text()

    def on_option_list_option_highlighted(self) -> None:
        """Tell of the line that has been chosen."""
        self._draw_text(top=True)

    def action_failure(self) -> None:
        """Go to the next failure in the list, from the top again after the last one."""
        options = self.query_one(OptionList)
        numbers = [number for number, line in enumerate(self._lines) if isinstance(line.about, FailureLine)]
        if numbers:
            here = -1 if options.highlighted is None else options.highlighted
            options.highlighted = next((number for number in numbers if number > here), numbers[0])

    def _pictures(self, width: int) -> Iterator[Line]:
        programs = self._programs()
        for program in programs:
            yield from picture(program, self._clock(), width=width, ascii_only=False, detail=_DETAIL)
        if not programs:
            yield Line(Text(self._waiting(), "dim"))

    def _chosen(self) -> Line | None:
        number = self.query_one(OptionList).highlighted
        return None if number is None or number >= len(self._lines) else self._lines[number]

    def _draw_text(self, *, top: bool = False) -> None:
        chosen = self._chosen()
        text = [] if chosen is None else list(describe_line(chosen.about, self._programs(), self._clock()))
        if text != self._detail:
            self._detail = text
            self.query_one("#text", Static).update(Text("\n").join(text))
        if top:
            self.query_one("#detail", VerticalScroll).scroll_home(animate=False)


def _unique(lines: Iterable[Line]) -> list[Line]:
    """Give each line a key of its own: names come from outside."""
    seen: dict[str, int] = {}
    found = []
    for line in lines:
        if line.key:
            seen[line.key] = number = seen.get(line.key, 0) + 1
            line = line._replace(key=line.key if number == 1 else f"{line.key} {number}")
        found.append(line)
    return found


def _state(line: Line) -> tuple[str, bool]:
    return line.key, not line.key


# -- what is known of a line -----------------------------------------------------------------------------------------


def describe_line(about: object, programs: Sequence[ProgramState], now: float) -> Iterator[Text]:
    """Yield all that is known of what a line is about.

    Parameters
    ----------
    about
        A program, run, task, worker, failure or step.
    programs
        All that are known, to find what belongs to it.
    now
        Seconds of the watcher's clock.
    """
    runs = [run for program in programs for run in program.runs.values()]
    if isinstance(about, ProgramState):
        yield Text(f"{about.script}, process {about.pid}", "bold")
        yield Text(f"{count(len(about.runs), 'run')}, {count(len(about.steps), 'active step')}")
        if about.dropped:
            yield Text(f"{about.dropped:,} records about steps were left out, so as not to slow it down", "yellow")
    elif isinstance(about, RunState):
        yield Text(about.title(now, name=False), "bold")
        yield Text(f"id {about.id}")
        yield Text(f"{count(about.failure_count, 'attempt')} failed", "red" if about.failure_count else "")
    elif isinstance(about, TaskLine):
        run = next((run for run in runs if any(task is about for task in run.tasks)), None)
        yield from _task(about, run, now)
    elif isinstance(about, WorkerLine):
        run = next((run for run in runs if any(worker is about for worker in run.workers)), None)
        passed = 0.0 if run is None else run.passed(now)
        yield Text(f"{about.name}, task {about.task}", "bold")
        yield Text(about.words(passed))
        failures = [] if run is None else [one for one in run.failures if f"worker {one.worker}" == about.name]
        yield from _failures(failures, now)
    elif isinstance(about, FailureLine):
        yield from _failures([about], now)
    elif isinstance(about, StepState):
        yield Text(about.label, "bold")
        yield Text(describe(about, now, is_root=True))
    elif isinstance(about, Ended):
        yield Text(about.label, "bold")
        yield Text(describe_ended(about), "red" if about.failures else "green")


def _task(task: TaskLine, run: RunState | None, now: float) -> Iterator[Text]:
    state = task.state
    yield Text(f"{state.task_id}: {count(state.total_block_count, 'block')}", "bold")
    yield Text(task.words(0.0 if run is None else run.passed(now), ended=run is None or run.outcome is not None))
    counts = [
        ("completed", state.completed_count),
        ("of them skipped", state.skipped_count),
        ("being done", state.processing_count),
        ("ready", state.ready_count),
        ("waiting for others", max(0, state.pending_count)),
        ("failed", state.failed_count),
        ("orphaned", state.orphaned_count),
        ("out of time", state.timeout_reclaim_count),
    ]
    yield Text(", ".join(f"{name} {number:,}" for name, number in counts if number))
    if state.abandoned:
        yield Text(f"abandoned: {state.abandon_reason or 'no reason given'}", "red")
    if state.worker_failure_count:
        started, failed = count(state.worker_start_count, "worker"), f"{state.worker_failure_count:,}"
        yield Text(f"{failed} of {started} failed; the last: {state.last_worker_error or 'no reason given'}", "red")
    if run is not None:
        yield from _failures([one for one in run.failures if one.task == state.task_id], now)


def _failures(failures: Sequence[FailureLine], now: float) -> Iterator[Text]:
    """Yield failures at length, the last one first."""
    for failure in reversed(failures):
        ago = max(0.0, now - failure.at)
        yield Text(f"{failure.title}, {rough(ago) if ago < 60 else clock(ago)} ago", "bold red")
        yield Text(failure.error.rstrip() or "no reason given")

"""A run of another process: what it tells of its tasks, workers and failures, and the lines that show them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from workspan.schedule.state import TaskState
from workspan.views.format import clock, count, fit, many_lines, one_line, raised_line, shorten
from workspan.views.status import TaskStatus
from workspan.views.watch_parts import Line, bar, bar_width, number, rough, text_of, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["DETAILS", "Detail", "FailureLine", "RunChange", "RunState", "TaskLine", "WorkerLine", "run_lines"]

_MOST_ID = 80
_MOST_ERROR = 8000
_MOST_KEPT = 20
"""Failures that a viewer keeps of a run."""
_MOST_LISTED = 1000
_LEAST_NAME = 12
"""Characters of a task's id that are shown, however narrow the terminal is."""
_SHORT_BAR = 4
"""What a bar is shortened to, where there is one, before figures are cut."""
_BESIDE = 8
"""Characters of the line of a task beside its name, bar and figures."""
_CAUSES = {"timeout": "ran out of time", "lost": "lost with its worker"}
_OUTCOMES = ("completed", "incomplete", "abandoned", "interrupted", "error")


@dataclass(frozen=True)
class TaskLine:
    """A task as of the last record."""

    state: TaskState
    left: float | None
    """Seconds that it will still take; ``None``: not known."""
    low: float | None = None
    high: float | None = None

    @property
    def fraction(self) -> float | None:
        """The part of it that is done."""
        total = self.state.total_block_count
        return min(1.0, self.state.completed_count / total) if total else None

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self.state.is_done()

    def words(self, passed: float, *, ended: bool = False) -> str:
        """Return how far it is, the time left and what else there is to know, *passed* seconds after the record."""
        status = TaskStatus(self.state, 0.0)
        left = []
        if not (ended or self.is_over) and self.left is not None:
            left = [f"{clock(max(0.0, self.left - passed))} left{self._range(passed)}"]
        return ", ".join([f"{status.percent} %", *left, *status.details])

    def _range(self, passed: float) -> str:
        if self.low is None or self.high is None:
            return ""
        return f" ({clock(max(0.0, self.low - passed))} - {clock(max(0.0, self.high - passed))})"


@dataclass(frozen=True)
class WorkerLine:
    """A worker as of the last record."""

    name: str
    task: str
    does: str
    """``block``, ``waiting``, ``starting``, ``ending`` or ``lost``."""
    block: str
    seconds: float
    """For how long, as of the record."""

    def words(self, passed: float) -> str:
        """Return what it does, *passed* seconds after the record."""
        took = rough(self.seconds + passed)
        return f"block {self.block}, {took}" if self.does == "block" else f"{self.does}, {took}"


@dataclass(frozen=True)
class FailureLine:
    """An attempt that failed."""

    number: int
    task: str
    block: str
    worker: int | None
    cause: str
    error: str
    """What was raised, with its line breaks; safe to print."""
    final: bool
    at: float
    """When, on the watcher's clock."""

    @property
    def title(self) -> str:
        """Which block, and what came of it."""
        where = f" on worker {self.worker}" if self.worker is not None else ""
        cause = _CAUSES.get(self.cause, "failed")
        return f"{self.task}: block {self.block} {cause}{where}, {'given up' if self.final else 'to be tried again'}"

    @property
    def reason(self) -> str:
        """The last line of what was raised, which says most."""
        return self.error.rstrip().rpartition("\n")[2].strip() or "no reason given"


@dataclass(frozen=True)
class RunChange:
    """What a record of a run has changed."""

    event: str
    """``start``, ``state``, ``end``; ``seen``: it ran before this watcher came."""
    run: RunState
    failures: tuple[FailureLine, ...] = ()
    """Those that are new."""
    unseen: int = 0
    """How many other attempts failed that were not told."""


class RunState:
    """A run as of its last record.

    Parameters
    ----------
    id
        What identifies it in its process.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.engine = ""
        self.at = 0.0
        """When the last record was made, in seconds of the watcher's clock."""
        self.elapsed = 0.0
        self.outcome: str | None = None
        """How it ended; ``None`` while it goes on."""
        self.tasks: list[TaskLine] = []
        self.workers: list[WorkerLine] = []
        self.failures: list[FailureLine] = []
        """The last ones that were told, oldest first."""
        self.failure_count = 0
        self.more_tasks = 0
        self.more_workers = 0
        self._began = False

    def receive(self, frame: dict[str, Any], at: float) -> RunChange:
        """Take in a record about this run."""
        event = str(frame.get("event"))
        if self.outcome is not None:
            return RunChange("state", self)
        self.engine = text_of(frame, "engine", _MOST_ID)
        self.at = at
        self.elapsed = number(frame, "elapsed") or 0.0
        self.more_tasks, self.more_workers = whole(frame, "more_tasks"), whole(frame, "more_workers")
        by_number = {whole(told, "number"): _task(told) for told in _dicts(frame, "tasks")}
        self.tasks = list(by_number.values())
        self.workers = [_worker(told, by_number) for told in _dicts(frame, "workers")]
        fresh, unseen = self._take_failures(frame, at)
        if event == "end":
            outcome = frame.get("outcome")
            self.outcome = outcome if outcome in _OUTCOMES else "ended"
            self.workers = []
        elif not self._began:
            event = "start" if event == "start" else "seen"
        self._began = True
        return RunChange(event, self, tuple(fresh), unseen)

    def passed(self, now: float) -> float:
        """Return the seconds since the last record; none once it has ended."""
        return 0.0 if self.outcome is not None else max(0.0, now - self.at)

    def title(self, now: float, *, name: bool) -> str:
        """Return what a line about it begins with; *name* it if there are others."""
        words = f"run {self.id[-8:]}" if name else "run"
        took = clock(self.elapsed + self.passed(now))
        if self.outcome is None:
            return f"{words} ({self.engine}), {took} so far"
        return f"{words} ({self.engine}) {self.outcome} after {took}"

    def _take_failures(self, frame: dict[str, Any], at: float) -> tuple[list[FailureLine], int]:
        told = sorted((_failure(one, at) for one in _dicts(frame, "failures")), key=lambda one: one.number)
        fresh = [one for one in told if one.number > self.failure_count]
        if not fresh:
            return [], 0
        unseen = fresh[-1].number - self.failure_count - len(fresh) if self._began else 0
        self.failure_count = fresh[-1].number
        self.failures = [*self.failures, *fresh][-_MOST_KEPT:]
        return fresh, max(0, unseen)


def _dicts(frame: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = frame.get(name)
    return [one for one in value[:_MOST_LISTED] if isinstance(one, dict)] if isinstance(value, list) else []


def _task(told: dict[str, Any]) -> TaskLine:
    abandoned = told.get("abandoned")
    state = TaskState(
        text_of(told, "id", _MOST_ID) or "?",
        total_block_count=whole(told, "total"),
        ready_count=whole(told, "ready"),
        processing_count=whole(told, "processing"),
        completed_count=whole(told, "completed"),
        skipped_count=whole(told, "skipped"),
        failed_count=whole(told, "failed"),
        orphaned_count=whole(told, "orphaned"),
        timeout_reclaim_count=whole(told, "timeouts"),
        worker_start_count=whole(told, "worker_starts"),
        worker_restart_count=whole(told, "worker_restarts"),
        worker_failure_count=whole(told, "worker_failures"),
        last_worker_error=text_of(told, "worker_error", _MOST_ERROR) or None,
        abandoned=isinstance(abandoned, str),
        abandon_reason=one_line(abandoned[:_MOST_ERROR]) if isinstance(abandoned, str) else None,
    )
    return TaskLine(state, number(told, "left"), number(told, "low"), number(told, "high"))


def _worker(told: dict[str, Any], tasks: dict[int, TaskLine]) -> WorkerLine:
    id, task = told.get("worker"), tasks.get(whole(told, "task"))
    kind = "client" if told.get("guest") is True else "worker"
    return WorkerLine(
        name="now" if id is None else f"{kind} {whole(told, 'worker')}",
        task="" if task is None else task.state.task_id,
        does=text_of(told, "does", 20),
        block=_block(told),
        seconds=number(told, "seconds") or 0.0,
    )


def _block(told: dict[str, Any]) -> str:
    """Return the id of a block and, where that says more, its place in the grid."""
    id, cell = told.get("block"), told.get("cell")
    name = one_line(str(id)[:_MOST_ID])
    if not isinstance(cell, list) or len(cell) < 2:
        return name
    return f"{name} ({', '.join(one_line(str(at)[:20]) for at in cell[:10])})"


def _failure(told: dict[str, Any], at: float) -> FailureLine:
    error = told.get("error")
    return FailureLine(
        number=whole(told, "number"),
        task=text_of(told, "task", _MOST_ID) or "?",
        block=_block(told),
        worker=None if told.get("worker") is None else whole(told, "worker"),
        cause=text_of(told, "cause", 20),
        error=many_lines(error[:_MOST_ERROR]).replace("\t", "    ") if isinstance(error, str) else "",
        final=told.get("final") is True,
        at=at - (number(told, "ago") or 0.0),
    )


# -- as text -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Detail:
    """How much of a run is shown."""

    tasks: float = inf
    workers: float = inf
    failures: float = 5
    """How many of the last failures have a line."""
    error_lines: float = 12
    """Lines of what the last of them raised."""


DETAILS = (
    Detail(),
    Detail(12, 16, 3, 8),
    Detail(8, 6, 2, 4),
    Detail(6, 3, 1, 1),
    Detail(4, 0, 1, 0),
    Detail(2, 0, 0, 0),
)
"""From a high terminal to a low one."""


def run_lines(run: RunState, now: float, *, name: bool, width: int, ascii_only: bool, detail: Detail) -> Iterator[Line]:
    """Yield the lines that show *run* as of *now*, in seconds of the watcher's clock.

    Parameters
    ----------
    name
        Say which run it is.
    width
        Columns that there are: bars are shorter in few of them.
    ascii_only
        Use no signs but those of ASCII.
    detail
        How much of it to show.
    """
    from rich.text import Text

    style = "red" if run.outcome not in (None, "completed") else "bold"
    yield Line(Text(f"  {run.title(now, name=name)}", style), f"run {run.id}", run)
    yield from _task_lines(run, now, width, ascii_only, detail)
    passed = run.passed(now)
    shown, hidden = _split(run.workers, detail.workers)
    names = max((len(worker.name) for worker in shown), default=0)
    told = [worker.words(passed) for worker in shown]
    room = width - 8 - names - max(map(len, told), default=0)
    of = [shorten(worker.task, max(_LEAST_NAME, room)) for worker in shown]
    tasks = max(map(len, of), default=0)
    for worker, task, words in zip(shown, of, told, strict=True):
        style = "" if worker.does == "block" else "dim"
        text = Text(
            f"    {worker.name:<{names}}  {fit(task, 'ascii') if ascii_only else task:<{tasks}}  {words}", style
        )
        yield Line(text, f"worker {run.id} {worker.name}", worker)
    if hidden or run.more_workers:
        yield Line(Text(f"    {_crowd(hidden, run.more_workers, bool(shown))}", "dim"))
    yield from _failure_lines(run, now, detail)


def _task_lines(run: RunState, now: float, width: int, ascii_only: bool, detail: Detail) -> Iterator[Line]:
    from rich.text import Text

    tasks = run.tasks
    if len(tasks) > detail.tasks:  # those that go on are wanted most
        chosen = [task for task in tasks if task.state.processing_count] or [task for task in tasks if not task.is_over]
        rest = [task for task in tasks if task not in chosen]
        kept = (chosen + rest)[: int(detail.tasks)]
        tasks = [task for task in tasks if task in kept]
    statuses = [TaskStatus(task.state, 0.0) for task in tasks]
    numbers = max((len(status.numbers) for status in statuses), default=0)
    told = [task.words(run.passed(now), ended=run.outcome is not None) for task in tasks]
    figures = [f"  {status.numbers:>{numbers}}  {words}" for status, words in zip(statuses, told, strict=True)]
    room = width - _BESIDE - max(map(len, figures), default=0)  # for name and bar
    most = max(_LEAST_NAME, room - _SHORT_BAR)
    names = [shorten(status.name, most) for status in statuses]
    longest = max(map(len, names), default=0)
    bar_columns = min(bar_width(width), max(_SHORT_BAR, room - longest))  # no bar where there are very few columns
    for task, status, name, figure in zip(tasks, statuses, names, figures, strict=True):
        sign = status.symbol if run.outcome is None or task.is_over else "…"
        if ascii_only:
            sign, name, figure = fit(sign, "ascii"), fit(name, "ascii"), fit(figure, "ascii")
        trouble = task.state.failed_count or task.state.orphaned_count or task.state.abandoned
        parts: list[tuple[str, str]] = bar(task.fraction, bar_columns, ascii_only)
        text = Text.assemble(f"    {name:<{longest}} {sign}  ", *parts, (figure, "red" if trouble else ""))
        yield Line(text, f"task {run.id} {status.name}", task)
        if task.state.abandoned:
            yield Line(Text(f"      abandoned: {task.state.abandon_reason or 'no reason given'}", "red"))
        if task.state.worker_failure_count and task.state.last_worker_error and detail.error_lines:
            lost = count(task.state.worker_failure_count, "worker")
            yield Line(Text(f"      {lost} failed, the last: {task.state.last_worker_error}", "red"))
    if more := run.more_tasks + len(run.tasks) - len(tasks):
        yield Line(Text(f"    ... and {count(more, 'more task')}", "dim"))


def _split(workers: list[WorkerLine], most: float) -> tuple[list[WorkerLine], list[WorkerLine]]:
    if len(workers) <= most:
        return workers, []
    return workers[: int(most)], workers[int(most) :]


def _crowd(hidden: list[WorkerLine], more: int, some_shown: bool) -> str:
    """Say what workers do that have no line."""
    busy = sum(worker.does == "block" for worker in hidden)
    total = len(hidden) + more
    text = f"{'... and ' if some_shown else ''}{total:,} {'more ' if some_shown else ''}worker{'s' * (total != 1)}"
    return text if more else f"{text}: {busy:,} with a block, {len(hidden) - busy:,} without"


def _failure_lines(run: RunState, now: float, detail: Detail) -> Iterator[Line]:
    from rich.text import Text

    if not run.failure_count:
        return
    shown = run.failures[-int(detail.failures) :] if detail.failures else []
    last = f", the last {len(shown)}:" if 1 < len(shown) < run.failure_count else ":" if shown else ""
    if len(shown) == 1 < run.failure_count:
        last = ", the last:"
    yield Line(Text(f"    {count(run.failure_count, 'attempt')} failed{last}", "red"))
    for failure in shown:
        ago = rough(max(0.0, now - failure.at))
        yield Line(Text(f"      {failure.title}, {ago} ago", "red"), f"failure {run.id} {failure.number}", failure)
        is_last = failure is shown[-1]
        most = int(detail.error_lines) if is_last else min(1, int(detail.error_lines))
        for line in error_tail(failure.error, most):
            yield Line(Text(f"        {line}", "" if is_last else "dim"))


def error_tail(error: str, most: int) -> Iterable[str]:
    """Return the last lines of what was raised: the end of a traceback says most. Underlining is left out."""
    if most == 1:
        return [raised_line(error)]
    lines = [line for line in error.rstrip().split("\n") if line.strip(" ^~")]
    return lines[-most:] if most else []

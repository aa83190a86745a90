"""The same as lines for a log: one for each thing that happens, and now and then how far things are."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from workspan.estimate.logs import range_text, seconds_text
from workspan.views.format import duration
from workspan.views.watch import Ended, describe, describe_ended

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspan.schedule.state import TaskState
    from workspan.views.watch import Change, ProgramState, StepState
    from workspan.views.watch_run import FailureLine, RunChange, RunState

__all__ = ["PlainLines"]

_MOST_WORKERS = 8
_MOST_TASKS = 6
EVERY_SECONDS = 10.0
"""How often it is said how far a run or an outermost step is, where the program does not say so itself."""
MOST_FAILURES_A_SECOND = 2
"""Tracebacks in a second; what is more is counted."""
MOST_A_SECOND = 20
"""Lines about steps within others in a second; what is more is counted."""


class PlainLines:
    """Turns changes into lines."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, int | str], float] = {}
        self._shown: dict[tuple[int, str], list[TaskState]] = {}
        self._steps = _Rate(MOST_A_SECOND)
        self._failures = _Rate(MOST_FAILURES_A_SECOND)

    def lines(self, program: ProgramState, change: Change, now: float) -> Iterator[str]:
        """Yield the lines for *change*, at *now* seconds of the watcher's clock."""
        step = change.step
        is_root = len(change.path) == 1
        is_over = change.event in ("complete", "failed")
        key = program.pid, step.id
        if is_root:
            self._told[key] = now
            if is_over:
                del self._told[key]
        elif not self._steps.may_pass(now):
            return
        if left_out := self._steps.take_left_out():
            yield f"({left_out:,} lines about inner steps were left out)"
        yield f"{title(program)}: {' > '.join(change.path)}: {_text(change, now, is_root)}"

    def overviews(self, programs: list[ProgramState], now: float) -> Iterator[str]:
        """Yield how far each outermost step is of which nothing was said for some time."""
        for program in programs:
            yield from self._run_overviews(program, now)
            roots = [step for depth, step in program.tree() if depth == 0]
            for step in roots:
                key = program.pid, step.id
                if now - self._told.setdefault(key, now) >= EVERY_SECONDS:
                    self._told[key] = now
                    yield f"{title(program)}: {step.label}: {describe(step, now, is_root=True)}"

    def forget(self, program: ProgramState) -> None:
        """Forget a program that has ended."""
        self._told = {key: at for key, at in self._told.items() if key[0] != program.pid}
        self._shown = {key: states for key, states in self._shown.items() if key[0] != program.pid}

    def run_lines(self, program: ProgramState, change: RunChange, now: float) -> Iterator[str]:
        """Yield the lines for what has become of a run."""
        run = change.run
        key = program.pid, run.id
        if change.event in ("start", "seen"):
            self._told[key] = now
            yield f"{title(program)}: {run.title(now, name=True)}"
            yield from self._tasks(program, run, now)
        self._failures.left_out += change.unseen
        for failure in change.failures:
            if change.event == "end" or self._failures.may_pass(now):
                yield from self._failure(program, failure)
        if change.event == "end":
            if left_out := self._failures.take_left_out():
                yield f"({left_out:,} more attempts failed)"
            self._told.pop(key, None)
            yield from self._tasks(program, run, now)
            self._shown.pop(key, None)
            yield f"{title(program)}: {run.title(now, name=True)}"

    def _failure(self, program: ProgramState, failure: FailureLine) -> Iterator[str]:
        if left_out := self._failures.take_left_out():
            yield f"({left_out:,} more attempts failed)"
        lines = [failure.title, *failure.error.rstrip().split("\n")]
        yield f"{title(program)}: " + "\n    ".join(line.rstrip() for line in lines)

    def _tasks(self, program: ProgramState, run: RunState, now: float) -> Iterator[str]:
        """Yield a line for each task of which something has changed since the last time."""
        key = program.pid, run.id
        shown = self._shown.get(key, [])
        self._shown[key] = [task.state for task in run.tasks]
        for task in run.tasks:
            if task.state not in shown:
                state = task.state
                numbers = f"{state.completed_count:,}/{state.total_block_count:,} blocks"
                words = task.words(run.passed(now), ended=run.outcome is not None)
                yield f"{title(program)}: {state.task_id}: {numbers}, {words}"

    def _run_overviews(self, program: ProgramState, now: float) -> Iterator[str]:
        for run in program.runs.values():
            key = program.pid, run.id
            if run.outcome is None and now - self._told.setdefault(key, now) >= EVERY_SECONDS:
                self._told[key] = now
                yield from self._tasks(program, run, now)
                if run.workers:
                    passed = run.passed(now)
                    does = [f"{worker.name} {worker.words(passed)}" for worker in run.workers[:_MOST_WORKERS]]
                    more = len(run.workers) - len(does) + run.more_workers
                    yield f"{title(program)}: {'; '.join(does)}{f'; {more:,} more' if more else ''}"


class _Rate:
    """Lets some lines a second pass and counts the others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._second = -inf
        self._lines = 0
        self.left_out = 0

    def may_pass(self, now: float) -> bool:
        """Whether one more line may be printed now."""
        if now - self._second >= 1.0:
            self._second, self._lines = now, 0
        self._lines += 1
        if self._lines > self._most:
            self.left_out += 1
            return False
        return True

    def take_left_out(self) -> int:
        """Return how many lines were left out since the last call."""
        left_out, self.left_out = self.left_out, 0
        return left_out


def end_line(program: ProgramState, run: RunState) -> str:
    """Return how a run has ended, in one line."""
    states = [task.state for task in run.tasks]
    tasks = [f"{s.task_id} {s.completed_count:,}/{s.total_block_count:,}" for s in states[:_MOST_TASKS]]
    more = len(states) - len(tasks) + run.more_tasks
    told = ", ".join([*tasks, *([f"{more:,} more tasks"] if more else [])])
    return f"{title(program)}: {run.title(run.at, name=True)}: {told}"


def title(program: ProgramState) -> str:
    """Return what a line about *program* begins with."""
    return f"{program.script} (pid {program.pid})"


def _text(change: Change, now: float, is_root: bool) -> str:
    step = change.step
    if change.event == "complete":
        return f"complete after {duration(step.elapsed)}"
    if change.event == "failed":
        return describe_ended(Ended(step.label, 1, step.elapsed, 1, change.error))
    if change.event == "start":
        return _start(step)
    return describe(step, now, is_root=is_root)


def _start(step: StepState) -> str:
    if step.expected is None or step.is_guess:
        return "started"
    return f"started, {seconds_text(step.expected)} expected{range_text(step.low, step.high)}"

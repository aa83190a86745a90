"""Programs that run elsewhere, as ``workspan watch`` shows them: what they tell becomes runs and steps, then text.

Nothing here reads a clock or a socket: the time is an argument, so that a state can be shown as of any moment.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workspan.estimate.logs import seconds_text
from workspan.views.format import duration, one_line
from workspan.views.watch_parts import Line, bar, bar_width, number, rough
from workspan.views.watch_run import DETAILS, Detail, RunChange, RunState, run_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.text import Text

__all__ = [
    "Change",
    "Ended",
    "ProgramState",
    "StepState",
    "WatchState",
    "describe",
    "describe_ended",
    "picture",
    "render",
]

_MOST_ACTIVE = 2000
_MOST_ENDED_ROOTS = 3
_MOST_RUNS = 50
_MOST_ENDED_RUNS = 3
_MOST_ENDED_BELOW = 8
_MOST_LABEL = 60
_ENDS = ("complete", "failed")
_BEGINNINGS = ("start", "nodata", "progress", "overdue")


@dataclass
class StepState:
    """A step that is active, as of its last record."""

    id: int | str
    parent: int | str | None
    label: str
    began: int
    """Orders steps by when they were first heard of."""
    at: float = 0.0
    """When the record was made, in seconds of the watcher's clock."""
    elapsed: float = 0.0
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    reported: float | None = None
    """Part that is done, by the program's own count; ``None`` where only the clock tells."""
    source: str | None = None
    ended: dict[str, Ended] = field(default_factory=dict)
    """Steps within it that are over, by their label."""

    def elapsed_at(self, now: float) -> float:
        """Return the seconds since its start, as far as anybody knows."""
        return self.elapsed + max(0.0, now - self.at)

    def fraction_at(self, now: float) -> float | None:
        """Return the part that is done, below 1; ``None`` if nobody can say."""
        if self.reported is not None:
            return self.reported
        if not self.expected or self.is_guess:
            return None
        return min(self.elapsed_at(now) / self.expected, 0.999)

    @property
    def is_guess(self) -> bool:
        """Whether what is expected stands on no data."""
        return self.source == "default"


@dataclass
class Ended:
    """Runs of one step within another that are over."""

    label: str
    times: int = 0
    seconds: float = 0.0
    failures: int = 0
    error: str = ""


@dataclass(frozen=True)
class Change:
    """What a record has changed."""

    event: str
    """``start``, ``progress``, ``overdue``, ``complete``, ``failed``; ``seen``: active before this watcher came."""
    step: StepState
    path: tuple[str, ...]
    """Labels of the steps it runs in and its own, outermost first."""
    error: str = ""


class ProgramState:
    """The runs and steps of one process.

    Parameters
    ----------
    pid, script
        What it is.
    """

    def __init__(self, pid: int, script: str) -> None:
        self.pid = pid
        self.script = one_line(script)
        self.steps: dict[int | str, StepState] = {}
        self.ended: dict[str, Ended] = {}
        self.runs: dict[str, RunState] = {}
        """Runs that go on, and the last ones that have ended, by their id."""
        self.dropped = 0
        """Records that the program had to leave out."""
        self._told: set[int | str] | None = None
        self._told_runs: set[str] = set()
        self._count = 0

    def receive(self, frame: dict[str, Any], at: float) -> Change | RunChange | None:
        """Take in a frame; what it does not know it passes over.

        Parameters
        ----------
        frame
            As it came.
        at
            When it was made, in seconds of the watcher's clock.
        """
        if frame.get("kind") == "sync":
            self._sync(frame)
            return None
        if frame.get("kind") == "run":
            return self._run(frame, at)
        id, event = frame.get("id"), frame.get("event")
        if frame.get("kind") != "step" or not isinstance(id, (int, str)):
            return None
        if event in _ENDS:
            return self._end(frame, id, str(event), at)
        return self._update(frame, id, str(event), at) if event in _BEGINNINGS else None

    def tree(self) -> Iterator[tuple[int, StepState]]:
        """Yield active steps with their depth, each above those within it."""
        below: dict[int | str | None, list[StepState]] = {}
        for step in self.steps.values():
            below.setdefault(step.parent if step.parent in self.steps else None, []).append(step)
        waiting = [(0, step) for step in reversed(below.get(None, []))]
        while waiting:
            depth, step = waiting.pop()
            yield depth, step
            waiting += [(depth + 1, inner) for inner in reversed(below.pop(step.id, []))]

    def _sync(self, frame: dict[str, Any]) -> None:
        if frame.get("stage") == "begin":
            self._told = set()
            self._told_runs = set()
            self.dropped = int(number(frame, "dropped") or 0)
        elif self._told is not None:
            if not frame.get("more"):
                for id in [id for id in self.steps if id not in self._told]:
                    del self.steps[id]
                for run in [run for run in self.runs.values() if run.outcome is None and run.id not in self._told_runs]:
                    del self.runs[run.id]
            self._told = None

    def _run(self, frame: dict[str, Any], at: float) -> RunChange | None:
        id = frame.get("run")
        if not isinstance(id, str):
            return None
        id = one_line(id[:_MOST_LABEL])
        run = self.runs.get(id)
        if run is None:
            if len(self.runs) >= _MOST_RUNS:
                return None
            run = self.runs[id] = RunState(id)
        self._told_runs.add(id)
        change = run.receive(frame, at)
        ended = [run for run in self.runs.values() if run.outcome is not None]
        for old in ended[:-_MOST_ENDED_RUNS]:
            del self.runs[old.id]
        return change

    def _update(self, frame: dict[str, Any], id: int | str, event: str, at: float) -> Change | None:
        step = self.steps.get(id)
        is_new = step is None
        if step is None:
            if len(self.steps) >= _MOST_ACTIVE:
                return None
            parent = frame.get("parent")
            self._count += 1
            step = StepState(id, parent if isinstance(parent, (int, str)) and parent != id else None, "", self._count)
            self.steps[id] = step
        if self._told is not None:
            self._told.add(id)
        step.label = one_line(str(frame.get("label", ""))[:_MOST_LABEL]) or "?"
        step.at = at
        step.elapsed = number(frame, "elapsed") or 0.0
        step.expected = number(frame, "dt_est")
        step.low, step.high = number(frame, "low"), number(frame, "high")
        source = frame.get("source")
        step.source = source if isinstance(source, str) else None
        step.reported = _reported(step, number(frame, "fraction"))
        if self._told is not None:
            return Change("seen", step, self._path(step)) if is_new else None
        return Change("start" if event == "nodata" else event, step, self._path(step))

    def _end(self, frame: dict[str, Any], id: int | str, event: str, at: float) -> Change:
        step = self.steps.get(id)
        if step is None:  # its beginning was left out
            self._update(frame, id, "start", at)
            step = self.steps.get(id) or StepState(id, None, "?", 0)
        step.elapsed = number(frame, "elapsed") or 0.0
        step.at = at
        path = self._path(step)
        self.steps.pop(id, None)
        parent = None if step.parent is None else self.steps.get(step.parent)
        ended, most = (self.ended, _MOST_ENDED_ROOTS) if parent is None else (parent.ended, _MOST_ENDED_BELOW)
        group = ended.setdefault(step.label, Ended(step.label))
        while len(ended) > most:
            del ended[next(iter(ended))]
        error = one_line(str(frame.get("error", ""))[:_MOST_LABEL]) if event == "failed" else ""
        group.times += 1
        group.seconds += step.elapsed
        group.failures += event == "failed"
        group.error = error or group.error
        return Change(event, step, path, error)

    def _path(self, step: StepState) -> tuple[str, ...]:
        labels = deque([step.label])
        seen = {step.id}
        while step.parent in self.steps and step.parent not in seen:
            step = self.steps[step.parent]
            seen.add(step.id)
            labels.appendleft(step.label)
        return tuple(labels)


class WatchState:
    """All programs that are watched, in the order in which they were found."""

    def __init__(self) -> None:
        self.programs: dict[int, ProgramState] = {}

    def open(self, number: int, pid: int, script: str) -> ProgramState:
        """Begin to follow a program, by the number of its connection."""
        self.programs[number] = ProgramState(pid, script)
        return self.programs[number]

    def receive(self, number: int, frame: dict[str, Any], at: float) -> Change | RunChange | None:
        """Take in a frame of a program."""
        program = self.programs.get(number)
        return None if program is None else program.receive(frame, at)

    def close(self, number: int) -> None:
        """Forget a program."""
        self.programs.pop(number, None)


def _reported(step: StepState, fraction: float | None) -> float | None:
    """Return *fraction* if it is the program's own count, and not just elapsed of expected seconds."""
    if fraction is None:
        return None
    by_clock = min(step.elapsed / step.expected, 0.999) if step.expected else None
    is_counted = by_clock is None or not math.isclose(fraction, by_clock, abs_tol=1e-3)
    return min(fraction, 0.999) if is_counted else None


# -- as text -------------------------------------------------------------------------------------------------------


def describe(step: StepState, now: float, *, is_root: bool) -> str:
    """Return how far a step is, in words."""
    elapsed, expected = step.elapsed_at(now), step.expected
    took = rough(elapsed)
    if step.reported:
        expected = None if expected is None or step.is_guess else expected
        part = f"{took}, {step.reported:.0%} done"
        return part if expected is None or elapsed > expected else f"{part}, {rough(expected - elapsed)} left"
    if expected is None:
        return f"{took} so far"
    if step.is_guess:
        return f"{took} so far (no data yet)"
    if elapsed > expected:
        return f"{took}, longer than the {seconds_text(expected)} expected"
    text = f"{took} of {seconds_text(expected)}"
    if not is_root:
        return text
    return f"{text}, {rough(expected - elapsed)} left{_span(step.low, step.high, elapsed)}"


def describe_ended(ended: Ended) -> str:
    """Return what came of steps that are over, in words."""
    mean = duration(ended.seconds / ended.times)
    if ended.failures:
        why = f" ({ended.error})" if ended.error else ""
        return f"failed after {mean}{why}" if ended.times == 1 else f"{ended.failures} of {ended.times} failed{why}"
    return mean if ended.times == 1 else f"{ended.times:,} times, {mean} each"


def _span(low: float | None, high: float | None, elapsed: float) -> str:
    if low is None or high is None:
        return ""
    least, most = max(0.0, low - elapsed), max(0.0, high - elapsed)
    if most < 9.95:
        return f" ({least:.1f} - {most:.1f})"
    return f" ({least:.0f} - {most:.0f})" if most < 59.5 else f" ({rough(least)} - {rough(most)})"


def render(
    programs: Iterable[ProgramState],
    now: float,
    *,
    width: int = 80,
    height: int | None = None,
    ascii_only: bool = False,
) -> list[Text]:
    """Return the lines that show *programs* as of *now*.

    Parameters
    ----------
    programs
        What to show.
    now
        Seconds of the watcher's clock.
    width
        Columns that there are; in few of them bars are shorter. Lines may be longer all the same.
    height
        Lines that there are: less is told of runs if there are few. There may be more lines all the same.
    ascii_only
        Use no signs but those of ASCII.
    """
    programs = list(programs)
    lines: list[Text] = []
    for detail in DETAILS:
        shown = (picture(program, now, width=width, ascii_only=ascii_only, detail=detail) for program in programs)
        lines = [line.text for part in shown for line in part]
        if height is None or len(lines) <= height:
            break
    return lines


def picture(program: ProgramState, now: float, *, width: int, ascii_only: bool, detail: Detail) -> Iterator[Line]:
    """Yield the lines that show *program*, as for :func:`render`."""
    from rich.text import Text

    heading = Text.assemble((f"pid {program.pid}", "bold"), "  ", (program.script, "bold cyan"))
    yield Line(heading, f"program {program.pid} {program.script}", program)
    for run in program.runs.values():
        yield from run_lines(run, now, name=len(program.runs) > 1, width=width, ascii_only=ascii_only, detail=detail)
    rows = list(_rows(program, now, bar_width(width), ascii_only))
    names = max((len(row[1]) for row in rows), default=0)
    for about, name, *parts in rows:
        key = f"step {program.pid} {about.id}" if isinstance(about, StepState) else ""
        yield Line(Text.assemble(f"  {name:<{names}}  ", *parts), key, about)
    if not rows and not program.runs:
        yield Line(Text("  no step is active", "dim"))


def _rows(program: ProgramState, now: float, width: int, ascii_only: bool) -> Iterator[tuple[Any, ...]]:
    """Yield what each line is about, its name, and its parts, each a text or a text and its style."""
    for ended in program.ended.values():
        yield ended, ended.label, _ended_part(ended, ascii_only)
    for depth, step in program.tree():
        overdue = step.expected is not None and not step.is_guess and step.elapsed_at(now) > step.expected
        style = "yellow" if overdue else "default"
        parts = bar(step.fraction_at(now), width, ascii_only)
        yield step, "  " * depth + step.label, *parts, ("  " + describe(step, now, is_root=depth == 0), style)
        for ended in step.ended.values():
            yield ended, "  " * (depth + 1) + ended.label, _ended_part(ended, ascii_only)


def _ended_part(ended: Ended, ascii_only: bool) -> tuple[str, str]:
    signs = ("ok", "!!") if ascii_only else ("✔", "✗")
    sign = signs[bool(ended.failures)]
    text = describe_ended(ended)
    if ascii_only:
        text = text.replace("µ", "u")
    return f"{sign} {text}", "red" if ended.failures else "green"

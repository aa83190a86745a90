"""A forecast as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.views.format import (
    MISSING,
    count,
    fit,
    folded,
    listed,
    long_duration,
    one_line,
    share,
    shorten,
    size,
    table,
    titled,
)

if TYPE_CHECKING:
    from workspan.report.forecast import Forecast, TaskForecast, WorkersForecast

__all__ = ["render_forecast", "render_line"]

_WIDEST_INDENT = 24
"""A name that is longer has what is known of it below it where lines are limited."""


def render_forecast(forecast: Forecast, *, encoding: str = "utf-8", columns: int | None = None) -> str:
    """Return a line a task, the table of workers, memory and notes, in lines of *columns* characters if given."""
    lines = titled("Forecast", [])
    single = len(forecast.tasks) == 1
    for task in forecast.tasks.values():
        lines += _task(task, forecast if single else None, columns)
    if not single:
        lines += ["", *_whole("whole run", forecast, columns)]
    if forecast.table:
        lines += ["", *table(workers_rows(forecast), encoding=encoding, right=range(5))]
    lines += _memory(forecast)
    for note in forecast.notes:
        lines += folded(f"note: {one_line(note)}", columns)
    return "\n".join(fit(line, encoding) for line in lines)


def render_line(forecast: Forecast) -> str:
    """Return the forecast in one line: the wall time with its interval, and what it is known from."""
    return _wall(forecast)


def _wall(forecast: Forecast) -> str:
    if forecast.source == "none":
        return "nothing to do"
    if forecast.wall_seconds is None:
        return f"not known ({forecast.basis})"
    return f"{_ranged(forecast)} from {forecast.basis}"


def _ranged(row: Forecast | WorkersForecast) -> str:
    low, high = long_duration(row.wall_low), long_duration(row.wall_high)
    return f"{long_duration(row.wall_seconds)} ({low} - {high})"


def _task(task: TaskForecast, whole: Forecast | None, columns: int | None) -> list[str]:
    name = one_line(task.task_id)
    if not task.total:
        return _below(name, ["no blocks, nothing to do"], columns)
    blocks = count(task.blocks, "block")
    if task.blocks < task.total:
        blocks = f"{task.blocks:,} of {count(task.total, 'block')}"
    if not task.blocks:
        return _below(name, [f"{task.total:,} of {count(task.total, 'block')} done before, nothing to do"], columns)
    workers = count(task.workers, "worker")
    if task.source == "default":
        return _below(name, [f"{blocks} on {workers}: not known ({task.basis})"], columns)
    if whole is not None:
        lines = [f"{blocks} on {workers}: {_wall(whole)}"]
    else:
        lines = [f"{blocks} on {workers}, from {task.basis}"]
    lines.append(_work(task.work_seconds, task.span_seconds, None if whole is None else whole.parallelism))
    details = [f"a block {long_duration(task.block_seconds)}"]
    if task.startup_seconds is not None:
        details.append(f"a worker starts in {long_duration(task.startup_seconds)}")
    if task.warm_up_seconds:
        details.append(f"its first block takes {long_duration(task.warm_up_seconds)} more")
    steps = [f"{one_line(step)} {share(part)}" for step, part in sorted(task.steps.items(), key=lambda item: -item[1])]
    if steps:
        steps[0] = f"steps {steps[0]}"
    return _below(name, lines, columns, (details, ", "), (steps[:8], " | "))


def _below(name: str, lines: list[str], columns: int | None, *lists: tuple[list[str], str]) -> list[str]:
    """Put lines, and lists with what is between their items, beside a name, or below it where there is no room."""
    indent = len(name) + 2
    if columns is None or (indent <= _WIDEST_INDENT and indent + len(lines[0]) <= columns):
        first, out = f"{name}  {lines[0]}", []
    else:
        first, out, indent = shorten(name, columns), folded(f"    {lines[0]}", columns), 4
    for line in lines[1:]:
        out += folded(" " * indent + line, columns)
    for items, between in lists:
        out += listed(items, between, columns, " " * indent)
    return [first, *out]


def _work(work: float | None, span: float | None, parallelism: float | None) -> str:
    text = f"work {long_duration(work)}, span {long_duration(span)}"
    return text if parallelism is None else f"{text}, parallelism {parallelism:,.0f}"


def _whole(name: str, forecast: Forecast, columns: int | None) -> list[str]:
    lines = [_wall(forecast)]
    if forecast.work_seconds:
        lines.append(_work(forecast.work_seconds, forecast.span_seconds, forecast.parallelism))
    return _below(name, lines, columns)


def workers_rows(forecast: Forecast) -> list[list[str]]:
    """Return the table of numbers of workers, its heading first."""
    one = forecast.with_workers(1)
    rows = [["workers", "wall", "from", "to", "speed-up", "memory"]]
    for row in forecast.table:
        gain = MISSING
        if one is not None and one.wall_seconds and row.wall_seconds:
            gain = f"{one.wall_seconds / row.wall_seconds:.1f}"
        memory = size(row.memory_bytes)
        if row.fits is False:
            memory += " (too much)"
        rows.append(
            [
                f"{row.workers:,}",
                long_duration(row.wall_seconds),
                long_duration(row.wall_low),
                long_duration(row.wall_high),
                gain,
                memory,
            ]
        )
    return rows


def _memory(forecast: Forecast) -> list[str]:
    if forecast.worker_peak_bytes is None or forecast.source == "none":
        return []
    text = f"memory: a worker takes up to {size(forecast.worker_peak_bytes)}"
    if forecast.memory_limit_bytes is not None and forecast.workers_that_fit is not None:
        text += f"; {size(forecast.memory_limit_bytes)} hold {count(forecast.workers_that_fit, 'worker')}"
    return [text]

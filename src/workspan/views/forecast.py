"""A forecast as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.views.format import MISSING, count, fit, long_duration, one_line, share, size, table, titled

if TYPE_CHECKING:
    from workspan.report.forecast import Forecast, TaskForecast, WorkersForecast

__all__ = ["render_forecast", "render_line"]


def render_forecast(forecast: Forecast, *, encoding: str = "utf-8") -> str:
    """Return a line a task, the table of workers, memory and notes."""
    lines = titled("Forecast", [])
    single = len(forecast.tasks) == 1
    for task in forecast.tasks.values():
        lines += _task(task, forecast if single else None)
    if not single:
        lines += ["", *_whole("whole run", forecast)]
    if forecast.table:
        lines += ["", *table(workers_rows(forecast), encoding=encoding, right=range(5))]
    lines += _memory(forecast)
    lines += [f"note: {one_line(note)}" for note in forecast.notes]
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


def _task(task: TaskForecast, whole: Forecast | None) -> list[str]:
    name = one_line(task.task_id)
    blocks = count(task.blocks, "block")
    if task.blocks < task.total:
        blocks = f"{task.blocks:,} of {count(task.total, 'block')}"
    if not task.blocks:
        return [f"{name}  {task.total:,} of {count(task.total, 'block')} done before, nothing to do"]
    workers = count(task.workers, "worker")
    if task.source == "default":
        return [f"{name}  {blocks} on {workers}: not known ({task.basis})"]
    indent = " " * (len(name) + 2)
    if whole is not None:
        lines = [f"{name}  {blocks} on {workers}: {_wall(whole)}"]
    else:
        lines = [f"{name}  {blocks} on {workers}, from {task.basis}"]
    lines.append(indent + _work(task.work_seconds, task.span_seconds, None if whole is None else whole.parallelism))
    details = [f"a block {long_duration(task.block_seconds)}"]
    if task.startup_seconds is not None:
        details.append(f"a worker starts in {long_duration(task.startup_seconds)}")
    if task.warm_up_seconds:
        details.append(f"its first block takes {long_duration(task.warm_up_seconds)} more")
    lines.append(indent + ", ".join(details))
    if task.steps:
        steps = sorted(task.steps.items(), key=lambda item: -item[1])
        told = " | ".join(f"{one_line(step)} {share(part)}" for step, part in steps[:8])
        lines.append(f"{indent}steps {told}")
    return lines


def _work(work: float | None, span: float | None, parallelism: float | None) -> str:
    text = f"work {long_duration(work)}, span {long_duration(span)}"
    return text if parallelism is None else f"{text}, parallelism {parallelism:,.0f}"


def _whole(name: str, forecast: Forecast) -> list[str]:
    lines = [f"{name}  {_wall(forecast)}"]
    if forecast.work_seconds:
        indent = " " * (len(name) + 2)
        lines.append(indent + _work(forecast.work_seconds, forecast.span_seconds, forecast.parallelism))
    return lines


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

"""The report of a dataset as text: one paragraph an operator, upstream first; what was not measured has no line."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from workspan.steps.record import MUCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspan.dataset.figures import Figure
    from workspan.dataset.stats import (
        DatasetSummary,
        IterationSummary,
        OperatorSummary,
        StageSummary,
        StepSummary,
    )

__all__ = ["render", "seconds"]

_LABEL = 34


def seconds(value: float | None) -> str:
    """Return a time: above 1 s in s, above 1 ms in ms, else in µs.

    Examples
    --------
    >>> seconds(1.5), seconds(0.0123), seconds(0.0000004)
    ('1.50 s', '12.30 ms', '0.40 µs')
    """
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor > 1:
            return f"{value * factor:.2f} {unit}"
    return f"{value * 1e6:.2f} µs"


def whole(value: float) -> str:
    """Return a number without fraction."""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Return bytes, scaled by 1024.

    Examples
    --------
    >>> size(0), size(80), size(3 << 20)
    ('0 B', '80 B', '3.0 MB')
    """
    if value < 1024:
        return f"{value:.0f} B"
    for unit in ("KB", "MB", "GB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TB"


def render(summary: DatasetSummary, *, verbose: bool = False) -> str:
    """Return the report.

    Parameters
    ----------
    summary
        What it is about.
    verbose
        Add each step, and where the run time went.
    """
    paragraphs = []
    if summary.parent is not None:
        paragraphs.append(f"{render(summary.parent, verbose=verbose)}\n\nMaterialised; the operators below read that")
    paragraphs += ["\n".join(_operator(operator, verbose)) for operator in summary.operators]
    if summary.iteration is not None:
        paragraphs.append("\n".join(_iteration(summary.iteration)))
    paragraphs.append("\n".join(_dataset(summary)))
    if verbose:
        paragraphs.append("\n".join(_run_time(summary)))
    return "\n\n".join(paragraphs)


def _line(indent: int, label: str, parts: list[str]) -> str:
    return f"{' ' * indent}{label:<{_LABEL - indent}}" + "".join(f"{part:>17}" for part in parts)


def _figures(
    indent: int,
    label: str,
    figure: Figure | None,
    form: Callable[[float], str] = seconds,
    names: tuple[str, ...] = ("min", "max", "mean", "total"),
) -> list[str]:
    if figure is None:
        return []
    values = {"min": figure.min, "max": figure.max, "mean": figure.mean, "total": figure.sum}
    return [_line(indent, label, [f"{form(values[name])} {name}" for name in names])]


def _short(label: str, width: int) -> str:
    return label if len(label) <= width else f"{label[: width - 3]}..."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def _operator(op: OperatorSummary, verbose: bool) -> list[str]:
    span = "" if op.span_seconds is None else f" in {seconds(op.span_seconds)}"
    lines = [f"Operator {op.number} {op.name}: {_counted(op.tasks, 'task')}, {_counted(op.blocks, 'block')}{span}"]
    if op.skipped:
        lines.append(f"  {_counted(op.skipped, 'task')} {'was' if op.skipped == 1 else 'were'} done before")
    lines += _figures(2, "wall time", op.wall)
    lines += _figures(2, "CPU time", op.cpu)
    lines += _figures(2, "transform time", op.transform)
    for label, figure in (
        ("input prep", op.input_prep),
        ("function body", op.function_body),
        ("output build", op.output_build),
        ("unsplit", op.unsplit),
        ("user functions" + (" (about)" if op.approximate else ""), op.user),
        ("built-in", op.built_in),
    ):
        lines += _figures(4, label, figure)
    for stage in op.stages:
        lines += _stage(stage)
        lines += [line for step in op.steps if step.stage == stage.stage for line in _sections(step)]
    lines += [line for step in op.steps if step.stage is None for line in _sections(step)]
    if op.input_fetch is not None and op.input_fetch.sum > 0:
        lines += _figures(2, "input fetch", op.input_fetch)
    if op.trailing_seconds is not None and op.trailing_seconds > 1e-3:
        lines.append(_line(2, "after the last block", [f"{seconds(op.trailing_seconds)} total"]))
    lines += _figures(2, "setup", op.setup)
    lines += _figures(2, "held, not wanted yet", op.held)
    if op.backpressure_seconds:
        lines.append(_line(2, "back-pressure", [f"{seconds(op.backpressure_seconds)} total"]))
    lines += _retries(op)
    lines += _figures(2, "peak memory", op.peak_memory, size, ("min", "max", "mean"))
    lines += _figures(2, "rows per block", op.rows_per_block, whole)
    lines += _figures(2, "bytes per block", op.bytes_per_block, size)
    lines += _figures(2, "rows per task", op.rows_per_task, whole)
    lines += _figures(
        2, f"tasks per node ({_counted(op.nodes, 'node')})", op.tasks_per_node, whole, ("min", "max", "mean")
    )
    lines += _throughput(op)
    if op.clamped_seconds > 1e-6:
        lines.append(_line(2, "clamped", [seconds(op.clamped_seconds)]))
    share = 0.0 if op.transform is None else (op.overhead_seconds or 0.0) / (op.transform.sum or inf)
    if op.overhead_seconds is not None and (verbose or share > MUCH):
        cheaper = '   timing="stages" or "total" costs less' if share > MUCH else ""
        parts = [f"{seconds(op.overhead_seconds)} total", f"{100 * share:.2f} %"]
        lines.append(_line(2, "timers, estimated", parts) + cheaper)
    if verbose:
        lines += _figures(2, "serialise", op.serialise)
        for number, step in enumerate(op.steps):
            lines += _figures(4, _short(f"{number} {step.label}", _LABEL - 6), step.seconds)
            lines += _step(step)
        lines += _metrics(op)
    return lines


def _step(step: StepSummary) -> list[str]:
    parts = []
    if step.item is not None:
        spread = (("p50", step.item.p50), ("p90", step.item.p90), ("p99", step.item.p99))
        parts.append(f"{step.items:,} items, " + ", ".join(f"{name} {seconds(value)}" for name, value in spread))
    if step.cpu_seconds is not None:
        parts.append(f"CPU {seconds(step.cpu_seconds)}")
    if step.rows is not None:
        parts.append(f"{step.rows:,} rows")
    if step.bytes is not None:
        parts.append(size(step.bytes))
    return [f"      {', '.join(parts)}"] if parts else []


def _sections(step: StepSummary) -> list[str]:
    """Return the parts that the function of a step has named, with their shares of the step."""
    lines = []
    for section in step.sections:
        parts = [f"{seconds(section.total_seconds)} total"]
        if step.total_seconds:
            parts.append(f"{100 * section.total_seconds / step.total_seconds:.0f} % of {step.phase or 'all'}")
        parts.append(_counted(section.calls, "call"))
        lines.append(_line(6, _short(section.name, _LABEL - 8), parts))
    return lines


def _metrics(op: OperatorSummary) -> list[str]:
    """Return what else was counted, by name."""
    told = {
        "blocks_in": op.blocks_in,
        "bytes_in": op.bytes_in,
        "bytes_out": op.bytes_out,
        "attempts": op.attempts,
        "nodes": op.nodes,
        "clamped_seconds": op.clamped_seconds,
        "scheduling_seconds": None if op.scheduling_seconds is None else round(op.scheduling_seconds, 6),
        "backpressure_seconds": None if op.backpressure_seconds is None else round(op.backpressure_seconds, 6),
        "task_wall_p50": None if op.task_wall is None else op.task_wall.p50,
        "task_seen_p50": None if op.task_seen is None else op.task_seen.p50,
    }
    return ["  metrics", *(f"    {name}: {value}" for name, value in told.items() if value is not None)]


def _stage(stage: StageSummary) -> list[str]:
    lines = _figures(4, _short(f"stage {stage.stage} {stage.name}", _LABEL - 6), stage.seconds)
    if lines:
        lines[0] += f"   {stage.rows_out:,} rows out"
    if stage.errored_calls:
        rows = _counted(stage.errored_rows, "row")
        lines.append(f"      {stage.errored_calls:,} batches with {rows} left out, the first: {stage.first_error}")
    return lines


def _retries(op: OperatorSummary) -> list[str]:
    if op.attempts <= op.tasks and not op.failed_seconds:
        return []
    told = f"{op.attempts - op.tasks} more attempts, {seconds(op.failed_seconds)} failed"
    told += f", {seconds(op.replayed_seconds)} replayed, {seconds(op.backoff_seconds)} waiting"
    return [f"  {'retries':<{_LABEL - 2}}     {told}"]


def _throughput(op: OperatorSummary) -> list[str]:
    parts = [] if op.rows_in is None else [f"{op.rows_in:,} in"]
    parts.append(f"{op.rows_out:,} out")
    if op.rows_in:
        parts[-1] += f" ({100 * op.rows_out / op.rows_in:.0f} %)"
    if op.rows_per_second is not None:
        parts.append(f"{op.rows_per_second:,.0f}/s")
    if op.rows_per_task_second is not None:
        parts.append(f"{op.rows_per_task_second:,.0f}/s in one task")
    return [f"  {'rows':<{_LABEL - 2}}     {', '.join(parts)}"]


def _iteration(it: IterationSummary) -> list[str]:
    lines = [f"Iteration: {it.batches:,} batches, {it.rows:,} rows"]
    lines.append(_line(2, "total", [seconds(it.total_seconds)]))
    if it.first_wait_seconds is not None:
        lines.append(_line(2, "until the first batch", [seconds(it.first_wait_seconds)]))
    lines += _figures(2, "waiting for blocks", it.waiting)
    if it.initialisation_seconds is not None:
        lines.append(_line(4, "until the first task", [f"{seconds(it.initialisation_seconds)} total"]))
    for cause, label in (("start", "until the first result"), ("order", "overtaken by others"), ("work", "none there")):
        if it.blocked_seconds.get(cause, 0.0) > 0:
            lines.append(_line(4, label, [f"{seconds(it.blocked_seconds[cause])} total"]))
    lines += _figures(4, "mapping results", it.fetch)
    lines += _figures(2, "making batches", it.creating)
    lines += _figures(2, "formatting", it.formatting)
    lines += _figures(2, "the consumer's own", it.user)
    return lines


def _dataset(summary: DatasetSummary) -> list[str]:
    lines = ["Dataset"]
    if summary.rows_per_second is not None:
        lines.append(_line(2, "throughput", [f"{summary.rows_per_second:,.0f} rows/s"]))
    if summary.span_seconds is not None:
        lines.append(_line(2, "first task to last", [seconds(summary.span_seconds)]))
    if summary.driver_seconds is not None:
        lines.append(_line(2, "whole run in the driver", [seconds(summary.driver_seconds)]))
    if (loop := summary.scheduling) is not None:
        parts = (("max", loop.max), ("mean", loop.mean), ("p50", loop.p50), ("p90", loop.p90), ("total", loop.sum))
        lines.append(_line(2, "scheduling", [f"{seconds(value)} {name}" for name, value in parts]))
    return lines


def _run_time(summary: DatasetSummary) -> list[str]:
    """Return where the driver's time went: spans of operators that overlap may exceed the whole."""
    total = summary.driver_seconds
    lines = ["Run time"]
    for op in summary.operators:
        if op.span_seconds is not None:
            share = f"{100 * op.span_seconds / total:.0f} %" if total else "-"
            lines.append(_line(2, _short(f"{op.number} {op.name}", _LABEL - 4), [seconds(op.span_seconds), share]))
    if total is not None and summary.span_seconds is not None:
        rest = max(0.0, total - summary.span_seconds)
        if summary.scheduling is not None:
            busy = summary.scheduling.sum
            lines.append(_line(2, "scheduling", [seconds(busy), f"{100 * busy / total:.0f} %" if total else "-"]))
        lines.append(_line(2, "outside of the tasks", [seconds(rest), f"{100 * rest / total:.0f} %"]))
        lines.append(_line(2, "total", [seconds(total), "100 %"]))
    return lines

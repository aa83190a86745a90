"""The panel "Resource Utilization": what the blocks cost and what the workers did.

What prints is decided by what exists. A row of zeros for something that was not measured would be worse than no row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workspan.views.format import (
    MISSING,
    count,
    duration,
    duration_pair,
    fit,
    long_duration,
    one_line,
    percent_pair,
    share,
    shorten,
    size,
    size_pair,
    slope,
    table,
    titled,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workspan.measure.stats import Stat
    from workspan.report.parts import BlocksSummary, StepSummary, WorkerRecord, WorkersSummary
    from workspan.report.task import RunReport, TaskReport

MOST_WORKERS = 10
"""Rows of the table of workers."""

MOST_STEPS = 10
"""Lines for steps: those that took most of the time."""

_LABEL_WIDTH = 10  # of "round trip", the longest fixed label
_STEP_WIDTH = 40

_BASES = {  # of work and span, where they are not the workers' own measurement
    "round trip": "(from round trips)",
    "call": "(from calls)",
    "mixed": "(partly as the driver saw it)",
}

_Rows = list[tuple[str, str]]


def render_panel(report: RunReport, *, encoding: str = "utf-8", columns: int | None = None) -> str:
    """Return the panel of a run as text without a final line break; empty if there is nothing to show.

    Parameters
    ----------
    report
        The run.
    encoding
        Signs that this encoding lacks are spelled in ASCII.
    columns
        Width of the terminal: what is wider is shortened, or goes on in the next line, and the table of workers is
        then without what they took per block. ``None``: there is none.
    """
    sections = [lines for task in report.tasks.values() if (lines := _task(task, encoding, columns))]
    if not sections:
        return ""
    if len(report.tasks) > 1 and (whole := work_line(report)):
        sections.append([f"all {count(len(report.tasks), 'task')}   {whole}"])
    lines = titled("Resource Utilization", "\n\n".join("\n".join(lines) for lines in sections).split("\n"))
    return "\n".join(fit(line, encoding) for line in lines)


def _task(task: TaskReport, encoding: str, columns: int | None) -> list[str]:
    workers = task.workers
    distributed = is_distributed(task)
    blocks, steps = block_rows(task.blocks, distributed=distributed), step_rows(task.steps)
    if not (blocks or steps):
        return []
    head = count(task.blocks.count, "block")
    if task.blocks.skipped:
        head += f" ({task.blocks.skipped:,} skipped)"
    if distributed:
        head += f", {count(workers.count, 'worker')}"
    name, head = one_line(task.task_id), f"{head}, {long_duration(task.wall_seconds)} wall"
    lines = [f"{name}   {head}"]
    if columns is not None and len(lines[0]) > columns:
        lines = [shorten(name, columns), f"  {head}"]
    width = max([_LABEL_WIDTH, *(len(label) for label, value in steps if value)]) + 3
    lines += _section("blocks", blocks, width) + _section("steps", steps, width)
    if work := work_line(task):
        hint = "   (more workers can help)" if task.has_room_for_workers else ""
        too_wide = columns is not None and 2 + len(work) + len(hint) > columns
        lines += [f"  {work}", f" {hint}"] if hint and too_wide else [f"  {work}{hint}"]
    return lines + _section("workers", worker_rows(workers), width) + _worker_table(workers, encoding, columns)


def _section(name: str, rows: _Rows, width: int) -> list[str]:
    return [f"  {name}", *(f"    {label:<{width}}{value}".rstrip() for label, value in rows)] if rows else []


def is_distributed(task: TaskReport) -> bool:
    """Whether workers did the blocks, so that there is a round trip."""
    return bool(task.workers.count or task.workers.unmanaged_clients or task.blocks.round_trip.n)


def work_line(report: TaskReport | RunReport) -> str:
    """Return work, span and parallelism on one line; empty if they are not known."""
    if report.work is None or report.span is None:
        return ""
    text = f"work {long_duration(report.work)}   span {long_duration(report.span)}"
    if report.parallelism is not None:
        text += f"   parallelism {report.parallelism:,.1f}"
    basis = _BASES.get(report.work_basis or "")
    return f"{text}   {basis}" if basis else text


def block_rows(blocks: BlocksSummary, *, distributed: bool) -> _Rows:
    """Return label and text of what the blocks cost; what does not exist has no row."""
    rows = [("round trip", duration_pair(blocks.round_trip))] if distributed else []
    if blocks.wall is None or not blocks.wall.n:
        return rows
    rows += [
        ("wall", duration_pair(blocks.wall)),
        ("cpu", duration_pair(blocks.cpu)),
        ("peak RSS", size_pair(blocks.peak_rss)),
        ("io", f"read {_total(blocks.io_read)}   write {_total(blocks.io_write)}"),
    ]
    if distributed:
        rows.append(("overhead", duration_pair(blocks.overhead)))
    rows.append(("trend", slope(blocks.trend) if blocks.wall.n > 1 else MISSING))
    if blocks.gpu_util is not None or blocks.gpu_mem is not None:
        rows.append(("gpu", f"busy {percent_pair(blocks.gpu_util)}   memory {size_pair(blocks.gpu_mem)}"))
    return rows


def _total(stat: Stat | None) -> str:
    return MISSING if stat is None or not stat.n else size(stat.total)


def step_rows(steps: Mapping[str, StepSummary]) -> _Rows:
    """Return name and text of the steps that took most, in the order in which they were first seen."""
    largest = sorted(steps, key=lambda name: steps[name].self_seconds.total, reverse=True)[:MOST_STEPS]
    rows = []
    for name, step in steps.items():
        if name in largest:
            rows.append(
                (shorten(one_line(name), _STEP_WIDTH), f"{share(step.share):>5}   {duration_pair(step.self_seconds)}")
            )
    if len(steps) > MOST_STEPS:
        rows.append((f"the largest {MOST_STEPS} of {len(steps)}; all of them: report.steps", ""))
    return rows


def worker_rows(workers: WorkersSummary) -> _Rows:
    """Return label and text of what the workers did."""
    rows = []
    if workers.count:
        rows = [
            ("startup", duration_pair(workers.startup)),
            ("idle", duration_pair(workers.idle)),
            ("teardown", duration_pair(workers.teardown)),
            ("exits", ", ".join(f"{n} {kind}" for kind, n in workers.exits.items() if n) or MISSING),
        ]
    if workers.unmanaged_clients:
        rows.append(("unmanaged", count(workers.unmanaged_clients, "client")))
    return rows


def worker_cells(records: Sequence[WorkerRecord]) -> list[list[str]]:
    """Return the heading of the table of workers, and a row each, by id."""
    rows = [["id", "startup", "blocks", "idle", "idle / block", "compute", "compute / block", "teardown", "exit"]]
    for record in sorted(records, key=lambda record: record.id):
        rows.append(
            [
                str(record.id),
                duration(record.startup),
                f"{record.blocks:,}",
                duration(record.idle.total) if record.idle.n else MISSING,
                duration_pair(record.idle),
                duration(record.compute.total) if record.compute.n else MISSING,
                duration_pair(record.compute),
                duration(record.teardown),
                one_line(record.exit or MISSING),
            ]
        )
    return rows


def _worker_table(workers: WorkersSummary, encoding: str, columns: int | None) -> list[str]:
    if not workers.records:
        return []
    records = sorted(workers.records, key=lambda record: record.id)[:MOST_WORKERS]
    cells = worker_cells(records)
    lines = [f"  {line}" for line in table(cells, encoding=encoding)]
    if columns is not None and max(map(len, lines)) > columns:
        cells = [[cell for cell, name in zip(row, cells[0], strict=True) if "/" not in name] for row in cells]
        lines = [f"  {line}" for line in table(cells, encoding=encoding)]
    if len(workers.records) > MOST_WORKERS:
        lines.append(f"  {MOST_WORKERS} of {len(workers.records):,} workers; all of them: report.workers.records")
    return lines

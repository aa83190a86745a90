"""What the page says of one task, as text in rows; the rows that the panel has too come from the panel."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from workspan.report.page import speedup_bounds
from workspan.views.format import (
    MISSING,
    count,
    duration,
    duration_pair,
    long_duration,
    many_lines,
    one_line,
    raised_line,
    share,
    size,
)
from workspan.views.html.data import label_of
from workspan.views.html.drawings import history, speedup, speedup_rows, worker_counts
from workspan.views.panel import block_rows, is_distributed, work_line, worker_cells, worker_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspan.report.page import PageTask
    from workspan.report.page_blocks import Measure, PageBlocks
    from workspan.report.parts import BlockFailure
    from workspan.report.task import RunReport, TaskReport

__all__ = ["figure", "speedup_section", "task_section"]

MOST_WORKERS = 100
MOST_ENDS = 10
MOST_FAILURES = 20
_MOST_STEPS = 60
_MOST_COLUMNS = 8


def figure(value: float | None, unit: str) -> str:
    """Return a figure of a block in its unit: ``s``, ``B``, ``%`` or ``n``."""
    if value is None or value != value:
        return MISSING
    if unit == "s":
        return duration(value)
    if unit == "B":
        return size(value)
    return f"{value:.1f} %" if unit == "%" else f"{value:,.0f}"


def speedup_section(
    report: RunReport | TaskReport, *, wall: float | None, workers: int | None
) -> dict[str, Any] | None:
    """Return drawing, text and rows of how far more workers could help; ``None``: work or span is not known."""
    work, span = report.work, report.span
    if not work or not span:
        return None
    span = min(work, span)
    most = work / span
    text = (
        "Bounds after Brent and Graham, from this run's own blocks: no schedule beats the upper line (work / workers, "
        "and never less than the span); one in which nobody idles while a block is ready stays above the lower line. "
        f"Beyond {most:,.1f} workers on average the chain of blocks that wait for each other decides. Starting "
        "workers, and disks and memory that they share, are not in it: measure before you buy."
    )
    bounds = speedup_bounds(work, span, worker_counts(work, span, workers or 1))
    svg = speedup(work, span, wall=wall, workers=workers)
    return {"svg": Markup(svg), "text": text, "rows": speedup_rows(bounds, work)}


def task_section(task: PageTask, *, alone: bool) -> dict[str, Any]:
    """Return what the template says of a task."""
    report, blocks = task.report, task.blocks
    shown = blocks is not None and blocks.n > 0
    workers = report.workers
    work = work_line(report) + ("   (more workers can help)" if report.has_room_for_workers else "")
    return {
        "id": one_line(report.task_id),
        "noun": task.extra.block_noun,
        "outcome": one_line(report.outcome),
        "head": _head(task),
        "work": work,
        "absent": many_lines(task.absent),
        "has_map": shown,
        "cost": _cost(report),
        "steps": _steps(report),
        "stages": _stages(task),
        "figures": _figures(blocks) if blocks is not None and blocks.measures else None,
        "figures_note": "" if blocks is None else _figures_note(blocks, task.extra.block_noun),
        "failures": [_failure(failure, blocks) for failure in report.failed_blocks[:MOST_FAILURES]],
        "failures_note": _failures_note(report),
        "slow_head": _slow_head(blocks, task) if blocks is not None else [],
        "slowest": _slowest(blocks, {log.worker for log in task.logs}) if blocks is not None else [],
        "logs": _logs(task),
        # Tasks of one run share its wall time, so that of a task among others says nothing of its own speed.
        "speedup": speedup_section(
            report, wall=report.wall_seconds if alone else None, workers=workers.count if alone else None
        ),
        "workers": worker_cells(sorted(workers.records, key=lambda r: r.id)[:MOST_WORKERS])
        if workers.records
        else None,
        "worker_notes": _worker_notes(report),
        "ends": [
            {"head": f"worker {record.id}: {one_line(record.exit or MISSING)}", "text": many_lines(record.text)}
            for record in workers.records
            if record.text
        ][:MOST_ENDS],
        **_past(task),
    }


def _head(task: PageTask) -> str:
    blocks, noun = task.report.blocks, task.extra.block_noun
    parts = [f"{blocks.count:,} of {count(blocks.total, noun)} done"]
    told = ((blocks.skipped, "skipped"), (blocks.failed, "failed"), (blocks.orphaned, "orphaned"))
    parts += [f"{number:,} {name}" for number, name in told if number]
    if blocks.failures:
        parts.append(count(blocks.failures, "failed attempt"))
    if task.report.workers.count:
        parts.append(count(task.report.workers.count, "worker"))
    known = task.blocks
    if known is not None and known.rows is None and known.n:
        bins = " x ".join(map(str, known.sizes))
        parts.append(f"the map shows bins of {bins} {noun}s, as {known.n:,} are too many for one page")
    text = ", ".join(parts)
    again = 0 if known is None or known.main is None else blocks.count - blocks.skipped - known.here
    return (
        f"{text}. {again:,} of them were done again later: their times here are the later ones" if again > 0 else text
    )


def _cost(report: TaskReport) -> list[tuple[str, list[tuple[str, str]]]]:
    blocks = block_rows(report.blocks, distributed=is_distributed(report))
    workers = worker_rows(report.workers)
    return [("blocks", blocks), ("workers", workers)] if blocks or workers else []


def _steps(report: TaskReport) -> list[dict[str, Any]]:
    rows = []
    steps = sorted(report.steps.items(), key=lambda item: -item[1].self_seconds.total)[:_MOST_STEPS]
    for name, step in steps:
        rows.append(
            {
                "name": one_line(name),
                "share": share(step.share),
                "percent": f"{100 * min(1.0, step.share or 0.0):.2f}",
                "own": duration_pair(step.self_seconds),
                "total": long_duration(step.self_seconds.total),
                "calls": f"{step.calls:,}",
                "rest": False,
            }
        )
    inside = [step.share for step in report.steps.values()]
    if rows and None not in inside and (rest := 1.0 - sum(part for part in inside if part is not None)) > 0.0005:
        total = long_duration(rest * report.work_seconds) if report.work_seconds is not None else MISSING
        rows.append(
            {
                "name": "outside any step",
                "share": share(rest),
                "percent": f"{100 * rest:.2f}",
                "own": "",
                "total": total,
            }
            | {"calls": "", "rest": True}
        )
    return rows


def _stages(task: PageTask) -> list[list[str]] | None:
    if not task.extra.stages:
        return None
    rows = [["operator", "blocks out", "rows out", "bytes out", "calls", "rows in error"]]
    for stage in task.extra.stages:
        rows.append(
            [
                one_line(stage.name),
                f"{stage.blocks:,}",
                f"{stage.rows:,}",
                size(stage.bytes),
                f"{stage.calls:,}",
                f"{stage.errored_rows:,}",
            ]
        )
    return rows


def _figures(blocks: PageBlocks) -> list[list[str]]:
    rows = [["figure", "measured", "least", "median", "90 %", "99 %", "most", "mean", "total"]]
    return rows + [_figure_row(measure) for measure in blocks.measures]


def _figure_row(m: Measure) -> list[str]:
    quantiles = (None, None, None) if m.quantiles is None else m.quantiles
    values = [m.min, *quantiles, m.max, m.mean]
    total = MISSING if m.unit == "%" else long_duration(m.total) if m.unit == "s" else figure(m.total, m.unit)
    if m.name in ("peak_rss_bytes", "gpu_mem_bytes"):
        total = MISSING  # a sum of peaks is no use of memory
    return [label_of(m.name), f"{m.n:,}", *(figure(value, m.unit) for value in values), total]


def _figures_note(blocks: PageBlocks, noun: str) -> str:
    text = f"Of the {count(blocks.n, noun)} that the store has a record of"
    if blocks.here != blocks.n:
        text += f", {blocks.here:,} of them from this run"
    return text + ("; median, 90 % and 99 % to a bin of 4,096." if blocks.rows is None else ".")


def _failure(failure: BlockFailure, blocks: PageBlocks | None) -> dict[str, Any]:
    number = 0
    if blocks is not None and len(blocks.counts) == len(failure.cell):
        for at, extent in zip(failure.cell, blocks.counts, strict=True):
            number = number * extent + at
    causes = {"lost": "lost with its worker", "timeout": "over its deadline", "error": "raised an error"}
    last = raised_line(failure.error)
    return {
        "number": number,
        "cell": cell_text(failure.cell),
        "head": one_line(f"{causes.get(failure.cause, failure.cause)}: {last}"[:160]),
        "rows": [
            ("write ROI", _roi(failure.write_begin, failure.write_shape)),
            ("read ROI", _roi(failure.read_begin, failure.read_shape)),
            ("attempts", f"{failure.attempts:,}"),
            ("worker", MISSING if failure.worker is None else str(failure.worker)),
            ("log", MISSING if failure.log is None else one_line(failure.log)),
        ],
        "error": many_lines(failure.error),
    }


def _failures_note(report: TaskReport) -> str:
    shown = min(len(report.failed_blocks), MOST_FAILURES)
    if report.blocks.failed <= shown:
        return ""
    return f"The first {shown:,} of {report.blocks.failed:,}."


def _roi(begin: Sequence[int], shape: Sequence[int]) -> str:
    return ", ".join(f"{b:,} to {b + s:,}" for b, s in zip(begin, shape, strict=True))


def cell_text(cell: Sequence[int]) -> str:
    """Return a position in the grid."""
    return f"({', '.join(map(str, cell))})"


def _slow_columns(blocks: PageBlocks) -> list[Measure]:
    main = [m for m in blocks.measures if m.name == blocks.main]
    return main + [m for m in blocks.measures if m.name not in (blocks.main, "failures")][: _MOST_COLUMNS - len(main)]


def _slow_head(blocks: PageBlocks, task: PageTask) -> list[str]:
    return [
        task.extra.block_noun,
        task.extra.worker_noun,
        *(label_of(m.name) for m in _slow_columns(blocks)),
        "began",
        "run",
    ]


def _logs(task: PageTask) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for log in task.logs:
        first = all(log.worker != other["worker"] for other in out)  # where a link to the worker's logs leads
        text = {"name": one_line(log.name), "text": many_lines(log.text)}
        out.append({"worker": log.worker, **text, "cut": log.cut, "first": first})
    return out


def _slowest(blocks: PageBlocks, logged: set[int]) -> list[dict[str, Any]]:
    rows, columns = blocks.slowest, _slow_columns(blocks)
    out = []
    for at in range(len(rows)):
        number, cell = int(rows.number[at]), []
        rest = number
        for extent in reversed(blocks.counts):
            rest, position = divmod(rest, extent)
            cell.append(position)
        sent, here = float(rows.sent[at]), bool(rows.here[at])
        cells = [str(rows.worker[at]) if rows.worker[at] >= 0 else MISSING]
        cells += [figure(float(rows.values[m.name][at]), m.unit) for m in columns]
        cells += [f"+{long_duration(sent)}" if here else MISSING, "this" if here else "earlier"]
        log = cells[0] if here and int(rows.worker[at]) in logged else ""
        out.append({"number": number, "cell": cell_text(cell[::-1]), "cells": cells, "log": log})
    return out


def _worker_notes(report: TaskReport) -> list[str]:
    workers = report.workers
    out = []
    if len(workers.records) > MOST_WORKERS:
        out.append(f"{MOST_WORKERS} of {len(workers.records):,} workers; all of them: report.workers.records")
    if workers.unmanaged_clients:
        out.append(f"{count(workers.unmanaged_clients, 'client')} came from outside and were not timed.")
    return out


def _past(task: PageTask) -> dict[str, Any]:
    past = task.past
    rows: list[Any] = [["started", "outcome", "wall", "executed", "skipped", "failed", "a block", "work", "workers"]]
    bars = []
    for run in past.runs:
        blocks = run.blocks
        started = datetime.fromtimestamp(run.started_at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        here = run.run_id == task.report.run_id
        cells = [
            started + (" (this run)" if here else ""),
            one_line(run.outcome),
            long_duration(run.wall_seconds),
            f"{blocks.count - blocks.skipped:,}",
            f"{blocks.skipped:,}",
            f"{blocks.failed:,}",
            duration_pair(blocks.wall if blocks.wall is not None else blocks.round_trip),
            long_duration(run.work),
            f"{run.workers.count:,}",
        ]
        rows.append({"cells": cells, "here": here})
        if blocks.count > blocks.skipped:
            bars.append((f"{started}: {long_duration(run.wall_seconds)}", run.wall_seconds, here))
    head = count(len(past.runs), "run")
    if past.older:
        head = f"the newest {head}, {past.older:,} older ones"
    if past.damaged:
        head += f", {count(past.damaged, 'damaged line')} passed over"
    return {
        "past": rows if past.runs else None,
        "past_svg": Markup(history(bars)),
        "past_head": f"As a table: {head}" if len(bars) > 1 else head,
    }

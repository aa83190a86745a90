"""What earlier runs of a task say about the next one: from its tracking store, its ``runs.jsonl`` and its summaries."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workspan.errors import WorkspanError
from workspan.estimate.blocks import BlockTimes
from workspan.report.history import RunSummary, SizeTimes, spread_rows
from workspan.report.places import RUNS
from workspan.report.task import TaskReport
from workspan.report.unrecorded import stored_layout, unrecorded
from workspan.run.history import RUNS_KEPT, read_summaries, usable_cpus
from workspan.run.sizes import sizes_of
from workspan.store.hash import layout_hash
from workspan.store.runs import iter_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workspan.grid import Block, Layout
    from workspan.measure.stats import Stat
    from workspan.run.task import Task

__all__ = ["Past", "learn", "learn_task"]

MOST_ROWS = 20_000
"""Blocks of a store that are read for one forecast; of a store that has more an even choice is."""


@dataclass
class Rows:
    """Measured blocks, as columns."""

    sizes: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    first: list[bool] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def add(self, size: float, seconds: float, first: bool, run: int, weight: float = 1.0) -> None:
        """Add blocks."""
        self.sizes.append(size)
        self.seconds.append(seconds)
        self.first.append(first)
        self.runs.append(run)
        self.weights.append(weight)


@dataclass(frozen=True)
class _Run:
    """What is kept of one earlier run beside its blocks."""

    started_at: float
    ended_at: float
    run_id: str
    max_workers: int
    workers: int
    cpus: int
    basis: str
    executed: int
    startup: Stat
    gap: float | None
    lead: float | None
    tail: float | None
    overhead: float | None
    cpu_share: float | None
    peak_rss: Stat | None
    steps: dict[str, float]
    summary: RunSummary | None = None
    report: TaskReport | None = None


class Start(NamedTuple):
    """How the workers of one run started: mean and spread, beside no more of them than there are processors."""

    mean: float
    spread: float


@dataclass(frozen=True)
class Past:
    """What is known of one task. Times are seconds; ``None``: not measured."""

    times: BlockTimes
    """From the grant of a block to its return."""
    starts: tuple[Start, ...] = ()
    """How workers started in each run, oldest first."""
    gap: float = 0.0
    lead: float = 0.0
    tail: float = 0.0
    tail_spread: float = 0.0
    overhead: float = 0.0
    """Part of each block's time that is not its own."""
    cpu_share: float | None = None
    peak_rss_bytes: int | None = None
    steps: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def startup(self) -> float | None:
        """What a worker's start takes, the later runs counting more; ``None``: never measured."""
        return _recent(start.mean for start in self.starts)


def learn_task(task: Task) -> Past:
    """Gather what is known of *task*."""
    function, n_ref = task.history_marks()
    return learn(
        task.task_id, task.layout, task.resolved_tracking_path(), function=function, n_ref=task.n_ref, n_ref_mark=n_ref
    )


def learn(
    task_id: str,
    layout: Layout,
    store_path: Path | None,
    *,
    function: str | None = None,
    n_ref: Callable[[Block], Any] | None = None,
    n_ref_mark: str | None = None,
) -> Past:
    """Gather what is known of a task.

    Parameters
    ----------
    task_id
        Names the file of its summaries.
    layout
        Its blocks now.
    store_path
        Its tracking store, if it has one.
    function
        Fingerprint of its block function; ``None``: that of its newest run.
    n_ref, n_ref_mark
        What gives the size of a block, and its fingerprint.
    """
    notes: list[str] = []
    summaries, damaged = read_summaries(task_id)
    if damaged:
        notes.append(f"{damaged} damaged line{'s' * (damaged != 1)} of the history of {task_id!r} passed over")
    summaries = _of_function(summaries, function, notes, task_id)
    same = [summary for summary in summaries if summary.n_ref == n_ref_mark]
    if len(same) < len(summaries):
        notes.append(
            f"{task_id}: {len(summaries) - len(same)} runs are left out: another n_ref gave the sizes of their blocks"
        )
    runs = [_of_summary(summary) for summary in same]
    known = {run.run_id for run in runs}
    runs += [run for run in _of_store(store_path) if run.run_id not in known]
    if store_path is not None:
        left = unrecorded(store_path, after=max((run.ended_at for run in runs), default=0.0))
        runs += [] if left is None else [_of_report(left)]
    runs = sorted((run for run in runs if run.executed), key=lambda run: run.started_at)[-RUNS_KEPT:]
    if not runs:
        return Past(BlockTimes.fit([], []), notes=tuple(notes))
    rows, cpus = Rows(), usable_cpus()
    unread = {run.run_id: number for number, run in enumerate(runs) if run.summary is None}
    taken = _read_store(store_path, layout, {i: runs[i].report for i in unread.values()}, rows, n_ref, task_id, notes)
    for number, run in enumerate(runs):
        if run.summary is not None:
            _add_summary(run.summary, number, rows)
        elif number not in taken and run.report is not None:
            _add_report(run.report, layout, number, rows, n_ref, task_id)
    busy = [_crowding(run, cpus) for run in runs]
    times = BlockTimes.fit(
        rows.sizes,
        [seconds / busy[run] for seconds, run in zip(rows.seconds, rows.runs, strict=True)],
        first=rows.first,
        runs=rows.runs,
        workers=[max(1, min(run.workers, run.max_workers)) for run in runs],
        weights=rows.weights,
    )
    tails = [run.tail for run in runs if run.tail is not None]
    shares = [run.cpu_share * busy[n] for n, run in enumerate(runs) if run.cpu_share is not None]
    peaks = [run.peak_rss.max for run in runs if run.peak_rss is not None and isfinite(run.peak_rss.max)]
    return Past(
        times=times,
        starts=_starts(runs),
        gap=_recent(run.gap for run in runs) or 0.0,
        lead=_recent(run.lead for run in runs) or 0.0,
        tail=_recent(tails) or 0.0,
        tail_spread=(max(tails) - min(tails)) / 2 if tails else 0.0,
        overhead=_recent(run.overhead for run in runs) or 0.0,
        cpu_share=_recent(shares),
        peak_rss_bytes=int(max(peaks)) if peaks else None,
        steps=_steps(runs),
        notes=tuple(notes),
    )


def _of_function(summaries: list[RunSummary], function: str | None, notes: list[str], task_id: str) -> list[RunSummary]:
    """Return the runs of this very function; if there are none, those of a function of this name."""
    if function is None:
        function = summaries[-1].function if summaries else None
    same = [summary for summary in summaries if summary.function == function]
    if same or function is None:
        return same
    name = function.split(" ")[0]
    named = [summary for summary in summaries if (summary.function or "").split(" ")[0] == name]
    if named:
        notes.append(f"{task_id}: its function has changed since it was measured")
    elif summaries:
        notes.append(f"{task_id}: {len(summaries)} runs of another function under this id are left out")
    return named


def _of_summary(summary: RunSummary) -> _Run:
    return _Run(
        started_at=summary.started_at,
        ended_at=summary.started_at + summary.wall_seconds,
        run_id=summary.run_id,
        max_workers=summary.max_workers,
        workers=summary.workers,
        cpus=summary.cpus,
        basis=summary.basis,
        executed=summary.executed,
        startup=summary.startup,
        gap=summary.gap_seconds,
        lead=summary.lead_seconds,
        tail=summary.tail_seconds,
        overhead=summary.overhead_seconds,
        cpu_share=summary.cpu_share,
        peak_rss=summary.peak_rss,
        steps=summary.steps,
        summary=summary,
    )


def _of_store(path: Path | None) -> list[_Run]:
    """Return the runs that a tracking store lists."""
    found: list[_Run] = []
    if path is None or not (path / RUNS).is_file():
        return found
    try:
        for line in iter_runs(path / RUNS):
            try:
                report = TaskReport.from_json(line) if line is not None else None
            except WorkspanError:
                continue
            if report is not None:
                found.append(_of_report(report))
    except WorkspanError:
        pass
    return found[-RUNS_KEPT:]


def _of_report(report: TaskReport) -> _Run:
    blocks, workers = report.blocks, report.workers
    cpu = None
    if blocks.cpu is not None and blocks.wall is not None and blocks.cpu.n and blocks.wall.total > 0:
        cpu = blocks.cpu.total / blocks.wall.total
    return _Run(
        started_at=report.started_at,
        ended_at=report.ended_at,
        run_id=report.run_id,
        max_workers=max(1, workers.count),
        workers=workers.count,
        cpus=usable_cpus(),
        basis=report.work_basis or "call",
        executed=blocks.count - blocks.skipped,
        startup=workers.startup,
        gap=workers.idle.min if workers.idle.n else None,
        lead=None,
        tail=workers.teardown.mean if workers.teardown.n else None,
        overhead=blocks.overhead.mean if blocks.overhead is not None and blocks.overhead.n else None,
        cpu_share=cpu,
        peak_rss=blocks.peak_rss if blocks.peak_rss is not None and blocks.peak_rss.n else None,
        steps={name: step.share for name, step in report.steps.items() if step.share is not None},
        report=report,
    )


def _crowding(run: _Run, cpus: int) -> float:
    """By how much blocks took longer in a run because more of them ran than there are processors."""
    if run.cpu_share is None:
        return 1.0
    alive = min(run.workers, run.max_workers)
    if alive > run.cpus and run.cpu_share * alive >= 0.9 * run.cpus:
        return alive / run.cpus
    return 1.0


def _starts(runs: list[_Run]) -> tuple[Start, ...]:
    """Return how workers started in each run, oldest first."""
    found = []
    for run in runs:
        stat = run.startup
        if stat.n and isfinite(stat.mean):
            crowd = max(1.0, min(run.workers, run.max_workers) / run.cpus)
            found.append(Start(stat.mean / crowd, stat.std / crowd))
    return tuple(found)


def _recent(values: Iterable[float | None]) -> float | None:
    """Mean of what was measured, the later runs counting more; ``None``: never measured."""
    weight, total = 0.0, 0.0
    for value in values:
        if value is not None and isfinite(value):
            weight, total = 0.75 * weight + 1.0, 0.75 * total + value
    return total / weight if weight else None


def _steps(runs: list[_Run]) -> dict[str, float]:
    """Share of each step over the runs that had steps, by the blocks that they executed."""
    total = 0.0
    out: dict[str, float] = {}
    for run in runs:
        if run.steps:
            total += run.executed
            for name, share in run.steps.items():
                out[name] = out.get(name, 0.0) + share * run.executed
    return {name: value / total for name, value in out.items()}


# -- blocks ----------------------------------------------------------------------------------------------------------


def _add_summary(summary: RunSummary, number: int, rows: Rows) -> None:
    for sizes, first in ((summary.later, False), (summary.first, True)):
        for entry in sizes:
            _add_slices(entry, first, number, rows)


def _add_slices(entry: SizeTimes, first: bool, number: int, rows: Rows) -> None:
    seen = sum(entry.counts)
    for mean, count in zip(entry.means, entry.counts, strict=False):
        if seen:
            rows.add(entry.size, mean, first, number, count * entry.blocks / seen)


def _add_report(
    report: TaskReport, layout: Layout, number: int, rows: Rows, n_ref: Callable[[Block], Any] | None, task_id: str
) -> None:
    """Add blocks of which only the summary figures are known; they are taken to have the size of the middle one."""
    stat = report.blocks.round_trip if report.blocks.round_trip.n else report.workers.compute
    if not stat.n and report.blocks.wall is not None:
        stat = report.blocks.wall
    if not stat.n or not layout.num_blocks:
        return
    size = sizes_of(layout, [layout.num_blocks // 2], n_ref, task_id)[0]
    for seconds, weight in spread_rows(stat):
        rows.add(size if size == size else 1.0, seconds, False, number, weight)


def _read_store(
    path: Path | None,
    layout: Layout,
    runs: dict[int, TaskReport | None],
    rows: Rows,
    n_ref: Callable[[Block], Any] | None,
    task_id: str,
    notes: list[str],
) -> set[int]:
    """Add the measured blocks of *runs* that are in the store; return the runs that had some."""
    if path is None or not runs:
        return set()
    import numpy as np

    from workspan.store.reader import StoreReader

    try:
        reader = StoreReader(path)
        if not reader.resource_tracking:
            return set()
        own: Layout | None = layout
        if reader.layout_hash != layout_hash(layout):
            own = stored_layout(reader, read_write_conflict=False)
        if own is None:
            return set()
        table = reader.table()
    except WorkspanError as error:
        notes.append(f"{task_id}: its tracking store is left out: {error}")
        return set()
    values = table.values
    taken = set()
    for number, report in runs.items():
        if report is None:
            continue
        sent = values["sent_at"]
        here = table.executed & (sent >= report.started_at - 1.0) & (values["returned_at"] <= report.ended_at + 1.0)
        found = np.flatnonzero(here)
        if not len(found):
            continue
        taken.add(number)
        order = found[np.argsort(sent[found], kind="stable")]
        _, at = np.unique(values["worker_id"][order], return_index=True)
        first = np.zeros(len(order), bool)
        first[at] = True
        chosen = np.unique(
            np.concatenate((np.flatnonzero(first), np.arange(0, len(order), 1 + len(order) // MOST_ROWS)))
        )
        elapsed = values["returned_at"][order] - sent[order]
        elapsed = np.where(elapsed > 0, elapsed, values["wall_seconds"][order])
        indices = [own.index_of_cell(tuple(cell)) for cell in table.cells[order[chosen]].tolist()]
        sizes = sizes_of(own, [index if index is not None else 0 for index in indices], n_ref, task_id)
        weight = len(order) / len(chosen)
        for size, row, index in zip(sizes, chosen.tolist(), indices, strict=True):
            rows.add(
                nan if index is None else size,
                float(elapsed[row]),
                bool(first[row]),
                number,
                1.0 if first[row] else weight,
            )
    return taken

"""What is kept of each run for the forecasts of later ones.

A summary of each task's part goes to the folder of timings, a line a run in a file a task: it survives the reset of the
task, which deletes its tracking store. Lines are only ever appended, readers pass over what is damaged, and a folder
that cannot be written costs one notice and never a run.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from workspan import config
from workspan.errors import WorkspanError
from workspan.report.history import LayoutFields, RunSummary, by_place, by_size
from workspan.run.sizes import sizes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspan.measure.stats import Stat
    from workspan.report.task import RunReport, TaskReport
    from workspan.run.record import TaskBook
    from workspan.run.session import Session
    from workspan.run.task import Task

__all__ = ["RUNS_KEPT", "history_file", "keep_summaries", "read_summaries", "usable_cpus"]

logger = logging.getLogger(__name__)

FOLDER = "runs"
"""Folder of the summaries, below that of the timings."""

RUNS_KEPT = 50
"""So many of the last runs of a task are read."""

_told: set[str] = set()


def history_file(task_id: str) -> Path | None:
    """Return the file with the summaries of a task's runs; ``None`` if there is no home to put it in."""
    from workspan.estimate.home import timing_directory

    home = timing_directory()
    return None if home is None else home / FOLDER / f"{task_id}.jsonl"


def usable_cpus() -> int:
    """Return how many processors this process may use, by its affinity and by the quota of its control group."""
    with suppress(AttributeError, OSError):
        count = len(os.sched_getaffinity(0))
        with suppress(OSError, ValueError):
            quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
            count = min(count, max(1, round(int(quota) / int(period))))
        return count
    return os.cpu_count() or 1


def keep_summaries(report: RunReport, session: Session) -> None:
    """Append a summary of each task that executed a block to its history; what is wrong is told once, never raised."""
    if not (config.get("timing.enabled") and config.get("timing.persistent_data")):
        return
    books = {book.task_id: book for book in session.record.books}
    for task in session.tasks:
        book = books[task.task_id]
        if not (book.samples.later_count or book.samples.first):
            continue
        try:
            path = history_file(task.task_id)
            if path is None:
                _tell("home", "forecasts will know nothing of this run: there is no home; set timing.directory")
                return
            _append(path, _summary(task, book, report[task.task_id], session))
        except (OSError, WorkspanError) as error:
            _tell(str(type(error)), f"forecasts will know nothing of this run: {error}")
        except Exception as error:
            _tell(
                f"n_ref {task.task_id}",
                f"task {task.task_id!r}: forecasts will know nothing of this run, as its n_ref raised "
                f"{type(error).__name__}: {error}",
            )


def _tell(cause: str, text: str) -> None:
    """Log *text*, unless there was a notice of the same cause in this process before."""
    if cause not in _told:
        _told.add(cause)
        logger.warning("%s", text)


def _append(path: Path, summary: RunSummary) -> None:
    from workspan.store.runs import append_run

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if path.stat().st_size > config.get("timing.max_file_bytes"):
            os.replace(path, _older(path))
    append_run(path, summary.to_json(), durable=False)


def _summary(task: Task, book: TaskBook, report: TaskReport, session: Session) -> RunSummary:
    blocks, workers, samples = report.blocks, report.workers, book.samples
    started, spec = session.clock.start, session.spec
    number = next(n for n, entry in enumerate(spec.tasks) if entry.task_id == task.task_id)
    ends = [other.timeline.ends() for other in session.record.books]
    begins = [begin for begin, _ in ends if begin is not None]
    returns = [last for _, last in ends if last is not None]
    executed = blocks.count - blocks.skipped

    def sizes(rows: Sequence[tuple[int, float]]) -> list[float]:
        return sizes_of(task.layout, [index for index, _ in rows], task.n_ref, task.task_id)

    first, later = samples.first, samples.later
    later_sizes = sizes(later)
    seconds = [each for _, each in later]
    are_alike = task.layout.num_levels == 1 and min(later_sizes, default=0) == max(later_sizes, default=1)
    function, n_ref = task.history_marks()
    return RunSummary(
        run_id=report.run_id,
        task_id=task.task_id,
        started_at=report.started_at,
        wall_seconds=report.wall_seconds,
        outcome=report.outcome,
        layout=LayoutFields.of(task.layout),
        total=blocks.total,
        executed=executed,
        skipped=blocks.skipped,
        failed=blocks.failed,
        failures=blocks.failures,
        max_workers=task.max_workers,
        workers=workers.count,
        cpus=usable_cpus(),
        basis="round trip" if blocks.round_trip.n else "call",
        later=by_size(later_sizes, seconds, samples.later_count),
        first=by_size(sizes(first), [each for _, each in first], len(first)),
        startup=workers.startup,
        teardown=workers.teardown,
        gap_seconds=_low_idle(workers.idle),
        lead_seconds=max(0.0, min(begins) - started) if begins else None,
        tail_seconds=max(0.0, report.wall_seconds - (max(returns) - started)) if returns else None,
        overhead_seconds=None if blocks.overhead is None or not blocks.overhead.n else blocks.overhead.mean,
        cpu_share=_share(blocks.cpu, blocks.wall),
        peak_rss=blocks.peak_rss if blocks.peak_rss is not None and blocks.peak_rss.n else None,
        steps={name: step.share for name, step in report.steps.items() if step.share is not None},
        work_seconds=report.work_seconds,
        span_seconds=report.span_seconds,
        function=function,
        n_ref=n_ref,
        tracking_path=report.tracking_path,
        places=by_place([index for index, _ in later], seconds, blocks.total) if are_alike else (),
        upstream=tuple(spec.tasks[up].task_id for up in spec.upstream(number)),
        requires=dict(task.requires),
        tasks=len(spec.tasks),
    )


def _low_idle(idle: Stat) -> float | None:
    """Return what a worker waits for a block that is ready: its smallest wait, which is the driver's own time."""
    return idle.min if idle.n and isfinite(idle.min) else None


def _share(cpu: Stat | None, wall: Stat | None) -> float | None:
    if cpu is None or wall is None or not cpu.n or not wall.total > 0:
        return None
    return cpu.total / wall.total


def _older(path: Path) -> Path:
    """Return where the lines of *path* go once they are too many."""
    return path.with_name(f"{path.name}.1")


def read_summaries(task_id: str) -> tuple[list[RunSummary], int]:
    """Return the last runs of a task, oldest first, and how many lines were damaged; never raises."""
    from workspan.store.runs import iter_runs

    path = history_file(task_id)
    if path is None:
        return [], 0
    found: list[RunSummary] = []
    damaged = 0
    for file in (_older(path), path):
        try:
            for line in iter_runs(file):
                try:
                    if line is None:
                        raise ValueError
                    found.append(RunSummary.from_json(line))
                except (WorkspanError, ValueError):
                    damaged += 1
                if len(found) > 2 * RUNS_KEPT:
                    del found[:RUNS_KEPT]
        except WorkspanError as error:
            _tell(f"read {file}", f"{error}")
    found.sort(key=lambda summary: summary.started_at)
    return found[-RUNS_KEPT:], damaged

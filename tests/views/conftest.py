"""Hand-made reports and counters with fixed numbers, and the golden texts that they must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from workspan.measure.stats import Stat
from workspan.report.parts import BlockFailure, BlocksSummary, StepSummary, WorkerRecord, WorkersSummary
from workspan.report.task import RunReport, TaskReport
from workspan.schedule.state import TaskState

GOLDEN = Path(__file__).parent / "golden"


def stat(n: int, mean: float, std: float = 0.0) -> Stat:
    """A summary of *n* samples; the extremes play no part in a view."""
    return Stat(n, mean, std, mean - std, mean + std, n * mean)


NOTHING = Stat()


def worker(id: int, **changes: object) -> WorkerRecord:
    """One of three workers of the source document's panel: four blocks of 50 ms."""
    record = WorkerRecord(
        id=id,
        startup=0.0606 + 0.0001 * id,
        blocks=4,
        blocks_failed=0,
        idle=stat(4, 48.5e-6, 54.2e-6),
        compute=stat(4, 0.05055, 0.00004),
        final_wait=0.0011,
        teardown=0.0231 + 0.001 * id,
        exit="clean",
    )
    return replace(record, **changes)


def workers(records: list[WorkerRecord], **changes: object) -> WorkersSummary:
    """A section about *records*."""
    exits = [record.exit for record in records]
    summary = WorkersSummary(
        count=len(records),
        startup=stat(len(records), 0.0608, 0.0001) if records else NOTHING,
        idle=stat(12, 25.9e-6, 33.9e-6) if records else NOTHING,
        compute=stat(12, 0.0505, 0.0001) if records else NOTHING,
        final_wait=stat(len(records), 0.0011, 0.0002) if records else NOTHING,
        teardown=stat(len(records), 0.0264, 0.0037) if records else NOTHING,
        exits={kind: exits.count(kind) for kind in ("clean", "error", "timeout", "interrupted") if kind in exits},
        unmanaged_clients=0,
        records=tuple(records),
    )
    return replace(summary, **changes)


UNTRACKED = BlocksSummary(12, 12, 0, 0, 0, 0, stat(12, 0.0505, 0.0001))
MEASURED = {
    "wall": stat(12, 0.0502, 0.00001),
    "cpu": stat(12, 60.1e-6, 13.6e-6),
    "peak_rss": stat(12, 25.5 * 2**20, 0.0),
    "io_read": stat(12, 94.0),
    "io_write": stat(12, 0.0),
    "overhead": stat(12, 372.1e-6, 43.3e-6),
    "trend": 0.0027,
}
TRACKED = replace(UNTRACKED, **MEASURED)


def task_report(
    task_id: str = "seg",
    *,
    blocks: BlocksSummary = TRACKED,
    records: list[WorkerRecord] | None = None,
    steps: dict[str, StepSummary] | None = None,
    wall_seconds: float = 0.2921,
    workers_section: WorkersSummary | None = None,
) -> TaskReport:
    """A report of 12 blocks on three workers, unless told otherwise."""
    records = [worker(0), worker(1), worker(2)] if records is None else records
    return TaskReport(
        run_id="r1",
        task_id=task_id,
        started_at=1000.0,
        ended_at=1000.0 + wall_seconds,
        wall_seconds=wall_seconds,
        outcome="completed",
        resource_tracking=blocks.wall is not None,
        tracking_path=None,
        blocks=blocks,
        workers=workers(records) if workers_section is None else workers_section,
        steps=steps or {},
    )


def run_report(*tasks: TaskReport) -> RunReport:
    """A run of *tasks*."""
    return RunReport("r1", 1000.0, 1001.0, 1.0, "completed", {task.task_id: task for task in tasks})


def state(task_id: str = "seg", total: int = 12, completed: int | None = None, **counters: object) -> TaskState:
    """Counters of a task; *counters* are named without ``_count``."""
    names = {"skipped", "failed", "orphaned", "ready", "processing", "worker_start", "worker_failure"}
    names |= {"worker_restart", "timeout_reclaim"}
    fields = {f"{name}_count" if name in names else name: value for name, value in counters.items()}
    done = total if completed is None else completed
    return TaskState(task_id, True, total_block_count=total, completed_count=done, **fields)


def failure(**changes: object) -> BlockFailure:
    """A block that raised in three attempts."""
    made = BlockFailure(
        cell=(3, 0, 1),
        block_id=25,
        read_begin=(-8, 56, 120),
        read_shape=(80, 80, 80),
        write_begin=(0, 64, 128),
        write_shape=(64, 64, 64),
        attempts=3,
        cause="error",
        error=(
            "Traceback (most recent call last):\n"
            '  File "job.py", line 12, in smooth\n'
            "    data = gaussian_filter(data, sigma)\n"
            "ValueError: bad voxel\n"
        ),
        worker=2,
        log="workspan_logs/classes/worker_2.err",
    )
    return replace(made, **changes)


@pytest.fixture
def make() -> SimpleNamespace:
    """The functions and values above."""
    return SimpleNamespace(
        stat=stat,
        worker=worker,
        workers=workers,
        task_report=task_report,
        run_report=run_report,
        state=state,
        failure=failure,
        NOTHING=NOTHING,
        UNTRACKED=UNTRACKED,
        TRACKED=TRACKED,
        MEASURED=MEASURED,
    )


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Return a function that compares a text with ``golden/<name>.txt``.

    A text without a file is written there and fails once: look at it, then keep it.
    """

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if not path.exists():
            path.write_text(text + "\n", encoding="utf-8")
            pytest.fail(f"{path.name} was not there and has been written: look at it")
        assert text + "\n" == path.read_text(encoding="utf-8")

    return check


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that stands at 0 s."""
    return Clock()

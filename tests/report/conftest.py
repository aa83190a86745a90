"""Strategies for reports."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from workspan.measure.stats import Stat, Welford
from workspan.report.parts import BlockFailure, BlocksSummary, StepSummary, TaskPlace, WorkerRecord, WorkersSummary
from workspan.report.task import RunReport, TaskReport


def _stat(samples: list[float]) -> Stat:
    fold = Welford()
    fold.extend(samples)
    return fold.stat()


def report_strategies() -> tuple[st.SearchStrategy[TaskReport], st.SearchStrategy[RunReport]]:
    """Any report of a task, and any report of a run, as far as their types go."""
    seconds = st.floats(0, 1e12)
    count = st.integers(0, 10**15)
    stats = st.lists(st.floats(-1e15, 1e15), max_size=4).map(_stat)
    ints = st.lists(st.integers(-(2**70), 2**70), max_size=4).map(tuple)
    worker = st.builds(
        WorkerRecord,
        id=count,
        startup=st.none() | seconds,
        blocks=count,
        blocks_failed=count,
        idle=stats,
        compute=stats,
        final_wait=st.none() | seconds,
        teardown=st.none() | seconds,
        exit=st.none() | st.sampled_from(["clean", "error", "timeout", "interrupted"]),
        text=st.none() | st.text(),
    )
    workers = st.builds(
        WorkersSummary,
        count=count,
        startup=stats,
        idle=stats,
        compute=stats,
        final_wait=stats,
        teardown=stats,
        exits=st.dictionaries(st.text(max_size=9), count, max_size=4),
        unmanaged_clients=count,
        records=st.lists(worker, max_size=3).map(tuple),
    )
    measured = dict.fromkeys(("wall", "cpu", "peak_rss", "io_read", "io_write", "overhead"), st.none() | stats)
    measured |= dict.fromkeys(("gpu_util", "gpu_mem"), st.none() | stats)
    counts = dict.fromkeys(("count", "total", "skipped", "failed", "orphaned", "failures"), count)
    blocks = st.builds(BlocksSummary, **counts, round_trip=stats, **measured, trend=st.none() | st.floats(-1e12, 1e12))
    step = st.builds(StepSummary, self_seconds=stats, calls=count, share=st.none() | st.floats(0, 2))
    failure = st.builds(
        BlockFailure,
        cell=ints,
        block_id=st.integers(0, 2**200),
        read_begin=ints,
        read_shape=ints,
        write_begin=ints,
        write_shape=ints,
        attempts=count,
        cause=st.sampled_from(["error", "lost", "timeout"]),
        error=st.text(),
        worker=st.none() | count,
        log=st.none() | st.text(),
    )
    times = {"started_at": seconds, "ended_at": seconds, "wall_seconds": seconds}
    outcome = st.sampled_from(["completed", "incomplete", "abandoned", "interrupted", "error"])
    task = st.builds(
        TaskReport,
        run_id=st.text(),
        task_id=st.text(),
        **times,
        outcome=outcome,
        resource_tracking=st.booleans(),
        tracking_path=st.none() | st.text(),
        blocks=blocks,
        workers=workers,
        steps=st.dictionaries(st.text(), step, max_size=3),
        work_seconds=st.none() | seconds,
        work_basis=st.none() | st.sampled_from(["wall", "round trip", "call"]),
        failed_blocks=st.lists(failure, max_size=2).map(tuple),
        span_seconds=st.none() | seconds,
        place=st.none() | st.builds(TaskPlace, position=count, tasks=count, span_seconds=st.none() | seconds),
    )
    run = st.builds(
        RunReport,
        run_id=st.text(),
        **times,
        outcome=outcome,
        tasks=st.dictionaries(st.text(), task, max_size=2),
        span_seconds=st.none() | seconds,
    )
    return task, run


TASK_REPORTS, RUN_REPORTS = report_strategies()


@pytest.fixture(scope="session")
def task_reports():
    """Strategy for task reports."""
    return TASK_REPORTS


@pytest.fixture(scope="session")
def run_reports():
    """Strategy for run reports."""
    return RUN_REPORTS


@pytest.fixture
def task_report():
    """Return a function that makes a task report of a few counts and two workers."""

    def make(task_id: str = "seg", *, count: int = 12, total: int = 12, tracking_path: str | None = None) -> TaskReport:
        none = Stat()
        records = tuple(WorkerRecord(id, 0.06, count // 2, 0, none, none, 0.1, 0.02, "clean") for id in (0, 2))
        return TaskReport(
            run_id="r1",
            task_id=task_id,
            started_at=1000.0,
            ended_at=1000.25,
            wall_seconds=0.25,
            outcome="completed" if count == total else "incomplete",
            resource_tracking=False,
            tracking_path=tracking_path,
            blocks=BlocksSummary(count, total, 0, total - count, 0, 0, none),
            workers=WorkersSummary(2, none, none, none, none, none, {"clean": 2}, 0, records),
        )

    return make

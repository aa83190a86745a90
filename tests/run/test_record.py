"""The record of a run: work, span, timeline and the tasks' places, in memory and on disk."""

from __future__ import annotations

import json

import pytest
from funlib.geometry import Roi

import workspan
from workspan.engines import Processes, Serial
from workspan.grid import Layout
from workspan.measure.profile import BlockStats
from workspan.report.aggregate import TaskAggregate
from workspan.report.task import TaskReport
from workspan.run.clock import RunClock
from workspan.run.record import RunRecord, TaskBook
from workspan.schedule.state import TaskState

ENGINES = {"serial": Serial, "processes": Processes}


@pytest.fixture(autouse=True)
def logs(tmp_path):
    """Keep the workers' logs in the test's own folder."""
    workspan.logging.set_log_basedir(tmp_path / "logs")
    yield
    workspan.logging.set_log_basedir("./workspan_logs")


def work(block):
    """Take a little longer for later blocks."""
    return sum(range(2000 * (1 + block.block_id[1])))


def row(task_id="t", count=6, function=work, context=5, **kwargs):
    """A task over *count* blocks of ten on a line; with context, every second one waits for its neighbours."""
    total = Roi((0,), (count * 10 + 2 * context,))
    read, write = Roi((0,), (10 + 2 * context,)), Roi((context,), (10,))
    return workspan.Task(
        task_id, total, read, write, function, read_write_conflict=context > 0, max_workers=2, **kwargs
    )


def run(what, engine):
    return workspan.run_blockwise(what, engine=engine, progress=False, summary=False, return_report=True)


def longest_chain(times):
    """The span of :func:`row`: odd blocks go first, each even one waits for its neighbours."""
    ends = list(times)
    for even in range(0, len(times), 2):
        ends[even] += max(ends[n] for n in (even - 1, even + 1) if 0 <= n < len(times))
    return max(ends)


@pytest.mark.parametrize("engine", ENGINES)
class TestRuns:
    def test_the_span_is_that_of_the_measured_blocks(self, engine, tmp_path):
        """Work is the sum of the walls in the store, span their longest chain, and the line on disk says the same."""
        task = row(tracking_path=tmp_path / "t", resource_tracking=True)
        whole = run(task, engine)
        report = whole["t"]
        walls = [record.stats.wall_seconds for record in report.block_records()]
        assert list(task.layout.level_blocks(0)) == [1, 3, 5]
        assert (len(walls), report.work_basis) == (6, "wall")
        assert report.work == pytest.approx(sum(walls), rel=1e-6) == report.blocks.wall.total
        assert report.span == pytest.approx(longest_chain(walls), rel=1e-6)
        assert report.parallelism == report.work / report.span > 1
        assert (whole.work, whole.span) == (report.work, report.span)
        assert task.report() == report

    def test_without_tracking_it_is_that_of_the_round_trips(self, engine):
        """Without resource tracking work and span have the driver's times, and say so (D42)."""
        report = run(row(), engine)["t"]
        assert report.work_basis == ("round trip" if engine == "processes" else "call")
        assert 0 < report.work / 6 < report.span < report.work

    def test_independent_blocks_have_the_span_of_the_longest(self, engine, tmp_path):
        """Where no block waits for another the span is the longest block (B17)."""
        report = run(row(context=0, tracking_path=tmp_path / "t", resource_tracking=True), engine)["t"]
        assert report.span == report.blocks.wall.max < report.work

    def test_a_resumed_run_tells_of_what_it_ran(self, engine, tmp_path):
        """A resumed run has the work and span of the blocks that it executed; if it executed none, neither (B153)."""

        def fails(block):
            if block.block_id[1] in (1, 4):
                raise ValueError("not yet")
            work(block)

        kwargs = {"tracking_path": tmp_path / "t", "resource_tracking": True}
        assert not run(row(function=fails, max_retries=0, **kwargs), engine)
        resumed = run(row(**kwargs), engine)["t"]
        assert 0 < resumed.blocks.skipped < 6
        ran = {w.coord: w for w in resumed.timeline()}
        walls = [r.stats.wall_seconds if r.coord in ran else 0.0 for r in resumed.block_records()]
        assert len(ran) == resumed.blocks.count - resumed.blocks.skipped
        assert resumed.work == pytest.approx(sum(walls), rel=1e-6)
        assert resumed.span == pytest.approx(longest_chain(walls), rel=1e-6)
        idle = run(row(**kwargs), engine)
        assert (idle.work, idle.span, idle.parallelism) == (None, None, None)
        assert (idle["t"].work, idle["t"].span) == (None, None)

    def test_the_timeline_is_rebuilt_from_the_store(self, engine, tmp_path, monkeypatch):
        """The windows in the store are those that the driver saw, to a microsecond, of successful attempts (D45)."""
        live = []
        original = RunRecord.block_done

        def block_done(self, task, index, worker, sent_at, returned_at, stats, steps):
            at = self._clock.at
            cell = self.books[task].layout.cell(index)
            live.append((worker if self._has_workers else None, cell, at(sent_at), at(returned_at)))
            original(self, task, index, worker, sent_at, returned_at, stats, steps)

        def fails_once(block):
            if block.block_id[1] == 3 and not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                raise ValueError("once")
            work(block)

        monkeypatch.setattr(RunRecord, "block_done", block_done)
        report = run(row(function=fails_once, tracking_path=tmp_path / "t", resource_tracking=True), engine)["t"]
        assert (report.blocks.failures, len(live)) == (1, 6)
        rebuilt = report.timeline()
        begins = [window[2] for window in rebuilt]
        assert begins == sorted(begins)
        # By block: two of them may have begun in the same instant.
        live.sort(key=lambda window: window[1])
        rebuilt = sorted(rebuilt, key=lambda window: window[1])
        assert [window[:2] for window in rebuilt] == [window[:2] for window in live]
        for there, here in zip(rebuilt, live, strict=True):
            assert there[2:] == pytest.approx(here[2:], rel=0, abs=1e-6)
        assert {window.worker_id for window in rebuilt} <= {r.id for r in report.workers.records} | {None}

    def test_gpu_figures_reach_every_reader(self, engine, tmp_path):
        """What a worker knows of its GPU is in store, tables, report and line; nothing is made up (D12)."""

        def measured(block):
            number = block.block_id[1]
            gpu = {1: (40.0, 1 << 30), 2: (60.0, 3 << 30), 3: (float("nan"), 2 << 30)}.get(number, (float("nan"), 0))
            block.stats = workspan.BlockStats(0.5, 0.25, 1, 2, 3, *gpu)

        task = row(function=measured, tracking_path=tmp_path / "t", resource_tracking=True)
        report = run(task, engine)["t"]
        assert (report.blocks.gpu_util.n, report.blocks.gpu_util.mean) == (2, 50.0)
        assert (report.blocks.gpu_mem.n, report.blocks.gpu_mem.total) == (3, 6 << 30)
        assert task.report() == report
        (*_, last) = json.loads((tmp_path / "t" / "runs.jsonl").read_text())["blocks"].items()
        assert last == ("gpu_mem", report.blocks.gpu_mem.to_json())
        frame = report.to_frame()
        assert frame["gpu_util_pct"].to_pylist() == [None, 40.0, 60.0, None, None, None]
        assert frame["gpu_mem_bytes"].to_pylist() == [None, 1 << 30, 3 << 30, 2 << 30, None, None]
        records = report.block_records()
        assert records[1].stats == workspan.BlockStats(0.5, 0.25, 1, 2, 3, 40.0, 1 << 30)
        assert records[3].stats == workspan.BlockStats(0.5, 0.25, 1, 2, 3, float("nan"), 2 << 30)

    def test_the_span_of_a_pipeline_leads_through_its_tasks(self, engine, tmp_path):
        """The run's span is the longest chain over both tasks, and each task's line on disk knows it (B28, B155)."""
        first = row("a", context=0, tracking_path=tmp_path / "a", resource_tracking=True)
        second = row("b", context=0, tracking_path=tmp_path / "b", resource_tracking=True)
        report = run(first + second, engine)
        one, two = ([r.stats.wall_seconds for r in report[name].block_records()] for name in "ab")
        assert report.span == pytest.approx(max(map(sum, zip(one, two, strict=True))), rel=1e-6)
        assert report.work == pytest.approx(sum(one) + sum(two), rel=1e-6)
        assert first.report().place.span_seconds == report.span

    def test_the_order_of_the_tasks_is_recorded(self, engine, tmp_path):
        """Each task's line says where it stood in the run, whichever worker came up first (B155)."""
        pipeline = row("z", context=0, tracking_path=tmp_path / "z") + row("b", context=0)
        report = run(pipeline, engine)
        places = {task_id: (task.place.position, task.place.tasks) for task_id, task in report.tasks.items()}
        assert places == {task_id: (n, 2) for n, task_id in enumerate(report)}
        (line,) = (tmp_path / "z" / "runs.jsonl").read_text().splitlines()
        assert TaskReport.from_json(json.loads(line)).place == report["z"].place


LINE = Layout((0,), (40,), (0,), (20,), (5,), (10,), "valid", True)
"""Three blocks: block 1 goes first, 0 and 2 wait for it."""
FREE = Layout((0,), (30,), (0,), (10,), (0,), (10,), "valid", False)


@pytest.fixture
def record():
    """Return a function that makes a record of a run over layouts."""

    def make(*layouts, tracked=(), **kwargs):
        books = [
            TaskBook(
                task_id=f"t{number}",
                layout=layout,
                state=TaskState(f"t{number}", total_block_count=layout.num_blocks),
                tracked=number in tracked,
                store=None,
                aggregate=TaskAggregate(layout.num_blocks, resource_tracking=number in tracked),
            )
            for number, layout in enumerate(layouts)
        ]
        return RunRecord("r1", books, RunClock(), has_workers=True, log_dir=None, **kwargs)

    return make


class TestRecord:
    def test_the_path_leads_from_task_to_task(self, record):
        """A run's span follows block from block: here 1 + 2 s in t0, then 16 s of t1, not the 1 + 4 + 8 s (B28)."""
        run = record(LINE, FREE, edges=[(0, 1)])
        for index, seconds in ((1, 1.0), (0, 4.0), (2, 2.0)):
            run.block_done(0, index, 0, 10.0, 10.0 + seconds, None, None)
        for index, seconds in ((0, 0.5), (1, 8.0), (2, 16.0)):
            run.block_done(1, index, 1, 50.0, 50.0 + seconds, None, None)
        report = run.report(outcome=None, ended_at=100.0)
        # t0 writes from 5 on: block 0 of t1 reads block 0 of t0, block 1 the first two, block 2 the last two.
        assert (report["t0"].span, report["t1"].span) == (5.0, 16.0)
        assert (report.span, report.work, report.parallelism) == (19.0, 31.5, 31.5 / 19.0)
        assert [task.place.span_seconds for task in report.tasks.values()] == [19.0, 19.0]
        assert run.report(outcome=None, ended_at=100.0) == report

    def test_only_the_attempt_that_succeeded_counts(self, record):
        """A failed attempt, a lost one and a block that was given up add neither work nor span."""
        run = record(LINE)
        run.attempt_failed(0, 1, 0, 10.0, 90.0, "error", "boom", False)
        run.attempt_failed(0, 1, 0, 10.0, None, "lost", "gone", False)
        run.block_done(0, 1, 0, 100.0, 101.0, None, None)
        run.block_done(0, 0, 0, 110.0, 112.0, None, None)
        run.attempt_failed(0, 2, 0, 110.0, 190.0, "error", "boom", True)
        report = run.report(outcome=None, ended_at=200.0)["t0"]
        assert (report.work, report.span) == (3.0, 3.0)

    def test_the_workers_own_time_is_taken_where_there_is_one(self, record):
        """With resource tracking span, like work, is of what the workers measured, not of the round trips (D42)."""
        run = record(LINE, tracked=(0,))
        run.block_done(0, 1, 0, 10.0, 15.0, BlockStats(1.5), None)
        run.block_done(0, 2, 0, 15.0, 20.0, BlockStats(0.5), None)
        report = run.report(outcome=None, ended_at=20.0)["t0"]
        assert (report.work, report.span, report.work_basis) == (2.0, 2.0, "wall")

    def test_rounding_makes_no_chain_longer_than_its_work(self, record):
        """Times are kept in single precision, yet a chain of all blocks has a parallelism of exactly 1."""
        run = record(LINE)
        for index, seconds in ((1, 0.1), (0, 0.7)):
            run.block_done(0, index, 0, 0.0, seconds, None, None)
        report = run.report(outcome=None, ended_at=1.0)["t0"]
        assert report.parallelism == pytest.approx(1.0, rel=1e-6)
        assert report.parallelism >= 1.0

    def test_without_edges_the_span_of_several_tasks_is_not_known(self, record):
        """Who does not say which tasks wait for which gets no figure for the run, rather than a wrong one."""
        run = record(FREE, FREE)
        run.block_done(0, 0, 0, 0.0, 1.0, None, None)
        report = run.report(outcome=None, ended_at=1.0)
        assert (report["t0"].span, report["t1"].span, report.span) == (1.0, None, None)

    def test_tasks_that_nobody_waits_in_keep_no_times(self, record):
        """Room for times is made only where blocks wait for each other: elsewhere the longest block is the span."""
        assert [book.times is None for book in record(FREE, FREE, LINE, edges=[]).books] == [True, True, False]
        assert [book.times is None for book in record(FREE, FREE, FREE, edges=[(0, 2)]).books] == [False, True, False]

    def test_what_is_known_of_a_workers_end_is_kept(self, record):
        """The text of an end that was not clean is in the worker's record, shortened; a clean end has none."""
        run = record(FREE)
        for worker, how, text in ((0, "error", "exit code 3" + "x" * 5000), (1, "clean", "exit code 0")):
            run.worker_started(worker, 0, 0.0)
            run.worker_ended(worker, 1.0, how, text)
        dirty, clean = run.report(outcome=None, ended_at=1.0)["t0"].workers.records
        assert (dirty.text[:11], len(dirty.text), clean.text) == ("exit code 3", 2000, None)

    @pytest.mark.parametrize("where", ["at the start", "at the end"])
    def test_without_memory_there_is_no_span_but_a_report(self, record, monkeypatch, caplog, where):
        """A figure that there is no memory for is None, and costs neither the run nor the rest of its report."""

        def refuses(*args):
            raise MemoryError

        if where == "at the start":
            monkeypatch.setattr("workspan.run.record._times", refuses)
        else:
            monkeypatch.setattr("workspan.report.span.critical_paths", refuses)
        run = record(LINE)
        run.block_done(0, 1, 0, 0.0, 1.0, None, None)
        report = run.report(outcome=None, ended_at=1.0)
        assert (report.work, report.span, report["t0"].span, report["t0"].parallelism) == (1.0, None, None, None)
        assert "the span of run r1 is not known" in caplog.text

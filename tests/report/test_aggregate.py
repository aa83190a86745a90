from __future__ import annotations

import tracemalloc

import pytest

from workspan.measure.profile import BlockStats
from workspan.measure.stats import Stat, linear_trend
from workspan.report.aggregate import FAILURES_KEPT, OTHER_STEPS, STEPS_KEPT, TaskAggregate
from workspan.report.parts import BlockFailure
from workspan.report.timeline import TaskTimeline

MEASURED = ("wall", "cpu", "peak_rss", "io_read", "io_write", "overhead", "trend")


def failure(block: int = 0) -> BlockFailure:
    return BlockFailure((block,), block, (block,), (1,), (block,), (1,), attempts=3, cause="error", error="boom")


def tracked(total: int = 10, **kwargs) -> TaskAggregate:
    return TaskAggregate(total, resource_tracking=True, **kwargs)


class TestCounts:
    def test_count_is_executed_plus_skipped(self):
        """Completed blocks are those executed and those skipped; samples are count - skipped (B125)."""
        task = TaskAggregate(10, resource_tracking=False)
        task.skipped(3, "done")
        for _ in range(4):
            task.done(1.0)
        blocks = task.blocks(orphaned=0)
        assert (blocks.count, blocks.skipped, blocks.total) == (7, 3, 10)
        assert blocks.round_trip.n == blocks.count - blocks.skipped

    def test_failures_are_attempts_and_failed_are_blocks(self):
        """A retried block adds to failures alone, a block that is given up to both (B150)."""
        task = TaskAggregate(10, resource_tracking=False)
        task.failed()
        task.failed()
        task.failed(failure())
        task.failed()
        task.done(1.0)
        blocks = task.blocks(orphaned=2)
        assert (blocks.count, blocks.failed, blocks.failures, blocks.orphaned) == (1, 1, 4, 2)

    def test_skips_are_told_apart_by_reason(self):
        """Blocks done before and masked blocks add up to skipped, but are not the same thing."""
        task = TaskAggregate(10, resource_tracking=False)
        task.skipped(1, "done")
        task.skipped(2, "mask")
        task.skipped(4, "done")
        assert task.skip_reasons == {"done": 5, "mask": 2}
        assert task.blocks(orphaned=0).skipped == 7


class TestTimes:
    def test_metrics_are_those_of_the_executed_blocks(self):
        """Each figure has a sample a block, in seconds and bytes (B150)."""
        task = tracked()
        task.done(1.5, BlockStats(1.0, 0.5, 1000, 10, 20))
        task.done(3.25, BlockStats(3.0, 1.5, 3000, 30, 60))
        blocks = task.blocks(orphaned=0)
        assert (blocks.round_trip.n, blocks.round_trip.total) == (2, 4.75)
        assert (blocks.wall.n, blocks.wall.mean, blocks.wall.min, blocks.wall.max) == (2, 2.0, 1.0, 3.0)
        assert (blocks.cpu.mean, blocks.peak_rss.mean) == (1.0, 2000.0)
        assert (blocks.io_read.total, blocks.io_write.total) == (40.0, 80.0)
        assert (blocks.overhead.n, blocks.overhead.mean) == (2, 0.375)

    def test_overhead_is_never_negative(self):
        """A worker whose clock ran a little fast gives an overhead of 0 (B137)."""
        task = tracked()
        task.done(1.0, BlockStats(1.001))
        assert task.blocks(orphaned=0).overhead == Stat(1, 0.0, 0.0, 0.0, 0.0, 0.0)

    def test_trend_is_the_slope_in_completion_order(self):
        """The trend is in ms per block and agrees with the least-squares slope of the list (B146)."""
        walls = [0.010, 0.012, 0.011, 0.015, 0.013]
        task = tracked()
        for wall in walls:
            task.done(wall, BlockStats(wall))
        _, slope = linear_trend([wall * 1e3 for wall in walls])
        assert task.blocks(orphaned=0).trend == pytest.approx(slope, rel=1e-9)
        assert slope > 0

    def test_trend_of_one_block_is_zero(self):
        """Fewer than two blocks have no slope: 0.0 (B146)."""
        task = tracked()
        task.done(1.0, BlockStats(1.0))
        assert task.blocks(orphaned=0).trend == 0.0

    def test_without_workers_there_is_no_round_trip(self):
        """Serial: no round trip and no overhead, but what the call measured (B143)."""
        task = tracked(has_workers=False)
        task.done(1.0, BlockStats(0.75))
        blocks = task.blocks(orphaned=0)
        assert (blocks.count, blocks.round_trip, blocks.overhead) == (1, Stat(), None)
        assert blocks.wall.total == 0.75

    def test_time_that_ran_backwards_is_zero(self):
        """A negative time from a clock that was set back counts as 0 (KF-40)."""
        task = TaskAggregate(1, resource_tracking=False)
        task.done(-5.0)
        assert task.blocks(orphaned=0).round_trip.min == 0.0


class TestNotMeasured:
    def test_without_tracking_there_is_nothing_measured(self):
        """Without resource tracking the worker's figures are None, not 0 (B150, D22)."""
        task = TaskAggregate(10, resource_tracking=False)
        task.done(1.0)
        blocks = task.blocks(orphaned=0)
        assert {name: getattr(blocks, name) for name in MEASURED} == dict.fromkeys(MEASURED)

    def test_a_measurement_that_nobody_asked_for_is_left_out(self):
        """A client that measures although tracking is off does not turn the section on (B126)."""
        task = TaskAggregate(10, resource_tracking=False)
        task.done(1.0, BlockStats(0.5))
        assert task.blocks(orphaned=0).wall is None
        assert task.work() == (1.0, "round trip")

    def test_a_counter_that_the_platform_lacks_stays_none(self):
        """A counter that comes back as None for every block is None in the report (D22)."""
        task = tracked()
        for _ in range(3):
            task.done(1.0, BlockStats(1.0, 0.5, 1000, None, None))
        blocks = task.blocks(orphaned=0)
        assert (blocks.io_read, blocks.io_write) == (None, None)
        assert (blocks.wall.n, blocks.cpu.n, blocks.peak_rss.n) == (3, 3, 3)

    def test_gpu_figures_are_those_of_the_blocks_that_have_them(self):
        """Each GPU figure is a summary of the blocks in which it was measured; None if none was (D12)."""
        task = tracked()
        task.done(1.0, BlockStats(1.0))
        assert (task.blocks(orphaned=0).gpu_util, task.blocks(orphaned=0).gpu_mem) == (None, None)
        task.done(1.0, BlockStats(1.0, gpu_mem_bytes=3 << 30))
        assert task.blocks(orphaned=0).gpu_util is None
        task.done(1.0, BlockStats(1.0, gpu_util_pct=0.0, gpu_mem_bytes=1 << 30))
        task.done(1.0, BlockStats(1.0, gpu_util_pct=50.0))
        blocks = task.blocks(orphaned=0)
        assert (blocks.gpu_util.n, blocks.gpu_util.mean) == (2, 25.0)
        assert (blocks.gpu_mem.n, blocks.gpu_mem.mean) == (2, 2 << 30)
        assert blocks.wall.n == 4

    def test_gpu_figures_nobody_asked_for_are_left_out(self):
        """Without resource tracking there is no GPU figure, whatever a worker sends (B150)."""
        task = TaskAggregate(1, resource_tracking=False)
        task.done(1.0, BlockStats(1.0, gpu_util_pct=50.0, gpu_mem_bytes=1))
        assert (task.blocks(orphaned=0).gpu_util, task.blocks(orphaned=0).gpu_mem) == (None, None)

    def test_means_skip_what_is_missing(self):
        """Blocks without a counter neither count as zero nor as samples (KF-37)."""
        task = tracked()
        task.done(1.0, BlockStats(1.0, None))
        task.done(1.0, BlockStats(1.0, 0.5))
        assert task.blocks(orphaned=0).cpu == Stat(1, 0.5, 0.0, 0.5, 0.5, 0.5)

    def test_a_resumed_run_that_skipped_everything(self):
        """It counts the blocks and has no timing samples; the work is unknown, not 0 (B153, KF-38)."""
        task = tracked(10)
        task.skipped(10, "done")
        blocks = task.blocks(orphaned=0)
        assert (blocks.count, blocks.skipped, blocks.round_trip) == (10, 10, Stat())
        assert [getattr(blocks, name) for name in MEASURED[:-1]] == [Stat()] * 6
        assert task.work() == (None, None)

    def test_a_clock_that_stands_still_divides_nothing(self):
        """Blocks of 0 s have steps of unknown share and raise nothing (KF-37)."""
        task = tracked()
        task.done(0.0, BlockStats(0.0), {"read": (0.0, 1)})
        assert task.steps()["read"].share is None
        assert task.work() == (0.0, "wall")


class TestWork:
    def test_work_is_the_sum_of_wall(self):
        """With resource tracking the work is what the workers measured."""
        task = tracked()
        task.done(2.0, BlockStats(1.5))
        task.done(2.0, BlockStats(1.0))
        assert task.work() == (2.5, "wall")

    def test_work_without_tracking_is_the_sum_of_round_trips(self):
        """Without, it is the sum of the round trips, and says so (D42)."""
        task = TaskAggregate(2, resource_tracking=False)
        task.done(2.0)
        task.done(3.0)
        assert task.work() == (5.0, "round trip")

    def test_work_without_workers_is_the_sum_of_calls(self):
        """In serial mode without tracking it is the time of the calls, and says so (D42, B143)."""
        task = TaskAggregate(2, resource_tracking=False, has_workers=False)
        task.done(2.0)
        assert task.work() == (2.0, "call")


class TestSteps:
    def test_a_step_has_a_sample_a_block_that_ran_it(self):
        """Self seconds are a Stat over blocks, calls are summed, the share is of the work."""
        task = tracked()
        task.done(5.0, BlockStats(4.0), {"read": (1.0, 2), "filter": (3.0, 1)})
        task.done(5.0, BlockStats(4.0), {"read": (2.0, 3)})
        steps = task.steps()
        assert list(steps) == ["read", "filter"]
        assert (steps["read"].self_seconds.n, steps["read"].self_seconds.mean) == (2, 1.5)
        assert (steps["read"].calls, steps["read"].share) == (5, 0.375)
        assert (steps["filter"].self_seconds.n, steps["filter"].calls, steps["filter"].share) == (1, 1, 0.375)

    def test_steps_are_there_without_tracking(self):
        """Without resource tracking the share is of the round trips (D42)."""
        task = TaskAggregate(1, resource_tracking=False)
        task.done(4.0, None, {"read": (1.0, 1)})
        assert task.steps()["read"].share == 0.25

    def test_names_without_end_are_gathered(self):
        """A name made from the block's number neither grows the report without bound nor loses time (R55)."""
        task = tracked()
        for n in range(STEPS_KEPT + 50):
            task.done(1.0, BlockStats(1.0), {f"block {n}": (0.25, 1), f"again {n}": (0.5, 2)})
        steps = task.steps()
        assert len(steps) == STEPS_KEPT + 1
        assert sum(step.self_seconds.total for step in steps.values()) == 0.75 * (STEPS_KEPT + 50)
        assert sum(step.calls for step in steps.values()) == 3 * (STEPS_KEPT + 50)
        assert steps[OTHER_STEPS].self_seconds.n == 150  # one sample a block, though two names went in


class TestMemory:
    def test_figures_come_from_all_blocks_and_memory_stays_flat(self):
        """Totals of 20,000 blocks are complete, and the second half takes no memory (KF-41, R55, B145)."""
        task = tracked(20_000)

        def run(begin: int, end: int) -> None:
            for n in range(begin, end):
                task.done(0.01 + n * 1e-6, BlockStats(0.01, 0.01, 1000 + n, n, n), {"read": (0.001, 1)})
                task.failed(failure(n))

        run(0, 10_000)
        tracemalloc.start()
        try:
            run(10_000, 20_000)
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert grown < 8_000
        blocks = task.blocks(orphaned=0)
        assert (blocks.count, blocks.failed, blocks.wall.n) == (20_000, 20_000, 20_000)
        assert blocks.wall.total == pytest.approx(200.0)
        assert len(task.failed_blocks) == FAILURES_KEPT
        assert task.failed_blocks[0] == failure(0)


class TestReport:
    def test_the_report_holds_the_fold_and_what_the_run_adds(self):
        """Blocks, steps, work and failed blocks come from the fold, the rest from the run (B149)."""
        task = tracked(2)
        task.done(2.0, BlockStats(1.0), {"read": (0.5, 1)})
        task.failed(failure(1))
        report = task.report(
            run_id="r1",
            task_id="seg",
            started_at=1000.0,
            ended_at=1002.5,
            wall_seconds=2.5,
            outcome="incomplete",
            tracking_path="run/seg",
            orphaned=4,
            workers=TaskTimeline().summary(),
        )
        assert (report.run_id, report.task_id, report.outcome) == ("r1", "seg", "incomplete")
        assert (report.started_at, report.ended_at, report.wall_seconds) == (1000.0, 1002.5, 2.5)
        assert (report.resource_tracking, report.tracking_path) == (True, "run/seg")
        assert report.blocks == task.blocks(orphaned=4)
        assert (report.steps, report.work_seconds, report.work_basis) == (task.steps(), 1.0, "wall")
        assert report.failed_blocks == (failure(1),)

"""What a page about a run knows."""

from __future__ import annotations

import os
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from workspan.grid import Layout
from workspan.measure.profile import BlockStats
from workspan.report.page import Extra, build_page, speedup_bounds
from workspan.report.page_blocks import read_blocks
from workspan.report.page_past import log_tails, past_runs
from workspan.report.parts import BlockFailure, TaskPlace
from workspan.store.reader import BlockTable, StoreReader
from workspan.store.runs import append_run
from workspan.store.tracking import TrackingStore

LAYOUT = Layout((0, 0), (60, 40), (0, 0), (30, 30), (10, 10), (10, 10), fit="shrink")


@pytest.fixture
def store(tmp_path):
    """A grid of 6 x 4 with halo: block 5 of this run, block 0 of an earlier one, block 3 failed, block 1 was marked."""
    with TrackingStore.open(tmp_path / "seg", LAYOUT, resource_tracking=True, task_id="seg") as store:
        store.record_done(5, BlockStats(0.25, 0.125, 1000, 10, 0), 1, 1000.0, 1000.5, {"read": (0.125, 1)})
        store.record_done(0, BlockStats(0.5, None, None, 0, 20), None, 900.0, 901.0, {"write": (0.25, 1)})
        store.record_failure(3)
        store.mark_done(1)
    return StoreReader(tmp_path / "seg")


def full(count: int, workers: int = 7):
    """A source of *count* blocks on a line, in two batches, that all ran one after the other on some workers."""

    class Source:
        cell_counts, attributes = (count,), MappingProxyType({})

        def tables(self):
            for numbers in np.array_split(np.arange(count), 2):
                sent = 1000.0 + numbers // workers
                yield BlockTable(
                    cells=numbers.reshape(-1, 1),
                    done=np.ones(len(numbers), bool),
                    failures=np.zeros(len(numbers), np.uint32),
                    executed=np.ones(len(numbers), bool),
                    values={
                        "wall_seconds": (0.5 + 0.25 * (numbers % 2)).astype(np.float32),
                        "worker_id": (numbers % workers).astype(np.uint32),
                        "sent_at": sent,
                        "returned_at": sent + 1.0,
                    },
                    steps={},
                    unmeasured=frozenset(),
                )

    return Source()


class TestBlocks:
    def test_every_figure_is_the_record_s(self, store, task_report):
        """Rows hold what the block's record says, and NaN, never 0, for what was not measured (B152, D22)."""
        blocks = read_blocks(store, 1000.0, 1001.0, room_bytes=10**6)
        rows = blocks.rows
        assert rows.number.astype(int).tolist() == [
            int(np.ravel_multi_index(LAYOUT.cell(i), (6, 4))) for i in (0, 1, 3, 5)
        ]
        np.testing.assert_array_equal(rows.values["wall_seconds"], [0.5, np.nan, np.nan, 0.25])
        np.testing.assert_array_equal(rows.values["cpu_seconds"], [np.nan, np.nan, np.nan, 0.125])
        np.testing.assert_array_equal(rows.values["io_read_bytes"], [0, np.nan, np.nan, 10])
        np.testing.assert_array_equal(rows.values["steps/read"], [np.nan, np.nan, np.nan, 0.125])
        assert rows.done.tolist() == [True, True, False, True]
        assert rows.failures.tolist() == [0, 0, 1, 0]
        assert rows.worker.tolist() == [-1, -1, -1, 1]

    def test_the_run_s_own_blocks_are_told_apart(self, store):
        """Blocks that an earlier run did are known as such, and so is what the store has of them (B153)."""
        blocks = read_blocks(store, 1000.0, 1001.0, room_bytes=10**6)
        assert blocks.rows.here.tolist() == [False, False, False, True]
        assert (blocks.n, blocks.done, blocks.here) == (4, 3, 1)
        assert blocks.slowest.values["wall_seconds"].tolist() == [0.5, 0.25]

    def test_a_cell_knows_where_its_block_writes(self, store):
        """Origin and step lead from a cell to its write ROI, which is clipped as the layout clips it."""
        blocks = read_blocks(store, 1000.0, 1001.0, room_bytes=10**6)
        for index in range(LAYOUT.num_blocks):
            begin, end = LAYOUT.write_box(index)
            cell = LAYOUT.cell(index)
            found = [o + c * s for o, c, s in zip(blocks.origin, cell, blocks.step, strict=True)]
            assert tuple(found) == begin
            assert tuple(min(f + s, m) for f, s, m in zip(found, blocks.step, blocks.limit, strict=True)) == end

    def test_bins_say_what_the_rows_say(self):
        """Blocks that are too many are binned: counts, sums and distribution stay those of all (R54, KF-41)."""
        few = read_blocks(full(10_001), 1000.0, 5000.0, room_bytes=10**7)
        many = read_blocks(full(10_001), 1000.0, 5000.0, room_bytes=10_000)
        assert few.rows is not None
        assert many.rows is None
        assert (many.n, many.done, many.here) == (few.n, few.done, few.here) == (10_001,) * 3
        for one, other in zip(few.measures, many.measures, strict=True):
            assert (one.name, one.n, one.min, one.max, one.total) == (
                other.name,
                other.n,
                other.min,
                other.max,
                other.total,
            )
            assert one.counts.tolist() == other.counts.tolist()
        assert many.bins_known.sum() == 10_001
        wall = many.bins["wall_seconds"]
        assert wall.total.sum() == pytest.approx(few.measures[0].total)
        assert wall.greatest.max() == 0.75
        assert many.slowest.number[0] % 2 == 1
        assert many.trend.counts.sum() == 10_001

    def test_many_workers_share_lanes(self):
        """Every worker is in one lane, and how busy a lane was is a part of all its workers' time (B147)."""
        blocks = read_blocks(full(9_000, workers=300), 1000.0, 1030.0, room_bytes=10_000)
        assert len(blocks.lanes) <= 64
        assert [n for first, last in blocks.lanes for n in range(first, last + 1)] == list(range(300))
        assert blocks.busy.min() == pytest.approx(1.0)

    def test_a_store_without_measurements_has_no_figures(self, tmp_path, task_report):
        """Without resource tracking the blocks' states are known and the reason why their times are not is given."""
        with TrackingStore.open(tmp_path / "bare", LAYOUT) as store:
            store.record_done(5, None, 1, 1000.0, 1000.5)
        page = build_page(task_report(tracking_path=str(tmp_path / "bare")))
        blocks = page.tasks[0].blocks
        assert (blocks.n, blocks.done, blocks.main, blocks.measures) == (1, 1, None, [])
        assert "resource_tracking=True" in page.tasks[0].absent

    def test_what_cannot_be_is_not_measured(self):
        """Infinite figures and numbers of workers beyond all bounds in a store do not spoil the page (D22)."""
        from workspan.report.page_blocks import rows_of

        (first, _) = full(4).tables()
        first.values["wall_seconds"][:] = (np.inf, -np.inf)
        first.values["worker_id"][:] = (2**32 - 2, 5)
        rows = rows_of(first, (4,), 1000.0, 1010.0)
        assert np.isnan(rows.values["wall_seconds"]).all()
        assert rows.worker.tolist() == [-1, 5]


class TestPage:
    def test_what_is_gone_is_said(self, tmp_path, task_report):
        """A task without a store, or whose store is gone, is on the page with the reason and no blocks."""
        page = build_page(task_report(tracking_path=str(tmp_path / "gone")))
        assert page.tasks[0].blocks is None
        assert "gone" in page.tasks[0].absent
        assert "tracking_path" in build_page(task_report()).tasks[0].absent

    def test_a_part_of_a_run_is_not_taken_for_it(self, task_report):
        """Where tasks of the run are missing the page knows that it is not whole."""
        task = replace(task_report(), place=TaskPlace(0, 2, 9.0))
        assert not build_page(task).is_whole
        assert build_page(replace(task, place=TaskPlace(0, 1, 9.0))).is_whole

    def test_many_blocks_give_a_page_of_bounded_size(self, task_report):
        """Ten times the blocks make no bigger page, in memory that does not hold an object a block (R54)."""
        from workspan.views.html.page import render_page

        sizes = []
        for count in (20_000, 200_000):
            page = build_page(task_report(), extras={"seg": Extra(source=full(count))})
            sizes.append(len(render_page(page)))
        assert sizes[1] < 1.2 * sizes[0] < 3e6

    def test_the_bounds_hold_for_one_and_for_many_workers(self):
        """One worker takes the work, infinitely many the span; the band never crosses (Brent, Graham)."""
        bounds = speedup_bounds(100.0, 10.0, [1, 3, 10, 10**9])
        assert (bounds[0].least_seconds, bounds[0].most_seconds) == (100.0, 100.0)
        assert bounds[-1].least_seconds == 10.0
        assert bounds[-1].most_seconds == pytest.approx(10.0)
        assert all(b.least_seconds <= b.most_seconds for b in bounds)
        assert bounds[1].least_seconds == pytest.approx(100 / 3)
        assert bounds[1].most_seconds == pytest.approx(40.0)


class TestPast:
    def test_damaged_lines_are_counted(self, tmp_path, task_report):
        """The runs that can be read are there, oldest first; lines that cannot are counted (KF-44)."""
        path = tmp_path / "runs.jsonl"
        for number in range(3):
            append_run(path, replace(task_report(), run_id=f"r{number}").to_json())
        with open(path, "a") as file:
            file.write('{"schema": 1}\nnot json\n')
        past = past_runs(path)
        assert [run.run_id for run in past.runs] == ["r0", "r1", "r2"]
        assert (past.older, past.damaged) == (0, 2)
        assert past_runs(tmp_path / "none").runs == ()

    def test_old_runs_are_counted_and_not_kept(self, tmp_path, task_report, monkeypatch):
        """A long history does not grow the page: the newest runs are there, the others are a number."""
        monkeypatch.setattr("workspan.report.page_past.MOST_RUNS", 2)
        for number in range(5):
            append_run(tmp_path / "runs.jsonl", replace(task_report(), run_id=f"r{number}").to_json())
        past = past_runs(tmp_path / "runs.jsonl")
        assert ([run.run_id for run in past.runs], past.older) == (["r3", "r4"], 3)


class TestLogs:
    @pytest.fixture
    def write(self, tmp_path):
        """Return a function that writes a log of worker 0."""

        def put(data: bytes, name: str = "worker_0.err"):
            (tmp_path / "t").mkdir(exist_ok=True)
            (tmp_path / "t" / name).write_bytes(data)
            return log_tails([tmp_path], "t", [0], 1000.0)

        return put

    def test_the_end_of_a_long_log_is_whole_lines(self, write):
        """Of a long log the end is read, from the begin of a line, and said to be a part (R56)."""
        (tail,) = write(b"".join(b"line %04d\n" % n for n in range(1000)))
        assert tail.cut
        assert tail.text.startswith("line ")
        assert tail.text.endswith("line 0999")
        assert len(tail.text) <= 3000

    def test_what_an_earlier_run_wrote_is_left_out(self, write):
        """Only what stands after the last separator line is this run's (B106)."""
        (tail,) = write(b"old\n---- 2026-01-01 00:00:00 pid 7 ----\nnew\n")
        assert (tail.text, tail.cut) == ("new", False)

    def test_a_log_from_before_the_run_is_not_its_own(self, write, tmp_path):
        """A file that was last written before the run began is not shown, and neither is an empty one."""
        assert write(b"") == []
        assert len(write(b"x")) == 1
        os.utime(tmp_path / "t" / "worker_0.err", (900, 900))
        assert log_tails([tmp_path], "t", [0], 1000.0) == []

    def test_a_pipe_in_place_of_a_log_blocks_nobody(self, tmp_path):
        """Whatever stands where a log should be, reading it ends."""
        (tmp_path / "t").mkdir()
        os.mkfifo(tmp_path / "t" / "worker_0.err")
        assert log_tails([tmp_path], "t", [0], 0.0) == []

    def test_logs_of_failed_blocks_are_found(self, tmp_path, task_report):
        """The log of a failed block's worker is where the failure says, and on the page."""
        (tmp_path / "logs" / "seg").mkdir(parents=True)
        log = tmp_path / "logs" / "seg" / "worker_4.err"
        log.write_text("last words\n")
        failure = BlockFailure((1, 1), 5, (0,), (1,), (0,), (1,), 3, "error", "ValueError: no", 4, str(log))
        page = build_page(replace(task_report(), failed_blocks=(failure,)))
        assert [(tail.worker, tail.text) for tail in page.tasks[0].logs] == [(4, "last words")]

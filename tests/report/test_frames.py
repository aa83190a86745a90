"""Reports as tables."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from workspan.errors import ConfigurationError, MissingExtraError, NoStoreError, WorkspanError
from workspan.grid import Layout, pyramid_number
from workspan.measure.profile import BlockStats
from workspan.measure.stats import Stat
from workspan.report.frames import block_frame
from workspan.report.parts import WorkerRecord
from workspan.store.reader import BlockTable
from workspan.store.tracking import TrackingStore

FIRST = ["block_id", "cell_0", "cell_1", "done", "failures", "worker_id", "sent_at", "returned_at"]
COST = ["wall_seconds", "cpu_seconds", "peak_rss_bytes", "io_read_bytes", "io_write_bytes"]
GPU = ["gpu_util_pct", "gpu_mem_bytes"]
LAYOUT = Layout((0, 0), (60, 40), (0, 0), (30, 30), (10, 10), (10, 10))


@pytest.fixture
def report(tmp_path, task_report):
    """Of a 6 x 4 grid: block 5 ran on worker 1, block 0 without one, block 3 failed twice, block 1 was marked."""
    with TrackingStore.open(tmp_path / "seg", LAYOUT, resource_tracking=True, task_id="seg") as store:
        stats = BlockStats(0.25, 0.125, 1000, 10, 0)
        store.record_done(5, stats, 1, 1000.0, 1000.5, {"read": (0.125, 1)})
        store.record_done(
            0, BlockStats(0.5, None, None, 0, 20, 75.0, 2**33), None, 1001.0, 1002.0, {"write": (0.25, 1)}
        )
        store.record_failure(3)
        store.record_failure(3)
        store.mark_done(1)
    return task_report(tracking_path=str(tmp_path / "seg"))


class TestBlocks:
    def test_columns_are_the_same_in_every_store(self, report, tmp_path):
        """Ids, position, state, stamps and cost, in this order, then a column a step; without tracking all null."""
        assert report.to_frame().column_names == [*FIRST, *COST, *GPU, "steps/read", "steps/write"]
        with TrackingStore.open(tmp_path / "bare", LAYOUT) as store:
            store.record_done(5, None, 1, 1000.0, 1000.5)
        bare = replace(report, tracking_path=str(tmp_path / "bare")).to_frame()
        assert bare.schema.names == [*FIRST, *COST, *GPU]
        assert bare.schema.types == report.to_frame().schema.types[: len(bare.schema)]
        assert bare.num_rows == 1
        assert [bare[name][0].as_py() for name in (*FIRST[5:], *COST, *GPU)] == [None] * 10

    def test_a_row_is_a_block(self, report):
        """Every recorded block has a row, in grid order, with what its record says (B152)."""
        frame = report.to_frame()
        records = report.block_records()
        assert [record.coord for record in records] == [LAYOUT.cell(index) for index in (0, 1, 3, 5)]
        for row, record in zip(frame.to_pylist(), records, strict=True):
            assert (row["cell_0"], row["cell_1"]) == record.coord
            assert row["block_id"] == pyramid_number(record.coord)
            assert (row["done"], row["failures"]) == (record.done, record.failures)
            assert (row["worker_id"], row["sent_at"], row["returned_at"]) == (
                record.worker_id, record.sent_at, record.returned_at,
            )  # fmt: skip
            assert {name: row[f"steps/{name}"] for name in record.steps} == record.steps
        last = frame.to_pylist()[-1]
        assert [last[name] for name in COST] == [0.25, 0.125, 1000, 10, 0]
        assert (last["worker_id"], last["steps/read"], last["steps/write"]) == (1, 0.125, None)

    def test_what_was_not_measured_is_null(self, report):
        """Blocks not executed, counters that the platform lacks, no worker, no GPU: null, never 0 (D22, D12)."""
        first, marked, failed, last = report.to_frame().to_pylist()
        for row in (marked, failed):
            assert [row[name] for name in (*FIRST[5:], *COST, *GPU, "steps/read")] == [None] * 11
        assert [first[name] for name in COST] == [0.5, None, None, 0, 20]
        assert (first["worker_id"], first["gpu_util_pct"], first["gpu_mem_bytes"]) == (None, 75.0, 2**33)
        assert (last["gpu_util_pct"], last["gpu_mem_bytes"]) == (None, None)

    def test_pandas_keeps_whole_numbers_whole(self, report):
        """A column of bytes with a gap stays a column of integers; what is missing is NA."""
        pandas = pytest.importorskip("pandas")
        frame = report.to_frame("pandas")
        assert isinstance(frame, pandas.DataFrame)
        assert frame["peak_rss_bytes"].tolist() == [pandas.NA] * 3 + [1000]
        assert str(frame["peak_rss_bytes"].dtype) == "UInt64"
        assert frame["done"].tolist() == [True, True, False, True]

    @pytest.mark.parametrize("ask", [lambda r: r.to_frame("pandas"), lambda r: r.workers_frame("pandas")])
    def test_without_pandas(self, report, monkeypatch, ask):
        """Where pandas is missing the refusal says what needs it and how to get it."""
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(MissingExtraError, match=r"kind='pandas' needs pandas: pip install pandas"):
            ask(report)

    def test_another_kind_is_refused(self, report):
        """A kind that is not offered is quoted beside those that are."""
        with pytest.raises(ConfigurationError, match=r"kind='polars' is not known: use 'arrow' or 'pandas'"):
            report.to_frame("polars")

    def test_a_task_without_a_store(self, task_report):
        """Without a store there are no single blocks: a LookupError of ours (B152, D50)."""
        with pytest.raises(NoStoreError, match="'seg' ran without a tracking store"):
            task_report().to_frame()

    def test_an_empty_store(self, task_report, tmp_path):
        """A store in which nothing is recorded gives a table of no rows with the usual columns."""
        TrackingStore.open(tmp_path / "seg", LAYOUT, resource_tracking=True).close()
        frame = task_report(tracking_path=str(tmp_path / "seg")).to_frame()
        assert (frame.num_rows, frame.column_names) == (0, [*FIRST, *COST, *GPU])

    @pytest.mark.parametrize("furthest", [3, 2**20, 1_400_000, 2**21, 2**62], ids="{:.0e}".format)
    def test_ids_are_exact_however_large(self, furthest):
        """Ids that fit 64 bits are integers, larger ones text; none is rounded or wraps around (B9)."""
        cells = np.array([[0, 0, 1], [furthest, furthest // 2, furthest - 1]], np.int64)
        cells = cells[:, :2] if furthest == 2**62 else cells
        none = np.zeros(2, np.bool_)
        table = BlockTable(cells, none, np.zeros(2, np.uint32), none, {}, {}, frozenset())
        ids = block_frame(table, cells.shape[1], "arrow")["block_id"].to_pylist()
        assert list(map(int, ids)) == [pyramid_number(cell) for cell in cells.tolist()]

    def test_a_million_blocks_are_quick(self, task_report, tmp_path):
        """10^6 blocks with cost, stamps and a step make a table in at most a second of CPU (best of three)."""
        layout = Layout((0,) * 3, (100,) * 3, (0,) * 3, (1,) * 3, (0,) * 3, (1,) * 3, "valid", False)
        with TrackingStore.open(tmp_path / "seg", layout, resource_tracking=True) as store:
            store.record_done(0, BlockStats(0.25), 1, 1000.0, 1000.5, {"read": (0.125, 1)})
            store.mark_done(np.arange(10**6))
        returned = tmp_path / "seg" / "returned_at" / "c" / "0" / "0" / "0"
        np.full(10**6, 1000.5).tofile(returned)
        np.full(10**6, 1000.0).tofile(tmp_path / "seg" / "sent_at" / "c" / "0" / "0" / "0")
        report = task_report(tracking_path=str(tmp_path / "seg"))
        taken = []
        for _ in range(3):
            began = time.process_time()
            frame = report.to_frame()
            taken.append(time.process_time() - began)
        assert (frame.num_rows, frame["block_id"][-1].as_py()) == (10**6, pyramid_number((99, 99, 99)))
        assert min(taken) < 1.0


class TestWorkers:
    def test_a_row_is_a_worker(self, task_report):
        """Phases, counts and the end of each worker, by id; what did not happen is null (B151)."""
        stat = Stat(4, 0.5, 0.1, 0.4, 0.6, 2.0)
        died = WorkerRecord(7, None, 0, 1, Stat(), Stat(), None, None, "error", "exit code 3")
        lived = WorkerRecord(1, 0.25, 4, 0, Stat(4, 0.125, 0.0, 0.125, 0.125, 0.5), stat, 0.125, 0.0625, "clean")
        report = task_report()
        report = replace(report, workers=replace(report.workers, records=(lived, died)))
        rows = report.workers_frame().to_pylist()
        assert rows[0] == {
            "worker_id": 1, "startup_seconds": 0.25, "blocks": 4, "blocks_failed": 0,
            "compute_n": 4, "compute_mean_seconds": 0.5, "compute_total_seconds": 2.0,
            "idle_n": 4, "idle_mean_seconds": 0.125, "idle_total_seconds": 0.5,
            "final_wait_seconds": 0.125, "teardown_seconds": 0.0625, "exit": "clean", "text": None,
        }  # fmt: skip
        assert {name for name, value in rows[1].items() if value is None} == {
            "startup_seconds", "compute_mean_seconds", "compute_total_seconds", "idle_mean_seconds",
            "idle_total_seconds", "final_wait_seconds", "teardown_seconds",
        }  # fmt: skip
        assert (rows[1]["exit"], rows[1]["text"], rows[1]["blocks_failed"]) == ("error", "exit code 3", 1)

    def test_without_workers_the_columns_are_there(self, task_report):
        """A serial run gives no rows, and columns of the same types (B143)."""
        report = task_report()
        empty = replace(report, workers=replace(report.workers, records=())).workers_frame()
        assert (empty.num_rows, empty.schema) == (0, report.workers_frame().schema)


class TestTimeline:
    def test_only_blocks_of_this_run(self, task_report, tmp_path):
        """Windows come in the order of sending; blocks of earlier and later runs are not this run's (D45, B144)."""
        with TrackingStore.open(tmp_path / "seg", LAYOUT, resource_tracking=True) as store:
            for index, worker, sent, returned in (
                (0, 4, 900.0, 901.0),
                (1, 1, 1000.125, 1000.25),
                (2, None, 1000.0, 1000.0625),
                (3, 0, 1000.5, 1001.0),
            ):
                store.record_done(index, BlockStats(0.5), worker, sent, returned)
            store.mark_done(4)
        report = task_report(tracking_path=str(tmp_path / "seg"))
        assert (report.started_at, report.ended_at) == (1000.0, 1000.25)
        assert report.timeline() == [
            (None, LAYOUT.cell(2), 1000.0, 1000.0625),
            (1, LAYOUT.cell(1), 1000.125, 1000.25),
        ]

    def test_a_store_without_stamps(self, task_report, tmp_path):
        """Without resource tracking there are no stamps: the refusal says what to do, and guesses nothing."""
        with TrackingStore.open(tmp_path / "seg", LAYOUT) as store:
            store.record_done(0, None, 1, 1000.0, 1000.1)
        with pytest.raises(WorkspanError, match=r"has no stamps.*: give the task resource_tracking=True") as caught:
            task_report(tracking_path=str(tmp_path / "seg")).timeline()
        assert isinstance(caught.value, LookupError)


def test_arrow_is_loaded_when_it_is_asked_for():
    """Reading and showing reports loads neither pyarrow nor pandas (D15)."""
    code = (
        "import sys, workspan.report, workspan.views.panel, workspan.report.frames\n"
        "print([n for n in ('pyarrow', 'pandas') if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"

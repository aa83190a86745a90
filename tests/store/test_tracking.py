"""A tracking store while a task runs."""

from __future__ import annotations

import json
import logging
import os
import pickle
from math import isnan, prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.layouts import layouts
from workspan.errors import BlockNotFoundError, TrackingError
from workspan.grid import Layout
from workspan.measure.profile import BlockStats
from workspan.store.columns import cell_terms
from workspan.store.files import CellFile
from workspan.store.meta import ARRAYS, TRACKED
from workspan.store.tracking import TrackingStore

EXPECTED_NODE = """{
  "attributes": {},
  "chunk_grid": {"configuration": {"chunk_shape": [7, 5]}, "name": "regular"},
  "chunk_key_encoding": {"configuration": {"separator": "/"}, "name": "default"},
  "codecs": [{"configuration": {"endian": "little"}, "name": "bytes"}],
  "data_type": "%s",
  "fill_value": %s,
  "node_type": "array",
  "shape": [7, 5],
  "storage_transformers": [],
  "zarr_format": 3
}"""


class TestFiles:
    """What lies in the folder."""

    def test_arrays_are_single_raw_chunks(self, tmp_path: Path, plane: Layout) -> None:
        """Metadata, chunk path and size of every array are as documented (B110, B111, B112)."""
        TrackingStore.open(tmp_path / "seg", plane, resource_tracking=True).close()
        types = {
            "done": ("uint8", "0", 1),
            "failures": ("uint32", "0", 4),
            "wall_seconds": ("float32", "0.0", 4),
            "cpu_seconds": ("float32", "0.0", 4),
            "peak_rss_bytes": ("uint64", "0", 8),
            "io_read_bytes": ("uint64", "0", 8),
            "io_write_bytes": ("uint64", "0", 8),
            "gpu_util_pct": ("float32", "0.0", 4),
            "gpu_mem_bytes": ("uint64", "0", 8),
            "worker_id": ("uint32", "0", 4),
            "sent_at": ("float64", "0.0", 8),
            "returned_at": ("float64", "0.0", 8),
        }
        assert sorted(os.listdir(tmp_path / "seg")) == sorted([*types, "zarr.json"])
        for name, (data_type, fill, itemsize) in types.items():
            array = tmp_path / "seg" / name
            assert json.loads((array / "zarr.json").read_text()) == json.loads(EXPECTED_NODE % (data_type, fill))
            assert (array / "c/0/0").stat().st_size == 35 * itemsize
        group = json.loads((tmp_path / "seg" / "zarr.json").read_text())
        assert (group["zarr_format"], group["node_type"]) == (3, "group")

    def test_the_group_tells_its_layout(self, tmp_path: Path, plane: Layout) -> None:
        """The attributes hold daisy's hash and the layout in words (D2, D38)."""
        TrackingStore.open(tmp_path / "seg", plane, task_id="seg", function="f1").close()
        attributes = json.loads((tmp_path / "seg" / "zarr.json").read_text())["attributes"]
        assert len(attributes["daisy_task_hash"]) == 64
        assert attributes["workspan"] == {
            "schema": 1,
            "total_roi": {"offset": [-5, 0], "shape": [63, 45]},
            "read_roi": {"offset": [0, 0], "shape": [23, 14]},
            "write_roi": {"offset": [12, 2], "shape": [10, 10]},
            "fit": "valid",
            "task_id": "seg",
            "function": "f1",
            "unmeasured": [],
        }

    def test_without_resource_tracking_two_arrays_are_made(self, tmp_path: Path, row: Layout) -> None:
        """Flags and failures are always there, measurements only when asked for (B112)."""
        TrackingStore.open(tmp_path / "seg", row).close()
        assert sorted(os.listdir(tmp_path / "seg")) == ["done", "failures", "zarr.json"]

    def test_an_untouched_store_takes_no_room(self, tmp_path: Path) -> None:
        """Files are sparse: 69 bytes each for 10^8 cells would be 7 GB (B111, W17, D5)."""
        layout = Layout((0, 0), (10_000, 10_000), (0, 0), (1, 1), (0, 0), (1, 1))
        with TrackingStore.open(tmp_path / "seg", layout, resource_tracking=True) as store:
            store.record_done(50_000_000, BlockStats(), 0, 1.0, 2.0)
            assert store.done.sum() == 1
        files = [path for path in (tmp_path / "seg").rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) > 6_500_000_000
        assert sum(path.stat().st_blocks * 512 for path in files) < 1_000_000
        assert TrackingStore.peek(tmp_path / "seg").block((5000, 0)).done

    def test_parents_are_made(self, tmp_path: Path, row: Layout) -> None:
        """A tracking path need not exist (B115)."""
        TrackingStore.open(tmp_path / "a" / "b" / "seg", row).close()
        assert (tmp_path / "a" / "b" / "seg" / "zarr.json").is_file()

    def test_nothing_lies_beside_a_closed_store(self, tracked: Path) -> None:
        """Lock and slot file are gone after an orderly end (KF-21, R32)."""
        assert os.listdir(tracked.parent) == ["seg"]


class TestRecordDone:
    """A block that succeeded."""

    def test_every_cell_is_written(self, tmp_path: Path, plane: Layout, stats: BlockStats) -> None:
        """The eleven cells of the block hold what was measured, those of others stay zero (B119, B144)."""
        with TrackingStore.open(tmp_path / "seg", plane, resource_tracking=True) as store:
            store.record_done(5, stats, 3, 1e9, 1e9 + 2)
            cell = plane.cell(5)
            assert cell == (2, 1)
            values = {name: store.peek(store.path).array(name) for name in ARRAYS}
        expected = {
            "done": 1,
            "failures": 0,
            "wall_seconds": 0.5,
            "cpu_seconds": 0.25,
            "peak_rss_bytes": 123_456_789_012,
            "io_read_bytes": 11,
            "io_write_bytes": 22,
            "gpu_mem_bytes": 0,
            "worker_id": 3,
            "sent_at": 1e9,
            "returned_at": 1e9 + 2,
        }
        assert {name: values[name][cell] for name in expected} == expected
        assert isnan(values["gpu_util_pct"][cell])
        for array in values.values():
            array[cell] = 0
            assert not array.any()

    def test_no_managed_worker(self, tmp_path: Path, row: Layout, stats: BlockStats) -> None:
        """Without a managed worker the cell holds 2^32-1, and the record says None (B112, B143)."""
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            store.record_done(5, stats, None, 1.0, 2.0)
            assert store.peek(store.path).array("worker_id")[5] == 2**32 - 1
            assert store.block((5,)).worker_id is None

    def test_without_resource_tracking_only_the_flag_is_written(self, tracked: Path, row: Layout, stats) -> None:
        """Measurements of an untracked run do not enter a store that has the arrays (D42)."""
        before = TrackingStore.peek(tracked).block((6,))
        with TrackingStore.open(tracked, row) as store:
            store.record_done(6, stats, 1, 1.0, 2.0, {"read": (1.0, 1)})
        record = TrackingStore.peek(tracked).block((6,))
        assert before is None
        assert (record.done, record.stats, record.sent_at, record.steps) == (True, None, None, {})

    def test_the_flag_comes_last(self, tmp_path: Path, row: Layout, stats: BlockStats) -> None:
        """A fault anywhere in the record leaves the block undone (B119)."""

        class Broken:
            wall_seconds = cpu_seconds = 1.0

            @property
            def peak_rss_bytes(self) -> int:
                raise RuntimeError("in the middle")

        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            with pytest.raises(RuntimeError, match="in the middle"):
                store.record_done(5, Broken(), 1, 1.0, 2.0)
            assert not store.done.any()
            assert not store.peek(store.path).array("done").any()
            assert store.peek(store.path).array("wall_seconds")[5] == 1.0
            assert store.block((5,)) is None  # what is not stamped means nothing (B113)

    def test_counters_that_were_not_measured_are_listed(self, tmp_path: Path, row: Layout) -> None:
        """The array holds 0 and the group says that it means nothing; reading gives None back (D22)."""
        odd = BlockStats(0.5, 0.25, None, None, 22)
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            store.record_done(0, odd, 1, 1.0, 2.0)
            store.record_done(1, BlockStats(0.5, 0.25, 7, 8, 0), 1, 1.0, 2.0)
            reader = store.peek(store.path)
            assert reader.unmeasured == {"peak_rss_bytes", "io_read_bytes"}
            assert reader.block((0,)).stats == odd
            assert reader.block((1,)).stats == BlockStats(0.5, 0.25, 7, 8, 0)
            assert reader.array("peak_rss_bytes")[0] == 0
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            assert store.block((0,)).stats == odd

    @pytest.mark.parametrize(
        ("given_stats", "stored"),
        [
            (BlockStats(1.0, 1.0, -5, 2**70, 1), BlockStats(1.0, 1.0, 0, 2**64 - 1, 1)),
            (BlockStats(1e300, 1.0, 1, 1, 1), BlockStats(float("inf"), 1.0, 1, 1, 1)),
        ],
    )
    def test_measurements_beyond_a_cell_are_clipped(self, tmp_path: Path, row: Layout, given_stats, stored) -> None:
        """Nonsense from a worker costs the figure, not the run (R44)."""
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            store.record_done(0, given_stats, 1, 1.0, 2.0)
            assert store.block((0,)).stats == stored

    @pytest.mark.parametrize(
        ("sent", "returned", "stored"),
        [
            (5.0, 4.0, (5.0, 5.0)),
            (-1.0, 4.0, (4.0, 4.0)),
            (3.0, float("nan"), (3.0, 3.0)),
            (3.0, float("inf"), (3.0, 3.0)),
            (0.0, 0.0, (1e-6, 1e-6)),
        ],
    )
    def test_stamps_are_never_in_the_wrong_order(self, tmp_path: Path, row: Layout, stats, sent, returned, stored):
        """Whatever a clock says, no interval is negative and the store stays readable (R34, KF-40, B144)."""
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            store.record_done(0, stats, 1, sent, returned)
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            record = store.block((0,))
            assert (record.sent_at, record.returned_at) == stored

    def test_a_second_record_replaces_the_first(self, tmp_path: Path, row: Layout, stats: BlockStats) -> None:
        """All cells are those of the last attempt, sections that it did not execute included (B144)."""
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            store.record_done(0, stats, 1, 1.0, 2.0, {"read": (0.5, 1), "write": (0.25, 1)})
            store.record_done(0, BlockStats(2.0, 1.0, 3, 4, 5), 2, 7.0, 8.0, {"read": (0.75, 1)})
            record = store.block((0,))
            assert (record.stats.wall_seconds, record.worker_id, record.sent_at) == (2.0, 2, 7.0)
            assert record.steps == {"read": 0.75}
            assert store.newly_done == 1

    def test_a_second_record_that_breaks_off_leaves_no_mixture(self, tmp_path: Path, row: Layout, stats) -> None:
        """The older record is taken back first: no reader sees parts of both (B113, B119)."""

        class Broken:
            wall_seconds = 77.0

            @property
            def cpu_seconds(self) -> float:
                raise RuntimeError("in the middle")

        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            store.record_done(0, stats, 1, 1.0, 2.0)
            with pytest.raises(RuntimeError, match="in the middle"):
                store.record_done(0, Broken(), 2, 3.0, 4.0)
            assert store.block((0,)) is None

    @pytest.mark.parametrize("index", [-1, 10])
    def test_an_index_outside_is_refused(self, tmp_path: Path, row: Layout, stats: BlockStats, index: int) -> None:
        """No cell of another block is ever written."""
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            with pytest.raises(IndexError, match=f"block {index} of 10"):
                store.record_done(index, stats, 1, 1.0, 2.0)
            with pytest.raises(IndexError, match=f"block {index} of 10"):
                store.record_failure(index)
            with pytest.raises(IndexError, match=f"{index} of 10"):
                store.mark_done(index)
            with pytest.raises(IndexError, match=f"{min(1, index)} to {max(1, index)} of 10"):
                store.mark_done(np.array([1, index]))
            assert not store.done.any()


class TestFailures:
    """Attempts that did not succeed."""

    def test_failures_accumulate_over_runs(self, tmp_path: Path, row: Layout, stats: BlockStats) -> None:
        """Each failed attempt counts once, with or without resource tracking, also after the block is done (B122)."""
        for tracked in (False, True, False):
            with TrackingStore.open(tmp_path / "seg", row, resource_tracking=tracked) as store:
                store.record_failure(3)
                store.record_failure(3)
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            store.record_done(3, stats, 0, 1.0, 2.0)
            assert store.failures[3] == 6
            assert store.block((3,)).failures == 6
            assert store.block((3,)).done

    def test_a_failure_changes_nothing_else(self, tmp_path: Path, row: Layout) -> None:
        """Failed attempts change only ``failures`` (B119)."""
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            store.record_failure(3)
            reader = store.peek(store.path)
            assert not any(reader.array(name).any() for name in ARRAYS if name != "failures")
            assert store.block((3,)).stats is None

    def test_failures_saturate(self, tmp_path: Path, row: Layout) -> None:
        """The counter stops at 2^32-1 (B112)."""
        TrackingStore.open(tmp_path / "seg", row).close()
        np.full(10, 2**32 - 2, "<u4").tofile(tmp_path / "seg" / "failures" / "c" / "0")
        with TrackingStore.open(tmp_path / "seg", row) as store:
            for _ in range(3):
                store.record_failure(9)
            assert store.failures.tolist() == [2**32 - 2] * 9 + [2**32 - 1]
        assert np.fromfile(tmp_path / "seg" / "failures" / "c" / "0", "<u4")[9] == 2**32 - 1


class TestMarkDone:
    """Blocks that need not run."""

    @pytest.mark.parametrize(
        "indices", [4, np.int64(4), [4], (4,), np.array([4]), np.array([4, 4], np.uint8), range(4, 5), [4] * 20]
    )
    def test_indices_come_in_many_forms(self, tmp_path: Path, row: Layout, indices: object) -> None:
        """A number, a sequence and an array of any integer type mean the same."""
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            assert store.mark_done(indices) == 1
            assert store.mark_done(indices) == 0
            assert store.done.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
            reader = store.peek(store.path)
            assert reader.array("done").tolist() == store.done.tolist()
            assert not any(reader.array(name).any() for name in ("failures", *TRACKED))

    def test_nothing_to_mark(self, tmp_path: Path, row: Layout) -> None:
        """No index marks no block."""
        with TrackingStore.open(tmp_path / "seg", row) as store:
            assert store.mark_done([]) == 0
            assert not store.done.any()

    def test_numbers_that_are_no_indices_are_refused(self, tmp_path: Path, row: Layout) -> None:
        """Floats are not rounded to some block."""
        with TrackingStore.open(tmp_path / "seg", row) as store, pytest.raises(TypeError):
            store.mark_done(np.array([1.5]))

    def test_millions_at_once(self, tmp_path: Path) -> None:
        """Marking is an operation on arrays, and so is asking (KF-18)."""
        layout = Layout((0, 0), (1500, 2002), (0, 0), (1, 3), (0, 1), (1, 1))
        with TrackingStore.open(tmp_path / "seg", layout) as store:
            assert store.mark_done(np.arange(0, 3_000_000, 3)) == 1_000_000
            assert store.newly_done == 1_000_000
        with TrackingStore.open(tmp_path / "seg", layout) as store:
            flags = store.done_blocks()
            assert flags.shape == (1500, 2000)
            assert flags.reshape(-1)[::3].all()
            assert flags.sum() == 1_000_000


class TestAsking:
    """What the scheduler and people ask."""

    @settings(max_examples=25)
    @given(layouts(ranks=(1, 2, 3, 4)), st.data())
    def test_blocks_come_back_as_they_were_recorded(self, tmp_path_factory, layout: Layout, data) -> None:
        """Any layout, any blocks: flags in the mask grid, records in the tracking grid, also after reopening (B11)."""
        path = tmp_path_factory.mktemp("round") / "seg"
        some = data.draw(st.sets(st.integers(0, layout.num_blocks - 1), max_size=8)) if layout.num_blocks else set()
        with TrackingStore.open(path, layout, resource_tracking=True) as store:
            for index in some:
                store.record_done(index, BlockStats(index, 2.0, 3, 4, 5), index, 1.0 + index, 2.0 + index)
            assert store.done_blocks().shape == layout.counts
        with TrackingStore.open(path, layout, resource_tracking=True) as store:
            assert set(np.flatnonzero(store.done_blocks().reshape(-1)).tolist()) == some
            records = list(store.block_records())
            assert sorted(record.coord for record in records) == [record.coord for record in records]
            assert {record.coord for record in records} == {layout.cell(index) for index in some}
            for index in some:
                record = store.block(layout.cell(index))
                assert record in records
                assert (record.stats.wall_seconds, record.worker_id) == (index, index)
                assert (record.sent_at, record.returned_at) == (1.0 + index, 2.0 + index)
        assert set(np.flatnonzero(TrackingStore.peek(path).done_of(layout).reshape(-1)).tolist()) == some

    @given(layouts(ranks=(1, 2, 3, 4)))
    def test_the_number_of_a_cell_is_that_of_the_grid(self, layout: Layout) -> None:
        """The closed form agrees with the grid's own arithmetic on every block, one by one and as an array (B8)."""
        base, terms = cell_terms(layout)
        indices = np.arange(layout.num_blocks)
        numbers = base + indices + sum((indices // stride * weight for stride, weight in terms), start=0 * indices)
        assert numbers.tolist() == [layout.cell_number(index) for index in range(layout.num_blocks)]
        assert all(0 <= number < prod(layout.cell_counts) for number in numbers)

    def test_flags_are_live_and_cannot_be_written(self, tmp_path: Path, row: Layout) -> None:
        """Views follow the records; only records change them (B119)."""
        with TrackingStore.open(tmp_path / "seg", row) as store:
            done, blocks, failures = store.done, store.done_blocks(), store.failures_of_blocks()
            store.record_done(1, None, None, 0, 0)
            store.mark_done([2])
            store.record_failure(3)
            assert done.tolist() == blocks.tolist() == [0, 1, 1] + [0] * 7
            assert failures.tolist() == [0, 0, 0, 1] + [0] * 6
            for view in (done, blocks, failures, store.failures):
                with pytest.raises(ValueError, match="read-only"):
                    view[0] = 1
        assert done.tolist()[1] == 1  # and they outlive the store

    @pytest.mark.parametrize("coord", [(10,), (-1,), (), (1, 1)])
    def test_a_coordinate_outside_is_refused(self, tracked: Path, coord: tuple[int, ...]) -> None:
        """Outside the grid is an IndexError that names the shape (B152)."""
        with pytest.raises(BlockNotFoundError, match=r"outside the tracking grid, which has the shape \(10,\)"):
            TrackingStore.peek(tracked).block(coord)

    def test_blocks_outside_the_grid_are_refused_at_once(self, tmp_path: Path, make_layout) -> None:
        """A layout whose blocks have no cells is no layout to track."""
        layout = make_layout(read_shape=(5,), fit="overhang", read_write_conflict=False)
        with pytest.raises(TrackingError, match="read_roi does not contain write_roi"):
            TrackingStore.open(tmp_path / "seg", layout)
        assert os.listdir(tmp_path) == []

    def test_a_layout_without_blocks(self, tmp_path: Path, make_layout) -> None:
        """A task with nothing to do has a store with nothing in it (B16)."""
        layout = make_layout(blocks=0)
        with TrackingStore.open(tmp_path / "seg", layout, resource_tracking=True) as store:
            assert store.done_blocks().shape == (0,)
            assert list(store.block_records()) == []


class TestResume:
    """The next run on a store."""

    def test_what_is_done_stays_as_it_was(self, tracked: Path, row: Layout) -> None:
        """Skipped blocks keep the stamps and measurements of the run that did the work (B121, KF-38)."""
        before = list(TrackingStore.peek(tracked).block_records())
        with TrackingStore.open(tracked, row, resource_tracking=True) as store:
            assert store.done_blocks().tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 1, 0]
            for index in (5, 6, 7, 9):
                store.record_done(index, BlockStats(9.0), 0, 5000.0, 5001.0)
            assert store.newly_done == 4
        after = list(TrackingStore.peek(tracked).block_records())
        assert len(after) == 10
        assert [record for record in after if record.coord[0] not in (5, 6, 7, 9)] == [
            record for record in before if record.coord != (7,)
        ]

    def test_measurements_can_be_asked_for_later(self, tmp_path: Path, row: Layout, stats: BlockStats) -> None:
        """A store written without resource tracking gets the arrays; what was done has no measurements (B118, B113)."""
        with TrackingStore.open(tmp_path / "seg", row) as store:
            store.record_done(0, None, None, 0, 0)
        with TrackingStore.open(tmp_path / "seg", row, resource_tracking=True) as store:
            store.record_done(1, stats, 0, 1.0, 2.0)
            assert store.block((0,)).stats is None
            assert store.block((0,)).done
            assert store.block((1,)).stats == stats

    def test_a_changed_function_only_warns(self, tmp_path: Path, row: Layout, caplog) -> None:
        """Done blocks stay done; the log says what to do, once (R29)."""
        caplog.set_level(logging.WARNING)
        for function in ("f1", "f1", None, "f2", "f2"):
            with TrackingStore.open(tmp_path / "seg", row, function=function) as store:
                store.mark_done(0)
                assert store.done[0]
        assert len(caplog.records) == 1
        assert "f1 -> f2" in caplog.text
        assert "task.reset()" in caplog.text

    def test_a_zarr_user_may_zero_the_flags(self, tracked: Path, row: Layout, caplog) -> None:
        """A missing chunk is zeros in Zarr: all blocks run again, and the log says so (B110)."""
        (tracked / "done" / "c" / "0").unlink()
        with TrackingStore.open(tracked, row, resource_tracking=True) as store:
            assert not store.done.any()
            store.mark_done(1)
        assert "'done' has lost its chunk" in caplog.text
        assert TrackingStore.peek(tracked).done.tolist() == [0, 1] + [0] * 8


class TestEnd:
    """Closing."""

    def test_closing_twice_is_closing_once(self, tmp_path: Path, row: Layout) -> None:
        """Close can be repeated, and what comes after it is refused by name (B120)."""
        store = TrackingStore.open(tmp_path / "seg", row, resource_tracking=True)
        store.record_done(0, BlockStats(), 0, 1.0, 2.0)
        store.close()
        store.close()
        for call in (
            lambda: store.record_done(0, BlockStats(), 0, 1.0, 2.0),
            lambda: store.record_failure(0),
            lambda: store.mark_done(1),
            lambda: store.mark_done([1, 2]),
            store.flush,
        ):
            with pytest.raises(TrackingError, match=r"seg is closed"):
                call()
        store.grant(0, 0)  # nothing to remember it for

    def test_an_error_in_the_run_is_the_one_that_is_told(self, tmp_path: Path, row: Layout) -> None:
        """The store is closed and given free when its run fails (R23)."""
        with pytest.raises(ZeroDivisionError), TrackingStore.open(tmp_path / "seg", row):
            raise ZeroDivisionError
        TrackingStore.open(tmp_path / "seg", row).close()

    def test_a_flush_reaches_everything_that_was_made(self, tmp_path: Path, stats, monkeypatch) -> None:
        """Metadata, folders and chunks of sections that were left are on the disk, too; flags come last (B120)."""
        synced: list[str] = []
        real_sync, real_flush = os.fsync, CellFile.flush

        def fsync(fd: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{fd}"))
            real_sync(fd)

        def flush(file: CellFile) -> None:
            synced.append(str(file.path))
            real_flush(file)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(CellFile, "flush", flush)
        layout = Layout((0,), (200_000,), (0,), (1,), (0,), (1,))
        seg = tmp_path / "seg"
        with TrackingStore.open(seg, layout, resource_tracking=True) as store:
            for index in (0, 199_999):
                store.record_done(index, stats, 1, 1.0, 2.0, {"read": (1.0, 1)})
            store.flush()
            nodes = [seg / name / "zarr.json" for name in ARRAYS]
            chunks = [seg / name / "c" / "0" for name in ARRAYS]
            sections = [seg / "steps" / "read" / "c" / "0", seg / "steps" / "read" / "c" / "3"]
            folders = [seg, tmp_path, seg / "zarr.json", *(chunk.parent for chunk in chunks)]
            assert set(map(str, [*nodes, *chunks, *sections, *folders])) <= set(synced)
            assert synced[-1] == str(seg / "done" / "c" / "0")
            synced.clear()
            store.flush()
            assert synced == []  # nothing new, nothing to do

    def test_a_store_that_was_deleted_is_noticed(self, tmp_path: Path, row: Layout) -> None:
        """Records would go nowhere: the flush says so, and the store takes nothing more (R26)."""
        store = TrackingStore.open(tmp_path / "seg", row)
        store.mark_done(1)
        (tmp_path / "seg" / "done" / "c" / "0").rename(tmp_path / "elsewhere")
        (tmp_path / "seg" / "done" / "c" / "0").write_bytes(bytes(10))
        store.mark_done(0)
        for _ in range(2):
            with pytest.raises(TrackingError, match="seg: "):
                store.flush()
        with pytest.raises(TrackingError, match="seg: "):
            store.record_done(0, None, None, 0, 0)
        store.close()

    def test_errors_cross_process_boundaries(self, tmp_path: Path, row: Layout) -> None:
        """What the store raises survives pickling."""
        (tmp_path / "seg").write_text("")
        with pytest.raises(TrackingError) as caught:
            TrackingStore.open(tmp_path / "seg", row)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

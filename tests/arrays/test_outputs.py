"""No silent loss: shared chunks, outputs that are in the way, and outputs that changed between two runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import zarr

import workspan as ws
from workspan.errors import ConfigurationError, TrackingError, UsageTypeError

QUIET = {"progress": False, "summary": False}


def add_one(a):
    """A function that depends on its input alone."""
    return a + 1


def count_up(block):
    """A block function written by hand: each row is 0..99."""
    begin, end = block.write_roi.begin[1], block.write_roi.end[1]
    ws.write_block(zarr.open_array("out.zarr", mode="r+"), block, np.arange(begin, end)[None])


def count_up_task(**arguments):
    """KF-19's input, 20 times: rows of 0..99 in chunks of 50, written by blocks of 25."""
    if not Path("out.zarr").exists():
        zarr.create_array("out.zarr", shape=(20, 100), chunks=(1, 50), dtype="i8")
    roi, block = ws.Roi((0, 0), (20, 100)), ws.Roi((0, 0), (1, 25))
    return ws.Task("count", roi, block, block, count_up, read_write_conflict=False, max_workers=4, **arguments)


class TestSharedChunks:
    """Two blocks in one chunk."""

    def test_refused_before_any_worker_starts(self):
        """Chunks of 50 and blocks of 25 are refused by both numbers, with what would fit (KF-19)."""
        task = count_up_task(writes=["out.zarr"])
        with pytest.raises(
            ConfigurationError,
            match=r"blocks of \(1, 25\) do not fit the chunks of \(1, 50\) .*Use blocks of \(1, 50\)",
        ):
            task.run(**QUIET)
        assert not zarr.open_array("out.zarr")[:].any()
        assert not Path("workspan_logs").exists()

    def test_in_order_nothing_is_lost_in_20_repeats(self):
        """With on_shared_chunk="order" and four processes the sum is 4950 in 20 of 20 repeats (KF-19)."""
        assert count_up_task(writes=["out.zarr"], on_shared_chunk="order").run(**QUIET)
        assert zarr.open_array("out.zarr")[:].sum(axis=1).tolist() == [4950] * 20

    def test_ordered_blocks_never_overlap_in_time(self):
        """The windows of two blocks that share a chunk are disjoint, by the store's own record (KF-19)."""
        zarr.create_array("out.zarr", shape=(12, 12), chunks=(4, 6), dtype="f8")
        task = ws.map_blocks(
            add_one,
            np.zeros((12, 12)),
            out=zarr.open_array("out.zarr", mode="r+"),
            block_shape=(3, 2),
            on_shared_chunk="order",
            max_workers=3,
            tracking_path="tracking/x",
            resource_tracking=True,
        )
        report = task.run(return_report=True, **QUIET)
        assert report
        assert (zarr.open_array("out.zarr")[:] == 1).all()
        chunks, windows = {}, {}
        for window in report["add_one"].timeline():
            cell = window.coord
            box = task.block_at(tracking_cell=cell).write_roi
            chunks[cell] = {
                (y // 4, x // 6)
                for y in range(box.begin[0], box.end[0])
                for x in range(*box.to_slices()[1].indices(12))
            }
            windows[cell] = window
        assert len(windows) == 24
        pairs = [(a, b) for a in windows for b in windows if a < b and chunks[a] & chunks[b]]
        assert pairs
        for a, b in pairs:
            first, last = sorted((windows[a], windows[b]), key=lambda w: w.sent_at)
            assert first.returned_at <= last.sent_at

    @pytest.mark.parametrize("first", [{}, {"writes": ["out.zarr"], "on_shared_chunk": "order"}], ids=["free", "order"])
    def test_resuming_does_not_depend_on_the_order(self, first):
        """What was done without the order is done with it, and the other way round: same ids and hash."""
        ordered = {"writes": ["out.zarr"], "on_shared_chunk": "order"}
        task = count_up_task(tracking_path="tracking/x", **first)
        assert task.run(engine="serial", **QUIET)
        other = count_up_task(tracking_path="tracking/x", **({} if first else ordered))
        assert other.layout.num_levels + task.layout.num_levels == 3  # one of them has an order
        report = other.run(engine="serial", return_report=True, **QUIET)
        assert report["count"].blocks.skipped == 80

    def test_an_offset_counts(self):
        """Blocks as large as a chunk that begin in the middle of one are refused, with where to begin."""
        with pytest.raises(ConfigurationError, match=r"beginning at \(4,\), where a chunk does, not at \(6,\)"):
            ws.map_blocks(add_one, np.zeros(20), out="x.zarr", out_chunks=4, block_shape=4, roi=ws.Roi((6,), (14,)))

    def test_shards_count_not_chunks(self):
        """What is written in one piece is the shard: blocks of one chunk inside it are refused."""
        with pytest.raises(ConfigurationError, match=r"blocks of \(2,\) do not fit the chunks of \(4,\)"):
            ws.map_blocks(add_one, np.zeros(16), out="x.zarr", out_chunks=2, out_shards=4, block_shape=2)
        task = ws.map_blocks(add_one, np.zeros(16), out="x.zarr", out_chunks=2, out_shards=4)
        assert task.layout.write_shape == (4,)
        assert task.run(engine="serial", **QUIET)
        made = zarr.open_array("x.zarr")
        assert (made.chunks, made.shards) == ((2,), (4,))
        assert (made[:] == 1).all()

    def test_world_units_count(self):
        """Offset and voxel size of the array place its chunks; blocks of two chunks from there on fit."""

        class Placed:
            shape, chunks, dtype = (40,), (5,), np.dtype("f8")
            offset, voxel_size = (30,), (4,)

        def task(begin):
            roi, block = ws.Roi((begin,), (80,)), ws.Roi((0,), (40,))
            return ws.Task("t", roi, block, block, lambda block: None, read_write_conflict=False, writes=[Placed()])

        assert task(30).run(engine="serial", **QUIET)
        with pytest.raises(ConfigurationError, match=r"chunks of \(20,\) .* beginning at \(30,\)"):
            task(40).run(engine="serial", **QUIET)

    def test_two_tasks_at_once(self):
        """Two tasks that write one array beside each other are refused; one after the other they may."""
        zarr.create_array("out.zarr", shape=(8,), chunks=(4,), dtype="f8")

        def task(name):
            out = zarr.open_array("out.zarr", mode="r+")
            return ws.map_blocks(add_one, np.zeros(8), out=out, block_shape=4, task_id=name)

        one, other = task("one"), task("other")
        with pytest.raises(ConfigurationError, match=r"tasks 'one' and 'other' write the same chunks of .*out.zarr"):
            (one | other).run(engine="serial", **QUIET)
        assert (one + other).run(engine="serial", **QUIET)

    def test_arguments_of_writes(self):
        """What is no array, and an array of other axes, is told before the run."""
        roi = ws.Roi((0,), (8,))
        zarr.create_array("two.zarr", shape=(8, 8), chunks=(4, 4), dtype="f8")
        with pytest.raises(ConfigurationError, match=r"blocks of 1 axes and writes .*two.zarr', which has 2"):
            ws.Task("t", roi, roi, roi, lambda block: None, writes=["two.zarr"]).run(engine="serial", **QUIET)
        with pytest.raises(ConfigurationError, match=r"'nope.zarr' is no array that can be opened"):
            ws.Task("t", roi, roi, roi, lambda block: None, writes=["nope.zarr"]).run(engine="serial", **QUIET)
        with pytest.raises(UsageTypeError, match=r"writes='two.zarr' is no list"):
            ws.Task("t", roi, roi, roi, lambda block: None, writes="two.zarr")


class TestInTheWay:
    """Outputs that are there before the run."""

    def test_an_output_is_never_deleted_unasked(self):
        """A path that holds an array is refused; with overwrite=True it is replaced, when the run begins."""
        zarr.create_array("out.zarr", data=np.full(6, 9.0), chunks=(6,))
        with pytest.raises(ConfigurationError, match=r"out='out.zarr' exists: pass overwrite=True"):
            ws.map_blocks(add_one, np.zeros(6), out="out.zarr", block_shape=3).run(engine="serial", **QUIET)
        task = ws.map_blocks(add_one, np.zeros(6), out="out.zarr", block_shape=3, overwrite=True)
        assert zarr.open_array("out.zarr")[:].tolist() == [9] * 6
        assert task.run(engine="serial", **QUIET)
        assert zarr.open_array("out.zarr")[:].tolist() == [1] * 6
        assert zarr.open_array("out.zarr").chunks == (3,)

    def test_overwrite_never_deletes_what_is_no_array(self):
        """A folder of something else, and a group with other members, stay whatever is passed."""
        Path("photos").mkdir()
        Path("photos/a.jpg").write_bytes(b"x")
        group = zarr.create_group("group.zarr")
        group.create_array("precious", shape=(4,), chunks=(4,), dtype="u1")
        for where, text in (("photos", "in the way: it is no Zarr array"), ("group.zarr", "holds 'precious'")):
            task = ws.map_blocks(add_one, np.zeros(6), out=where, block_shape=3, overwrite=True)
            with pytest.raises(ConfigurationError, match=text):
                task.run(engine="serial", **QUIET)
        assert Path("photos/a.jpg").read_bytes() == b"x"
        assert "precious" in zarr.open_group("group.zarr")

    def test_all_outputs_are_checked_before_one_is_deleted(self):
        """If the second of two outputs is refused, the first is as it was."""
        zarr.create_array("a.zarr", data=np.full(6, 9.0), chunks=(6,))
        zarr.create_group("b.zarr").create_array("precious", shape=(4,), chunks=(4,), dtype="u1")
        task = ws.map_blocks(lambda a: (a, a), np.zeros(6), out=["a.zarr", "b.zarr"], block_shape=3, overwrite=True)
        with pytest.raises(ConfigurationError, match="precious"):
            task.run(engine="serial", **QUIET)
        assert zarr.open_array("a.zarr")[:].tolist() == [9] * 6


class TestResume:
    """A second run of the same task."""

    def task(self, function=add_one, **arguments):
        """Four blocks, tracked."""
        arguments = {"out": "out.zarr", "block_shape": 3, **arguments}
        return ws.map_blocks(
            function, np.zeros(12), task_id="t", tracking_path="tracking/t", max_retries=0, **arguments
        )

    def test_zeros_are_done_and_stored(self):
        """A process writes only fill values: the second run makes no call, and finds every chunk (KF-20)."""
        calls = []

        def zeros(a, block):
            calls.append(block.index)
            return a * 0

        assert self.task(zeros).run(engine="serial", **QUIET)
        assert sorted(path.name for path in Path("out.zarr/c").iterdir()) == ["0", "1", "2", "3"]
        report = self.task(zeros).run(engine="serial", return_report=True, **QUIET)
        assert report["t"].blocks.skipped == 4
        assert len(calls) == 4

    def test_goes_on_without_overwrite_and_keeps_what_is_done(self):
        """A run that stopped half-way goes on into its own output, also with overwrite=True (KF-25)."""

        def some(a, block):
            if block.index > 1 and not Path("go").exists():
                raise RuntimeError("not yet")
            return a + block.index

        assert not self.task(some, overwrite=True).run(engine="serial", **QUIET)
        Path("go").touch()
        report = self.task(some, overwrite=True).run(engine="serial", return_report=True, **QUIET)
        assert report["t"].blocks.skipped == 2
        assert zarr.open_array("out.zarr")[::3].tolist() == [0, 1, 2, 3]

    def test_a_run_that_did_nothing_yet_knows_its_output(self):
        """Killed after its output was made and before its first block, a run goes on and needs no overwrite=True."""

        def fails(a):
            raise RuntimeError("not yet")

        assert not self.task(fails).run(engine="serial", **QUIET)
        assert Path("out.zarr").exists()
        assert self.task().run(engine="serial", **QUIET)

    def test_a_deleted_store_forgets_its_output(self):
        """After reset() the output is somebody's array, which takes overwrite=True; also if the folder was removed."""
        task = self.task()
        assert task.run(engine="serial", **QUIET)
        assert json.loads(Path("tracking/.workspan/t.outputs.json").read_text())["outputs"][0]["shape"] == [12]
        task.reset()
        assert not Path("tracking/.workspan/t.outputs.json").exists()
        with pytest.raises(ConfigurationError, match="exists: pass overwrite=True"):
            self.task().run(engine="serial", **QUIET)
        assert self.task(overwrite=True).run(engine="serial", **QUIET)
        shutil.rmtree("tracking/t")
        with pytest.raises(ConfigurationError, match="exists: pass overwrite=True"):
            self.task().run(engine="serial", **QUIET)
        assert not Path("tracking/t").exists()

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"shape": (11,)}, r"has shape \[11\] where task 't' wrote blocks to one with shape \[12\]"),
            ({"dtype": "f4"}, "has dtype float32 where task 't' wrote blocks to one with dtype float64"),
            ({"chunks": (2,)}, r"has chunks \[2\] where .* chunks \[3\]"),
        ],
        ids=str,
    )
    def test_an_output_that_was_exchanged(self, change, text):
        """A resumed run refuses an output of another shape, type or chunks, with both in the text."""
        assert self.task().run(engine="serial", **QUIET)
        how = {"shape": (12,), "chunks": (3,), "dtype": "f8"} | change
        zarr.create_array("out.zarr", overwrite=True, **how)
        with pytest.raises(TrackingError, match=text):
            self.task(overwrite=True).run(engine="serial", **QUIET)

    def test_an_output_that_is_asked_for_otherwise(self):
        """Another dtype than that of the blocks done before is refused, not mixed in."""
        assert self.task().run(engine="serial", **QUIET)
        with pytest.raises(TrackingError, match="was made with dtype float64, and dtype complex128 was asked for now"):
            self.task(dtype="complex128").run(engine="serial", **QUIET)

    def test_an_output_that_is_gone(self):
        """Done blocks whose output was removed are not taken as done."""
        assert self.task().run(engine="serial", **QUIET)
        shutil.rmtree("out.zarr")
        with pytest.raises(TrackingError, match=r"out='out.zarr' is gone although blocks of task 't' are recorded"):
            self.task().run(engine="serial", **QUIET)

    @pytest.mark.parametrize("how", [{}, {"out_chunks": 1}, {"out_chunks": 1, "out_shards": 3}], ids=str)
    def test_a_chunk_that_is_gone(self, how):
        """A chunk of a done block that was removed is told with its block (KF-20, KF-25)."""
        assert self.task(**how).run(engine="serial", **QUIET)
        number = 7 if how == {"out_chunks": 1} else 2
        Path(f"out.zarr/c/{number}").unlink()
        with pytest.raises(
            TrackingError, match=r"lacks chunks .*: 1 blocks, the first is \('t', 2\), which wrote \[6:9\]"
        ):
            self.task(**how).run(engine="serial", **QUIET)

    def by_hand(self, array):
        """The same as :meth:`task` with a block function of somebody's own."""

        def write(block):
            at = block.write_roi.begin[0]
            array[at : at + 3] = 0 if block.index == 0 else at

        roi = ws.Roi((0,), (3,))
        return ws.Task(
            "t", ws.Roi((0,), (12,)), roi, roi, write, writes=[array], tracking_path="tracking/t",
            read_write_conflict=False,
        )  # fmt: skip

    def test_a_chunk_that_is_gone_from_what_was_written_by_hand(self):
        """Of an array that stores all chunks each one of a done block must be there, as for map_blocks (KF-25)."""
        array = zarr.create_array("h.zarr", shape=(12,), chunks=(3,), dtype="f8", config={"write_empty_chunks": True})
        assert self.by_hand(array).run(engine="serial", **QUIET)
        assert self.by_hand(array).run(engine="serial", **QUIET)
        Path("h.zarr/c/2").unlink()
        with pytest.raises(TrackingError, match=r"h.zarr' lacks chunks .*: 1 blocks, the first is \('t', 2\)"):
            self.by_hand(array).run(engine="serial", **QUIET)

    def test_chunks_that_zarr_leaves_out_are_not_missed(self):
        """By default a chunk of zeros is not stored, which is no damage; without any chunk a run warns (KF-20)."""
        array = zarr.create_array("h.zarr", shape=(12,), chunks=(3,), dtype="f8")
        assert self.by_hand(array).run(engine="serial", **QUIET)
        assert sorted(path.name for path in Path("h.zarr/c").iterdir()) == ["1", "2", "3"]
        assert self.by_hand(array).run(engine="serial", **QUIET)  # warnings are errors here
        shutil.rmtree("h.zarr/c")
        with pytest.warns(UserWarning, match=r"has no chunk, and 4 blocks of task 't', which write it"):
            self.by_hand(array).run(engine="serial", **QUIET)

    def test_a_missing_chunk_of_a_block_that_is_not_done(self):
        """What was never done may be missing: only done blocks are asked for their chunks."""

        def some(a, block):
            if block.index in (0, 3) and not Path("go").exists():
                raise RuntimeError("not yet")
            return a + 1

        assert not self.task(some).run(engine="serial", **QUIET)
        assert sorted(path.name for path in Path("out.zarr/c").iterdir()) == ["1", "2"]
        Path("go").touch()
        assert self.task(some).run(engine="serial", **QUIET)

    def test_workers_that_are_killed(self):
        """Workers die in the middle of a write and right after one: every voxel is right in the end (KF-25, R1)."""
        data = np.arange(64.0).reshape(8, 8)

        def fatal(a, block):
            once = Path(f"killed-{block.index}")
            if block.index in (1, 2) and not once.exists():
                once.touch()
                array = zarr.open_array("out.zarr", mode="r+")
                where = block.write_roi.to_slices()
                array[where] = a + 1 if block.index == 1 else -a  # all of it, or something half-way
                os.kill(os.getpid(), signal.SIGKILL)
            return a + 1

        task = ws.map_blocks(fatal, data, out="out.zarr", block_shape=4, max_workers=2, tracking_path="tracking/t")
        report = task.run(return_report=True, **QUIET)
        assert report
        assert Path("killed-1").exists()
        assert Path("killed-2").exists()
        assert np.array_equal(zarr.open_array("out.zarr")[:], data + 1)

    def test_the_working_directory_may_change(self):
        """Paths mean what they meant when the task was made."""
        task = self.task()
        Path("elsewhere").mkdir()
        os.chdir("elsewhere")
        assert task.run(engine="serial", **QUIET)
        assert zarr.open_array("../out.zarr")[:].tolist() == [1] * 12

    def test_a_refused_run_leaves_no_store(self):
        """A tracking store that the refused run itself made is removed again."""
        zarr.create_array("out.zarr", shape=(12,), chunks=(3,), dtype="f8")
        with pytest.raises(ConfigurationError, match="exists"):
            self.task().run(engine="serial", **QUIET)
        assert not Path("tracking/t").exists()

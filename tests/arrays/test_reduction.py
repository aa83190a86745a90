"""`reduce_blocks` against the same value of the whole array, and over two runs."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import workspan as ws
from helpers.arrays import run_by_hand
from workspan.arrays.results import combine_as_tree
from workspan.errors import ConfigurationError, TrackingError, UsageTypeError

QUIET = {"progress": False, "summary": False}


def histogram(a):
    """Voxels of each value 0..9."""
    return np.bincount(a.ravel(), minlength=10)


def bounding_box(a, block):
    """Begin and end of what is not zero, in the whole array, or nothing."""
    where = np.argwhere(a > 6)
    if not len(where):
        return None
    begin = np.array(block.write_roi.begin)
    return np.stack([where.min(axis=0) + begin, where.max(axis=0) + 1 + begin])


def union(one, other):
    """Box around two boxes."""
    return np.stack([np.minimum(one[0], other[0]), np.maximum(one[1], other[1])])


def count_labels(a):
    """Table of the voxels of each label."""
    labels, counts = np.unique(a, return_counts=True)
    return pa.table({"label": labels, "voxels": counts})


def add_tables(one, other):
    """Sum of two such tables."""
    both = pa.concat_tables([one, other]).group_by("label").aggregate([("voxels", "sum")])
    return both.rename_columns(["label", "voxels"])


@settings(max_examples=25)
@given(
    shape=st.integers(1, 3).flatmap(lambda rank: st.tuples(*[st.integers(1, 8)] * rank)),
    block=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_equal_to_the_whole(shape, block, seed):
    """Histogram, sum, largest value, counts of labels and bounding box are those of the whole array."""
    data = np.random.default_rng(seed).integers(0, 10, shape)

    def value(function, **how):
        return run_by_hand(ws.reduce_blocks(function, data, block_shape=block, **how), seed).result()

    assert np.array_equal(value(histogram), histogram(data))
    assert value(np.sum) == data.sum()
    assert value(np.max, combine=max) == data.max()
    table = value(count_labels, combine=add_tables).to_pydict()
    assert dict(zip(table["label"], table["voxels"], strict=True)) == dict(
        zip(*(part.tolist() for part in np.unique(data, return_counts=True)), strict=True)
    )
    box, where = value(bounding_box, combine=union), np.argwhere(data > 6)
    if len(where):
        assert np.array_equal(box, [where.min(axis=0), where.max(axis=0) + 1])
    else:
        assert box is None


@given(st.lists(st.one_of(st.none(), st.text(max_size=2)), max_size=40))
def test_the_tree_keeps_the_order(values):
    """Any associative function of neighbours gives what it gives from left to right, swapped or not."""
    there = [value for value in values if value is not None]
    assert combine_as_tree(values, lambda a, b: a + b) == ("".join(there) if there else None)


def test_the_tree_is_low():
    """A value goes through few combinations: of 1000 blocks, ten."""
    assert combine_as_tree([1] * 1000, lambda a, b: max(a, b) + 1) <= 11


class TestResume:
    """Values beside the tracking store."""

    def task(self, function, **how):
        """Four blocks, tracked."""
        how = {"tracking_path": "tracking/sum", "max_retries": 0, **how}
        return ws.reduce_blocks(function, np.arange(12), block_shape=3, task_id="t", **how)

    def test_nothing_is_computed_again(self):
        """A run that goes on computes what is missing and no more; the result is that of all (KF-25)."""
        calls = []

        def add(a, block):
            calls.append(block.index)
            if block.index == 2 and not Path("go").exists():
                raise RuntimeError("not yet")
            return a.sum()

        task = self.task(add)
        assert not task.run(engine="serial", **QUIET)
        with pytest.raises(ConfigurationError, match="values of 3 of 4 blocks, so there is no result yet"):
            task.result()
        Path("go").touch()
        again = self.task(add)
        assert again.run(engine="serial", **QUIET)
        assert sorted(calls) == [0, 1, 2, 2, 3]
        assert again.result() == 66
        assert self.task(add).result() == 66  # of an earlier process
        assert sorted(path.name for path in Path("tracking/.workspan/sum.results").iterdir()) == [
            f"{n}.npy" for n in range(4)
        ]

    def test_a_value_that_is_gone(self):
        """A done block whose value was removed is not left out of the sum without a word (KF-25)."""
        assert self.task(np.sum).run(engine="serial", **QUIET)
        Path("tracking/.workspan/sum.results/1.npy").unlink()
        with pytest.raises(
            TrackingError, match=r"1 blocks of task 't' are recorded as done and have no value .* block 1"
        ):
            self.task(np.sum).run(engine="serial", **QUIET)

    def test_values_of_a_deleted_store_do_not_count(self):
        """After the store was deleted, by reset() or by hand, old values are not mixed with new ones."""
        assert self.task(np.sum).run(engine="serial", **QUIET)
        self.task(np.sum).reset()
        assert not Path("tracking/.workspan/sum.results").exists()
        assert self.task(np.sum).run(engine="serial", **QUIET)
        shutil.rmtree("tracking/sum")

        def fails(a, block):
            if block.index == 1:
                raise RuntimeError("x")
            return a.sum()

        task = self.task(fails)
        assert not task.run(engine="serial", **QUIET)
        with pytest.raises(ConfigurationError, match="3 of 4"):
            task.result()

    def test_without_tracking_the_value_lives_with_the_task(self):
        """Nothing is left on disk once the task object is gone, and another object knows nothing."""
        task = self.task(np.sum, tracking_path=False)
        assert task.run(engine="serial", **QUIET)
        folder = task.results_folder()
        assert task.result() == 66
        with pytest.raises(ConfigurationError, match="0 of 4"):
            self.task(np.sum, tracking_path=False).result()
        del task
        gc.collect()
        assert not folder.exists()


def test_with_processes_and_a_table():
    """Workers keep tables as Parquet; masked blocks add nothing."""
    data = np.random.default_rng(0).integers(0, 5, (16, 8))
    zarr.create_array("labels.zarr", data=data, chunks=(4, 8))
    task = ws.reduce_blocks(
        count_labels,
        "labels.zarr",
        combine=add_tables,
        max_workers=2,
        skip_mask=np.array([[0], [1], [0], [0]]),
        tracking_path="tracking/count",
    )
    assert task.run(**QUIET)
    table = task.result().to_pydict()
    kept = np.delete(data, slice(4, 8), axis=0)
    assert dict(zip(table["label"], table["voxels"], strict=True)) == dict(
        enumerate(np.bincount(kept.ravel()).tolist())
    )
    assert sorted(path.suffix for path in task.results_folder().iterdir()) == [".parquet"] * 3


def test_what_cannot_be_kept():
    """A value that is neither number, array, table nor None is refused with its type."""
    task = ws.reduce_blocks(lambda a: {"a": 1}, np.arange(4), block_shape=2)
    with pytest.raises(UsageTypeError, match=r"block .*: the function returned a dict"):
        run_by_hand(task)

"""Inputs read by tiles: the same voxels, decoded a few times instead of once a neighbour."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import workspan as ws
from workspan.arrays.tiles import TilePlan, Tiles, plan_tiles

MUCH = 1 << 30
CUBE = {"origin": (0,) * 3, "size": (128,) * 3, "halo": ((6, 6),) * 3}


class FakeArray:
    """An array that notes what is read of it."""

    def __init__(self, data):
        self.data, self.reads = data, []
        self.shape, self.dtype = data.shape, data.dtype

    def __getitem__(self, where):
        self.reads.append(where)
        return self.data[where]


@st.composite
def cases(draw):
    """Draw an array, a plan that need not begin at its edge, and boxes in the array."""
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    size = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    halo = tuple((draw(st.integers(0, s)), draw(st.integers(0, s))) for s in size)
    origin = tuple(draw(st.integers(0, n - 1)) for n in shape)
    plan = TilePlan(origin, size, halo, draw(st.sampled_from((0, 40, MUCH))))
    boxes = []
    for _ in range(draw(st.integers(1, 12))):
        begin = tuple(draw(st.integers(0, n - 1)) for n in shape)
        boxes.append(tuple(slice(b, draw(st.integers(b, n))) for b, n in zip(begin, shape, strict=True)))
    return np.arange(np.prod(shape), dtype="u2").reshape(shape), plan, boxes


def blocks_of(shape, size, halo):
    """What blocks read, in C order, clipped at the edge."""
    for begin in product(*(range(0, n, s) for n, s in zip(shape, size, strict=True))):
        yield tuple(
            slice(max(b - low, 0), min(b + s + high, n))
            for b, s, n, (low, high) in zip(begin, size, shape, halo, strict=True)
        )


class TestTiles:
    """Reading."""

    @settings(max_examples=150)
    @given(cases())
    def test_every_voxel_is_the_arrays(self, case):
        """Any box in any order is what the array holds, a copy, and no more is kept than was allowed (KF-26)."""
        data, plan, boxes = case
        before = data.copy()
        tiles = Tiles(data, plan)
        for where in boxes:
            found = tiles[where]
            assert np.array_equal(found, before[where])
            assert found.dtype == data.dtype
            found[...] = 0  # a function that works in place changes neither the array nor what is kept
            assert sum(layer.nbytes for kept in tiles._kept.values() for _, layer in kept) <= plan.most_bytes
        assert np.array_equal(data, before)

    def test_a_chunk_is_read_twice_at_most(self):
        """In C order within the plan's bytes no tile is read more than twice; 27 blocks look at it (M9)."""
        shape, size, halo = (48, 40, 56), (8, 8, 8), ((1, 1),) * 3
        array = FakeArray(np.random.default_rng(0).integers(0, 99, shape, "u1"))
        plan = plan_tiles(shape, size, 1, origin=(0, 0, 0), size=size, halo=halo, most_bytes=MUCH)
        assert plan.most_bytes < 48 * 40 * 56  # less than the array
        tiles = Tiles(array, plan)
        for where in blocks_of(shape, size, halo):
            assert np.array_equal(tiles[where], array.data[where])
        assert max(map(array.reads.count, array.reads)) == 2


class TestPlan:
    """When it pays."""

    @pytest.mark.parametrize(
        ("chunk", "itemsize", "most_bytes", "is_worth_it"),
        [
            (128, 1, 64 << 20, True),  # 27 chunks a block become 2
            (128, 8, 128 << 20, True),  # no room for whole planes: 10
            (128, 8, 64 << 20, False),  # no room for what one block reads
            (64, 1, 128 << 20, True),  # 64 become 16
            (64, 1, 64 << 20, False),  # without whole planes they would become 80
            (16, 1, 64 << 20, False),  # 1000 of 512 are too few
            (100, 1, 64 << 20, False),  # blocks are not made of whole chunks
        ],
    )
    def test_only_where_it_saves_enough(self, chunk, itemsize, most_bytes, is_worth_it):
        """Tiles are used where far fewer chunks are decoded, in the memory that they may take (M9)."""
        plan = plan_tiles((1024,) * 3, (chunk,) * 3, itemsize, most_bytes=most_bytes, **CUBE)
        assert (plan is not None) == is_worth_it
        assert plan is None or plan.most_bytes <= most_bytes

    def test_a_halo_wider_than_a_block(self):
        """A block that looks past its neighbours is read as ever."""
        cube = {**CUBE, "halo": ((129, 0),) * 3}
        assert plan_tiles((1024,) * 3, (128,) * 3, 1, most_bytes=MUCH, **cube) is None


def smooth(data):
    """Take it as it is."""
    return data


class TestTasks:
    """Which inputs are read by tiles."""

    def task(self, **arguments):
        if not hasattr(self, "data"):
            self.data = np.random.default_rng(0).integers(0, 99, (30, 30), "u1")
            zarr.create_array("raw.zarr", data=self.data, chunks=(10, 10))
        return ws.map_blocks(smooth, "raw.zarr", out="out.zarr", block_shape=10, halo=2, **arguments)

    def test_blocks_by_tiles(self, tmp_path, monkeypatch):
        """Blocks with padding at the edge get the voxels that they get without tiles, in any order."""
        monkeypatch.chdir(tmp_path)
        task, plain = self.task(), self.task()
        task.check_run(False, has_upstream=False)
        assert task.reader.plans != (None,)
        blocks = [ws.grid.Block.at(task.layout, index, "t") for index in (4, 0, 8, 2, 6, 1, 3, 5, 7)]
        zarr.create_array("out.zarr", shape=(30, 30), chunks=(10, 10), dtype="u1")
        for block in blocks:
            assert np.array_equal(task.reader.compute(block), plain.reader.compute(block))
        assert type(task.reader.arrays()[0]) is Tiles
        assert type(plain.reader.arrays()[0]) is not Tiles

    def test_not_what_may_change(self, tmp_path, monkeypatch):
        """An input that an upstream task may still write, and one in this process, is looked at anew each time."""
        monkeypatch.chdir(tmp_path)
        task = self.task()
        task.check_run(False, has_upstream=True)
        assert task.reader.plans == ()
        task.check_run(True, has_upstream=False)
        assert task.reader.plans == ()

    def test_a_run_knows_what_comes_before(self, tmp_path, monkeypatch):
        """In a pipeline only tasks that wait for none may take their inputs for steady (KF-25)."""
        monkeypatch.chdir(tmp_path)
        told = {}
        first = self.task(task_id="first")
        second = ws.map_blocks(smooth, "raw.zarr", out="b.zarr", block_shape=10, task_id="second")
        for task in (first, second):
            real = task.check_run

            def check_run(in_process, *, has_upstream, task=task, real=real):
                told[task.task_id] = has_upstream
                real(in_process, has_upstream=has_upstream)

            monkeypatch.setattr(task, "check_run", check_run)
        assert (first + second).run(engine="serial", progress=False, summary=False)
        assert told == {"first": False, "second": True}

"""Dependency graphs and the hand-driven scheduler."""

from __future__ import annotations

import numpy as np
import pytest
from funlib.geometry import Roi
from hypothesis import given
from hypothesis import strategies as st

from helpers.layouts import brute_boxes, layouts, overlap
from workspan.errors import ConfigurationError
from workspan.grid import Block, BlockStatus
from workspan.grid.block import box_roi
from workspan.run.graphs import (
    BlockwiseDependencyGraph,
    DependencyGraph,
    Scheduler,
    expand_roi_to_grid,
    expand_write_roi_to_grid,
)
from workspan.run.pipeline import Pipeline
from workspan.run.task import Task


def graph_of(layout):
    return BlockwiseDependencyGraph(
        "t",
        Roi(layout.read_begin, layout.read_shape),
        Roi(layout.write_begin, layout.write_shape),
        layout.read_write_conflict,
        layout.fit,
        total_read_roi=Roi(layout.total_begin, layout.total_shape),
    )


def square(task_id="t", **kwargs):
    return Task(task_id, Roi((0, 0), (6, 6)), Roi((0, 0), (3, 3)), Roi((1, 1), (1, 1)), lambda b: None, **kwargs)


class TestBlockwise:
    def test_the_square_has_the_levels_of_the_specification(self):
        """B24, B25: enumeration level by level, roots first."""
        graph = graph_of(square().layout)
        assert (graph.num_blocks, graph.num_levels, graph.num_roots()) == (16, 4, 4)
        ids = [block.block_id[1] for block, _ in graph.enumerate_all_dependencies()]
        assert ids == [12, 23, 25, 40, 8, 17, 19, 32, 7, 16, 18, 31, 4, 11, 13, 24]
        assert [b.block_id[1] for b in graph.root_gen()] == ids[:4]

    @given(layouts(ranks=(1, 2)), st.data())
    def test_subgraph_blocks_overlap_exactly(self, layout, data):
        """B26: exact on fitted ROIs, for asymmetric context, by write and by read ROI."""
        begin = [
            data.draw(st.integers(t - 3, t + s + 3))
            for t, s in zip(layout.total_begin, layout.total_shape, strict=True)
        ]
        shape = [data.draw(st.integers(1, 9)) for _ in begin]
        box = (tuple(begin), tuple(b + s for b, s in zip(begin, shape, strict=True)))
        low, high = layout.covered
        clipped = (tuple(map(max, box[0], low)), tuple(map(min, box[1], high)))
        graph = graph_of(layout)
        boxes = brute_boxes(layout)
        roi = Roi(begin, shape)
        assert [b.index for b in graph.get_subgraph_blocks(roi)] == [
            i for i, (write, _) in enumerate(boxes) if overlap(write, clipped)
        ]
        assert [b.index for b in graph.get_subgraph_blocks(roi, read_roi=True)] == [
            i for i, (_, read) in enumerate(boxes) if overlap(read, box)
        ]

    def test_totals_are_checked(self):
        """B25: no total, or two that do not fit together, are refused."""
        read, write = Roi((0,), (3,)), Roi((1,), (1,))
        with pytest.raises(ConfigurationError, match="both missing"):
            BlockwiseDependencyGraph("t", read, write, True, "valid")
        with pytest.raises(ConfigurationError, match="do not differ by the block's context"):
            BlockwiseDependencyGraph("t", read, write, True, "valid", Roi((0,), (10,)), Roi((0,), (10,)))
        graph = BlockwiseDependencyGraph("t", read, write, True, "valid", total_write_roi=Roi((1,), (8,)))
        assert graph.num_blocks == 8


class TestPipelines:
    def test_upstream_and_downstream_join_tasks_and_are_inverse(self):
        """B28, B29: own and foreign inputs, sorted by spatial id, exact inverses."""
        a, b = square("a"), square("b")
        graph = DependencyGraph(Pipeline([a, b], [(a, b)]))
        assert (graph.root_tasks(), graph.num_roots("a"), graph.num_roots("b")) == (["a"], 4, 0)
        pairs = set()
        blocks = [Block.at(task.layout, i, task.task_id) for task in (a, b) for i in range(task.layout.num_blocks)]
        for block in blocks:
            ups = graph.upstream(block)
            assert [u.block_id[1] for u in ups] == sorted(u.block_id[1] for u in ups)
            pairs |= {(u.block_id, block.block_id) for u in ups}
        downs = {(block.block_id, down.block_id) for block in blocks for down in graph.downstream(block)}
        assert pairs == downs
        assert any(u[0] == "a" and d[0] == "b" for u, d in pairs)


class TestScheduler:
    def test_a_hand_driven_run(self):
        """B33, B34, B38: acquire and release until done; a release tells which tasks gained work."""
        a, b = square("a", read_write_conflict=False), square("b", read_write_conflict=False)
        scheduler = Scheduler(Pipeline([a, b], [(a, b)]))
        seen = []
        while ready := scheduler.get_ready_tasks():
            block = scheduler.acquire_block(ready[-1])
            seen.append(block.block_id)
            block.status = BlockStatus.SUCCESS
            gained = scheduler.release_block(block)
            assert set(gained) <= {"a", "b"}
        assert len(set(seen)) == len(seen) == 32
        assert all(state.is_done() for state in scheduler.task_states.values())
        assert seen[-1][0] == "b"

    def test_other_statuses_and_foreign_blocks_are_refused(self):
        """B36: RuntimeError for a status that is no outcome; unknown tasks and blocks are named."""
        scheduler = Scheduler(square())
        block = scheduler.acquire_block("t")
        with pytest.raises(RuntimeError, match="PROCESSING"):
            scheduler.release_block(block)
        with pytest.raises(ConfigurationError, match="no task 'u'"):
            scheduler.acquire_block("u")

    def test_a_check_function_skips_and_its_exception_means_not_done(self, caplog):
        """B35, B46, KF-16: truthy is done; the first exception is told once, later ones are silent."""

        def check(block):
            if block.block_id[1] == 12:
                return True
            raise TypeError("no such thing")

        with pytest.warns(UserWarning, match="tracking_path"):
            task = square(check_function=check)
        scheduler = Scheduler(task)
        assert scheduler.acquire_block("t").block_id == ("t", 23)
        scheduler.acquire_block("t")
        assert scheduler.task_states["t"].skipped_count == 1
        assert len([r for r in caplog.records if "TypeError: no such thing" in r.getMessage()]) == 1

    def test_masked_blocks_are_not_handed_out(self):
        """B35, B50: the mask is looked at here too."""
        mask = np.ones((4, 4))
        mask[1, 1] = 0
        scheduler = Scheduler(square(skip_mask=mask, read_write_conflict=False))
        assert scheduler.acquire_block("t").block_id == ("t", 12)
        assert scheduler.acquire_block("t") is None
        assert scheduler.task_states["t"].skipped_count == 15


def test_regions_snap_to_the_grid():
    """Section 15: the smallest union of whole write blocks, anchored at the task's first block, or at 0."""
    total, read, write = Roi((0,), (42,)), Roi((0,), (12,)), Roi((1,), (10,))
    assert expand_roi_to_grid(Roi((12,), (1,)), total, read, write) == box_roi(((11,), (21,)))
    assert expand_roi_to_grid(Roi((0,), (12,)), total, read, write) == box_roi(((-9,), (21,)))
    assert expand_write_roi_to_grid(Roi((12,), (10,)), write) == box_roi(((10,), (30,)))

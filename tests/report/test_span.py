"""Work, span and parallelism: the longest chain of blocks that wait for each other."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers.layouts import layouts
from helpers.pipelines import brute_inputs, pipelines
from workspan.grid import Layout
from workspan.report.span import critical_paths
from workspan.schedule.spec import PipelineSpec, TaskSpec


def paths(spec, seconds):
    """The function's answer for blocks of *seconds*, (task, index) -> s, with room for times in every task."""
    times, longest = [], []
    for number, task in enumerate(spec.tasks):
        own = [seconds.get((number, index), 0.0) for index in range(task.layout.num_blocks)]
        times.append(memoryview(np.array(own, np.float32)))
        longest.append(max(own, default=0.0))
    return critical_paths([task.layout for task in spec.tasks], spec.edges, times, longest)


def brute_paths(spec, seconds):
    """The same block by block, over dependencies found by overlap of boxes."""
    inputs = brute_inputs(spec)
    ends: dict[tuple[int, int], float] = {}

    def end(block, tasks):
        key = (block, tasks)
        if key not in ends:
            waits = [end(other, tasks) for other in inputs[block] if other[0] in tasks]
            ends[key] = seconds.get(block, 0.0) + max(waits, default=0.0)
        return ends[key]

    def longest(blocks, tasks):
        return max((end(block, tasks) for block in blocks), default=0.0)

    own = [longest([b for b in inputs if b[0] == n], frozenset({n})) for n in range(len(spec.tasks))]
    return own, longest(inputs, frozenset(range(len(spec.tasks))))


@st.composite
def measured(draw, specs):
    """A pipeline and its blocks' times in whole eighths of a second, exact in single precision; 0: skipped."""
    spec = draw(specs)
    seed = draw(st.integers(0, 2**32 - 1))
    skipped = draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    rng = np.random.default_rng(seed)
    return spec, {block: int(rng.random() >= skipped) * int(rng.integers(1, 80)) / 8 for block in brute_inputs(spec)}


SINGLE = layouts().map(lambda layout: PipelineSpec((TaskSpec("t", layout),)))


class TestCriticalPaths:
    @given(measured(SINGLE))
    def test_one_task_agrees_with_the_longest_path(self, case):
        """In one task of rank 1 to 3, any fit, with and without conflict, the span is the longest path (B22, B23)."""
        own, whole = paths(*case)
        assert (own, whole) == brute_paths(*case)
        assert own == [whole]

    @given(measured(pipelines(most_tasks=3)))
    def test_several_tasks_agree_with_the_longest_path(self, case):
        """Across tasks it follows block from block, through skipped blocks too (B28); a task alone ignores others."""
        assert paths(*case) == brute_paths(*case)

    @given(measured(pipelines(most_tasks=3)))
    def test_tasks_nobody_waits_in_need_no_times(self, case):
        """Of a task without dependencies the longest block is all there is to know."""
        spec, seconds = case
        joined = {task for edge in spec.edges for task in edge}
        times, longest = [], []
        for number, task in enumerate(spec.tasks):
            own = [seconds[number, index] for index in range(task.layout.num_blocks)]
            free = number not in joined and task.layout.num_levels == 1
            times.append(None if free else memoryview(np.array(own, np.float32)))
            longest.append(max(own, default=0.0))
        assert critical_paths([t.layout for t in spec.tasks], spec.edges, times, longest) == brute_paths(*case)

    def test_a_chain_counted_by_hand(self):
        """Two levels on a line: 1.5, 8 and 2 s go first, 4 and 1 s wait for both neighbours: 8 + 4 s (B19, B22).

        Five blocks of ten with a halo of five: blocks 1 and 3 are level 0, blocks 0, 2 and 4 wait for them.
        """
        layout = Layout((0,), (60,), (0,), (20,), (5,), (10,), "valid", True)
        assert [list(layout.level_blocks(level)) for level in range(2)] == [[1, 3], [0, 2, 4]]
        spec = PipelineSpec((TaskSpec("t", layout),))
        seconds = dict(enumerate([1.0, 8.0, 4.0, 2.0, 1.5]))
        own, whole = paths(spec, {(0, index): value for index, value in seconds.items()})
        assert (own, whole) == ([12.0], 12.0)

    def test_one_block_that_reads_all(self):
        """A reader of everything starts after the slowest source block; sources beside each other do not add up."""
        source = Layout((0, 0), (30, 20), (0, 0), (10, 10), (0, 0), (10, 10), "valid", False)
        reader = Layout((0, 0), (30, 20), (0, 0), (30, 20), (0, 0), (30, 20), "valid", False)
        spec = PipelineSpec((TaskSpec("a", source), TaskSpec("b", reader)), ((0, 1),))
        seconds = {(0, index): float(index) for index in range(6)} | {(1, 0): 0.5}
        assert paths(spec, seconds) == ([5.0, 0.5], 5.5)

    def test_a_skipped_task_passes_the_path_on(self):
        """Of three tasks in a row the middle one was skipped: the chain leads through it, block by block (B28)."""
        layout = Layout((0,), (30,), (0,), (10,), (0,), (10,), "valid", False)
        spec = PipelineSpec(tuple(TaskSpec(name, layout) for name in "abc"), ((0, 1), (1, 2)))
        seconds = {(0, 0): 1.0, (0, 1): 4.0, (2, 0): 16.0, (2, 1): 2.0}
        assert paths(spec, seconds) == ([4.0, 0.0, 16.0], 17.0) == brute_paths(spec, seconds)

    def test_a_task_without_blocks(self):
        """A region too small for a block waits for nothing and holds nobody up."""
        none = Layout((0, 0), (30, 5), (0, 0), (10, 10), (0, 0), (10, 10), "valid", False)
        some = Layout((0, 0), (30, 10), (0, 0), (10, 10), (0, 0), (10, 10), "valid", False)
        spec = PipelineSpec((TaskSpec("a", some), TaskSpec("b", none), TaskSpec("c", none)), ((0, 1), (1, 2)))
        assert paths(spec, {(0, 0): 1.0}) == ([1.0, 0.0, 0.0], 1.0)

    def test_nothing_at_all(self):
        """A run of no tasks has no path."""
        assert critical_paths([], [], [], []) == ([], 0.0)

    def test_a_million_blocks_are_quick(self):
        """10^6 blocks in three dimensions with conflict take well below a second of CPU (best of three)."""
        layout = Layout((0,) * 3, (102,) * 3, (0,) * 3, (3,) * 3, (1,) * 3, (1,) * 3, "valid", True)
        assert (layout.num_blocks, layout.num_levels) == (10**6, 8)
        values = np.random.default_rng(1).random(10**6, np.float32)
        taken = []
        for _ in range(3):
            times = memoryview(values.copy())
            began = time.process_time()
            critical_paths([layout], [], [times], [1.0])
            taken.append(time.process_time() - began)
        assert min(taken) < 0.5

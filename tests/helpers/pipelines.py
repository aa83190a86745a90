"""Random pipelines, their dependencies by brute force, and a recorder that remembers."""

from __future__ import annotations

from collections import defaultdict
from math import inf

from hypothesis import strategies as st

from helpers.layouts import brute_boxes, layouts, overlap
from workspan.errors import ConfigurationError
from workspan.grid.neighbours import ConflictGraph
from workspan.schedule.ledger import Ledger
from workspan.schedule.spec import PipelineSpec, TaskSpec


@st.composite
def pipelines(draw, *, most_tasks=4, most=4):
    """Draw pipelines whose edges are legal: every reader block overlaps a block of its source."""
    rank = draw(st.sampled_from((1, 1, 2)))
    count = draw(st.integers(1, most_tasks))
    tasks = tuple(
        TaskSpec(
            f"t{n}",
            draw(layouts(rank=rank, most=most)),
            max_workers=draw(st.integers(1, 3)),
            max_retries=draw(st.integers(0, 2)),
            max_worker_restarts=draw(st.integers(0, 5)),
            timeout=draw(st.sampled_from((inf, 600.0))),
            requires=draw(st.sampled_from(({}, {"gpu": 1}, {"gpu": 2}))),
        )
        for n in range(count)
    )
    edges = []
    for down in range(1, count):
        for up in range(down):
            edge = (up, down)
            try:
                PipelineSpec(tasks, (edge,)).relation(*edge).check()
            except ConfigurationError:
                continue
            if tasks[up].layout.num_blocks and draw(st.booleans()):
                edges.append(edge)
    return PipelineSpec(tasks, tuple(edges))


def brute_inputs(pipeline):
    """(task, index) -> set of (task, index) that it waits for, by overlap of boxes and the conflict graph."""
    boxes = [brute_boxes(task.layout) for task in pipeline.tasks]
    out = {}
    for number, task in enumerate(pipeline.tasks):
        graph = ConflictGraph(task.layout) if task.layout.num_levels > 1 else None
        for index in range(task.layout.num_blocks):
            inputs = {(number, u) for u in graph.inputs(index)} if graph else set()
            for up in pipeline.upstream(number):
                read = boxes[number][index][1]
                inputs |= {(up, u) for u, (write, _) in enumerate(boxes[up]) if overlap(write, read)}
            out[number, index] = inputs
    return out


def descendants(inputs, roots):
    """Everything that transitively waits for one of *roots*."""
    below = defaultdict(set)
    for block, ups in inputs.items():
        for up in ups:
            below[up].add(block)
    found, todo = set(), list(roots)
    while todo:
        for block in below[todo.pop()]:
            if block not in found:
                found.add(block)
                todo.append(block)
    return found


def check_counts(ledger: Ledger):
    """B61: the parts add up to the total, and none is negative."""
    for blocks in ledger.tasks:
        s = blocks.state
        parts = [s.ready_count, s.processing_count, s.completed_count, s.failed_count, s.orphaned_count]
        assert min(*parts, s.pending_count) >= 0, s
        assert s.skipped_count <= s.completed_count
        assert s.processing_count == len(blocks.in_flight)


class Record:
    """A recorder that remembers every call, in order."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: self.calls.append((name, *args))

    def of(self, name):
        """Arguments of every call of *name*."""
        return [args for called, *args in self.calls if called == name]

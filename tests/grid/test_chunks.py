"""Blocks that share a chunk are found, told how far apart, and kept apart in time."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from helpers.layouts import layouts
from workspan.grid import Layout
from workspan.grid.chunks import ChunkGrid, blocks_apart, fitting_shapes, shared_axes
from workspan.grid.neighbours import ConflictGraph
from workspan.store.hash import layout_hash


@st.composite
def layouts_and_chunks(draw, **how):
    """Draw a layout without conflict, and a chunk grid of its rank."""
    layout = draw(layouts(conflict=False, **how))
    origin = tuple(draw(st.integers(-9, 9)) for _ in range(layout.rank))
    return layout, ChunkGrid(origin, tuple(draw(st.integers(1, 9)) for _ in range(layout.rank)))


def chunks_of(layout, grid, index):
    """Per axis, the set of chunks that a block writes: by the definition, voxel by voxel."""
    boxes = zip(*layout.write_box(index), grid.origin, grid.size, strict=True)
    return [{(at - origin) // size for at in range(begin, end)} for begin, end, origin, size in boxes]


def sharing_pairs(layout, grid):
    """Pairs of blocks with a chunk in common."""
    chunks = [chunks_of(layout, grid, index) for index in range(layout.num_blocks)]
    return [
        (i, j)
        for i, j in combinations(range(layout.num_blocks), 2)
        if all(a & b for a, b in zip(chunks[i], chunks[j], strict=True))
    ]


@given(layouts_and_chunks(most=4))
def test_shared_chunks_are_found_exactly(drawn):
    """No axis is named iff no two blocks write one chunk, offsets and clipped blocks included (KF-19, KF-26)."""
    layout, grid = drawn
    assert bool(shared_axes(layout, grid)) == bool(sharing_pairs(layout, grid))


@given(layouts_and_chunks(most=4))
def test_blocks_further_apart_share_no_chunk(drawn):
    """The distance told is never smaller than that of two blocks with a chunk in common (KF-19)."""
    layout, grid = drawn
    apart = blocks_apart(layout, grid)
    for i, j in sharing_pairs(layout, grid):
        steps = [abs(a - b) for a, b in zip(layout.coords(i), layout.coords(j), strict=True)]
        assert all(step <= limit for step, limit in zip(steps, apart, strict=True))


@given(layouts_and_chunks(most=4, ranks=(1, 2, 2, 3)))
def test_blocks_that_share_a_chunk_wait_for_each_other(drawn):
    """Of two blocks with a chunk in common one waits, through others or not, for the other one (KF-19)."""
    layout, grid = drawn
    ordered = replace(layout, apart=blocks_apart(layout, grid))
    graph = ConflictGraph(ordered)
    before: dict[int, set[int]] = {}
    for level in range(ordered.num_levels):
        for index in ordered.level_blocks(level):
            inputs = graph.inputs(index) if ordered.num_levels > 1 else []
            before[index] = set(inputs).union(*(before[other] for other in inputs))
    assert len(before) == layout.num_blocks
    for i, j in sharing_pairs(layout, grid):
        assert i in before[j] or j in before[i], (i, j)


@given(layouts_and_chunks(most=3))
def test_keeping_apart_changes_no_block(drawn):
    """ROIs, ids and the identity of the layout on disk stay, so that a run resumes with or without the order."""
    layout, grid = drawn
    ordered = replace(layout, apart=blocks_apart(layout, grid))
    assert layout_hash(ordered) == layout_hash(layout)
    for index in range(layout.num_blocks):
        assert ordered.write_box(index) == layout.write_box(index)
        assert ordered.read_box(index) == layout.read_box(index)
        assert ordered.block_id(index) == layout.block_id(index)


@given(layouts_and_chunks(most=4))
def test_the_proposed_shapes_fit(drawn):
    """Blocks of each proposed shape share no chunk, once they begin at a chunk."""
    layout, grid = drawn
    assert fitting_shapes(layout, grid)
    for shape in fitting_shapes(layout, grid):
        whole = Layout(grid.origin, layout.total_shape, grid.origin, shape, grid.origin, shape, "shrink", False)
        assert shared_axes(whole, grid) == []

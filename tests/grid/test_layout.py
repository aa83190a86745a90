"""The tiling of a region."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.layouts import brute_boxes, layouts, overlap
from workspan.errors import ConfigurationError
from workspan.grid import Layout, pyramid_cell, pyramid_number
from workspan.grid.neighbours import ConflictGraph


def layout_1d(total, read, write, fit="valid", conflict=False):
    return Layout((total[0],), (total[1],), (read[0],), (read[1],), (write[0],), (write[1],), fit, conflict)


SQUARE = Layout((0, 0), (6, 6), (0, 0), (3, 3), (1, 1), (1, 1))


class TestTiling:
    @pytest.mark.parametrize(
        ("write", "fit", "count"),
        [
            ((2, 1), "valid", 8),
            ((2, 1), "overhang", 8),
            ((2, 1), "shrink", 8),
            ((1, 3), "valid", 3),
            ((1, 3), "overhang", 4),
            ((1, 3), "shrink", 4),
        ],
    )
    def test_block_counts_of_the_specification(self, write, fit, count):
        """B5, B7: the number of blocks of each fit."""
        assert layout_1d((0, 12), (0, 5), write, fit).num_blocks == count

    def test_shrink_clips_the_last_block(self):
        """B6, B7: the last of 20 blocks writes [97, 98) and reads [95, 100)."""
        layout = layout_1d((0, 100), (0, 9), (2, 5), "shrink")
        assert layout.num_blocks == 20
        assert layout.write_box(19) == ((97,), (98,))
        assert layout.read_box(19) == ((95,), (100,))

    @pytest.mark.parametrize(("fit", "count", "last"), [("valid", 2, 15), ("shrink", 3, 18), ("overhang", 3, 25)])
    def test_edges_of_a_region_that_does_not_divide(self, fit, count, last):
        """KF-26: negative offset, size that does not divide, unit axis: right counts and last write ROI."""
        layout = Layout((-7, 0), (27, 1), (-2, 0), (14, 1), (0, 0), (10, 1), fit, False)
        assert layout.num_blocks == count
        assert layout.write_box(count - 1)[1] == (last, 1)

    @given(layouts() | layouts(ranks=(4,), most=2))
    def test_boxes_and_counts_follow_the_definition(self, layout):
        """B3-B6: every block's write and read box equals the brute-force tiling, in C order."""
        assert [(layout.write_box(i), layout.read_box(i)) for i in range(layout.num_blocks)] == brute_boxes(layout)
        assert layout.num_blocks == prod(layout.counts)

    @given(layouts())
    def test_positions_round_trip(self, layout):
        """B11: index, mask-grid position and tracking cell convert into each other; cells lie in the grid."""
        for index in range(layout.num_blocks):
            assert layout.index(layout.coords(index)) == index
            cell = layout.cell(index)
            assert all(0 <= c < n for c, n in zip(cell, layout.cell_counts, strict=True))
            assert layout.index_of_cell(cell) == index

    def test_two_grids_are_not_confused(self):
        """B8, B11: with a context wider than a block the first block is in cell 1 of 6, and its id is 1."""
        layout = layout_1d((-15, 60), (-15, 40), (0, 10))
        assert layout.counts == (3,)
        assert layout.cell_counts == (6,)
        assert [layout.cell(i) for i in range(3)] == [(1,), (2,), (3,)]
        assert [layout.block_id(i) for i in range(3)] == [1, 2, 3]
        assert layout.index_of_cell((0,)) is None

    def test_an_empty_layout_is_legal(self):
        """B16: a region smaller than a block has no blocks, with and without conflict."""
        for conflict in (False, True):
            layout = layout_1d((0, 3), (0, 5), (0, 5), conflict=conflict)
            assert layout.num_blocks == 0
            assert list(layout.level_blocks(0)) == []


class TestIds:
    @pytest.mark.parametrize(
        ("cell", "number"), [((2, 2), 12), ((2, 4), 23), ((4, 2), 25), ((4, 4), 40), ((1, 0, 0), 3), ((7,), 7)]
    )
    def test_pyramid_numbers_of_the_specification(self, cell, number):
        """B9: the vectors."""
        assert pyramid_number(cell) == number

    @given(st.lists(st.integers(0, 10**9), min_size=1, max_size=5).map(tuple))
    def test_a_pyramid_number_leads_back_to_its_cell(self, cell):
        """B9: every cell is found again from its number."""
        assert pyramid_cell(pyramid_number(cell), len(cell)) == cell

    @given(st.integers(0, 10**30), st.integers(1, 5))
    def test_every_number_is_that_of_one_cell(self, number, rank):
        """B9: numbers have no gaps: each leads to a cell of whole coordinates, and back."""
        cell = pyramid_cell(number, rank)
        assert len(cell) == rank
        assert min(cell) >= 0
        assert pyramid_number(cell) == number

    def test_ids_of_the_square(self):
        """B12: ids by row."""
        ids = [SQUARE.block_id(i) for i in range(16)]
        assert ids == [4, 7, 11, 16, 8, 12, 17, 23, 13, 18, 24, 31, 19, 25, 32, 40]

    @given(layouts(ranks=(1, 2, 3, 4), most=3))
    def test_ids_are_unique_and_their_order_needs_no_big_integers(self, layout):
        """B23: ids are unique; sorting by id_order sorts by id."""
        indices = range(layout.num_blocks)
        assert len({layout.block_id(i) for i in indices}) == layout.num_blocks
        assert sorted(indices, key=layout.id_order) == sorted(indices, key=layout.block_id)


class TestLevels:
    def test_levels_of_the_square(self):
        """B24: the four levels, in order."""
        levels = [[SQUARE.block_id(i) for i in SQUARE.level_blocks(n)] for n in range(SQUARE.num_levels)]
        assert levels == [[12, 23, 25, 40], [8, 17, 19, 32], [7, 16, 18, 31], [4, 11, 13, 24]]

    @given(layouts(ranks=(1, 2, 3, 4), most=4))
    def test_levels_partition_the_blocks(self, layout):
        """B20, B21, B23: each block is in exactly one level, and the closed form counts them."""
        levels = [list(layout.level_blocks(n)) for n in range(layout.num_levels)]
        assert [len(level) for level in levels] == [layout.level_size(n) for n in range(layout.num_levels)]
        assert sorted(i for level in levels for i in level) == list(range(layout.num_blocks))
        assert all(layout.level_of(layout.coords(i)) == n for n, level in enumerate(levels) for i in level)

    @given(layouts(conflict=True, most=4) | layouts(conflict=True, ranks=(4,), most=2))
    def test_upstream_and_downstream_are_inverse(self, layout):
        """B22, B23: u is an input of b iff b is a dependent of u, and the cached number of inputs is right."""
        graph = ConflictGraph(layout)
        pairs = {(u, b) for b in range(layout.num_blocks) for u in graph.inputs(b)}
        found = [(u, u + n.offset, n.waits_for) for u in range(layout.num_blocks) for n in graph.dependents(u)]
        assert {(u, b) for u, b, _ in found} == pairs
        assert len(found) == len(pairs)
        assert all(waits_for == len(graph.inputs(b)) for _, b, waits_for in found)

    @given(layouts(conflict=True, ranks=(1, 2), most=4) | layouts(conflict=True, ranks=(3, 4), most=2))
    def test_conflicting_blocks_are_ordered(self, layout):
        """B18, B23: blocks whose read and write ROIs overlap are ordered by the closure of the inputs."""
        graph = ConflictGraph(layout)
        before: dict[int, set[int]] = {}
        for level in range(layout.num_levels):
            for b in layout.level_blocks(level):
                before[b] = {u for up in graph.inputs(b) for u in (up, *before[up])}
        boxes = [(layout.read_box(i), layout.write_box(i)) for i in range(layout.num_blocks)]
        for b in range(layout.num_blocks):
            for u in range(b):
                if overlap(boxes[b][0], boxes[u][1]) or overlap(boxes[u][0], boxes[b][1]):
                    assert u in before[b] or b in before[u]


class TestRefusals:
    @pytest.mark.parametrize(
        ("make", "told"),
        [
            (lambda: Layout((0, 0), (6, 6), (0,), (3,), (1,), (1,)), "total_roi has rank 2, read_roi has rank 1"),
            (lambda: layout_1d((0, 6), (0, 3), (1, 0)), "shape (0,)"),
            (lambda: layout_1d((0, 6), (0, 3), (1, 1), "tight"), "fit='tight'"),
            (lambda: layout_1d((0, 6), (1, 1), (0, 3), conflict=True), "does not contain write_roi"),
            (lambda: Layout((), (), (), (), (), ()), "no axes"),
            (lambda: layout_1d((0, 6), (1, 3), (0, 3)), "ids would not be unique"),
        ],
        ids=["rank", "empty block", "fit", "containment", "no axes", "begin"],
    )
    def test_bad_layouts_are_refused_at_construction(self, make, told):
        """B15: a ValueError that names the value."""
        with pytest.raises(ConfigurationError) as caught:
            make()
        assert told in str(caught.value)
        assert isinstance(caught.value, ValueError)

"""Dependencies as operations on whole grids: one array operation in place of a step per block.

A *field* is an array with one entry a block, in the shape of a layout's mask grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from workspan.grid.layout import Layout
    from workspan.grid.neighbours import Axis, Relation

    Slices = tuple[slice, ...]

__all__ = ["input_counts", "latest_inputs", "level_inputs", "level_slices"]


def level_slices(layout: Layout, level: int) -> Slices:
    """Return where the blocks of *level* are in a field."""
    return tuple(slice(o, None, s) for o, s in zip(layout.level_offset(level), layout.level_strides, strict=True))


def level_inputs(layout: Layout, level: int) -> Iterator[tuple[Slices, Slices]]:
    """Per input of the blocks of *level*: slices of the blocks that have it, and of the inputs themselves."""
    first = layout.level_offset(level)
    for offset in layout.conflict_offsets(level):
        to, of = [], []
        for o, at, n, s in zip(offset, first, layout.counts, layout.level_strides, strict=True):
            # The first and the last block of the level whose input at `+ o` lies inside the grid.
            low = at + -(-max(0, -o - at) // s) * s
            high = n - max(0, o)
            to.append(slice(low, max(low, high), s))
            of.append(slice(low + o, max(low, high) + o, s))
        yield tuple(to), tuple(of)


def input_counts(relation: Relation, flags: NDArray[np.bool_] | None) -> NDArray[np.integer[Any]]:
    """Per block of the reader: how many source blocks it reads, or how many of those are flagged.

    Running sums along each axis turn a box into differences, one axis at a time.
    """
    ranges = [_ranges(axis) for axis in relation.axes]
    if flags is None:
        out = np.ones((), np.int64)
        for low, high in ranges:
            out = np.multiply.outer(out, high - low)
        return out
    out = flags.astype(np.int64)
    for axis, (low, high) in enumerate(ranges):
        sums = np.concatenate([np.zeros_like(out.take([0], axis)), out.cumsum(axis)], axis)
        out = sums.take(high, axis) - sums.take(low, axis)
    return out


def latest_inputs(relation: Relation, ends: NDArray[np.float32]) -> NDArray[np.float32]:
    """Per block of the reader: the largest of *ends* over the source blocks that it reads.

    The largest of a box is that of the largest of its rows, so one axis after the other is folded. Every block reads
    some: :meth:`Relation.check` refuses others.
    """
    if not (ends.size and relation.reader.num_blocks):
        return np.zeros(relation.reader.counts, np.float32)
    for axis, (low, high) in enumerate(map(_ranges, relation.axes)):
        if (high - low == 1).all():  # the same tiling on both sides, or a finer one here
            ends = ends.take(low, axis)
        else:
            # Bounds come in pairs; what lies between one pair and the next is folded too, and left out. An end may be
            # that of the axis, which is no index: one more entry makes it one.
            pad = [(0, int(a == axis)) for a in range(ends.ndim)]
            bounds = np.stack([low, high], axis=1).reshape(-1)
            every_other = tuple(slice(None, None, 2) if a == axis else slice(None) for a in range(ends.ndim))
            ends = np.maximum.reduceat(np.pad(ends, pad), bounds, axis)[every_other]
    return np.ascontiguousarray(ends)


def _ranges(axis: Axis) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per position: the range of source positions that it reads; :meth:`Axis.inputs` for all at once."""
    begin = axis.begin + np.arange(axis.count, dtype=np.int64) * axis.step
    end = begin + axis.size
    if axis.end is not None:
        end = np.minimum(end, axis.end)
    begin, end = np.maximum(begin, axis.source_begin), np.minimum(end, axis.source_end)
    low = (begin - axis.source_begin) // axis.source_step
    high = -((axis.source_begin - end) // axis.source_step)
    empty = begin >= end
    low[empty] = high[empty] = 0
    return low, high

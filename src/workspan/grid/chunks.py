"""Blocks against the chunks of an array: which of them would write into one chunk. Pure arithmetic.

Two blocks share a chunk iff they do on every axis, so one axis after the other is looked at. On one axis, neighbours
share a chunk iff the border between them is not a border of chunks.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import gcd, prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from workspan.grid.layout import Ints, Layout


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """The regular grid of what is written in one piece, in the world units of the blocks."""

    origin: Ints
    """Where the first chunk begins."""
    size: Ints
    """Extent of a chunk."""


def shared_axes(layout: Layout, chunks: ChunkGrid) -> list[int]:
    """Return the axes on which neighbouring blocks of *layout* would write into one chunk.

    Examples
    --------
    >>> from workspan.grid import Layout
    >>> layout = Layout((0,), (100,), (0,), (25,), (0,), (25,))
    >>> shared_axes(layout, ChunkGrid((0,), (50,))), shared_axes(layout, ChunkGrid((0,), (5,)))
    ([0], [])
    """
    return [axis for axis in range(layout.rank) if layout.num_blocks and _shares(layout, chunks, axis)]


def blocks_apart(layout: Layout, chunks: ChunkGrid) -> Ints:
    """Return how far apart, in blocks per axis, two blocks that share a chunk can be; 0 where none do.

    It is exact for a long row of blocks and never too small.

    Examples
    --------
    >>> from workspan.grid import Layout
    >>> layout = Layout((0,), (100,), (0,), (25,), (0,), (25,))
    >>> blocks_apart(layout, ChunkGrid((0,), (50,))), blocks_apart(layout, ChunkGrid((10,), (75,)))
    ((1,), (3,))
    """
    out = []
    for axis, count in enumerate(layout.counts):
        if not _shares(layout, chunks, axis):
            out.append(0)
            continue
        step, size = layout.write_shape[axis], chunks.size[axis]
        # Of all blocks, the one whose last voxel lies nearest to the begin of a chunk reaches furthest.
        last = layout.covered[0][axis] + step - 1 - chunks.origin[axis]
        out.append(min(count - 1, (size - 2 - last % gcd(step, size)) // step + 1))
    return tuple(out)


def blocks_lacking(
    layout: Layout, chunks: ChunkGrid, counts: Ints, stored: Iterable[Sequence[int]]
) -> NDArray[np.bool_] | None:
    """Tell which blocks have chunks that are not stored.

    Parameters
    ----------
    layout
        The blocks.
    chunks
        The chunks that they write.
    counts
        Chunks per axis.
    stored
        Grid positions of the chunks that there are; others than those in the grid do not count.

    Returns
    -------
    ndarray of bool, shape ``layout.counts``, or None
        ``None``: every chunk is stored.

    Examples
    --------
    >>> from workspan.grid import Layout
    >>> layout = Layout((0,), (100,), (0,), (25,), (0,), (25,))
    >>> blocks_lacking(layout, ChunkGrid((0,), (50,)), (2,), [(1,)]).tolist()
    [True, True, False, False]
    """
    known = {tuple(cell) for cell in stored if len(cell) == len(counts) and all(map(operator.lt, cell, counts))}
    if len(known) == prod(counts):
        return None
    missing = np.ones(counts, np.int32)
    if known:
        missing[tuple(np.array(sorted(known)).T)] = 0
    # Missing chunks per block, one axis after the other: sums up to an end less sums up to a begin.
    sums = missing
    for axis, count in enumerate(counts):
        origin, size = chunks.origin[axis], chunks.size[axis]
        begin = layout.covered[0][axis] + np.arange(layout.counts[axis]) * layout.write_shape[axis]
        end = np.minimum(begin + layout.write_shape[axis], layout.covered[1][axis])
        first = ((begin - origin) // size).clip(0, count)
        last = (-((origin - end) // size)).clip(first, count)
        sums = np.insert(sums.cumsum(axis=axis), 0, 0, axis=axis)
        sums = sums.take(last, axis=axis) - sums.take(first, axis=axis)
    return sums > 0


def fitting_shapes(layout: Layout, chunks: ChunkGrid) -> list[Ints]:
    """Return write shapes next to that of *layout* whose blocks are made of whole chunks: smaller, then larger."""
    sizes = list(zip(layout.write_shape, chunks.size, strict=True))
    smaller = tuple(max(w // c, 1) * c for w, c in sizes)
    larger = tuple(-(-w // c) * c for w, c in sizes)
    return [smaller] if smaller == larger else [smaller, larger]


def _shares(layout: Layout, chunks: ChunkGrid, axis: int) -> bool:
    step, size, count = layout.write_shape[axis], chunks.size[axis], layout.counts[axis]
    border = layout.covered[0][axis] + step - chunks.origin[axis]
    return (count > 1 and border % size != 0) or (count > 2 and step % size != 0)

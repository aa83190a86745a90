"""The tiling of a region into blocks: pure integer arithmetic, no I/O, no state.

A block is an integer, its *index*: the C-order number of its position in the *mask grid* (the grid of the blocks that
exist, first block always 0). Its *cell* is its position in the *tracking grid*, which is anchored at the begin of the
total ROI; block ids and tracking stores use cells. Both grids come from daisy, whose stores use the second one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise, product
from math import comb, prod
from typing import TYPE_CHECKING, Literal, get_args

from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Fit = Literal["valid", "overhang", "shrink"]
Ints = tuple[int, ...]
Box = tuple[Ints, Ints]
"""A half-open box ``(begin, end)``, one entry per axis."""

FITS: tuple[str, ...] = get_args(Fit)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a region is cut into blocks.

    Only the shapes and the relative position of *read* and *write* matter; their absolute offsets cancel. All units
    are the caller's own integer world units.

    Parameters
    ----------
    total_begin, total_shape
        Region from which blocks read, in world units, one entry per axis.
    read_begin, read_shape
        What one block reads.
    write_begin, write_shape
        What one block writes. ``write_shape`` is the block shape.
    fit
        What happens to a partial trailing block: ``"valid"`` drops it, ``"overhang"`` keeps it at full size,
        ``"shrink"`` clips its ROIs.
    read_write_conflict
        Blocks whose write ROI overlaps another's read ROI never run at the same time.
    apart
        Blocks whose positions differ by at most this many blocks on every axis never run at the same time either, for
        reasons that the ROIs do not show (they share a chunk, say). ``()``: no such blocks. It changes the order of
        the blocks and neither their ROIs nor their ids.

    Raises
    ------
    ConfigurationError
        Ranks differ, a block shape is not positive, *fit* is unknown, or with *read_write_conflict* the read ROI does
        not contain the write ROI.
    """

    total_begin: Ints
    total_shape: Ints
    read_begin: Ints
    read_shape: Ints
    write_begin: Ints
    write_shape: Ints
    fit: str = "valid"
    read_write_conflict: bool = True
    apart: Ints = ()

    rank: int = field(init=False, repr=False, compare=False)
    context_lower: Ints = field(init=False, repr=False, compare=False)
    """Read margin (halo) below the write ROI, per axis."""
    context_upper: Ints = field(init=False, repr=False, compare=False)
    """Read margin above the write ROI, per axis."""
    covered: Box = field(init=False, repr=False, compare=False)
    """Total write ROI: the total ROI less the context."""
    counts: Ints = field(init=False, repr=False, compare=False)
    """Blocks per axis: the shape of the mask grid."""
    num_blocks: int = field(init=False, repr=False, compare=False)
    strides: Ints = field(init=False, repr=False, compare=False)
    """C-order strides of the mask grid, in blocks."""
    first_cell: Ints = field(init=False, repr=False, compare=False)
    """Tracking-grid position of block 0."""
    cell_counts: Ints = field(init=False, repr=False, compare=False)
    """Shape of the tracking grid."""
    level_strides: Ints = field(init=False, repr=False, compare=False)
    """Distance between blocks of one level, in blocks, per axis; all 1 without conflict and :attr:`apart`."""

    def __post_init__(self) -> None:
        ranks = {
            "total_roi": (len(self.total_begin), len(self.total_shape)),
            "read_roi": (len(self.read_begin), len(self.read_shape)),
            "write_roi": (len(self.write_begin), len(self.write_shape)),
        }
        rank = len(self.write_shape)
        if any(pair != (rank, rank) for pair in ranks.values()):
            told = ", ".join(f"{name} has rank {max(pair)}" for name, pair in ranks.items())
            raise ConfigurationError(f"{told}: total_roi, read_roi and write_roi need the same number of axes")
        if rank == 0:
            raise ConfigurationError("total_roi, read_roi and write_roi have no axes: give at least one")
        if min(self.write_shape) <= 0:
            raise ConfigurationError(
                f"write_roi has shape {self.write_shape}: every extent of a block must be at least 1"
            )
        if self.fit not in FITS:
            raise ConfigurationError(f"fit={self.fit!r} is not known: use one of {', '.join(map(repr, FITS))}")
        lower = tuple(w - r for w, r in zip(self.write_begin, self.read_begin, strict=True))
        upper = tuple(
            r + rs - w - ws
            for r, rs, w, ws in zip(self.read_begin, self.read_shape, self.write_begin, self.write_shape, strict=True)
        )
        if self.read_write_conflict and min(*lower, *upper) < 0:
            raise ConfigurationError(
                f"read_roi (begin {self.read_begin}, shape {self.read_shape}) does not contain write_roi (begin "
                f"{self.write_begin}, shape {self.write_shape}): enlarge read_roi or pass read_write_conflict=False"
            )
        if min(lower) < 0:
            raise ConfigurationError(
                f"read_roi begins at {self.read_begin}, above the begin {self.write_begin} of write_roi: blocks would "
                "write outside total_roi and their ids would not be unique; enlarge read_roi downwards"
            )
        begin = tuple(t + c for t, c in zip(self.total_begin, lower, strict=True))
        end = tuple(t + s - c for t, s, c in zip(self.total_begin, self.total_shape, upper, strict=True))
        counts = tuple(
            0 if e <= b else (e - b) // w if self.fit == "valid" else -((b - e) // w)
            for b, e, w in zip(begin, end, self.write_shape, strict=True)
        )
        set_field = object.__setattr__
        set_field(self, "rank", rank)
        set_field(self, "context_lower", lower)
        set_field(self, "context_upper", upper)
        set_field(self, "covered", (begin, end))
        set_field(self, "counts", counts)
        set_field(self, "num_blocks", prod(counts))
        set_field(self, "strides", c_strides(counts))
        set_field(self, "first_cell", tuple(c // w for c, w in zip(lower, self.write_shape, strict=True)))
        set_field(
            self,
            "cell_counts",
            tuple(max(1, -(-t // w)) for t, w in zip(self.total_shape, self.write_shape, strict=True)),
        )
        set_field(self, "level_strides", self._level_strides(lower, upper, counts))

    def _level_strides(self, lower: Ints, upper: Ints, counts: Ints) -> Ints:
        reach = self.apart or (0,) * len(counts)
        if self.read_write_conflict:
            overlaps = (-(-max(lo, up) // w) for lo, up, w in zip(lower, upper, self.write_shape, strict=True))
            reach = tuple(map(max, reach, overlaps))
        return tuple(max(1, min(1 + r, n)) for r, n in zip(reach, counts, strict=True))

    # -- positions -------------------------------------------------------------------------------------------------

    def coords(self, index: int) -> Ints:
        """Mask-grid position of block *index*."""
        out = []
        for stride in self.strides:
            at, index = divmod(index, stride)
            out.append(at)
        return tuple(out)

    def index(self, coords: Sequence[int]) -> int:
        """Index of the block at mask-grid position *coords*."""
        return sum(c * s for c, s in zip(coords, self.strides, strict=True))

    def contains(self, coords: Sequence[int]) -> bool:
        """Whether a block exists at mask-grid position *coords*."""
        return all(0 <= c < n for c, n in zip(coords, self.counts, strict=True))

    def cell(self, index: int) -> Ints:
        """Tracking-grid position of block *index*."""
        return tuple(c + f for c, f in zip(self.coords(index), self.first_cell, strict=True))

    def cell_number(self, index: int) -> int:
        """C-order number of the tracking-grid cell of block *index*."""
        number = 0
        for at, extent in zip(self.cell(index), self.cell_counts, strict=True):
            number = number * extent + at
        return number

    def index_of_cell(self, cell: Sequence[int]) -> int | None:
        """Index of the block in tracking-grid position *cell*, or ``None`` where no block is."""
        coords = tuple(c - f for c, f in zip(cell, self.first_cell, strict=True))
        return self.index(coords) if self.contains(coords) else None

    # -- boxes -----------------------------------------------------------------------------------------------------

    def write_box(self, index: int) -> Box:
        """Return what block *index* writes, in world units."""
        low, high = self.covered
        begin = tuple(b + c * w for b, c, w in zip(low, self.coords(index), self.write_shape, strict=True))
        end = tuple(b + w for b, w in zip(begin, self.write_shape, strict=True))
        if self.fit == "shrink":
            end = tuple(map(min, end, high))
        return begin, end

    def read_box(self, index: int) -> Box:
        """Return what block *index* reads, in world units."""
        begin = tuple(t + c * w for t, c, w in zip(self.total_begin, self.coords(index), self.write_shape, strict=True))
        end = tuple(b + r for b, r in zip(begin, self.read_shape, strict=True))
        if self.fit == "shrink":
            end = tuple(
                max(b, min(e, t + s)) for b, e, t, s in zip(begin, end, self.total_begin, self.total_shape, strict=True)
            )
        return begin, end

    def block_id(self, index: int) -> int:
        """Spatial id of block *index*: the pyramid number of its cell."""
        return pyramid_number(self.cell(index))

    def overlapping(self, box: Box, read: bool = False) -> Iterator[int]:
        """Yield the blocks whose write box (or *read* box) overlaps *box*, in C order."""
        axes = []
        for a, (low, high) in enumerate(zip(*box, strict=True)):
            step, count = self.write_shape[a], self.counts[a]
            if read:
                begin, size = self.total_begin[a], self.read_shape[a]
                if self.fit == "shrink":
                    high = min(high, begin + self.total_shape[a])
            else:
                # Only what lies in the total write ROI is asked for, although a block may hang over it.
                begin, size = self.covered[0][a], step
                low, high = max(low, begin), min(high, self.covered[1][a])
            first = max(0, (low - size - begin) // step + 1)
            last = min(count, -((begin - high) // step))
            axes.append(range(first, last) if low < high else range(0))
        return (self.index(coords) for coords in product(*axes))

    def id_order(self, index: int) -> Ints:
        """Sort key that orders blocks as their spatial ids do, without the big integers.

        A pyramid number grows first with the sum of all axes, then with the sum of all but the last, and so on; that
        order does not change when the whole grid is moved.
        """
        sums = [0]
        for at in self.coords(index):
            sums.append(sums[-1] + at)
        return tuple(sums[:0:-1])

    # -- levels ----------------------------------------------------------------------------------------------------

    @property
    def num_levels(self) -> int:
        """Number of levels: 1 where no blocks have to be kept apart."""
        return prod(self.level_strides)

    def level_offset(self, level: int) -> Ints:
        """Mask-grid position of the first block of *level*. Level 0 has the largest offsets."""
        number = self.num_levels - 1 - level
        return unravel(number, self.level_strides)

    def level_of(self, coords: Sequence[int]) -> int:
        """Level of the block at mask-grid position *coords*."""
        number = 0
        for at, stride in zip(coords, self.level_strides, strict=True):
            number = number * stride + at % stride
        return self.num_levels - 1 - number

    def level_size(self, level: int) -> int:
        """Return the number of blocks of *level*, in closed form."""
        if not self.num_blocks:
            return 0
        offset = self.level_offset(level)
        return prod(max(0, -((o - n) // s)) for o, n, s in zip(offset, self.counts, self.level_strides, strict=True))

    def level_blocks(self, level: int) -> Iterator[int]:
        """Yield the indices of the blocks of *level*, in C order."""
        if not self.num_blocks:
            return iter(())
        offset = self.level_offset(level)
        if len(offset) == 1:
            return iter(range(offset[0], self.counts[0], self.level_strides[0]))
        axes = [
            range(o * stride, n * stride, s * stride)
            for o, n, s, stride in zip(offset, self.counts, self.level_strides, self.strides, strict=True)
        ]
        last = axes.pop()
        heads = (sum(head) for head in product(*axes))
        return (head + tail for head in heads for tail in last)

    def conflict_offsets(self, level: int) -> tuple[Ints, ...]:
        """Relative mask-grid positions of the blocks of level - 1 for which a block of *level* waits."""
        if level == 0:
            return ()
        before, here = self.level_offset(level - 1), self.level_offset(level)
        axes = []
        for b, h, s in zip(before, here, self.level_strides, strict=True):
            d = b - h
            axes.append((d, d + s) if d < 0 else (d - s, d) if d > 0 else (0,))
        return tuple(product(*axes))


def c_strides(shape: Sequence[int]) -> Ints:
    """Return C-order strides of *shape*, in elements; ``(12, 4, 1)`` for ``(2, 3, 4)``."""
    out = [1]
    for extent in shape[:0:-1]:
        out.append(out[-1] * max(extent, 1))
    return tuple(reversed(out))


def unravel(number: int, shape: Sequence[int]) -> Ints:
    """Return the position of C-order *number* in a grid of *shape*; ``(1, 2)`` for 5 in ``(2, 3)``."""
    out = []
    for stride in c_strides(shape):
        at, number = divmod(number, stride)
        out.append(at)
    return tuple(out)


def pyramid_number(cell: Sequence[int]) -> int:
    """Return the generalised Cantor number of *cell*: one integer per position, whatever the grid's extent.

    ``id(j[0..n]) = P(n, sum(j)) + id(j[0..n-1])`` with ``P(k, e) = e (e+1) ... (e+k-1) / k!``; daisy numbers its
    blocks so.

    Examples
    --------
    >>> pyramid_number((2, 2)), pyramid_number((4, 2)), pyramid_number((1, 0, 0))
    (12, 25, 3)
    """
    number = 0
    total = 0
    for rank, at in enumerate(cell, start=1):
        total += at
        term = total
        for step in range(1, rank):
            term = term * (total + step) // (step + 1)
        number += term
    return number


def pyramid_cell(number: int, rank: int) -> Ints:
    """Return the cell of *rank* axes whose :func:`pyramid_number` is *number*; every whole number has one.

    Examples
    --------
    >>> pyramid_cell(12, 2), pyramid_cell(25, 2), pyramid_cell(3, 3)
    ((2, 2), (4, 2), (1, 0, 0))
    """
    sums = [0]
    for axes in range(rank, 0, -1):
        # The largest sum of coordinates whose first cell has no larger number: doubled, then halved.
        low, high = 0, 1
        while comb(high + axes - 1, axes) <= number:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if comb(middle + axes - 1, axes) <= number else (low, middle)
        number -= comb(low + axes - 1, axes)
        sums.insert(1, low)
    return tuple(upper - lower for lower, upper in pairwise(sums))

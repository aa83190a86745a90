"""Read an array tile by tile, and keep of each tile what the blocks beside it will read as their halo.

A block with a halo touches every chunk around its own, and Zarr decodes a chunk whole however little is asked of it: 27
chunks for one block of one chunk, in three axes. A tile is what one block writes. It is read whole, once or a few times
a worker instead of once a neighbour, and its outer layers stay until the room is needed for others.

What is kept is never looked for again on disk, so only arrays that do not change during a run may be read like this.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.arrays.edges import slices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import DTypeLike, NDArray

    from workspan.arrays.shapes import Halo
    from workspan.grid.layout import Box, Ints

KEPT_BYTES = 64 << 20
"""The most that a worker keeps of all its inputs together."""
LEAST_GAIN = 1.5
"""How many times more chunks must be decoded without tiles, for them to be worth their memory."""


@dataclass(frozen=True, slots=True)
class TilePlan:
    """How an array is cut into tiles; in voxels."""

    origin: Ints
    """Where tile 0 begins."""
    size: Ints
    """Shape of a tile."""
    halo: Halo
    """How far blocks look into the tiles beside their own."""
    most_bytes: int
    """How much may be kept."""


def plan_tiles(
    shape: Ints, chunks: Ints, itemsize: int, *, origin: Ints, size: Ints, halo: Halo, most_bytes: int
) -> TilePlan | None:
    """Decide whether reading by tiles saves decoding; ``None`` if it does not, or not enough.

    Parameters
    ----------
    shape, chunks
        Of the array, in voxels.
    itemsize
        Size of a voxel, in bytes.
    origin, size
        Begin of the blocks and shape of one, in voxels.
    halo
        What a block reads beyond its own, in voxels.
    most_bytes
        What may be kept at most.

    Examples
    --------
    >>> plan_tiles((512,) * 3, (128,) * 3, 1, origin=(0,) * 3, size=(128,) * 3, halo=((6, 6),) * 3,
    ...            most_bytes=1 << 26).most_bytes  # the layers of 64 tiles
    37748736
    >>> plan_tiles((512,) * 3, (16,) * 3, 1, origin=(0,) * 3, size=(128,) * 3, halo=((6, 6),) * 3, most_bytes=1 << 26)
    """
    if not itemsize or any(o % c or s % c for o, s, c in zip(origin, size, chunks, strict=True)):
        return None
    if any(max(h) > s for h, s in zip(halo, size, strict=True)):
        return None
    looked = [any(h) and n > s for h, n, s in zip(halo, shape, size, strict=True)]
    plain = prod(
        s // c + (sum(-(-h // c) for h in both) if able else 0)
        for s, c, both, able in zip(size, chunks, halo, looked, strict=True)
    )
    own = prod(s // c for s, c in zip(size, chunks, strict=True))
    kept = _kept_bytes(size, halo, itemsize)
    # From the first block that reads of a tile to the last one, in C order, and as many as one block reads.
    counts = [-(-n // s) for n, s in zip(shape, size, strict=True)]
    strides = [prod(counts[axis + 1 :]) for axis in range(len(counts))]
    near = 3 ** sum(looked)
    window = min(prod(counts), near + 2 * sum(s for s, able in zip(strides, looked, strict=True) if able))
    if window * kept <= most_bytes:
        most_bytes, reads = window * kept, 2
    elif near * kept <= most_bytes:
        reads = 1 + near // 3
    else:
        return None
    return TilePlan(origin, size, halo, most_bytes) if plain >= LEAST_GAIN * reads * own else None


def _kept_bytes(size: Ints, halo: Halo, itemsize: int) -> int:
    layers = sum(sum(both) * prod(size) // s for both, s in zip(halo, size, strict=True))
    return min(layers, prod(size)) * itemsize


class Tiles:
    """An array that is read by tiles. Indexed by slices with begin and end inside the array.

    Parameters
    ----------
    array
        Anything with ``shape`` and ``dtype`` that is indexed by slices. It must not change.
    plan
        How it is cut.

    Notes
    -----
    Not for several threads at once.
    """

    def __init__(self, array: Any, plan: TilePlan) -> None:
        self.array = array
        self.shape: Ints = tuple(array.shape)
        self.dtype: DTypeLike = array.dtype
        self._plan = plan
        self._kept: OrderedDict[Ints, list[tuple[Box, NDArray[Any]]]] = OrderedDict()
        """Tile -> its layers and where they lie, the one used last at the end."""
        self._bytes = 0

    def __getitem__(self, where: tuple[slice, ...]) -> NDArray[Any]:
        """Return a copy of the part *where*."""
        begin, end = tuple(s.start for s in where), tuple(s.stop for s in where)
        out = np.empty([e - b for b, e in zip(begin, end, strict=True)], self.dtype)
        for tile, box in self._met((begin, end)):
            part = _common(box, (begin, end))
            out[_inside(part, begin)] = self._read(tile, box, part)
        return out

    def _met(self, box: Box) -> Iterator[tuple[Ints, Box]]:
        """Yield the tiles that have voxels in *box*, and what they cover of the array."""
        grid = list(zip(self._plan.origin, self._plan.size, strict=True))
        ranges = (range((b - o) // s, -((o - e) // s)) for b, e, (o, s) in zip(*box, grid, strict=True))
        for tile in product(*ranges):
            begin = tuple(o + at * s for at, (o, s) in zip(tile, grid, strict=True))
            end = tuple(b + s for b, s in zip(begin, self._plan.size, strict=True))
            yield tile, _common((begin, end), ((0,) * len(tile), self.shape))

    def _read(self, tile: Ints, box: Box, part: Box) -> NDArray[Any]:
        layers = self._kept.get(tile, ())
        for place, data in layers:
            if _common(place, part) == part:
                self._kept.move_to_end(tile)
                found: NDArray[Any] = data[_inside(part, place[0])]
                return found
        whole = np.asarray(self.array[slices(box)])
        if not layers:
            self._keep(tile, box, whole)
        found = whole[_inside(part, box[0])]
        return found

    def _keep(self, tile: Ints, box: Box, whole: NDArray[Any]) -> None:
        layers = list(_layers(box, self._plan.halo))
        if sum(_voxels(place) for place in layers) >= whole.size:
            layers = [box]
        kept = [(place, whole[_inside(place, box[0])].copy()) for place in layers]
        self._kept[tile] = kept
        self._bytes += sum(data.nbytes for _, data in kept)
        while self._bytes > self._plan.most_bytes and self._kept:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= sum(data.nbytes for _, data in gone)


def _layers(box: Box, halo: Halo) -> Iterator[Box]:
    """Yield the outer layers of *box* that boxes beside it see."""
    begin, end = box
    for axis, (low, high) in enumerate(halo):
        if high:  # of a box below
            yield begin, _moved(end, axis, min(begin[axis] + high, end[axis]))
        if low:
            yield _moved(begin, axis, max(end[axis] - low, begin[axis])), end


def _moved(corner: Ints, axis: int, at: int) -> Ints:
    return (*corner[:axis], at, *corner[axis + 1 :])


def _common(one: Box, other: Box) -> Box:
    return tuple(map(max, one[0], other[0])), tuple(map(min, one[1], other[1]))


def _inside(box: Box, begin: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(b - o, e - o) for b, e, o in zip(*box, begin, strict=True))


def _voxels(box: Box) -> int:
    return prod(max(e - b, 0) for b, e in zip(*box, strict=True))

"""Read a box of an array that may reach beyond the array's edge.

The modes and their names are those of ``scipy.ndimage``, so that a filter with the same mode gives the same result by
blocks as on the whole array:

==============  =====================================
``"reflect"``   ``d c b a | a b c d | d c b a``
``"mirror"``    ``d c b | a b c d | c b a``
``"nearest"``   ``a a a a | a b c d | d d d d``
``"wrap"``      ``a b c d | a b c d | a b c d``
``"constant"``  ``k k k k | a b c d | k k k k``
``"clip"``      nothing: the box ends where the array does
==============  =====================================
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from workspan.grid.layout import Box, Ints

MODES = ("reflect", "mirror", "nearest", "wrap", "constant", "clip")


def clipped(box: Box, shape: Ints) -> Box:
    """Return the part of *box* that lies in an array of *shape*; an empty box where none does."""
    begin = tuple(min(max(b, 0), n) for b, n in zip(box[0], shape, strict=True))
    end = tuple(max(b, min(e, n)) for b, e, n in zip(begin, box[1], shape, strict=True))
    return begin, end


def slices(box: Box) -> tuple[slice, ...]:
    """Return *box* as an index."""
    return tuple(slice(b, e) for b, e in zip(*box, strict=True))


def read_box(array: Any, box: Box, *, mode: str, fill: Any = 0) -> NDArray[Any]:
    """Read *box* of *array*; what lies outside is made up by *mode*.

    Parameters
    ----------
    array
        Anything with ``shape`` that is indexed by slices, of any rank; no axis is empty unless *mode* is ``"clip"`` or
        ``"constant"``.
    box
        Begin and end in voxels; the begin may be negative and the end beyond the array.
    mode
        One of :data:`MODES`.
    fill
        The value outside, for ``"constant"``.

    Returns
    -------
    ndarray
        Of the shape of the box (with ``"clip"``: of its part inside the array); never a view of *array*.
    """
    shape = tuple(array.shape)
    inside = clipped(box, shape)
    if inside == box or mode == "clip":
        return _copied(array[slices(inside)])
    extent = tuple(e - b for b, e in zip(*box, strict=True))
    if mode == "constant":
        out = np.full(extent, fill, dtype=array.dtype)
        where = tuple(slice(i - b, j - b) for b, i, j in zip(box[0], *inside, strict=True))
        out[where] = array[slices(inside)]
        return out
    sources = [_sources(mode, b, e, n) for b, e, n in zip(*box, shape, strict=True)]
    if mode == "wrap":
        # Both ends of an axis may be needed and nothing between them, so each run is read by itself.
        out = np.empty(extent, dtype=array.dtype)
        for pieces in product(*map(_runs, sources)):
            out[tuple(to for to, _ in pieces)] = array[tuple(of for _, of in pieces)]
        return out
    low = tuple(int(s.min()) for s in sources)
    high = tuple(int(s.max()) + 1 for s in sources)
    out = _copied(array[slices((low, high))])
    for axis, (source, first) in enumerate(zip(sources, low, strict=True)):
        if len(source) != out.shape[axis] or source[0] != first or (np.diff(source) != 1).any():
            out = out.take(source - first, axis=axis)
    return out


def _copied(values: Any) -> NDArray[Any]:
    data = np.asarray(values)
    return data if data.flags.owndata and data.flags.writeable else data.copy()


def _sources(mode: str, begin: int, end: int, n: int) -> NDArray[np.int64]:
    """Position inside an axis of *n* voxels for each position of ``begin..end``."""
    at = np.arange(begin, end)
    if mode == "nearest":
        return at.clip(0, n - 1)
    if mode == "wrap":
        return at % n
    if mode == "reflect":
        at = at % (2 * n)
        return np.minimum(at, 2 * n - 1 - at)
    period = max(2 * n - 2, 1)
    at = at % period
    return np.minimum(at, period - at) if n > 1 else np.zeros_like(at)


def _runs(source: NDArray[np.int64]) -> Iterator[tuple[slice, slice]]:
    """Yield (where to, where from) of each run of consecutive positions."""
    borders = [0, *(np.flatnonzero(np.diff(source) != 1) + 1).tolist(), len(source)]
    for begin, end in pairwise(borders):
        first = int(source[begin])
        yield slice(begin, end), slice(first, first + end - begin)

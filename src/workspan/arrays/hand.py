"""``read_block`` and ``write_block``: the arithmetic of ROIs for people who write their own block function."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from workspan.arrays.block import holds, roi_box
from workspan.arrays.edges import MODES, clipped, read_box, slices
from workspan.arrays.refs import in_world_units, ref_of
from workspan.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workspan.grid import Block
    from workspan.grid.layout import Box


def read_block(
    array: Any,
    block: Block,
    *,
    mode: str = "clip",
    fill: Any = 0,
    units: str = "voxels",
    voxel_size: Any = None,
    offset: Any = None,
) -> tuple[NDArray[Any], tuple[slice, ...]]:
    """Read what *block* reads of *array*.

    Parameters
    ----------
    array
        A Zarr array, a NumPy array, anything like them, or a path.
    block
        Its ROIs have one axis for each of the array.
    mode, fill
        What lies beyond the edge, as for :func:`workspan.map_blocks`; ``"clip"``: nothing.
    units
        Units of the ROIs: ``"voxels"``, or ``"world"``: as the array's OME-Zarr metadata say.
    voxel_size, offset
        Extent of a voxel and begin of voxel 0 in the units of the ROIs, instead of *units*; by default the array's own
        attributes of these names, or 1 and 0.

    Returns
    -------
    data : ndarray
        A copy of the read ROI (with ``"clip"``: of the part that is in the array).
    inner : tuple of slice
        Where in *data* the write ROI lies.

    Raises
    ------
    ConfigurationError
        ROIs do not consist of whole voxels, have other axes than the array, or the argument *mode* is not known.

    Examples
    --------
    >>> import numpy as np, workspan as ws
    >>> block = ws.Block(ws.Roi((-2,), (14,)), ws.Roi((-2,), (8,)), ws.Roi((0,), (4,)))
    >>> data, inner = read_block(np.arange(10), block)
    >>> data.tolist(), data[inner].tolist()
    ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3])
    """
    if mode not in MODES:
        raise ConfigurationError(f"mode={mode!r} is not known: use one of {', '.join(map(repr, MODES))}")
    array, (voxel_size, offset) = _placed(array, units, voxel_size, offset, write=False)
    read = _voxels(array, block, "read", block.read_roi, voxel_size, offset)
    write = clipped(_voxels(array, block, "write", block.write_roi, voxel_size, offset), array.shape)
    data = read_box(array, read, mode=mode, fill=fill)
    begin = clipped(read, array.shape)[0] if mode == "clip" else read[0]
    # An asymmetric context may leave part of the write ROI unread.
    inner = ((max(w - b, 0), max(e - b, 0)) for b, w, e in zip(begin, *write, strict=True))
    return data, tuple(slice(first, last) for first, last in inner)


def write_block(
    array: Any,
    block: Block,
    data: Any,
    *,
    units: str = "voxels",
    voxel_size: Any = None,
    offset: Any = None,
) -> None:
    """Write *data* to where *block* writes in *array*; what hangs over the array's edge is cut off.

    Parameters
    ----------
    array
        A writable Zarr array, a NumPy array, anything like them, or a path.
    block
        Its write ROI has one axis for each of the array.
    data
        Values of the shape of the write ROI, in voxels, or of the part of it that is in the array.
    units, voxel_size, offset
        As for :func:`read_block`.

    Raises
    ------
    ConfigurationError
        *data* has another shape, or values that *array* cannot hold; nothing is written.
    """
    array, (voxel_size, offset) = _placed(array, units, voxel_size, offset, write=True)
    data = np.asarray(data)
    box = _voxels(array, block, "write", block.write_roi, voxel_size, offset)
    own = clipped(box, array.shape)
    whole, inside = (tuple(e - b for b, e in zip(*side, strict=True)) for side in (box, own))
    if data.shape == whole:
        data = data[tuple(slice(o - b, o - b + n) for b, o, n in zip(box[0], own[0], inside, strict=True))]
    elif data.shape != inside:
        told = f"{whole}" if whole == inside else f"{inside} (or {whole}, with what hangs over the edge)"
        raise ConfigurationError(
            f"block {block.block_id} writes {block.write_roi}, and data has shape {data.shape} where {told} was "
            "expected: cut the halo off, data[inner]"
        )
    if not holds(array.dtype, data.dtype):
        raise ConfigurationError(
            f"block {block.block_id} writes {data.dtype} to an array of {array.dtype}, which cannot hold it without "
            f"loss: convert it yourself, data.astype({str(array.dtype)!r})"
        )
    array[slices(own)] = data


def _placed(array: Any, units: str, voxel_size: Any, offset: Any, *, write: bool) -> tuple[Any, tuple[Any, Any]]:
    """Return the opened array, and its voxel size and offset."""
    if units not in ("voxels", "world"):
        raise ConfigurationError(f"units={units!r} is not known: use 'voxels' or 'world'")
    if isinstance(array, (str, os.PathLike)):
        ref = ref_of(array, "array")
        array = ref.open(write=write)
        own = in_world_units(ref, None) if units == "world" else ref
    elif units == "world" and voxel_size is None:
        own = in_world_units(ref_of(array, "array"), None)
    else:
        own = array
    rank = len(array.shape)
    voxel_size = voxel_size if voxel_size is not None else getattr(own, "voxel_size", None) or (1,) * rank
    offset = offset if offset is not None else getattr(own, "offset", None) or (0,) * rank
    return array, (tuple(map(int, voxel_size)), tuple(map(int, offset)))


def _voxels(array: Any, block: Block, what: str, roi: Any, voxel_size: tuple[int, ...], offset: tuple[int, ...]) -> Box:
    """Return a ROI in voxels of the array."""
    box, rank = roi_box(roi), len(array.shape)
    if len(box[0]) != rank:
        raise ConfigurationError(
            f"block {block.block_id} has ROIs of {len(box[0])} axes and the array has {rank}: they need the same number"
        )
    if any((at - o) % v for side in box for at, o, v in zip(side, offset, voxel_size, strict=True)):
        raise ConfigurationError(
            f"the {what} ROI {roi} of block {block.block_id} is not made of whole voxels of {voxel_size} from {offset} "
            "on: use ROIs in multiples of the voxel size, or pass voxel_size= and offset="
        )
    begin, end = (tuple((at - o) // v for at, o, v in zip(side, offset, voxel_size, strict=True)) for side in box)
    return begin, end

"""`read_block` and `write_block`: the arithmetic that hand-written block functions get wrong."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

import workspan as ws
from workspan.errors import ConfigurationError
from workspan.grid import Block


@given(st.data())
def test_the_inner_part_is_the_write_roi(data):
    """Wherever a block lies, data[inner] is what it writes, clipped or padded, and data what it reads (KF-26)."""
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, 9)) for _ in range(rank))
    array = np.arange(np.prod(shape)).reshape(shape)
    write = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    size = tuple(data.draw(st.integers(1, 6)) for _ in range(rank))
    low, high = (tuple(data.draw(st.integers(0, 5)) for _ in range(rank)) for _ in range(2))
    roi = ws.Roi(write, size)
    block = Block(roi.grow(low, high), roi.grow(low, high), roi, "t")
    mode = data.draw(st.sampled_from(["clip", "nearest"]))
    got, inner = ws.read_block(array, block, mode=mode)
    assert np.array_equal(got[inner], array[tuple(slice(w, w + s) for w, s in zip(write, size, strict=True))])
    if mode == "nearest":
        assert got.shape == tuple(block.read_roi.shape)
    else:
        bounds = zip(block.read_roi.begin, block.read_roi.end, shape, strict=True)
        assert np.array_equal(got, array[tuple(slice(max(b, 0), min(e, n)) for b, e, n in bounds)])


def test_a_hand_written_filter_is_that_of_the_whole_volume():
    """The block function of the guide: read, filter, write the inner part; every voxel is right."""
    volume = np.random.default_rng(0).random((23, 17))
    source = zarr.create_array("raw.zarr", data=volume, chunks=(8, 8))
    out = zarr.create_array("out.zarr", shape=(23, 17), chunks=(8, 8), dtype="f8")

    def smooth(block):
        data, inner = ws.read_block(source, block)
        ws.write_block(out, block, gaussian_filter(data, 1)[inner])

    whole, one = ws.Roi((0, 0), (23, 17)), ws.Roi((0, 0), (8, 8))
    task = ws.Task(
        "s", whole.grow((4, 4), (4, 4)), one.grow((4, 4), (4, 4)), one, smooth, None, False, "shrink", writes=[out]
    )
    assert task.run(engine="serial", progress=False, summary=False)
    assert np.array_equal(out[:], gaussian_filter(volume, 1))


def test_world_units_and_offsets():
    """ROIs in nanometres find their voxels, by arguments, by attributes and by OME metadata alike."""
    values = np.arange(48).reshape(6, 8)
    block = Block(*[ws.Roi((110, 220), (20, 15))] * 3, "t")
    got, inner = ws.read_block(values, block, voxel_size=(10, 5), offset=(100, 200))
    assert np.array_equal(got, values[1:3, 4:7])
    assert inner == (slice(0, 2), slice(0, 3))

    class Placed(np.ndarray):
        voxel_size, offset = (10, 5), (100, 200)

    assert np.array_equal(ws.read_block(values.view(Placed), block)[0], values[1:3, 4:7])
    place = [{"type": "scale", "scale": [10, 5]}, {"type": "translation", "translation": [100, 200]}]
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "yx"]
    datasets = [{"path": "full", "coordinateTransformations": place}]
    ome = {"ome": {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}}
    zarr.create_group("image.zarr", attributes=ome).create_array("full", data=values, chunks=(6, 8))
    for array in ("image.zarr", "image.zarr/full", zarr.open_array("image.zarr/full", mode="r+")):
        assert np.array_equal(ws.read_block(array, block, units="world")[0], values[1:3, 4:7])
    ws.write_block("image.zarr", block, np.zeros((2, 3), int), units="world")
    assert zarr.open_array("image.zarr/full")[:].sum() == values.sum() - values[1:3, 4:7].sum()
    with pytest.raises(ConfigurationError, match=r"read ROI .* is not made of whole voxels of \(10, 5\)"):
        ws.read_block(values, Block(*[ws.Roi((115, 220), (20, 15))] * 3, "t"), voxel_size=(10, 5), offset=(100, 200))


def test_what_hangs_over_is_cut_off():
    """A block at full size over the edge (overhang) writes its part, and no negative index wraps around (KF-26)."""
    out = np.full(10, -1)
    ws.write_block(out, Block(*[ws.Roi((8,), (4,))] * 3, "t"), np.arange(4))
    assert out.tolist() == [-1] * 8 + [0, 1]
    ws.write_block(out, Block(*[ws.Roi((-3,), (4,))] * 3, "t"), np.arange(4))
    assert out.tolist() == [3] + [-1] * 7 + [0, 1]
    data, inner = ws.read_block(out, Block(*[ws.Roi((-3,), (4,))] * 3, "t"))
    assert (data.tolist(), data[inner].tolist()) == ([3], [3])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (np.zeros((6, 6), np.uint8), r"data has shape \(6, 6\) where \(4, 4\) was expected: cut the halo off"),
        (np.zeros((4, 4), np.uint16), "writes uint16 to an array of uint8, which cannot hold it"),
        (np.zeros(4, np.uint8), r"data has shape \(4,\)"),
    ],
    ids=["halo", "dtype", "rank"],
)
def test_wrong_data_are_refused(data, text):
    """Data with the halo still on, of a wider type or of other axes: an error that names block, expected and got."""
    out = np.zeros((9, 9), np.uint8)
    block = Block(ws.Roi((0, 0), (9, 9)), ws.Roi((1, 1), (6, 6)), ws.Roi((2, 2), (4, 4)), "t")
    with pytest.raises(ConfigurationError, match=text):
        ws.write_block(out, block, data)
    assert not out.any()


def test_unknown_words_and_other_axes():
    """A mode or unit that is not known, and an array of other axes, are told."""
    block = Block(*[ws.Roi((0,), (4,))] * 3, "t")
    with pytest.raises(ConfigurationError, match="mode='odd'"):
        ws.read_block(np.zeros(4), block, mode="odd")
    with pytest.raises(ConfigurationError, match="units='nm'"):
        ws.read_block(np.zeros(4), block, units="nm")
    with pytest.raises(ConfigurationError, match="ROIs of 1 axes and the array has 2"):
        ws.read_block(np.zeros((4, 4)), block)

"""The NIfTI reader: what it reads, and that it says what it does not read."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workspan.cli.demo.nifti import read_nifti
from workspan.errors import ConfigurationError

DATA = np.arange(2 * 3 * 4, dtype="u1").reshape(2, 3, 4)  # x, y, z

Write = Callable[..., Path]


@pytest.mark.parametrize("kind", ["u1", "i1", "i2", "u2", "i4", "u4", "f4", "f8"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_values_come_back_transposed(write_nifti: Write, kind: str, order: str, name: str) -> None:
    """Every data type, byte order and packing gives the array back, axes z, y, x."""
    volume = read_nifti(write_nifti(DATA.astype(kind), name, order=order))
    assert volume.data.dtype == np.dtype(order + kind)
    assert np.array_equal(volume.data, DATA.T)


def test_no_copy_is_made(write_nifti: Write) -> None:
    """The volume is a read-only, C-ordered view of the file's bytes."""
    data = read_nifti(write_nifti(DATA)).data
    assert data.flags.c_contiguous
    assert not data.flags.writeable
    assert not data.flags.owndata


def test_placement_from_sform(write_nifti: Write) -> None:
    """Voxel size and origin come from the affine, z first, in mm."""
    row = (0.5, 0, 0, -98, 0, 2, 0, -134, 0, 0, 3, -72)
    volume = read_nifti(write_nifti(DATA, srow=row))
    assert volume.spacing == (3.0, 2.0, 0.5)
    assert volume.origin == (-72.0, -134.0, -98.0)


def test_placement_from_qform(write_nifti: Write) -> None:
    """Without sform the unrotated qform places the volume."""
    volume = read_nifti(write_nifti(DATA, sform_code=0, qform_code=1, pixdim=(1, 4, 5, 6, 1, 1, 1, 1)))
    assert volume.spacing == (6.0, 5.0, 4.0)
    assert volume.origin == (-3.0, -2.0, -1.0)


def test_placement_without_either(write_nifti: Write) -> None:
    """With neither form the voxel size counts and the origin is 0."""
    volume = read_nifti(write_nifti(DATA, sform_code=0, pixdim=(1, 4, 5, 6, 1, 1, 1, 1)))
    assert volume.spacing == (6.0, 5.0, 4.0)
    assert volume.origin == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("unit", "factor"), [(0, 1.0), (1, 1000.0), (2, 1.0), (3, 0.001)])
def test_units_become_millimetres(write_nifti: Write, unit: int, factor: float) -> None:
    """Metres and micrometres are converted; unknown means mm; the unit of time beside it does not matter."""
    volume = read_nifti(write_nifti(DATA, xyzt_units=unit | 8))
    assert volume.spacing == (factor, factor, factor)
    assert volume.origin == (-72 * factor, -134 * factor, -98 * factor)


def test_further_axes_of_extent_one_are_dropped(write_nifti: Write) -> None:
    """A series of one volume is a volume."""
    volume = read_nifti(write_nifti(DATA, dim=(5, 2, 3, 4, 1, 1, 0, 0)))
    assert volume.data.shape == (4, 3, 2)


def test_an_extension_before_the_data_is_skipped(write_nifti: Write, tmp_path: Path) -> None:
    """Data begin where the header says, not right behind it."""
    raw = write_nifti(DATA, "plain.nii", vox_offset=368.0).read_bytes()
    path = tmp_path / "moved.nii"
    path.write_bytes(raw[:352] + b"\xff" * 16 + raw[352:])
    assert np.array_equal(read_nifti(path).data, DATA.T)


def test_bytes_after_the_data_do_not_matter(write_nifti: Write) -> None:
    """Padding at the end of a file is not data."""
    path = write_nifti(DATA, "a.nii")
    path.write_bytes(path.read_bytes() + b"\0" * 100)
    assert np.array_equal(read_nifti(path).data, DATA.T)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"sizeof_hdr": 540}, "its own size as 540, not 348"),
        ({"magic": b"ni1\0"}, r"magic bytes are b'ni1\x00'"),
        ({"dim": (2, 2, 3, 1, 1, 1, 1, 1)}, "2 axes of extents (2, 3)"),
        ({"dim": (4, 2, 3, 4, 7, 1, 1, 1)}, "4 axes of extents (2, 3, 4, 7)"),
        ({"dim": (300, 2, 3, 4, 1, 1, 1, 1)}, "300 axes"),
        ({"dim": (3, 2, -3, 4, 1, 1, 1, 1)}, "extents are (2, -3, 4)"),
        ({"datatype": 128}, "data type code is 128"),
        ({"bitpix": 16}, "16 bits a voxel, and its data type (code 2) has 8"),
        ({"vox_offset": 100.0}, "begin at byte 100.0"),
        ({"vox_offset": 352.5}, "begin at byte 352.5"),
        ({"vox_offset": float("nan")}, "begin at byte nan"),
        ({"vox_offset": float("inf")}, "begin at byte inf"),
        ({"vox_offset": 1e6}, "376 bytes where the header promises 1000024"),
        ({"scl_slope": 2.0}, "slope 2.0"),
        ({"scl_slope": 1.0, "scl_inter": 5.0}, "intercept 5.0"),
        ({"xyzt_units": 7}, "unit of space has code 7"),
        ({"srow": (1, 0.1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)}, "rotated"),
        ({"sform_code": 0, "qform_code": 1, "quatern": (0.0, 0.0, 1.0)}, "rotated"),
        ({"sform_code": 0, "qform_code": 1, "pixdim": (-1.0, *(1.0,) * 7)}, "rotated"),
        ({"srow": (-1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)}, "size (-1.0, 1.0, 1.0)"),
        ({"srow": (float("nan"), 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)}, "size (nan, 1.0, 1.0)"),
        ({"srow": (1, 0, 0, float("inf"), 0, 1, 0, 0, 0, 0, 1, 0)}, "origin (inf, 0.0, 0.0)"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_not_read_is_named(write_nifti: Write, changed: dict[str, Any], told: str) -> None:
    """A header that is wrong, or asks for more than a reshape, is refused with the file and the value."""
    path = write_nifti(DATA, **changed)
    with pytest.raises(ConfigurationError) as caught:
        read_nifti(path)
    assert told in str(caught.value)
    assert repr(str(path)) in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, 347])
def test_file_shorter_than_a_header(tmp_path: Path, size: int) -> None:
    """A file without a whole header is refused with its size."""
    path = tmp_path / "short.nii"
    path.write_bytes(b"\x5c\x01\0\0".ljust(size, b"\0")[:size])
    with pytest.raises(ConfigurationError, match=f"it has {size} bytes, fewer than the 348"):
        read_nifti(path)


def test_data_cut_short(write_nifti: Write) -> None:
    """One missing byte is enough to refuse a file."""
    path = write_nifti(DATA, "a.nii")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigurationError, match="it has 375 bytes where the header promises 376: it is cut short"):
        read_nifti(path)


@pytest.mark.parametrize("damage", ["cut", "flip", "only-magic"])
def test_damaged_gzip(write_nifti: Write, damage: str) -> None:
    """A packed file that does not unpack is refused in words."""
    path = write_nifti(DATA)
    raw = path.read_bytes()
    damaged = {"cut": raw[:-9], "flip": raw[:40] + b"\xff\xff\xff\xff" + raw[44:], "only-magic": raw[:2]}[damage]
    assert damaged != raw
    path.write_bytes(damaged)
    with pytest.raises(ConfigurationError, match="does not decompress"):
        read_nifti(path)


def test_bytes_after_the_packed_data(write_nifti: Write) -> None:
    """Two gzip members are one file, as for gzip itself."""
    path = write_nifti(DATA)
    raw = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(raw[:100]) + gzip.compress(raw[100:]))
    assert np.array_equal(read_nifti(path).data, DATA.T)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(ConfigurationError, match=r"nowhere\.nii.*No such file"):
        read_nifti(tmp_path / "nowhere.nii")

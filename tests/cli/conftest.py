"""Small volumes, stores of them, and a NIfTI writer that can also write what is wrong."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from skimage.filters import threshold_multiotsu

from workspan.cli.demo import ome
from workspan.cli.demo.brain import find_brain
from workspan.cli.demo.nifti import Volume, read_nifti
from workspan.cli.demo.pipeline import Brain

CODES = {"u1": 2, "i2": 4, "i4": 8, "f4": 16, "f8": 64, "i1": 256, "u2": 512, "u4": 768}


def nifti_bytes(data: np.ndarray, **changed: Any) -> bytes:
    """A NIfTI-1 file of *data* (x, y, z), with header fields replaced by *changed*."""
    order = changed.pop("order", "<")
    kind = data.dtype.str[1:]
    field = {
        "sizeof_hdr": ("i", 0, 348),
        "dim": ("8h", 40, (data.ndim, *data.shape, *(1,) * (7 - data.ndim))),
        "datatype": ("h", 70, CODES.get(kind, 0)),
        "bitpix": ("h", 72, data.itemsize * 8),
        "pixdim": ("8f", 76, (1.0,) * 8),
        "vox_offset": ("f", 108, 352.0),
        "scl_slope": ("f", 112, 0.0),
        "scl_inter": ("f", 116, 0.0),
        "xyzt_units": ("B", 123, 2),
        "qform_code": ("h", 252, 0),
        "sform_code": ("h", 254, 2),
        "quatern": ("3f", 256, (0.0, 0.0, 0.0)),
        "qoffset": ("3f", 268, (-1.0, -2.0, -3.0)),
        "srow": ("12f", 280, (1, 0, 0, -98, 0, 1, 0, -134, 0, 0, 1, -72)),
        "magic": ("4s", 344, b"n+1\0"),
    }
    raw = bytearray(352)
    for name, (form, at, value) in field.items():
        value = changed.pop(name, value)
        struct.pack_into(order + form, raw, at, *(value if isinstance(value, tuple) else (value,)))
    assert not changed, f"no such header field: {changed}"
    return bytes(raw) + data.astype(data.dtype.newbyteorder(order)).tobytes(order="F")


@pytest.fixture
def write_nifti(tmp_path: Path) -> Callable[..., Path]:
    """Write a NIfTI file: ``write_nifti(data, name="a.nii.gz", **changed_header_fields)``."""

    def write(data: np.ndarray, name: str = "a.nii.gz", **changed: Any) -> Path:
        raw = nifti_bytes(data, **changed)
        path = tmp_path / name
        path.write_bytes(gzip.compress(raw, 1) if name.endswith(".gz") else raw)
        return path

    return write


@pytest.fixture(scope="session")
def t1() -> Volume:
    """The whole brain."""
    return read_nifti(find_brain().t1)


@pytest.fixture(scope="session")
def crop(t1: Volume) -> np.ndarray:
    """A piece of the brain with all classes in it, at the border of the brain, with odd extents (z, y, x)."""
    return np.ascontiguousarray(t1.data[94:125, 166:203, 80:114])


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Brain]:
    """Make a store: ``make_store(data, block, sigma=1.0)`` with an edge or one extent an axis."""

    def make(
        data: np.ndarray, block: int | tuple[int, int, int], sigma: float = 1.0, name: str = "brain.zarr"
    ) -> Brain:
        edges = (block,) * 3 if isinstance(block, int) else block
        brain = Brain(str(tmp_path / name), data.shape, edges, sigma)
        ome.create(tmp_path / name, Volume(data, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)), brain)
        return brain

    return make


def compute_unblocked(data: np.ndarray, sigma: float) -> dict[str, np.ndarray]:
    """The truth: no block, no ROI, no chunk."""
    smoothed = gaussian_filter(data.astype(np.float32), sigma, mode="reflect")
    thresholds = threshold_multiotsu(data[data > 0], classes=3)
    labels = np.where(data > 0, 1 + (smoothed > thresholds[0]) + (smoothed > thresholds[1]), 0).astype(np.uint8)
    return {
        "smooth": smoothed,
        "thresholds": thresholds,
        "labels/classes/0": labels,
        "histogram": np.bincount(data[data > 0], minlength=256),
        "voxels": np.bincount(labels.ravel(), minlength=4),
    }


@pytest.fixture(scope="session")
def unblocked() -> Callable[[np.ndarray, float], dict[str, np.ndarray]]:
    """The truth as a function: ``unblocked(data, sigma)``."""
    return compute_unblocked

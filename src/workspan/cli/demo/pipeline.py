"""The four tasks of the demo, and the block functions that do their work.

``smooth`` -> ``classes`` -> ``classify`` -> ``measure``. All ROIs are in voxels of the volume, axes z, y, x. A block
writes whole chunks of its own and nothing else, so that no two processes ever share a chunk.

The libraries that the work needs are loaded inside the block functions, in a section of their own: a worker loads
what its task uses, the report says what that cost, and a process that only looks on loads nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import workspan as ws

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from workspan.grid.block import Block

Triple = tuple[int, int, int]

TASKS = ("smooth", "classes", "classify", "measure")

CLASSES = ("background", "CSF", "grey matter", "white matter")
"""Meaning of the labels 0, 1, 2, 3."""

LEVELS = 256
"""Bins of a histogram: one for each value of uint8."""


@dataclass(frozen=True, slots=True)
class Brain:
    """Where the arrays of one demo folder are, and how they are cut. Small, so that it travels with a function."""

    store: str
    """Path of the OME-Zarr group."""
    shape: Triple
    """Voxels per axis (z, y, x)."""
    block: Triple
    """Write shape of an interior block, in voxels; the chunk shape, too."""
    sigma: float = 1.0
    """Standard deviation of the Gaussian, in voxels."""

    @property
    def halo(self) -> int:
        """Voxels that the Gaussian reads beyond a block on each side: where SciPy cuts it off (4 sigma)."""
        return int(4 * self.sigma + 0.5)

    @property
    def grid(self) -> Triple:
        """Blocks per axis."""
        z, y, x = (-(-n // b) for n, b in zip(self.shape, self.block, strict=True))
        return z, y, x

    @property
    def roi(self) -> ws.Roi:
        """The whole volume."""
        return ws.Roi((0, 0, 0), self.shape)

    def cell(self, block: Block) -> Triple:
        """Position of *block* in :attr:`grid`."""
        z, y, x = (at // b for at, b in zip(block.write_roi.begin, self.block, strict=True))
        return z, y, x

    def read(self, name: str, where: Any = ...) -> NDArray[Any]:
        """Read the part *where* (an index as of NumPy) of array *name*."""
        values: NDArray[Any] = self.open(name)[where]
        return values

    def write(self, name: str, where: Any, values: NDArray[Any]) -> None:
        """Write *values* to the part *where* of array *name*."""
        self.open(name)[where] = values

    def open(self, name: str) -> Any:
        """Open an array of the store; a process opens each one once."""
        path = os.path.join(self.store, name)
        return _opened(path, os.stat(os.path.join(path, "zarr.json")).st_mtime_ns)


@lru_cache(maxsize=16)
def _opened(path: str, made_ns: int) -> Any:
    """Array at *path*; *made_ns* tells a store from its successor at the same place."""
    import zarr

    return zarr.open_array(path, mode="r+")


def build(brain: Brain, tracking: Path | None, *, workers: int) -> ws.Pipeline:
    """Declare the tasks and how their blocks depend on each other.

    Parameters
    ----------
    brain
        The arrays; they must exist when the pipeline runs.
    tracking
        Folder for one tracking store a task; ``None``: no tracking.
    workers
        Worker processes of a task. ``classes`` is one block and has one.
    """
    halo = (brain.halo,) * 3
    whole, one = brain.roi, ws.Roi((0, 0, 0), brain.block)

    def task(name: str, total: ws.Roi, read: ws.Roi, write: ws.Roi, function: Any, workers: int) -> ws.Task:
        return ws.Task(
            name,
            total,
            read,
            write,
            process_function=partial(function, brain=brain),
            read_write_conflict=False,
            fit="shrink",
            max_workers=workers,
            tracking_path=False if tracking is None else tracking / name,
            resource_tracking=tracking is not None,
        )

    # The total ROI is the volume grown by the halo: blocks then write every voxel of the volume, and what they would
    # read outside of it is cut off in the block function.
    smoothed = task("smooth", whole.grow(halo, halo), one.grow(halo, halo), one, smooth, workers)
    # One block that reads the whole volume: it waits for every block of smooth, and every block of classify for it.
    fan_in = task("classes", whole, whole, whole, classes, 1)
    labelled = task("classify", whole, one, one, classify, workers)
    measured = task("measure", whole, one, one, measure, workers)
    return ws.Pipeline(
        [smoothed, fan_in, labelled, measured],
        [(smoothed, fan_in), (smoothed, labelled), (fan_in, labelled), (labelled, measured)],
    )


def smooth(block: Block, *, brain: Brain) -> None:
    """Filter one block with a Gaussian, and count the intensities of its voxels inside the brain."""
    with ws.section("import"):
        import numpy as np
        import zarr  # noqa: F401 - opened below, loaded here so that its cost has a name
        from scipy.ndimage import gaussian_filter
    with ws.section("read"):
        # Clipped, not padded: at the border of the volume the filter's own "reflect" must see the border.
        raw, inner = ws.read_block(brain.open("t1"), block)
    with ws.section("filter"):
        # uint8 would be cut to integers after each axis, so convert first.
        data = gaussian_filter(raw.astype(np.float32), brain.sigma, mode="reflect")
    with ws.section("histogram"):
        own = raw[inner]
        counts = np.bincount(own[own > 0], minlength=LEVELS)
    with ws.section("write"):
        ws.write_block(brain.open("smooth"), block, data[inner])
        brain.write("tables/histograms", brain.cell(block), counts)


def classes(block: Block, *, brain: Brain) -> None:
    """Choose the intensities between three classes from the histograms of all blocks (multi-Otsu)."""
    with ws.section("import"):
        import numpy as np
        import zarr  # noqa: F401
        from skimage import filters

        otsu: Any = filters.threshold_multiotsu  # loads the module behind it
    with ws.section("read"):
        histograms = brain.read("tables/histograms")
        if histograms.min() < 0:
            raise RuntimeError("a histogram of 'smooth' was removed or never written")
        counts = histograms.reshape(-1, LEVELS).sum(axis=0)
    with ws.section("thresholds"):
        # Integer counts add up exactly, so these are the thresholds of the whole volume.
        thresholds = otsu(hist=(counts, np.arange(LEVELS)), classes=3)
    with ws.section("write"):
        brain.write("tables/thresholds", ..., thresholds)


def classify(block: Block, *, brain: Brain) -> None:
    """Label each voxel of one block: 0 outside the brain, else the class of its smoothed intensity."""
    with ws.section("import"):
        import numpy as np
        import zarr  # noqa: F401
    with ws.section("read"):
        raw, _ = ws.read_block(brain.open("t1"), block)
        data, _ = ws.read_block(brain.open("smooth"), block)
        thresholds = brain.read("tables/thresholds")
        if np.isnan(data).any() or np.isnan(thresholds).any():
            raise RuntimeError("the output of 'smooth' or 'classes' was removed or never written")
    with ws.section("label"):
        # A threshold is the last intensity of the lower class, hence right=True.
        labels = np.digitize(data, thresholds, right=True).astype(np.uint8) + np.uint8(1)
        labels[raw == 0] = 0
    with ws.section("write"):
        brain.write("labels/classes/0", block.write_roi.to_slices(), labels)


def measure(block: Block, *, brain: Brain) -> None:
    """Count the voxels of each class in one block."""
    with ws.section("import"):
        import numpy as np
        import zarr  # noqa: F401
    with ws.section("read"):
        labels, _ = ws.read_block(brain.open("labels/classes/0"), block)
    with ws.section("count"):
        counts = np.bincount(labels.ravel(), minlength=len(CLASSES))
        if len(counts) > len(CLASSES):
            raise RuntimeError(f"label {labels.max()} is none of 0..{len(CLASSES) - 1}: a voxel was not classified")
    with ws.section("write"):
        brain.write("tables/voxels", brain.cell(block), counts)

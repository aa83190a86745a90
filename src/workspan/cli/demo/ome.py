"""The store of the demo: one OME-Zarr 0.5 image with its label image and the tables of its blocks.

=====================  =========  ==============================================================
array                  type       content
=====================  =========  ==============================================================
``t1``                 uint8      the brain
``smooth``             float32    the brain, filtered
``labels/classes/0``   uint8      labels 0..3
``tables/histograms``  int64      (blocks..., 256): voxels of each intensity inside the brain
``tables/thresholds``  float64    (2,): upper intensity of CSF and of grey matter
``tables/voxels``      int64      (blocks..., 4): voxels of each class
=====================  =========  ==============================================================

One chunk is one block everywhere. What no block has written yet reads as a value that no block can write (NaN, 255,
-1), never as a plausible zero.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from workspan.cli.demo.pipeline import CLASSES, LEVELS

if TYPE_CHECKING:
    from pathlib import Path

    from workspan.cli.demo.nifti import Volume
    from workspan.cli.demo.pipeline import Brain, Triple

VERSION = "0.5"
AXES = ("z", "y", "x")
UNWRITTEN_LABEL = 255

COLOURS: tuple[Triple, ...] = ((0, 0, 0), (86, 180, 233), (230, 159, 0), (240, 228, 66))
"""RGB of the labels, told apart by colour-blind people as well."""


def create(path: Path, volume: Volume, brain: Brain) -> None:
    """Write the store with its input; the outputs are empty.

    Parameters
    ----------
    path
        A folder that does not exist yet. The caller moves it to its place when it is complete.
    volume
        The T1 brain.
    brain
        Shape and block shape; its own path is not used.
    """
    import zarr

    image = _multiscale("T1", "t1", volume), _multiscale("smoothed T1", "smooth", volume)
    root = zarr.create_group(path, attributes={"ome": {"version": VERSION, "multiscales": list(image)}})
    space: dict[str, Any] = {"shape": brain.shape, "chunks": chunk_shape(brain), "dimension_names": AXES}
    # Every chunk is stored, also one of zeros: a chunk that is missing is then damage.
    t1 = root.create_array("t1", dtype="uint8", fill_value=0, config={"write_empty_chunks": True}, **space)
    root.create_array("smooth", dtype="float32", fill_value=float("nan"), **space)

    labels = root.create_group("labels", attributes={"ome": {"version": VERSION, "labels": ["classes"]}})
    named = labels.create_group("classes", attributes={"ome": _label_image(volume)})
    named.create_array("0", dtype="uint8", fill_value=UNWRITTEN_LABEL, **space)

    tables = root.create_group("tables")
    for name, width in (("histograms", LEVELS), ("voxels", len(CLASSES))):
        tables.create_array(
            name,
            shape=(*brain.grid, width),
            chunks=(1, 1, 1, width),
            dtype="int64",
            fill_value=-1,
            dimension_names=(*AXES, "intensity" if width == LEVELS else "class"),
        )
    tables.create_array("thresholds", shape=(2,), chunks=(2,), dtype="float64", fill_value=float("nan"))
    tables["voxels"].attrs.update({"classes": list(CLASSES), "millilitres_per_voxel": voxel_ml(volume.spacing)})
    t1[...] = volume.data


def chunk_shape(brain: Brain) -> Triple:
    """Shape of a chunk: the block, or the whole axis where that is shorter."""
    z, y, x = map(min, brain.block, brain.shape)
    return z, y, x


def voxel_ml(spacing: tuple[float, float, float]) -> float:
    """Volume of a voxel, in millilitres, from its size in mm."""
    return spacing[0] * spacing[1] * spacing[2] / 1000


def chunk_files(store: Path, brain: Brain) -> dict[str, list[Path]]:
    """Name every chunk file that a finished demo has, by array."""
    blocks = ["/".join(map(str, cell)) for cell in product(*map(range, brain.grid))]
    volumes = ("t1", "smooth", "labels/classes/0")
    tables = ("tables/histograms", "tables/voxels")
    files = {name: [store / name / "c" / block for block in blocks] for name in volumes}
    files |= {name: [store / name / "c" / block / "0" for block in blocks] for name in tables}
    return files | {"tables/thresholds": [store / "tables/thresholds/c/0"]}


def _multiscale(name: str, path: str, volume: Volume) -> dict[str, Any]:
    place = [
        {"type": "scale", "scale": list(volume.spacing)},
        {"type": "translation", "translation": list(volume.origin)},
    ]
    return {
        "name": name,
        "axes": [{"name": axis, "type": "space", "unit": "millimeter"} for axis in AXES],
        "datasets": [{"path": path, "coordinateTransformations": place}],
    }


def _label_image(volume: Volume) -> dict[str, Any]:
    named = list(enumerate(zip(CLASSES, COLOURS, strict=True)))
    return {
        "version": VERSION,
        "multiscales": [_multiscale("tissue classes", "0", volume)],
        "image-label": {
            "colors": [{"label-value": label, "rgba": [*colour, 255 if label else 0]} for label, (_, colour) in named],
            "properties": [{"label-value": label, "class": name} for label, (name, _) in named],
            "source": {"image": "../../"},
        },
    }
